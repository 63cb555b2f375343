//! Listeners with TLS: user agents, app servers, other nodes and operators.

use std::time::Instant;

use futures_util::{SinkExt as _, StreamExt as _};
use protocol::wire::http1::HEAD_BYTES_MAX;
use protocol::wire::url::HttpUrl;
use tokio_tungstenite::tungstenite::Message;

use super::*;
use client::agent::{Agent, Note, Received, channel_id};
use client::http::{self, Client, Request, Response};
use client::stream::{Stream, Trust};
use control_plane::{Answering, who_answers};
use edge::EdgeKeys;
use fixtures::TestCertificates;

/// A node that serves every port over TLS, with these files; plain ports beside them.
fn with(dir: &Path, papers: &TestCertificates) -> Config {
    let listeners = ["websocket", "endpoint", "node", "admin"].map(|port| format!("{port}.tls.listen=127.0.0.1:0"));
    let [cert, key] = files(papers);
    let [websocket, endpoint, node, admin] = listeners.each_ref().map(String::as_str);
    config(dir, &["store.kind=memory", websocket, endpoint, node, admin, &cert, &key])
}

pub(super) fn files(papers: &TestCertificates) -> [String; 2] {
    [format!("tls.cert={}", papers.cert().display()), format!("tls.key={}", papers.key().display())]
}

/// Connects to the host of `url`, and trusts the authority of `papers` only.
pub(super) fn connect(url: &str, papers: &TestCertificates) -> std::io::Result<Stream> {
    let url = HttpUrl::parse(url).unwrap();
    Trust::read(Some(&papers.ca()), Instant::now() + PATIENCE)?.connect(url.origin(), url.origin())
}

fn agent(running: &RunningNode, papers: &TestCertificates) -> std::io::Result<Agent> {
    let address = running.addresses().websocket_tls[0];
    Agent::upgrade(&format!("wss://{address}/"), connect(&format!("https://{address}"), papers)?)
}

pub(super) fn ask_over_tls(address: SocketAddr, papers: &TestCertificates, path: &str) -> std::io::Result<Response> {
    let stream = connect(&format!("https://{address}"), papers)?;
    Client::over(stream).exchange(&Request::new("GET", path).header("Host", &address.to_string()))
}

pub(super) fn notification(agent: &mut Agent) -> Note {
    Note::read(agent.receive_type("notification").unwrap()).unwrap()
}

fn wait_for(running: &RunningNode, name: &str, wanted: u64) {
    let until = Instant::now() + PATIENCE;
    while running.total(name) != wanted {
        assert!(Instant::now() < until, "{name} is {}, not {wanted}", running.total(name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `openssl req -x509` marks its certificates as those of authorities, unless it is told not to.
#[test]
fn a_certificate_that_signed_itself_is_taken_without_the_mark_of_an_authority_and_refused_with_advice() {
    for is_marked in [false, true] {
        let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::self_signed("127.0.0.1", is_marked));
        let log = fixtures::Log::default();
        let running = log.of("warn", || start(&with(dir.path(), &papers)).unwrap());
        assert_eq!(log.text().contains("certificate of an authority found"), is_marked, "{}", log.text());
        let connected = agent(&running, &papers);
        let said = connected.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(said.contains("make it again with -addext basicConstraints=critical,CA:FALSE"), is_marked, "{said}");
        assert_eq!(said.is_empty(), !is_marked, "{said}");
        running.stop().unwrap();
    }
}

#[test]
fn messages_of_every_size_make_the_whole_way_over_tls() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["localhost", "127.0.0.1"]));
    let running = start(&with(dir.path(), &papers)).unwrap();
    let port = running.addresses().endpoint_tls[0].port();
    assert_eq!(running.addresses().endpoint_url, format!("https://localhost:{port}"), "the first name");
    // Users live on both shards, so that some sockets move.
    let mut agents: Vec<Agent> = (0..8).map(|_| agent(&running, &papers).unwrap()).collect();
    for agent in &mut agents {
        agent.hello(None).unwrap();
        let endpoint = agent.register(&channel_id(), None).unwrap();
        let mut sender = Client::over(connect(&endpoint, &papers).unwrap());
        for length in [0, 1, 100, 4_096] {
            let answer = sender.exchange(&Request::post(&endpoint, 60).unwrap().encrypted(vec![7; length])).unwrap();
            assert_eq!(answer.status, 201);
            let note = notification(agent);
            assert_eq!((note.body.len(), answer.message_id()), (length, Some(note.version.as_str())));
        }
    }
    // Each shard publishes its numbers by itself.
    wait_for(&running, "tls_handshakes_full_1_3", 16);
    wait_for(&running, "tls_connections", 8);
    assert!(running.total("tls_state_bytes") > 0);
    for agent in agents {
        agent.close().unwrap();
    }
    wait_for(&running, "tls_connections", 0);
    running.stop().unwrap();
}

