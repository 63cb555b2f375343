//! The simulator as a gate: twenty-five hundred seeds, replay, and no empty situation.

use std::sync::LazyLock;

use sim::{Options, Report, run, run_seed};

/// The worlds of one node that two tests look at.
static WORLDS: LazyLock<Report> = LazyLock::new(|| run(0..2_500, &Options { failures_max: 3, ..Options::default() }));

#[test]
fn twenty_five_hundred_worlds_keep_every_promise() {
    let failures: Vec<String> = WORLDS.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(WORLDS.seeds, 2_500);
}

#[test]
fn equal_seeds_give_equal_traces() {
    for seed in 3_000..3_005 {
        let hash = |lines| {
            let options = Options { lines, ..Options::default() };
            run_seed(seed, &options).map(|trace| (trace.hash, trace.steps)).map_err(|failure| failure.to_string())
        };
        assert_eq!(hash(false), hash(true));
    }
    let other = |seed| run_seed(seed, &Options::default()).map(|trace| trace.hash).ok();
    assert_ne!(other(3_000), other(3_001));
}

#[test]
fn no_interesting_situation_is_missing_from_twenty_five_hundred_worlds() {
    let missing: Vec<&str> = SITUATIONS.iter().copied().filter(|name| WORLDS.marks.count(name) == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn no_interesting_situation_is_missing_from_five_hundred_clusters() {
    let report = run(0..500, &Options { cluster: true, ..Options::default() });
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let missing: Vec<&str> = OF_CLUSTERS.iter().copied().filter(|name| report.marks.count(name) == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn no_rare_situation_is_missing_from_two_hundred_rare_clusters() {
    let report = run(0..200, &Options { cluster: true, rare: true, ..Options::default() });
    let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let missing: Vec<&str> = OF_RARE.iter().copied().filter(|name| report.marks.count(name) == 0).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// Situations that two hundred rare clusters must have seen.
const OF_RARE: &[&str] = &[
    "agent: flickers",
    "call: answered Busy",
    "call: copy of a push that was refused",
    "call: push, twice",
    "low water: a message turned up below it",
    "low water: saved again, and its holder is told",
    "machine.rows_passed_by",
    "machine.saved_again",
    "machine.sessions_outdated",
];

/// Situations that five hundred clusters must have seen.
const OF_CLUSTERS: &[&str] = &[
    "again: its delete was on its way from another node",
    "agent: listens to a socket that it has left",
    "agent: names a bridged user",
    "agent: stays away",
    "bridged: 201",
    "bridged: 410",
    "bridged: 503",
    "bridged: not bridged",
    "bridged: refused",
    "call: a node that has not the user answers",
    "call: answered Busy",
    "call: late",
    "call: met another boot",
    "call: notify, unsure",
    "call: push, twice",
    "debt: every session reads storage",
    "debt: left at an end",
    "debt: words are lost",
    "debt: written",
    "guard: active",
    "machine.rows_passed_by",
    "machine.sessions_elsewhere",
    "machine.updates_screened",
    "machine.upstream_calls_shed",
    "machine.upstream_replies_stale",
    "machine.wakes",
    "node: alone for long",
    "node: clock stopped",
    "node: declared over",
    "node: killed with debts",
    "node: stopped in order with debts",
    "nodes: rolling restart",
    "owed: again",
    "phone: done",
    "phone: no channel",
    "phone: no user",
    "phone: unavailable",
    "presence: cleared by mistake",
    "service: answered twice",
    "service: doubted",
    "service: doubted, guarded",
    "service: failed",
    "service: gone",
    "service: sent",
    "store: landed late",
    "store: written too late",
    "unsure: told of a row that was settled",
    "user: mark cleared",
    "user: marked",
    "user: other device",
    "user: removed as asked",
    "user: removed as gone",
    "user: removed as refused twice",
];

/// Situations that twenty-five hundred worlds must have seen.
const SITUATIONS: &[&str] = &[
    "ack: several",
    "ack: strange",
    "ack: twice",
    "agent: broadcast read",
    "agent: close",
    "agent: connects twice",
    "agent: falls silent",
    "agent: pong read",
    "agent: reset",
    "agent: stops reading",
    "cancel: 503",
    "cancel: done",
    "close: Draining",
    "close: HandshakeTimeout",
    "close: MoveFailed",
    "close: Overloaded",
    "close: PingTooSoon",
    "close: PongTimeout",
    "close: StorageDown",
    "close: Superseded",
    "close: WrongState",
    "fate: acked",
    "fate: cancelled",
    "fate: channel unregistered",
    "fate: expired",
    "fate: replaced by topic",
    "fate: unacked",
    "fault: shard stalls",
    "fault: store down",
    "fault: store stalls",
    "fault: wall clock jumps ahead",
    "fault: wall clock jumps back",
    "hello: known",
    "hello: new",
    "hello: unknown, reassigned",
    "kill",
    "kill: live ledger records",
    "kill: relaxed writes lost",
    "machine.arrivals_stale",
    "machine.claims_abandoned",
    "machine.claims_granted",
    "machine.claims_refused",
    "machine.departures",
    "machine.dropped_with_channel",
    "machine.expired",
    "machine.greetings_superseded",
    "machine.half_pairs",
    "machine.parked",
    "machine.replaced",
    "machine.retries",
    "machine.spills",
    "machine.store_retries",
    "machine.unacked_ended",
    "move: descriptor before mail",
    "move: failed",
    "move: mail before descriptor",
    "move: peer gone on the way",
    "move: superseded or timed out on the way",
    "move: undecoded bytes came along",
    "machine.clocks_refused",
    "machine.node_directs",
    "node: asks for a check",
    "node: ends a session",
    "node: push done",
    "node: push met nobody",
    "node: push refused",
    "node: pushes again",
    "notification: retried",
    "poster: hangs up",
    "publish: direct",
    "publish: dropped",
    "publish: no subscription",
    "publish: stored",
    "publish: too many",
    "publish: unavailable",
    "register: 500",
    "socket: blocked",
    "socket: unsent",
    "socket: writable again",
    "start: another number of shards",
    "start: ledger record replayed",
    "stop: drained",
    "store: drain page",
    "store: failed after success",
    "store: failed without effect",
    "store: refused as full",
    "store: refused beyond a share",
    "store: room is scarce",
    "store: save",
    "receipt: pending",
    "receipt: unknown",
    "receipt: delivered",
    "receipt: expired",
    "receipt: replaced",
    "receipt: cancelled",
    "receipt: unacked",
    "receipt: unregistered",
    "mail: receipt",
    "machine.dead_endpoint_hits",
    "bye: Superseded",
    "fate: of another mode",
    "fault: store stays full",
    "hello: in another mode",
    "kill: damaged record",
    "kill: in a start",
    "kill: in an append",
    "kill: log damaged",
    "kill: power lost",
    "kill: while a record dies",
    "machine.channels_reconciled",
    "machine.members_attached",
    "machine.updates_screened",
    "relay: goes",
    "hibernation: broadcast changed between two processes",
    "hibernation: close not carried out",
    "hibernation: frozen with a record",
    "hibernation: hello refused, StorageDown",
    "hibernation: hello refused, Superseded",
    "hibernation: left while calm",
    "hibernation: never thawed",
    "hibernation: peer gone before its hello",
    "hibernation: probe",
    "hibernation: reset of a session that has ended",
    "hibernation: segment lost",
    "hibernation: session goes on",
    "hibernation: stale record",
    "hibernation: thaw failed",
    "hibernation: thawed by a frame",
    "hibernation: thawed by a segment",
    "hibernation: user agent gone before the takeover",
    "hibernation: user has come back before the takeover",
    "hibernation: user not in storage",
    "relay: stops reading",
    "store: user dropped",
    "wake",
];
