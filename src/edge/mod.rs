//! The adapter between bytes and the shard machine.
