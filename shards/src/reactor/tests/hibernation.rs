//! Sessions that leave the kernel while nobody speaks, and come back.
//!
//! These tests need CAP_NET_ADMIN; without it they say so and pass.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use hibernate::{Gate, freeze, set_live};

use crate::ports::{Edge, Hibernation};
use crate::reactor::hibernation::Hibernator;
use crate::reactor::{Machine, PlaneLimits, Reactor};
use crate::ring::{State, WEBSOCKET_BUFFERS};
use machine::ids::{ConnId, EmissionId};
use machine::limits::{SET_APART_MAX, THAWS_PER_TURN};
use machine::time::TimeSpan;
use machine::{CloseReason, Effect};

use super::bench::{Bench, run};

/// Silence after which these tests freeze.
const AFTER: TimeSpan = TimeSpan::from_ms(20);

/// Number of the next packet queue: tests run side by side.
static QUEUE: AtomicU16 = AtomicU16::new(41_100);

/// A shard that hibernates, and the gate of its listeners. The reactor goes first.
struct Asleep {
    bench: Bench,
    _gate: Gate,
}

/// Runs a test with a shard that hibernates, where this process may.
fn hibernating(limits: PlaneLimits, test: impl FnOnce(&mut Bench) + Send + 'static) {
    run(move || {
        let mut bench = Bench::new(1, limits);
        let ports = [bench.websocket, bench.websocket_tls, bench.public, bench.endpoint].map(|address| address.port());
        let (gate, mut gates) = match Gate::open(&ports, QUEUE.fetch_add(1, Ordering::Relaxed), 1) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("not run: freezing connections needs CAP_NET_ADMIN");
            }
            opened => opened.unwrap(),
        };
        let shard = &mut bench.shards[0];
        let gate_of_shard = gates.pop().unwrap();
        gate_of_shard.attach(|| ());
        let hibernation = Hibernation { after: AFTER, gate: gate_of_shard };
        shard.hibernator = Some(Hibernator::new(hibernation, shard.now.mono));
        let mut asleep = Asleep { bench, _gate: gate };
        test(&mut asleep.bench);
    });
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    fn state(&self, conn: ConnId) -> Option<State> {
        self.conns.get(conn).map(|entry| entry.state)
    }
}

impl Bench {
    fn frozen(&self) -> usize {
        self.shards[0].hibernator.as_ref().unwrap().frozen() as usize
    }

    fn until_frozen(&mut self, count: usize) {
        self.until("sessions are frozen", |bench| bench.frozen() == count);
    }

    /// The session that was opened as number `at`.
    fn session(&self, at: usize) -> ConnId {
        self.shards[0].machine.opened[at]
    }
}

#[test]
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
    });
}

#[test]
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
        let _ = EmissionId(0);
    });
}

#[test]
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
fn connections_of_app_servers_are_never_frozen() {
    hibernating(PlaneLimits::new(1_000), |bench| {
        let mut sender = super::bench::Client::connect(bench.endpoint);
        sender.say(b"E\n");
        bench.until("an answer", |_| sender.heard() == b"pong\n");
        let _idle = bench.websocket();
        bench.until_frozen(1);
        bench.until("more searches", |bench| bench.shards[0].hibernator.as_ref().unwrap().searches_for_test() > 20);
        assert_eq!(bench.shards[0].stats.freezes, 1);
    });
}
