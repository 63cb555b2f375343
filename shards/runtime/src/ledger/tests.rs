//! The log against a model, against SIGKILL, and against damaged files.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use machine::ids::{Chid, Stamp, Uaid};
use machine::message::{Topic, Urgency};
use machine::time::UnixSeconds;

fn message(n: u64, payload_bytes: usize) -> Message {
    Message {
        uaid: Uaid(u128::from(n % 7).to_be_bytes()),
        chid: Chid(u128::from(n % 3).to_be_bytes()),
        stamp: Stamp { clock: Clock(1_000 + n), origin: Origin(9) },
        ttl: 60,
        accepted: UnixSeconds(5),
        urgency: Urgency::Normal,
        topic: if n.is_multiple_of(5) { Topic::new(b"tide") } else { None },
        receipt: n.is_multiple_of(3),
        tries: Default::default(),
        payload: (0..payload_bytes).map(|i| (i as u64).wrapping_mul(n) as u8).collect(),
    }
}

fn create(dir: &Path, origin: u32) -> Log {
    Log::create(dir, ShardId(0), Origin(origin), LOG_BYTES_MIN, Clock(1)).expect("a log")
}

/// Expected live records, driven by the same operations as the log.
#[derive(Default)]
struct Model {
    live: BTreeMap<u32, u64>,
    bytes: u64,
    next: u64,
}

impl Model {
    fn sizes(n: u64) -> usize {
        // Mostly small, now and then the largest there is.
        if n.is_multiple_of(11) { MESSAGE_BYTES_MAX - 64 - 4 } else { (n.wrapping_mul(2_654_435_761) % 900) as usize }
    }

    /// One operation: `pick` says whether to append or to settle, and what.
    fn step(&mut self, log: &mut Log, pick: u16) {
        let message = message(self.next, Model::sizes(self.next));
        let room = self.bytes + record_bytes(&message) <= capacity_for(LOG_BYTES_MIN);
        if !self.live.is_empty() && (pick.is_multiple_of(2) || !room) {
            let nth = usize::from(pick) % self.live.len();
            let slot = *self.live.keys().nth(nth).expect("it is in range");
            let n = self.live.remove(&slot).expect("it is there");
            self.bytes -= record_bytes(&super::tests::message(n, Model::sizes(n)));
            log.dead(LedgerSlot(slot));
        } else if room {
            let slot = (0..).find(|s| !self.live.contains_key(s)).expect("one is free");
            log.append(LedgerSlot(slot), &message);
            self.bytes += record_bytes(&message);
            self.live.insert(slot, self.next);
            self.next += 1;
        }
    }

    fn expected(&self) -> Vec<Message> {
        let mut numbers: Vec<u64> = self.live.values().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|n| message(n, Model::sizes(n))).collect()
    }
}

fn replayed(dir: &Path) -> Vec<Message> {
    replay(dir).expect("readable").messages.iter().map(|m| Message::clone(m)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_live_is_replayed_through_wraps_and_compaction(picks in prop::collection::vec(any::<u16>(), 1..6_000),
                                                              bias in 0u16..3) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut log = create(dir.path(), 1);
        let mut model = Model::default();
        for pick in picks {
            // Bias towards appends, so that most cases run full.
            model.step(&mut log, if pick % 4 < bias { pick | 1 } else { pick });
            prop_assert_eq!(log.live_bytes(), model.bytes);
            prop_assert!(log.used_bytes() <= log.ring);
        }
        prop_assert_eq!(replayed(dir.path()), model.expected());
    }
}

#[test]
fn a_full_log_with_one_old_record_never_runs_out_of_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = create(dir.path(), 1);
    // Half the ring stays live in one stretch; the rest turns over twenty times behind it.
    let mut slot = 0;
    while log.live_bytes() + 2 * record_bytes(&message(1, 8_000)) <= capacity_for(LOG_BYTES_MIN) {
        log.append(LedgerSlot(slot), &message(u64::from(slot) * 5 + 1, 8_000));
        slot += 1;
    }
    for round in 0..3_000u64 {
        log.append(LedgerSlot(slot), &message(100_001 + round, 8_000));
        log.dead(LedgerSlot(slot));
    }
    assert_eq!(replayed(dir.path()).len(), slot as usize);
}

