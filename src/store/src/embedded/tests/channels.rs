//! Channels as rows: the writes of a register, directories of other versions, and rows of channels and users that are
//! no more.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use machine::limits;

use super::*;
use crate::embedded::group::removal::REMOVAL_ROWS_MAX;

/// A store that counts its commits, and whose background removes nothing unless it is told to.
fn counted(dir: &Path) -> (Embedded, Arc<AtomicU64>) {
    let commits = Arc::new(AtomicU64::new(0));
    let count = commits.clone();
    let probe: CommitProbe = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let options = Options { before_commit: Some(probe), sweep: false, ..patient() };
    (Embedded::open(dir, options).expect("it opens"), commits)
}

fn quiet(dir: &Path) -> Embedded {
    Embedded::open(dir, Options { sweep: false, ..patient() }).expect("it opens")
}

fn board(store: &Embedded, name: &str) -> u64 {
    store.board().read().find(|(meaning, _)| meaning.name == name).map_or(0, |(_, value)| value)
}

/// Publishes messages of these clocks and waits for all of them; returns the number of refused ones.
fn publish_all(port: &mut BlockingStore, user: u8, channel: u8, clocks: std::ops::Range<u64>) -> usize {
    let publish = |clock| StoreOp::Publish { message: Arc::new(message(user, channel, clock)), checked: false };
    let answers = port.ask_all(clocks.map(publish).collect());
    answers.iter().filter(|answer| !matches!(answer, Ok(StoreReply::Done))).count()
}

#[test]
fn a_repeated_register_writes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, commits) = counted(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    port.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::Simple, "here"), durable: true });
    // The change of contact waits for a sync until a durable write comes by.
    port.register(1, 3);
    let before = commits.load(Ordering::Relaxed);
    for at in 0..100 {
        port.done(register(1, 2, 10 + at));
    }
    assert_eq!(commits.load(Ordering::Relaxed), before, "nothing was committed for what is there");
    let again = |wake: &str| match register(1, 2, 7) {
        StoreOp::Register { uaid, chid, key, at, seen, presence, .. } => StoreOp::Register {
            uaid,
            chid,
            key,
            at,
            seen,
            contact: Some(contact(Mode::Simple, wake)),
            presence,
            maker: None,
        },
        other => panic!("{other:?}"),
    };
    port.done(again("here"));
    assert_eq!(commits.load(Ordering::Relaxed), before);
    port.done(again("elsewhere"));
    assert_eq!(commits.load(Ordering::Relaxed), before + 1, "another contact is a change");
    assert_eq!(port.user(uaid(1)).expect("it is known").contact, *contact(Mode::Simple, "elsewhere"));
    wait_until("the board is refreshed", || board(&store, "store_registers_repeated") == 101);
    assert_eq!(board(&store, "store_registers"), 3);
}

#[test]
fn a_register_writes_its_own_channel_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = quiet(dir.path());
    let mut port = port(&store);
    let register = |n: u64| StoreOp::Register {
        uaid: uaid(1),
        chid: machine::ids::Chid(u128::from(n).to_be_bytes()),
        key: None,
        at: Clock(n),
        seen: NOW,
        contact: None,
        presence: None,
        maker: None,
    };
    // One group each: the record is written with every one of them.
    (1..=400).for_each(|n| port.done(register(n)));
    wait_until("the board is refreshed", || board(&store, "store_registers") == 400);
    let bytes = board(&store, "store_bytes_written");
    assert!(bytes < 400 * 200, "{bytes} bytes for 400 registers");
    assert_eq!(port.user(uaid(1)).expect("it is known").channels.len(), 400);
}

#[test]
fn a_user_of_few_channels_is_in_one_row() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = quiet(dir.path());
    let mut port = port(&store);
    for channel in [5, 2, 8, 3, 1, 7, 4, 6] {
        port.register(1, channel);
    }
    let db = store.db.clone().expect("it is open");
    // Bytes that no version wrote: a read of one of these rows fails.
    for channel in 1..=8 {
        db.channels.insert(rows::channel_key(uaid(1), chid(channel)), b"no row").expect("writable");
    }
    let ids = |channels: std::ops::RangeInclusive<u8>| channels.map(chid).collect::<Vec<_>>();
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, ids(1..=8));
    port.publish(message(1, 8, 10));
    port.register(1, 4);
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(8), at: Clock(20) });
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, ids(1..=7));
    assert!(port.clocks(uaid(1)).is_empty(), "its row went with the channel");
}

