//! Rules about callers: tokens of upgrades, keys of registers, keys of senders.

use super::endpoint::{GOOD, post};
use super::*;
use crate::{AccessRules, Register};

const TOKEN: &str = "a-token-of-sixteen-or-more";

fn edge(register: Register, senders: Vec<KeyDigest>) -> PushEdge {
    PushEdge::new(&EdgeConfig { rules: AccessRules { register, senders }, ..config() }).unwrap()
}

fn tokens() -> Register {
    Register::Token(vec!["another-token-of-this-server".into(), TOKEN.into()])
}

/// Returns the status of an upgrade with this request line and this line of its head.
fn upgraded(edge: PushEdge, port: Port, path: &str, line: &str) -> u16 {
    let mut harness = Harness::with(edge, port);
    let request = UPGRADE.replacen("GET / ", &format!("GET {path} "), 1);
    harness.feed(request.replacen("Host:", &format!("{line}Host:"), 1).as_bytes());
    if harness.steps.contains(&Step::Upgraded) { 101 } else { harness.response().0 }
}

#[test]
fn a_token_admits_in_the_path_or_as_bearer_and_no_other_text_does() {
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let (path, bare) = (format!("/t/{TOKEN}/"), format!("/t/{TOKEN}"));
    for port in [Port::WebSocket, Port::Public] {
        for (path, line, status) in [
            (path.as_str(), "", 101),
            (&bare, "", 101),
            ("/", bearer.as_str(), 101),
            ("/t/x/", &bearer, 101),
            ("/", "", 401),
            ("/t/", "", 401),
            ("/t//", "", 401),
            (&format!("{path}/"), "", 401),
            (&path[..path.len() - 2], "", 401),
            ("/", "Authorization: Bearer \r\n", 401),
            ("/", "Authorization: Basic YWxhZGRpbjpvcGVu\r\n", 401),
        ] {
            assert_eq!(upgraded(edge(tokens(), Vec::new()), port, path, line), status, "{port:?} {path} {line}");
        }
    }
}

#[test]
fn an_upgrade_without_a_token_hears_of_it_and_is_counted() {
    let mut harness = Harness::with(edge(tokens(), Vec::new()), Port::WebSocket);
    harness.feed(UPGRADE.as_bytes());
    let (status, head, body) = harness.response();
    assert_eq!(status, 401);
    assert!(head.contains("WWW-Authenticate: Bearer\r\n") && body.contains("wss://NAME/t/TOKEN/"), "{head}{body}");
    assert!(!body.contains(TOKEN));
    assert_eq!(harness.edge.take_refused().by_rule, [1, 0, 0]);
}

#[test]
fn a_path_with_a_token_is_open_to_all_while_registration_is_open() {
    assert_eq!(upgraded(edge(Register::Open, Vec::new()), Port::WebSocket, "/t/any/", ""), 101);
    assert_eq!(upgraded(edge(Register::Open, Vec::new()), Port::Endpoint, "/t/any/", ""), 404);
}

#[test]
fn a_register_names_an_allowed_key_or_gets_401_with_every_field() {
    let (ours, other) = (Sender::new(), Sender::new());
    let channel = "01234567-89ab-cdef-0123-456789abcdef";
    for (key, allowed) in [(Some(ours.key()), true), (Some(other.key()), false), (None, false)] {
        let mut harness = Harness::with(edge(Register::Vapid(vec![ours.digest()]), Vec::new()), Port::WebSocket);
        harness.codec = harness.edge.arrived();
        let key = key.map_or(String::new(), |key| format!(r#","key":"{key}""#));
        harness.feed_text(&format!(r#"{{"messageType":"register","channelID":"{channel}"{key}}}"#));
        assert_eq!(harness.commands.len(), usize::from(allowed));
        assert_eq!(harness.edge.take_refused().by_rule, [0, u64::from(!allowed), 0]);
        if !allowed {
            let written = harness.written();
            let text = String::from_utf8_lossy(&written);
            let fields = format!(r#"{{"messageType":"register","channelID":"{channel}","status":401,"pushEndpoint":""#);
            assert!(text.contains(&fields), "{text}");
        }
        assert!(!harness.ended());
    }
}

#[test]
fn only_allowed_keys_send() {
    let (ours, other) = (Sender::new(), Sender::new());
    for (sender, status) in [(Some(&ours), 201), (Some(&other), 401), (None, 401)] {
        let mut harness = Harness::with(edge(Register::Open, vec![ours.digest()]), Port::Endpoint);
        let vapid = sender.map_or(String::new(), |sender| {
            format!("Authorization: vapid t={}, k={}\r\n", sender.good_token(NOW + 60), sender.key())
        });
        harness.feed(post(&endpoint_path(TokenForm::Short, None), &format!("{GOOD}{vapid}"), "body").as_bytes());
        let (answered, _, body) = harness.response();
        assert_eq!(answered, status, "{body}");
        assert_eq!(harness.commands.len(), usize::from(status == 201));
        assert_eq!(harness.edge.take_refused().by_rule, [0, 0, u64::from(status == 401)]);
        assert!(status == 201 || body.contains(r#""errno":109"#), "{body}");
    }
}

#[test]
fn rules_are_replaced_while_sessions_go_on() {
    let mut harness = Harness::with(edge(Register::Open, Vec::new()), Port::WebSocket);
    harness.feed(UPGRADE.as_bytes());
    harness.edge.set_rules(&AccessRules { register: tokens(), ..AccessRules::default() });
    assert!(!harness.feed_text(r#"{"messageType":"hello","use_webpush":true}"#).ended());
    assert_eq!(harness.commands.len(), 1);
    let mut codec = harness.edge.open(Port::WebSocket, false);
    let mut out = Vec::new();
    harness.edge.ingest(now(), &mut codec, &mut UPGRADE.as_bytes().to_vec(), &mut out);
    assert!(out.starts_with(b"HTTP/1.1 401 "));
    let (mut codec, mut out) = (harness.edge.open(Port::WebSocket, false), Vec::new());
    harness.edge.ingest(now(), &mut codec, &mut b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), &mut out);
    assert!(String::from_utf8_lossy(&out).contains("Registration needs a token"));
}
