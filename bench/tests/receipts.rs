//! Delivery receipts, dead endpoints and rates over sockets (RFC 8030 sections 5.1 and 6.3).

use std::time::Instant;

use crate::common::{Reply, Request, Subscription, World};
use serde_json::Value;

/// A POST that asks for a receipt; the path of the receipt.
fn post_for_receipt(world: &World, to: &Subscription, ttl: u32) -> String {
    let reply = world.send(to.request(ttl).header("prefer", "respond-async").encrypted("body"));
    assert_eq!(reply.status, 202, "{reply:?}");
    assert_eq!(reply.header("ttl"), ttl.to_string());
    assert!(reply.header("location").contains("/m/"), "{reply:?}");
    let (target, relation) = reply.header("link").split_once("; ").unwrap();
    assert_eq!(relation, "rel=\"urn:ietf:params:push:receipt\"");
    let url = target.trim_start_matches('<').trim_end_matches('>');
    url[url.find("/r/").unwrap()..].to_owned()
}

fn ask(world: &World, path: &str, wait: u32) -> Reply {
    world.send(Request::new("GET", path).header("prefer", &format!("wait={wait}")))
}

fn status(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    body["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_long_poll_is_answered_by_the_ack() {
    let world = World::start();
    // Landing shard and owner differ for some of these.
    for _ in 0..6 {
        let (mut agent, to) = world.subscriber();
        let path = post_for_receipt(&world, &to, 60);
        assert_eq!(status(&ask(&world, &path, 0)), "pending");
        let note = agent.note();
        let begun = Instant::now();
        let reply = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&world, &path, 30));
            agent.ack([&note]);
            asked.join().unwrap()
        });
        assert_eq!(status(&reply), "delivered");
        assert!(begun.elapsed().as_secs() < 30, "it was the ack, not the end of the wait");
        assert_eq!(status(&ask(&world, &path, 30)), "delivered", "and again, at once");
    }
}

#[test]
fn a_stored_message_has_a_receipt_that_outlives_a_crash() {
    let mut world = World::start();
    let (mut agent, to) = world.subscriber();
    let uaid = std::mem::take(&mut agent.uaid);
    agent.leave();
    let path = post_for_receipt(&world, &to, 600);
    assert_eq!(status(&ask(&world, &path, 1)), "pending");
    world.crash();
    assert_eq!(status(&ask(&world, &path, 0)), "pending", "storage has it");
    let mut agent = world.agent(Some(&uaid));
    let note = agent.note();
    agent.ack([&note]);
    assert_eq!(status(&ask(&world, &path, 10)), "delivered");
    // The store keeps the order of one user's operations: when the next hello is answered, the row is deleted.
    agent.leave();
    world.agent(Some(&uaid));
    world.crash();
    let forgotten = ask(&world, &path, 0);
    assert_eq!(forgotten.status, 404, "{forgotten:?}");
}

#[test]
fn other_ends_are_told_by_their_names() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let unregistered = post_for_receipt(&world, &to, 600);
    agent.note();
    agent.unregister(&to.channel);
    assert_eq!(status(&ask(&world, &unregistered, 5)), "unregistered");
    let to = agent.register(None);
    agent.leave();
    let expired = post_for_receipt(&world, &to, 1);
    let dropped = post_for_receipt(&world, &to, 0);
    assert_eq!(status(&ask(&world, &expired, 20)), "expired");
    assert_eq!(status(&ask(&world, &dropped, 20)), "expired");
}

#[test]
fn a_receipt_of_nobody_is_404() {
    let world = World::start();
    let reply = ask(&world, "/r/nonsense", 1);
    assert_eq!(reply.refusal(), (404, 0));
}

#[test]
fn a_dead_endpoint_stays_410_and_comes_back_with_a_register() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let uaid = agent.uaid.clone();
    let second = agent.register(None);
    agent.unregister(&to.channel);
    agent.leave();
    for _ in 0..5 {
        assert_eq!(world.post(&to, 60, "x").refusal(), (410, 106));
    }
    assert_eq!(world.post(&second, 60, "x").status, 201);
    let mut agent = world.agent(Some(&uaid));
    agent.note();
    agent.register_as(&to.channel, None);
    agent.leave();
    assert_eq!(world.post(&to, 60, "x").status, 201);
}

#[test]
fn rates_and_budgets_answer_429_with_retry_after() {
    let world = World::with(&["--set", "endpoint.token_rate=1", "--set", "store.user_bytes_per_day=2KiB"]);
    let (mut agent, to) = world.subscriber();
    let other = agent.register(None);
    let mut refused = None;
    for _ in 0..40 {
        let reply = world.post(&to, 0, "x");
        if reply.status != 201 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("more than a burst of ten is refused");
    assert_eq!(refused.refusal(), (429, 203));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(world.post(&other, 0, "x").status, 201, "the other channel has its own rate");
    agent.leave();
    let body = "x".repeat(1_500);
    assert_eq!(world.post(&other, 60, &body).status, 201);
    let over = world.post(&other, 60, &body);
    assert_eq!(over.refusal(), (429, 204));
    let seconds: u32 = over.header("retry-after").parse().unwrap();
    assert!((1..=3_600).contains(&seconds));
}

#[test]
fn senders_have_a_rate_per_shard() {
    let world = World::with(&["--shards", "1", "--set", "endpoint.origin_rate=1"]);
    let (_agent, to) = world.subscriber();
    let mut statuses = Vec::new();
    for _ in 0..40 {
        let reply = world.post(&to, 0, "x");
        statuses.push(reply.status);
        if reply.status == 429 {
            assert_eq!(reply.refusal(), (429, 203));
            assert!(!reply.header("retry-after").is_empty());
            break;
        }
    }
    assert!(statuses.len() > 10 && statuses.last() == Some(&429), "{statuses:?}");
    // Senders without a key to other users have rates of their own.
    let (_other, elsewhere) = world.subscriber();
    for n in 0..10 {
        assert_eq!(world.post(&elsewhere, 0, "x").status, 201, "{n}");
    }
}
