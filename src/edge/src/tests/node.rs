//! Other nodes: authentication, bodies and answers (PROTOCOL.md 4.1).

use machine::ids::{Chid, Uaid};
use machine::message::{Topic, Urgency};
use machine::{Command, NodeAnswer, NodeCommand};
use runtime::ports::Port;

use super::*;
use protocol::webpush::message_id::MessageId;
use protocol::webpush::payload;

const UAID: &str = "01010101010101010101010101010101";
/// [`BOOT`] as it is written.
const OURS: &str = "0123456789abcdef";
const ANOTHER: &str = "0123456789abcdee";
const CHANNEL: &str = "02020202-0202-0202-0202-020202020202";

fn request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {NODE_KEY}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn version(harness: &Harness, topic: Option<&[u8]>) -> String {
    let topic = topic.and_then(Topic::new);
    let id = MessageId { stamp: STAMP, uaid: Uaid([1; 16]), chid: Chid([2; 16]), topic };
    let mut out = Vec::new();
    harness.edge.ids.seal(&id, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_push_carries_a_stamped_message() {
    let mut harness = Harness::new(Port::Node);
    let version = version(&harness, Some(b"news"));
    let body = format!(
        r#"{{"channelID":"{CHANNEL}","version":"{version}","ttl":60,"topic":"news","timestamp":1700000000,
        "urgency":"high","data":"-_8","reliability_id":null,
        "headers":{{"encoding":"aesgcm","encryption":"salt=AA","crypto_key":"dh=BB"}}}}"#
    );
    harness.feed(request("PUT", &format!("/push/{UAID}"), &body).as_bytes());
    let Some(Command::Node(NodeCommand::Push(publish))) = harness.commands.last() else {
        panic!("{}", harness.written_text())
    };
    let message = &publish.message;
    assert_eq!((message.uaid, message.chid, message.stamp), (Uaid([1; 16]), Chid([2; 16]), STAMP));
    assert_eq!((message.ttl, message.accepted.0, message.urgency), (60, 1_700_000_000, Urgency::High));
    assert_eq!(message.topic, Topic::new(b"news"));
    let view = payload::view(&message.payload).unwrap();
    assert_eq!(view.body, [0xfb, 0xff]);
    assert_eq!(view.headers, [Some("salt=AA"), Some("dh=BB"), None]);
    assert_eq!(harness.response().0, 200);
}

