//! Settings of the client of the calls, what it asks its owner to do, and its numbers.

use std::sync::Arc;

use super::call::{BootRow, PeerCall};
use super::debts::DebtTime;
use crate::PeerReply;
use crate::time::TimeSpan;

/// Settings of the calls.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Names the debts of this boot; random.
    pub id: u64,
    /// `node.connections`: calls of one node under way.
    pub connections_max: usize,
    /// `node.request_timeout`: the longest wait of a call for a connection.
    pub request_timeout: TimeSpan,
    /// Time without an answer after which the boot of a node with a lapsed lease counts as gone.
    pub gone_time: TimeSpan,
    /// [`super::RETRY_QUEUE_MAX`].
    pub retry_queue_max: usize,
}

/// Work for the owner of the client. Ends come back to the client under the same URL.
#[derive(Debug)]
pub enum PeerAction<T> {
    /// Make this call. -> [`super::PeerClient::called`].
    Call { url: Arc<str>, call: PeerCall<T> },
    /// Tell the caller; not for a call that is owed. `sent`: the call was made.
    Reply { url: Arc<str>, call: PeerCall<T>, reply: PeerReply, sent: bool },
    /// Ask the node for any answer. -> [`super::PeerClient::probed`].
    Probe { url: Arc<str> },
    /// Read the row of the node. Only of boots that are known by now can it say that they are over.
    /// -> [`super::PeerClient::looked`].
    Look { url: Arc<str>, boots: Vec<u64> },
    /// Write that this boot of the node is over. -> [`super::PeerClient::buried`].
    Bury { url: Arc<str>, boots: Vec<u64>, row: BootRow },
    /// Write a debt to this node down. -> [`super::PeerClient::debt_written`].
    WriteDebt { url: Arc<str>, id: u64, time: DebtTime },
    /// Delete it: all of it is handed over. -> [`super::PeerClient::debt_cleared`].
    ClearDebt { url: Arc<str>, id: u64 },
    /// Log this.
    Note { url: Arc<str>, note: PeerNote },
}

/// Event for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerNote {
    /// The node does not answer.
    Opened,
    /// It answers again.
    Closed { owed: usize },
    /// Too many nodes are known; this one, which does not answer, is not any more.
    Forgotten { owed: usize },
    /// A boot of it is over, and what it was owed is dropped.
    Over { owed: usize },
    /// A boot of it was declared over by this node.
    Buried,
}

/// Numbers of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerCounts {
    /// Owed notifications that were answered later.
    pub answered: u64,
    /// Owed notifications given up because their boot is over.
    pub over: u64,
    /// Owed notifications forgotten because there were too many.
    pub dropped: u64,
    /// Owed notifications left to their nodes in the database, at the end.
    pub handed_over: u64,
    /// Circuits opened.
    pub opened: u64,
    /// Boots declared over.
    pub buried: u64,
    /// Debts written down, and writes that failed.
    pub written: u64,
    pub write_failures: u64,
}
