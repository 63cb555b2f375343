//! Check of fjall's journals before fjall opens them, and the rows that salvage reads from them.
//!
//! fjall ends a journal silently at the first thing it cannot parse, wherever that is: a zeroed page in the middle
//! would take every acknowledged batch behind it. So each journal is walked first. A kill in the middle of a write
//! leaves a tail that is the clean beginning of a batch. Its operations were never answered, so it is cut off. Anything
//! else that is not a batch is damage, and the store is not opened (ARCHITECTURE.md 8.7).
//!
//! ```text
//! batch  start, items, end
//! start  1, item count 4, seqno 8
//! item   2, kind 1, compression 1, keyspace 8, key length 2, value length 4, length on disk 4, key, value
//! clear  4, keyspace 8
//! end    3, xxh3 of the items 8, "FJL" 3
//! ```
//! Little-endian; format 3 of fjall, which its version file states and fjall checks.

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::{Cause, StoreOpenError};

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const END_BYTES: usize = 13;
const ITEM_HEAD_BYTES: usize = 21;
const MAGIC: [u8; 4] = [b'F', b'J', b'L', 3];

/// One row of a batch.
pub(super) struct Item {
    /// fjall's number of the keyspace.
    pub(super) keyspace: u64,
    pub(super) key: Range<usize>,
    /// `None` is a delete.
    pub(super) value: Option<Range<usize>>,
}

/// One whole batch with the right check.
pub(super) struct Batch {
    pub(super) seqno: u64,
    pub(super) items: Vec<Item>,
    /// Position in its file.
    pub(super) span: Range<usize>,
}

/// End of a journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With whole batches, then nothing.
    Whole,
    /// With the beginning of a batch at this offset, then nothing.
    Torn(usize),
    /// With something at this offset that is not a batch, and not the beginning of one either.
    Damaged(usize),
}

/// The journals of a database in the order they were written.
pub(super) fn list(db: &Path) -> Result<Vec<PathBuf>, StoreOpenError> {
    let entries = match fs::read_dir(db) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(StoreOpenError::io(db, "list", e)),
    };
    let mut journals = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| StoreOpenError::io(db, "list", e))?.path();
        if path.extension().is_some_and(|e| e == "jnl") {
            let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
            let damaged = || StoreOpenError::new(&path, Cause::Damaged("its name is not a number".into()));
            journals.push((number.ok_or_else(damaged)?, path));
        }
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// Walks every journal of a database before it is opened; cuts a torn tail off the last one.
///
/// # Errors
/// If a journal is damaged or cannot be read.
pub(super) fn check(db: &Path) -> Result<(), StoreOpenError> {
    let journals = list(db)?;
    for (nth, path) in journals.iter().enumerate() {
        let bytes = fs::read(path).map_err(|e| StoreOpenError::io(path, "read", e))?;
        let last = nth + 1 == journals.len();
        match ending(&bytes) {
            Ending::Whole => {}
            Ending::Torn(at) if last => {
                let cut = || {
                    let file = OpenOptions::new().write(true).open(path)?;
                    file.set_len(at as u64)?;
                    file.sync_all()
                };
                cut().map_err(|e| StoreOpenError::io(path, "shorten", e))?;
            }
            Ending::Torn(at) | Ending::Damaged(at) => {
                let what = format!("its batch at byte {at} is not whole");
                return Err(StoreOpenError::new(path, Cause::Damaged(what)));
            }
        }
    }
    Ok(())
}

/// Finds the end of this journal.
pub(super) fn ending(bytes: &[u8]) -> Ending {
    let used = used(bytes);
    let mut at = 0;
    while at < used {
        match parse(bytes, at) {
            Ok(batch) => at = batch.span.end,
            Err(stop) => {
                let torn = stop.prefix_until >= used && next_batch(bytes, at + 1, used).is_none();
                return if torn { Ending::Torn(at) } else { Ending::Damaged(at) };
            }
        }
    }
    Ending::Whole
}

/// Every whole batch of a journal, those behind a damaged place included.
pub(super) fn batches(bytes: &[u8]) -> Vec<Batch> {
    let used = used(bytes);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(batch) = next_batch(bytes, at, used) {
        at = batch.span.end;
        found.push(batch);
    }
    found
}

