//! One port for everything public, over TLS, and one address for user agents and app servers without TLS.

use super::tls::{connect, files, notification};
use super::*;
use client::agent::{Agent, channel_id};
use client::http::{Client, Request};
use fixtures::TestCertificates;

const HSTS: &str = "strict-transport-security";

/// Sends a message the whole way: the agent registers at the public address, and the sender posts there.
fn check_way(mut agent: Agent, sender: &mut Client) {
    agent.hello(None).unwrap();
    let endpoint = agent.register(&channel_id(), None).unwrap();
    let answer = sender.exchange(&Request::post(&endpoint, 60).unwrap().encrypted(vec![7; 100])).unwrap();
    assert_eq!((answer.status, answer.header("server")), (201, None));
    assert_eq!(notification(&mut agent).body.len(), 100);
    agent.close().unwrap();
}

#[test]
fn one_port_serves_sessions_posts_and_the_page_over_tls() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["localhost", "127.0.0.1"]));
    let [cert, key] = files(&papers);
    let listen = ["public.listen=127.0.0.1:0", "public.domain=localhost", "public.http_listen=127.0.0.1:0"];
    let alone = ["websocket.listen=", "endpoint.listen="];
    let sets = [&["store.kind=memory"], &listen[..], &alone, &[&cert, &key]].concat();
    let running = start(&config(dir.path(), &sets)).unwrap();
    let address = running.addresses().public[0];
    assert_eq!(running.addresses().endpoint_url, "https://localhost");
    let over_tls = || connect(&format!("https://{address}"), &papers).unwrap();
    let mut visitor = Client::over(over_tls());
    let get = |path: &str| Request::new("GET", path).header("Host", "localhost").header("Accept", "text/html");
    let page = visitor.exchange(&get("/")).unwrap();
    assert_eq!((page.status, page.header(HSTS)), (200, Some("max-age=31536000")));
    assert!(String::from_utf8(page.body).unwrap().contains("wss://localhost/"));
    assert_eq!(visitor.exchange(&get("/__lbheartbeat__")).unwrap().status, 200);
    for path in ["/health", "/metrics", "/boot"] {
        assert_eq!(visitor.exchange(&get(path)).unwrap().status, 404, "{path}");
    }
    let plain = ask(running.addresses().public_http[0], "GET /a HTTP/1.1\r\nhost: other\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 308 ") && plain.contains("\r\nlocation: https://localhost/a\r\n"), "{plain}");
    // Users live on both shards, so that some sockets move.
    for _ in 0..8 {
        check_way(Agent::upgrade("wss://localhost/", over_tls()).unwrap(), &mut visitor);
    }
    running.stop().unwrap();
}

/// Senders would still get in without a certificate, through the port that stays open until a restart.
#[test]
fn authorities_of_senders_are_not_taken_while_a_public_port_is_open() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["localhost", "127.0.0.1"]));
    let [cert, key] = files(&papers);
    let listen = ["store.kind=memory", "public.domain=localhost", "public.http_listen=none"];
    let sets = [&listen[..], &["public.listen=127.0.0.1:0", &cert, &key]].concat();
    let running = start(&config(dir.path(), &sets)).unwrap();
    let ca = format!("endpoint.tls.client_ca={}", papers.ca().display());
    let closed = [&listen[..], &["public.listen=none", "endpoint.tls.listen=127.0.0.1:0", &cert, &key]].concat();
    let said = running.reload(&config(dir.path(), &[&closed[..], &[&ca]].concat())).unwrap_err().to_string();
    assert!(said.contains("endpoint.tls.client_ca") && said.ends_with("; restart murre"), "{said}");
    let waiting = running.reload(&config(dir.path(), &closed)).unwrap();
    assert_eq!(waiting, ["endpoint.tls.listen", "public.listen"]);
    running.stop().unwrap();
}

#[test]
fn the_page_behind_a_proxy_names_the_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address: SocketAddr = format!("127.79.{high}.{low}:8080").parse().unwrap();
    let [websocket, endpoint] = ["websocket", "endpoint"].map(|port| format!("{port}.listen={address}"));
    let url = "endpoint.url=https://push.example.org";
    let running = start(&config(dir.path(), &["store.kind=memory", url, &websocket, &endpoint])).unwrap();
    let page = Client::connect(address).unwrap().exchange(&Request::new("GET", "/").header("Host", "a")).unwrap();
    assert!(String::from_utf8(page.body).unwrap().contains("wss://push.example.org/"));
    running.stop().unwrap();
}

#[test]
fn one_address_without_tls_serves_sessions_posts_and_the_page() {
    let dir = tempfile::tempdir().unwrap();
    // A loopback address of this process alone.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address: SocketAddr = format!("127.78.{high}.{low}:8080").parse().unwrap();
    let [websocket, endpoint] = ["websocket", "endpoint"].map(|port| format!("{port}.listen={address}"));
    let running = start(&config(dir.path(), &["store.kind=memory", "tls.hsts=60", &websocket, &endpoint])).unwrap();
    let Addresses { websocket, endpoint, endpoint_url, .. } = running.addresses();
    assert_eq!((&websocket[..], &endpoint[..]), (&[address][..], &[address][..]));
    assert_eq!(*endpoint_url, format!("http://{address}"));
    let mut visitor = Client::connect(address).unwrap();
    let page = visitor.exchange(&Request::new("GET", "/").header("Host", "a")).unwrap();
    assert_eq!((page.status, page.header(HSTS)), (200, None));
    assert!(String::from_utf8(page.body).unwrap().contains(&format!("ws://{address}/")));
    check_way(Agent::connect(address).unwrap(), &mut visitor);
    running.stop().unwrap();
}
