//! User agents: the session from upgrade to goodbye, and the text of each event.

use std::sync::Arc;

use machine::ids::{Chid, EmissionId, KeyDigest, Uaid};
use machine::message::{Message, Topic, Urgency};
use machine::simplepush::Mode;
use machine::time::UnixSeconds;
use machine::{AgentCommand, AgentEvent, BroadcastDelta, CloseReason, Command, SessionCommand, SessionEvent};
use runtime::ports::{Edge, Port};
use serde_json::Value;

use super::*;
use crate::{EventKind, Events};
use protocol::webpush::endpoint::parse_path;
use protocol::webpush::headers::Encryption;
use protocol::webpush::payload::Draft;
use protocol::wire::upgrade::family_name;

const CHANNEL: &str = "deadbeef-0000-4000-8000-000000000001";

fn chid() -> Chid {
    Chid(*uuid::Uuid::parse_str(CHANNEL).unwrap().as_bytes())
}

fn payloads(bytes: &[u8]) -> Vec<String> {
    let mut rest = bytes;
    let mut texts = Vec::new();
    while let [0x81, short, ..] = rest {
        let (head, length) = match short {
            126 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            length => (2, usize::from(*length)),
        };
        texts.push(String::from_utf8(rest[head..head + length].to_vec()).unwrap());
        rest = &rest[head + length..];
    }
    assert!(rest.is_empty(), "{rest:?}");
    texts
}

