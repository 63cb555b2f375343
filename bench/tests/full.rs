//! Tests that only the full check runs: the load generator against real servers, and what takes long or needs more
//! programs.
//!
//! One binary, because each links the whole server. `slow_acks` and `allocations` are binaries of their own: one
//! measures a time, the other counts what its process allocates.

mod common;

mod backlog;
mod conformance;
mod drill;
mod fleet;
mod fleet_strange;
mod judges;
mod measure;
mod random_bytes;
mod scenarios;
mod sharding;
mod statements;
