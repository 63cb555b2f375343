//! The nodes of a cluster: one row for each URL, on a shared store only (CLUSTER.md, table `node`), and the last time
//! at which each boot of them was seen (table `lease`). Beside them is what they owe each other (table `debt`).
//!
//! A node that leaves writes one row, not a million clears of presence: a reader that finds a presence row of an ended
//! boot knows that the user is not connected there.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use machine::NodeId;
use machine::peers::{BootRow, DebtRow, DebtTime};

/// The table of nodes. Shared by the thread that starts and stops a node and by the control plane.
pub trait NodeTable: Send + Sync + 'static {
    /// Writes that this boot of this node has begun: readers see its boot id from now on, for any state of the row
    /// before. Waits; called before the node takes its first connection.
    ///
    /// # Errors
    /// One sentence; the node does not start.
    fn enter(&self, node: &NodeId) -> Result<(), String>;

    /// Writes that this boot is over, once every session is saved; nothing when the row is of another boot. Waits.
    ///
    /// # Errors
    /// One sentence; others go on calling until the row expires or the node comes back.
    fn leave(&self, node: &NodeId) -> Result<(), String>;

    /// Writes that this boot goes on, unless the table says that it is over. Never waits, as [`NodeTable::look`].
    fn renew(&self, node: &NodeId) -> Renewal;

    /// Writes that a boot of another node is over, as [`NodeTable::leave`] does; false when that is not written. Never
    /// waits, as [`NodeTable::look`].
    fn bury(&self, node: &NodeId) -> Burial;

    /// The row of this URL; `None` if there is none or it cannot be read now. Never waits: the future does, on the
    /// control plane, and its caller bounds the time.
    fn read(&self, url: &str) -> NodeRowFuture;

    /// Writes that this boot, or what `id` names, owes a node notifications (decision 0037); false when that is not
    /// written. Never waits, as [`NodeTable::read`].
    fn write_debt(&self, url: &str, id: u64, time: DebtTime) -> DebtDone;

    /// Deletes such a row: all that `id` wrote, or, with `version`, no newer one. As [`NodeTable::write_debt`].
    fn clear_debt(&self, url: &str, id: u64, version: Option<i64>) -> DebtDone;

    /// The debts to a node; `None` if they cannot be read now. As [`NodeTable::write_debt`].
    fn debts(&self, url: &str) -> DebtRowsFuture;

    /// Lead of the database's clocks over the time of this process, in microseconds; `None` if they cannot be asked
    /// now. Never waits, as [`NodeTable::look`].
    fn clock_offset(&self) -> ClockOffsetFuture;

    /// Number of clocks of the database that can be asked now. Takes no time.
    fn clock_count(&self) -> usize;
}

/// Result of [`NodeTable::write_debt`] and [`NodeTable::clear_debt`].
pub type DebtDone = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Result of [`NodeTable::debts`].
pub type DebtRowsFuture = Pin<Box<dyn Future<Output = Option<Debts>> + Send>>;

/// Debts to one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Debts {
    /// Time of this process, in microseconds since the epoch; 0 while its clock cannot judge other nodes.
    pub now_us: u64,
    pub rows: Vec<DebtRow>,
}

/// Result of [`NodeTable::ahead`].
pub type ClockOffsetFuture = Pin<Box<dyn Future<Output = Option<i64>> + Send>>;

/// Result of [`NodeTable::bury`].
pub type Burial = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Result of [`NodeTable::renew`].
pub type Renewal = Pin<Box<dyn Future<Output = Renewed> + Send>>;

/// State of a boot, as it learns it while it renews its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// The lease is renewed.
    Kept,
    /// The database does not answer.
    Unknown,
    /// Another boot has the URL of this node.
    Taken,
    /// Another node has written that this boot is over.
    Buried,
}

/// Result of [`NodeTable::look`].
pub type NodeRowFuture = Pin<Box<dyn Future<Output = Option<NodeRow>> + Send>>;

/// Row of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRow {
    /// The last boot of the node.
    pub boot: u64,
    /// That boot is over: it ended in order, or another node found it gone.
    pub left: bool,
    /// Time since that boot renewed its lease, by the clock of this process; `None` of a boot that has none.
    pub silent: Option<Duration>,
}

/// Time between two renewals of a lease.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(30);
/// Silence after which a boot counts as gone if its address does not answer.
pub const SILENT_TIME: Duration = Duration::from_secs(600);
/// Silence after which a boot counts as gone for a command, which asks no address.
pub const SILENT_TIME_LONG: Duration = Duration::from_secs(86_400);

impl NodeRow {
    /// The row as the calls of other nodes judge it.
    pub fn judged(&self) -> BootRow {
        let lapsed = self.silent.is_some_and(|silent| silent >= SILENT_TIME);
        BootRow { boot: self.boot, left: self.left, lapsed }
    }
}
