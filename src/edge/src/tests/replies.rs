//! Text of the server's answers, to the byte (PROTOCOL.md 1.6).

use machine::ids::{Chid, Uaid};
use machine::{BroadcastDelta, BroadcastVersion, SessionEvent};

use machine::simplepush::Mode;

use super::*;

const CHANNEL: &str = "deadbeef-0000-4000-8000-000000000001";

fn chid() -> Chid {
    Chid(*uuid::Uuid::parse_str(CHANNEL).unwrap().as_bytes())
}

/// Returns the text of the one short message that this event becomes.
fn spelled(event: SessionEvent) -> String {
    let mut harness = Harness::greeted();
    harness.emit(event);
    let bytes = harness.written();
    let start = match bytes[..2] {
        [0x81, 126] => 4,
        [0x81, _] => 2,
        ref other => panic!("{other:?}"),
    };
    String::from_utf8(bytes[start..].to_vec()).unwrap()
}

#[test]
fn what_storage_failed_is_told_with_500_and_no_endpoint() {
    let register = SessionEvent::Registered { uaid: Uaid([1; 16]), chid: chid(), key: None, status: 500 };
    let expected = format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","status":500,"pushEndpoint":""}}"#);
    assert_eq!(spelled(register), expected);
    let unregister = SessionEvent::Unregistered { chid: chid(), status: 500 };
    let expected = format!(r#"{{"messageType":"unregister","channelID":"{CHANNEL}","status":500}}"#);
    assert_eq!(spelled(unregister), expected);
}

#[test]
fn hello_and_broadcast_carry_versions_and_errors_together() {
    let version = BroadcastVersion { id: "a/b".into(), version: "\"7\"".into() };
    let delta = BroadcastDelta { changed: vec![version], unknown: vec!["c".into()] };
    let inside = r#"{"a/b":"\"7\"","errors":{"c":"Broadcast not found"}}"#;
    let expected = format!(r#"{{"messageType":"broadcast","broadcasts":{inside}}}"#);
    assert_eq!(spelled(SessionEvent::Broadcast(Box::new(delta.clone()))), expected);
    let hello =
        SessionEvent::Hello { uaid: Uaid([0x0a; 16]), minted: true, mode: Mode::WebPush, broadcasts: Box::new(delta) };
    let expected = format!(
        r#"{{"messageType":"hello","uaid":"{}","status":200,"use_webpush":true,"broadcasts":{inside}}}"#,
        "0a".repeat(16)
    );
    assert_eq!(spelled(hello), expected);
}
