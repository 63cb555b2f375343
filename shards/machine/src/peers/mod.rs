//! Client of the other nodes of a cluster, without its I/O: the calls that wait for a node, its circuit, the
//! notifications that it is owed, and the debts that are written down for it (decision 0037).
//!
//! [`PeerClient`] takes the calls of the shards and the ends of what it has asked for, and returns [`PeerAction`]s. The
//! control plane of a node carries them out over HTTP and the database; the simulator does so in its own world.

mod action;
mod call;
mod circuit;
mod client;
mod debts;
mod peer;
mod retry_queue;

pub use action::{PeerAction, PeerConfig, PeerCounts, PeerNote};
pub use call::{BootRow, CallEnd, PeerCall};
pub use client::{NODES_MAX, PeerClient, WAITING_MAX};
pub use debts::{DEBT_INTERVAL, DEBT_SECONDS, DebtRow, DebtTime};
pub use peer::{PeerState, RETRY_CALLS_MAX};
pub use retry_queue::RETRY_QUEUE_MAX;

#[cfg(test)]
mod tests;
