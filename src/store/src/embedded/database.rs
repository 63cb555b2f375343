//! The fjall database: its five keyspaces and the settings that measurement chose (decision 0006).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::compaction::filter::Factory;
use fjall::config::{CompressionPolicy, PinningPolicy};
use fjall::{CompressionType, Keyspace, KeyspaceCreateOptions};

const MIB: u64 = 1 << 20;
/// Threads of fjall: one that only flushes, and two for each keyspace.
///
/// A compaction that waits for room or for its turn keeps a thread. When all but the first are kept, fjall 3.1 spins:
/// the first takes every request for a compaction out of the queue and puts it back. A keyspace rarely has more than
/// two compactions under way.
const WORKERS: usize = 1 + 2 * KEYSPACES.len();

/// Names of the keyspaces in the order of their creation; fjall numbers them from 1 in this order.
pub(super) const KEYSPACES: [&str; 5] = ["users", "messages", "topics", "meta", "channels"];

/// The filter of each keyspace's compactions, by its name.
pub(super) type Filters = Arc<dyn Fn(&str) -> Option<Arc<dyn Factory>> + Send + Sync>;

/// An open database. Shared by the committer, the readers and the keeper.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) fjall: fjall::Database,
    pub(super) users: Keyspace,
    pub(super) messages: Keyspace,
    pub(super) topics: Keyspace,
    pub(super) meta: Keyspace,
    pub(super) channels: Keyspace,
    /// False while certainly no user has dead rows, so that reads need not ask. Written by the committer.
    dead_rows: Arc<AtomicBool>,
}

impl Database {
    /// Opens or creates the database in `dir`.
    pub(super) fn open(dir: &Path, cache_bytes: u64) -> fjall::Result<Database> {
        Database::open_paced(dir, cache_bytes, Arc::new(|_| None))
    }

    /// As [`Database::open`], with these filters for the compactions of each keyspace.
    pub(super) fn open_paced(dir: &Path, cache_bytes: u64, filters: Filters) -> fjall::Result<Database> {
        let fjall = fjall::Database::builder(dir)
            .with_compaction_filter_factories(filters)
            .cache_size(cache_bytes)
            .journal_compression(CompressionType::None)
            // The committer syncs, once for each group.
            .manual_journal_persist(true)
            .max_journaling_size(256 * MIB)
            .worker_threads(WORKERS)
            .open()?;
        let open = |name: &str, memtable: u64| fjall.keyspace(name, || options(memtable * MIB));
        let [users, messages, topics, meta, channels] = KEYSPACES;
        let (users, messages) = (open(users, 8)?, open(messages, 32)?);
        let (topics, meta, channels) = (open(topics, 16)?, open(meta, 16)?, open(channels, 8)?);
        // The keeper looks for them.
        let dead_rows = Arc::new(AtomicBool::new(true));
        Ok(Database { fjall, users, messages, topics, meta, channels, dead_rows })
    }

    /// All keyspaces in the order of [`KEYSPACES`].
    pub(super) fn keyspaces(&self) -> [&Keyspace; KEYSPACES.len()] {
        [&self.users, &self.messages, &self.topics, &self.meta, &self.channels]
    }

    /// Returns false when certainly no row of `meta` names a user with dead rows.
    pub(super) fn has_dead_rows(&self) -> bool {
        self.dead_rows.load(Ordering::Acquire)
    }

    /// Notes that a user gets dead rows, before they are dead; or that none has any, which the committer has read.
    pub(super) fn set_dead_rows(&self, some: bool) {
        self.dead_rows.store(some, Ordering::Release);
    }

    /// Bytes in the cache of blocks, now.
    pub(super) fn cache_bytes(&self) -> u64 {
        self.fjall.cache_size()
    }

    /// Bytes in the write buffers of all keyspaces, now.
    pub(super) fn buffer_bytes(&self) -> u64 {
        self.fjall.write_buffer_size()
    }
}

/// Fixed at first creation: pinned indexes and filters halve the cost of a read; bodies are encrypted and
/// do not compress.
fn options(memtable_bytes: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .index_block_pinning_policy(PinningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .data_block_compression_policy(CompressionPolicy::disabled())
        .max_memtable_size(memtable_bytes)
        .manual_journal_persist(true)
}