#[test]
fn upgrade_then_hello() {
    let mut harness = Harness::new(Port::WebSocket);
    assert!(!harness.edge.mid_request(&harness.codec));
    harness.feed(&UPGRADE.as_bytes()[..20]);
    assert!(harness.edge.mid_request(&harness.codec));
    harness.feed(&UPGRADE.as_bytes()[20..]);
    assert!(!harness.edge.mid_request(&harness.codec));
    let (status, head, _) = harness.response();
    assert_eq!(status, 101);
    assert!(head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert!(head.contains("Sec-WebSocket-Protocol: push-notification"));
    assert!(!head.contains("Extensions"));
    assert_eq!(harness.steps.last(), Some(&Step::Upgraded));
    harness.feed_text(r#"{"messageType":"hello","uaid":"","use_webpush":true,"broadcasts":{"a":"1"}}"#);
    let Some(Command::Agent(AgentCommand::Hello(hello))) = harness.commands.last() else { panic!() };
    assert_eq!((hello.uaid, hello.broadcasts.len()), (None, 1));
    assert_eq!(family_name(hello.agent_family), ("Linux", "Firefox"));
    assert_eq!(config().placement.owner(hello.fresh), config().shard);
    assert_eq!(harness.edge.stats().upgrades, 1);
}

#[test]
fn a_known_uaid_is_read_in_any_spelling() {
    for spelling in ["deadbeef000040008000000000000001", "DEADBEEF-0000-4000-8000-000000000001"] {
        let mut harness = Harness::new(Port::WebSocket);
        harness.feed(UPGRADE.as_bytes()).feed_text(&format!(r#"{{"messageType":"hello","uaid":"{spelling}"}}"#));
        let Some(Command::Agent(AgentCommand::Hello(hello))) = harness.commands.last() else { panic!() };
        assert_eq!(hello.uaid, Some(Uaid(chid().0)));
    }
}

#[test]
fn registers_with_and_without_key() {
    let mut harness = Harness::greeted();
    harness.feed_text(&format!(r#"{{"messageType":"register","channelID":"{CHANNEL}"}}"#));
    let registered = |harness: &Harness| match harness.commands.last() {
        Some(Command::Agent(AgentCommand::Session(SessionCommand::Register { key, chid, .. }))) => (*key, *chid),
        other => panic!("{other:?}"),
    };
    assert_eq!(registered(&harness), (None, chid()));
    let sender = Sender::new();
    let register = format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","key":"{}="}}"#, sender.key());
    harness.feed_text(&register);
    assert_eq!(registered(&harness).0, Some(sender.digest()));
    harness.steps.clear();
    harness.feed_text(&format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","key":"AAAA"}}"#));
    assert_eq!(harness.commands.len(), 2);
    let text = "Failed to generate endpoint";
    let expected =
        format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","status":400,"pushEndpoint":"{text}"}}"#);
    assert_eq!(payloads(&harness.written()), [expected]);
    assert!(!harness.ended());
}

#[test]
fn a_registered_event_seals_an_endpoint_that_opens() {
    let digest = Some(KeyDigest([5; 32]));
    for (form, key, version) in [
        (TokenForm::Short, None, "v3"),
        (TokenForm::Short, digest, "v3"),
        (TokenForm::Fernet, None, "v1"),
        (TokenForm::Fernet, digest, "v2"),
    ] {
        let edge = PushEdge::new(&EdgeConfig { tokens: form, ..config() }).unwrap();
        let mut harness = Harness::with(edge, Port::WebSocket);
        harness.codec = harness.edge.arrived();
        harness.emit(SessionEvent::Registered { uaid: Uaid([1; 16]), chid: chid(), key, status: 200 });
        let text = payloads(&harness.written()).remove(0);
        let message: Value = serde_json::from_str(&text).unwrap();
        let endpoint = message["pushEndpoint"].as_str().unwrap();
        let (form, token) =
            parse_path(endpoint.strip_prefix(ORIGIN).unwrap().strip_prefix("/wpush/").unwrap()).unwrap();
        let opened = harness.edge.tokens.open(form, token).unwrap();
        assert!(endpoint.contains(&format!("/{version}/")) && opened.version == form);
        assert_eq!((opened.uaid, opened.chid, opened.lock.is_some()), (Uaid([1; 16]), chid(), key.is_some()));
        assert!(opened.lock.is_none_or(|lock| lock.fits(&key.unwrap())));
    }
}

fn message(topic: Option<&[u8]>, body: &[u8]) -> Arc<Message> {
    let headers = Encryption { encoding: Some(b"aes128gcm"), ..Encryption::default() };
    let mut draft = Draft::new(&headers, body.len());
    draft.extend(body);
    Arc::new(Message {
        uaid: Uaid([1; 16]),
        chid: chid(),
        stamp: STAMP,
        ttl: 60,
        accepted: UnixSeconds(NOW),
        urgency: Urgency::Normal,
        topic: topic.and_then(Topic::new),
        receipt: false,
        tries: Default::default(),
        payload: draft.finish().unwrap(),
    })
}

#[test]
fn a_notification_is_acked_by_its_version() {
    for (topic, body) in [(None, &b"body"[..]), (Some(&b"topic"[..]), b""), (None, &[7; 5000])] {
        let mut harness = Harness::greeted();
        harness.emit(SessionEvent::Notification {
            message: message(topic, body),
            emission: EmissionId(0),
            tells_urgency: false,
        });
        let text = payloads(&harness.written()).remove(0);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["channelID"], CHANNEL);
        assert_eq!(
            read.get("data").and_then(Value::as_str),
            (!body.is_empty()).then(|| protocol::wire::base64url::encode(body)).as_deref()
        );
        assert_eq!(read.get("headers").is_some(), !body.is_empty());
        let version = read["version"].as_str().unwrap();
        let update = |version: &str, code: &str| format!(r#"{{"channelID":"{CHANNEL}","version":"{version}"{code}}}"#);
        let updates = [update("unknown", ""), update(version, r#","code":102"#)].join(",");
        harness.feed_text(&format!(r#"{{"messageType":"ack","updates":[{updates}]}}"#));
        let Some(Command::Agent(AgentCommand::Session(SessionCommand::Ack(acked)))) = harness.commands.last() else {
            panic!()
        };
        assert_eq!(acked.len(), 1);
        assert_eq!((acked[0].stamp, acked[0].chid, acked[0].code), (STAMP, chid(), 102));
        assert_eq!(acked[0].topic, topic.and_then(Topic::new));
        assert_eq!(harness.edge.stats().ack_ids_unknown, 1);
    }
}

#[test]
fn the_other_events_are_spelled_as_documented() {
    let mut harness = Harness::greeted();
    harness.emit(AgentEvent::Pong);
    harness.emit(SessionEvent::Unregistered { chid: chid(), status: 200 });
    let delta = BroadcastDelta { changed: vec![], unknown: vec!["x".into()] };
    harness.emit(SessionEvent::Broadcast(Box::new(delta.clone())));
    harness.emit(SessionEvent::Hello {
        uaid: Uaid([0xab; 16]),
        minted: true,
        mode: Mode::WebPush,
        broadcasts: Box::new(delta),
    });
    assert_eq!(
        payloads(&harness.written()),
        [
            "{}".to_string(),
            format!(r#"{{"messageType":"unregister","channelID":"{CHANNEL}","status":200}}"#),
            r#"{"messageType":"broadcast","broadcasts":{"errors":{"x":"Broadcast not found"}}}"#.to_string(),
            format!(
                r#"{{"messageType":"hello","uaid":"{}","status":200,"use_webpush":true,"broadcasts":{{{}}}}}"#,
                "ab".repeat(16),
                r#""errors":{"x":"Broadcast not found"}"#
            ),
        ]
    );
    harness.steps.clear();
    harness.emit(AgentEvent::Ping);
    assert_eq!(harness.written(), [0x89, 0]);
}

#[test]
fn the_small_messages_become_commands() {
    let mut harness = Harness::greeted();
    harness.feed_text("{}").feed_text(" { } ").feed_text(r#"{"messageType":"ping"}"#);
    harness.feed_text(r#"{"messageType":"nack","version":"v","code":303}"#);
    harness.feed_text(r#"{"messageType":"broadcast_subscribe","broadcasts":{"a":"1"}}"#);
    harness.feed_text(&format!(r#"{{"messageType":"unregister","channelID":"{}"}}"#, CHANNEL.to_uppercase()));
    harness.feed_text(r#"{"messageType":"ack","updates":[]}"#);
    let kinds: Vec<String> = harness.commands.iter().map(describe).collect();
    assert_eq!(&kinds[..4], ["Ping", "Ping", "Ping", "Nack { code: 303 }"]);
    assert!(kinds[4].starts_with("BroadcastSubscribe"));
    assert!(kinds[5].starts_with("Unregister"));
    assert_eq!(kinds.len(), 6);
}

fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ws::write_masked(&mut out, opcode, [9, 8, 7, 6], payload);
    out
}

#[test]
fn control_frames_are_answered() {
    let mut harness = Harness::greeted();
    harness.feed(&frame(Opcode::Ping, b"hi"));
    assert_eq!(harness.written(), b"\x8a\x02hi");
    harness.feed(&frame(Opcode::Pong, b""));
    assert!(matches!(harness.commands[..], [Command::Agent(AgentCommand::Pong)]));
    harness.steps.clear();
    harness.feed(&frame(Opcode::Close, b"\x03\xe9bye"));
    assert_eq!(harness.goodbye(), (1001, "bye".to_string()));
    assert!(harness.steps.contains(&Step::Closed(CloseReason::PeerClosed)));
    let mut harness = Harness::greeted();
    harness.feed(&frame(Opcode::Close, b""));
    assert_eq!(harness.written(), [0x88, 0]);
}

#[test]
fn owed_pongs_coalesce_to_the_latest() {
    let mut harness = Harness::greeted();
    let burst = [frame(Opcode::Ping, b"1"), frame(Opcode::Ping, b"2"), frame(Opcode::Ping, b"3")].concat();
    harness.feed(&burst);
    assert_eq!(harness.steps, [Step::Out(b"\x8a\x013".to_vec())]);
}

#[test]
fn a_pong_before_hello_is_dropped() {
    let mut harness = Harness::new(Port::WebSocket);
    harness.feed(UPGRADE.as_bytes()).feed(&frame(Opcode::Pong, b""));
    assert!(harness.commands.is_empty() && !harness.ended());
}

#[test]
fn fragments_are_joined_with_control_frames_between() {
    let mut harness = Harness::greeted();
    let (mut first, mut last) = (frame(Opcode::Text, b"{\"messageType\":"), frame(Opcode::Text, b"}"));
    let mut middle = frame(Opcode::Text, b"\"ping\"");
    (first[0], middle[0], last[0]) = (0x01, 0x00, 0x80);
    harness.feed(&[first, frame(Opcode::Ping, b"p"), middle, last].concat());
    assert!(matches!(harness.commands[..], [Command::Agent(AgentCommand::Ping)]));
    assert!(harness.written().starts_with(b"\x8a\x01p"));
    harness.feed_text("{}");
    assert_eq!(harness.commands.len(), 2);
}

#[test]
fn beyond_the_welcome_a_websocket_is_sent_elsewhere_and_the_others_stay() {
    let gate = Arc::new(AdmissionGate::new(1));
    let edge = || PushEdge::new(&EdgeConfig { gate: Arc::clone(&gate), ..config() }).unwrap();
    let ask = |port, path: &str| {
        let mut harness = Harness::with(edge(), port);
        harness.feed(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        harness.response()
    };
    assert_eq!(ask(Port::WebSocket, "/__lbheartbeat__").0, 200);
    let mut first = Harness::with(edge(), Port::WebSocket);
    first.feed(UPGRADE.as_bytes());
    assert_eq!(first.statuses(), [101]);
    let mut second = Harness::with(edge(), Port::WebSocket);
    second.feed(UPGRADE.as_bytes());
    assert_eq!(second.fault(), (503, None));
    assert!(second.response().1.contains("Retry-After: 1\r\n") && second.ended());
    assert_eq!(second.edge.stats().upgrades_elsewhere, 1);
    let (status, head, _) = ask(Port::WebSocket, "/__lbheartbeat__");
    assert!(status == 503 && head.contains("Retry-After"), "{head}");
    // App servers and health checks are answered as always.
    assert_eq!((ask(Port::Endpoint, "/__lbheartbeat__").0, ask(Port::WebSocket, "/health").0), (200, 200));
    gate.set_held(0);
    let mut third = Harness::with(edge(), Port::WebSocket);
    third.feed(UPGRADE.as_bytes());
    assert_eq!(third.statuses(), [101]);
}

#[test]
fn close_codes_of_two_peers_are_not_mixed_up() {
    let events = Arc::new(Events::new());
    let edge = PushEdge::new(&EdgeConfig { events: Some(Arc::clone(&events)), ..config() }).unwrap();
    let mut first = Harness::with(edge, Port::WebSocket);
    let mut codecs: Vec<Codec> = (0..3).map(|_| first.edge.arrived()).collect();
    for (codec, payload) in codecs.iter_mut().zip([&b"\x0f\xa1"[..], &b"\x0f\xa2"[..], &b""[..]]) {
        let ingest = first.edge.ingest(now(), codec, &mut frame(Opcode::Close, payload), &mut Vec::new()).ingest;
        assert!(matches!(ingest, Ingest::Close { reason: CloseReason::PeerClosed }));
    }
    codecs.iter().for_each(|codec| first.edge.ended(now(), codec, CloseReason::PeerClosed));
    let codes: Vec<_> = std::iter::from_fn(|| events.take())
        .map(|report| match report.happening {
            EventKind::Ended(ended) => ended.code,
            other => panic!("an end: {other:?}"),
        })
        .collect();
    assert_eq!(codes, [Some(4001), Some(4002), None]);
}

#[test]
fn without_a_place_a_health_page_is_shown_and_a_websocket_is_refused() {
    let ask = |request: &str| {
        let mut harness = Harness::new(Port::WebSocket);
        harness.codec = harness.edge.open_placeless(Port::WebSocket).unwrap();
        harness.feed(request.as_bytes());
        assert!(harness.ended(), "one answer: {request}");
        (harness.response().0, harness.response().1.contains("Retry-After: 120\r\n"))
    };
    for path in ["/health", "/status", "/__heartbeat__"] {
        assert_eq!(ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")), (200, false), "{path}");
    }
    assert_eq!(ask("GET /__lbheartbeat__ HTTP/1.1\r\nHost: h\r\n\r\n"), (503, true));
    assert_eq!(ask(UPGRADE), (503, true));
    for port in [Port::Endpoint, Port::Node] {
        assert!(Harness::new(port).edge.open_placeless(port).is_none(), "{port:?} has places of its own");
    }
}
