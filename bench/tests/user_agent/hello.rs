//! Hello: known and unknown users, the fields of a message, and messages that must not come first.

use client::agent::channel_id;
use serde_json::{Value, json};

use super::closed_with;
use crate::common::{Subscription, UserAgent, World};

/// The UAID that this hello is answered with.
fn hello(world: &World, message: Value) -> String {
    let mut agent = UserAgent::connect(world.server.websocket());
    agent.send(message);
    let answer = agent.expect("hello");
    assert_eq!(answer["status"], 200);
    answer["uaid"].as_str().unwrap().to_owned()
}

#[test]
fn a_uaid_is_known_in_every_spelling() {
    let world = World::start();
    let (agent, _) = world.subscriber();
    let uaid = agent.uaid.clone();
    agent.leave();
    let id = uuid::Uuid::parse_str(&uaid).unwrap();
    let (simple, dashed) = (id.simple().to_string(), id.hyphenated().to_string());
    assert_eq!(simple, uaid, "the server spells 32 lower-case digits");
    let braces = id.braced().to_string();
    for spelling in [&simple, &simple.to_uppercase(), &dashed, &dashed.to_uppercase(), &braces, &braces.to_uppercase()]
    {
        assert_eq!(hello(&world, json!({"messageType": "hello", "uaid": spelling})), uaid, "{spelling}");
    }
}

#[test]
fn what_is_no_uaid_gets_a_fresh_one() {
    let world = World::start();
    let digits = "0123456789abcdef0123456789abcdef";
    let spellings =
        [json!(null), json!(""), json!("nonsense"), json!(digits[1..]), json!(format!("{digits}0")), json!(" ")];
    let mut seen = std::collections::BTreeSet::new();
    for spelling in spellings {
        let uaid = hello(&world, json!({"messageType": "hello", "uaid": spelling}));
        assert_eq!(uaid.len(), 32);
        assert_eq!(uuid::Uuid::parse_str(&uaid).unwrap().get_version_num(), 4, "{spelling}: {uaid}");
        assert!(seen.insert(uaid), "a UAID is given once");
    }
    let absent = hello(&world, json!({"messageType": "hello"}));
    assert!(seen.insert(absent));
}

#[test]
fn before_its_first_register_a_user_is_written_nowhere() {
    let world = World::start();
    let agent = world.agent(None);
    let uaid = agent.uaid.clone();
    agent.leave();
    let mut again = world.agent(Some(&uaid));
    assert_ne!(again.uaid, uaid);
    again.register(None);
    let uaid = again.uaid.clone();
    again.leave();
    assert_eq!(world.agent(Some(&uaid)).uaid, uaid);
}

#[test]
fn fields_that_a_message_does_not_have_may_hold_anything() {
    let world = World::start();
    let mut agent = UserAgent::connect(world.server.websocket());
    let junk = json!([{"a": [null, 1.5, "\u{1f426}"]}, {}]);
    let with_junk = |mut message: Value| {
        for field in ["x", "status", "data", "headers", ""] {
            message[field] = junk.clone();
        }
        message
    };
    let old = json!({
        "messageType": "hello", "wakeup_host": {"ip": "10.0.0.1", "port": 9}, "updates": 7, "version": 1, "code": "c",
        "mobilenetwork": {"mcc": "1", "mnc": "2", "netid": "3"}, "channelIDs": [channel_id(), channel_id()],
    });
    agent.send(with_junk(old));
    agent.expect("hello");
    let channel = channel_id();
    agent.send(with_junk(json!({"messageType": "register", "channelID": channel, "uaid": 7, "code": "x"})));
    assert_eq!(agent.expect("register")["status"], 200);
    agent.send(with_junk(json!({"messageType": "ack", "updates": [], "channelID": 1, "version": 1})));
    agent.send(with_junk(json!({"messageType": "nack", "version": "v", "updates": 1, "broadcasts": 1})));
    agent.send(with_junk(json!({"messageType": "unregister", "channelID": channel, "version": 1, "key": 1})));
    assert_eq!(agent.expect("unregister")["status"], 200);
    agent.send(with_junk(json!({"messageType": "ping", "uaid": 1, "channelID": 1})));
    assert_eq!(agent.message(), json!({}));
    agent.barrier();
}

