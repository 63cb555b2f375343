//! Sessions that one process leaves frozen, and the next one goes on with.
//!
//! These tests need CAP_NET_ADMIN and Linux 6.9, and fail without them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hibernate::{HeldDir, RecordDir, RecordFile, freeze, set_live};

use crate::ports::Records;
use crate::reactor::{ControlMessage, PlaneLimits};
use crate::ring::{PlaneKind, WEBSOCKET_BUFFERS};
use crate::tls::Stage;
use machine::{BroadcastVersion, CloseReason, Effect};

use super::bench::{Bench, Client, run_on};
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
        self.open_on(|file| Box::new(file))
    }

    fn open_on(&self, wrap: impl Fn(File) -> Box<dyn RecordFile>) -> Records {
        let dir = RecordDir::open(HeldDir::make(&self.0).unwrap(), [1; 16]).unwrap();
        let mut earlier = Vec::new();
        assert_eq!(dir.read(|record| earlier.push(record), |path| panic!("{path:?}")).unwrap(), 0);
        let files = dir.shard_on(0, wrap).unwrap();
        dir.remove_earlier().unwrap();
        Records { files: Some(files), earlier }
    }
}

impl Home {
    /// Bytes of all records.
    fn records(&self) -> Vec<u8> {
        let files = std::fs::read_dir(&self.0).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        files.flat_map(|bytes| bytes[64..].to_vec()).filter(|byte| *byte != 0).collect()
    }
}

/// A file that takes no bytes while it is told so.
#[derive(Debug)]
struct Stubborn(File, Arc<AtomicBool>);

impl RecordFile for Stubborn {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.1.load(Ordering::Relaxed) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            self.0.write_all_at(bytes, at)
        }
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
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
fn first_process(killed: bool) -> Left {
    let (home, mut bench, queue) = (Home::new(), Bench::one(), queue());
    let ports = ports(&bench);
    let (gate, shard) = gate(&ports, queue, true);
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
    Left { home, ports, queue, plain, over_tls }
}

