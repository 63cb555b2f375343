//! Copies of a store: the online backup, and salvage of a damaged one.

use std::fs;
use std::path::{Path, PathBuf};

use fjall::{Keyspace, PersistMode, Readable};

use super::database::{Database, KEYSPACES};
use super::fault::{Cause, StoreFault};
use super::rows;
use super::{Embedded, journal, prepare};

/// Rows of one write batch of a copy.
const ROWS_PER_BATCH: usize = 1_024;
/// Block cache of a copy, bytes.
const CACHE_BYTES: u64 = 16 << 20;
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
    /// Whether the database did not open as a whole: its keyspaces were then opened one by one and the journals
    /// written over them (their rows are not in the counts above).
    pub opened_apart: bool,
    /// Keyspaces of which only the journals' rows are there.
    pub unreadable_keyspaces: u64,
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
    let opened = Database::open(&work, CACHE_BYTES);
    if let Ok(db) = &opened {
        for nth in 0..KEYSPACES.len() {
            restore_keyspace(db, nth, &mut target, &mut copied)?;
        }
    } else {
        copied.opened_apart = true;
        for nth in 0..KEYSPACES.len() {
            apart(&source, &dest.join(format!("apart-{nth}")), nth, &mut target, &mut copied)?;
        }
        replay(&journals, &mut target)?;
    }
    drop(opened);
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
        let db = Database::open(&path, CACHE_BYTES).map_err(|e| StoreFault::database(&path, e))?;
        let batch = db.fjall.batch().durability(None);
        Ok(Target { dest: dest.into(), db, batch, rows: 0, _lock: lock })
    }

    fn put(&mut self, nth: usize, key: &[u8], value: &[u8]) -> Result<(), StoreFault> {
        self.batch.insert(keyspaces(&self.db)[nth], key, value);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_BATCH) { self.write() } else { Ok(()) }
    }

    fn remove(&mut self, nth: usize, key: &[u8]) -> Result<(), StoreFault> {
        self.batch.remove(keyspaces(&self.db)[nth], key);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_BATCH) { self.write() } else { Ok(()) }
    }

    /// Puts a row that outlived damage. The write that set the mark of its user may not have, so it is set.
    fn restore(&mut self, nth: usize, key: &[u8], value: &[u8]) -> Result<(), StoreFault> {
        let mut value = value.to_vec();
        if nth == 0 {
            rows::set_mark(&mut value);
        }
        self.put(nth, key, &value)
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
    [&db.users, &db.messages, &db.topics, &db.meta, &db.channels]
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

fn restore_keyspace(db: &Database, nth: usize, target: &mut Target, copied: &mut Copied) -> Result<(), StoreFault> {
    Salvage { keyspace: keyspaces(db)[nth], nth, target, copied }.range(&[], None, 0)
}

/// Opens one keyspace of a database that does not open as a whole, in the place of an empty one of a new database.
fn apart(source: &Path, work: &Path, nth: usize, target: &mut Target, copied: &mut Copied) -> Result<(), StoreFault> {
    let made = Database::open(work, CACHE_BYTES).map_err(|e| StoreFault::database(work, e))?;
    drop(made);
    // fjall numbers keyspaces from 1 in the order of their creation.
    let place = format!("keyspaces/{}", nth + 1);
    let (from, to) = (source.join(&place), work.join(&place));
    fs::remove_dir_all(&to).map_err(|e| StoreFault::io(&to, "remove", e))?;
    // A database of an earlier version has fewer keyspaces.
    if from.is_dir() {
        copy_tree(&from, &to, &[])?;
    } else {
        return fs::remove_dir_all(work).map_err(|e| StoreFault::io(work, "remove", e));
    }
    match Database::open(work, CACHE_BYTES) {
        Ok(db) => restore_keyspace(&db, nth, target, copied)?,
        Err(_) => copied.unreadable_keyspaces += 1,
    }
    fs::remove_dir_all(work).map_err(|e| StoreFault::io(work, "remove", e))
}

/// Writes what the journals hold over what the tables held: it is the same or newer, deletes included.
fn replay(journals: &[Vec<u8>], target: &mut Target) -> Result<(), StoreFault> {
    let all = journals.iter().flat_map(|bytes| journal::batches(bytes).into_iter().map(move |batch| (bytes, batch)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, batch)| batch.seqno);
    for (bytes, batch) in all {
        for item in batch.items {
            let nth = item.keyspace.wrapping_sub(1) as usize;
            if nth >= KEYSPACES.len() {
                continue;
            }
            match item.value {
                Some(value) => target.restore(nth, &bytes[item.key], &bytes[value])?,
                None => target.remove(nth, &bytes[item.key])?,
            }
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
