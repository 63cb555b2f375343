//! Every rule of PROTOCOL.md 1.5 on what user agents may say.

use super::*;
use proptest::prelude::*;

const CHANNEL: [u8; 16] = [0xde, 0xad, 0xbe, 0xef, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1];
const DASHED: &str = "deadbeef-0000-4000-8000-000000000001";

#[test]
fn hello_reads_its_fields() {
    let with = |uaid, channels, broadcasts| Ok(ClientMessage::Hello { uaid, channels, broadcasts });
    let hello = |uaid, broadcasts| with(uaid, None, broadcasts);
    assert_eq!(read(r#"{"messageType":"hello"}"#), hello(None, vec![]));
    assert_eq!(read(r#" {"use_webpush":true,"messageType":"hello","uaid":null,"x":[{}]} "#), hello(None, vec![]));
    for uaid in ["deadbeef000040008000000000000001", "DEADBEEF-0000-4000-8000-000000000001"] {
        let message = format!(r#"{{"messageType":"hello","uaid":"{uaid}","channelIDs":["{uaid}"]}}"#);
        assert_eq!(read(&message), with(Some(CHANNEL), Some(vec![CHANNEL]), vec![]));
    }
    assert_eq!(read(r#"{"messageType":"hello","uaid":"","channelIDs":null,"broadcasts":null}"#), hello(None, vec![]));
    assert_eq!(read(r#"{"messageType":"hello","uaid":"nope","channelIDs":[]}"#), with(None, Some(vec![]), vec![]));
    let version = BroadcastVersion { id: "a/b".into(), version: "\"2\"".into() };
    let message = r#"{"messageType":"hello","broadcasts":{"a/b":"1","a/b":"\"2\""}}"#;
    assert_eq!(read(message), hello(None, vec![version]));
}

#[test]
fn other_messages_read_their_fields() {
    let register = format!(r#"{{"messageType":"register","channelID":"{DASHED}","key":"B\u0041=="}}"#);
    let expected = ClientMessage::Register { channel: DASHED.into(), key: Some("BA==".into()) };
    assert_eq!(read(&register), Ok(expected));
    let unregister = format!(r#"{{"messageType":"unregister","channelID":"{}","code":201}}"#, DASHED.to_uppercase());
    assert_eq!(read(&unregister), Ok(ClientMessage::Unregister { channel: CHANNEL, code: 201 }));
    let ack = format!(
        r#"{{"messageType":"ack","updates":[{{"channelID":"{DASHED}","version":"v1"}},
            {{"channelID":"{DASHED}","version":"v2","code":102}},{{"channelID":"{DASHED}","version":"","code":7}}]}}"#
    );
    let entry = |version: &'static str, code| Ack { version: version.into(), code };
    assert_eq!(
        read(&ack),
        Ok(ClientMessage::Ack(Acks::Many(vec![entry("v1", 100), entry("v2", 102), entry("", 100)])))
    );
    assert_eq!(read(r#"{"messageType":"ack","updates":[]}"#), Ok(ClientMessage::Ack(Acks::Many(vec![]))));
    let nack = |code| Ok(ClientMessage::Nack { code });
    assert_eq!(read(r#"{"messageType":"nack","version":"v","code":302}"#), nack(302));
    assert_eq!(read(r#"{"messageType":"nack","version":"v","code":-5}"#), nack(0));
    assert_eq!(read(r#"{"messageType":"nack","version":"v","code":301.9}"#), nack(301));
    assert_eq!(read(r#"{"messageType":"nack","version":"v","code":1e300}"#), nack(0));
    let unregister = unregister.replace("201", "2.02e2");
    assert_eq!(read(&unregister), Ok(ClientMessage::Unregister { channel: CHANNEL, code: 202 }));
    assert_eq!(read(r#"{"messageType":"nack","version":"v"}"#), nack(0));
    for ping in ["{}", " {\t\r\n} ", r#"{"messageType":"ping"}"#] {
        assert_eq!(read(ping), Ok(ClientMessage::Ping));
    }
    let subscribe = r#"{"messageType":"broadcast_subscribe","broadcasts":{"a":"1"}}"#;
    let version = BroadcastVersion { id: "a".into(), version: "1".into() };
    assert_eq!(read(subscribe), Ok(ClientMessage::BroadcastSubscribe(vec![version])));
}

#[test]
fn what_is_no_message_is_refused() {
    for message in [
        "",
        "null",
        "[]",
        r#"["hello"]"#,
        "{",
        "{}{}",
        "{} x",
        r#"{"a":1}"#,
        r#"{"messageType":null}"#,
        r#"{"messageType":5}"#,
        r#"{"messageType":"Hello"}"#,
        r#"{"messageType":"hello","messageType":"hello"}"#,
        r#"{"messageType":"hello","uaid":5}"#,
        r#"{"messageType":"hello","channelIDs":["x"]}"#,
        r#"{"messageType":"hello","channelIDs":[5]}"#,
        r#"{"messageType":"hello","broadcasts":{"a":1}}"#,
        r#"{"messageType":"hello","broadcasts":[]}"#,
        r#"{"messageType":"register"}"#,
        r#"{"messageType":"register","channelID":null}"#,
        r#"{"messageType":"register","channelID":"x","key":5}"#,
        r#"{"messageType":"unregister","channelID":"x"}"#,
        r#"{"messageType":"unregister","channelID":"deadbeef-0000-4000-8000-000000000001","code":-1}"#,
        r#"{"messageType":"ack"}"#,
        r#"{"messageType":"ack","updates":null}"#,
        r#"{"messageType":"ack","updates":[{"version":"v"}]}"#,
        r#"{"messageType":"ack","updates":[{"channelID":"x","version":"v"}]}"#,
        r#"{"messageType":"ack","updates":[{"channelID":"deadbeef-0000-4000-8000-000000000001"}]}"#,
        r#"{"messageType":"nack"}"#,
        r#"{"messageType":"broadcast_subscribe"}"#,
        r#"{"messageType":"broadcast_subscribe","broadcasts":null}"#,
    ] {
        assert_eq!(read(message), Err(BadMessage), "{message}");
    }
}

#[test]
fn lists_are_bounded() {
    let broadcasts = |count: usize| {
        let entries: Vec<String> = (0..count).map(|n| format!(r#""id{n}":"v""#)).collect();
        format!(r#"{{"messageType":"broadcast_subscribe","broadcasts":{{{}}}}}"#, entries.join(","))
    };
    assert!(read(&broadcasts(BROADCAST_SUBSCRIPTIONS_MAX)).is_ok());
    assert_eq!(read(&broadcasts(BROADCAST_SUBSCRIPTIONS_MAX + 1)), Err(BadMessage));
    let acks = |count: usize| {
        let entry = format!(r#"{{"channelID":"{DASHED}","version":""}}"#);
        format!(r#"{{"messageType":"ack","updates":[{}]}}"#, vec![entry; count].join(","))
    };
    assert!(read(&acks(ACK_UPDATES_MAX)).is_ok());
    assert_eq!(read(&acks(ACK_UPDATES_MAX + 1)), Err(BadMessage));
}

/// The short way to read an ack and the long one agree, also where the short one gives up.
#[test]
fn an_ack_is_the_same_on_the_short_way() {
    let ack = |fields: &str| format!(r#"{{"messageType":"ack","updates":[{{{fields}}}]}}"#);
    for (fields, short) in [
        (format!(r#""channelID":"{DASHED}","version":"v1""#), true),
        (format!(r#""channelID":"{DASHED}","version":"v1","code":100"#), true),
        (format!(r#""channelID":"{DASHED}","version":"","code":101"#), true),
        (format!(r#""channelID":"{}","version":"v1","code":102"#, DASHED.to_uppercase()), true),
        (format!(r#""channelID":"{DASHED}","version":"v1","code":103"#), false),
        (format!(r#""channelID":"{DASHED}","version":"v1","code":1020"#), false),
        (format!(r#""channelID":"{DASHED}","version":"v\u0031""#), false),
        (format!("\"channelID\":\"{DASHED}\",\"version\":\"v\t\""), false),
        (format!(r#""channelID":"{DASHED}","version":"v1","version":"v2""#), false),
        (format!(r#""version":"v1","channelID":"{DASHED}""#), false),
        (r#""channelID":"eadbeef-0000-4000-8000-0000000000011","version":"v1""#.to_owned(), false),
    ] {
        let message = ack(&fields);
        assert_eq!(plain_ack(&message).is_some(), short, "{message}");
        assert_eq!(read(&message), parse(&message).map_err(|_| BadMessage), "{message}");
    }
    let two = format!(r#""channelID":"{DASHED}","version":"v1"}},{{"channelID":"{DASHED}","version":"v2""#);
    let two = ack(&two);
    assert_eq!(read(&two), parse(&two).map_err(|_| BadMessage));
    assert!(matches!(read(&two), Ok(ClientMessage::Ack(acks)) if acks.len() == 2));
}

#[test]
fn a_minimum_is_one_of_four_words() {
    let said = |min: &str| match read(&format!(r#"{{"messageType":"urgency","min":{min}}}"#)) {
        Ok(ClientMessage::Urgency { minimum }) => Ok(minimum),
        Ok(other) => panic!("{other:?}"),
        Err(_) => Err(()),
    };
    for (word, urgency) in
        [("very-low", Urgency::VeryLow), ("low", Urgency::Low), ("normal", Urgency::Normal), ("high", Urgency::High)]
    {
        assert_eq!(said(&format!("\"{word}\"")), Ok(Some(urgency)));
    }
    for word in [r#""""#, r#""High""#, r#""urgent""#, r#"" low""#] {
        assert_eq!(said(word), Ok(None), "{word}");
    }
    assert!(said("null").is_err() && said("1").is_err() && read(r#"{"messageType":"urgency"}"#).is_err());
}

proptest! {
    #[test]
    fn the_short_way_takes_nothing_that_the_long_one_refuses(
        channel in r#"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[ -~]{30,40}"#,
        version in r#"[ -~]{0,8}|[A-Za-z0-9_-]{80}|\PC{0,4}"#,
        tail in r#"|,"code":10[0-2]|,"code":[0-9]{1,4}|[ -~]{0,8}"#,
    ) {
        let message =
            format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{channel}","version":"{version}"{tail}}}]}}"#);
        if let Some(ack) = plain_ack(&message) {
            prop_assert_eq!(parse(&message).ok(), Some(ClientMessage::Ack(Acks::One(ack))));
        }
    }

    #[test]
    fn never_panics(text in any::<String>(), near in r#"\{"messageType":"(ack|hello|nack)"[ -~]{0,60}\}?"#) {
        let _ = read(&text);
        let _ = read(&near);
    }
}
