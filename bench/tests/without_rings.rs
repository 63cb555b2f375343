//! Starts on a host that refuses io_uring: the server polls its sockets, and says so.

use std::process::{Command, Output, Stdio};

use crate::common::World;

const BENCH: &str = env!("CARGO_BIN_EXE_murre-bench");

/// Words of a server to which a filter refuses io_uring with this error.
fn filtered(errno: &str) -> Vec<String> {
    [BENCH, "without-rings", "--errno", errno, BENCH, "serve"].map(str::to_owned).to_vec()
}

/// A user agent gets a direct notification, one that was stored while it was away, and one across a killed server.
fn serves(mut world: World) {
    let (mut agent, subscription) = world.subscriber();
    let direct = world.post(&subscription, 60, "direct").id();
    let note = agent.note();
    assert_eq!(note.version, direct);
    agent.ack([&note]);
    let uaid = agent.uaid.clone();
    agent.leave();
    world.post(&subscription, 60, "stored").id();
    world.crash();
    let mut agent = world.agent(Some(&uaid));
    let note = agent.note();
    agent.ack([&note]);
    assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
}

#[test]
fn a_filter_that_refuses_io_uring_makes_the_server_poll() {
    for errno in ["EPERM", "ENOSYS"] {
        let world = World::run(filtered(errno), &[]);
        let log = world.server.log();
        assert!(log.contains("plane chosen") && log.contains("poll"), "{log}");
        serves(world);
    }
}

#[test]
fn an_explicit_poll_takes_no_ring() {
    let world = World::with(&["--set", "shards.plane=poll"]);
    let log = world.server.log();
    assert!(log.contains("plane chosen") && log.contains("shards.plane = poll"), "{log}");
    serves(world);
}

fn refused(errno: &str, settings: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let words = filtered(errno);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("--data-dir").arg(directory.path().join("data")).args(["--shards", "1"]);
    for port in ["--websocket", "--endpoint", "--node", "--admin"] {
        command.args([port, "127.0.0.1:0"]);
    }
    command.args(settings).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn rings_that_are_needed_and_refused_end_the_start() {
    for settings in [&["--set", "shards.plane=io_uring"][..], &["--set", "hibernate.after=60"]] {
        let output = refused("EPERM", settings);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("io_uring") && !said.contains("panicked"), "{said}");
    }
    let output = refused("EPERM", &["--set", "shards.plane=poll", "--set", "hibernate.after=60"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(78) && said.contains("hibernate.after needs io_uring"), "{said}");
}
