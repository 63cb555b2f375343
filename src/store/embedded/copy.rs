//! Copies of a store: the online backup, and salvage of a damaged one.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use fjall::{Keyspace, PersistMode, Readable};

use super::database::{Database, KEYSPACES};
use super::fault::{Cause, StoreFault};
use super::rows::Record;
use super::{Embedded, journal, prepare};

/// Rows of one write batch of a copy.
const ROWS_PER_BATCH: usize = 1_024;
/// How finely salvage splits a range that cannot be read, in bits of its keys: the smallest gap it leaves is one
/// user in 2^32.
const SPLIT_BITS_MAX: u32 = 32;

/// What a copy holds.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Records of users.
    pub users: u64,
    /// Message and saved rows.
    pub messages: u64,
    /// Topic rows.
    pub topics: u64,
    /// Ranges of keys that could not be read; 0 for a backup.
    pub unreadable_ranges: u64,
    /// Stretches of journals that are not batches; 0 for a backup.
    pub damaged_journals: u64,
    /// Whether the tables could not be opened, so that only what the journals hold is there.
    pub journals_only: bool,
}

impl Embedded {
    /// Copies the store as it is now to `dest`, a new directory that can be opened in its place. The store stays in
    /// use meanwhile. Runs on the caller's thread.
    ///
    /// # Errors
    /// When `dest` is not empty or not writable, or a row cannot be read.
    pub fn backup(&self, dest: &Path) -> Result<Copied, StoreFault> {
        let Some(db) = &self.db else { return Err(StoreFault::new(&self.dir, Cause::Closed)) };
        let mut target = Target::create(dest)?;
        let snapshot = db.fjall.snapshot();
        let mut copied = Copied::default();
        for (nth, keyspace) in keyspaces(db).into_iter().enumerate() {
            for row in snapshot.iter(keyspace) {
                let (key, value) = row.into_inner().map_err(|e| StoreFault::database(&self.dir, e))?;
                target.put(nth, &key, &value)?;
                copied.count(nth);
            }
        }
        target.finish()?;
        Ok(copied)
    }
}

/// Restores what is readable of the store in `dir` to `dest`, a new directory. The files of `dir` are only read;
/// needs room for two copies while it runs.
///
/// # Errors
/// When `dir` is in use, `dest` is not empty or not writable, or the files cannot be read at all.
pub fn salvage(dir: &Path, dest: &Path) -> Result<Copied, StoreFault> {
    let _lock = super::take_lock(dir)?;
    let source = dir.join("db");
    let mut target = Target::create(dest)?;
    let work = dest.join("work");
    let mut copied = Copied::default();
    let journals = mended_copy(&source, &work, &mut copied)?;
    match Database::open(&work, 16 << 20) {
        Ok(db) => {
            for (nth, keyspace) in keyspaces(&db).into_iter().enumerate() {
                let mut salvage = Salvage { keyspace, nth, target: &mut target, copied: &mut copied };
                salvage.range(&[], None, 0)?;
            }
        }
        Err(_) => {
            copied.journals_only = true;
            replay(&journals, &mut target, &mut copied)?;
        }
    }
    target.finish()?;
    fs::remove_dir_all(&work).map_err(|e| StoreFault::io(&work, "remove", e))?;
    Ok(copied)
}

impl Copied {
    fn count(&mut self, keyspace: usize) {
        match keyspace {
            0 => self.users += 1,
            1 => self.messages += 1,
            2 => self.topics += 1,
            _ => {}
        }
    }
}

/// A store being written. Nothing else has it open: its lock is held.
struct Target {
    dest: PathBuf,
    db: Database,
    batch: fjall::OwnedWriteBatch,
    rows: usize,
    _lock: fs::File,
}

impl Target {
    fn create(dest: &Path) -> Result<Target, StoreFault> {
        if fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(StoreFault::new(dest, Cause::NotEmpty));
        }
        let lock = prepare(dest)?;
        let path = dest.join("db");
        let db = Database::open(&path, 16 << 20).map_err(|e| StoreFault::database(&path, e))?;
        let batch = db.fjall.batch().durability(None);
        Ok(Target { dest: dest.into(), db, batch, rows: 0, _lock: lock })
    }

    fn put(&mut self, nth: usize, key: &[u8], value: &[u8]) -> Result<(), StoreFault> {
        self.batch.insert(keyspaces(&self.db)[nth], key, value);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_BATCH) { self.write() } else { Ok(()) }
    }

    /// Puts a row that outlived damage. The write that set the mark of its user may not have, so it is set.
    fn restore(&mut self, nth: usize, key: &[u8], value: &[u8]) -> Result<(), StoreFault> {
        match Record::parse(value) {
            Some(mut record) if nth == 0 => {
                record.mark(true);
                self.put(nth, key, record.as_bytes())
            }
            Some(_) | None => self.put(nth, key, value),
        }
    }

    fn write(&mut self) -> Result<(), StoreFault> {
        let next = self.db.fjall.batch().durability(None);
        let full = std::mem::replace(&mut self.batch, next);
        full.commit().map_err(|e| StoreFault::database(&self.dest, e))
    }

    fn finish(mut self) -> Result<(), StoreFault> {
        self.write()?;
        self.db.fjall.persist(PersistMode::SyncAll).map_err(|e| StoreFault::database(&self.dest, e))
    }
}

/// In the order of `KEYSPACES`.
fn keyspaces(db: &Database) -> [&Keyspace; KEYSPACES.len()] {
    [&db.users, &db.messages, &db.topics, &db.meta]
}