#[test]
fn a_push_without_data_has_no_headers() {
    let mut harness = Harness::new(Port::Node);
    let version = version(&harness, None);
    let body = format!(r#"{{"channelID":"{CHANNEL}","version":"{version}","timestamp":1,"headers":{{}}}}"#);
    harness.feed(request("PUT", &format!("/push/{UAID}"), &body).as_bytes());
    let Some(Command::Node(NodeCommand::Push(publish))) = harness.commands.last() else { panic!() };
    let message = &publish.message;
    assert_eq!((message.ttl, message.urgency, &*message.payload), (0, Urgency::Normal, &[0][..]));
}

#[test]
fn a_push_says_what_is_stored_and_whom_it_means() {
    let version = version(&Harness::new(Port::Node), None);
    let good = format!(r#"{{"channelID":"{CHANNEL}","version":"{version}","timestamp":1,"stored":true}}"#);
    for (boot, wanted) in [("", Some(true)), (OURS, Some(true)), (ANOTHER, None)] {
        let mut harness = Harness::new(Port::Node);
        let body = if boot.is_empty() { good.clone() } else { good.replace('}', &format!(r#","boot":"{boot}"}}"#)) };
        harness.feed(request("PUT", &format!("/push/{UAID}"), &body).as_bytes());
        let stored = |command: &Command| {
            if let Command::Node(NodeCommand::Push(push)) = command { push.stored } else { panic!() }
        };
        assert_eq!(harness.commands.last().map(stored), wanted, "{boot}");
        assert_eq!(harness.response().0, if wanted.is_some() { 200 } else { 404 });
    }
}

#[test]
fn a_nudge_may_name_a_message_and_whom_it_means() {
    let version = version(&Harness::new(Port::Node), Some(b"news"));
    for (body, wanted) in [
        (String::new(), Some(None)),
        (format!(r#"{{"boot":"{OURS}"}}"#), Some(None)),
        (format!(r#"{{"boot":"{OURS}","unsure":"{version}"}}"#), Some(Some((STAMP, Topic::new(b"news"))))),
        (format!(r#"{{"boot":"{ANOTHER}","unsure":"{version}"}}"#), None),
    ] {
        let mut harness = Harness::new(Port::Node);
        harness.feed(request("PUT", &format!("/notif/{UAID}"), &body).as_bytes());
        let unsure = |command: &Command| {
            let Command::Node(NodeCommand::Notify(notify)) = command else { panic!("{command:?}") };
            notify.unsure.map(|row| (row.stamp, row.topic))
        };
        assert_eq!(harness.commands.last().map(unsure), wanted, "{body}");
        assert_eq!(harness.response().0, if wanted.is_some() { 200 } else { 404 });
    }
    for body in ["x", r#"{"unsure":"x"}"#, r#"{"boot":"1"}"#] {
        let mut harness = Harness::new(Port::Node);
        harness.feed(request("PUT", &format!("/notif/{UAID}"), body).as_bytes());
        assert_eq!(harness.fault(), (400, None), "{body}");
        assert!(harness.commands.is_empty());
    }
}

#[test]
fn a_takeover_may_say_whom_it_means() {
    for (query, status) in [
        (format!("?boot={OURS}"), 200),
        (format!("?boot={ANOTHER}"), 404),
        ("?boot=1".to_owned(), 400),
        ("?other=1".to_owned(), 200),
    ] {
        let mut harness = Harness::new(Port::Node);
        harness.feed(request("DELETE", &format!("/notif/{UAID}/17{query}"), "").as_bytes());
        assert_eq!((harness.response().0, harness.commands.len()), (status, usize::from(status == 200)), "{query}");
    }
}

#[test]
fn bodies_that_do_not_fit_are_400() {
    let harness = Harness::new(Port::Node);
    let version = version(&harness, None);
    let good = format!(r#"{{"channelID":"{CHANNEL}","version":"{version}","timestamp":1}}"#);
    for (body, path) in [
        (good.replace(CHANNEL, "x"), UAID),
        (good.replace(CHANNEL, &CHANNEL.replace('2', "3")), UAID),
        (good.replace(&version, "x"), UAID),
        (good.replace(r#","timestamp":1"#, ""), UAID),
        (good.replace("}", r#","data":"!"}"#), UAID),
        (good.replace("}", r#","data":"AA"}"#), UAID),
        (good.clone(), "03030303030303030303030303030303"),
        ("".to_string(), UAID),
        ("[]".to_string(), UAID),
    ] {
        let mut harness = Harness::new(Port::Node);
        harness.feed(request("PUT", &format!("/push/{path}"), &body).as_bytes());
        assert_eq!(harness.fault(), (400, None), "{body}");
        assert!(harness.commands.is_empty());
    }
    let mut harness = Harness::new(Port::Node);
    harness.feed(request("PUT", &format!("/push/{UAID}"), &" ".repeat(40_000)).as_bytes());
    assert_eq!(harness.fault(), (413, Some(104)));
}

#[test]
fn nudges_and_takeovers_become_commands() {
    let mut harness = Harness::new(Port::Node);
    harness.node_answer = NodeAnswer::Noted;
    harness.feed(request("PUT", &format!("/notif/{UAID}"), "").as_bytes());
    harness.feed(request("DELETE", &format!("/notif/{UAID}/1700000000123"), "").as_bytes());
    assert!(matches!(harness.commands[0], Command::Node(NodeCommand::Notify(ref notify)) if notify.uaid.0[0] == 1));
    let Command::Node(NodeCommand::Disconnect(disconnect)) = &harness.commands[1] else { panic!() };
    assert_eq!(disconnect.connected_at, 1_700_000_000_123);
    assert_eq!(harness.statuses(), [202, 202]);
}

#[test]
fn answers_have_their_status() {
    for (answer, status, session) in [
        (NodeAnswer::Done, 200, None),
        (NodeAnswer::Noted, 202, None),
        (NodeAnswer::NotHere, 404, Some("none")),
        (NodeAnswer::Busy, 503, Some("busy")),
        (NodeAnswer::Held, 503, Some("held")),
    ] {
        let mut harness = Harness::new(Port::Node);
        harness.node_answer = answer;
        harness.feed(request("PUT", &format!("/notif/{UAID}"), "").as_bytes());
        let (said, head, _) = harness.response();
        let field = head.split("\r\n").find_map(|line| line.strip_prefix("Murre-Session: "));
        assert_eq!((said, field), (status, session));
    }
}

#[test]
fn strangers_are_refused() {
    for authorization in ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic node-key\r\n"] {
        let mut harness = Harness::new(Port::Node);
        harness.feed(format!("PUT /notif/{UAID} HTTP/1.1\r\nHost: h\r\n{authorization}\r\n").as_bytes());
        assert_eq!(harness.fault(), (401, None));
        assert!(harness.response().1.contains("WWW-Authenticate: Bearer"));
        assert!(harness.commands.is_empty());
        assert_eq!(harness.edge.stats().node_refused, 1);
    }
    let keys = EdgeKeys { node: Vec::new(), ..config().keys };
    let open = EdgeConfig { keys, ..config() };
    let mut harness = Harness::with(PushEdge::new(&open).unwrap(), Port::Node);
    harness.feed(request("PUT", &format!("/notif/{UAID}"), "").as_bytes());
    assert_eq!(harness.response().0, 401);
}

#[test]
fn odd_paths_and_methods() {
    for (method, path, status) in [
        ("PUT", "/notif/x", 404),
        ("PUT", "/push/x", 404),
        ("DELETE", "/notif/01010101010101010101010101010101/x", 404),
        ("POST", "/notif/01010101010101010101010101010101", 405),
        ("DELETE", "/notif/01010101010101010101010101010101", 405),
        ("GET", "/push/01010101010101010101010101010101", 405),
        ("GET", "/health", 200),
        ("GET", "/elsewhere", 404),
    ] {
        let mut harness = Harness::new(Port::Node);
        harness.feed(request(method, path, "").as_bytes());
        assert_eq!(harness.response().0, status, "{method} {path}");
    }
}

#[test]
fn a_node_says_which_run_it_is_to_those_with_a_key() {
    let mut harness = Harness::new(Port::Node);
    harness.feed(request("GET", "/boot", "").as_bytes());
    assert!(harness.written_text().ends_with(&format!(r#"{{"boot":"{OURS}"}}"#)), "{}", harness.written_text());
    let mut harness = Harness::new(Port::Node);
    harness.feed(b"GET /boot HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(harness.response().0, 401);
    let mut harness = Harness::new(Port::Node);
    harness.feed(request("PUT", "/boot", "").as_bytes());
    assert_eq!(harness.response().0, 405);
}