#[test]
fn channels_come_and_go_in_any_number() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut known = std::collections::BTreeSet::new();
    let mut n = 1u32;
    for _ in 0..3 {
        let store = quiet(dir.path());
        let mut port = port(&store);
        // Rounds that grow to a dozen channels and shrink again.
        for round in 0..240u32 {
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let channel = (n >> 16) as u8 % 12 + 1;
            if (n >> 8) % 240 < round {
                known.remove(&channel);
                port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(channel), at: Clock(1) });
            } else {
                known.insert(channel);
                port.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::WebPush, "far"), durable: true });
                port.register(1, channel);
            }
            let channels: Vec<_> = known.iter().map(|channel| chid(*channel)).collect();
            assert_eq!(port.user(uaid(1)).expect("it is known").channels, channels);
        }
        let publish = StoreOp::Publish { message: Arc::new(message(1, 3, 10)), checked: false };
        let answer = port.ask(publish).expect("there is room");
        assert_eq!(matches!(answer, StoreReply::Done), known.contains(&3));
        store.close();
    }
}

/// Each file of a directory with its bytes, but for the lock.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path()) {
        match entry.is_dir() {
            true => found.extend(files(&entry)),
            false if entry.ends_with("LOCK") => {}
            false => found.push((entry.clone(), std::fs::read(&entry).expect("readable"))),
        }
    }
    found.sort();
    found
}

/// A later version, and one from before the first release.
#[test]
fn a_directory_of_another_version_is_refused_and_left_as_it_is() {
    let (dir, dest) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    quiet(dir.path()).close();
    for format in ["murre store, format 2", "murre embedded store, format 5"] {
        std::fs::write(dir.path().join("FORMAT"), format!("{format}\n")).expect("writable");
        let before = files(dir.path());
        let opened = Embedded::open(dir.path(), patient()).err().expect("it is refused").to_string();
        let salvaged =
            salvage(dir.path(), &dest.path().join("new"), &mut |_| ()).expect_err("it is refused").to_string();
        for said in [opened, salvaged] {
            let wanted = format!("of another format ({format}): run the version of murre that wrote it");
            assert!(said.contains(&wanted), "{said}");
        }
        assert!(files(dir.path()) == before && !dest.path().join("new").exists(), "{format}");
    }
}

/// Sends the committer one pass after the other until no user has dead rows.
fn remove_all(store: &Embedded) {
    let db = store.db.clone().expect("it is open");
    wait_until("the dead rows are removed", || {
        for row in db.meta.prefix(rows::REMOVAL_PREFIX) {
            let key = row.key().expect("readable");
            let uaid = rows::uaid_of(&key[rows::REMOVAL_PREFIX.len()..]).expect("it names a user");
            let _ = store.committer.send(CommitterMail::Upkeep(CleanupOp::DeadRows(uaid)));
        }
        db.meta.prefix(rows::REMOVAL_PREFIX).next().is_none()
    });
}

const MANY: u64 = 4 * REMOVAL_ROWS_MAX as u64;

