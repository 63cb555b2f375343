//! Receipts, rates and budgets at the app-server port: the commands to the machine and the text of its answers.

use machine::ids::{Chid, Uaid};
use machine::time::{TimeSpan, UnixSeconds};
use machine::{Command, Disposition, Outcome, Published, ReceiptAnswer, SenderCommand};
use runtime::ports::Port;

use super::endpoint::{GOOD, path, post};
use super::*;
use protocol::webpush::endpoint::Subscription;
use protocol::webpush::receipt::Receipt;

/// Path of the receipt of [`STAMP`], as a POST with TTL 60 returns it.
fn receipt_path() -> String {
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    harness.feed(post(&path, &format!("{GOOD}Prefer: respond-async\r\n"), "body").as_bytes());
    let head = harness.response().1;
    let link = head.split("Link: <").nth(1).unwrap().split('>').next().unwrap();
    link.strip_prefix(ORIGIN).unwrap().to_owned()
}

fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n").into_bytes()
}

#[test]
fn respond_async_is_answered_202_with_a_link() {
    for (disposition, topic) in [(Disposition::Direct, "Topic: news\r\n"), (Disposition::Stored, "")] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.published = Published::Accepted { stamp: STAMP, disposition };
        let path = path(None);
        harness.feed(post(&path, &format!("{GOOD}{topic}Prefer: foo, Respond-Async\r\n"), "body").as_bytes());
        let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else {
            panic!("{}", harness.written_text())
        };
        assert!(publish.message.as_ref().unwrap().receipt);
        let (status, head, body) = harness.response();
        assert_eq!((status, body.as_str()), (202, ""));
        assert!(head.contains("\r\nTTL: 60\r\n") && head.contains(&format!("\r\nLocation: {ORIGIN}/m/")));
        assert!(head.contains(&format!("\r\nLink: <{ORIGIN}/r/")));
        assert!(head.contains(">; rel=\"urn:ietf:params:push:receipt\"\r\n"));
        assert_eq!(harness.edge.stats().posts_with_receipt, 1);
    }
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    harness.feed(post(&path, &format!("{GOOD}Prefer: return=minimal\r\n"), "body").as_bytes());
    assert_eq!(harness.response().0, 201);
    assert!(!harness.response().1.contains("Link:"));
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else { panic!() };
    assert!(!publish.message.as_ref().unwrap().receipt);
}

#[test]
fn without_receipts_the_preference_is_ignored() {
    let edge = PushEdge::new(&EdgeConfig { receipts: false, ..config() }).unwrap();
    let mut harness = Harness::with(edge, Port::Endpoint);
    harness.feed(post(&path(None), &format!("{GOOD}Prefer: respond-async\r\n"), "body").as_bytes());
    let (status, head, _) = harness.response();
    assert!(status == 201 && !head.contains("Link:"), "{head}");
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else { panic!() };
    assert!(!publish.message.as_ref().unwrap().receipt);
}

#[test]
fn a_refused_post_has_no_receipt() {
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    harness.feed(post(&path, "Prefer: respond-async\r\n", "").as_bytes());
    assert_eq!(harness.fault(), (400, Some(111)));
    assert!(!harness.response().1.contains("Link:"));
}

#[test]
fn a_receipt_becomes_a_question_with_its_wait() {
    let longest = u64::from(machine::limits::RECEIPT_WAIT_SECONDS_MAX);
    for (headers, wait) in [
        ("", 5),
        ("Prefer: wait=0\r\n", 0),
        ("Prefer: respond-async, wait=12\r\n", 12),
        ("Prefer: wait=99999999999999999999\r\n", longest),
        ("Prefer: wait=soon\r\n", 5),
        ("Prefer: wait=9999999\r\n", longest),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(&get(&receipt_path(), headers));
        let Some(Command::Sender(SenderCommand::Receipt(query))) = harness.commands.last() else {
            panic!("{}", harness.written_text())
        };
        assert_eq!((query.uaid, query.chid, query.stamp), (Uaid([1; 16]), Chid([2; 16]), STAMP));
        assert_eq!((query.topic, query.expires), (None, UnixSeconds(STAMP.clock.0 / 1_000_000 + 60)));
        assert_eq!(query.wait, TimeSpan::from_secs(wait), "{headers}");
    }
}

