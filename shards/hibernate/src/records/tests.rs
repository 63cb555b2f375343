//! Records outlive their process, are used once, and leave no byte behind.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::tuple::Tuple;

/// A directory of a tmpfs, removed in the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = PathBuf::from(format!("/dev/shm/murre-records-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Dir(path)
    }

    fn try_open(&self, owner: [u8; 16]) -> io::Result<RecordDir> {
        RecordDir::open(HeldDir::make(&self.0)?, owner)
    }

    fn open(&self) -> RecordDir {
        self.try_open([7; 16]).unwrap()
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.0.join(file)).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file that refuses reads or writes while it is told to.
#[derive(Debug)]
struct Faulty {
    file: File,
    faults: Arc<Faults>,
}

#[derive(Default, Debug)]
struct Faults {
    writes: AtomicBool,
    reads: AtomicBool,
}

impl Faults {
    fn set(&self, reads: bool, writes: bool) {
        self.reads.store(reads, Ordering::Relaxed);
        self.writes.store(writes, Ordering::Relaxed);
    }

    fn check(fault: &AtomicBool) -> io::Result<()> {
        if fault.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl RecordFile for Faulty {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        Faults::check(&self.faults.writes)?;
        self.file.write_all_at(bytes, at)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        Faults::check(&self.faults.reads)?;
        self.file.read_exact_at(bytes, at)
    }
}

fn faulty(dir: &RecordDir) -> (RecordFiles, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let files = dir.shard_on(0, |file| Box::new(Faulty { file, faults: Arc::clone(&faults) }));
    (files.unwrap(), faults)
}

fn frozen(port: u16) -> Frozen {
    let mut bytes = [1; Frozen::BYTES];
    bytes[..36].copy_from_slice(&Tuple::new(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], port).into()).to_bytes());
    Frozen::from_bytes(&bytes).unwrap()
}

fn read(dir: &RecordDir) -> (Vec<(u16, usize)>, u64, usize) {
    let (mut found, mut unusable) = (Vec::new(), 0);
    let damaged = dir.read(
        |Record { frozen, session }| {
            assert!(session.0.iter().all(|byte| usize::from(*byte) == session.0.len() % 251));
            found.push((frozen.tuple().peer().port(), session.0.len()));
        },
        |_| unusable += 1,
    );
    found.sort_unstable();
    (found, damaged.unwrap(), unusable)
}

fn session(len: usize) -> Vec<u8> {
    vec![(len % 251) as u8; len]
}

#[test]
fn records_outlive_their_process_and_erased_ones_do_not() {
    let home = Dir::new("outlive");
    let first = home.open();
    let mut files = first.shard(3).unwrap();
    let sizes = [1, 62, 63, 190, 191, 446, 447, SESSION_BYTES_MAX];
    let mut places: Vec<_> =
        (0..).zip(sizes).map(|(port, len)| files.write(&frozen(port), &session(len)).unwrap()).collect();
    assert!(files.write(&frozen(99), &session(SESSION_BYTES_MAX + 1)).is_err());
    assert!(files.write(&frozen(99), &[]).is_err());
    files.erase(places.remove(4)).unwrap();
    files.erase(places.remove(1)).unwrap();
    files.write(&frozen(100), &session(50)).unwrap();
    let len = HEADER + 2 * SIZES[0];
    assert_eq!(home.bytes("0-3-128.frozen").len(), len, "the place of an erased record is used again");
    drop(first);
    let (found, damaged, unusable) = read(&home.open());
    let expected = [(0, 1), (2, 63), (3, 190), (5, 446), (6, 447), (7, SESSION_BYTES_MAX), (100, 50)];
    assert_eq!((found.as_slice(), damaged, unusable), (&expected[..], 0, 0));
}

/// A process that is killed while it takes records over leaves those of the one before it, too. Of the two records of a
/// connection the later one has the sequence numbers that were not used yet.
#[test]
fn the_record_of_the_latest_process_wins() {
    let home = Dir::new("latest");
    for (generation, len) in [40, 30, 20, 10].into_iter().enumerate() {
        let dir = home.open();
        let mut files = dir.shard(0).unwrap();
        files.write(&frozen(1), &session(len)).unwrap();
        // In files of every size, and in connections of their own.
        files.write(&frozen(2), &session(100 * (generation + 1))).unwrap();
        files.write(&frozen(10 + generation as u16), &session(5)).unwrap();
    }
    let last = home.open();
    assert_eq!(read(&last).0, [(1, 10), (2, 400), (10, 5), (11, 5), (12, 5), (13, 5)]);
    last.remove_earlier().unwrap();
    assert!(read(&last).0.is_empty());
}