#[test]
fn an_unregister_is_one_bounded_step_and_none_of_its_rows_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = quiet(dir.path());
    let mut hand_ = port(&store);
    hand_.register(1, 2);
    hand_.register(1, 3);
    assert_eq!(publish_all(&mut hand_, 1, 2, 100..100 + MANY), 0);
    hand_.publish(topical(1, 2, 50, "tide"));
    hand_.publish(message(1, 3, 5_000));
    let rows = |store: &Embedded| store.db.as_ref().expect("it is open").messages.len().expect("readable") as u64;
    hand_.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(6_000) });
    assert_eq!(rows(&store), MANY + 1 - REMOVAL_ROWS_MAX as u64, "one operation removes a bounded number of rows");
    assert_eq!((hand_.clocks(uaid(1)), hand_.topic_clocks(uaid(1))), (vec![5_000], vec![]));
    let dead = RowKey::of(&message(1, 2, 100 + MANY - 1));
    assert!(hand_.page(StoreOp::Read { row: dead, now: NOW }).messages.is_empty());

    // The same id again, before and after a restart: its new rows are there, also behind dead ones.
    hand_.register(1, 2);
    hand_.done(StoreOp::Save { messages: vec![Arc::new(topical(1, 2, 40, "tide"))] });
    hand_.publish(message(1, 2, 7_000));
    store.close();
    let store = quiet(dir.path());
    let mut hand_ = port(&store);
    hand_.publish(message(1, 2, 7_001));
    let now = |port: &mut BlockingStore| (port.clocks(uaid(1)), port.topic_clocks(uaid(1)));
    assert_eq!(now(&mut hand_), (vec![5_000, 7_000, 7_001], vec![40]));
    remove_all(&store);
    assert_eq!(rows(&store), 3);
    assert_eq!(now(&mut hand_), (vec![5_000, 7_000, 7_001], vec![40]));
}

#[test]
fn the_drop_of_a_user_is_one_bounded_step_and_none_of_its_rows_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = quiet(dir.path());
    let mut hand_ = port(&store);
    hand_.register(1, 2);
    hand_.register(1, 3);
    hand_.register(2, 2);
    hand_.publish(message(2, 2, 1));
    assert_eq!(publish_all(&mut hand_, 1, 2, 100..100 + MANY), 0);
    hand_.done(StoreOp::DropUser { uaid: uaid(1) });
    let rows = |store: &Embedded| store.db.as_ref().expect("it is open").messages.len().expect("readable") as u64;
    assert!(rows(&store) > MANY / 2, "one operation removes a bounded number of rows");
    assert_eq!(hand_.user(uaid(1)), None);
    store.close();
    let store = quiet(dir.path());
    let mut hand_ = port(&store);
    hand_.register(1, 2);
    assert_eq!(hand_.user(uaid(1)).expect("it is known").channels, [chid(2)], "the other channel went with the user");
    hand_.publish(message(1, 2, 7));
    assert_eq!(hand_.clocks(uaid(1)), [7]);
    remove_all(&store);
    assert_eq!((hand_.clocks(uaid(1)), hand_.clocks(uaid(2)), rows(&store)), (vec![7], vec![1], 2));
}

#[test]
fn the_keeper_removes_dead_rows_by_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut port = port(&store);
    port.register(1, 2);
    assert_eq!(publish_all(&mut port, 1, 2, 100..100 + MANY), 0);
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(6_000) });
    let db = store.db.clone().expect("it is open");
    wait_until("no row is left", || db.messages.is_empty().expect("readable"));
    wait_until("no user has dead rows", || db.meta.prefix(rows::REMOVAL_PREFIX).next().is_none());
    wait_until("the board is refreshed", || board(&store, "store_removed_rows") == MANY);
}

#[test]
fn a_user_with_many_dead_rows_does_not_delay_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = quiet(dir.path());
    let mut port = port(&store);
    for user in 1..=9 {
        port.register(user, 2);
        assert_eq!(publish_all(&mut port, user, 2, 100..100 + 2 * MANY), 0);
        port.done(StoreOp::Unregister { uaid: uaid(user), chid: chid(2), at: Clock(6_000) });
    }
    port.register(10, 2);
    assert_eq!(publish_all(&mut port, 10, 2, 100..101 + REMOVAL_ROWS_MAX as u64), 0);
    port.done(StoreOp::Unregister { uaid: uaid(10), chid: chid(2), at: Clock(6_000) });
    let db = store.db.clone().expect("it is open");
    let store_status = StoreStatus { sweep: true, ..StoreStatus::new(dir.path(), &patient()) };
    let mut walk = maintenance::SweepCursors::default();
    for _ in 0..3 {
        maintenance::remove_dead(&db, &mut walk, &store.committer, &store_status);
    }
    // Behind those mails.
    port.done(StoreOp::Touch { uaid: uaid(99), seen: NOW });
    let marked = |user| db.meta.contains_key(rows::removal_key(uaid(user))).expect("readable");
    assert!(marked(1) && marked(9), "they take many passes");
    assert!(!marked(10), "the last of ten had its pass within three ticks");
    assert!(db.has_dead_rows());
    remove_all(&store);
    maintenance::remove_dead(&db, &mut walk, &store.committer, &store_status);
    wait_until("reads need not ask for dead rows any more", || !db.has_dead_rows());
}

