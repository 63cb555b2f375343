//! The embedded store beyond the laws: refusals, bounds, reclaiming and restarts.

mod bridges;
mod channels;
mod crash;
mod damage;
mod disk;
mod replay;
mod salvage;
mod shares;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;
use machine::ids::{Clock, Stamp};
use machine::message::Message;
use machine::simplepush::Mode;
use machine::time::UnixSeconds;
use machine::{RowKey, StoreError, StoreOp, StoreReply};

use super::database::Database;
use super::group::cleanup::CleanupOp;
use super::mail::CommitterMail;
use super::options::CommitProbe;
use super::store_status::StoreStatus;
use super::*;
use crate::IDLE_SECONDS_MAX;
use crate::conformance::{BlockingStore, NOW, chid, contact, message, register, topical, uaid, update};
use crate::testing::patient;

pub(super) fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, patient()).expect("it opens")
}

pub(super) fn port(store: &Embedded) -> BlockingStore {
    BlockingStore::new(store.port(Arc::new(|| {})))
}

fn refusal(dir: &Path) -> String {
    Embedded::open(dir, patient()).err().map(|fault| fault.to_string()).expect("it is refused")
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_written_is_there_after_a_reopen() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    assert_eq!(store.clock_floor(), Clock(0));
    let mut first = port(&store);
    first.register(1, 2);
    first.publish(message(1, 2, 70));
    first.publish(topical(1, 2, 90, "tide"));
    first.done(StoreOp::Settle { rows: vec![RowKey::of(&message(1, 2, 70))], low_water: None, durable: false });
    first.done(StoreOp::Touch { uaid: uaid(1), seen: UnixSeconds(NOW.0 + 3) });
    store.close();
    assert!(matches!(first.ask(register(1, 3, 1)), Err(StoreError::Transient)), "a closed store refuses");
    let store = open(dir.path());
    assert_eq!(store.clock_floor(), Clock(90));
    let mut second = port(&store);
    assert_eq!((second.clocks(uaid(1)), second.topic_clocks(uaid(1))), (vec![], vec![90]));
    assert_eq!(second.user(uaid(1)).expect("it is known").seen, UnixSeconds(NOW.0 + 3));
}

#[test]
fn versions_and_how_to_wake_are_there_after_a_reopen() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut first = port(&store);
    first.register(1, 2);
    first.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::Simple, "ip=192.0.2.1"), durable: true });
    first.publish(update(1, 2, 70, 5));
    store.close();
    let store = open(dir.path());
    let mut second = port(&store);
    second.publish(update(1, 2, 80, 4));
    assert_eq!(second.topic_clocks(uaid(1)), [70], "the version in the row still counts");
    let user = second.user(uaid(1)).expect("it is known");
    assert_eq!((user.contact, user.channels), (*contact(Mode::Simple, "ip=192.0.2.1"), vec![chid(2)]));
}

#[test]
fn a_directory_in_use_is_refused_with_its_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let said = refusal(dir.path());
    assert!(said.contains(&dir.path().display().to_string()) && said.contains("in use by another"), "{said}");
    drop(store);
    open(dir.path());
}

#[test]
fn what_is_not_a_store_of_ours_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("diary.txt"), b"dear").expect("writable");
    assert!(refusal(dir.path()).contains("not a murre store"));
    let file = dir.path().join("diary.txt");
    assert!(refusal(&file).contains("cannot create the store directory"));
}

