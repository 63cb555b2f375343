//! Salvage of damaged tables: it ends, keeps what is readable, and says what was lost.

use std::fs;

use machine::ids::{Chid, Uaid};

use super::*;
use crate::embedded::group;
use crate::embedded::salvage::OPEN_TABLES_MAX;

/// Users of a damaged store: many blocks of 4 KiB.
const USERS: u64 = 2_000;

/// Spread over the whole range of ids, as they are in use.
fn spread(n: u64) -> Uaid {
    Uaid(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes())
}

fn of(n: u64) -> Message {
    Message { uaid: spread(n), payload: vec![n as u8; 300].into(), ..message(1, 2, 1_000 + n) }
}

/// A closed store: users and a message for each in tables, and one more user whose rows are in the journal only.
fn store() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options { sweep: false, ..patient() }).expect("it opens");
    let mut port = port(&store);
    let register = |n| match register(1, 2, 1) {
        StoreOp::Register { chid, key, at, seen, contact, presence, .. } => {
            StoreOp::Register { uaid: spread(n), chid, key, at, seen, contact, presence, maker: None }
        }
        other => panic!("{other:?}"),
    };
    let publish = |n| StoreOp::Publish { message: Arc::new(of(n)), checked: false };
    let done = |answers: Vec<_>| assert!(answers.iter().all(|answer| matches!(answer, Ok(StoreReply::Done))));
    done(port.ask_all((1..=USERS).map(register).collect()));
    done(port.ask_all((1..=USERS).map(publish).collect()));
    let db = store.db.clone().expect("it is open");
    for keyspace in [&db.users, &db.messages, &db.topics, &db.meta, &db.channels] {
        keyspace.rotate_memtable_and_wait().expect("writable");
    }
    done(port.ask_all(vec![register(USERS + 1), publish(USERS + 1)]));
    drop(db);
    store.close();
    // As if the journals before the flush had been evicted, which takes fjall 64 MiB to do.
    let journal = journal::list(&dir.path().join("db")).expect("it is there").pop().expect("there is one");
    let bytes = fs::read(&journal).expect("readable");
    let batches = journal::batches(&bytes);
    let behind = batches
        .iter()
        .find(|batch| batch.items.iter().any(|item| bytes[item.key.clone()].starts_with(&spread(USERS + 1).0)));
    let behind = behind.expect("its batch is there").span.start;
    fs::write(&journal, &bytes[behind..batches.last().expect("there are some").span.end]).expect("writable");
    dir
}

/// The only table of a keyspace.
fn table(dir: &Path, keyspace: u8) -> PathBuf {
    let tables = dir.join(format!("db/keyspaces/{keyspace}/tables"));
    let mut found = fs::read_dir(tables).expect("it is there").flatten().map(|entry| entry.path());
    let table = found.next().expect("there is one");
    assert!(found.next().is_none(), "there is one only");
    table
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("readable");
    bytes[at] ^= 0x20;
    fs::write(path, bytes).expect("writable");
}

struct Found {
    copied: Copied,
    users: u64,
    rows: u64,
    last_user: bool,
}

/// Salvages, and reads the result. A salvage that does not end is a failure.
fn salvaged(dir: &Path) -> Found {
    let dest = tempfile::tempdir().expect("a directory");
    let (source, new) = (dir.to_owned(), dest.path().join("new"));
    let (done, ended) = bounded(1);
    let to = new.clone();
    std::thread::spawn(move || done.send(salvage(&source, &to, &mut |_| ())));
    let copied = ended.recv_timeout(Duration::from_secs(90)).expect("salvage ends").expect("it salvages");
    let store = Embedded::open(&new, Options { sweep: false, ..patient() }).expect("it opens");
    let mut port = port(&store);
    let (mut users, mut rows) = (0, 0);
    for n in 1..=USERS {
        let Some(user) = port.user(spread(n)) else { continue };
        users += 1;
        assert!(user.may_have_messages && user.channels.len() <= 1);
        let page = port.page(StoreOp::Messages { uaid: spread(n), after: Stamp::default(), limit: 9, now: NOW });
        assert!(page.messages.iter().all(|kept| **kept == of(n)), "a wrong row");
        rows += page.messages.len() as u64;
    }
    let read = StoreOp::Messages { uaid: spread(USERS + 1), after: Stamp::default(), limit: 9, now: NOW };
    let last = port.user(spread(USERS + 1)).is_some_and(|user| user.channels == [Chid([2; 16])]);
    let last_user = last && port.page(read).messages.len() == 1;
    Found { copied, users, rows, last_user }
}

#[test]
fn a_damaged_block_of_users_costs_the_users_in_it() {
    let dir = store();
    let users = table(dir.path(), 1);
    flip(&users, fs::metadata(&users).expect("it is there").len() as usize / 3);
    let found = salvaged(dir.path());
    assert!(found.last_user, "the journal is whole");
    // Their channels are whole, so they get new records.
    assert_eq!((found.users, found.rows, found.copied.users), (USERS, USERS, USERS + 1));
    assert!(!found.copied.is_whole() && found.copied.unreadable_blocks == 1, "{:?}", found.copied);
    assert!((1..300).contains(&found.copied.lost_rows), "{:?}", found.copied);
}

