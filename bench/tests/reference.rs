//! The scenarios against the reference server: they run there too, and they notice each of its faults.

use crate::common::scenario::{Reference, in_place_of, run};
use murre_bench::result::names;
use murre_bench::scenario::{churn, hold, mixed, ping, push, store, storm};

const STORM: [&str; 4] = ["--sessions", "60", "--within", "0.3"];
const STORE: [&str; 4] = ["--sessions", "20", "--messages", "200"];
const PUSH: [&str; 8] = ["--sessions", "20", "--rate", "200", "--seconds", "1", "--warmup", "0"];
const CHURN: [&str; 8] = ["--sessions", "40", "--percent", "1500", "--away", "0.2", "--seconds", "2"];
/// Patience for messages that never come: a longer wait would show nothing more.
const BRIEF: [&str; 2] = ["--patience", "5"];

#[test]
fn hold_runs() {
    let reference = Reference::with(&["--ping-interval", "0.2"]);
    let words = ["--sessions", "60", "--quiet", "2", "--answer", "--release", "--release-wait", "1"];
    let outcome = run(&reference.server, false, &[&words[..], &["--label", "reference"]].concat(), hold::run).good();
    assert_eq!(outcome.server, "reference");
    assert!(outcome.figure("idle at 60: server pings answered").unwrap() >= 60.0);
}

#[test]
fn push_runs_with_vapid_and_without() {
    let reference = Reference::with(&[]);
    run(&reference.server, false, &[&PUSH[..], &["--body", "0,9,4096"]].concat(), push::run).good();
    let outcome = run(&reference.server, false, &[&PUSH[..], &["--vapid"]].concat(), push::run).good();
    assert!(outcome.figure(names::CPU_NOTIFICATION_VAPID).is_some());
}

#[test]
fn store_runs() {
    let reference = Reference::with(&[]);
    let words =
        [&STORE[..], &["--topics", "20", "--expiring", "10", "--expiring-ttl", "1", "--within", "0.5"]].concat();
    run(&reference.server, false, &words, store::run).good();
}

#[test]
fn storm_churn_mixed_and_ping_run() {
    let reference = Reference::with(&[]);
    run(&reference.server, false, &STORM, storm::run).good();
    run(&reference.server, false, &CHURN, churn::run).good();
    let words = ["--sessions", "60", "--wait", "1", "--seconds", "2"];
    run(&reference.server, false, &words, mixed::run).good();
    let words = ["--sessions", "40", "--every", "2", "--seconds", "2"];
    run(&reference.server, false, &words, ping::run).good();
}

#[test]
fn a_message_that_is_dropped_is_lost() {
    let reference = Reference::with(&["--drop-every", "50"]);
    run(&reference.server, false, &[&PUSH[..], &BRIEF].concat(), push::run).bad(&["push: accepted and lost"]);
    run(&reference.server, false, &[&STORE[..], &BRIEF].concat(), store::run).bad(&["store: accepted and lost"]);
    let storm = run(&reference.server, false, &[&STORM[..], &["--patience", "2"]].concat(), storm::run);
    assert!(storm.failed().contains(&"all steps: accepted and lost"), "{:?}", storm.failed());
    run(&reference.server, false, &[&CHURN[..], &BRIEF].concat(), churn::run).bad(&["churn: accepted and lost"]);
}

#[test]
fn a_message_that_comes_twice_is_doubled() {
    let reference = Reference::with(&["--double-every", "50"]);
    run(&reference.server, false, &PUSH, push::run).bad(&["push: delivered twice"]);
    let reference = Reference::with(&["--ignore-acks"]);
    run(&reference.server, false, &STORE, store::run)
        .bad(&["last visit: delivered again after their ack", "store: delivered twice"]);
}

#[test]
fn what_has_expired_or_was_replaced_must_not_come() {
    let reference = Reference::with(&["--ignore-ttl"]);
    let words = [&STORE[..], &["--expiring", "10", "--expiring-ttl", "1"]].concat();
    let wanted = ["store: delivered though expired or replaced"];
    run(&reference.server, false, &words, store::run).bad(&wanted);
    let words = [&STORE[..], &["--topics", "50"]].concat();
    run(&reference.server, false, &words, store::run).bad(&wanted);
}

#[test]
fn a_forgotten_user_is_lost_with_all_it_had() {
    let reference = Reference::with(&["--forget-users"]);
    let storm = run(&reference.server, false, &[&STORM[..], &["--patience", "2"]].concat(), storm::run);
    for name in ["return: UAIDs lost", "stored: accepted and lost"] {
        assert!(storm.failed().contains(&name), "{name}: {:?}", storm.failed());
    }
    let churn = run(&reference.server, false, &[&CHURN[..], &BRIEF].concat(), churn::run);
    assert!(churn.failed().contains(&"UAIDs changed"), "{:?}", churn.failed());
}

#[test]
fn a_ping_that_is_not_answered_is_missed() {
    let reference = Reference::with(&["--ignore-pings"]);
    let words = ["--sessions", "10", "--quiet", "0", "--answer"];
    run(&reference.server, false, &words, hold::run).bad(&["sessions that answered at the end"]);
    let words = ["--sessions", "10", "--every", "1", "--seconds", "1"];
    run(&reference.server, false, &words, ping::run).bad(&["pings of user agents answered"]);
}

/// Everything in memory: a restart loses users and messages, and the checks must report that.
#[test]
fn a_server_that_forgets_at_a_restart_is_found_out() {
    let reference = Reference::with(&[]);
    let server = &reference.server;
    let serve = in_place_of(server, "reference", "");
    let pid = server.pid().to_string();
    let words = ["--sessions", "30", "--kill", &pid, "--serve", &serve, "--back-off", "0.02", "--patience", "5"];
    let storm = run(server, false, &words, storm::run);
    for name in ["restart: UAIDs lost", "restart: accepted and lost"] {
        assert!(storm.failed().contains(&name), "{name}: {:?}", storm.failed());
    }
}