#[test]
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn sessions_go_on_in_the_next_process() {
    for killed in [true, false] {
        run_on(PlaneKind::Rings, move || {
            let mut left = first_process(killed);
            // Between the processes the kernel drops it, and the peer sends it again.
            left.plain[0].say(b"E\n");
            let mut bench = Bench::one();
            let (second, shard) = gate(&left.ports, left.queue, true);
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
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn a_session_that_a_peer_has_left_between_two_processes_ends() {
    run_on(PlaneKind::Rings, || {
        let mut left = first_process(true);
        left.plain.pop().unwrap().finish();
        let mut bench = Bench::one();
        let (second, shard) = gate(&left.ports, left.queue, true);
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
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn a_record_of_a_user_who_has_come_back_is_dropped() {
    run_on(PlaneKind::Rings, || {
        let left = first_process(true);
        let mut bench = Bench::one();
        let (second, shard) = gate(&left.ports, left.queue, true);
        let records = left.home.open();
        let uaid = crate::session_record::uaid(&records.earlier[0].session.0).unwrap();
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
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn records_without_a_place_are_dropped() {
    run_on(PlaneKind::Rings, || {
        let left = first_process(true);
        let mut bench = Bench::new(1, PlaneLimits::new(2));
        let (second, shard) = gate(&left.ports, left.queue, true);
        bench.hibernate(shard, Some(left.home.open()));
        let stats = &bench.shards[0].stats;
        assert_eq!((stats.takeovers, stats.takeovers_dropped), (2, 2));
        drop(bench);
        second.remove_rules();
    });
}

/// Its frame would go with the process.
#[test]
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn a_process_ends_when_no_frame_waits_for_a_thaw() {
    run_on(PlaneKind::Rings, || {
        let (home, mut bench) = (Home::new(), Bench::one());
        let (_gate, shard) = gate(&ports(&bench), queue(), false);
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
        bench.until("the frame has come, and all are frozen", |bench| {
            bench.shards[0].hibernator.as_mut().unwrap().search_on_for_test();
            client.lines() == 1 && bench.frozen() == 1
        });
        bench.until("the end", |bench| bench.shards[0].control.is_hibernated());
        assert_eq!((client.lines(), bench.frozen()), (1, 1));
        // Before the gate.
        drop(bench);
    });
}

/// A second use of a sequence number would break the encryption: the keys are in the record or in the shard.
#[test]
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn a_session_whose_record_cannot_be_erased_stays_frozen_without_its_keys() {
    run_on(PlaneKind::Rings, || {
        let (home, mut bench) = (Home::new(), Bench::one());
        let (_gate, shard) = gate(&ports(&bench), queue(), false);
        let is_stubborn = Arc::new(AtomicBool::new(true));
        bench.hibernate(shard, Some(home.open_on(|file| Box::new(Stubborn(file, Arc::clone(&is_stubborn))))));
        let mut client = bench.tls_websocket();
        let conn = bench.session(0);
        // A record that cannot be written leaves its session live, with its keys.
        bench.until("a freeze is refused", |bench| bench.shards[0].stats.freezes_refused > 0);
        client.say(b"E\n");
        bench.until("an answer", |_| client.heard() == b"pong\n");
        client.forget();
        is_stubborn.store(false, Ordering::Relaxed);
        bench.until_frozen(1);
        assert_eq!(bench.shards[0].tls.stage(conn.slot), Stage::Failed, "the shard has no keys");
        is_stubborn.store(true, Ordering::Relaxed);
        bench.shards[0].machine.send_notes(conn, 4..5);
        client.say(b"E\n");
        bench.until("thaws are tried", |bench| bench.shards[0].stats.thaw_failures > 2);
        assert_eq!((bench.frozen(), client.heard()), (1, &b""[..]));
        assert_eq!(bench.shards[0].tls.stage(conn.slot), Stage::Failed, "nothing can be sealed");
        assert!(!home.records().is_empty());
        is_stubborn.store(false, Ordering::Relaxed);
        bench.until("both", |_| client.heard().ends_with(b"pong\n") && client.heard().starts_with(b"note 4 "));
        bench.until_frozen(1);
        // A peer that leaves takes its record with it.
        client.socket.finish();
        bench.until("the end", |bench| bench.shards[0].conns.open_count() == 0);
        assert!(home.records().is_empty());
        drop(bench);
    });
}

/// The end of the drain is a word of the machine: what is at storage would be lost.
#[test]
#[ignore = "needs CAP_NET_ADMIN and Linux 6.9: bench/check test"]
fn a_process_that_leaves_all_its_sessions_ends_when_its_machine_owes_nothing() {
    run_on(PlaneKind::Rings, || {
        let (home, mut bench) = (Home::new(), Bench::one());
        let (_gate, shard) = gate(&ports(&bench), queue(), false);
        bench.hibernate(shard, Some(home.open()));
        let mut clients: Vec<_> = (0..3).map(|_| bench.websocket()).collect();
        bench.until_frozen(3);
        bench.shards[0].machine.owes = true;
        let control = Arc::clone(&bench.shards[0].control);
        control.send(ControlMessage::Hibernate);
        bench.until("all are frozen", |_| control.is_hibernated());
        bench.shards[0].machine.owes = false;
        // It looks again and again until it ends, so that it is never quiet.
        bench.until_searched(5);
        assert!(!control.is_drained(), "the machine may accept more");
        bench.shards[0].machine.owes = true;
        control.send(ControlMessage::Drain { rate: 1 });
        bench.until_searched(5);
        assert!(!control.is_drained(), "something is at storage");
        bench.shards[0].machine.owes = false;
        bench.until("the end", |_| control.is_drained());
        assert!(clients.iter_mut().all(|client| client.heard().is_empty() && client.end.is_none()));
        drop(bench);
    });
}