#[test]
fn a_damaged_block_of_messages_costs_the_messages_in_it() {
    let dir = store();
    let messages = table(dir.path(), 2);
    flip(&messages, fs::metadata(&messages).expect("it is there").len() as usize / 2);
    flip(&messages, 100);
    let found = salvaged(dir.path());
    assert!(found.last_user, "the journal is whole");
    assert_eq!(found.users, USERS);
    assert!((USERS - 100..USERS).contains(&found.rows), "{} rows", found.rows);
    assert_eq!(
        (found.copied.unreadable_blocks, found.copied.lost_rows),
        (2, USERS - found.rows),
        "every lost row counts"
    );
}

#[test]
fn a_table_that_is_lost_whole_costs_its_keyspace_and_nothing_else() {
    let dir = store();
    let channels = table(dir.path(), 5);
    let bytes = fs::read(&channels).expect("readable");
    fs::write(&channels, &bytes[..bytes.len() / 2]).expect("writable");
    let found = salvaged(dir.path());
    assert!(found.last_user, "the journal is whole");
    assert_eq!((found.users, found.rows, found.copied.unreadable_tables), (USERS, USERS, 1));
    assert!(!found.copied.is_whole());
}

#[test]
fn a_damaged_manifest_costs_no_row_and_is_counted() {
    let files = |dir: &Path| {
        let entries = fs::read_dir(dir.join("db/keyspaces/2")).expect("readable").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect::<Vec<_>>()
    };
    let nothing_of_the_kind = |dir: &Path| {
        files(dir).iter().for_each(|file| fs::write(file, b"nothing of the kind").expect("writable"));
        assert!(Embedded::open(dir, patient()).is_err());
    };
    // One bit of the number of a table.
    let a_bit = |dir: &Path| files(dir).iter().filter(|file| !file.ends_with("current")).for_each(|file| flip(file, 8));
    let none = |dir: &Path| files(dir).iter().for_each(|file| fs::remove_file(file).expect("it is there"));
    for (nth, damage) in [&nothing_of_the_kind as &dyn Fn(&Path), &a_bit, &none].into_iter().enumerate() {
        let dir = store();
        damage(dir.path());
        let found = salvaged(dir.path());
        assert!(found.last_user && !found.copied.is_whole(), "{nth}: {:?}", found.copied);
        assert_eq!((found.users, found.rows, found.copied.users), (USERS, USERS, USERS + 1), "{nth}");
        assert_eq!((found.copied.damaged_manifests, found.copied.unreadable_tables), (1, 0), "{nth}");
    }
}

#[test]
fn a_damaged_manifest_hides_no_missing_table() {
    let dir = store();
    fs::remove_file(table(dir.path(), 2)).expect("it is there");
    for entry in fs::read_dir(dir.path().join("db/keyspaces/2")).expect("readable").flatten() {
        if entry.path().is_file() {
            fs::write(entry.path(), b"nothing of the kind").expect("writable");
        }
    }
    let found = salvaged(dir.path());
    assert_eq!((found.users, found.rows, found.copied.damaged_manifests), (USERS, 0, 1));
    assert!(!found.copied.is_whole(), "{:?}", found.copied);
}

#[test]
fn what_was_removed_stays_removed_and_numbers_go_on() {
    let dir = store();
    let store = Embedded::open(dir.path(), Options { sweep: false, ..patient() }).expect("it opens");
    let mut before = port(&store);
    before.done(StoreOp::Settle { rows: vec![RowKey::of(&of(1))], low_water: None, durable: true });
    before.done(StoreOp::DropUser { uaid: spread(2) });
    before.done(StoreOp::Unregister { uaid: spread(3), chid: Chid([2; 16]), at: Clock(90_000) });
    before.publish(Message { stamp: Stamp { clock: Clock(95_000), ..of(4).stamp }, ..of(4) });
    store.close();
    // The rows of the greatest numbers, and of the progress of removals.
    let meta = table(dir.path(), 4);
    flip(&meta, 20);
    let dest = tempfile::tempdir().expect("a directory");
    let copied = salvage(dir.path(), &dest.path().join("new"), &mut |_| ()).expect("it salvages");
    assert_eq!((copied.users, copied.unreadable_blocks), (USERS, 1));
    let store = Embedded::open(&dest.path().join("new"), Options { sweep: false, ..patient() }).expect("it opens");
    let mut after = port(&store);
    assert_eq!(after.user(spread(2)), None);
    assert_eq!(after.user(spread(3)).expect("it is known").channels, []);
    for (n, clocks) in [(1, vec![]), (3, vec![]), (4, vec![1_004, 95_000])] {
        assert_eq!(after.clocks(spread(n)), clocks, "user {n}");
    }
    assert_eq!(store.clock_floor(), Clock(95_000));
    assert!(store.numbers.registration >= USERS, "no registration is given again");
}

