//! Counters of the store.

use std::sync::atomic::{AtomicU64, Ordering};

use machine::counters;

counters! {
    /// Counters of the embedded store. Written by the committer, copied to a board about once a second.
    pub struct StoreStats {
        counter store_touches: "Refreshes of a user's expiry.",
        counter store_registers: "Channels registered.",
        counter store_registers_repeated: "Registers of a channel that was there already, answered without a write.",
        counter store_contacts: "Changes of how a user is reached.",
        counter store_unregisters: "Channels unregistered.",
        counter store_drops: "Users dropped by request.",
        counter store_idle_drops: "Users dropped at the end of a session because they had no channel.",
        counter store_publishes: "Messages stored, or refused because there is no subscription.",
        counter store_saves: "Batches of unacked directs saved.",
        counter store_saved_messages: "Unacked directs saved.",
        counter store_settles: "Batches of rows settled.",
        counter store_settled_rows: "Rows settled.",
        counter store_reads: "Reads answered by reader threads.",
        counter store_reads_behind_writes: "Reads answered by the committer because a write of their user came first.",
        counter store_groups: "Groups of operations committed.",
        counter store_group_operations: "Operations in those groups.",
        counter store_syncs: "Times the journal was synced.",
        counter store_sync_microseconds: "Time spent committing and syncing.",
        counter store_bytes_written: "Bytes of keys and values committed.",
        counter store_full: "Operations refused because the bound on disk use is reached or the disk is full.",
        counter store_user_full: "Messages refused because their user has too many rows.",
        counter store_share_full: "Messages refused because room is scarce, and their user and its address have more than their share of it.",
        counter store_transient: "Operations refused because storage is stalled, overloaded or failed.",
        counter store_rows_deleted: "Message and topic rows deleted, for any reason.",
        counter store_read_errors: "Reads that the database failed.",
        counter store_expired_reclaimed: "Expired rows reclaimed.",
        counter store_removed_rows: "Rows removed because their channel or user is no more.",
        counter store_idle_users_reclaimed: "Users reclaimed because nobody saw them for 60 days.",
        gauge store_queue: "Operations waiting for the committer.",
        gauge store_disk_bytes: "Bytes on disk as of the last look.",
        gauge store_disk_free_bytes: "Bytes that the file system of the store has left, as of the last look.",
        gauge store_room: "0 while everything is taken; 1: messages are refused, 2: registers, too, 3: only deletes are taken, 4: nothing is written.",
        gauge store_scarce: "1 while less than a fifth of the room is left, so that shares of it are given.",
        gauge store_cache_bytes: "Bytes in the cache of blocks; store.cache at most.",
        gauge store_buffer_bytes: "Bytes in write buffers that are not on disk as tables yet.",
        gauge store_circuit_open: "1 while a write is stalled and operations are refused at once.",
    }
}

/// Counts of threads other than the committer, which copies them into [`StoreStats`].
#[derive(Default)]
pub(super) struct Tally {
    pub(super) reads: AtomicU64,
    pub(super) read_errors: AtomicU64,
    pub(super) transient: AtomicU64,
}

impl Tally {
    /// Counts a read that the database failed; logs the first one, and later ones ever more rarely.
    pub(super) fn read_failed(&self, error: &fjall::Error) {
        let before = self.read_errors.fetch_add(1, Ordering::Relaxed);
        if before == 0 || (before + 1).is_power_of_two() {
            tracing::error!(count = before + 1, %error, "store read failed; a file may be damaged");
        }
    }

    pub(super) fn add(cell: &AtomicU64) {
        cell.fetch_add(1, Ordering::Relaxed);
    }
}
