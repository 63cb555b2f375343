//! Who the nodes of a cluster are: one row for each URL, on a shared store only (CLUSTER.md, table `node`), and when
//! each run of them was last seen (table `lease`).
//!
//! A node that leaves writes one row, not a million clears of presence: whoever finds a presence row of a run that is
//! over knows that nobody is there.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use machine::NodeId;

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

    /// Writes that this run goes on, unless the table says that it is over. Never waits, as [`Nodes::look`].
    fn renew(&self, node: &NodeId) -> Renewal;

    /// Writes that a run of another node is over, as [`Nodes::leave`] does; false when that is not written. Never
    /// waits, as [`Nodes::look`].
    fn bury(&self, node: &NodeId) -> Burial;

    /// The row of this URL; `None` when there is none or it cannot be read now. Never waits: the future does, on the
    /// island, and whoever awaits it bounds its time.
    fn look(&self, url: &str) -> Look;

    /// How far the clocks of the database are ahead of the time of this process, in microseconds; `None` when they
    /// cannot be asked now. Never waits, as [`Nodes::look`].
    fn ahead(&self) -> Ahead;
}

/// What [`Nodes::ahead`] returns.
pub type Ahead = Pin<Box<dyn Future<Output = Option<i64>> + Send>>;

/// What [`Nodes::bury`] returns.
pub type Burial = Pin<Box<dyn Future<Output = bool> + Send>>;

/// What [`Nodes::renew`] returns.
pub type Renewal = Pin<Box<dyn Future<Output = Renewed> + Send>>;

/// State of a run, as it learns it while it renews its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// The lease is renewed.
    Kept,
    /// The database does not answer.
    Unknown,
    /// Another run has the URL of this node.
    Taken,
    /// Another node has written that this run is over.
    Buried,
}

/// What [`Nodes::look`] returns.
pub type Look = Pin<Box<dyn Future<Output = Option<NodeRow>> + Send>>;

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRow {
    /// The last run of the node.
    pub boot: u64,
    /// That run is over: it ended in order, or another node found it gone.
    pub left: bool,
    /// Time since that run renewed its lease, by the clock of this process; `None` of a run that has none.
    pub silent: Option<Duration>,
}

/// Time between two renewals of a lease.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(30);
/// Silence after which a run counts as gone if its address does not answer.
pub const SILENT_TIME: Duration = Duration::from_secs(600);
/// Silence after which a run counts as gone for a command, which asks no address.
pub const SILENT_TIME_LONG: Duration = Duration::from_secs(86_400);

impl NodeRow {
    /// Whether that run is over for good. Only for a run whose row was written before this one was read.
    pub fn is_over(&self, boot: u64) -> bool {
        self.left || self.boot != boot
    }
}
