//! Delivery receipts, dead endpoints and rates over sockets (RFC 8030 sections 5.1 and 6.3).

mod common;

use std::time::Instant;

use common::{Draft, Reply, Subscription, World};
use serde_json::Value;

/// A POST that asks for a receipt; the path of the receipt.
async fn post_for_receipt(world: &World, to: &Subscription, ttl: u32) -> String {
    let reply = world.send(to.request(ttl).header("prefer", "respond-async").body("body")).await;
    assert_eq!(reply.status, 202, "{reply:?}");
    assert_eq!(reply.header("ttl"), ttl.to_string());
    assert!(reply.header("location").contains("/m/"), "{reply:?}");
    let (target, relation) = reply.header("link").split_once("; ").unwrap();
    assert_eq!(relation, "rel=\"urn:ietf:params:push:receipt\"");
    let url = target.trim_start_matches('<').trim_end_matches('>');
    url[url.find("/r/").unwrap()..].to_owned()
}

async fn ask(world: &World, path: &str, wait: u32) -> Reply {
    world.send(Draft::new("GET", path).header("prefer", &format!("wait={wait}"))).await
}

fn status(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    body["status"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_long_poll_is_answered_by_the_ack() {
    let world = World::start();
    // Landing shard and owner differ for some of these.
    for _ in 0..6 {
        let (mut agent, to) = world.subscriber().await;
        let path = post_for_receipt(&world, &to, 60).await;
        assert_eq!(status(&ask(&world, &path, 0).await), "pending");
        let note = agent.note().await;
        let begun = Instant::now();
        let (reply, ()) = tokio::join!(ask(&world, &path, 30), agent.ack([&note]));
        assert_eq!(status(&reply), "delivered");
        assert!(begun.elapsed().as_secs() < 30, "it was the ack, not the end of the wait");
        assert_eq!(status(&ask(&world, &path, 30).await), "delivered", "and again, at once");
    }
}

#[tokio::test]
async fn a_stored_message_has_a_receipt_that_outlives_a_crash() {
    let mut world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let uaid = std::mem::take(&mut agent.uaid);
    agent.leave().await;
    let path = post_for_receipt(&world, &to, 600).await;
    assert_eq!(status(&ask(&world, &path, 1).await), "pending");
    world.crash();
    assert_eq!(status(&ask(&world, &path, 0).await), "pending", "storage has it");
    let mut agent = world.agent(Some(&uaid)).await;
    let note = agent.note().await;
    agent.ack([&note]).await;
    assert_eq!(status(&ask(&world, &path, 10).await), "delivered");
    world.crash();
    let forgotten = ask(&world, &path, 0).await;
    assert_eq!(forgotten.status, 404, "{forgotten:?}");
}

#[tokio::test]
async fn other_ends_are_told_by_their_names() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let unregistered = post_for_receipt(&world, &to, 600).await;
    agent.note().await;
    agent.unregister(&to.channel).await;
    assert_eq!(status(&ask(&world, &unregistered, 5).await), "unregistered");
    let to = agent.register(None).await;
    agent.leave().await;
    let expired = post_for_receipt(&world, &to, 1).await;
    let dropped = post_for_receipt(&world, &to, 0).await;
    assert_eq!(status(&ask(&world, &expired, 20).await), "expired");
    assert_eq!(status(&ask(&world, &dropped, 20).await), "expired");
}

#[tokio::test]
async fn a_receipt_of_nobody_is_404() {
    let world = World::start();
    let reply = ask(&world, "/r/nonsense", 1).await;
    assert_eq!(reply.refusal(), (404, 0));
}

#[tokio::test]
async fn a_dead_endpoint_stays_410_and_comes_back_with_a_register() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let uaid = agent.uaid.clone();
    let second = agent.register(None).await;
    agent.unregister(&to.channel).await;
    agent.leave().await;
    for _ in 0..5 {
        assert_eq!(world.post(&to, 60, "x").await.refusal(), (410, 106));
    }
    assert_eq!(world.post(&second, 60, "x").await.status, 201);
    let mut agent = world.agent(Some(&uaid)).await;
    agent.note().await;
    agent.register_as(&to.channel, None).await;
    agent.leave().await;
    assert_eq!(world.post(&to, 60, "x").await.status, 201);
}

#[tokio::test]
async fn rates_and_budgets_answer_429_with_retry_after() {
    let world = World::with(&["--set", "endpoint.token_rate=1", "--set", "store.user_bytes_per_day=2KiB"]);
    let (mut agent, to) = world.subscriber().await;
    let other = agent.register(None).await;
    let mut refused = None;
    for _ in 0..40 {
        let reply = world.post(&to, 0, "x").await;
        if reply.status != 201 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("more than a burst of ten is refused");
    assert_eq!(refused.refusal(), (429, 203));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(world.post(&other, 0, "x").await.status, 201, "the other channel has its own rate");
    agent.leave().await;
    let body = "x".repeat(1_500);
    assert_eq!(world.post(&other, 60, &body).await.status, 201);
    let over = world.post(&other, 60, &body).await;
    assert_eq!(over.refusal(), (429, 204));
    let seconds: u32 = over.header("retry-after").parse().unwrap();
    assert!((1..=3_600).contains(&seconds));
}

#[tokio::test]
async fn senders_have_a_rate_per_shard() {
    let world = World::with(&["--shards", "1", "--set", "endpoint.origin_rate=1"]);
    let (_agent, to) = world.subscriber().await;
    let mut statuses = Vec::new();
    for _ in 0..40 {
        let reply = world.post(&to, 0, "x").await;
        statuses.push(reply.status);
        if reply.status == 429 {
            assert_eq!(reply.refusal(), (429, 203));
            assert!(!reply.header("retry-after").is_empty());
            break;
        }
    }
    assert!(statuses.len() > 10 && statuses.last() == Some(&429), "{statuses:?}");
}
