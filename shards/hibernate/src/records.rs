//! Files of frozen connections, from which the next process takes them over.
//!
//! Each shard writes files of its own, one for each size of an entry: 128, 256, 512 and 1,024 bytes. They lie in a
//! directory of a tmpfs, because an entry may have keys of TLS: they never reach a disk.
//!
//! ```text
//! file   header (64 bytes), entries
//! header "murre asleep" (12) | version u32 | entry bytes u32 | owner (16) | boot of the host (16) | 12 unused
//! entry  crc32 u32 | len u16 | connection (60) | session (len bytes) | unused
//! ```
//! An entry with `len` 0 is free. The checksum covers everything behind it. Numbers are little endian.
//!
//! `owner` names the data directory: records of another one are of users that this process does not know. Timestamps
//! count from the boot of the host, so records of another boot are void, like all connections of that time.
//!
//! One process holds the directory (`flock`) from before it reads a record until it has ended: two processes with the
//! records of one connection would seal with the same keys.
//!
//! Lives on: a [`RecordFiles`] on the thread of its shard; [`RecordDir`] on the starting thread.

mod entries;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::repair::Frozen;
use entries::{Entry, HEADER, SIZES, overwrite, read_entry};
pub use entries::{Place, RecordFile, RecordFiles, SESSION_BYTES_MAX, Session};

const MAGIC: &[u8; 12] = b"murre asleep";
const VERSION: u32 = 1;

/// A record of an earlier process.
pub struct Record {
    pub frozen: Frozen,
    pub session: Session,
}

/// A directory that this process holds: no other process reads or writes records in it. Released when dropped, and when
/// the process ends.
#[derive(Debug)]
pub struct HeldDir {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl HeldDir {
    /// Holds a directory, and makes it first with mode 0700 if it is not there.
    ///
    /// # Errors
    /// `WouldBlock` if another process holds it; those of the file system.
    pub fn make(path: &Path) -> io::Result<HeldDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        HeldDir::hold(path)
    }

    /// Holds a directory that is there.
    ///
    /// # Errors
    /// As [`HeldDir::make`]; `NotFound` if there is none.
    pub fn hold(path: &Path) -> io::Result<HeldDir> {
        let lock = File::open(path)?;
        match lock.try_lock() {
            Ok(()) => Ok(HeldDir { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of connections of this owner whose records are there.
    ///
    /// # Errors
    /// As [`RecordDir::open`] and [`RecordDir::read`].
    pub fn sessions(&self, owner: [u8; 16]) -> io::Result<u64> {
        let same = HeldDir { path: self.path.clone(), _lock: self._lock.try_clone()? };
        let mut sessions = 0;
        RecordDir::open(same, owner)?.read(|_| sessions += 1, |_| {})?;
        Ok(sessions)
    }

    /// Removes the records of this owner, and those that no process can take over, also in a directory that
    /// [`RecordDir::open`] refuses. Returns the number of removed files.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn clear(&self, owner: [u8; 16]) -> io::Result<usize> {
        let boot = boot_of_host()?;
        let mut removed = 0;
        for (_, path) in files(&self.path)? {
            if !is_of_another(&path, owner, boot)? {
                fs::remove_file(path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Directory of the files of all shards.
#[derive(Debug)]
pub struct RecordDir {
    dir: HeldDir,
    owner: [u8; 16],
    boot: [u8; 16],
    /// Number in the names of the files of this process: higher than that of any file there.
    generation: u64,
}

impl RecordDir {
    /// Opens a directory. `owner` names the data directory.
    ///
    /// # Errors
    /// `Unsupported` if it is not on a tmpfs; `PermissionDenied` if others may read it; `Other` if it has records of
    /// another data directory; those of the file system.
    pub fn open(dir: HeldDir, owner: [u8; 16]) -> io::Result<RecordDir> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        if rustix::fs::statfs(&dir.path)?.f_type as u64 != TMPFS_MAGIC {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is not on a tmpfs"));
        }
        let metadata = fs::metadata(&dir.path)?;
        if metadata.permissions().mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            let why = "others may read it: it must have mode 700 and belong to the user of murre";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let boot = boot_of_host()?;
        let mut generation = 0;
        for (earlier, path) in files(&dir.path)? {
            if is_of_another(&path, owner, boot)? {
                return Err(io::Error::other("it has records of another data directory: choose one for each"));
            }
            generation = generation.max(earlier + 1);
        }
        Ok(RecordDir { dir, owner, boot, generation })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.dir.path
    }

    /// Reads the records of earlier processes. Calls `each` for every connection, with its latest record, and
    /// `unusable` for every file that cannot be used: another version or boot. Returns the number of entries whose
    /// checksum is wrong, which it skips.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read(&self, mut each: impl FnMut(Record), mut unusable: impl FnMut(&Path)) -> io::Result<u64> {
        let mut files = files(&self.dir.path)?;
        files.retain(|(generation, _)| *generation < self.generation);
        // A process that ended while it took records over has left some of them twice: those of the latest process are
        // the ones that can have been used since.
        files.sort_unstable_by_key(|(generation, _)| std::cmp::Reverse(*generation));
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
                    Entry::Record(frozen, session) if is_one || seen.insert(frozen.tuple()) => {
                        each(Record { frozen, session });
                    }
                    Entry::Record(..) => {}
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
        self.shard_on(shard, |file| Box::new(file))
    }

    /// As [`RecordDir::shard`], with each file in the hands of `wrap`, which can refuse calls.
    ///
    /// # Errors
    /// As [`RecordDir::shard`].
    pub fn shard_on(&self, shard: u16, wrap: impl Fn(File) -> Box<dyn RecordFile>) -> io::Result<RecordFiles> {
        let mut files = Vec::with_capacity(SIZES.len());
        for size in SIZES {
            let path = self.dir.path.join(format!("{}-{shard}-{size}.frozen", self.generation));
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
            file.write_at(&self.header(size), 0)?;
            files.push(wrap(file));
        }
        Ok(RecordFiles::new(files))
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
        for (generation, path) in files(&self.dir.path)? {
            if generation < below {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// Files of records in a directory, with their generations.
fn files(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let generation = name.strip_suffix(".frozen").and_then(|name| name.split('-').next()?.parse().ok());
        files.extend(generation.map(|generation| (generation, path.clone())));
    }
    Ok(files)
}

/// Returns true if this file has records that a process with another data directory can take over.
fn is_of_another(path: &Path, owner: [u8; 16], boot: [u8; 16]) -> io::Result<bool> {
    let mut header = [0; HEADER];
    let is_whole = File::open(path)?.read_exact(&mut header).is_ok();
    let is_current = header[..12] == *MAGIC && header[36..52] == boot;
    Ok(is_whole && is_current && header[20..36] != owner)
}

/// Returns the name of the boot of the host.
///
/// # Errors
/// Those of the file system.
pub fn boot_of_host() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&hex, 16).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(number.to_be_bytes())
}
