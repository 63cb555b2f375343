//! News of the gate for a shard, and the counts of the gate.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use crate::queue::Segment;
use crate::table::ConnName;

/// Something that a shard is told.
#[derive(Clone, Copy, Debug)]
pub enum News {
    /// A segment for this connection waits for [`crate::ShardGate::accept`] or [`crate::ShardGate::drop`], since the
    /// reader has read it at this time.
    Segment(ConnName, Segment, Instant),
    /// The grace period of the batch is over: its connections may be checked.
    GraceOver,
}

/// Counts of the gate, over all shards. The reader writes them.
#[derive(Default, Debug)]
pub struct GateStats {
    /// Segments that waited in the queue.
    pub judged: AtomicU64,
    /// Of those, segments of no connection in the table: new connections, and strangers.
    pub unknown: AtomicU64,
    /// Of those, packets that were dropped because they could not be read, or their shard had too much to do.
    pub dropped: AtomicU64,
}