/// Copies a database, keeping of its journals the whole batches only. Returns the journals' bytes in their order.
fn mended_copy(source: &Path, work: &Path, copied: &mut Copied) -> Result<Vec<Vec<u8>>, StoreFault> {
    let journals = journal::list(source)?;
    copy_tree(source, work, &journals)?;
    let mut kept = Vec::new();
    for path in &journals {
        let bytes = fs::read(path).map_err(|e| StoreFault::io(path, "read", e))?;
        let whole = journal::ending(&bytes) == journal::Ending::Whole;
        copied.damaged_journals += u64::from(!whole);
        let mended: Vec<u8> = journal::batches(&bytes).iter().flat_map(|b| bytes[b.span.clone()].to_vec()).collect();
        let name = path.file_name().unwrap_or_default();
        let to = work.join(name);
        fs::write(&to, &mended).map_err(|e| StoreFault::io(&to, "write", e))?;
        kept.push(mended);
    }
    Ok(kept)
}

fn copy_tree(from: &Path, to: &Path, without: &[PathBuf]) -> Result<(), StoreFault> {
    fs::create_dir_all(to).map_err(|e| StoreFault::io(to, "create", e))?;
    for entry in fs::read_dir(from).map_err(|e| StoreFault::io(from, "list", e))? {
        let entry = entry.map_err(|e| StoreFault::io(from, "list", e))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_tree(&source, &target, without)?;
        } else if !without.contains(&source) {
            fs::copy(&source, &target).map_err(|e| StoreFault::io(&source, "copy", e))?;
        }
    }
    Ok(())
}

/// The rows of journals alone, last write first; fjall numbers keyspaces from 1 in the order of their creation.
fn replay(journals: &[Vec<u8>], target: &mut Target, copied: &mut Copied) -> Result<(), StoreFault> {
    let mut rows: HashMap<(usize, Vec<u8>), (u64, Option<Vec<u8>>)> = HashMap::new();
    for bytes in journals {
        for batch in journal::batches(bytes) {
            for item in batch.items {
                let nth = item.keyspace.wrapping_sub(1) as usize;
                if nth >= KEYSPACES.len() {
                    continue;
                }
                let value = item.value.map(|value| bytes[value].to_vec());
                let row = rows.entry((nth, bytes[item.key].to_vec())).or_insert((0, None));
                if batch.seqno >= row.0 {
                    *row = (batch.seqno, value);
                }
            }
        }
    }
    for ((nth, key), (_, value)) in rows {
        if let Some(value) = value {
            target.restore(nth, &key, &value)?;
            copied.count(nth);
        }
    }
    Ok(())
}

/// Reads around damaged blocks of one keyspace.
struct Salvage<'a> {
    keyspace: &'a Keyspace,
    nth: usize,
    target: &'a mut Target,
    copied: &'a mut Copied,
}

impl Salvage<'_> {
    /// Copies what is readable between two keys: forwards to the first error, backwards to the first error, then
    /// the halves of what is between, down to a gap that is given up.
    fn range(&mut self, from: &[u8], to: Option<&[u8]>, bits: u32) -> Result<(), StoreFault> {
        let mut low = from.to_vec();
        let Err(()) = self.forwards(&mut low, to)? else { return Ok(()) };
        let mut high = to.map(<[u8]>::to_vec);
        let Err(()) = self.backwards(&low, &mut high)? else { return Ok(()) };
        let middle = midpoint(&low, high.as_deref());
        match middle {
            Some(middle) if bits < SPLIT_BITS_MAX => {
                self.range(&low, Some(&middle), bits + 1)?;
                self.range(&middle, high.as_deref(), bits + 1)
            }
            Some(_) | None => {
                self.copied.unreadable_ranges += 1;
                Ok(())
            }
        }
    }

    /// `Err` inside when a row could not be read; `low` is then just behind the last one that could.
    fn forwards(&mut self, low: &mut Vec<u8>, to: Option<&[u8]>) -> Result<Result<(), ()>, StoreFault> {
        for row in self.keyspace.range(bounds(low, to)) {
            let Ok((key, value)) = row.into_inner() else { return Ok(Err(())) };
            self.target.restore(self.nth, &key, &value)?;
            self.copied.count(self.nth);
            *low = [&key[..], &[0]].concat();
        }
        Ok(Ok(()))
    }

    /// As `forwards` from the other end; `high` is then the first one that could be read.
    fn backwards(&mut self, low: &[u8], high: &mut Option<Vec<u8>>) -> Result<Result<(), ()>, StoreFault> {
        for row in self.keyspace.range(bounds(low, high.as_deref())).rev() {
            let Ok((key, value)) = row.into_inner() else { return Ok(Err(())) };
            self.target.restore(self.nth, &key, &value)?;
            self.copied.count(self.nth);
            *high = Some(key.to_vec());
        }
        Ok(Ok(()))
    }
}

type Bounds = (std::ops::Bound<Vec<u8>>, std::ops::Bound<Vec<u8>>);

fn bounds(from: &[u8], to: Option<&[u8]>) -> Bounds {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    (Included(from.to_vec()), to.map_or(Unbounded, |to| Excluded(to.to_vec())))
}

/// A key about halfway by its first 16 bytes; `None` when there is none strictly between.
fn midpoint(low: &[u8], high: Option<&[u8]>) -> Option<Vec<u8>> {
    let number = |key: &[u8]| {
        let mut bytes = [0; 16];
        let count = key.len().min(16);
        bytes[..count].copy_from_slice(&key[..count]);
        u128::from_be_bytes(bytes)
    };
    let (from, to) = (number(low), high.map_or(u128::MAX, number));
    let middle = from + to.checked_sub(from)? / 2;
    let key = middle.to_be_bytes().to_vec();
    (key.as_slice() > low && high.is_none_or(|high| key.as_slice() < high)).then_some(key)
}