#[test]
fn progress_is_told_for_every_keyspace() {
    let dir = store();
    let dest = tempfile::tempdir().expect("a directory");
    let mut told = Vec::new();
    let copied = salvage(dir.path(), &dest.path().join("new"), &mut |progress| told.push(progress));
    assert!(copied.expect("it salvages").is_whole());
    let ends: Vec<_> = told.chunks(2).map(|pair| (pair[1].keyspace, pair[1].tables, pair[1].rows)).collect();
    assert_eq!(ends[..2], [("users", 1, USERS + 1), ("messages", 1, USERS + 1)]);
    assert_eq!(ends.len(), 5);
}

#[test]
fn dead_rows_stay_dead_when_nothing_names_them_any_more() {
    const ROWS: u64 = 3 * group::removal::REMOVAL_ROWS_MAX as u64;
    let dir = store();
    let store = Embedded::open(dir.path(), Options { sweep: false, ..patient() }).expect("it opens");
    let mut before = port(&store);
    let many = |n: u64| {
        (0..ROWS).map(move |row| Message { stamp: Stamp { clock: Clock(50_000 + row), ..of(n).stamp }, ..of(n) })
    };
    for n in [5, 6] {
        let publish = |message| StoreOp::Publish { message: Arc::new(message), checked: false };
        assert!(before.ask_all(many(n).map(publish).collect()).iter().all(Result::is_ok));
    }
    before.done(StoreOp::Unregister { uaid: spread(5), chid: Chid([2; 16]), at: Clock(90_000) });
    before.done(StoreOp::DropUser { uaid: spread(6) });
    let Some(db) = store.db.clone() else { panic!("it is open") };
    assert!(db.messages.prefix(spread(5).0).next().is_some() && db.messages.prefix(spread(6).0).next().is_some());
    before.register(9, 2);
    for keyspace in db.keyspaces() {
        keyspace.rotate_memtable_and_wait().expect("writable");
    }
    drop(db);
    store.close();
    lose_journals(dir.path());
    for meta in tables(dir.path(), 4) {
        flip(&meta, 20);
    }
    let dest = tempfile::tempdir().expect("a directory");
    let copied = salvage(dir.path(), &dest.path().join("new"), &mut |_| ()).expect("it salvages");
    assert!(copied.unreadable_blocks > 0, "{copied:?}");
    let store = Embedded::open(&dest.path().join("new"), Options { sweep: false, ..patient() }).expect("it opens");
    let mut after = port(&store);
    assert_eq!(after.user(spread(6)), None);
    let rows = |after: &mut BlockingStore, n| after.clocks(spread(n)).len();
    assert_eq!((rows(&mut after, 4), rows(&mut after, 5)), (1, 0), "rows of a channel that is no more");
    let db = store.db.clone().expect("it is open");
    assert_eq!(copied.messages, db.messages.len().expect("readable") as u64);
    assert!(db.messages.prefix(spread(6).0).next().is_none(), "rows of a user who is no more");
}

/// Keeps no batch of any journal, as if fjall had evicted them.
fn lose_journals(dir: &Path) {
    for journal in journal::list(&dir.join("db")).expect("they are there") {
        fs::write(journal, []).expect("writable");
    }
}

/// All tables of a keyspace.
fn tables(dir: &Path, keyspace: u8) -> Vec<PathBuf> {
    let tables = dir.join(format!("db/keyspaces/{keyspace}/tables"));
    fs::read_dir(tables).expect("it is there").flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_table_that_is_missing_is_counted() {
    let dir = store();
    fs::remove_file(table(dir.path(), 2)).expect("it is there");
    let found = salvaged(dir.path());
    assert_eq!((found.users, found.rows, found.copied.unreadable_tables), (USERS, 0, 1));
    assert!(found.last_user && !found.copied.is_whole(), "{:?}", found.copied);
}

#[test]
fn a_bounded_number_of_tables_is_open() {
    let dir = store();
    let messages = table(dir.path(), 2);
    for n in 1_000..1_000 + 3 * OPEN_TABLES_MAX {
        fs::copy(&messages, messages.with_file_name(n.to_string())).expect("writable");
    }
    let open = || {
        let files = fs::read_dir("/proc/self/fd").expect("readable").flatten();
        files.filter(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.starts_with(dir.path()))).count()
    };
    let dest = tempfile::tempdir().expect("a directory");
    let mut most = 0;
    let copied = salvage(dir.path(), &dest.path().join("new"), &mut |_| most = most.max(open()));
    assert_eq!(copied.expect("it salvages").messages, USERS + 1);
    // And the lock.
    assert!((2..=OPEN_TABLES_MAX + 1).contains(&most), "{most} files are open");
}
