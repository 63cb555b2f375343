//! Calls of the other nodes of a cluster (PROTOCOL.md 4.1).
//!
//! [`lane`] carries calls from the shards to the island and replies back; [`caller`] is the one task that makes them,
//! and [`desk`] what it does about each node; [`node`] is what is known of one: its connections, its [`circuit`], who
//! waits for it; [`ask`] who answers at the URL of this one; [`owed`] the notifications that are called until somebody
//! answers; [`wire`] one call as bytes.
//!
//! Every part is bounded and every call gets its reply: what finds no place, no connection or an open circuit is
//! answered `Unreachable` at once, what gets no answer in time `NoAnswer`.

mod ask;

mod lane;

mod caller;

mod desk;

mod node;

mod circuit;

mod owed;

mod wire;

mod numbers;

#[cfg(test)]
mod tests;

pub use ask::{Answering, who_answers};
pub use lane::{Peers, Trust};

use std::sync::Arc;
use std::time::Duration;

use crate::store::nodes::Nodes;

pub(super) use caller::Caller;
pub use caller::settle;
#[cfg(test)]
pub(super) use numbers::Ends;
pub(super) use numbers::{Showcase, Shown, Standing};

/// How other nodes are called.
#[derive(Clone)]
pub struct PeerCalls {
    /// What the shards push to.
    pub peers: Arc<Peers>,
    /// Which runs of which nodes are over.
    pub nodes: Arc<dyn Nodes>,
    /// `node.connections`: to each node, kept open while they are used.
    pub connections_max: usize,
    /// `node.connect_timeout`: name, TCP and TLS.
    pub connect_timeout: Duration,
    /// `node.request_timeout`: from a request to the end of its answer, and what a call waits for a connection at most.
    pub request_timeout: Duration,
    /// How long a node whose lease has lapsed does not answer before its run counts as gone.
    pub gone_time: Duration,
    /// `node.ca`, read: whom to trust for `https`, and nobody else.
    pub trust: Trust,
}