#[test]
fn the_rows_of_a_user_are_bounded_and_what_was_accepted_is_saved_all_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options { user_rows_max: 1_024, sweep: false, ..patient() });
    let store = store.expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    port.register(2, 2);
    let refused = publish_all(&mut port, 1, 2, 100..4_100);
    let kept = 4_000 - refused;
    // One row in 64 is counted: 16 of them, give or take.
    assert!((256..3_000).contains(&kept), "{kept} rows were kept");
    let over = StoreOp::Publish { message: Arc::new(message(1, 2, 9_000)), checked: false };
    assert!(matches!(port.ask(over.clone()), Err(StoreError::Full)));
    port.publish(message(2, 2, 9_000));
    port.done(StoreOp::Save { messages: vec![Arc::new(message(1, 2, 9_001))] });
    assert_eq!(port.clocks(uaid(1)).len(), kept + 1);
    // A settled row makes room, and a row that is settled twice is counted once.
    let rows: Vec<RowKey> = port.clocks(uaid(1)).iter().map(|clock| RowKey::of(&message(1, 2, *clock))).collect();
    let (first, second) = rows.split_at(rows.len() / 2);
    port.done(StoreOp::Settle { rows: first.to_vec(), low_water: None, durable: true });
    port.done(StoreOp::Settle { rows: first.to_vec(), low_water: None, durable: true });
    let again = publish_all(&mut port, 1, 2, 10_000..14_000);
    assert!((64..3_000).contains(&(4_000 - again)), "{again} of 4,000 were refused");
    port.done(StoreOp::Settle { rows: second.to_vec(), low_water: Some(Clock(20_000)), durable: true });
    (0..8).for_each(|_| {
        port.done(StoreOp::Settle { rows: second.to_vec(), low_water: Some(Clock(20_000)), durable: true })
    });
    port.publish(message(1, 2, 30_000));
    wait_until("the board is refreshed", || board(&store, "store_user_full") >= refused as u64);
}

#[test]
fn a_user_has_all_its_channels_whatever_else_it_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = quiet(dir.path());
    let db = store.db.clone().expect("it is open");
    let mut port = port(&store);
    let channel = |n: usize| machine::ids::Chid((n as u128).to_be_bytes());
    let register = |n: usize| StoreOp::Register {
        uaid: uaid(1),
        chid: channel(n),
        key: None,
        at: Clock(1),
        seen: NOW,
        contact: None,
        presence: None,
        maker: None,
    };
    port.ask_all((0..limits::CHANNELS_MAX).map(register).collect());
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    assert!(db.channels.is_empty().expect("readable"), "no channel outlives its user");
    port.done(register(7));
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, [channel(7)]);
}

#[test]
fn idle_users_are_dropped_some_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options { sweep: false, ..patient() }).expect("it opens");
    let mut port = port(&store);
    for user in 1..=60 {
        port.register(user, 2);
        port.publish(message(user, 2, 10));
    }
    let idle: Vec<_> = (1..=60).map(uaid).collect();
    let mut drop_idle = || {
        let later = UnixSeconds(NOW.0 + IDLE_SECONDS_MAX);
        let _ = store.committer.send(CommitterMail::Upkeep(CleanupOp::IdleUsers(idle.clone(), later)));
        // Behind that mail.
        port.done(StoreOp::Touch { uaid: uaid(99), seen: NOW });
        (1..=60).filter(|user| port.user(uaid(*user)).is_some()).count()
    };
    let left = drop_idle();
    assert!((1..60).contains(&left), "{left} users are left");
    assert_eq!(drop_idle(), 0);
}