#[test]
fn an_erased_or_taken_record_leaves_no_byte_in_the_file() {
    const SECRET: u8 = 0xa7;
    let home = Dir::new("erased");
    let dir = home.open();
    let mut files = dir.shard(0).unwrap();
    for (name, len) in [("128", 62), ("256", 190), ("512", 446), ("1024", SESSION_BYTES_MAX)] {
        let name = format!("0-0-{name}.frozen");
        for is_taken in [false, true] {
            let place = files.write(&frozen(1), &vec![SECRET; len]).unwrap();
            assert!(home.bytes(&name)[HEADER..].contains(&SECRET));
            if is_taken {
                assert_eq!(files.take(place).ok().unwrap().0[..], vec![SECRET; len]);
            } else {
                files.erase(place).unwrap();
            }
            let left = home.bytes(&name)[HEADER..].iter().filter(|byte| **byte != 0).count();
            assert_eq!(left, 0, "{name}, taken: {is_taken}");
        }
    }
}

/// Nothing is sealed with the keys of a session that this process has not got back.
#[test]
fn a_session_is_given_back_only_when_its_record_is_erased() {
    let home = Dir::new("faults");
    let dir = home.open();
    let (mut files, faults) = faulty(&dir);
    let mut place = files.write(&frozen(1), &session(40)).unwrap();
    for (reads, writes) in [(false, true), (true, false), (true, true)] {
        faults.set(reads, writes);
        let (back, error) = files.take(place).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        place = back;
    }
    faults.set(false, true);
    assert!(files.write(&frozen(2), &session(40)).is_err());
    faults.set(false, false);
    assert_eq!(files.take(place).ok().unwrap().0.len(), 40);
    // The place of a write that failed is free.
    let place = files.write(&frozen(3), &session(30)).unwrap();
    faults.set(false, true);
    assert!(files.erase(place).is_err());
    drop(dir);
    assert_eq!(read(&home.open()).0, [(3, 30)], "a record that could not be erased stays");
}

/// Another program has written into the file.
#[test]
fn a_record_that_was_changed_is_not_given_back() {
    let home = Dir::new("changed");
    let dir = home.open();
    let mut files = dir.shard(0).unwrap();
    let place = files.write(&frozen(1), &session(40)).unwrap();
    let file = OpenOptions::new().write(true).open(home.0.join("0-0-128.frozen")).unwrap();
    file.write_all_at(&[0xff], 64 + 70).unwrap();
    let (_, error) = files.take(place).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_damaged_record_is_skipped_and_a_foreign_file_is_named() {
    let home = Dir::new("damaged");
    let first = home.open();
    let mut files = first.shard(0).unwrap();
    for port in 0..3 {
        files.write(&frozen(port), &session(40)).unwrap();
    }
    drop(first);
    let path = home.0.join("0-0-128.frozen");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff], 64 + 128 + 70).unwrap();
    // A part of an entry, as a full tmpfs leaves it.
    file.write_all_at(&[1; 50], 64 + 3 * 128).unwrap();
    let (found, damaged, unusable) = read(&home.open());
    assert_eq!((found.len(), damaged, unusable), (2, 1, 0));
    let refused = home.try_open([8; 16]).unwrap_err();
    assert!(refused.to_string().contains("another data directory"), "{refused}");
    assert_eq!(HeldDir::hold(&home.0).unwrap().clear([8; 16]).unwrap(), 0, "they belong to another server");
    // Files of an earlier boot are void.
    let names = ["0-0-128", "0-0-256", "0-0-512", "0-0-1024"];
    for name in names {
        let path = home.0.join(format!("{name}.frozen"));
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 16], 36).unwrap();
    }
    let other = home.try_open([8; 16]).unwrap();
    assert_eq!(read(&other), (Vec::new(), 0, 4));
    other.shard(0).unwrap();
    other.remove_all().unwrap();
    assert_eq!(fs::read_dir(&home.0).unwrap().count(), 0);
}

#[test]
fn a_directory_has_one_process_at_a_time() {
    let home = Dir::new("held");
    let first = home.open();
    first.shard(0).unwrap().write(&frozen(1), &session(9)).unwrap();
    assert_eq!(home.try_open([7; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(HeldDir::hold(&home.0).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(first);
    assert_eq!(read(&home.open()).0, [(1, 9)]);
    assert_eq!(HeldDir::hold(&home.0.join("gone")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_directory_that_others_may_read_or_that_is_on_a_disk_is_refused_and_can_be_cleared() {
    let home = Dir::new("modes");
    home.open().shard(0).unwrap().write(&frozen(1), &session(9)).unwrap();
    fs::set_permissions(&home.0, fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(home.try_open([7; 16]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(HeldDir::hold(&home.0).unwrap().clear([7; 16]).unwrap(), SIZES.len());
    assert_eq!(fs::read_dir(&home.0).unwrap().count(), 0);
    // Where the sources are on a tmpfs, they are readable by others.
    let sources = HeldDir::hold(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let kind = RecordDir::open(sources, [0; 16]).unwrap_err().kind();
    assert!(matches!(kind, io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied), "{kind}");
}
