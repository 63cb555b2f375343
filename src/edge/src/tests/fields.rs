//! Fields that every answer has, and one that only answers over TLS have.

use super::*;

const HSTS: &str = "Strict-Transport-Security: max-age=31536000\r\n";

/// A request for each kind of answer: 101, 200, 204, 201, 400, 401, 404, 405, 426 and 431.
fn requests() -> Vec<(Port, String)> {
    let post = endpoint_path(TokenForm::Short, None);
    let rest = "HTTP/1.1\r\nHost: h\r\n";
    vec![
        (Port::WebSocket, UPGRADE.to_owned()),
        (Port::WebSocket, UPGRADE.replace("Version: 13", "Version: 99")),
        (Port::WebSocket, UPGRADE.replace("keep-alive, Upgrade", "keep-alive")),
        (Port::WebSocket, format!("DELETE / {rest}\r\n")),
        (Port::Endpoint, format!("GET /health {rest}\r\n")),
        (Port::Endpoint, format!("OPTIONS {post} {rest}Origin: https://a\r\n\r\n")),
        (Port::Endpoint, format!("POST {post} {rest}TTL: 1\r\nContent-Length: 0\r\n\r\n")),
        (Port::Endpoint, format!("GET /nowhere {rest}\r\n")),
        (Port::Endpoint, format!("GET / {rest}A: {}\r\n\r\n", "x".repeat(17_000))),
        (Port::Endpoint, "nonsense\r\n\r\n".to_owned()),
        (Port::Node, format!("PUT /push/x {rest}\r\n")),
    ]
}

fn answered(port: Port, tls: bool, hsts: u32, request: &str) -> String {
    let edge = PushEdge::new(&EdgeConfig { hsts, ..config() }).unwrap();
    let mut harness = Harness::over(edge, port, tls);
    harness.feed(request.as_bytes());
    let head = harness.response().1;
    assert!(!head.is_empty(), "{request}");
    format!("{head}\r\n")
}

#[test]
fn answers_over_tls_and_no_others_ask_for_tls_the_next_time() {
    for (port, request) in requests() {
        let over_tls = answered(port, true, 31_536_000, &request);
        assert_eq!(over_tls.matches(HSTS).count(), 1, "{request}{over_tls}");
        for (tls, hsts) in [(false, 31_536_000), (true, 0)] {
            let head = answered(port, tls, hsts, &request);
            assert_eq!(head, over_tls.replace(HSTS, ""), "{request}");
        }
    }
    let edge = PushEdge::new(&EdgeConfig { hsts: 31_536_000, ..config() }).unwrap();
    let mut slow = Harness::over(edge, Port::Endpoint, true);
    slow.feed(b"GET /health HTTP/1.1\r\nHost:");
    slow.close(CloseReason::Idle);
    assert_eq!(slow.response().0, 408);
    assert!(slow.response().1.contains("max-age=31536000"), "the request had no head yet");
}

#[test]
fn no_answer_names_the_server() {
    for (port, request) in requests() {
        let head = answered(port, true, 0, &request).to_ascii_lowercase();
        assert!(!head.contains("\r\nserver:") && !head.contains("murre/"), "{head}");
        let is_switch = head.starts_with("http/1.1 101 ");
        assert_eq!(head.contains("\r\ndate: "), !is_switch, "{head}");
    }
}
