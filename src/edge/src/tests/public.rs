//! The port for everything public, and the page of `/`.

use super::*;

fn asked(port: Port, request: &str) -> Harness {
    let mut harness = Harness::new(port);
    harness.feed(request.as_bytes());
    harness
}

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
}

fn role(harness: &Harness) -> Port {
    harness.edge.role(&harness.codec, Port::WebSocket)
}

#[test]
fn a_public_port_has_the_routes_of_user_agents_and_app_servers() {
    let mut agent = asked(Port::Public, UPGRADE);
    assert_eq!((agent.steps.last(), agent.edge.stats().upgrades), (Some(&Step::Upgraded), 1));
    assert_eq!(role(&agent), Port::WebSocket);
    agent.feed_text(r#"{"messageType":"hello","use_webpush":true}"#);
    assert!(matches!(agent.commands[..], [Command::Agent(AgentCommand::Hello(_))]));
    let path = endpoint_path(TokenForm::Short, None);
    let post = format!("POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 60\r\nContent-Length: 0\r\n\r\n");
    let mut sender = asked(Port::Public, &post);
    assert_eq!((sender.statuses(), role(&sender)), (vec![201], Port::Endpoint));
    let location = sender.response().1.split_once("Location: ").unwrap().1.split("\r\n").next().unwrap().to_owned();
    let id = location.strip_prefix(ORIGIN).unwrap();
    sender.feed(format!("DELETE {id} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    assert_eq!(sender.statuses(), [201, 204]);
    sender.feed(get("/__lbheartbeat__", "").as_bytes()).feed(get("/r/x", "").as_bytes());
    assert_eq!(sender.statuses(), [201, 204, 200, 404]);
    assert_eq!((sender.edge.stats().receipt_requests, sender.ended()), (1, false));
    // A proxy may use a kept connection for the next user agent.
    sender.feed(UPGRADE.as_bytes());
    assert_eq!((sender.steps.last(), role(&sender)), (Some(&Step::Upgraded), Port::WebSocket));
}

#[test]
fn the_node_api_and_pages_for_operators_are_not_on_a_public_port() {
    let authorized = format!("Authorization: Bearer {NODE_KEY}\r\n");
    for path in ["/status", "/health", "/__heartbeat__", "/__version__", "/boot", "/metrics", "/nowhere"] {
        assert_eq!(asked(Port::Public, &get(path, &authorized)).fault(), (404, None), "{path}");
    }
    for path in ["/push/deadbeef000040008000000000000001", "/notif/deadbeef000040008000000000000001"] {
        let request = format!("PUT {path} HTTP/1.1\r\nHost: h\r\n{authorized}Content-Length: 0\r\n\r\n");
        let harness = asked(Port::Public, &request);
        assert_eq!((harness.fault(), harness.commands.len()), ((404, None), 0), "{path}");
    }
}

#[test]
fn a_public_port_without_places_says_so() {
    for (request, status) in [
        (UPGRADE.to_owned(), 503),
        (get("/__lbheartbeat__", ""), 503),
        ("POST /wpush/v1/x HTTP/1.1\r\nHost: h\r\nTTL: 1\r\nContent-Length: 0\r\n\r\n".to_owned(), 503),
        (get("/", ""), 200),
    ] {
        let mut harness = Harness::new(Port::Public);
        harness.codec = harness.edge.open_placeless(Port::Public).unwrap();
        harness.feed(request.as_bytes());
        assert_eq!((harness.statuses(), harness.ended()), (vec![status], true), "{request}");
    }
}

#[test]
fn a_visitor_gets_the_page_in_the_form_that_it_accepts() {
    for port in [Port::WebSocket, Port::Public] {
        let html = asked(port, &get("/", "Accept: text/html,application/xhtml+xml\r\n"));
        let (status, head, body) = html.response();
        assert_eq!((status, html.ended()), (200, false));
        assert!(head.contains("\r\nContent-Type: text/html; charset=utf-8"), "{head}");
        assert!(head.contains("\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'"));
        assert!(body.starts_with("<!DOCTYPE html>") && body.contains("<code>wss://push.example.org/</code>"));
        assert!(body.contains("<code>https://push.example.org/</code>") && body.contains("Registration is open."));
        assert!(["<script", "src=", "href=", "url("].iter().all(|outside| !body.contains(outside)), "{body}");
        for accept in ["", "Accept: */*\r\n"] {
            let text = asked(port, &get("/", accept));
            let (status, head, body) = text.response();
            assert_eq!((status, body.matches('\n').count()), (200, 1));
            assert!(head.contains("\r\nContent-Type: text/plain; charset=utf-8"), "{head}");
            assert!(body.contains("dom.push.serverURL to wss://push.example.org/. "), "{body}");
        }
        let head_only = asked(port, &get("/", "").replace("GET", "HEAD"));
        assert_eq!((head_only.response().0, head_only.response().2.as_str()), (200, ""));
        assert_eq!(asked(port, &get("/", "").replace("GET", "POST")).fault(), (405, None));
        assert_eq!(role(&html), if port == Port::Public { Port::Endpoint } else { Port::WebSocket });
    }
}

#[test]
fn without_tls_the_page_says_what_firefox_needs_besides() {
    let edge =
        PushEdge::new(&EdgeConfig { agent_url: base("http://127.0.0.1:8080").origin().clone(), ..config() }).unwrap();
    let mut harness = Harness::with(edge, Port::WebSocket);
    harness.feed(get("/", "").as_bytes());
    let page = "ws://127.0.0.1:8080/, and dom.push.testing.allowInsecureServerURL to true. ";
    assert!(harness.response().2.contains(page), "{}", harness.response().2);
}

/// A proxy that does not pass on `Upgrade` must not look like a browser that visits the page.
#[test]
fn an_upgrade_without_its_field_gets_no_page() {
    let request = UPGRADE.replace("Upgrade: websocket\r\n", "").replace("keep-alive, Upgrade", "close");
    assert_eq!(asked(Port::Public, &request).fault(), (400, None));
}
