//! Settings and state of the calls of other nodes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::nodes::NodeTable;

use super::queue::{PeerQueue, TrustRoots};

/// Settings and state of the calls of other nodes.
#[derive(Clone)]
pub struct PeerCalls {
    /// Names the debts of this boot; random.
    pub id: u64,
    /// File with the nodes that are owed notifications while the database does not take that; `None`: not kept.
    pub unwritten: Option<PathBuf>,
    /// Queue that the shards push to.
    pub peers: Arc<PeerQueue>,
    /// Table of nodes, with the runs that are over.
    pub nodes: Arc<dyn NodeTable>,
    /// `node.connections`: maximum number of connections to each node, kept open while they are used.
    pub connections_max: usize,
    /// `node.connect_timeout`: name, TCP and TLS.
    pub connect_timeout: Duration,
    /// `node.request_timeout`: from a request to the end of its answer, and the longest wait of a call for a
    /// connection.
    pub request_timeout: Duration,
    /// Most notifications owed to one node: [`machine::peers::RETRY_QUEUE_MAX`].
    pub retry_queue_max: usize,
    /// Time without an answer after which the boot of a node with a lapsed lease counts as gone.
    pub gone_time: Duration,
    /// `node.ca`, read: the authorities that `https` calls trust, and no others.
    pub trust: TrustRoots,
}
