//! Files of frozen connections, from which the next process takes them over.
//!
//! Each shard writes files of its own, one for each size of an entry: 128, 256, 512 and 1,024 bytes. They lie in a
//! directory of a tmpfs, because an entry may have keys of TLS: they never reach a disk.
//!
//! ```text
//! file   header (64 bytes), entries
//! header "murre frozen" (12) | version u32 | entry bytes u32 | owner (16) | boot of the host (16) | 12 unused
//! entry  crc32 u32 | len u16 | connection (60) | session (len bytes) | unused
//! ```
//! An entry with `len` 0 is free. The checksum covers everything behind it. Numbers are little endian.
//!
//! `owner` names the data directory: records of another one are of users that this process does not know. Timestamps
//! count from the boot of the host, so records of another boot are void, like all connections of that time.
//!
//! Lives on: a [`RecordFiles`] on the thread of its shard; [`RecordDir`] on the starting thread.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::repair::Frozen;

const MAGIC: &[u8; 12] = b"murre frozen";
const VERSION: u32 = 1;
const HEADER: usize = 64;
/// Bytes of an entry before its session.
const FIXED: usize = 6 + Frozen::BYTES;
/// Sizes of entries, and the place of each size in a [`Place`].
const SIZES: [usize; 4] = [128, 256, 512, 1_024];
const SIZE_SHIFT: u32 = 30;

/// Bytes of a session that an entry can have. A connection with more is not frozen.
pub const SESSION_BYTES_MAX: usize = SIZES[SIZES.len() - 1] - FIXED;

/// Place of an entry in the files of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u32);

impl Place {
    /// No entry: the connection is kept in memory only.
    pub const NONE: Place = Place(u32::MAX);
}

/// A record of an earlier process. Overwritten when dropped.
pub struct Record {
    pub frozen: Frozen,
    /// Written by the shard; may have secrets.
    pub session: Box<[u8]>,
}

impl Drop for Record {
    fn drop(&mut self) {
        overwrite(&mut self.session);
    }
}

/// Directory of the files of all shards.
#[derive(Debug)]
pub struct RecordDir {
    path: PathBuf,
    owner: [u8; 16],
    boot: [u8; 16],
    /// Number in the names of the files of this process: higher than that of any file there.
    generation: u64,
}