/// Number of bytes before the zeros of preallocated space, of which a journal has up to 64 MiB.
fn used(bytes: &[u8]) -> usize {
    const PAGE: usize = 4096;
    let pages = bytes.chunks(PAGE).enumerate();
    let last = pages.rev().find(|(_, page)| *page != &[0; PAGE][..page.len()]);
    last.and_then(|(nth, page)| Some(nth * PAGE + page.iter().rposition(|&byte| byte != 0)? + 1)).unwrap_or(0)
}

fn next_batch(bytes: &[u8], from: usize, used: usize) -> Option<Batch> {
    // Only a start with an entry behind it is worth parsing.
    let plausible = |at: &usize| bytes.get(*at) == Some(&START) && matches!(bytes.get(at + 13), Some(&(ITEM | CLEAR)));
    (from..used).filter(plausible).find_map(|at| parse(bytes, at).ok())
}

/// Reason for which there is no whole batch.
struct Stop {
    /// End of the bytes that are the beginning of a batch, if the rest of it is missing.
    prefix_until: usize,
}

/// The batch at `at`.
fn parse(bytes: &[u8], at: usize) -> Result<Batch, Stop> {
    let mut cursor = Cursor { bytes, at };
    let stop = |prefix_until| Stop { prefix_until };
    let cut = |cursor: &Cursor| Stop { prefix_until: cursor.bytes.len() };
    if cursor.byte() != Some(START) {
        return Err(stop(at));
    }
    let (Some(count), Some(seqno)) = (cursor.u32(), cursor.u64()) else { return Err(cut(&cursor)) };
    let mut items = Vec::new();
    let body = cursor.at;
    for _ in 0..count {
        let entry = cursor.at;
        match cursor.byte() {
            Some(ITEM) => match cursor.item() {
                Ok(item) => items.push(item),
                Err(None) => return Err(cut(&cursor)),
                // A cut inside the head of an item leaves zeros in the rest of it.
                Err(Some(Invalid)) => return Err(stop(entry + ITEM_HEAD_BYTES)),
            },
            // murre clears no keyspace; the entry is read because the format has it.
            Some(CLEAR) => {
                if cursor.u64().is_none() {
                    return Err(cut(&cursor));
                }
            }
            Some(_) => return Err(stop(entry)),
            None => return Err(cut(&cursor)),
        }
    }
    let end = cursor.at;
    match (cursor.byte(), cursor.u64(), cursor.take(MAGIC.len())) {
        (Some(END), Some(check), Some(magic)) if bytes.get(magic.clone()) == Some(&MAGIC[..]) => {
            let whole = xxhash_rust::xxh3::xxh3_64(&bytes[body..end]) == check;
            // With its end marker whole, a batch with a wrong check was not cut short.
            if whole { Ok(Batch { seqno, items, span: at..cursor.at }) } else { Err(stop(at)) }
        }
        (Some(END), _, _) => Err(stop(end + END_BYTES)),
        (Some(_), _, _) => Err(stop(end)),
        (None, _, _) => Err(cut(&cursor)),
    }
}

/// An item whose fields are not possible.
struct Invalid;

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len())?;
        let range = self.at..end;
        self.at = end;
        Some(range)
    }

    fn byte(&mut self) -> Option<u8> {
        let range = self.take(1)?;
        self.bytes.get(range.start).copied()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let range = self.take(N)?;
        self.bytes.get(range)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Parses an item behind its tag. `Err(None)` when the file ends in it.
    fn item(&mut self) -> Result<Item, Option<Invalid>> {
        let kind = self.byte().ok_or(None)?;
        let compression = self.byte().ok_or(None)?;
        let keyspace = self.u64().ok_or(None)?;
        let key = usize::from(self.array().map(u16::from_le_bytes).ok_or(None)?);
        let value = self.u32().ok_or(None)?;
        let on_disk = self.u32().ok_or(None)?;
        // Journals are written uncompressed. A header that was cut has zeros in its later fields.
        if kind > 2 || compression != 0 || (value != on_disk && on_disk != 0) {
            return Err(Some(Invalid));
        }
        let key = self.take(key).ok_or(None)?;
        let value = self.take(on_disk as usize).ok_or(None)?;
        Ok(Item { keyspace, key, value: (kind == 0).then_some(value) })
    }
}
