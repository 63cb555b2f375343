//! One session for each user: the newer wins, and another node may end it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{Request, World, exchange};

/// The older of two sessions is told to go and does not disturb the newer, in each way in which its end arrives.
fn takeover(world: &World) {
    let (mut old, subscription) = world.subscriber();
    let mut new = world.agent(Some(&old.uaid.clone()));
    assert_eq!(new.uaid, old.uaid);
    assert_eq!(old.close_code(), 1011);
    drop(old);
    assert_eq!(world.post(&subscription, 3600, "to the newer").status, 201);
    let note = new.note();
    assert_eq!(note.text(), "to the newer");
    new.ack([&note]);
    new.register(None);
}

#[test]
fn the_newer_session_wins_on_one_shard() {
    let world = World::with(&["--shards", "1"]);
    for _ in 0..4 {
        takeover(&world);
    }
}

#[test]
fn the_newer_session_wins_wherever_it_lands() {
    let world = World::with(&["--shards", "5"]);
    for _ in 0..12 {
        takeover(&world);
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn another_node_ends_the_session_that_it_names_and_no_other() {
    let world = World::with(&["--set", "node.keys=0123456789abcdef-node"]);
    let before = now_ms();
    let (mut agent, subscription) = world.subscriber();
    let after = now_ms();
    let disconnect = |connected_at: u64| {
        let path = format!("/notif/{}/{connected_at}", agent.uaid);
        let request = Request::new("DELETE", &path).header("authorization", "Bearer 0123456789abcdef-node");
        exchange(world.server.node(), request).status
    };
    // Of an older session, and of one that is yet to come.
    assert_eq!((disconnect(before - 1), disconnect(after + 1)), (404, 404));
    let mut ended = 0;
    for connected_at in before..=after {
        ended += u32::from(disconnect(connected_at) == 200);
    }
    assert_eq!(ended, 1, "one instant is its own, between {before} and {after}");
    assert_eq!(agent.close_code(), 1011);
    // A POST is stored now; the user may come back.
    assert_eq!(world.post(&subscription, 3600, "later").status, 201);
    assert_eq!(world.agent(Some(&agent.uaid)).note().text(), "later");
}