#[test]
fn a_full_store_refuses_rows_and_still_deletes() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut before = port(&store);
    before.register(1, 2);
    before.publish(message(1, 2, 10));
    store.close();
    let options = Options { bytes_max: 1, ..patient() };
    let store = Embedded::open(dir.path(), options).expect("it opens");
    let mut full = port(&store);
    let publish = |clock| StoreOp::Publish { message: Arc::new(message(1, 2, clock)), checked: false };
    assert!(matches!(full.ask(publish(11)), Err(StoreError::Full)));
    // Accepted messages are saved, and new users are let in.
    full.done(register(1, 3, 1));
    full.done(StoreOp::Save { messages: vec![Arc::new(message(1, 2, 12))] });
    full.done(StoreOp::Settle { rows: vec![RowKey::of(&message(1, 2, 12))], low_water: None, durable: true });
    let unknown = StoreOp::Publish { message: Arc::new(message(1, 9, 12)), checked: false };
    assert!(matches!(full.ask(unknown), Ok(StoreReply::NoSubscription)));
    let fleeting = StoreOp::Publish { message: Arc::new(Message { ttl: 0, ..message(1, 2, 12) }), checked: false };
    assert!(matches!(full.ask(fleeting), Ok(StoreReply::Done)));
    full.done(StoreOp::Settle { rows: vec![RowKey::of(&message(1, 2, 10))], low_water: None, durable: true });
    full.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(3) });
    assert!(full.clocks(uaid(1)).is_empty());
    // Messages of a ledger were accepted already.
    store.close();
    let store = open(dir.path());
    port(&store).register(1, 2);
    store.close();
    let store = Embedded::open(dir.path(), Options { bytes_max: 1, ..patient() }).expect("it opens");
    store.save_all(&[Arc::new(message(1, 2, 44))]).expect("it is saved");
    assert_eq!(port(&store).clocks(uaid(1)), [44]);
}

#[test]
fn bytes_written_count_against_the_bound_before_the_disk_is_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    // An empty journal has 64 MiB.
    let options = Options { bytes_max: (64 << 20) + 100_000, ..patient() };
    let store = Embedded::open(dir.path(), options).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    let big = |clock| Message { payload: vec![7; 8_000].into(), ..message(1, 2, clock) };
    let answers: Vec<_> =
        (1..40).map(|n| port.ask(StoreOp::Publish { message: Arc::new(big(n)), checked: false })).collect();
    let refused = answers.iter().filter(|a| matches!(a, Err(StoreError::Full))).count();
    assert!(refused > 0 && refused < 39, "{refused} of 39 were refused");
}

#[test]
fn deletes_give_their_space_back_in_a_full_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut before = port(&store);
    before.register(1, 2);
    let big = |clock| Message { payload: vec![7; 8_000].into(), ..message(1, 2, clock) };
    (1..=20).for_each(|n| before.publish(big(n)));
    // Into a table, where only compaction removes them.
    let db = store.db.clone().expect("it is open");
    db.messages.rotate_memtable_and_wait().expect("writable");
    drop(db);
    store.close();
    let options = Options { bytes_max: 1, compact_every: Duration::from_millis(300), ..patient() };
    let store = Embedded::open(dir.path(), options).expect("it opens");
    let mut full = port(&store);
    let db = store.db.clone().expect("it is open");
    assert!(db.messages.disk_space() > 150_000);
    let rows = (1..=20).map(|n| RowKey::of(&big(n))).collect();
    full.done(StoreOp::Settle { rows, low_water: None, durable: true });
    wait_until("the table is compacted", || db.messages.disk_space() < 20_000);
}

#[test]
fn relaxed_writes_are_synced_within_a_second_or_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    let board = store.board();
    let syncs = || board.read().find(|(m, _)| m.name == "store_syncs").map_or(0, |(_, v)| v);
    let begun = Instant::now();
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    let (synced, took) = (syncs(), begun.elapsed());
    // On a busy host the second may be over.
    assert!(synced == 0 || took > Duration::from_millis(500), "nothing durable was asked for");
    wait_until("it is synced", || syncs() == 1);
}

/// A store whose commits wait while `hold` is set.
fn held(dir: &Path, hold: &Arc<AtomicBool>) -> Embedded {
    let hold = hold.clone();
    let probe: CommitProbe = Arc::new(move || {
        wait_until("the commit is let go", || !hold.load(Ordering::Relaxed));
        Ok(())
    });
    let options = Options { stall_after: Duration::from_secs(3), before_commit: Some(probe), ..patient() };
    Embedded::open(dir, options).expect("it opens")
}

