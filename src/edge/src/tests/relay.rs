//! Relays: the messages of several user agents on one connection.

use std::sync::Arc;

use machine::ids::{Chid, EmissionId, Uaid};
use machine::message::{Message, Urgency};
use machine::time::UnixSeconds;
use machine::{
    AgentCommand, BroadcastDelta, CloseReason, Command, RelayCommand, RelayEvent, SessionCommand, SessionEvent,
};
use runtime::ports::Port;

use super::*;

const MEMBER: Uaid = Uaid([0xab; 16]);
const CHANNEL: &str = "deadbeef-0000-4000-8000-000000000001";

/// A connection that has opened a relay.
fn relay() -> Harness {
    let mut harness = Harness::new(Port::WebSocket);
    harness.feed(UPGRADE.as_bytes()).feed_text(r#"{"messageType":"hello","relay":true,"use_webpush":true}"#);
    assert!(matches!(harness.commands.last(), Some(Command::Relay(RelayCommand::Open))));
    harness
}

/// Message that was written last.
fn last(harness: &Harness) -> serde_json::Value {
    let text = harness.written_text();
    let start = text.rfind(r#"{"messageType""#).unwrap();
    serde_json::from_str(&text[start..]).unwrap()
}

fn said(harness: &mut Harness, event: RelayEvent) -> serde_json::Value {
    harness.emit(event);
    last(harness)
}

#[test]
fn a_hello_opens_a_relay_only_where_there_are_relays_and_without_a_uaid() {
    let json = last(&relay());
    assert_eq!(json, serde_json::json!({"messageType": "hello", "relay": true, "status": 200, "members": 9}));
    let hello = r#"{"messageType":"hello","relay":true}"#;
    let without = EdgeConfig { relays: false, ..config() };
    let mut harness = Harness::with(PushEdge::new(&without).unwrap(), Port::WebSocket);
    harness.feed(UPGRADE.as_bytes()).feed_text(hello);
    assert!(matches!(harness.commands[..], [Command::Agent(AgentCommand::Hello(_))]), "an unknown field is ignored");
    let mut harness = Harness::new(Port::WebSocket);
    let named = r#"{"messageType":"hello","relay":true,"uaid":"abababababababababababababababab"}"#;
    harness.feed(UPGRADE.as_bytes()).feed_text(named);
    assert!(matches!(harness.commands[..], [Command::Agent(AgentCommand::Hello(_))]));
    harness.feed_text(hello);
    assert_eq!(harness.goodbye(), (1011, "SM".into()));
}

#[test]
fn every_message_of_a_relay_names_a_member() {
    let mut harness = relay();
    harness.feed_text(r#"{"messageType":"hello","uaid":"abababababababababababababababab"}"#);
    let Some(Command::Relay(RelayCommand::Attach(hello))) = harness.commands.last() else { panic!() };
    assert_eq!(hello.uaid, Some(MEMBER));
    assert_eq!(config().placement.owner(hello.fresh), config().shard);
    let json = last(&harness);
    assert_eq!((&json["messageType"], json["uaid"].as_str().unwrap().len()), (&"hello".into(), 32));
    assert_eq!(json.as_object().unwrap().len(), 5, "as any reply to hello");
    let register = format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","uaid":"{}"}}"#, "AB".repeat(16));
    harness.feed_text(&register);
    let Some(Command::Relay(RelayCommand::For { uaid, command })) = harness.commands.last() else { panic!() };
    assert!(*uaid == MEMBER && matches!(**command, SessionCommand::Register { key: None, .. }));
    assert_eq!(last(&harness)["uaid"], "ab".repeat(16));
    harness.feed_text(r#"{"messageType":"bye","uaid":"abababababababababababababababab"}"#);
    assert!(matches!(harness.commands.last(), Some(Command::Relay(RelayCommand::Bye(MEMBER)))));
    harness.feed_text("{}");
    assert!(matches!(harness.commands.last(), Some(Command::Relay(RelayCommand::Ping))));
    harness.feed_text(r#"{"messageType":"nack","version":"v"}"#);
    assert_eq!(harness.goodbye(), (1011, "Json".into()));
}

#[test]
fn a_key_that_is_no_key_is_answered_to_the_member() {
    let mut harness = relay();
    let register =
        format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","key":"AA","uaid":"{}"}}"#, "ab".repeat(16));
    harness.feed_text(&register);
    let json = last(&harness);
    assert_eq!((&json["status"], &json["uaid"]), (&400.into(), &"ab".repeat(16).into()));
    assert!(!harness.ended());
}

#[test]
fn what_is_said_to_members_names_them() {
    let mut harness = relay();
    let name = "ab".repeat(16);
    let of = |event| RelayEvent::Of { uaid: MEMBER, event: Box::new(event) };
    let message = Message {
        uaid: MEMBER,
        chid: Chid([0xc1; 16]),
        stamp: STAMP,
        ttl: 5,
        accepted: UnixSeconds(0),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: Box::default(),
    };
    let notification =
        SessionEvent::Notification { message: Arc::new(message), emission: EmissionId(1), tells_urgency: false };
    let json = said(&mut harness, of(notification));
    assert_eq!((&json["messageType"], &json["uaid"]), (&"notification".into(), &name.clone().into()));
    let json = said(&mut harness, of(SessionEvent::Broadcast(Box::<BroadcastDelta>::default())));
    assert_eq!((&json["messageType"], &json["uaid"]), (&"broadcast".into(), &name.clone().into()));
    let json = said(&mut harness, RelayEvent::Bye { uaid: Some(MEMBER), reason: CloseReason::Superseded });
    assert_eq!(json, serde_json::json!({"messageType": "bye", "uaid": name, "code": 1011, "reason": "SM"}));
    let json = said(&mut harness, RelayEvent::Bye { uaid: None, reason: CloseReason::Overloaded });
    assert_eq!(json, serde_json::json!({"messageType": "bye", "uaid": "", "code": 1013, "reason": "Overloaded"}));
    let json = said(&mut harness, RelayEvent::Bye { uaid: Some(MEMBER), reason: CloseReason::PeerClosed });
    assert_eq!((&json["code"], &json["reason"]), (&1000.into(), &"".into()));
}
