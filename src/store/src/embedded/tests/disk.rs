//! A file system that is really small, and one that others fill.

use std::process::Command;

use super::*;
use crate::testing::disk::SmallDisk;

/// Default options that note the reason for an end of the process.
fn noted(said: &Arc<Mutex<Vec<String>>>) -> Options {
    let said = Arc::clone(said);
    Options {
        compact_every: Duration::from_millis(500),
        fatal: Arc::new(move |why| said.lock().expect("nobody panics").push(why.to_owned())),
        ..patient()
    }
}

fn big(clock: u64) -> Arc<Message> {
    Arc::new(Message { payload: vec![clock as u8; 30_000].into(), ..message(1, 2, clock) })
}

/// Fills the store until it has refused 500 messages in a row; returns the clocks it took. A store whose compactions
/// are behind refuses a few and takes the next ones. One user is given its share of the last room only, but what was
/// accepted is saved.
fn fill_up(store: &Embedded, from: u64, said: &Arc<Mutex<Vec<String>>>) -> Vec<u64> {
    let mut port = port(store);
    let mut taken = Vec::new();
    let mut refused = 0;
    for first in (from..).step_by(32) {
        let is_full = store.store_status.space.room() != room::Room::Plenty;
        let op = |clock| match is_full {
            true => StoreOp::Publish { message: big(clock), checked: false },
            false => StoreOp::Save { messages: vec![big(clock)] },
        };
        for (nth, answer) in port.ask_all((first..first + 32).map(op).collect()).into_iter().enumerate() {
            match answer {
                Ok(_) => {
                    taken.push(first + nth as u64);
                    refused = 0;
                }
                Err(StoreError::Full) => refused += 1,
                Err(StoreError::Transient) => panic!("{:?}", said.lock().expect("nobody panics")),
            }
        }
        if refused > 500 {
            return taken;
        }
        if refused > 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    unreachable!("clocks do not end")
}

/// Asks until the store does it: for a moment a store whose compactions are behind takes nothing.
fn done_in_time(port: &mut BlockingStore, op: impl Fn() -> StoreOp) {
    let mut is_done = || matches!(port.ask(op()), Ok(StoreReply::Done | StoreReply::Scarce));
    wait_until("the store does what must happen", &mut is_done);
}

#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_small_disk_that_is_full_refuses_messages_and_recovers() {
    let disk = SmallDisk::mount(900);
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let store = Embedded::open(&disk.path(), noted(&said)).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    let mut taken = fill_up(&store, 10, &said);
    // Necessary writes go on.
    wait_until("messages alone are refused", || {
        let room = store.store_status.space.room();
        if room == room::Room::Plenty {
            // A compaction has made room.
            taken.extend(fill_up(&store, taken.last().expect("some were taken") + 1, &said));
        }
        room == room::Room::NoMessages
    });
    assert_eq!(said.lock().expect("nobody panics")[..], [] as [String; 0]);
    done_in_time(&mut port, || register(2, 2, 1));
    done_in_time(&mut port, || StoreOp::Save { messages: vec![Arc::new(message(2, 2, 5))] });
    done_in_time(&mut port, || StoreOp::DropUser { uaid: uaid(2) });
    // Deletes give the space back, and messages are taken again.
    for some in taken.chunks(200) {
        let rows = || some.iter().map(|clock| RowKey::of(&big(*clock))).collect();
        done_in_time(&mut port, || StoreOp::Settle { rows: rows(), low_water: None, durable: true });
    }
    let mut next = 1_000_000;
    wait_until("space returns", || {
        next += 1;
        port.ask(StoreOp::Publish { message: big(next), checked: false }).is_ok()
    });
    assert_eq!(said.lock().expect("nobody panics")[..], [] as [String; 0]);
}

#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_disk_that_others_fill_ends_nothing() {
    let disk = SmallDisk::mount(400);
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let store = Embedded::open(&disk.path(), Options { bytes_free_min: 64 << 20, ..noted(&said) }).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    (10..200).for_each(|clock| port.done(StoreOp::Publish { message: big(clock), checked: false }));
    let filler = disk.fill_up_to(64 << 10);
    let publish = |clock| StoreOp::Publish { message: big(clock), checked: false };
    wait_until("it is noticed", || port.ask(publish(1_000)).is_err());
    for clock in 1_001..1_200 {
        let answer = port.ask(publish(clock));
        assert!(answer.is_err(), "{answer:?}");
    }
    assert_eq!(port.clocks(uaid(1)).len(), 190, "reads go on");
    std::fs::remove_file(filler).expect("it is there");
    wait_until("space returns", || port.ask(publish(2_000)).is_ok());
    assert_eq!(said.lock().expect("nobody panics")[..], [] as [String; 0]);
}

#[test]
fn a_walk_reclaims_what_a_store_can_take_in() {
    const ROWS: u64 = 17_408;
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options { sweep: true, ..patient() }).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    for first in (0..ROWS).step_by(512) {
        let brief = |n| Arc::new(Message { ttl: 10, ..message(1, 2, 100 + n) });
        let ops = (first..first + 512).map(|n| StoreOp::Publish { message: brief(n), checked: false });
        assert!(port.ask_all(ops.collect()).iter().all(Result::is_ok));
    }
    let db = store.db.clone().expect("it is open");
    let mut walk = maintenance::SweepCursors::default();
    // The ticks of one second; the committer has as long as it wants between two of them.
    for _ in 0..10 {
        maintenance::sweep_steps(&db, &mut walk, UnixSeconds(NOW.0 + 10), &store.committer, &store.store_status);
        wait_until("the committer takes them", || store.store_status.upkeep.load(Ordering::Relaxed) == 0);
    }
    wait_until("17,000 inserts a second are reclaimed in a second", || db.messages.is_empty().expect("readable"));
}

