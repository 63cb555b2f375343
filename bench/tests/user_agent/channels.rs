//! Register and unregister.

use client::agent::channel_id;
use protocol::webpush::identity::Identity;
use serde_json::{Value, json};

use super::closed_with;
use crate::common::{Subscription, World};

#[test]
fn a_channel_is_registered_in_one_spelling() {
    let world = World::start();
    let id = uuid::Uuid::new_v4();
    let dashed = id.hyphenated().to_string();
    let others = [
        dashed.to_uppercase(),
        id.simple().to_string(),
        id.braced().to_string(),
        id.urn().to_string(),
        format!(" {dashed}"),
        dashed[1..].to_owned(),
        String::new(),
    ];
    for spelling in others {
        let message = json!({"messageType": "register", "channelID": spelling}).to_string();
        assert_eq!(closed_with(&world, true, &message), 1011, "{spelling}");
    }
    let mut agent = world.agent(None);
    let answer = agent.register_as(&dashed, None);
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["channelID", "messageType", "pushEndpoint", "status"]);
    assert_eq!((&answer["channelID"], &answer["status"]), (&json!(dashed), &json!(200)));
}

#[test]
fn a_key_is_taken_with_and_without_padding() {
    let world = World::start();
    let mut agent = world.agent(None);
    let key = Identity::generate().public_key();
    for spelling in [key.clone(), format!("{key}=")] {
        let locked = agent.register(Some(&spelling));
        assert!(locked.url.contains("/wpush/v3/"), "{}", locked.url);
        assert_eq!(world.post(&locked, 60, "x").refusal(), (401, 109), "{spelling}");
    }
    let refused = agent.register_as(&channel_id(), Some("AAAA"));
    assert_eq!(refused["status"], 400);
    let text = refused["pushEndpoint"].as_str().unwrap();
    assert!(!text.is_empty() && !text.contains("://"), "a sentence in the place of the endpoint: {text}");
}

#[test]
fn fernet_endpoints_have_one_version_without_a_key_and_one_with() {
    let world = World::with(&["--set", "endpoint.tokens=fernet"]);
    let mut agent = world.agent(None);
    let key = Identity::generate().public_key();
    let (open, locked) = (agent.register(None), agent.register(Some(&key)));
    assert!(open.url.contains("/wpush/v1/"), "{}", open.url);
    assert!(locked.url.contains("/wpush/v2/"), "{}", locked.url);
    assert_eq!(world.post(&open, 60, "x").status, 201);
    assert_eq!(world.post(&locked, 60, "x").refusal(), (401, 109));
}

#[test]
fn three_hundred_registers_in_one_minute_are_answered() {
    let world = World::start();
    let mut agent = world.agent(None);
    let channels: Vec<String> = (0..300).map(|_| channel_id()).collect();
    for channel in &channels {
        agent.send(json!({"messageType": "register", "channelID": channel}));
    }
    for channel in &channels {
        let answer = agent.expect("register");
        assert_eq!((&answer["status"], &answer["channelID"]), (&json!(200), &json!(channel)));
    }
}

#[test]
fn unregister_takes_every_spelling_and_channels_nobody_knows() {
    let world = World::start();
    let mut agent = world.agent(None);
    // Before anything was registered: Firefox sends late the messages that it could not send under its last UAID.
    agent.unregister(&channel_id());
    let spellings: [fn(uuid::Uuid) -> String; 5] = [
        |id| id.hyphenated().to_string(),
        |id| id.simple().to_string(),
        |id| id.hyphenated().to_string().to_uppercase(),
        |id| id.braced().to_string(),
        |id| id.simple().to_string().to_uppercase(),
    ];
    for (spell, code) in spellings.into_iter().zip([json!(200), json!(201), json!(202), json!(null), json!(u32::MAX)]) {
        let subscription = agent.register(None);
        let id = uuid::Uuid::parse_str(&subscription.channel).unwrap();
        agent.send(json!({"messageType": "unregister", "channelID": spell(id), "code": code}));
        let answer = agent.expect("unregister");
        assert_eq!(answer, json!({"messageType": "unregister", "channelID": subscription.channel, "status": 200}));
        assert_eq!(world.post(&subscription, 60, "x").refusal(), (410, 106), "{}", spell(id));
        agent.unregister(&subscription.channel);
    }
}

#[test]
fn a_channel_is_of_one_user() {
    let world = World::start();
    let (mut one, mut two) = (world.agent(None), world.agent(None));
    let channel = channel_id();
    let url = |answer: Value| answer["pushEndpoint"].as_str().unwrap().to_owned();
    let first = Subscription { channel: channel.clone(), url: url(one.register_as(&channel, None)) };
    let second = Subscription { channel: channel.clone(), url: url(two.register_as(&channel, None)) };
    one.unregister(&channel);
    assert_eq!(world.post(&first, 60, "x").refusal(), (410, 106));
    assert_eq!(world.post(&second, 60, "for two").status, 201);
    assert_eq!(two.note().text(), "for two");
    one.silence();
}
