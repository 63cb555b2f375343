//! Sessions that leave the kernel while nobody speaks, and come back.
//!
//! These tests need CAP_NET_ADMIN, and fail without it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hibernate::{Gate, Ports, Prober, ShardGate, freeze, set_live};

use crate::ports::{Edge, Probes, Records};
use crate::reactor::hibernation::{FAILURES_IN_A_ROW_MAX, Hibernator};
use crate::reactor::{Machine, PlaneLimits, Reactor};
use crate::ring::{Flags, PlaneKind, State, WEBSOCKET_BUFFERS};
use machine::ids::ConnId;
use machine::limits::{SET_APART_MAX, THAWS_PER_TURN};
use machine::time::TimeSpan;
use machine::{AgentEvent, CloseReason, Effect};

use super::bench::{Bench, Client, run_on};
use super::late;

/// Silence after which these tests freeze.
const AFTER: TimeSpan = TimeSpan::from_ms(20);

/// Number of the next packet queue: tests run side by side.
static QUEUE: AtomicU16 = AtomicU16::new(41_100);

/// Ports of the listeners of a bench.
pub(super) fn ports(bench: &Bench) -> [u16; 4] {
    [bench.websocket, bench.websocket_tls, bench.public, bench.endpoint].map(|address| address.port())
}

/// Opens a gate of these ports.
pub(super) fn gate(ports: &[u16], queue: u16, persist: bool) -> (Gate, ShardGate) {
    one_shard(Gate::open(Ports::To(ports), queue, 1, persist))
}

fn one_shard(opened: io::Result<(Gate, Vec<ShardGate>)>) -> (Gate, ShardGate) {
    let (gate, mut gates) = opened.unwrap();
    (gate, gates.pop().unwrap())
}

pub(super) fn queue() -> u16 {
    QUEUE.fetch_add(1, Ordering::Relaxed)
}

/// Runs a test with a shard that hibernates.
fn hibernating(limits: PlaneLimits, test: impl FnOnce(&mut Bench) + Send + 'static) {
    run_on(PlaneKind::Rings, move || {
        let mut bench = Bench::new(1, limits);
        let (_gate, shard) = gate(&ports(&bench), queue(), false);
        bench.hibernate(shard, None);
        test(&mut bench);
        // Before the gate.
        drop(bench);
    });
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    pub(super) fn state(&self, conn: ConnId) -> Option<State> {
        self.conns.get(conn).map(|entry| entry.state)
    }
}

impl Bench {
    /// Lets the shard hibernate from now on, as the start of a process does.
    pub(super) fn hibernate(&mut self, gate: ShardGate, records: Option<Records>) {
        let shard = &mut self.shards[0];
        shard.hibernator = Some(Hibernator::new(gate, AFTER, None, shard.now.mono));
        let waker = Arc::clone(shard.mailbox.waker());
        shard.begin_hibernation(records, waker);
    }

    /// Turns until the shard has looked for silent sessions this many times more.
    pub(super) fn until_searched(&mut self, times: u64) {
        let searches = |bench: &Bench| bench.shards[0].hibernator.as_ref().unwrap().searches_for_test();
        let wanted = searches(self) + times;
        self.until("more searches", |bench| searches(bench) >= wanted);
    }

    pub(super) fn frozen(&self) -> usize {
        self.shards[0].hibernator.as_ref().unwrap().frozen() as usize
    }

    pub(super) fn until_frozen(&mut self, count: usize) {
        self.until("sessions are frozen", |bench| bench.frozen() == count);
    }

