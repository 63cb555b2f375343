//! Copies of a store: the online backup, and the new store that a copy is written to.

use std::fs;
use std::path::{Path, PathBuf};

use fjall::{Keyspace, PersistMode, Readable};

use super::database::{Database, KEYSPACES};
use super::directory::prepare;
use super::error::{Cause, StoreOpenError};
use super::store::Embedded;

/// Rows of one write batch of a copy.
const ROWS_PER_BATCH: usize = 1_024;
/// Block cache of a copy, bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// Contents of a copy.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Copied {
    pub users: u64,
    /// Message and saved rows.
    pub messages: u64,
    pub topics: u64,
    /// Blocks of tables that could not be read; 0 for a backup, as all below.
    pub unreadable_blocks: u64,
    /// Tables that are missing or could not be read at all: their content is unknown.
    pub unreadable_tables: u64,
    /// Unreadable manifests of keyspaces: the number of their missing tables is unknown.
    pub damaged_manifests: u64,
    /// Rows in those blocks, with earlier versions of rows and with deletes.
    pub lost_rows: u64,
    /// Journals with stretches that are not batches.
    pub damaged_journals: u64,
}

impl Embedded {
    /// Copies the store as it is now to `dest`, a new directory that can be opened in its place. The store stays in
    /// use meanwhile. Runs on the caller's thread.
    ///
    /// # Errors
    /// If `dest` is not empty or not writable, or a row cannot be read.
    pub fn backup(&self, dest: &Path) -> Result<Copied, StoreOpenError> {
        let Some(db) = &self.db else { return Err(StoreOpenError::new(&self.dir, Cause::Closed)) };
        let mut target = Target::create(dest)?;
        let snapshot = db.fjall.snapshot();
        let mut copied = Copied::default();
        for (nth, keyspace) in keyspaces(db).into_iter().enumerate() {
            for row in snapshot.iter(keyspace) {
                let (key, value) = row.into_inner().map_err(|e| StoreOpenError::database(&self.dir, e))?;
                target.put(nth, &key, &value)?;
                copied.count(nth);
            }
        }
        target.finish()?;
        Ok(copied)
    }
}

impl Copied {
    pub fn is_whole(&self) -> bool {
        self.losses() + self.damaged_journals == 0
    }

    /// Sum of all losses in tables.
    pub(super) fn losses(&self) -> u64 {
        self.unreadable_blocks + self.unreadable_tables + self.damaged_manifests + self.lost_rows
    }

    /// Takes back one row that was counted.
    pub(super) fn uncount(&mut self, keyspace: usize) {
        let count = if keyspace == 1 { &mut self.messages } else { &mut self.topics };
        *count = count.saturating_sub(1);
    }

    pub(super) fn count(&mut self, keyspace: usize) {
        match keyspace {
            0 => self.users += 1,
            1 => self.messages += 1,
            2 => self.topics += 1,
            _ => {}
        }
    }
}

/// A store being written. Nothing else has it open: its lock is held.
pub(super) struct Target {
    pub(super) dest: PathBuf,
    pub(super) db: Database,
    batch: fjall::OwnedWriteBatch,
    rows: usize,
    _lock: fs::File,
}

impl Target {
    pub(super) fn create(dest: &Path) -> Result<Target, StoreOpenError> {
        if fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(StoreOpenError::new(dest, Cause::NotEmpty));
        }
        let lock = prepare(dest)?;
        let path = dest.join("db");
        let db = Database::open(&path, CACHE_BYTES).map_err(|e| StoreOpenError::database(&path, e))?;
        let batch = db.fjall.batch().durability(None);
        Ok(Target { dest: dest.into(), db, batch, rows: 0, _lock: lock })
    }

    pub(super) fn put(&mut self, nth: usize, key: &[u8], value: &[u8]) -> Result<(), StoreOpenError> {
        self.batch.insert(keyspaces(&self.db)[nth], key, value);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_BATCH) { self.write() } else { Ok(()) }
    }

    pub(super) fn remove(&mut self, nth: usize, key: &[u8]) -> Result<(), StoreOpenError> {
        self.batch.remove(keyspaces(&self.db)[nth], key);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_BATCH) { self.write() } else { Ok(()) }
    }

    pub(super) fn write(&mut self) -> Result<(), StoreOpenError> {
        let next = self.db.fjall.batch().durability(None);
        let full = std::mem::replace(&mut self.batch, next);
        full.commit().map_err(|e| StoreOpenError::database(&self.dest, e))
    }

    pub(super) fn finish(mut self) -> Result<(), StoreOpenError> {
        self.write()?;
        self.db.fjall.persist(PersistMode::SyncAll).map_err(|e| StoreOpenError::database(&self.dest, e))
    }
}

/// In the order of `KEYSPACES`.
fn keyspaces(db: &Database) -> [&Keyspace; KEYSPACES.len()] {
    [&db.users, &db.messages, &db.topics, &db.meta, &db.channels]
}
