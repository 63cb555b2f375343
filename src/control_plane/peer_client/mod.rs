//! Calls of the other nodes of a cluster (PROTOCOL.md 4.1).
//!
//! [`queue`] carries calls from the shards to the control plane and replies back; [`driver`] is the one task that makes
//! them, and [`dispatcher`] its actions for each node; [`node`] is the state of one: its connections, its [`circuit`],
//! the calls that wait for it; [`ask`] finds the server that answers at the URL of this one; [`retry_queue`] has the
//! notifications that are called until the node answers; [`wire`] one call as bytes.
//!
//! Every part is bounded and every call gets its reply: what finds no place, no connection or an open circuit is
//! answered `Unreachable` at once, what gets no answer in time `NoAnswer`.

mod ask;

mod queue;

mod calls;

mod driver;

mod dispatcher;

mod node;

mod circuit;

mod retry_queue;

mod wire;

mod stats;

#[cfg(test)]
mod tests;

pub use ask::{Answering, who_answers};
pub use calls::PeerCalls;
pub use queue::{PeerQueue, TrustRoots};

pub(super) use driver::PeerDriver;
pub use driver::settle;
#[cfg(test)]
pub(super) use stats::OutcomeCounts;
pub(super) use stats::{PeerSnapshot, PeerSnapshots, PeerStatus};
