//! Calls of the other nodes of a cluster (PROTOCOL.md 4.1).
//!
//! [`lane`] carries calls from the shards to the island and replies back; [`caller`] is the one task that makes them,
//! and [`desk`] its actions for each node; [`node`] is the state of one: its connections, its [`circuit`], the calls
//! that wait for it; [`ask`] finds the server that answers at the URL of this one; [`owed`] has the notifications that
//! are called until the node answers; [`wire`] one call as bytes.
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

use store::nodes::Nodes;

pub(super) use caller::Caller;
pub use caller::settle;
#[cfg(test)]
pub(super) use numbers::Ends;
pub(super) use numbers::{Showcase, Shown, Standing};

/// Settings and state of the calls of other nodes.
#[derive(Clone)]
pub struct PeerCalls {
    /// Queue that the shards push to.
    pub peers: Arc<Peers>,
    /// Table of nodes, with the runs that are over.
    pub nodes: Arc<dyn Nodes>,
    /// `node.connections`: maximum number of connections to each node, kept open while they are used.
    pub connections_max: usize,
    /// `node.connect_timeout`: name, TCP and TLS.
    pub connect_timeout: Duration,
    /// `node.request_timeout`: from a request to the end of its answer, and the longest wait of a call for a
    /// connection.
    pub request_timeout: Duration,
    /// Time without an answer after which the run of a node with a lapsed lease counts as gone.
    pub gone_time: Duration,
    /// `node.ca`, read: the authorities that `https` calls trust, and no others.
    pub trust: Trust,
}