/// Sends a request in pieces of this many bytes, each a record of its own. Returns the status of the answer.
fn exchange_in_pieces(mut stream: Stream, request: &[u8], piece: usize) -> u16 {
    for piece in request.chunks(piece) {
        stream.write_all(piece).unwrap();
    }
    let mut inbox = Vec::new();
    loop {
        if let Some((response, _)) = http::parse(&inbox).unwrap() {
            return response.status;
        }
        assert_ne!(http::read_more(&mut stream, &mut inbox).unwrap(), 0, "no answer");
    }
}

#[test]
fn heads_of_16_kib_arrive_over_tls_whole_or_in_pieces() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["localhost", "127.0.0.1"]));
    let running = start(&with(dir.path(), &papers)).unwrap();
    let mut agent = agent(&running, &papers).unwrap();
    agent.hello(None).unwrap();
    let endpoint = agent.register(&channel_id(), None).unwrap();
    let node = format!("https://{}", running.addresses().node_tls[0]);
    let post = |fill: usize| {
        let request = Request::post(&endpoint, 60).unwrap().header("X-Fill", &"y".repeat(fill));
        request.encrypted("long").to_bytes()
    };
    let call = |fill: usize| {
        let request = Request::new("PUT", "/notif/x").header("Host", "x").header("X-Fill", &"y".repeat(fill));
        request.to_bytes()
    };
    let bare = [post(0).len() - "long".len(), call(0).len()];
    for piece in [usize::MAX, 1_000, 61] {
        for (more, answers) in [(0, [201, 401]), (1, [431, 431])] {
            let [post, call] = [post(HEAD_BYTES_MAX - bare[0] + more), call(HEAD_BYTES_MAX - bare[1] + more)];
            assert_eq!(exchange_in_pieces(connect(&endpoint, &papers).unwrap(), &post, piece), answers[0], "{piece}");
            assert_eq!(exchange_in_pieces(connect(&node, &papers).unwrap(), &call, piece), answers[1], "{piece}");
        }
        assert_eq!(notification(&mut agent).text(), "long");
    }
    running.stop().unwrap();
}

#[test]
fn a_reload_changes_certificates_under_open_sessions_or_changes_nothing() {
    let (dir, log) = (tempfile::tempdir().unwrap(), fixtures::Log::default());
    let (before, after) = (TestCertificates::of(&["127.0.0.1"]), TestCertificates::of(&["127.0.0.1"]));
    let running = start(&with(dir.path(), &before)).unwrap();
    let mut there = agent(&running, &before).unwrap();
    there.hello(None).unwrap();
    let admin = running.addresses().admin_tls[0];
    assert_eq!(ask_over_tls(admin, &before, "/health").unwrap().status, 200);

    // One bad file among them: none is taken.
    let [cert, key] = files(&after);
    let own = ["node.tls.cert=/nonexistent.pem", "node.tls.key=/nonexistent.pem", "node.tls.listen=127.0.0.1:0"];
    let bad = ["store.kind=memory", "websocket.tls.listen=127.0.0.1:0", own[0], own[1], own[2], &cert, &key];
    let said = running.reload(&config(dir.path(), &bad)).unwrap_err().to_string();
    assert!(said.starts_with("node.tls.cert: ") && said.contains("/nonexistent.pem"), "{said}");
    assert!(agent(&running, &after).is_err() && agent(&running, &before).is_ok());

    log.of("info", || running.reload(&with(dir.path(), &after)).unwrap());
    assert_eq!(log.text().matches("certificates taken").count(), 1, "{}", log.text());
    assert!(agent(&running, &before).is_err() && agent(&running, &after).is_ok());
    assert!(ask_over_tls(admin, &before, "/health").is_err());
    assert_eq!(ask_over_tls(admin, &after, "/health").unwrap().status, 200);
    assert!(ask_over_tls(running.addresses().node_tls[0], &before, "/health").is_err());
    assert_eq!(ask_over_tls(running.addresses().node_tls[0], &after, "/health").unwrap().status, 200);
    // The session has its keys from the old certificate.
    there.register(&channel_id(), None).unwrap();
    there.close().unwrap();
    running.stop().unwrap();
}

#[test]
fn node_api_over_tls_needs_no_plain_listener() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["127.0.0.1"]));
    let own = [
        "node.tls.listen=127.0.0.1:0".to_owned(),
        format!("node.tls.cert={}", papers.cert().display()),
        format!("node.tls.key={}", papers.key().display()),
    ];
    let [listen, cert, key] = own.each_ref().map(String::as_str);
    let running = start(&config(dir.path(), &["store.kind=memory", "node.listen=", listen, cert, key])).unwrap();
    assert!(running.addresses().node.is_empty() && running.addresses().websocket_tls.is_empty());
    assert_eq!(ask_over_tls(running.addresses().node_tls[0], &papers, "/status").unwrap().status, 200);
    wait_for(&running, "node_tls_handshakes", 1);
    let stranger = TestCertificates::of(&["127.0.0.1"]);
    assert!(ask_over_tls(running.addresses().node_tls[0], &stranger, "/status").is_err());
    wait_for(&running, "node_tls_handshakes_failed", 1);
    running.stop().unwrap();
}