#[test]
fn outcomes_are_spelled_as_documented() {
    for (outcome, name) in [
        (Outcome::Delivered, "delivered"),
        (Outcome::Undecryptable, "undecryptable"),
        (Outcome::Undelivered, "undelivered"),
        (Outcome::Expired, "expired"),
        (Outcome::Unacked, "unacked"),
        (Outcome::Replaced, "replaced"),
        (Outcome::Cancelled, "cancelled"),
        (Outcome::Unregistered, "unregistered"),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.receipt = ReceiptAnswer::Ended(outcome);
        harness.feed(&get(&receipt_path(), "Origin: https://a.example\r\n"));
        let (status, head, body) = harness.response();
        assert_eq!((status, body), (200, format!("{{\"status\":\"{name}\"}}")));
        assert!(head.contains("Content-Type: application/json") && head.contains("Cache-Control: no-store"));
        assert!(head.contains("Access-Control-Allow-Origin: https://a.example"));
        assert!(!harness.ended());
    }
    let mut harness = Harness::new(Port::Endpoint);
    harness.receipt = ReceiptAnswer::Pending;
    harness.feed(&get(&receipt_path(), ""));
    assert_eq!((harness.response().0, harness.response().2.as_str()), (200, "{\"status\":\"pending\"}"));
}

#[test]
fn receipts_of_strangers_and_forgotten_ones_are_404_and_too_many_waiters_503() {
    let mut harness = Harness::new(Port::Endpoint);
    let mut location = Vec::new();
    let (uaid, chid) = (Uaid([1; 16]), Chid([2; 16]));
    harness
        .edge
        .ids
        .seal(&protocol::webpush::message_id::MessageId { stamp: STAMP, uaid, chid, topic: None }, &mut location);
    let location = String::from_utf8(location).unwrap();
    for path in ["/r/", "/r/nonsense", &format!("/r/{location}"), &format!("{}x", receipt_path())] {
        harness = Harness::new(Port::Endpoint);
        harness.feed(&get(path, ""));
        assert_eq!(harness.fault(), (404, None), "{path}");
        assert!(harness.commands.is_empty());
    }
    for (answer, status, errno) in [(ReceiptAnswer::Unknown, 404, None), (ReceiptAnswer::Unavailable, 503, Some(201))] {
        harness = Harness::new(Port::Endpoint);
        harness.receipt = answer;
        harness.feed(&get(&receipt_path(), ""));
        assert_eq!(harness.fault(), (status, errno));
    }
    assert!(harness.response().1.contains("Retry-After: 30"));
    harness = Harness::new(Port::Endpoint);
    harness.feed(format!("DELETE {} HTTP/1.1\r\nHost: push\r\n\r\n", receipt_path()).as_bytes());
    assert_eq!(harness.fault(), (405, None));
}

#[test]
fn a_receipt_survives_a_change_of_keys_that_keeps_the_old_one() {
    let path = receipt_path();
    let both = EdgeKeys { crypto: vec![OTHER_KEY.into(), KEY.into()], ..config().keys };
    let only_new = EdgeKeys { crypto: vec![OTHER_KEY.into()], ..config().keys };
    for (keys, asked) in [(both, 1), (only_new, 0)] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.edge.rekey(&keys).unwrap();
        harness.feed(&get(&path, ""));
        assert_eq!(harness.commands.len(), asked);
    }
}

#[test]
fn what_is_too_much_is_429_with_the_time_to_wait() {
    for (published, errno, seconds) in
        [(Published::TooMany { retry_after: 3 }, 203, 3), (Published::OverBudget { retry_after: 3_600 }, 204, 3_600)]
    {
        let mut harness = Harness::new(Port::Endpoint);
        harness.published = published;
        let path = path(None);
        harness.feed(post(&path, GOOD, "b").as_bytes());
        assert_eq!(harness.fault(), (429, Some(errno)));
        assert!(harness.response().1.contains(&format!("Retry-After: {seconds}\r\n")));
        assert_eq!(harness.edge.stats().posts_too_many, 1);
        assert!(!harness.ended());
    }
}

