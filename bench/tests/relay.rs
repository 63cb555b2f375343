//! Relays: several user agents on one WebSocket, wherever their users are owned (docs/PROTOCOL.md, relays).

mod common;

use std::collections::BTreeMap;

use common::{Subscription, UserAgent, World};
use murre_bench::agent::channel_id;
use serde_json::{Value, json};

/// A world with relays, and one of them.
async fn with_relay() -> (World, UserAgent) {
    let world = World::with(&["--shards", "4", "--set", "relay.members=12"]);
    let relay = open(&world).await;
    (world, relay)
}

async fn open(world: &World) -> UserAgent {
    let mut relay = UserAgent::connect(world.server.websocket()).await;
    relay.send(json!({"messageType": "hello", "relay": true, "use_webpush": true})).await;
    let answer = relay.expect("hello").await;
    assert_eq!(answer, json!({"messageType": "hello", "relay": true, "status": 200, "members": 12}));
    relay
}

/// Attaches a member; its UAID.
async fn attach(relay: &mut UserAgent, uaid: &str) -> String {
    relay.hello(Some(uaid)).await
}

async fn register(relay: &mut UserAgent, uaid: &str) -> Subscription {
    let channel = channel_id();
    relay.send(json!({"messageType": "register", "channelID": channel, "uaid": uaid})).await;
    let answer = relay.expect("register").await;
    assert_eq!((&answer["status"], &answer["uaid"]), (&json!(200), &json!(uaid)));
    Subscription { channel, url: answer["pushEndpoint"].as_str().unwrap().to_owned() }
}

async fn ack(relay: &mut UserAgent, note: &Value) {
    let update = json!({"channelID": note["channelID"], "version": note["version"], "code": 100});
    relay.send(json!({"messageType": "ack", "updates": [update], "uaid": note["uaid"]})).await;
    // An unknown broadcast is always answered: everything sent before was dealt with.
    let subscribe = json!({"messageType": "broadcast_subscribe", "broadcasts": {"none": "v"}, "uaid": note["uaid"]});
    relay.send(subscribe).await;
    assert_eq!(relay.expect("broadcast").await["uaid"], note["uaid"]);
}

/// The next notifications, one for each member, by UAID.
async fn one_each(relay: &mut UserAgent, count: usize) -> BTreeMap<String, Value> {
    let mut notes = BTreeMap::new();
    for _ in 0..count {
        let note = relay.expect("notification").await;
        let before = notes.insert(note["uaid"].as_str().unwrap().to_owned(), note);
        assert!(before.is_none(), "one notification for each");
    }
    notes
}

#[tokio::test]
async fn one_connection_speaks_for_users_of_every_shard() {
    let (world, mut relay) = with_relay().await;
    let mut members = BTreeMap::new();
    // Eight who were known before, wherever their connection came in, and four new ones.
    for _ in 0..8 {
        let (agent, subscription) = world.subscriber().await;
        let uaid = agent.uaid.clone();
        agent.leave().await;
        assert_eq!(attach(&mut relay, &uaid).await, uaid);
        members.insert(uaid, subscription);
    }
    for _ in 0..4 {
        let uaid = attach(&mut relay, "").await;
        let subscription = register(&mut relay, &uaid).await;
        members.insert(uaid, subscription);
    }
    for (uaid, subscription) in &members {
        let reply = world.post(subscription, 60, uaid).await;
        assert_eq!(reply.status, 201);
        let note = relay.expect("notification").await;
        assert_eq!((&note["uaid"], &note["version"]), (&json!(uaid), &json!(reply.id())));
        ack(&mut relay, &note).await;
    }
    relay.send(json!({"messageType": "hello"})).await;
    let bye = relay.expect("bye").await;
    assert_eq!(bye, json!({"messageType": "bye", "uaid": "", "code": 1013, "reason": "Overloaded"}));
    relay.send(json!({})).await;
    assert_eq!(relay.message().await, json!({}));
    relay.silence().await;
}

#[tokio::test]
async fn what_a_relay_leaves_unacked_comes_back_once() {
    let (world, mut relay) = with_relay().await;
    let mut members = BTreeMap::new();
    for _ in 0..6 {
        let (agent, subscription) = world.subscriber().await;
        let uaid = agent.uaid.clone();
        agent.leave().await;
        attach(&mut relay, &uaid).await;
        members.insert(uaid, subscription);
    }
    for subscription in members.values() {
        assert_eq!(world.post(subscription, 60, "first").await.status, 201);
    }
    let first = one_each(&mut relay, members.len()).await;
    for note in first.values() {
        ack(&mut relay, note).await;
    }
    for subscription in members.values() {
        assert_eq!(world.post(subscription, 60, "second").await.status, 201);
    }
    let second = one_each(&mut relay, members.len()).await;
    relay.leave().await;
    let mut relay = open(&world).await;
    for uaid in members.keys() {
        attach(&mut relay, uaid).await;
        let note = relay.expect("notification").await;
        assert_eq!(note["version"], second[uaid]["version"]);
        ack(&mut relay, &note).await;
    }
    relay.silence().await;
}

#[tokio::test]
async fn sessions_and_members_take_over_from_each_other() {
    let (world, mut relay) = with_relay().await;
    for _ in 0..4 {
        let (mut agent, subscription) = world.subscriber().await;
        let uaid = agent.uaid.clone();
        attach(&mut relay, &uaid).await;
        assert_eq!(agent.close_code().await, 1011);
        let mut agent = world.agent(Some(&uaid)).await;
        let bye = json!({"messageType": "bye", "uaid": uaid, "code": 1011, "reason": "SM"});
        assert_eq!(relay.message().await, bye);
        assert_eq!(world.post(&subscription, 60, "mine").await.status, 201);
        assert_eq!(agent.note().await.text(), "mine");
        // It is no member any more: it is told again, and the relay goes on.
        relay.send(json!({"messageType": "nack", "version": "v", "uaid": uaid})).await;
        assert_eq!(relay.message().await, bye);
    }
    let uaid = attach(&mut relay, "").await;
    relay.send(json!({"messageType": "bye", "uaid": uaid})).await;
    assert_eq!(relay.message().await, json!({"messageType": "bye", "uaid": uaid, "code": 1000, "reason": ""}));
}