#[test]
fn a_handshake_that_takes_too_long_is_closed() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["127.0.0.1"]));
    let [cert, key] = files(&papers);
    let tls = ["websocket.tls.listen=127.0.0.1:0", "admin.tls.listen=127.0.0.1:0", "tls.handshake_timeout=0.3"];
    let running = start(&config(dir.path(), &["store.kind=memory", tls[0], tls[1], tls[2], &cert, &key])).unwrap();
    for address in [running.addresses().websocket_tls[0], running.addresses().admin_tls[0]] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The head of a ClientHello, and no more.
        stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
        // Signals of other tests interrupt a single read.
        let ended = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{address}: {ended:?}");
    }
    wait_for(&running, "tls_handshakes_timeout", 1);
    let stats =
        ask(running.addresses().admin[0], "GET /stats HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(stats.contains("\"admin_tls_handshakes_failed\":1"), "{stats}");
    running.stop().unwrap();
}

#[test]
fn a_session_over_tls_is_told_that_the_node_stops() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["127.0.0.1"]));
    let running = start(&with(dir.path(), &papers)).unwrap();
    let mut there = agent(&running, &papers).unwrap();
    there.hello(None).unwrap();
    let stopping = std::thread::spawn(move || running.stop().unwrap());
    assert_eq!(there.receive(PATIENCE).unwrap(), Received::Close(1001));
    drop(there);
    assert_eq!(stopping.join().unwrap(), StopOutcome::InOrder);
}

#[test]
fn a_certificate_without_host_names_is_warned_of_if_unknown_names_are_refused() {
    let (named, nameless) = (TestCertificates::of(&["a.example"]), TestCertificates::of(&["127.0.0.1"]));
    for (papers, unknown_name, warnings) in [(&named, "refuse", 0), (&nameless, "refuse", 1), (&nameless, "default", 0)]
    {
        let (dir, log) = (tempfile::tempdir().unwrap(), fixtures::Log::default());
        let ([cert, key], unknown_name) = (files(papers), format!("tls.unknown_name={unknown_name}"));
        let config = config(dir.path(), &["endpoint.tls.listen=127.0.0.1:0", &unknown_name, &cert, &key]);
        log.of("warn", || Certificates::read(&config).map(drop).unwrap());
        let text = log.text();
        assert_eq!(text.matches("certificate without host names found").count(), warnings, "{unknown_name}: {text}");
    }
}

#[test]
fn a_node_shows_its_certificate_to_a_node_that_asks_for_one() {
    let (dir, papers, strange) =
        (tempfile::tempdir().unwrap(), TestCertificates::of(&["127.0.0.1"]), TestCertificates::of(&["127.0.0.1"]));
    let [cert, key] = files(&papers);
    let ca = format!("node.tls.client_ca={}", papers.ca().display());
    let listen = ["store.kind=memory", "node.tls.listen=127.0.0.1:0", "node.tls.client_required=true"];
    let asking = [&listen[..], &["node.keys=a-key-of-sixteen-characters", &ca, &cert, &key]].concat();
    let running = start(&config(dir.path(), &asking)).unwrap();
    let url = format!("https://{}", running.addresses().node_tls[0]);
    let keys = EdgeKeys { crypto: Vec::new(), node: vec!["a-key-of-sixteen-characters".to_owned()] };
    let trusted = format!("node.ca={}", papers.ca().display());
    let asks = |own: &[&str]| {
        let trust =
            crate::cluster::trust(&config(dir.path(), &[&["store.kind=memory", &trusted], own].concat())).unwrap();
        who_answers(&url, &keys, &trust.unwrap(), PATIENCE).unwrap()
    };
    let [strange_cert, strange_key] = files(&strange);
    assert!(matches!(asks(&[listen[1], &cert, &key]), Answering::Node(_)));
    assert!(!matches!(asks(&[]), Answering::Node(_)), "without a certificate");
    assert!(!matches!(asks(&[listen[1], &strange_cert, &strange_key]), Answering::Node(_)), "of another authority");
    running.stop().unwrap();
}

/// A foreign client: tokio-tungstenite over rustls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokio_tungstenite_over_rustls_is_greeted() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["localhost", "127.0.0.1"]));
    let running = start(&with(dir.path(), &papers)).unwrap();
    let address = running.addresses().websocket_tls[0];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(::tls::client_config(&papers.ca()).unwrap()));
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(format!("wss://{address}/"), stream).await.unwrap();
    socket.send(Message::text(json!({ "messageType": "hello", "use_webpush": true }).to_string())).await.unwrap();
    let reply = socket.next().await.unwrap().unwrap();
    assert!(reply.to_text().unwrap().contains(r#""status":200"#), "{reply}");
    socket.close(None).await.unwrap();
}
