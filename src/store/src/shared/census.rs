//! Findings of `murre maintain shared` in a shared store, and the choice of the users that it drops.

use std::time::Duration;

/// Contents of the table of users.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Census {
    /// Partitions with a record.
    pub users: u64,
    /// Number of those by the days since they were last seen, in steps of [`AGES`].
    pub idle: [u64; AGES.len()],
    /// Partitions whose record is gone and other rows are not: they go by their TTL, or are purged.
    pub leftovers: u64,
    pub channels: u64,
    pub presences: u64,
    pub purged: u64,
    /// Users not seen for long enough that stay, because a node has a presence row of them.
    pub passed_by: u64,
}

/// Bounds of the ages by which users are counted, in days.
pub const AGES: [u64; 4] = [1, 7, 30, 60];

/// Users that are dropped.
#[derive(Clone, Copy, Debug)]
pub enum Purge {
    Nobody,
    /// Users not seen for this long and connected nowhere, and leftover rows of users that are gone.
    Idle(Duration),
}

impl Purge {
    /// Returns true if a user is dropped that was last seen this many seconds ago, or has no record, when it is
    /// connected nowhere.
    pub fn takes(self, idle: Option<u64>) -> bool {
        matches!(self, Purge::Idle(span) if idle.is_none_or(|idle| idle >= span.as_secs()))
    }
}

/// Size of one table on all nodes that answer. Each of them knows its own part.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Space {
    /// Nodes that answered.
    pub nodes: u64,
    /// Partitions, an estimate; each copy counts.
    pub partitions: u64,
    /// Their size in bytes, an estimate; each copy counts.
    pub bytes: u64,
    /// The greatest p99 of tombstones that a read passed; `None` if the database does not report it (ScyllaDB).
    pub tombstones_p99: Option<u64>,
    /// The most tombstones that a read passed.
    pub tombstones_max: Option<u64>,
}
