//! Who the nodes of a cluster are: one row for each URL, on a shared store only (DESIGN.md 7.2, table `node`).
//!
//! A node that leaves writes one row, not a million clears of presence: whoever finds a presence row of a run that is
//! over knows that nobody is there.

use std::future::Future;
use std::pin::Pin;

use shards::machine::NodeId;

/// The table of nodes. Shared by the thread that starts and stops a node and by the island.
pub trait Nodes: Send + Sync + 'static {
    /// Writes that this run of this node has begun: readers see its boot id from now on, whatever the row said before.
    /// Waits; called before the node takes its first connection.
    ///
    /// # Errors
    /// One sentence; the node does not start.
    fn enter(&self, node: &NodeId) -> Result<(), String>;

    /// Writes that this run is over. Nothing when the row is another run's. Waits; called when every session is saved.
    ///
    /// # Errors
    /// One sentence; others go on calling until the row expires or the node comes back.
    fn leave(&self, node: &NodeId) -> Result<(), String>;

    /// The row of this URL; `None` when there is none or it cannot be read now. Never waits: the future does, on the
    /// island, and whoever awaits it bounds its time.
    fn look(&self, url: &str) -> Look;

    /// How far the clocks of the database are ahead of the time of this process, in microseconds; `None` when they
    /// cannot be asked now. Never waits, as [`Nodes::look`].
    fn ahead(&self) -> Ahead;
}

/// What [`Nodes::ahead`] returns.
pub type Ahead = Pin<Box<dyn Future<Output = Option<i64>> + Send>>;

/// What [`Nodes::look`] returns.
pub type Look = Pin<Box<dyn Future<Output = Option<NodeRow>> + Send>>;

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRow {
    /// The last run of the node.
    pub boot: u64,
    /// That run has ended in order.
    pub left: bool,
}

impl NodeRow {
    /// Whether that run is over for good. Only for a run whose row was written before this one was read.
    pub fn is_over(&self, boot: u64) -> bool {
        self.left || self.boot != boot
    }
}
