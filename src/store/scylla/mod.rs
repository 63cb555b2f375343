//! The shared store: wide rows in ScyllaDB or Apache Cassandra, for more than one node (DESIGN.md 7.2).
//!
//! [`schema`] is what the tables are, [`schema_apply`] makes them, [`connect`] opens a session as configured, and
//! [`preflight`] says what is wrong before anything is promised.
//! Lives on: the island's runtime; shards reach it through bounded queues only.

pub mod schema;

pub mod schema_apply;

pub mod connect;

mod explain;

pub mod preflight;

pub mod upkeep;

#[cfg(test)]
#[path = "../../../bench/src/cassandra.rs"]
pub(crate) mod cassandra;

#[cfg(test)]
mod schema_tests;

#[cfg(test)]
mod connect_tests;

#[cfg(test)]
mod preflight_tests;

#[cfg(test)]
mod upkeep_tests;