/// Status of a POST.
fn send_to(harness: &mut Harness, path: &str, headers: &str) -> u16 {
    let before = harness.statuses().len();
    harness.feed(post(path, headers, "b").as_bytes());
    let statuses = harness.statuses();
    assert_eq!(statuses.len(), before + 1);
    statuses[before]
}

/// Path of an endpoint of this user.
fn path_of(edge: &mut PushEdge, uaid: Uaid) -> String {
    let mut url = Vec::new();
    edge.tokens.seal(&Subscription { uaid, chid: Chid([2; 16]), key: None }, &mut url);
    String::from_utf8(url).unwrap().strip_prefix(ORIGIN).unwrap().to_owned()
}

#[test]
fn a_sender_has_its_rate_and_those_without_a_key_one_for_each_user() {
    let (sender, other) = (Sender::new(), Sender::new());
    let authorization = |sender: &Sender| {
        format!("{GOOD}Authorization: vapid t={},k={}\r\n", sender.good_token(NOW + 3600), sender.key())
    };
    let (mine, others) = (authorization(&sender), authorization(&other));
    let edge = PushEdge::new(&EdgeConfig { origin_rate: 1, ..config() }).unwrap();
    let mut harness = Harness::with(edge, Port::Endpoint);
    let path = path(None);
    let mut send = |headers: &str| send_to(&mut harness, &path, headers);
    for headers in [&mine, &others, GOOD] {
        let statuses: Vec<u16> = (0..12).map(|_| send(headers)).collect();
        assert_eq!(statuses, [[201; 10].as_slice(), &[429; 2]].concat(), "a burst of ten seconds");
    }
    // A sender without a key, to another user.
    let elsewhere = path_of(&mut harness.edge, Uaid([9; 16]));
    let statuses: Vec<u16> = (0..12).map(|_| send_to(&mut harness, &elsewhere, GOOD)).collect();
    assert_eq!(statuses, [[201; 10].as_slice(), &[429; 2]].concat());
    let mut send = |headers: &str| send_to(&mut harness, &path, headers);
    // Bad authorization counts for no sender.
    assert_eq!(send(&format!("{GOOD}Authorization: vapid t=x,k={}\r\n", sender.key())), 401);
    assert!(harness.written_text().contains("Retry-After: 1\r\n"));
    assert_eq!(harness.edge.stats().posts_too_many, 8);
    assert_eq!(harness.commands.len(), 40, "the machine is not asked");
}

#[test]
fn version_updates_count_to_the_senders_without_a_key() {
    let edge = PushEdge::new(&EdgeConfig { origin_rate: 1, simplepush: true, ..config() }).unwrap();
    let mut url = Vec::new();
    edge.tokens.seal_simple(Uaid([1; 16]), Chid([2; 16]), &mut url);
    let url = String::from_utf8(url).unwrap();
    let path = url.strip_prefix(ORIGIN).unwrap();
    let mut harness = Harness::with(edge, Port::Endpoint);
    let put = format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nversion=7");
    for _ in 0..12 {
        harness.feed(put.as_bytes());
    }
    assert_eq!(harness.statuses(), [[200; 10].as_slice(), &[429; 2]].concat());
}

#[test]
fn the_expiry_of_a_receipt_is_that_of_its_message() {
    let harness = Harness::new(Port::Endpoint);
    let receipt = Receipt { stamp: STAMP, uaid: Uaid([1; 16]), chid: Chid([2; 16]), topic: None, ttl: 60 };
    let mut link = Vec::new();
    harness.edge.receipts.push_link(&receipt, &mut link);
    let expected = format!("<{ORIGIN}{}>; rel=\"urn:ietf:params:push:receipt\"", receipt_path());
    assert_eq!(String::from_utf8(link).unwrap(), expected, "the same message has the same receipt");
}