    /// The session that was opened as number `at`.
    pub(super) fn session(&self, at: usize) -> ConnId {
        self.shards[0].machine.opened[at]
    }
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_peer_that_speaks_is_answered_each_time_and_frozen_again() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut client = bench.websocket();
        for round in 1..=3 {
            bench.until_frozen(1);
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
            client.forget();
            let stats = &bench.shards[0].stats;
            assert_eq!((stats.freezes, stats.thaws_by_segment, stats.thaws_by_frame), (round, round, 0));
        }
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn frames_reach_frozen_sessions_and_those_that_are_set_apart() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut client = bench.websocket();
        let conn = bench.session(0);
        for state in [State::Frozen, State::Apart, State::Frozen] {
            bench.until("the state", |bench| bench.shards[0].state(conn) == Some(state));
            bench.shards[0].machine.send_notes(conn, 7..9);
            bench.until("both notifications", |_| client.lines() == 2);
            assert!(client.heard_so_far().starts_with(b"note 7 x"));
            client.forget();
        }
        assert_eq!(bench.shards[0].stats.thaws_by_frame, 2, "one that is set apart is not thawed");
        client.say(b"E\n");
        bench.until("an answer", |_| client.heard() == b"pong\n");
    });
}

/// More than a turn thaws, and more than a batch has.
#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_crowd_is_frozen_in_batches_and_hears_a_frame_to_each() {
    const CROWD: usize = SET_APART_MAX + THAWS_PER_TURN;
    hibernating(PlaneLimits::new(2_000), |bench| {
        let mut clients: Vec<_> = (0..CROWD).map(|_| bench.websocket()).collect();
        bench.until_frozen(CROWD);
        let sessions = bench.shards[0].machine.opened.clone();
        for conn in sessions {
            bench.shards[0].machine.send_notes(conn, 1..2);
        }
        for client in &mut clients {
            bench.until("a notification", |_| client.lines() == 1);
            client.forget();
        }
        bench.until_frozen(CROWD);
        clients.iter_mut().for_each(|client| client.say(b"E\n"));
        for client in &mut clients {
            bench.until("an answer", |_| client.heard() == b"pong\n");
        }
        let times = bench.shards[0].hibernator.as_ref().unwrap().thaw_times.counts();
        let stats = &bench.shards[0].stats;
        assert_eq!(times, [stats.thaws_by_segment, stats.thaws_by_frame]);
        assert!(stats.thaws_by_segment >= CROWD as u64 && stats.thaws_by_frame >= CROWD as u64);
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_peer_that_closes_or_resets_ends_its_frozen_session() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut first = bench.websocket();
        let second = bench.websocket();
        bench.until_frozen(2);
        first.finish();
        bench.until("the end", |bench| bench.log(0).contains(&"gone PeerClosed".to_owned()));
        bench.until_frozen(1);
        second.reset();
        bench.until("both ends", |bench| bench.shards[0].conns.open_count() == 0);
        assert_eq!(bench.frozen(), 0);
        assert_eq!(bench.log(0).iter().filter(|line| line.starts_with("gone")).count(), 2);
        // Their slots serve others.
        let mut third = bench.websocket();
        bench.until_frozen(1);
        third.say(b"E\n");
        bench.until("an answer", |_| third.heard() == b"pong\n");
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_frozen_session_hears_why_it_is_ended() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut client = bench.websocket();
        bench.until_frozen(1);
        let conn = bench.session(0);
        bench.shards[0].machine.orders.push(Effect::Close(conn, CloseReason::Superseded));
        bench.until("the reason", |_| client.heard() == b"bye Superseded\n" && client.end == Some(Ok(())));
        drop(client);
        bench.until("the slot is free", |bench| bench.shards[0].conns.open_count() == 0);
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn sessions_that_wait_for_something_stay_live() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut held = bench.websocket();
        held.say(b"H\n");
        let mut partial = bench.websocket();
        partial.say(b"half a li");
        let _idle = bench.websocket();
        bench.until_frozen(1);
        bench.until("two more searches", |bench| bench.shards[0].hibernator.as_ref().unwrap().searches_for_test() > 20);
        assert_eq!((bench.frozen(), bench.shards[0].stats.freezes_refused), (1, 0));
        partial.say(b"ne\n");
        bench.until("an answer", |_| partial.heard() == b"pong\n");
        bench.shards[0].machine.release();
        bench.until("an answer", |_| held.heard() == b"pong\n");
        bench.until_frozen(3);
    });
}

