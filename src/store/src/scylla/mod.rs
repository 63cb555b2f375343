//! The shared store: wide rows in ScyllaDB or Apache Cassandra, for more than one node (decision 0015).
//!
//! [`crate::shared`] says where and how, and describes the tables; `schema_apply` makes them, `connect` opens a session
//! as configured, with the login and the certificates of `access`, and `preflight` finds faults before anything is
//! promised; [`operator`] has the calls of commands.
//! [`Scylla`] is the store: `port` is a shard's side of it, `scheduler` keeps the operations of each user in order,
//! `ops` turns each of them into statements, `statements` has their text, and `client` sends them within limits of time
//! and number.
//! Lives on: a runtime of its own; shards reach it through bounded queues only.

mod schema_apply;

pub(crate) mod connect;

mod access;

mod batch;

mod explain;

mod haste;

mod preflight;

pub mod maintain;

pub mod operator;

mod backend;

mod blocking;

mod breaker;

mod client;

mod user_cache;

mod scheduler;

mod limit;

mod nodes;

mod ops;

mod port;

mod purge;

mod rows;

mod statements;

mod stats;

mod transfer;

pub use access::Access;

pub use backend::Scylla;

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod schema_tests;

#[cfg(test)]
mod connect_tests;

#[cfg(test)]
mod preflight_tests;

#[cfg(test)]
mod upkeep_tests;