#[test]
fn sigkill_keeps_every_live_record_and_none_of_the_dead() {
    for round in 0..20u32 {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ends = [0; 2];
        // SAFETY: a plain call that fills an array of two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child calls nothing but what follows here and ends by `_exit` or a signal.
        let child = unsafe { libc::fork() };
        // SAFETY: both descriptors were just made and each process wraps an end once.
        let (mut reader, mut writer) =
            unsafe { (std::fs::File::from_raw_fd(ends[0]), std::fs::File::from_raw_fd(ends[1])) };
        if child == 0 {
            let mut log = create(dir.path(), 1);
            let mut model = Model::default();
            for pick in picks(round) {
                model.step(&mut log, pick);
                let _ = writer.write_all(&[1]);
            }
            // SAFETY: ends this process at once, as a kill from outside would.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        assert!(child > 0, "the child could not be made");
        drop(writer);
        // Kill it after a number of operations; what it did beyond them is in the pipe.
        let mut done = vec![0u8; 200 + 97 * round as usize];
        reader.read_exact(&mut done).expect("the child works");
        // SAFETY: signals and reaps exactly the child made above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        reader.read_to_end(&mut done).expect("the rest of the pipe");
        let shadow = tempfile::tempdir().expect("a directory");
        let mut log = create(shadow.path(), 2);
        let mut model = Model::default();
        let mut picks = picks(round);
        picks.by_ref().take(done.len()).for_each(|pick| model.step(&mut log, pick));
        let before = model.expected();
        // The operation it was in when it died may count or not.
        if let Some(pick) = picks.next() {
            model.step(&mut log, pick);
        }
        let found = replayed(dir.path());
        assert!(found == before || found == model.expected(), "round {round}: {} operations", done.len());
        assert!(!before.is_empty());
    }
}

fn picks(seed: u32) -> impl Iterator<Item = u16> {
    let mut state = u64::from(seed) + 1;
    (0..4_000).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (state >> 40) as u16;
        if state >> 60 < 4 { pick | 1 } else { pick }
    })
}

#[test]
fn logs_without_a_record_go_at_once_but_for_the_one_with_the_highest_floor() {
    let dir = tempfile::tempdir().expect("a directory");
    let floors = [(3, 40), (4, 70), (5, 60)];
    for (shard, floor) in floors {
        drop(
            Log::create(dir.path(), ShardId(shard), Origin(shard.into()), LOG_BYTES_MIN, Clock(floor)).expect("a log"),
        );
    }
    let mut log = create(dir.path(), 1);
    log.append(LedgerSlot(0), &message(2, 10));
    drop(log);
    std::fs::write(dir.path().join("draft.tmp"), b"half").expect("written");
    let left = |dir: &Path| std::fs::read_dir(dir).expect("listed").count();
    let mut first = replay(dir.path()).expect("readable");
    assert_eq!((first.files(), left(dir.path())), (5, 5));
    first.discard_empty().expect("removable");
    assert_eq!((first.files(), left(dir.path())), (1, 1), "what holds a record has the highest floor, too");
    let second = replay(dir.path()).expect("readable");
    assert_eq!((second.messages.len(), second.clock_floor), (1, Clock(1_002)));
    second.discard().expect("removable");

    for (shard, floor) in floors {
        drop(
            Log::create(dir.path(), ShardId(shard), Origin(shard.into()), LOG_BYTES_MIN, Clock(floor)).expect("a log"),
        );
    }
    let mut third = replay(dir.path()).expect("readable");
    third.discard_empty().expect("removable");
    assert_eq!((third.files(), replay(dir.path()).expect("readable").clock_floor), (1, Clock(70)));
    // The file was removed from outside: it is gone all the same.
    std::fs::remove_file(std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path()).unwrap();
    third.discard().expect("nothing to remove");
}

#[test]
fn every_log_is_replayed_and_discarded_whoever_wrote_it() {
    let dir = tempfile::tempdir().expect("a directory");
    for shard in 0..4u16 {
        let floor = Clock(u64::from(shard) * 10_000_000);
        let mut log = Log::create(dir.path(), ShardId(shard), Origin(1), LOG_BYTES_MIN, floor).expect("a log");
        log.append(LedgerSlot(0), &message(u64::from(shard), 10));
    }
    let again = Log::create(dir.path(), ShardId(0), Origin(1), LOG_BYTES_MIN, Clock(0));
    assert!(again.is_err(), "a log is never overwritten");
    let first = replay(dir.path()).expect("readable");
    assert_eq!(first.messages.len(), 4);
    assert_eq!(first.clock_floor, Clock(30_000_000));
    let mut fresh = Log::create(dir.path(), ShardId(0), Origin(2), LOG_BYTES_MIN, first.clock_floor).expect("a log");
    fresh.clock_floor(Clock(40_000_000));
    first.discard().expect("removable");
    let second = replay(dir.path()).expect("readable");
    assert_eq!((second.messages.len(), second.clock_floor), (0, Clock(40_000_000)));
    fresh.finish().expect("removable");
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

#[test]
fn a_missing_directory_replays_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(replay(&dir.path().join("ledger")).expect("nothing to read").messages.is_empty());
}