/// A second socket with the addresses of the session stands in the way, as a kernel without memory does.
#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_frame_whose_thaw_fails_is_sent_later() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut client = bench.websocket();
        bench.until_frozen(1);
        let conn = bench.session(0);
        let record = *bench.shards[0].hibernator.as_ref().unwrap().record_for_test(conn.slot);
        let obstacle = record.thaw(WEBSOCKET_BUFFERS).unwrap();
        bench.shards[0].machine.send_notes(conn, 3..5);
        bench.until("failures", |bench| bench.shards[0].stats.thaw_failures > 2);
        assert!(bench.log(0).contains(&"blocked".to_owned()) && bench.frozen() == 1);
        bench.shards[0].machine.send_notes(conn, 5..6);
        bench.until("it is given back", |bench| bench.log(0).contains(&"unsent 5".to_owned()));
        set_live(&obstacle, false).unwrap();
        freeze(obstacle, record.tuple()).unwrap();
        bench.until("all notifications", |_| client.lines() == 3);
        bench.until("no emission is owed", |bench| bench.log(0).contains(&"writable".to_owned()));
    });
}

/// More thaws fail than a turn does. The last session of all has nothing in its way.
#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_crowd_whose_thaws_fail_hears_its_frames_later() {
    const CROWD: usize = 2 * THAWS_PER_TURN;
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut clients: Vec<_> = (0..CROWD + 1).map(|_| bench.websocket()).collect();
        bench.until_frozen(CROWD + 1);
        let mut sessions = bench.shards[0].machine.opened.clone();
        let last = sessions.pop().unwrap();
        let hibernator = bench.shards[0].hibernator.as_ref().unwrap();
        let records: Vec<_> = sessions.iter().map(|conn| *hibernator.record_for_test(conn.slot)).collect();
        let obstacles: Vec<_> = records.iter().map(|record| record.thaw(WEBSOCKET_BUFFERS).unwrap()).collect();
        for conn in &sessions {
            bench.shards[0].machine.send_notes(*conn, 1..2);
        }
        bench.shards[0].machine.send_notes(last, 1..2);
        bench.until("a notification", |_| clients[CROWD].lines() == 1);
        let failures = bench.shards[0].stats.thaw_failures;
        assert!(failures >= CROWD as u64);
        let mut before = failures;
        bench.until("more failures", |bench| {
            let of_turn = std::mem::replace(&mut before, bench.shards[0].stats.thaw_failures);
            assert!(before - of_turn <= u64::from(FAILURES_IN_A_ROW_MAX), "{} in one turn", before - of_turn);
            before > failures + CROWD as u64
        });
        let mut obstacles = obstacles.into_iter().zip(&records).map(|(obstacle, record)| {
            set_live(&obstacle, false).unwrap();
            freeze(obstacle, record.tuple()).unwrap();
        });
        // The first one speaks as soon as it can be thawed. Its frame goes out then, and its word is heard.
        obstacles.next();
        clients[0].say(b"E\n");
        bench.until("a thaw by the segment", |bench| bench.shards[0].stats.thaws_by_segment == 1);
        bench.turn();
        let conn = sessions[0];
        assert!(!bench.shards[0].conns.get(conn).unwrap().flags.has(Flags::POLL_OUT), "its frame waits on");
        obstacles.for_each(drop);
        for client in &mut clients[..CROWD] {
            bench.until("a notification", |_| client.lines() >= 1);
        }
        bench.until("an answer", |_| clients[0].lines() == 2);
        let [_, by_frame] = bench.shards[0].hibernator.as_ref().unwrap().thaw_times.counts();
        assert_eq!(by_frame, CROWD as u64);
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_session_whose_thaw_fails_for_too_long_is_ended() {
    let limits = PlaneLimits { blocked_timeout: TimeSpan::from_ms(300), ..PlaneLimits::new(1_000) };
    hibernating(limits, |bench| {
        let _client = bench.websocket();
        bench.until_frozen(1);
        let conn = bench.session(0);
        let record = *bench.shards[0].hibernator.as_ref().unwrap().record_for_test(conn.slot);
        let obstacle = record.thaw(WEBSOCKET_BUFFERS).unwrap();
        bench.shards[0].machine.send_notes(conn, 3..5);
        bench.until("told", |bench| bench.log(0).contains(&"gone NotReading".to_owned()));
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!((bench.frozen(), bench.shards[0].buffer_pool.used()), (0, 0));
        drop(obstacle);
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn sessions_over_tls_go_on_with_their_keys() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut client = bench.tls_websocket();
        for _ in 0..2 {
            bench.until_frozen(1);
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
            client.forget();
            bench.until_frozen(1);
            let conn = bench.session(0);
            bench.shards[0].machine.send_notes(conn, 4..5);
            bench.until("a notification", |_| client.heard().ends_with(b"x\n"));
            assert!(client.heard().starts_with(b"note 4 "));
            client.forget();
        }
    });
}