/// A store on a small disk that has a compaction held back, and the file that fills the disk.
fn held_back(disk: &SmallDisk, said: &Arc<Mutex<Vec<String>>>) -> (Embedded, PathBuf) {
    let store = Embedded::open(&disk.path(), Options { sweep: false, ..noted(said) }).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    let db = store.db.clone().expect("it is open");
    for round in 0..3 {
        (0..100).for_each(|n| port.done(StoreOp::Publish { message: big(10 + round * 100 + n), checked: false }));
        db.messages.rotate_memtable_and_wait().expect("writable");
    }
    // Less than the tables and the last step of the reserve take, and more than that step alone.
    let filler = disk.fill_up_to(12 << 20);
    wait_until("a compaction waits for room", || {
        a_small_table(&db);
        store.store_status.space.is_held()
    });
    (store, filler)
}

/// Adds a table to level 0 of the messages.
fn a_small_table(db: &Database) {
    for n in 0..=255u8 {
        db.messages.insert([n; 60], [7; 20]).expect("writable");
    }
    db.messages.rotate_memtable_and_wait().expect("writable");
}

/// Set in the process in which a test runs alone.
const ALONE: &str = "MURRE_TEST_ALONE";

/// Nanoseconds that a thread has run.
fn run_ns(task: &Path) -> u64 {
    let stat = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    stat.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
}

/// Nanoseconds that the threads of fjall have run in this process.
fn workers_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("readable").flatten().map(|task| task.path());
    let is_worker =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|c| c.trim() == "fjall:worker");
    tasks.filter(is_worker).map(|task| run_ns(&task)).sum()
}

#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_compaction_that_waits_for_room_uses_no_cpu() {
    const NAME: &str = "embedded::tests::disk::a_compaction_that_waits_for_room_uses_no_cpu";
    if std::env::var_os(ALONE).is_none() {
        // Other tests have threads of fjall, too.
        let mut alone = Command::new(std::env::current_exe().expect("it has a path"));
        let ended = alone
            .args(["--exact", NAME, "--include-ignored", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .expect("it starts");
        let said = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let disk = SmallDisk::mount(400);
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let (store, _) = held_back(&disk, &said);
    a_small_table(&store.db.clone().expect("it is open"));
    // Flushes under way may still run for some seconds. Threads that spin leave no three idle seconds.
    let mut idle = 0;
    let mut seconds = 0..30;
    while idle < 3 && seconds.next().is_some() {
        idle = if workers_ns_in_a_second() < 250_000_000 { idle + 1 } else { 0 };
    }
    assert_eq!(idle, 3, "the threads of fjall ran beside nearly each of thirty seconds of this one");
}

/// Nanoseconds that the threads of fjall run in a second of this thread, which other threads have at hand as well.
fn workers_ns_in_a_second() -> u64 {
    let this = Path::new("/proc/thread-self");
    let (own, workers) = (run_ns(this), workers_ns());
    while run_ns(this) < own + 1_000_000_000 {
        std::hint::spin_loop();
    }
    workers_ns() - workers
}

#[test]
fn a_compaction_that_waits_for_its_turn_halts_no_write() {
    let dir = tempfile::tempdir().expect("a directory");
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let store = Embedded::open(dir.path(), Options { sweep: false, ..noted(&said) }).expect("it opens");
    let mut port = port(&store);
    port.register(1, 2);
    // One that copies on a slow disk.
    store.store_status.space.take_turn(0).expect("it is free");
    let db = store.db.clone().expect("it is open");
    while db.messages.l0_table_count() < 30 {
        a_small_table(&db);
    }
    wait_until("the keeper has looked", || store.store_status.space.room() == room::Room::Nothing);
    let settle = |clock| StoreOp::Settle { rows: vec![RowKey::of(&big(clock))], low_water: None, durable: true };
    assert!(matches!(port.ask(settle(10)), Err(StoreError::Full)), "it is refused, not halted");
    assert!(port.user(uaid(1)).is_some(), "reads go on");
    store.store_status.space.give_turn();
    wait_until("the tables of level 0 become fewer", || port.ask(settle(10)).is_ok());
    drop(db);
    store.close();
    assert_eq!(said.lock().expect("nobody panics")[..], [] as [String; 0]);
}

#[test]
#[ignore = "needs root and mount: bench/check test"]
fn a_store_with_a_compaction_held_back_halts_no_write_and_can_be_closed() {
    let disk = SmallDisk::mount(400);
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let (store, _) = held_back(&disk, &said);
    let db = store.db.clone().expect("it is open");
    // Enough tables that fjall halts every write of the keyspace until a compaction ends.
    while db.messages.l0_table_count() < 30 {
        a_small_table(&db);
    }
    drop(db);
    wait_until("the keeper has looked", || store.store_status.space.room() == room::Room::Nothing);
    let mut port = port(&store);
    port.submit(StoreOp::Settle { rows: vec![RowKey::of(&big(10))], low_water: None, durable: true });
    let (done, closed) = bounded(1);
    std::thread::spawn(move || {
        store.close();
        let _ = done.send(());
    });
    assert!(closed.recv_timeout(Duration::from_secs(60)).is_ok(), "the store is not closed after a minute");
    assert!(matches!(port.collect().1, Err(StoreError::Full)));
    assert_eq!(said.lock().expect("nobody panics")[..], [] as [String; 0]);
}