#[test]
fn refusals_say_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let told = |e: LedgerError| e.to_string();
    let small = Log::create(dir.path(), ShardId(0), Origin(1), 4096, Clock(0)).err().map(told);
    assert!(small.is_some_and(|s| s.contains("between 1 MiB and 16 GiB")));
    let file = dir.path().join("not-a-directory");
    std::fs::write(&file, b"").expect("writable");
    let inside = Log::create(&file, ShardId(0), Origin(1), LOG_BYTES_MIN, Clock(0)).err().map(told);
    assert!(inside.is_some_and(|s| s.contains("not-a-directory")));
    let full = LedgerError::io(&file, "allocate", std::io::ErrorKind::StorageFull.into()).to_string();
    assert!(full.contains("free disk space there"), "{full}");
    let corrupt = dir.path().join("shard-1-00000001.log");
    std::fs::write(&corrupt, vec![7u8; 8192]).expect("writable");
    let error = replay(dir.path()).expect_err("no header").to_string();
    assert!(error.contains("shard-1-00000001.log") && error.contains("move it out"), "{error}");
    // One from before the first release.
    let before = [&b"murrelog"[..], &[1; 8184]].concat();
    std::fs::write(&corrupt, &before).expect("writable");
    assert_eq!(replay(dir.path()).expect_err("another magic").to_string(), error);
    assert_eq!(std::fs::read(&corrupt).expect("readable"), before);
}

#[test]
fn a_log_that_a_power_cut_left_zeroed_is_empty_unless_something_is_behind_the_header() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = create(dir.path(), 1);
    log.append(LedgerSlot(0), &message(2, 10));
    let whole = std::fs::read(log.path()).expect("readable");
    // Neither header nor ring reached the disk; the length did, in part or not at all.
    for (nth, bytes) in [0, 17, 4096, whole.len()].into_iter().enumerate() {
        let name = format!("shard-{nth}-00000077.log");
        std::fs::write(dir.path().join(name), vec![0u8; bytes]).expect("writable");
    }
    let mut found = replay(dir.path()).expect("an empty log is no damage");
    assert_eq!((found.messages.len(), found.files()), (1, 5));
    found.discard_empty().expect("removable");
    assert_eq!(found.files(), 1, "they go like any log without a record");
    // The record reached the disk and the header did not: it may have been accepted, so nothing is thrown away.
    let mut headless = whole;
    headless[..HEADER_BYTES as usize].fill(0);
    std::fs::write(dir.path().join("shard-9-00000077.log"), headless).expect("writable");
    let error = replay(dir.path()).expect_err("a record may be in it").to_string();
    assert!(error.contains("shard-9-00000077.log") && error.contains("move it out"), "{error}");
}

#[test]
fn a_new_log_is_on_the_disk_with_header_floor_and_name_before_it_is_used() {
    let dir = tempfile::tempdir().expect("a directory");
    map::STEPS.take();
    let mut log = create(dir.path(), 1);
    assert_eq!(map::STEPS.take(), ["header", "header", "file", "directory with the log"]);
    assert_eq!(replay(dir.path()).expect("readable").clock_floor, Clock(1));
    log.clock_floor(Clock(900));
    assert_eq!(replay(dir.path()).expect("readable").clock_floor, Clock(900));
}

/// A log with some live and some dead records, as bytes, and what is live in it.
fn image() -> (Vec<u8>, Vec<Message>) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = create(dir.path(), 1);
    let mut model = Model::default();
    picks(3).take(600).for_each(|pick| model.step(&mut log, pick));
    (std::fs::read(log.path()).expect("readable"), model.expected())
}

/// Replays damaged bytes: an error, or messages that were all written.
fn damaged(bytes: &[u8], live: &[Message], flips: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("shard-0-00000001.log"), bytes).expect("writable");
    let Ok(found) = replay(dir.path()) else { return };
    let dead = |m: &&Arc<Message>| !live.contains(m);
    // A flip may turn at most as many dead words live again as there were flips; it never makes a message up.
    let revived: Vec<_> = found.messages.iter().filter(dead).collect();
    assert!(revived.len() <= flips, "{revived:?}");
    for m in revived.into_iter().map(Arc::as_ref) {
        assert_eq!(*m, message(m.stamp.clock.0 - 1_000, Model::sizes(m.stamp.clock.0 - 1_000)));
    }
}

#[test]
fn a_truncated_log_never_yields_a_wrong_message() {
    let (bytes, live) = image();
    for cut in (0..bytes.len()).step_by(1_013).chain([1, 35, 4095, 4096, 4097, 4110, 4125]) {
        damaged(&bytes[..cut], &live, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn flipped_bits_never_yield_a_wrong_message(flips in prop::collection::vec((0usize..400_000, 0u8..8), 1..40)) {
        let (mut bytes, live) = image();
        for &(at, bit) in &flips {
            bytes[at] ^= 1 << bit;
        }
        damaged(&bytes, &live, flips.len());
    }
}

#[test]
fn a_torn_floor_leaves_the_one_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = create(dir.path(), 1);
    log.clock_floor(Clock(500));
    log.clock_floor(Clock(900));
    let path = log.path().to_path_buf();
    let mut bytes = std::fs::read(&path).expect("readable");
    let cell = [64, 128].into_iter().find(|&at| bytes[at..at + 8] == 900u64.to_le_bytes()).expect("it was written");
    bytes[cell] ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    assert_eq!(replay(dir.path()).expect("readable").clock_floor, Clock(500));
}