#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_NET_RAW: bench/check test"]
fn a_probe_is_answered_by_the_kernel_of_the_peer_and_thaws_nobody() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let prober = Prober::open().unwrap();
        let (ping_after, answer_within) = (TimeSpan::from_ms(700), TimeSpan::from_secs(60));
        let probes = Probes { prober, ping_after, answer_within };
        bench.shards[0].hibernator.as_mut().unwrap().probe_with_for_test(probes);
        let mut client = bench.websocket();
        let conn = bench.session(0);
        bench.until_frozen(1);
        for round in 1..=2 {
            bench.shards[0].machine.orders.push(Effect::Emit(conn, AgentEvent::Ping.into()));
            bench.until("a sign of life", |bench| bench.shards[0].stats.probes_answered == round);
            assert_eq!(bench.log(0).iter().filter(|line| *line == "pong").count(), round as usize);
            // The kernel of the peer answers such segments twice a second.
            let pause = Instant::now();
            bench.until("a pause", |_| pause.elapsed() > Duration::from_millis(550));
        }
        assert_eq!((bench.shards[0].stats.thaws_by_frame, bench.shards[0].stats.thaws_by_segment), (0, 0));
        assert_eq!(client.heard(), b"");
        // The silence is long enough by now.
        bench.shards[0].machine.orders.push(Effect::Emit(conn, AgentEvent::Ping.into()));
        bench.until("a frame", |_| client.heard() == b"pong\n");
        assert_eq!(bench.shards[0].stats.probes, 2);
    });
}

/// Of two probes within half a second the kernel of the peer answers one. A network loses some as well.
#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_NET_RAW: bench/check test"]
fn a_probe_without_an_answer_is_followed_by_the_ping_itself() {
    // The answer to a probe may also reach a socket that a frame has brought back meanwhile.
    for notes in [0, 1] {
        hibernating(PlaneLimits::new(1_000), move |bench| {
            let prober = Prober::open().unwrap();
            let probes = Probes { prober, ping_after: TimeSpan::from_secs(60), answer_within: TimeSpan::from_ms(100) };
            bench.shards[0].hibernator.as_mut().unwrap().probe_with_for_test(probes);
            let mut client = bench.websocket();
            let conn = bench.session(0);
            bench.until_frozen(1);
            let ping = || Effect::Emit(conn, AgentEvent::Ping.into());
            bench.shards[0].machine.orders.push(ping());
            bench.until("a sign of life", |bench| bench.shards[0].stats.probes_answered == 1);
            bench.shards[0].machine.orders.push(ping());
            bench.shards[0].machine.send_notes(conn, 0..notes);
            bench.until("the Ping", |_| client.heard().ends_with(b"pong\n"));
            assert_eq!(client.lines(), 1 + notes as usize);
            let stats = &bench.shards[0].stats;
            assert_eq!((stats.probes, stats.probes_answered, stats.probes_unanswered), (2, 1, 1));
        });
    }
}

