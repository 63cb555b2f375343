//! Judges of the scenarios against a small server that makes faults: each fault makes a check fail, and no other.

use std::io;

use clap::Args;
use murre_bench::scenario::{churn, hold, ping, push, store, storm};

use crate::common::scenario::{Verdict, run_at};
use crate::common::stand_in::{Faults, StandIn};

const STORM: [&str; 6] = ["--sessions", "60", "--within", "0.3", "--patience", "2"];
const STORE: [&str; 4] = ["--sessions", "20", "--messages", "200"];
const PUSH: [&str; 8] = ["--sessions", "20", "--rate", "200", "--seconds", "1", "--warmup", "0"];
const HOLD: [&str; 6] = ["--sessions", "10", "--quiet", "0", "--answer", "--no-broadcast"];
const CHURN: [&str; 8] = ["--sessions", "40", "--percent", "1500", "--away", "0.2", "--seconds", "2"];
/// Patience for messages that never come: a longer wait would show nothing more.
const BRIEF: [&str; 2] = ["--patience", "5"];

fn judge<O: Args>(stand_in: &StandIn, words: &[&str], scenario: fn(&O) -> io::Result<bool>) -> Verdict {
    run_at(stand_in.websocket(), stand_in.endpoint(), words, scenario)
}

#[test]
fn a_server_without_faults_passes() {
    let stand_in = StandIn::start(Faults::default());
    judge(&stand_in, &PUSH, push::run).good();
    judge(&stand_in, &STORE, store::run).good();
    judge(&stand_in, &STORM[..4], storm::run).good();
    judge(&stand_in, &CHURN, churn::run).good();
    judge(&stand_in, &HOLD, hold::run).good();
}

#[test]
fn a_message_that_is_dropped_is_lost() {
    let stand_in = StandIn::start(Faults { drop_every: Some(50), ..Faults::default() });
    judge(&stand_in, &[&PUSH[..], &BRIEF].concat(), push::run).bad(&["push: accepted and lost"]);
    judge(&stand_in, &[&STORE[..], &BRIEF].concat(), store::run).bad(&["store: accepted and lost"]);
    let storm = judge(&stand_in, &STORM, storm::run);
    assert!(storm.failed().contains(&"all steps: accepted and lost"), "{:?}", storm.failed());
    judge(&stand_in, &[&CHURN[..], &BRIEF].concat(), churn::run).bad(&["churn: accepted and lost"]);
}

#[test]
fn a_message_that_comes_twice_is_doubled() {
    let stand_in = StandIn::start(Faults { double_every: Some(50), ..Faults::default() });
    judge(&stand_in, &PUSH, push::run).bad(&["push: delivered twice"]);
    let stand_in = StandIn::start(Faults { ignore_acks: true, ..Faults::default() });
    let store = judge(&stand_in, &STORE, store::run);
    store.bad(&["last visit: delivered again after their ack", "store: delivered twice"]);
}

#[test]
fn a_message_that_has_expired_or_was_replaced_must_not_come() {
    let stand_in = StandIn::start(Faults { ignore_ttl: true, ..Faults::default() });
    let wanted = ["store: delivered though expired or replaced"];
    let words = [&STORE[..], &["--expiring", "10", "--expiring-ttl", "1"]].concat();
    judge(&stand_in, &words, store::run).bad(&wanted);
    judge(&stand_in, &[&STORE[..], &["--topics", "50"]].concat(), store::run).bad(&wanted);
}

#[test]
fn a_forgotten_user_is_lost_with_all_it_had() {
    let stand_in = StandIn::start(Faults { forget_users: true, ..Faults::default() });
    let storm = judge(&stand_in, &STORM, storm::run);
    for name in ["return: UAIDs lost", "stored: accepted and lost"] {
        assert!(storm.failed().contains(&name), "{name}: {:?}", storm.failed());
    }
    let churn = judge(&stand_in, &[&CHURN[..], &BRIEF].concat(), churn::run);
    assert!(churn.failed().contains(&"UAIDs changed"), "{:?}", churn.failed());
}

#[test]
fn a_ping_that_is_not_answered_is_missed() {
    let stand_in = StandIn::start(Faults { ignore_pings: true, ..Faults::default() });
    judge(&stand_in, &HOLD, hold::run).bad(&["sessions that answered at the end"]);
    let words = ["--sessions", "10", "--every", "1", "--seconds", "1"];
    judge(&stand_in, &words, ping::run).bad(&["pings of user agents answered"]);
}
