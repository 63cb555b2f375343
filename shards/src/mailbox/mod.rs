//! Bounded lanes between shards, and how a parked shard is woken.