/// Pongs are judged by the machine, which must know that the Ping has not left. A Ping that follows a probe is as old
/// as the probe to the machine.
#[test]
#[ignore = "needs CAP_NET_ADMIN and CAP_NET_RAW: bench/check test"]
fn a_ping_that_waits_for_a_thaw_has_the_whole_time_for_its_pong() {
    const CROWD: usize = 4 * THAWS_PER_TURN;
    const LATE_BY: TimeSpan = TimeSpan::from_ms(250);
    for answer_within in [TimeSpan(0), TimeSpan::from_ms(100)] {
        hibernating(PlaneLimits::new(1_000), move |bench| {
            let prober = Prober::open().unwrap();
            // Every silence is too long for a probe.
            let probes = Probes { prober, ping_after: TimeSpan(0), answer_within };
            bench.shards[0].hibernator.as_mut().unwrap().probe_with_for_test(probes);
            let mut clients: Vec<_> = (0..CROWD).map(|_| bench.websocket()).collect();
            bench.until_frozen(CROWD);
            let least = LATE_BY.0 + answer_within.0;
            bench.until("the clock has run so long", |bench| bench.shards[0].now.mono.0 > least);
            let mut sessions = bench.shards[0].machine.opened.clone();
            let last = sessions.pop().unwrap();
            for conn in sessions {
                bench.shards[0].machine.send_notes(conn, 1..2);
            }
            bench.shards[0].machine.orders.push(Effect::Emit(last, AgentEvent::Ping.into()));
            bench.turn();
            let emitted = bench.shards[0].now.mono;
            // A shard that stands still for so long says so by itself.
            bench.shards[0].hibernator.as_mut().unwrap().age_late_frames_for_test(LATE_BY);
            bench.shards[0].machine.heard.clear();
            late::time_out(bench);
            bench.turn();
            let heard = &bench.shards[0].machine.heard;
            assert!(heard.iter().any(|(until, late, _)| *late && until.0 + least <= emitted.0), "{heard:?}");
            assert_eq!(clients[CROWD - 1].heard(), b"", "the Ping is still to come");
            bench.until("the Ping", |_| clients[CROWD - 1].heard() == b"pong\n");
        });
    }
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn connections_of_app_servers_are_never_frozen() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut sender = Client::connect(bench.endpoint);
        sender.say(b"E\n");
        bench.until("an answer", |_| sender.heard() == b"pong\n");
        let _idle = bench.websocket();
        bench.until_frozen(1);
        bench.until("more searches", |bench| bench.shards[0].hibernator.as_ref().unwrap().searches_for_test() > 20);
        assert_eq!(bench.shards[0].stats.freezes, 1);
    });
}

/// A segment that the kernel already processes reaches its socket within the grace period (decision 0033, 2).
#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_session_that_is_set_apart_is_not_frozen_before_its_grace_period_is_over() {
    run_on(PlaneKind::Rings, || {
        let mut bench = Bench::one();
        let (end, ended) = channel();
        let grace = move || ended.recv().map_err(io::Error::other);
        let (_gate, shard) = one_shard(Gate::open_with_grace(Ports::To(&ports(&bench)), queue(), 1, false, grace));
        bench.hibernate(shard, None);
        let mut client = bench.websocket();
        let conn = bench.session(0);
        for _ in 0..2 {
            bench.until("it is set apart", |bench| bench.shards[0].state(conn) == Some(State::Apart));
            bench.settle();
            assert_eq!(bench.shards[0].state(conn), Some(State::Apart));
            end.send(()).unwrap();
            bench.until_frozen(1);
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
            client.forget();
        }
        // The thread that waits ends with the gate.
        drop(end);
        drop(bench);
    });
}
