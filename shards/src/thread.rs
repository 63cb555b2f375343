//! One pinned thread per shard.
