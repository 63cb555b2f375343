//! The backlog scenario at a size for tests: nothing lost, nothing twice, expired messages in front block nothing.

use crate::common::World;
use clap::Parser;
use murre_bench::scenario::backlog;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: backlog::Options,
}

fn options(world: &World, more: &[&str]) -> backlog::Options {
    let (ws, endpoint) = (world.server.websocket().to_string(), world.server.endpoint().to_string());
    let (admin, pid) = (world.server.admin().to_string(), world.server.pid().to_string());
    let line = ["backlog", "--ws", &ws, "--endpoint", &endpoint, "--admin", &admin, "--pid", &pid];
    let small = ["--sessions", "20", "--rate", "100", "--warmup", "1", "--baseline", "1"];
    Line::parse_from(line.iter().chain(&small).chain(more)).options
}

#[test]
fn a_long_backlog_drains_without_loss_and_beside_others() {
    let world = World::with(&["--shards", "1"]);
    let drained = backlog::run(&options(&world, &["--messages", "2000"])).unwrap();
    assert!(drained, "a check of the backlog failed, see above");
}

#[test]
fn expired_messages_in_front_of_a_backlog_block_nothing() {
    let world = World::with(&["--shards", "1"]);
    let more = ["--messages", "300", "--expired", "3000", "--expired-ttl", "1"];
    let drained = backlog::run(&options(&world, &more)).unwrap();
    assert!(drained, "a check of the backlog failed, see above");
}

#[test]
fn what_a_backlog_must_not_do_is_noticed() {
    let world = World::with(&["--shards", "1"]);
    // No p99 is a billion times better than another, even if the host kept the others waiting before.
    let refused = backlog::run(&options(&world, &["--messages", "200", "--ratio-max", "0.000000001"])).unwrap();
    assert!(!refused);
    let two = World::with(&["--shards", "2"]);
    assert!(!backlog::run(&options(&two, &["--messages", "10"])).unwrap(), "others on another shard notice less");
}
