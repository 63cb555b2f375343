//! Sessions that one process leaves frozen, and the next one goes on with.
//!
//! These tests need CAP_NET_ADMIN; without it they say so and pass.

use std::path::PathBuf;

use hibernate::{RecordDir, freeze, set_live};

use crate::ports::Records;
use crate::reactor::PlaneLimits;
use crate::ring::WEBSOCKET_BUFFERS;
use machine::{BroadcastVersion, CloseReason, Effect};

use super::bench::{Bench, Client, run};
use super::hibernation::{gate, ports, queue};
use super::toy_tls::ToyClient;

/// A directory of records, removed in the end.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        Home(format!("/dev/shm/murre-takeover-{}-{}", std::process::id(), queue()).into())
    }

    /// Files of a process, and the records of earlier ones.
    fn open(&self) -> Records {
        let dir = RecordDir::open(&self.0, [1; 16]).unwrap();
        let mut earlier = Vec::new();
        assert_eq!(dir.read(|record| earlier.push(record), |path| panic!("{path:?}")).unwrap(), 0);
        let files = dir.shard(0).unwrap();
        dir.remove_earlier().unwrap();
        Records { files: Some(files), earlier }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sessions of a process that has ended.
struct Left {
    home: Home,
    ports: [u16; 4],
    queue: u16,
    plain: Vec<Client>,
    over_tls: ToyClient,
}

/// Runs a process until its sessions are frozen, and ends it: killed, or in order.
fn first_process(killed: bool) -> Option<Left> {
    let (home, mut bench, queue) = (Home::new(), Bench::one(), queue());
    let ports = ports(&bench);
    let (gate, shard) = gate(&ports, queue, true)?;
    bench.hibernate(shard, Some(home.open()));
    bench.shards[0].machine.broadcasts = vec![BroadcastVersion { id: "a".into(), version: "1".into() }];
    let plain: Vec<_> = (0..3).map(|_| bench.websocket()).collect();
    let mut over_tls = bench.tls_websocket();
    over_tls.say(b"E\n");
    bench.until("an answer", |_| over_tls.heard() == b"pong\n");
    over_tls.forget();
    if killed {
        bench.until_frozen(4);
    } else {
        let now = bench.shards[0].now.mono;
        bench.shards[0].accepting.end();
        assert!(bench.shards[0].hibernator.as_mut().unwrap().end(now));
        bench.until("all are frozen", |bench| bench.shards[0].control.is_hibernated());
        assert_eq!(bench.frozen(), 4);
        // The machine closes what it has: nothing of that reaches a peer.
        let sessions = bench.shards[0].machine.opened.clone();
        let closes = sessions.into_iter().map(|conn| Effect::Close(conn, CloseReason::Draining));
        bench.shards[0].machine.orders.extend(closes);
        bench.until("all are left", |bench| bench.shards[0].stats.left_to_next == 4);
    }
    drop(bench);
    drop(gate);
    Some(Left { home, ports, queue, plain, over_tls })
}

#[test]
fn sessions_go_on_in_the_next_process() {
    for killed in [true, false] {
        run(move || {
            let Some(mut left) = first_process(killed) else { return };
            // Between the processes the kernel drops it, and the peer sends it again.
            left.plain[0].say(b"E\n");
            let mut bench = Bench::one();
            let (second, shard) = gate(&left.ports, left.queue, true).unwrap();
            bench.hibernate(shard, Some(left.home.open()));
            assert_eq!((bench.shards[0].stats.takeovers, bench.frozen()), (4, 4));
            let news = b"pong\n";
            bench.until("the news, and an answer", |_| left.plain[0].heard() == b"pong\npong\n");
            bench.until("the news", |_| left.over_tls.heard() == news);
            assert_eq!(bench.log(0).iter().filter(|line| *line == "hello").count(), 4);
            left.over_tls.forget();
            left.over_tls.say(b"E\n");
            bench.until("an answer", |_| left.over_tls.heard() == b"pong\n");
            bench.until_frozen(4);
            // Its own sessions, and one that is new.
            let _fresh = bench.websocket();
            bench.until_frozen(5);
            let sessions = bench.shards[0].machine.opened.clone();
            for conn in &sessions {
                bench.shards[0].machine.send_notes(*conn, 2..3);
            }
            left.plain.iter_mut().for_each(Client::forget);
            for client in &mut left.plain {
                bench.until("a notification", |_| client.lines() > 0);
            }
            drop(bench);
            second.remove_rules();
        });
    }
}

#[test]
fn a_session_that_a_peer_has_left_between_two_processes_ends() {
    run(|| {
        let Some(mut left) = first_process(true) else { return };
        left.plain.pop().unwrap().finish();
        let mut bench = Bench::one();
        let (second, shard) = gate(&left.ports, left.queue, true).unwrap();
        bench.hibernate(shard, Some(left.home.open()));
        bench.until("its end", |bench| bench.log(0).contains(&"gone PeerClosed".to_owned()));
        bench.until("it is closed", |bench| bench.shards[0].conns.open_count() == 3);
        bench.until_frozen(3);
        drop(bench);
        second.remove_rules();
        let again = left.home.open();
        assert_eq!(again.earlier.len(), 3, "its record is gone");
    });
}

#[test]
fn a_record_of_a_user_who_has_come_back_is_dropped() {
    run(|| {
        let Some(left) = first_process(true) else { return };
        let mut bench = Bench::one();
        let (second, shard) = gate(&left.ports, left.queue, true).unwrap();
        let records = left.home.open();
        let uaid = crate::session_record::uaid(&records.earlier[0].session).unwrap();
        bench.shards[0].machine.users.push(uaid);
        bench.hibernate(shard, Some(records));
        bench.until("hellos of the others", |bench| bench.log(0).iter().filter(|line| *line == "hello").count() == 3);
        bench.until("it is closed", |bench| bench.shards[0].conns.open_count() == 3);
        assert_eq!(bench.shards[0].stats.takeovers_dropped, 1);
        drop(bench);
        second.remove_rules();
    });
}

#[test]
fn records_without_a_place_are_dropped() {
    run(|| {
        let Some(left) = first_process(true) else { return };
        let mut bench = Bench::new(1, PlaneLimits::new(2));
        let (second, shard) = gate(&left.ports, left.queue, true).unwrap();
        bench.hibernate(shard, Some(left.home.open()));
        let stats = &bench.shards[0].stats;
        assert_eq!((stats.takeovers, stats.takeovers_dropped), (2, 2));
        drop(bench);
        second.remove_rules();
    });
}

/// Its frame would go with the process.
#[test]
fn a_process_ends_when_no_frame_waits_for_a_thaw() {
    run(|| {
        let (home, mut bench) = (Home::new(), Bench::one());
        let Some((_gate, shard)) = gate(&ports(&bench), queue(), false) else { return };
        bench.hibernate(shard, Some(home.open()));
        let mut client = bench.websocket();
        bench.until_frozen(1);
        let conn = bench.session(0);
        let record = *bench.shards[0].hibernator.as_ref().unwrap().record_for_test(conn.slot);
        let obstacle = record.thaw(WEBSOCKET_BUFFERS).unwrap();
        bench.shards[0].machine.send_notes(conn, 1..2);
        bench.until("a failure", |bench| bench.shards[0].stats.thaw_failures == 1);
        let now = bench.shards[0].now.mono;
        bench.shards[0].accepting.end();
        assert!(bench.shards[0].hibernator.as_mut().unwrap().end(now));
        bench.until("three failures", |bench| bench.shards[0].stats.thaw_failures == 3);
        assert!(!bench.shards[0].control.is_hibernated(), "a notification waits");
        set_live(&obstacle, false).unwrap();
        freeze(obstacle, record.tuple()).unwrap();
        bench.until("all are frozen", |bench| bench.shards[0].control.is_hibernated());
        assert_eq!((client.lines(), bench.frozen()), (1, 1));
        // Before the gate.
        drop(bench);
    });
}