impl RecordDir {
    /// Opens the directory, and makes it with mode 0700 if it is not there. `owner` names the data directory.
    ///
    /// # Errors
    /// `Unsupported` if it is not on a tmpfs; `PermissionDenied` if others may read it; `Other` if it has records of
    /// another data directory; those of the file system.
    pub fn open(path: &Path, owner: [u8; 16]) -> io::Result<RecordDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        if rustix::fs::statfs(path)?.f_type as u64 != TMPFS_MAGIC {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is not on a tmpfs"));
        }
        let metadata = fs::metadata(path)?;
        if metadata.permissions().mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            let why = "others may read it: it must have mode 700 and belong to the user of murre";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let boot = boot_of_host()?;
        let mut dir = RecordDir { path: path.to_owned(), owner, boot, generation: 0 };
        for (generation, path) in dir.files()? {
            if dir.is_of_another(&path)? {
                return Err(io::Error::other("it has records of another data directory: choose one for each"));
            }
            dir.generation = dir.generation.max(generation + 1);
        }
        Ok(dir)
    }

    /// Returns true if this file has records that a process with another data directory can take over.
    fn is_of_another(&self, path: &Path) -> io::Result<bool> {
        let mut header = [0; HEADER];
        let is_whole = File::open(path)?.read_exact(&mut header).is_ok();
        let is_current = header[..12] == *MAGIC && header[36..52] == self.boot;
        Ok(is_whole && is_current && header[20..36] != self.owner)
    }

    /// Files of records, with their generations.
    fn files(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let generation = name.strip_suffix(".frozen").and_then(|name| name.split('-').next()?.parse().ok());
            files.extend(generation.map(|generation| (generation, path.clone())));
        }
        Ok(files)
    }

    /// Returns true if an earlier process has left files.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn has_earlier(&self) -> io::Result<bool> {
        Ok(self.files()?.iter().any(|(generation, _)| *generation < self.generation))
    }

    /// Reads the records of earlier processes. Calls `each` for every connection, with its latest record, and
    /// `unusable` for every file that cannot be used: another version or boot. Returns the number of entries whose
    /// checksum is wrong, which it skips.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read(&self, mut each: impl FnMut(Record), mut unusable: impl FnMut(&Path)) -> io::Result<u64> {
        let mut files = self.files()?;
        files.retain(|(generation, _)| *generation < self.generation);
        files.sort_unstable_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        // A process that ended while it took records over has left some of them twice.
        let generation_of = |file: Option<&(u64, PathBuf)>| file.map(|(generation, _)| *generation);
        let is_one = generation_of(files.first()) == generation_of(files.last());
        let mut seen = HashSet::new();
        let mut damaged = 0;
        for (_, path) in files {
            // Without a buffer that would keep secrets.
            let mut file = File::open(&path)?;
            let mut header = [0; HEADER];
            let entry_bytes = file.read_exact(&mut header).ok().and_then(|()| self.entry_bytes(&header));
            let Some(entry_bytes) = entry_bytes else {
                unusable(&path);
                continue;
            };
            let mut entry = vec![0; entry_bytes];
            // A part of an entry at the end was never complete.
            while file.read_exact(&mut entry).is_ok() {
                match read_entry(&entry) {
                    Entry::Free => {}
                    Entry::Damaged => damaged += 1,
                    Entry::Record(record) if is_one || seen.insert(record.frozen.tuple()) => each(record),
                    Entry::Record(_) => {}
                }
            }
            overwrite(&mut entry);
        }
        Ok(damaged)
    }

    fn header(&self, entry_bytes: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..12].copy_from_slice(MAGIC);
        header[12..16].copy_from_slice(&VERSION.to_le_bytes());
        header[16..20].copy_from_slice(&(entry_bytes as u32).to_le_bytes());
        header[20..36].copy_from_slice(&self.owner);
        header[36..52].copy_from_slice(&self.boot);
        header
    }

    fn entry_bytes(&self, header: &[u8; HEADER]) -> Option<usize> {
        SIZES.into_iter().find(|size| self.header(*size) == *header)
    }

    /// Makes the files of a shard.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn shard(&self, shard: u16) -> io::Result<RecordFiles> {
        let mut files = Vec::with_capacity(SIZES.len());
        for size in SIZES {
            let path = self.path.join(format!("{}-{shard}-{size}.frozen", self.generation));
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all_at(&self.header(size), 0)?;
            files.push(RecordFile { file, entries: 0, free: Vec::new() });
        }
        Ok(RecordFiles { files, buffer: Vec::with_capacity(SIZES[SIZES.len() - 1]) })
    }

    /// Removes the files of earlier processes: their records are in those of this one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove_earlier(&self) -> io::Result<()> {
        self.remove_below(self.generation)
    }

    /// Removes all files: no connection is frozen any more.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove_all(&self) -> io::Result<()> {
        self.remove_below(self.generation + 1)
    }

    fn remove_below(&self, below: u64) -> io::Result<()> {
        for (generation, path) in self.files()? {
            if generation < below {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// Files of one shard.
#[derive(Debug)]
pub struct RecordFiles {
    files: Vec<RecordFile>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct RecordFile {
    file: File,
    entries: u32,
    free: Vec<u32>,
}

impl RecordFiles {
    /// Writes a record. When it returns, the record outlives the process.
    ///
    /// # Errors
    /// `InvalidInput` for a session of more than [`SESSION_BYTES_MAX`] bytes or none; those of the file system.
    pub fn write(&mut self, frozen: &Frozen, session: &[u8]) -> io::Result<Place> {
        let size = SIZES.iter().position(|size| FIXED + session.len() <= *size && !session.is_empty());
        let Some(size) = size else { return Err(io::ErrorKind::InvalidInput.into()) };
        let entry = &mut self.buffer;
        entry.clear();
        entry.extend_from_slice(&[0; 4]);
        entry.extend_from_slice(&(session.len() as u16).to_le_bytes());
        entry.extend_from_slice(&frozen.to_bytes());
        entry.extend_from_slice(session);
        let sum = crc32fast::hash(&entry[4..]);
        entry[..4].copy_from_slice(&sum.to_le_bytes());
        let file = &mut self.files[size];
        let is_new = file.free.is_empty();
        let at = file.free.last().copied().unwrap_or(file.entries);
        // A new entry is written whole, so that a reader finds whole ones only.
        if is_new {
            entry.resize(SIZES[size], 0);
        }
        let written = file.file.write_all_at(entry, offset(size, at));
        overwrite(entry);
        written?;
        if is_new {
            file.entries += 1;
        } else {
            file.free.pop();
        }
        Ok(Place((size as u32) << SIZE_SHIFT | at))
    }

    /// Overwrites a record with zeroes: its connection is live, or has ended.
    ///
    /// # Errors
    /// Those of the file system. The record is then still there; a process that takes it over finds no connection.
    pub fn erase(&mut self, place: Place) -> io::Result<()> {
        if place == Place::NONE {
            return Ok(());
        }
        let (size, at) = ((place.0 >> SIZE_SHIFT) as usize, place.0 & ((1 << SIZE_SHIFT) - 1));
        static ZEROES: [u8; 1_024] = [0; 1_024];
        let file = &mut self.files[size];
        file.file.write_all_at(&ZEROES[..SIZES[size]], offset(size, at))?;
        file.free.push(at);
        Ok(())
    }
}

fn offset(size: usize, at: u32) -> u64 {
    HEADER as u64 + u64::from(at) * SIZES[size] as u64
}

enum Entry {
    Free,
    Damaged,
    Record(Record),
}

fn read_entry(entry: &[u8]) -> Entry {
    let len = usize::from(u16::from_le_bytes([entry[4], entry[5]]));
    if len == 0 {
        return Entry::Free;
    }
    let (fixed, session) = entry.split_at(FIXED);
    let sum = u32::from_le_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
    let whole = entry.get(4..FIXED + len).is_some_and(|covered| crc32fast::hash(covered) == sum);
    let frozen = fixed.last_chunk().filter(|_| whole).and_then(Frozen::from_bytes);
    frozen.map_or(Entry::Damaged, |frozen| Entry::Record(Record { frozen, session: session[..len].into() }))
}

/// Overwrites secrets in memory that is used again.
fn overwrite(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

/// Name of the boot of the host.
fn boot_of_host() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&hex, 16).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
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

        fn open(&self) -> RecordDir {
            RecordDir::open(&self.0, [7; 16]).unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn frozen(port: u16) -> Frozen {
        let mut bytes = [1; Frozen::BYTES];
        bytes[..36].copy_from_slice(&Tuple::new(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], port).into()).to_bytes());
        Frozen::from_bytes(&bytes).unwrap()
    }

    fn read(dir: &RecordDir) -> (Vec<(Tuple, usize)>, u64, usize) {
        let (mut found, mut unusable) = (Vec::new(), 0);
        let damaged = dir.read(
            |record| {
                assert!(record.session.iter().all(|byte| usize::from(*byte) == record.session.len() % 251));
                found.push((record.frozen.tuple(), record.session.len()));
            },
            |_| unusable += 1,
        );
        found.sort_unstable_by_key(|(tuple, _)| tuple.peer().port());
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
        let places: Vec<_> =
            (0..).zip(sizes).map(|(port, len)| files.write(&frozen(port), &session(len)).unwrap()).collect();
        assert!(files.write(&frozen(99), &session(SESSION_BYTES_MAX + 1)).is_err());
        assert!(files.write(&frozen(99), &[]).is_err());
        files.erase(places[1]).unwrap();
        files.erase(places[4]).unwrap();
        assert_eq!(files.write(&frozen(100), &session(50)).unwrap(), places[1], "its place is used again");
        let second = home.open();
        let (found, damaged, unusable) = read(&second);
        let ports: Vec<_> = found.iter().map(|(tuple, len)| (tuple.peer().port(), *len)).collect();
        let expected = [(0, 1), (2, 63), (3, 190), (5, 446), (6, 447), (7, SESSION_BYTES_MAX), (100, 50)];
        assert_eq!((ports.as_slice(), damaged, unusable), (&expected[..], 0, 0));
        let mut files = second.shard(0).unwrap();
        files.write(&frozen(1), &session(9)).unwrap();
        files.write(&frozen(2), &session(8)).unwrap();
        let (found, _, _) = read(&home.open());
        let of_one: Vec<_> = found.iter().filter(|(tuple, _)| tuple.peer().port() == 1).collect();
        assert_eq!((of_one.len(), of_one[0].1), (1, 9), "its latest record");
        second.remove_earlier().unwrap();
        assert_eq!(read(&home.open()).0.len(), 2, "those of the first process are gone");
    }

    #[test]
    fn a_damaged_record_is_skipped_and_a_foreign_file_is_named() {
        let home = Dir::new("damaged");
        let first = home.open();
        let mut files = first.shard(0).unwrap();
        for port in 0..3 {
            files.write(&frozen(port), &session(40)).unwrap();
        }
        let path = home.0.join("0-0-128.frozen");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0xff], 64 + 128 + 70).unwrap();
        // A part of an entry, as a full tmpfs leaves it.
        file.write_all_at(&[1; 50], 64 + 3 * 128).unwrap();
        let (found, damaged, unusable) = read(&home.open());
        assert_eq!((found.len(), damaged, unusable), (2, 1, 0));
        let refused = RecordDir::open(&home.0, [8; 16]).unwrap_err();
        assert!(refused.to_string().contains("another data directory"), "{refused}");
        // Files of an earlier boot are void.
        let names = ["0-0-128", "0-0-256", "0-0-512", "0-0-1024"];
        for name in names {
            let path = home.0.join(format!("{name}.frozen"));
            OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 16], 36).unwrap();
        }
        let other = RecordDir::open(&home.0, [8; 16]).unwrap();
        assert_eq!(read(&other), (Vec::new(), 0, 4));
        other.shard(0).unwrap();
        other.remove_all().unwrap();
        assert_eq!(fs::read_dir(&home.0).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_may_read_or_that_is_on_a_disk_is_refused() {
        let home = Dir::new("modes");
        drop(home.open());
        fs::set_permissions(&home.0, fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(RecordDir::open(&home.0, [0; 16]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // Where the sources are on a tmpfs, they are readable by others.
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
        let kind = RecordDir::open(sources, [0; 16]).unwrap_err().kind();
        assert!(matches!(kind, io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied), "{kind}");
    }
}
