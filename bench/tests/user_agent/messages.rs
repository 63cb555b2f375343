//! Notifications, acks, nacks, pings and broadcasts.

use std::time::{Duration, Instant};

use client::agent::channel_id;
use serde_json::{Value, json};

use crate::common::wire::{Heard, Wire, text};
use crate::common::{PATIENCE, UserAgent, World};

#[test]
fn an_ack_names_a_version_and_any_channel() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let spellings: [fn(&str) -> String; 4] =
        [|id| id.to_owned(), |id| id.to_uppercase(), |id| id.replace('-', ""), |_| channel_id()];
    let mut versions = Vec::new();
    for _ in &spellings {
        world.post(&subscription, 3600, "x");
        versions.push(agent.note().version);
    }
    let (mut other, foreign) = world.subscriber();
    world.post(&foreign, 3600, "of another user");
    let theirs = other.note();
    let mut updates: Vec<Value> = Vec::new();
    for (spell, version) in spellings.iter().zip(&versions) {
        updates.push(json!({"channelID": channel_id(), "version": format!("{version}x")}));
        updates.push(json!({"channelID": foreign.channel, "version": theirs.version}));
        updates.push(json!({"channelID": spell(&subscription.channel), "version": version}));
    }
    agent.send(json!({"messageType": "ack", "updates": updates}));
    agent.barrier();
    let (uaid, their_uaid) = (agent.uaid.clone(), other.uaid.clone());
    agent.leave();
    other.leave();
    world.agent(Some(&uaid)).silence();
    let again = world.agent(Some(&their_uaid)).note();
    assert_eq!(again.version, theirs.version, "an ack settles no message of another user");
}

#[test]
fn a_nack_of_any_code_changes_nothing() {
    let world = World::start();
    let (mut agent, subscription) = world.subscriber();
    world.post(&subscription, 3600, "x");
    let note = agent.note();
    for code in [json!(301), json!(302), json!(303), json!(0), json!(-7), json!(i32::MAX)] {
        agent.send(json!({"messageType": "nack", "version": note.version, "code": code}));
    }
    agent.send(json!({"messageType": "nack", "version": "of nothing"}));
    agent.barrier();
    agent.ack([&note]);
    let uaid = agent.uaid.clone();
    agent.leave();
    world.agent(Some(&uaid)).silence();
}

#[test]
fn stored_notifications_follow_the_hello_at_once_and_carry_nothing_else() {
    let world = World::start();
    let (agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    agent.leave();
    let request = subscription.request(3600).header("topic", "t").header("urgency", "high").encrypted("body");
    let id = world.send(request).id();
    let bare = world.post(&subscription, 3600, "").id();
    let mut agent = UserAgent::connect(world.server.websocket());
    agent.send(json!({"messageType": "hello", "uaid": uaid}));
    assert_eq!(agent.expect("hello")["uaid"], uaid.as_str());
    let keys = |message: &Value| message.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let full = agent.message();
    assert_eq!((&full["version"], &full["data"]), (&json!(id), &json!("Ym9keQ")));
    let mut found = keys(&full);
    found.sort();
    assert_eq!(found, ["channelID", "data", "headers", "messageType", "version"]);
    let empty = agent.message();
    assert_eq!(empty["version"], bare.as_str());
    let mut found = keys(&empty);
    found.sort();
    assert_eq!(found, ["channelID", "messageType", "version"]);
}

#[test]
fn a_ping_is_an_empty_object_with_any_blanks_or_says_so() {
    let world = World::start();
    for spelling in ["{}", " { } ", "{\r\n\t}", "\n{}\n", r#"{"messageType":"ping"}"#, r#" {"messageType" : "ping"} "#]
    {
        let mut wire = Wire::greeted(world.server.websocket());
        wire.write(&text(spelling));
        assert_eq!(wire.hear(), Heard::Text("{}".into()), "{spelling:?}");
        wire.write(&text(spelling));
        assert_eq!(wire.goodbye().0, 4774, "{spelling:?} at once again");
    }
}

#[test]
fn a_ping_after_the_least_interval_is_answered() {
    let world = World::with(&["--set", "websocket.ping_min_interval=0.1"]);
    let mut agent = world.agent(None);
    for _ in 0..3 {
        agent.send(json!({}));
        assert_eq!(agent.message(), json!({}));
        // Longer than the interval by more than the clock of sessions is coarse.
        std::thread::sleep(Duration::from_millis(400));
    }
}

fn set_broadcast(world: &World, id: &'static str, version: &'static str) {
    let (admin, token) = (world.server.admin(), world.server.admin_token().unwrap());
    murre_bench::metrics::set_broadcast(admin, &token, id, version).unwrap();
}

#[test]
fn hello_subscribes_to_the_broadcasts_it_names() {
    let world = World::start();
    set_broadcast(&world, "tests/differs", "v2");
    set_broadcast(&world, "tests/equal", "v1");
    // A shard may get them a moment later than another.
    let begun = Instant::now();
    let mut agent = loop {
        assert!(begun.elapsed() < PATIENCE, "a shard that has not heard of them");
        let mut agent = UserAgent::connect(world.server.websocket());
        let wanted = json!({"tests/differs": "v1", "tests/equal": "v1", "tests/later": "v1"});
        agent.send(json!({"messageType": "hello", "broadcasts": wanted}));
        let told = agent.expect("hello")["broadcasts"].clone();
        if told["errors"].as_object().is_some_and(|errors| errors.len() == 1) {
            let errors = json!({"tests/later": "Broadcast not found"});
            assert_eq!(told, json!({"tests/differs": "v2", "errors": errors}), "what differs, and what is unknown");
            break agent;
        }
    };
    set_broadcast(&world, "tests/nobody", "v1");
    set_broadcast(&world, "tests/later", "v1");
    let told = agent.expect("broadcast");
    let expected = json!({"messageType": "broadcast", "broadcasts": {"tests/later": "v1"}});
    assert_eq!(told, expected, "told as soon as it is known, and of nothing else");
    set_broadcast(&world, "tests/equal", "v2");
    assert_eq!(agent.expect("broadcast")["broadcasts"], json!({"tests/equal": "v2"}));
    set_broadcast(&world, "tests/differs", "v3");
    assert_eq!(agent.expect("broadcast")["broadcasts"], json!({"tests/differs": "v3"}));
}

#[test]
fn broadcast_subscribe_adds_and_is_silent_when_nothing_differs() {
    let world = World::start();
    set_broadcast(&world, "tests/one", "v1");
    let mut agent = world.agent(None);
    let subscribe =
        |id: &str, version: &str| json!({"messageType": "broadcast_subscribe", "broadcasts": {id: version}});
    agent.knows_broadcast("tests/one", "v1");
    agent.send(subscribe("tests/one", "v1"));
    agent.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {}}));
    agent.silence();
    agent.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {"tests/one": "v1", "x": "v"}}));
    let told = agent.expect("broadcast");
    assert_eq!(told["broadcasts"], json!({"errors": {"x": "Broadcast not found"}}));
    set_broadcast(&world, "tests/one", "v2");
    assert_eq!(agent.expect("broadcast")["broadcasts"], json!({"tests/one": "v2"}));
}
