//! The shared store: wide rows in ScyllaDB or Apache Cassandra, for more than one node (DESIGN.md 7.2).
//!
//! [`schema`] is what the tables are, [`connect`] opens a session as configured.
//! Lives on: the island's runtime; shards reach it through bounded queues only.

pub mod schema;

pub mod connect;
