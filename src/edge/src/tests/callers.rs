//! Addresses that proxies name.

use std::net::IpAddr;

use super::endpoint::{GOOD, post};
use super::*;
use crate::Forwarding;
use protocol::wire::forwarded::Kind;
use runtime::ports::{ProxyHeader, Refused};

fn edge(field: Option<Kind>) -> PushEdge {
    let trusted = Arc::new(["10.0.0.0/8".parse().unwrap()]);
    PushEdge::new(&EdgeConfig { forwarding: Forwarding { field, trusted }, ..config() }).unwrap()
}

/// Returns the caller that an upgrade with these lines names.
fn named(field: Option<Kind>, lines: &str) -> Option<IpAddr> {
    let mut harness = Harness::with(edge(field), Port::WebSocket);
    harness.feed(UPGRADE.replacen("Host:", &format!("{lines}Host:"), 1).as_bytes());
    assert!(harness.steps.contains(&Step::Upgraded));
    harness.edge.forwarded()
}

#[test]
fn an_upgrade_names_its_caller_in_the_field_that_is_read() {
    let lines = "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nx-forwarded-for: 10.1.1.1\r\n\
                 Forwarded: for=\"[2001:db8::1]:4711\";proto=https\r\n";
    assert_eq!(named(Some(Kind::XForwardedFor), lines), Some("192.0.2.2".parse().unwrap()));
    assert_eq!(named(Some(Kind::Forwarded), lines), Some("2001:db8::1".parse().unwrap()));
    assert_eq!(named(None, lines), None);
    assert_eq!(named(Some(Kind::XForwardedFor), ""), None);
}

#[test]
fn an_address_is_told_once_and_not_of_a_refused_upgrade() {
    let mut edge = edge(Some(Kind::XForwardedFor));
    edge.set_rules(&AccessRules { register: crate::Register::Token(vec!["x".repeat(16)]), ..AccessRules::default() });
    let mut harness = Harness::with(edge, Port::WebSocket);
    harness.feed(UPGRADE.replacen("Host:", "X-Forwarded-For: 192.0.2.1\r\nHost:", 1).as_bytes());
    assert_eq!((harness.response().0, harness.edge.forwarded()), (401, None));
    assert_eq!(harness.edge.take_refused().caller, Some("192.0.2.1".parse().unwrap()), "with the refusal");
    let mut harness = Harness::with(super::callers::edge(Some(Kind::XForwardedFor)), Port::WebSocket);
    harness.feed(UPGRADE.replacen("Host:", "X-Forwarded-For: 192.0.2.1\r\nHost:", 1).as_bytes());
    assert!(harness.edge.forwarded().is_some() && harness.edge.forwarded().is_none());
}

/// The body of a refused request can come much later, and others are refused meanwhile.
#[test]
fn a_refusal_is_told_at_its_head_with_its_own_caller() {
    let mut edge = edge(Some(Kind::XForwardedFor));
    edge.set_rules(&AccessRules { senders: vec![Sender::new().digest()], ..AccessRules::default() });
    let mut harness = Harness::with(edge, Port::Endpoint);
    let fields = format!("{GOOD}X-Forwarded-For: 192.0.2.1\r\n");
    let request = post(&endpoint_path(TokenForm::Short, None), &fields, "body");
    let (head, body) = request.split_at(request.len() - 4);
    harness.feed(head.as_bytes());
    let told = harness.edge.take_refused();
    assert_eq!((told.by_rule, told.caller), ([0, 0, 1], Some("192.0.2.1".parse().unwrap())));
    harness.feed(body.as_bytes());
    assert_eq!((harness.response().0, harness.edge.take_refused()), (401, Refused::default()));
}

#[test]
fn a_proxy_header_is_read_in_both_versions() {
    let edge = edge(None);
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n";
    let source = Some("192.0.2.1".parse().unwrap());
    assert_eq!(edge.proxy_header(&line[..20]), ProxyHeader::Incomplete);
    assert_eq!(edge.proxy_header(line), ProxyHeader::Whole { len: line.len(), source });
    let block = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[192, 0, 2, 1, 192, 0, 2, 2, 0, 5, 0, 6]].concat();
    assert_eq!(edge.proxy_header(&block), ProxyHeader::Whole { len: block.len(), source });
    assert_eq!(edge.proxy_header(b"GET / HTTP/1.1\r\n"), ProxyHeader::Malformed);
}
