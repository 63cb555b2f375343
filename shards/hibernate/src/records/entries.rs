//! Entries of the record files of one shard: written, taken back, and erased.
//!
//! A record may have the keys of a TLS connection. What seals with them is given up when the record is kept, and only
//! [`RecordFiles::take`] gives it back, which erases the record before it returns. So a sequence number of these keys
//! is used by this process or by the next one, and never by both.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::repair::Frozen;

/// Bytes of a file before its first entry.
pub(super) const HEADER: usize = 64;
/// Bytes of an entry before its session.
const FIXED: usize = 6 + Frozen::BYTES;
/// Sizes of entries, and the place of each size in a [`Place`].
pub(super) const SIZES: [usize; 4] = [128, 256, 512, 1_024];
const SIZE_MAX: usize = SIZES[SIZES.len() - 1];
const SIZE_SHIFT: u32 = 30;

/// Session of a record, as the shard has written it: it may have secrets. Overwritten when dropped.
pub struct Session(pub Box<[u8]>);

impl Drop for Session {
    fn drop(&mut self) {
        overwrite(&mut self.0);
    }
}

/// Overwrites secrets in memory that is used again.
pub(super) fn overwrite(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

/// Bytes of a session that an entry can have. A connection with more is not frozen.
pub const SESSION_BYTES_MAX: usize = SIZE_MAX - FIXED;

/// Place of an entry in the files of a shard. It is used up by the call that takes or leaves the entry.
#[derive(PartialEq, Eq, Debug)]
pub struct Place(u32);

impl Place {
    /// No entry: the connection is kept in memory only.
    pub const NONE: Place = Place(u32::MAX);
}

/// A file of records. Fault injection puts one that refuses in the place of a [`File`].
pub trait RecordFile: Send + std::fmt::Debug {
    /// Writes all bytes at this offset.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Reads all bytes at this offset.
    ///
    /// # Errors
    /// Those of the file system; `UnexpectedEof` behind the end.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
}

impl RecordFile for File {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(bytes, at)
    }
}

/// Files of one shard.
#[derive(Debug)]
pub struct RecordFiles {
    files: Vec<Entries>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Entries {
    file: Box<dyn RecordFile>,
    entries: u32,
    free: Vec<u32>,
}

impl RecordFiles {
    /// Uses these files, one for each size of an entry, which have a header and no entry.
    pub(super) fn new(files: Vec<Box<dyn RecordFile>>) -> RecordFiles {
        let entries = |file| Entries { file, entries: 0, free: Vec::new() };
        RecordFiles { files: files.into_iter().map(entries).collect(), buffer: Vec::with_capacity(SIZE_MAX) }
    }

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
        let written = file.file.write_at(entry, offset(size, at));
        overwrite(entry);
        if let Err(error) = written {
            // What was written of it must not be read as a record: its session goes on here.
            let _ = file.file.write_at(&ZEROES[..FIXED], offset(size, at));
            return Err(error);
        }
        if is_new {
            file.entries += 1;
        } else {
            file.free.pop();
        }
        Ok(Place((size as u32) << SIZE_SHIFT | at))
    }

    /// Takes the session of a record back. The record is overwritten with zeroes before it returns, so that no process
    /// can take the session over any more.
    ///
    /// # Errors
    /// Those of the file system, and `InvalidData` for an entry that another program has changed; with the place, where
    /// the record stays.
    pub fn take(&mut self, place: Place) -> Result<Session, (Place, io::Error)> {
        let (size, at) = place.parts();
        let entry = &mut self.buffer;
        entry.resize(SIZES[size], 0);
        let read = self.files[size].file.read_at(entry, offset(size, at));
        let session = match read.map(|()| read_entry(entry)) {
            Ok(Entry::Record(_, session)) => Ok(session),
            Ok(Entry::Free | Entry::Damaged) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) => Err(error),
        };
        overwrite(entry);
        match session.and_then(|session| self.zero(size, at).map(|()| session)) {
            Ok(session) => Ok(session),
            Err(error) => Err((place, error)),
        }
    }

    /// Overwrites a record with zeroes: its connection has ended.
    ///
    /// # Errors
    /// Those of the file system. The record is then still there; a process that takes it over finds no connection.
    pub fn erase(&mut self, place: Place) -> io::Result<()> {
        if place == Place::NONE {
            return Ok(());
        }
        let (size, at) = place.parts();
        self.zero(size, at)
    }

    fn zero(&mut self, size: usize, at: u32) -> io::Result<()> {
        let file = &mut self.files[size];
        file.file.write_at(&ZEROES[..SIZES[size]], offset(size, at))?;
        file.free.push(at);
        Ok(())
    }
}

static ZEROES: [u8; SIZE_MAX] = [0; SIZE_MAX];

impl Place {
    fn parts(&self) -> (usize, u32) {
        ((self.0 >> SIZE_SHIFT) as usize, self.0 & ((1 << SIZE_SHIFT) - 1))
    }
}

fn offset(size: usize, at: u32) -> u64 {
    HEADER as u64 + u64::from(at) * SIZES[size] as u64
}

pub(super) enum Entry {
    Free,
    Damaged,
    Record(Frozen, Session),
}

pub(super) fn read_entry(entry: &[u8]) -> Entry {
    let len = usize::from(u16::from_le_bytes([entry[4], entry[5]]));
    if len == 0 {
        return Entry::Free;
    }
    let (fixed, session) = entry.split_at(FIXED);
    let sum = u32::from_le_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
    let whole = entry.get(4..FIXED + len).is_some_and(|covered| crc32fast::hash(covered) == sum);
    let frozen = fixed.last_chunk().filter(|_| whole).and_then(Frozen::from_bytes);
    frozen.map_or(Entry::Damaged, |frozen| Entry::Record(frozen, Session(session[..len].into())))
}
