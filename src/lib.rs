//! murre: a push connection server. This crate is its edges: HTTP, configuration, assembly.
//!
//! **State lives in the crate `shards`; bytes live here and in the crates `protocol` and `store`.** Modules in
//! suggested reading order.

#![forbid(unsafe_code)]
// Types of features that were left out have no value, and the compiler sees that what takes one is never reached.
#![cfg_attr(not(feature = "bridges"), expect(unreachable_code))]

pub mod control_plane;

pub mod node;

pub mod client;

pub mod commands;

pub mod status;

pub mod version;

#[cfg(test)]
mod tidy;
