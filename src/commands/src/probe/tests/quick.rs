//! The quick probe against servers of a few lines that do each thing wrong, and against a node that shares one port.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::{Value, json};

use super::{Args, ConfigArgs, PATIENCE, Step, check};
use config::{Config, Sources};
use host::Verdict;

/// Answers each request by its head, one connection after the other. Nothing: it stays silent.
fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let Some(head) = head(&mut stream) else { continue };
            let answer = answer(&head);
            stream.write_all(answer.as_bytes()).unwrap();
            if answer.starts_with("HTTP/1.1 101") {
                // The close frame of the probe, masked and empty, is answered before the connection ends.
                stream.read_exact(&mut [0; 6]).unwrap();
                stream.write_all(&[0x88, 0]).unwrap();
            } else if answer.is_empty() {
                silent.push(stream);
            }
        }
    });
    address
}

fn head(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        read.push(byte[0]);
    }
    String::from_utf8(read).ok()
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The answer of a server that is well.
fn well(head: &str) -> String {
    if head.starts_with("POST /wpush/") {
        return response("404 Not Found", "{\"errno\":102}");
    }
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).expect("an upgrade");
    let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

fn listener(port: &str, address: SocketAddr) -> Value {
    json!({ "port": port, "address": address, "tls": false, "proxied": false })
}

/// A health route that shows these listeners.
fn admin(listeners: Vec<Value>) -> SocketAddr {
    let body = json!({ "status": "OK", "conditions": [], "listeners": listeners }).to_string();
    serve(move |head| {
        assert!(head.starts_with("GET /health HTTP/1.1\r\n"), "{head}");
        response("200 OK", &body)
    })
}

/// Steps, findings, and the step that failed with its sentence.
type Probed = (Vec<Step>, Vec<(Verdict, String)>, Result<(), (Step, String)>);

fn probe(timeout: u64, sets: &[String]) -> Probed {
    let config = ConfigArgs { sets: sets.to_vec(), ..ConfigArgs::default() };
    let (ws, endpoint) = (String::new(), None);
    let args = Args { server: None, ws, endpoint, ca: None, timeout, quiet: true, quick: true, config };
    let (report, outcome) = check(&args);
    let rows = report.rows.into_iter().map(|row| (row.verdict, row.found)).collect();
    let outcome = outcome.map_err(|(step, why)| (step, why.to_string()));
    (report.steps.into_iter().map(|(step, _)| step).collect(), rows, outcome)
}

fn probe_admin(admin: SocketAddr) -> Probed {
    probe(PATIENCE, &[format!("admin.listen={admin}")])
}

#[test]
fn each_listener_without_tls_is_asked_for_what_it_serves() {
    use Step::{Connect, Health, Post};
    let one = serve(well);
    for (listeners, steps) in [
        (vec![], &[Health][..]),
        (vec![listener("websocket", one)], &[Health, Connect]),
        (vec![listener("endpoint", one)], &[Health, Post]),
        (vec![listener("public", one)], &[Health, Connect, Post]),
        (vec![listener("endpoint", one), listener("node", one), listener("websocket", one)], &[Health, Post, Connect]),
        (vec![json!({ "port": "public", "address": one, "tls": true, "proxied": false })], &[Health]),
        (vec![json!({ "port": "public", "address": one, "tls": false, "proxied": true })], &[Health]),
    ] {
        assert_eq!(probe_admin(admin(listeners)), (steps.to_vec(), vec![], Ok(())));
    }
    let metrics = format!("metrics.listen={}", admin(vec![listener("public", one)]));
    assert_eq!(probe(PATIENCE, &["admin.listen=".to_owned(), metrics]).2, Ok(()), "the listener for metrics suffices");
}

#[test]
fn each_fault_ends_at_its_step_with_its_sentence() {
    let public = |answer: fn(&str) -> String| admin(vec![listener("public", serve(answer))]);
    let broken = json!({ "status": "ERROR", "listeners": [], "conditions": [
        { "name": "drain", "trouble": null }, { "name": "lease", "trouble": "this boot is over" } ] });
    for (admin, step, sentence) in [
        (super::nobody(), Step::Health, "refused"),
        (serve(move |_| response("503 Service Unavailable", &broken.to_string())), Step::Health, "this boot is over"),
        (serve(|_| response("200 OK", "{}")), Step::Health, "answered 200"),
        (admin(vec![listener("public", super::nobody())]), Step::Connect, "refused"),
        (public(|_| response("400 Bad Request", "")), Step::Connect, "answered 400 instead of 101"),
        (
            public(|head| if head.starts_with("POST") { response("201 Created", "") } else { well(head) }),
            Step::Post,
            "answered 201 instead of 404",
        ),
    ] {
        let (steps, _, outcome) = probe_admin(admin);
        let (failed, why) = outcome.expect_err("the fault must be seen");
        assert_eq!((failed, steps.last()), (step, Some(&step)), "{why}");
        assert!(why.contains(sentence), "{why}");
    }
    assert_eq!(Step::Health.status(), 18);
    let (_, _, outcome) = probe(PATIENCE, &["admin.listen=".to_owned()]);
    assert!(outcome.unwrap_err().1.contains("neither admin.listen nor metrics.listen"));
    let (_, _, outcome) = probe(PATIENCE, &["admin.lisen=127.0.0.1:1".to_owned()]);
    assert!(outcome.unwrap_err().1.contains("admin.listen"), "the nearest key is named");
    for silent in [serve(|_| String::new()), public(|_| String::new())] {
        let (_, _, outcome) = probe(2, &[format!("admin.listen={silent}")]);
        assert!(outcome.unwrap_err().1.contains("no answer in time"));
    }
}

#[test]
fn a_server_at_a_limit_is_alive() {
    let full = serve(|_| response("503 Service Unavailable", ""));
    let (_, rows, outcome) = probe_admin(admin(vec![listener("public", full)]));
    assert_eq!(outcome, Ok(()));
    assert!(rows.len() == 2 && rows.iter().all(|(verdict, _)| *verdict == Verdict::Warn), "{rows:?}");
}

/// `access.register = token`: an upgrade without a token is refused.
#[test]
fn a_server_that_takes_only_known_user_agents_is_alive() {
    let closed = serve(|head| if head.starts_with("POST") { well(head) } else { response("401 Unauthorized", "") });
    assert_eq!(probe_admin(admin(vec![listener("public", closed)])).2, Ok(()));
}

/// One port for user agents and app servers, on all addresses, as in the image.
#[test]
fn a_node_with_one_port_is_well() {
    let dir = tempfile::tempdir().unwrap();
    // No other test listens on these.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 250, high, low.max(1));
    let (public, admin) = (SocketAddr::from((ip, 8080)), SocketAddr::from((ip, 8083)));
    let sets = [
        format!("data_dir={}", dir.path().join("data").display()),
        format!("websocket.listen={public}"),
        format!("endpoint.listen={public}"),
        format!("node.listen={ip}:8081"),
        format!("admin.listen={admin}"),
        "shards.count=1".to_owned(),
        "delivery.ledger_bytes=4MiB".to_owned(),
        "max_connections=1000".to_owned(),
    ];
    let config = Config::load(&Sources { sets: sets.to_vec(), ..Sources::default() }).unwrap();
    let running = server::start(&config).unwrap();
    assert_eq!(probe_admin(admin), (vec![Step::Health, Step::Connect, Step::Post], vec![], Ok(())));
    running.stop().unwrap();
    assert_eq!(probe_admin(admin).2.unwrap_err().0, Step::Health);
}
