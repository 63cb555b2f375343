//! Relays: several user agents on one WebSocket, wherever their users are owned (docs/PROTOCOL.md, relays).

use std::collections::BTreeMap;

use crate::common::{Subscription, UserAgent, World};
use client::agent::channel_id;
use serde_json::{Value, json};

/// A world with relays, and one of them.
fn with_relay() -> (World, UserAgent) {
    let world = World::with(&["--shards", "4", "--set", "relay.members=12"]);
    let relay = open(&world);
    (world, relay)
}

fn open(world: &World) -> UserAgent {
    let mut relay = UserAgent::connect(world.server.websocket());
    relay.send(json!({"messageType": "hello", "relay": true, "use_webpush": true}));
    let answer = relay.expect("hello");
    assert_eq!(answer, json!({"messageType": "hello", "relay": true, "status": 200, "members": 12}));
    relay
}

/// Attaches a member; its UAID.
fn attach(relay: &mut UserAgent, uaid: &str) -> String {
    relay.hello(Some(uaid))
}

fn register(relay: &mut UserAgent, uaid: &str) -> Subscription {
    let channel = channel_id();
    relay.send(json!({"messageType": "register", "channelID": channel, "uaid": uaid}));
    let answer = relay.expect("register");
    assert_eq!((&answer["status"], &answer["uaid"]), (&json!(200), &json!(uaid)));
    Subscription { channel, url: answer["pushEndpoint"].as_str().unwrap().to_owned() }
}

fn ack(relay: &mut UserAgent, note: &Value) {
    let update = json!({"channelID": note["channelID"], "version": note["version"], "code": 100});
    relay.send(json!({"messageType": "ack", "updates": [update], "uaid": note["uaid"]}));
    // An unknown broadcast is always answered: everything sent before was processed.
    let subscribe = json!({"messageType": "broadcast_subscribe", "broadcasts": {"none": "v"}, "uaid": note["uaid"]});
    relay.send(subscribe);
    assert_eq!(relay.expect("broadcast")["uaid"], note["uaid"]);
}

/// The next notifications, one for each member, by UAID.
fn one_each(relay: &mut UserAgent, count: usize) -> BTreeMap<String, Value> {
    let mut notes = BTreeMap::new();
    for _ in 0..count {
        let note = relay.expect("notification");
        let before = notes.insert(note["uaid"].as_str().unwrap().to_owned(), note);
        assert!(before.is_none(), "one notification for each");
    }
    notes
}

#[test]
fn one_connection_speaks_for_users_of_every_shard() {
    let (world, mut relay) = with_relay();
    let mut members = BTreeMap::new();
    // Eight known members, whose connections landed on any shard, and four new ones.
    for _ in 0..8 {
        let (agent, subscription) = world.subscriber();
        let uaid = agent.uaid.clone();
        agent.leave();
        assert_eq!(attach(&mut relay, &uaid), uaid);
        members.insert(uaid, subscription);
    }
    for _ in 0..4 {
        let uaid = attach(&mut relay, "");
        let subscription = register(&mut relay, &uaid);
        members.insert(uaid, subscription);
    }
    for (uaid, subscription) in &members {
        let reply = world.post(subscription, 60, uaid);
        assert_eq!(reply.status, 201);
        let note = relay.expect("notification");
        assert_eq!((&note["uaid"], &note["version"]), (&json!(uaid), &json!(reply.id())));
        ack(&mut relay, &note);
    }
    relay.send(json!({"messageType": "hello"}));
    let bye = relay.expect("bye");
    assert_eq!(bye, json!({"messageType": "bye", "uaid": "", "code": 1013, "reason": "Overloaded"}));
    relay.send(json!({}));
    assert_eq!(relay.message(), json!({}));
    relay.silence();
}

#[test]
fn what_a_relay_leaves_unacked_comes_back_once() {
    let (world, mut relay) = with_relay();
    let mut members = BTreeMap::new();
    for _ in 0..6 {
        let (agent, subscription) = world.subscriber();
        let uaid = agent.uaid.clone();
        agent.leave();
        attach(&mut relay, &uaid);
        members.insert(uaid, subscription);
    }
    for subscription in members.values() {
        assert_eq!(world.post(subscription, 60, "first").status, 201);
    }
    let first = one_each(&mut relay, members.len());
    for note in first.values() {
        ack(&mut relay, note);
    }
    for subscription in members.values() {
        assert_eq!(world.post(subscription, 60, "second").status, 201);
    }
    let second = one_each(&mut relay, members.len());
    relay.leave();
    let mut relay = open(&world);
    for uaid in members.keys() {
        attach(&mut relay, uaid);
        let note = relay.expect("notification");
        assert_eq!(note["version"], second[uaid]["version"]);
        ack(&mut relay, &note);
    }
    relay.silence();
}

#[test]
fn sessions_and_members_take_over_from_each_other() {
    let (world, mut relay) = with_relay();
    for _ in 0..4 {
        let (mut agent, subscription) = world.subscriber();
        let uaid = agent.uaid.clone();
        attach(&mut relay, &uaid);
        assert_eq!(agent.close_code(), 1011);
        let mut agent = world.agent(Some(&uaid));
        let bye = json!({"messageType": "bye", "uaid": uaid, "code": 1011, "reason": "SM"});
        assert_eq!(relay.message(), bye);
        assert_eq!(world.post(&subscription, 60, "mine").status, 201);
        assert_eq!(agent.note().text(), "mine");
        // It is not a member any more: the relay is told again and goes on.
        relay.send(json!({"messageType": "nack", "version": "v", "uaid": uaid}));
        assert_eq!(relay.message(), bye);
    }
    let uaid = attach(&mut relay, "");
    relay.send(json!({"messageType": "bye", "uaid": uaid}));
    assert_eq!(relay.message(), json!({"messageType": "bye", "uaid": uaid, "code": 1000, "reason": ""}));
}
