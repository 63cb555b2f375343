//! The minimum urgency of a user agent over sockets (PROTOCOL.md 15).

use serde_json::{Value, json};

use crate::common::{Note, PATIENCE, Received, Subscription, UserAgent, World, exchange};

/// Names a minimum, and returns the reply.
fn minimum(agent: &mut UserAgent, word: &str) -> Value {
    agent.send(json!({"messageType": "urgency", "min": word}));
    agent.expect("urgency")
}

fn post(world: &World, to: &Subscription, urgency: &str, body: &str) {
    let request = to.request(3600).header("urgency", urgency).encrypted(body);
    assert_eq!(exchange(world.server.endpoint(), request).status, 201);
}

/// Acks without a wait: further notifications may be on their way.
fn ack(agent: &mut UserAgent, notes: &[&Note]) {
    let updates: Vec<Value> =
        notes.iter().map(|note| json!({"channelID": note.channel, "version": note.version})).collect();
    agent.send(json!({"messageType": "ack", "updates": updates}));
}

/// Body and urgency of the next notification, which is acked.
fn heard(agent: &mut UserAgent) -> (String, Value) {
    let note = agent.note();
    ack(agent, &[&note]);
    (note.text().to_owned(), note.message["urgency"].clone())
}

#[test]
fn a_minimum_holds_and_a_lower_one_releases_in_order() {
    for settings in [&[][..], &["--set", "delivery.durable=true"]] {
        let world = World::with(settings);
        let (mut agent, to) = world.subscriber();
        post(&world, &to, "very-low", "unasked");
        assert_eq!(heard(&mut agent), ("unasked".into(), Value::Null), "nobody asked for the urgency");
        assert_eq!(minimum(&mut agent, "high"), json!({"messageType": "urgency", "status": 200}));
        for (urgency, body) in [("normal", "1"), ("very-low", "2"), ("low", "3"), ("high", "4")] {
            post(&world, &to, urgency, body);
        }
        assert_eq!(heard(&mut agent), ("4".into(), json!("high")));
        agent.silence();
        assert_eq!(minimum(&mut agent, "urgent"), json!({"messageType": "urgency", "status": 404}));
        agent.silence();
        minimum(&mut agent, "low");
        assert_eq!(heard(&mut agent), ("1".into(), json!("normal")));
        assert_eq!(heard(&mut agent), ("3".into(), json!("low")));
        agent.silence();
        minimum(&mut agent, "very-low");
        assert_eq!(heard(&mut agent), ("2".into(), json!("very-low")));
    }
}

#[test]
fn a_minimum_and_what_it_holds_survive_a_restart_and_a_kill() {
    let mut world = World::start();
    let (mut agent, to) = world.subscriber();
    minimum(&mut agent, "normal");
    let uaid = agent.uaid.clone();
    post(&world, &to, "low", "held while connected");
    agent.leave();
    post(&world, &to, "very-low", "held while away");
    for kills in [false, true] {
        if kills {
            world.crash();
        } else {
            world.restart();
        }
        let mut agent = world.agent(Some(&uaid));
        post(&world, &to, "normal", "passes");
        assert_eq!(heard(&mut agent), ("passes".into(), json!("normal")));
        agent.silence();
        agent.leave();
    }
    let mut agent = world.agent(Some(&uaid));
    minimum(&mut agent, "very-low");
    assert_eq!(heard(&mut agent).0, "held while connected");
    assert_eq!(heard(&mut agent).0, "held while away");
}

#[test]
fn a_held_backlog_of_thousands_is_delivered_in_order() {
    const HELD: usize = 3_000;
    let mut world = World::with(&["--set", "delivery.window=200"]);
    let (mut agent, to) = world.subscriber();
    minimum(&mut agent, "high");
    let uaid = agent.uaid.clone();
    for n in 0..HELD {
        if n == HELD / 2 {
            agent.leave();
            world.restart();
            agent = world.agent(Some(&uaid));
        }
        post(&world, &to, if n % 2 == 0 { "low" } else { "normal" }, &n.to_string());
        if n % 500 == 499 {
            post(&world, &to, "high", "urgent");
            assert_eq!(heard(&mut agent).0, "urgent");
        }
    }
    agent.silence();
    agent.send(json!({"messageType": "urgency", "min": "very-low"}));
    assert_eq!(agent.expect("urgency")["status"], 200);
    let mut unacked = Vec::new();
    for n in 0..HELD {
        let Received::Message(message) = agent.receive(PATIENCE) else { panic!("{n} of {HELD} came") };
        let note = Note::read(message).expect("a notification");
        assert_eq!(note.text(), n.to_string());
        unacked.push(note);
        if unacked.len() == 40 || n + 1 == HELD {
            ack(&mut agent, &unacked.iter().collect::<Vec<_>>());
            unacked.clear();
        }
    }
    agent.barrier();
    agent.leave();
    world.agent(Some(&uaid)).silence();
}

#[test]
fn traffic_releases_what_is_held_if_the_operator_wants_that() {
    let world = World::with(&["--set", "delivery.release_on_activity=1"]);
    let (mut agent, to) = world.subscriber();
    minimum(&mut agent, "high");
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    post(&world, &to, "low", "held");
    agent.silence();
    agent.barrier();
    assert_eq!(heard(&mut agent).0, "held");
    post(&world, &to, "low", "awake");
    assert_eq!(heard(&mut agent).0, "awake");
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    post(&world, &to, "low", "asleep");
    agent.silence();
}
