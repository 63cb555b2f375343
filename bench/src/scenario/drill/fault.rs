//! Faults of a drill, and what each may and may not cost.

use std::fmt;

use rustix::process::geteuid;

use crate::target::value_name;

/// One fault.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing: nodes of both roles, users that move.
    None,
    /// Nothing: nodes with one role each.
    Split,
    /// A node is killed with signal 9 and comes back with its ledger.
    Kill,
    /// `delivery.durable`: a node is killed and never comes back.
    KillForGood,
    /// Every node in turn is told to stop, and starts again.
    Rolling,
    /// The nodes do not reach each other; users and the database are reached.
    Cut,
    /// The same by the kernel: each node is in a network namespace, and the links between them go down. Needs root.
    LinksDown,
    /// A node stands still (SIGSTOP) and goes on.
    Paused,
    /// A node and the database do not reach each other; its users and the other nodes reach it. In network namespaces,
    /// so it needs root.
    DatabaseCut,
    /// A node is killed and comes back with its ledger at another address and `node.url`.
    NewAddress,
    /// One of three database nodes stands still and misses writes without hints; then it goes on and another stands
    /// still, so that every quorum needs it.
    Divergent,
    /// One of three database nodes is killed and comes back.
    DatabaseNode,
    /// The whole database stands still.
    DatabaseStopped,
    /// The database answers late: it stands still three quarters of the time.
    DatabaseSlow,
    /// The clock of one node is three seconds ahead.
    Clocks,
    /// The clock of one node is set an hour forward, and right again.
    ClockSet,
}

impl Fault {
    /// Returns true if an ack may go unread or its delete be lost, so that a message may come again.
    pub fn loses_acks(self) -> bool {
        !matches!(self, Fault::None | Fault::Split | Fault::Rolling | Fault::Clocks | Fault::ClockSet)
    }

    /// Returns true if every 5xx answer to a POST must be a 503 with a time to come again: it then says that the store
    /// is away, or in doubt. In the other faults a node that dies or stops answers as it can.
    pub(super) fn refuses_in_order(self) -> bool {
        matches!(
            self,
            Fault::Divergent | Fault::DatabaseNode | Fault::DatabaseStopped | Fault::DatabaseSlow | Fault::ClockSet
        )
    }

    /// Offset in milliseconds of the first node's clock at the start, if the node has a clock of its own.
    pub(super) fn clock_ahead(self) -> Option<i64> {
        match self {
            Fault::Clocks => Some(3_000),
            Fault::ClockSet => Some(0),
            _ => None,
        }
    }

    /// Returns true if it does not affect the sessions of this node, so that all of them stay.
    pub(super) fn leaves_alone(self, node: usize) -> bool {
        match self {
            Fault::None | Fault::Split | Fault::Cut | Fault::LinksDown | Fault::Clocks | Fault::ClockSet => true,
            Fault::Kill | Fault::KillForGood | Fault::Paused | Fault::DatabaseCut | Fault::NewAddress => node != 0,
            Fault::Divergent => true,
            Fault::Rolling | Fault::DatabaseNode | Fault::DatabaseStopped | Fault::DatabaseSlow => false,
        }
    }

    /// Requirement that is missing here, if any.
    pub(super) fn lacks(self, databases: usize) -> Option<&'static str> {
        match self {
            Fault::DatabaseNode | Fault::Divergent if databases < 3 => Some("needs three database nodes"),
            Fault::LinksDown | Fault::DatabaseCut if !geteuid().is_root() => Some("needs root"),
            _ => None,
        }
    }

    /// Returns true if the nodes stand in namespaces of their own.
    pub(super) fn wants_network(self) -> bool {
        matches!(self, Fault::LinksDown | Fault::DatabaseCut)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&value_name(self))
    }
}