#[test]
fn a_stalled_write_opens_the_circuit_until_it_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let hold = Arc::new(AtomicBool::new(false));
    let store = held(dir.path(), &hold);
    let mut port = port(&store);
    port.register(1, 2);
    port.register(2, 2);
    hold.store(true, Ordering::Relaxed);
    let stuck = port.submit(StoreOp::Publish { message: Arc::new(message(1, 2, 10)), checked: false });
    wait_until("the circuit opens", || store.store_status.circuit_open.load(Ordering::Relaxed));
    let refused = StoreOp::Publish { message: Arc::new(message(2, 2, 11)), checked: false };
    assert!(matches!(port.ask(refused.clone()), Err(StoreError::Transient)));
    assert!(port.user(uaid(2)).is_some(), "reads of others go on");
    let behind = port.ask(StoreOp::LoadUser { uaid: uaid(1) });
    assert!(matches!(behind, Err(StoreError::Transient)), "a read behind the stalled write does not wait");
    hold.store(false, Ordering::Relaxed);
    let (ticket, answer) = port.collect();
    assert!(ticket == stuck && matches!(answer, Ok(StoreReply::Done)));
    port.done(refused);
    assert_eq!((port.clocks(uaid(1)), port.clocks(uaid(2))), (vec![10], vec![11]));
}

#[test]
fn a_failed_sync_is_fatal_and_promises_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let failing = Arc::new(AtomicBool::new(false));
    let (told, fails) = (said.clone(), failing.clone());
    let options = Options {
        fatal: Arc::new(move |why| told.lock().expect("nobody panics").push(why.to_string())),
        before_commit: Some(Arc::new(move || {
            let failed = std::io::Error::from_raw_os_error(5);
            if fails.load(Ordering::Relaxed) { Err(fjall::Error::Io(failed)) } else { Ok(()) }
        })),
        ..patient()
    };
    let store = Embedded::open(dir.path(), options).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    failing.store(true, Ordering::Relaxed);
    let publish = StoreOp::Publish { message: Arc::new(message(1, 2, 10)), checked: false };
    assert!(matches!(port.ask(publish.clone()), Err(StoreError::Transient)));
    failing.store(false, Ordering::Relaxed);
    assert!(matches!(port.ask(publish), Err(StoreError::Transient)), "a failed store stays failed");
    let said = said.lock().expect("nobody panics");
    assert!(said.len() == 1 && said[0].contains("storage cannot write any more"), "{said:?}");
}

#[test]
fn the_walk_reclaims_expired_rows_settled_rows_and_idle_users() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options { sweep: true, ..patient() }).expect("it opens");
    let mut port = port(&store);
    for user in [1, 2] {
        port.register(user, 2);
        port.publish(message(user, 2, 10));
        port.publish(topical(user, 2, 20, "tide"));
    }
    let brief = |clock| Message { ttl: 10, ..message(1, 2, clock) };
    for n in 0..3_000 {
        port.submit(StoreOp::Publish { message: Arc::new(brief(100 + n)), checked: false });
    }
    (0..3_000).for_each(|_| drop(port.collect()));
    port.publish(Message { ttl: 10, ..topical(1, 2, 30, "moon") });
    let db = store.db.clone().expect("it is open");
    let rows = || (db.messages.len().expect("readable"), db.topics.len().expect("readable"));
    assert_eq!(rows(), (3_002, 3));
    // The keeper's own walk uses the host's clock, which is before NOW: nothing has expired for it.
    let mut walk = maintenance::SweepCursors::default();
    let mut ticks = 0;
    wait_until("expired rows are reclaimed", || {
        maintenance::sweep_steps(&db, &mut walk, UnixSeconds(NOW.0 + 10), &store.committer, &store.store_status);
        ticks += 1;
        rows() == (2, 2)
    });
    port.done(StoreOp::Touch { uaid: uaid(2), seen: UnixSeconds(NOW.0 + 50) });
    let later = UnixSeconds(NOW.0 + IDLE_SECONDS_MAX);
    wait_until("an idle user is reclaimed", || {
        maintenance::sweep_steps(&db, &mut walk, later, &store.committer, &store.store_status);
        port.user(uaid(1)).is_none()
    });
    assert!(port.user(uaid(2)).is_some());
    wait_until("its rows went with it", || rows().0 <= 1 && rows().1 <= 1);
}