#[test]
fn null_is_as_good_as_absent_where_a_field_may_be_absent() {
    let world = World::start();
    let mut agent = UserAgent::connect(world.server.websocket());
    agent.send(json!({"messageType": "hello", "uaid": null, "channelIDs": null, "broadcasts": null}));
    agent.expect("hello");
    let channel = channel_id();
    agent.send(json!({"messageType": "register", "channelID": channel, "key": null}));
    let url = agent.expect("register")["pushEndpoint"].as_str().unwrap().to_owned();
    let unlocked = Subscription { channel: channel.clone(), url };
    assert_eq!(world.post(&unlocked, 60, "without VAPID").status, 201);
    assert_eq!(agent.note().text(), "without VAPID");
    let update = json!({"channelID": channel, "version": "unknown", "code": null});
    agent.send(json!({"messageType": "ack", "updates": [update]}));
    agent.send(json!({"messageType": "nack", "version": "v", "code": null}));
    agent.send(json!({"messageType": "unregister", "channelID": channel, "code": null}));
    assert_eq!(agent.expect("unregister")["status"], 200);
}

#[test]
fn fields_of_another_type_close() {
    let world = World::start();
    let first = [
        r#"{"messageType":"hello","uaid":7}"#,
        r#"{"messageType":"hello","uaid":true}"#,
        r#"{"messageType":"hello","uaid":["0123456789abcdef0123456789abcdef"]}"#,
        r#"{"messageType":"hello","uaid":{}}"#,
        r#"{"messageType":"hello","channelIDs":"x"}"#,
        r#"{"messageType":"hello","channelIDs":["x"]}"#,
        r#"{"messageType":"hello","channelIDs":[7]}"#,
        r#"{"messageType":"hello","channelIDs":[null]}"#,
        r#"{"messageType":"hello","broadcasts":[]}"#,
        r#"{"messageType":"hello","broadcasts":{"a":1}}"#,
        r#"{"messageType":"hello","broadcasts":{"a":null}}"#,
    ];
    for message in first {
        assert_eq!(closed_with(&world, false, message), 1011, "{message}");
    }
    const ID: &str = "deadbeef-0000-4000-8000-000000000001";
    let later = [
        r#"{"messageType":"register","channelID":7}"#.to_owned(),
        r#"{"messageType":"register","channelID":null}"#.into(),
        format!(r#"{{"messageType":"register","channelID":"{ID}","key":7}}"#),
        r#"{"messageType":"unregister"}"#.into(),
        r#"{"messageType":"unregister","channelID":"x"}"#.into(),
        format!(r#"{{"messageType":"unregister","channelID":"{ID}","code":"200"}}"#),
        format!(r#"{{"messageType":"unregister","channelID":"{ID}","code":-1}}"#),
        r#"{"messageType":"ack","updates":null}"#.into(),
        r#"{"messageType":"ack","updates":{}}"#.into(),
        r#"{"messageType":"ack","updates":[7]}"#.into(),
        r#"{"messageType":"ack","updates":[{"channelID":"x","version":"v"}]}"#.into(),
        format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{ID}"}}]}}"#),
        format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{ID}","version":7}}]}}"#),
        format!(r#"{{"messageType":"ack","updates":[{{"channelID":"{ID}","version":"v","code":"101"}}]}}"#),
        r#"{"messageType":"nack"}"#.into(),
        r#"{"messageType":"nack","version":7}"#.into(),
        r#"{"messageType":"nack","version":"v","code":"301"}"#.into(),
        r#"{"messageType":"broadcast_subscribe"}"#.into(),
        r#"{"messageType":"broadcast_subscribe","broadcasts":null}"#.into(),
        r#"{"messageType":"broadcast_subscribe","broadcasts":{"a":1}}"#.into(),
        r#"{"messageType":"Ping"}"#.into(),
        r#"{"messageType":null}"#.into(),
        r#"{"messagetype":"ping"}"#.into(),
        r#"{"a":1}"#.into(),
        r#"[{}]"#.into(),
        r#"[]"#.into(),
        r#"null"#.into(),
        r#""ping""#.into(),
        r#"7"#.into(),
        r#"{} {}"#.into(),
        r#"{"#.into(),
        String::new(),
    ];
    for message in later {
        assert_eq!(closed_with(&world, true, &message), 1011, "{message}");
    }
}

#[test]
fn nothing_but_hello_comes_first() {
    let world = World::start();
    let id = channel_id();
    let early = [
        json!({"messageType": "register", "channelID": id}),
        json!({"messageType": "unregister", "channelID": id}),
        json!({"messageType": "ack", "updates": []}),
        json!({"messageType": "nack", "version": "v"}),
        json!({"messageType": "broadcast_subscribe", "broadcasts": {}}),
        json!({"messageType": "ping"}),
        json!({}),
    ];
    for message in early {
        assert_eq!(closed_with(&world, false, &message.to_string()), 1011, "{message}");
    }
}
