//! Scenarios on a mesh of shards.
