//! Sockets that end on the shard that owns them, users that come twice, and servers that come back (ARCHITECTURE.md 4).

use crate::common::wire::{Heard, Wire};
use crate::common::{PATIENCE, World};
use murre_bench::frame::{self, upgrade_request};
use murre_bench::metrics::Metrics;
use serde_json::json;

/// Moved sockets by the server's counter. The server publishes its counters about once a second.
fn moves(world: &World) -> f64 {
    Metrics::read(world.server.admin()).unwrap().sum("moves_in")
}

#[test]
fn returning_users_are_served_wherever_they_land() {
    let world = World::with(&["--shards", "4"]);
    let mut known = Vec::new();
    for _ in 0..40 {
        let (agent, subscription) = world.subscriber();
        known.push((agent.uaid.clone(), subscription));
        agent.leave();
    }
    assert_eq!(moves(&world), 0.0, "who is new is its shard's own");
    let mut agents = Vec::new();
    for (uaid, subscription) in &known {
        let mut agent = world.agent(Some(uaid));
        assert_eq!(&agent.uaid, uaid);
        let more = agent.register(None);
        agents.push((agent, subscription, more));
    }
    for (agent, first, second) in &mut agents {
        assert_eq!(world.post(first, 60, "first").status, 201);
        assert_eq!(agent.note().text(), "first");
        assert_eq!(world.post(second, 60, "second").status, 201);
        assert_eq!(agent.note().text(), "second");
    }
    // By chance a user lands on its owner once in four times.
    let begun = std::time::Instant::now();
    while moves(&world) == 0.0 {
        assert!(begun.elapsed() < PATIENCE, "40 returning users on 4 shards and no socket was moved");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn bytes_behind_the_hello_move_with_the_socket() {
    let world = World::with(&["--shards", "4"]);
    let mut known = Vec::new();
    for _ in 0..16 {
        let (agent, subscription) = world.subscriber();
        known.push((agent.uaid.clone(), subscription));
        agent.leave();
    }
    for (uaid, subscription) in &known {
        let address = world.server.websocket();
        // Everything in one segment: upgrade, hello, register, unregister, a ping and half of a second ping.
        let mut bytes = upgrade_request(&address.to_string());
        let channel = client::agent::channel_id();
        for message in [
            json!({"messageType": "hello", "uaid": uaid}),
            json!({"messageType": "register", "channelID": channel}),
            json!({"messageType": "unregister", "channelID": subscription.channel}),
        ] {
            frame::push(&mut bytes, frame::TEXT, message.to_string().as_bytes());
        }
        let mut ping = Vec::new();
        frame::push(&mut ping, frame::PING, b"late half");
        let (early, late) = ping.split_at(7);
        bytes.extend_from_slice(early);
        let mut wire = Wire::open(address);
        wire.write(&bytes);
        assert_eq!(wire.response().status, 101);
        assert_eq!(wire.message()["uaid"], uaid.as_str());
        assert_eq!(wire.message()["channelID"], channel.as_str());
        assert_eq!(wire.message()["channelID"], subscription.channel.as_str());
        wire.write(late);
        assert_eq!(wire.hear(), Heard::Pong(b"late half".to_vec()));
        assert_eq!(world.post(subscription, 60, "x").refusal(), (410, 106));
    }
}

#[test]
fn the_newer_session_of_a_user_ends_the_older() {
    let world = World::with(&["--shards", "4"]);
    for _ in 0..8 {
        let (mut old, subscription) = world.subscriber();
        let id = world.post(&subscription, 3600, "unacked").id();
        assert_eq!(old.note().version, id);
        let mut new = world.agent(Some(&old.uaid.clone()));
        assert_eq!(new.uaid, old.uaid);
        assert_eq!(old.close_code(), 1011);
        let note = new.note();
        assert_eq!(note.version, id);
        new.ack([&note]);
        world.post(&subscription, 3600, "to the new one");
        assert_eq!(new.note().text(), "to the new one");
    }
}

#[test]
fn subscriptions_and_messages_survive_a_restart() {
    let mut world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    let direct = world.post(&subscription, 3600, "direct, unacked").id();
    assert_eq!(agent.note().version, direct);
    let (other, offline) = world.subscriber();
    let other_uaid = other.uaid.clone();
    other.leave();
    let stored = world.post(&offline, 3600, "stored").id();
    world.restart();
    assert_eq!(agent.close_code(), 1001);
    let mut agent = world.agent(Some(&uaid));
    assert_eq!(agent.uaid, uaid);
    let note = agent.note();
    assert_eq!((&note.version, note.text()), (&direct, "direct, unacked"));
    agent.ack([&note]);
    let mut other = world.agent(Some(&other_uaid));
    assert_eq!(other.note().version, stored);
    let again = world.post(&subscription, 3600, "after the restart").id();
    assert_eq!(agent.note().version, again);
}

#[test]
fn a_crash_loses_nothing_that_was_accepted() {
    let mut world = World::start();
    let (mut agent, subscription) = world.subscriber();
    let uaid = agent.uaid.clone();
    for round in 0..3 {
        let mut ids = Vec::new();
        for n in 0..6 {
            ids.push(world.post(&subscription, 3600, &format!("{round} {n}")).id());
        }
        world.crash();
        agent = world.agent(Some(&uaid));
        let mut notes = Vec::new();
        for id in &ids {
            let note = agent.note();
            assert_eq!(&note.version, id);
            notes.push(note);
        }
        agent.ack(&notes);
    }
}

#[test]
fn a_data_directory_opens_with_another_number_of_shards() {
    let mut world = World::with(&["--shards", "2"]);
    let mut known = Vec::new();
    for n in 0..12 {
        let (agent, subscription) = world.subscriber();
        let uaid = agent.uaid.clone();
        agent.leave();
        let id = world.post(&subscription, 3600, &n.to_string()).id();
        known.push((uaid, id));
    }
    world.server.replace_argument("--shards", "5");
    world.restart();
    for (uaid, id) in known {
        let mut agent = world.agent(Some(&uaid));
        assert_eq!(agent.uaid, uaid);
        assert_eq!(agent.note().version, id);
    }
}

#[test]
fn two_thousand_sessions_on_four_shards_come_back_at_once() {
    use clap::Parser;
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: murre_bench::scenario::storm::Options,
    }
    let world = World::with(&["--shards", "4"]);
    let (ws, endpoint) = (world.server.websocket().to_string(), world.server.endpoint().to_string());
    let (admin, pid) = (world.server.admin().to_string(), world.server.pid().to_string());
    let line = ["storm", "--ws", &ws, "--endpoint", &endpoint, "--admin", &admin, "--pid", &pid, "--sessions", "2000"];
    let options = Line::parse_from(line).options;
    assert!(murre_bench::scenario::storm::run(&options).unwrap(), "a check of the storm failed, see above");
}
