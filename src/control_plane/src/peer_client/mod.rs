//! Calls of the other nodes of a cluster (PROTOCOL.md 4.1).
//!
//! `machine::peers` decides: which call is made when, and what a node is owed. [`queue`] carries calls from the shards
//! to the control plane and replies back; [`driver`] is the one task that carries the decisions out, with [`tasks`] and
//! [`connections`]; [`ask`] finds the server that answers at the URL of this one; [`wire`] is one call as bytes.
//!
//! Every part is bounded and every call gets its reply: what finds no place, no connection or an open circuit is
//! answered `Unreachable` at once, what gets no answer in time `NoAnswer`.

mod ask;

mod queue;

mod calls;

mod driver;

mod tasks;

mod unwritten;

mod connections;

mod wire;

mod stats;

#[cfg(test)]
mod tests;

pub use ask::{Answering, who_answers};
pub use calls::PeerCalls;
pub use queue::{PeerQueue, TrustRoots};

pub(super) use driver::PeerDriver;
pub use driver::{HAND_OVER_TIME_MAX, settle};
#[cfg(test)]
pub(super) use stats::OutcomeCounts;
pub(super) use stats::{PeerSnapshot, PeerSnapshots, PeerStatus};