#[test]
fn the_mark_is_cleared_when_the_last_row_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    let marked = |port: &mut BlockingStore| port.user(uaid(1)).expect("it is known").may_have_messages;
    assert!(!marked(&mut port));
    port.publish(message(1, 2, 10));
    port.publish(topical(1, 2, 11, "tide"));
    assert!(marked(&mut port));
    let settle = |m: &Message| StoreOp::Settle { rows: vec![RowKey::of(m)], low_water: None, durable: true };
    port.done(settle(&message(1, 2, 10)));
    assert!(port.clocks(uaid(1)).is_empty());
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    assert!(marked(&mut port), "a topic row is left");
    port.done(settle(&topical(1, 2, 11, "tide")));
    assert!(port.clocks(uaid(1)).is_empty());
    wait_until("the mark is cleared", || !marked(&mut port));
    port.publish(message(1, 2, 12));
    assert!(marked(&mut port));
}

#[test]
fn expired_rows_that_a_read_skipped_are_reclaimed() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    for n in 0..50 {
        port.publish(Message { ttl: 10, ..message(1, 2, 100 + n) });
    }
    let db = store.db.clone().expect("it is open");
    let read = StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: 10, now: UnixSeconds(NOW.0 + 10) };
    assert!(port.page(read).messages.is_empty());
    wait_until("they are reclaimed", || db.messages.is_empty().expect("readable"));
}

#[test]
fn a_backup_is_a_store_as_it_was() {
    let (dir, dest) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let store = open(dir.path());
    let mut hand_ = port(&store);
    hand_.register(1, 2);
    (1..=2_500).for_each(|n| {
        hand_.submit(StoreOp::Publish { message: Arc::new(message(1, 2, n)), checked: false });
    });
    (1..=2_500).for_each(|_| drop(hand_.collect()));
    hand_.publish(topical(1, 2, 9_000, "tide"));
    let copied = store.backup(&dest.path().join("copy")).expect("it is copied");
    assert_eq!((copied.users, copied.messages, copied.topics), (1, 2_500, 1));
    assert!(copied.is_whole());
    hand_.publish(message(1, 2, 9_999));
    let again = store.backup(&dest.path().join("copy")).expect_err("it is not empty");
    assert!(again.to_string().contains("not empty"));
    let copy = open(&dest.path().join("copy"));
    assert_eq!(copy.clock_floor(), Clock(9_000));
    let mut of_copy = port(&copy);
    assert_eq!(of_copy.clocks(uaid(1)), (1..=2_500).collect::<Vec<_>>());
    assert_eq!(of_copy.topic_clocks(uaid(1)), [9_000]);
}

#[test]
fn the_board_shows_what_was_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    (1..=10).for_each(|n| port.publish(message(1, 2, n)));
    assert!(port.user(uaid(1)).is_some());
    let value = |name: &str| store.board().read().find(|(m, _)| m.name == name).map(|(_, v)| v);
    wait_until("the board is refreshed", || value("store_publishes") == Some(10) && value("store_reads") == Some(1));
    assert_eq!((value("store_registers"), value("store_queue")), (Some(1), Some(0)));
    assert!(value("store_disk_bytes") >= Some(64 << 20), "an empty journal has 64 MiB");
    assert!(value("store_buffer_bytes") >= Some(1_000), "ten messages wait in write buffers");
    assert!(value("store_cache_bytes").is_some_and(|bytes| bytes <= 32 << 20), "never more than store.cache");
    assert!(value("store_syncs") >= Some(1) && value("store_bytes_written") >= Some(1_000));
}
