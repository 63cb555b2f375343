//! SimplePush at the edge: the choice of the mode, the text of messages in it, and `PUT /spush` (PROTOCOL.md 1.12).

use std::sync::Arc;

use machine::ids::{Chid, EmissionId, KeyDigest, Uaid};
use machine::message::Topic;
use machine::simplepush::{Mode, Update};
use machine::time::UnixSeconds;
use machine::{
    AckVersion, AgentCommand, CloseReason, Command, Disposition, Published, SenderCommand, SessionCommand, SessionEvent,
};
use runtime::ports::{Edge, Port};

use super::*;
use protocol::webpush::endpoint::{EndpointToken, Subscription, TokenForm};
use protocol::webpush::headers::TTL_MAX;

const UAID: Uaid = Uaid([1; 16]);
const CHID: Chid = Chid([0x22; 16]);
const CHANNEL: &str = "22222222-2222-2222-2222-222222222222";

fn edge() -> PushEdge {
    PushEdge::new(&EdgeConfig { simplepush: true, ..config() }).unwrap()
}

/// Returns a WebSocket after this hello.
fn greeted(edge: PushEdge, fields: &str) -> Harness {
    let mut harness = Harness::with(edge, Port::WebSocket);
    harness.feed(UPGRADE.as_bytes());
    harness.feed_text(&format!(r#"{{"messageType":"hello"{fields}}}"#));
    harness
}

fn ack(version: &str) -> String {
    format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{CHANNEL}","version":{version}}}]}}"#)
}

/// Returns the path of an endpoint that this edge made.
fn path(edge: &PushEdge) -> String {
    let mut url = Vec::new();
    edge.tokens.seal_simple(UAID, CHID, &mut url);
    String::from_utf8(url).unwrap().strip_prefix(ORIGIN).unwrap().to_owned()
}

fn put(path: &str, body: &str) -> String {
    format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn put_on(edge: PushEdge, request: &str) -> Harness {
    let mut harness = Harness::with(edge, Port::Endpoint);
    harness.feed(request.as_bytes());
    harness
}

/// Returns the version and the data of the update in the command.
fn asked(harness: &Harness) -> (u64, String) {
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else {
        panic!("{}", harness.written_text())
    };
    let message = publish.message.as_ref().unwrap();
    assert_eq!((message.uaid, message.chid, message.topic), (UAID, CHID, Some(Topic::UPDATE)));
    assert_eq!((message.ttl, message.accepted), (TTL_MAX, UnixSeconds(NOW)));
    let update = message.update().unwrap();
    (update.version, update.data.to_owned())
}

#[test]
fn who_does_not_ask_for_webpush_gets_simplepush_where_it_is_enabled() {
    let wake = r#","wakeup_host":{"ip":"192.0.2.1","port":7},"mobilenetwork":{"mcc":"1","mnc":"2"}"#;
    for (enabled, fields, mode) in [
        (true, "", Mode::Simple),
        (true, r#","use_webpush":false"#, Mode::Simple),
        (true, r#","use_webpush":true"#, Mode::WebPush),
        (false, "", Mode::WebPush),
        (false, r#","use_webpush":false"#, Mode::WebPush),
    ] {
        let edge = PushEdge::new(&EdgeConfig { simplepush: enabled, ..config() }).unwrap();
        let harness = greeted(edge, &format!("{fields}{wake}"));
        let Some(Command::Agent(AgentCommand::Hello(hello))) = harness.commands.last() else { panic!("{fields}") };
        let data = hello.wake.as_ref().map(|wake| wake.as_str().to_owned());
        let expected = (mode == Mode::Simple).then(|| "ip=192.0.2.1&port=7&mcc=1&mnc=2".to_owned());
        assert_eq!((hello.mode, data), (mode, expected), "{fields}");
        let said = format!(r#""use_webpush":{}"#, mode == Mode::WebPush);
        assert!(harness.written_text().contains(&said), "{fields}");
    }
}

#[test]
fn fields_of_simplepush_are_checked_only_where_it_is_enabled() {
    for fields in [r#","use_webpush":7"#, r#","wakeup_host":"here""#, r#","mobilenetwork":[]"#] {
        let harness = greeted(edge(), fields);
        assert_eq!(harness.goodbye(), (1011, "Json".to_owned()), "{fields}");
        let off = greeted(PushEdge::new(&config()).unwrap(), fields);
        assert!(matches!(off.commands.last(), Some(Command::Agent(AgentCommand::Hello(_)))), "{fields}");
    }
}

#[test]
fn an_endpoint_of_simplepush_is_locked_to_nobody() {
    let mut harness = greeted(edge(), "");
    harness.feed_text(&format!(r#"{{"messageType":"register","channelID":"{CHANNEL}","key":"no key at all"}}"#));
    assert!(matches!(
        harness.commands.last(),
        Some(Command::Agent(AgentCommand::Session(SessionCommand::Register { key: None, .. })))
    ));
    harness.emit(SessionEvent::Registered { uaid: UAID, chid: CHID, key: Some(KeyDigest([9; 32])), status: 200 });
    let text = harness.written_text();
    let token = text.rsplit_once(&format!("{ORIGIN}/spush/v1/")).unwrap().1.trim_end_matches("\"}");
    let opened = EndpointToken { uaid: UAID, chid: CHID, lock: None, version: 1 };
    assert_eq!(harness.edge.tokens.open(1, token), Some(opened));
}

#[test]
fn updates_and_their_acks_carry_integers() {
    let mut harness = greeted(edge(), "");
    let message = Update { version: 12, data: "x\"y" }.to_message(UAID, CHID, UnixSeconds(NOW), 60);
    harness.emit(SessionEvent::Notification {
        message: Arc::new(message),
        emission: EmissionId(1),
        tells_urgency: true,
    });
    let update = format!(
        r#"{{"messageType":"notification","updates":[{{"channelID":"{CHANNEL}","version":12,"data":"x\"y"}}]}}"#
    );
    assert!(harness.written_text().ends_with(&update), "{}", harness.written_text());
    harness.feed_text(&ack("12"));
    let Some(Command::Agent(AgentCommand::Session(SessionCommand::AckVersions(acks)))) = harness.commands.last() else {
        panic!()
    };
    assert_eq!(acks[..], [AckVersion { chid: CHID, version: 12 }]);
    let asked = harness.commands.len();
    harness.feed_text(r#"{"messageType":"ack","updates":[]}"#);
    assert_eq!((harness.commands.len(), harness.ended()), (asked, false));
}

#[test]
fn acks_of_the_other_mode_are_no_messages() {
    for (fields, version) in [("", r#""12""#), ("", "-1"), (r#","use_webpush":true"#, "12")] {
        let mut harness = greeted(edge(), fields);
        harness.feed_text(&ack(version));
        assert_eq!(harness.goodbye(), (1011, "Json".to_owned()), "{fields} {version}");
    }
}

#[test]
fn a_session_that_moved_here_is_in_the_mode_of_its_hello() {
    for mode in [Mode::Simple, Mode::WebPush] {
        let mut harness = Harness::with(edge(), Port::WebSocket);
        harness.codec = harness.edge.arrived();
        harness.emit(SessionEvent::Hello { uaid: UAID, minted: true, mode, broadcasts: Box::default() });
        harness.feed_text(&ack("12"));
        assert_eq!(harness.ended(), mode == Mode::WebPush);
    }
}

#[test]
fn a_put_becomes_an_update_and_says_how_it_went() {
    for (disposition, status, said) in
        [(Disposition::Direct, 200, "Delivered"), (Disposition::Stored, 202, "Notification Stored")]
    {
        let mut harness = Harness::with(edge(), Port::Endpoint);
        harness.published = Published::Accepted { stamp: STAMP, disposition };
        let path = path(&harness.edge);
        harness.feed(put(&path, "version=7&data=hello+there").as_bytes());
        assert_eq!(asked(&harness), (7, "hello there".to_owned()));
        let (code, head, body) = harness.response();
        assert_eq!((code, body.as_str()), (status, said));
        assert!(!head.contains("Location") && !harness.ended());
    }
}

#[test]
fn parameters_come_from_the_body_and_without_one_from_the_query() {
    let token = path(&edge());
    for (query, body, version, data) in [
        ("?version=3&data=q", "", 3, "q"),
        ("?version=3&data=q", "version=4", 4, ""),
        ("?version=3", "data=b", NOW, "b"),
        ("", "", NOW, ""),
        ("", "version=0", NOW, ""),
        ("", "version=-5&data=%C3%A9", NOW, "\u{e9}"),
    ] {
        for path in [token.clone(), token.replace("/v1/", "/")] {
            let harness = put_on(edge(), &put(&format!("{path}{query}"), body));
            assert_eq!(asked(&harness), (version, data.to_owned()), "{query} {body}");
        }
    }
}

#[test]
fn what_is_wrong_with_a_put_has_its_errno() {
    let good = path(&edge());
    let mut locked = Vec::new();
    let fernet = EdgeConfig { tokens: TokenForm::Fernet, ..config() };
    let subscription = Subscription { uaid: UAID, chid: CHID, key: Some(KeyDigest([1; 32])) };
    PushEdge::new(&fernet).unwrap().tokens.seal(&subscription, &mut locked).unwrap();
    let locked = String::from_utf8(locked).unwrap();
    let locked = locked.strip_prefix(ORIGIN).unwrap().replace("/wpush/v2/", "/spush/v1/");
    let long = "x".repeat(BODY_BYTES_DEFAULT + 1);
    for (path, body, fault) in [
        (&good, "version=seven".to_owned(), (400, None)),
        (&good, format!("data={long}"), (413, Some(104))),
        (&good, format!("data={}", "%41".repeat(BODY_BYTES_DEFAULT + 60)), (413, Some(104))),
        (&good, "x".repeat(40_000), (413, Some(104))),
        (&"/spush/v1/nonsense".to_owned(), String::new(), (404, Some(102))),
        (&good.replace("/v1/", "/v2/"), String::new(), (404, Some(102))),
        (&locked, String::new(), (404, Some(102))),
    ] {
        let harness = put_on(edge(), &put(path, &body));
        assert_eq!(harness.fault(), fault, "{path} {}", body.len());
        // A faulty form goes to the owner, because the owner's 410 comes first.
        assert_eq!(harness.commands.len(), usize::from(fault.0 != 404));
    }
    let fits = format!("data={}", "%41".repeat(BODY_BYTES_DEFAULT));
    assert_eq!(asked(&put_on(edge(), &put(&good, &fits))).1.len(), BODY_BYTES_DEFAULT);
}

#[test]
fn what_the_owner_says_to_a_put_has_its_status() {
    for (published, fault) in [
        (Published::NoSubscription, (410, Some(103))),
        (Published::OtherMode, (400, Some(108))),
        (Published::Unavailable, (503, Some(201))),
    ] {
        let mut harness = Harness::with(edge(), Port::Endpoint);
        harness.published = published;
        let path = path(&harness.edge);
        harness.feed(put(&path, "").as_bytes());
        assert_eq!(harness.fault(), fault);
    }
    // A POST of WebPush to a user of SimplePush.
    let mut harness = Harness::with(edge(), Port::Endpoint);
    harness.published = Published::OtherMode;
    let path = path(&harness.edge).replace("/spush/", "/wpush/");
    harness.feed(format!("POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 1\r\n\r\n").as_bytes());
    assert_eq!(harness.fault(), (400, Some(108)));
}

#[test]
fn browsers_may_put_and_other_methods_are_refused() {
    let path = path(&edge());
    let preflight = format!(
        "OPTIONS {path} HTTP/1.1\r\nHost: h\r\nOrigin: https://app\r\nAccess-Control-Request-Method: PUT\r\n\r\n"
    );
    let (status, head, _) = put_on(edge(), &preflight).response();
    assert_eq!(status, 204);
    for line in [
        "Access-Control-Allow-Origin: https://app",
        "Allow: PUT",
        "Access-Control-Allow-Methods: DELETE, GET, POST, PUT",
    ] {
        assert!(head.contains(line), "{line}");
    }
    let from_a_browser = put(&path, "version=1").replace("Host: h\r\n", "Host: h\r\nOrigin: https://app\r\n");
    let answered = put_on(edge(), &from_a_browser);
    assert!(answered.response().1.contains("Access-Control-Allow-Origin: https://app"));
    let posted = put_on(edge(), &put(&path, "version=1").replace("PUT ", "POST "));
    assert_eq!(posted.response().0, 405);
    assert!(posted.response().1.contains("Allow: PUT"));
}

#[test]
fn without_simplepush_there_is_no_such_path() {
    let harness = put_on(PushEdge::new(&config()).unwrap(), &put(&path(&edge()), "version=1"));
    assert_eq!(harness.fault(), (404, None));
    assert!(harness.commands.is_empty());
}

#[test]
fn who_was_idle_is_told_to_stay_away() {
    let mut harness = greeted(edge(), "");
    harness.close(CloseReason::IdledOut);
    assert_eq!(harness.goodbye().0, 4774);
}
