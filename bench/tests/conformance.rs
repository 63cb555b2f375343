//! The tool `murre-bench conformance`: no MUST fails on this server, and each fault of a small server is found.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use crate::common::World;
use crate::common::stand_in::{Faults, StandIn};
use serde_json::Value;

/// Requirements of level SHOULD that this server does not meet, with the reason in docs/CONFORMANCE.md.
const NOT_MET: [&str; 1] = ["VAPID-ONE-KEY"];

fn tool(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_murre-bench"));
    command.arg("conformance").args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Exit status, and the ids whose result is `fail`, with level and detail.
fn failures(websocket: SocketAddr, endpoint: SocketAddr, more: &[&str]) -> (Option<i32>, Vec<Value>) {
    let (ws, endpoint) = (format!("ws://{websocket}/"), format!("http://{endpoint}"));
    let output = tool(&[&["--ws", &ws, "--endpoint", &endpoint, "--json"], more].concat());
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), rows.into_iter().filter(|row| row["result"] == "fail").collect())
}

fn ids(failures: &[Value]) -> BTreeSet<&str> {
    failures.iter().filter_map(|row| row["id"].as_str()).collect()
}

#[test]
fn this_server_meets_every_must_and_misses_one_should() {
    let world = World::start();
    let (status, failed) = failures(world.server.websocket(), world.server.endpoint(), &[]);
    assert!(failed.iter().all(|row| row["level"] == "SHOULD"), "{failed:#?}");
    assert_eq!(ids(&failed), BTreeSet::from(NOT_MET), "{failed:#?}");
    assert_eq!(status, Some(0));
}

#[test]
fn every_fault_of_a_small_server_is_found() {
    let ask = |faults: Faults| {
        let stand_in = StandIn::start(faults);
        let (status, failed) = failures(stand_in.websocket(), stand_in.endpoint(), &["--patience", "4"]);
        // It does not look at VAPID.
        assert_eq!(status, Some(1));
        ids(&failed).into_iter().map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let none = Faults::default();
    let usual = ask(none);
    assert!(usual.contains("VAPID-MISSING") && !usual.contains("MOZ-NOTIFICATION"), "{usual:?}");
    let found = |faults: Faults| ask(faults).difference(&usual).cloned().collect::<Vec<_>>();
    assert_eq!(found(Faults { ignore_acks: true, ..none }), ["MOZ-ACK", "MOZ-ACK-LATER", "MOZ-ACK-NO-CODE"]);
    let lax = Faults { ignore_ttl: true, ignore_pings: true, ..none };
    assert_eq!(found(lax), ["MOZ-PING", "PUSH-EXPIRES", "PUSH-TOPIC"]);
    assert_eq!(
        found(Faults { double_every: Some(1), ..none }),
        ["MOZ-NOT-TWICE", "MOZ-REGISTER-AGAIN", "MOZ-VERSIONS"]
    );
    let forgotten = found(Faults { forget_users: true, ..none });
    assert!(["MOZ-UAID-KNOWN", "PUSH-STORED"].iter().all(|id| forgotten.iter().any(|found| found == id)));
}

#[test]
fn a_server_that_is_not_there_is_exit_status_2() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = tool(&["--ws", &format!("ws://{free}/")]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty());
}
