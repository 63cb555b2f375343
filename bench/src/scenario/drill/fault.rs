//! What breaks in a drill, and how it heals.

use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::town::Town;

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
    /// All of them, in the order of the table.
    pub const ALL: [Fault; 12] = [
        Fault::None,
        Fault::Split,
        Fault::Kill,
        Fault::KillForGood,
        Fault::Rolling,
        Fault::Cut,
        Fault::LinksDown,
        Fault::DatabaseNode,
        Fault::DatabaseStopped,
        Fault::DatabaseSlow,
        Fault::Clocks,
        Fault::ClockSet,
    ];

    /// Whether an ack may go unheard or its delete be lost, so that a message may come again.
    pub fn loses_acks(self) -> bool {
        !matches!(self, Fault::None | Fault::Split | Fault::Rolling | Fault::Clocks | Fault::ClockSet)
    }

    /// Whether a POST may be refused with another 5xx than 503 that says when to come again: a node that dies or stops
    /// answers what it can. In the others a refusal says that the store is away, or in doubt.
    pub(super) fn refuses_in_order(self) -> bool {
        matches!(self, Fault::DatabaseNode | Fault::DatabaseStopped | Fault::DatabaseSlow | Fault::ClockSet)
    }

    /// Whether the first node has a clock of its own, and how many milliseconds it is ahead at the start.
    pub(super) fn clock_ahead(self) -> Option<i64> {
        match self {
            Fault::Clocks => Some(3_000),
            Fault::ClockSet => Some(0),
            _ => None,
        }
    }

    /// Whether the sessions of this node are none of its business, so that all of them stay.
    pub(super) fn leaves_alone(self, node: usize) -> bool {
        match self {
            Fault::None | Fault::Split | Fault::Cut | Fault::LinksDown | Fault::Clocks | Fault::ClockSet => true,
            Fault::Kill | Fault::KillForGood => node != 0,
            Fault::Rolling | Fault::DatabaseNode | Fault::DatabaseStopped | Fault::DatabaseSlow => false,
        }
    }

    /// What it lacks here, if anything.
    pub(super) fn lacks(self, databases: usize) -> Option<&'static str> {
        match self {
            Fault::DatabaseNode if databases < 3 => Some("needs three database nodes"),
            Fault::LinksDown if !geteuid().is_root() => Some("needs root"),
            _ => None,
        }
    }

    /// Whether the nodes stand in namespaces of their own.
    pub(super) fn wants_network(self) -> bool {
        self == Fault::LinksDown
    }

    /// Breaks it, waits, and heals it.
    pub(super) fn strike(self, town: &mut Town, outage: Duration) -> io::Result<()> {
        match self {
            Fault::None | Fault::Split | Fault::Clocks => Ok(()),
            Fault::Kill => {
                town.kill(0)?;
                thread::sleep(Duration::from_secs(3));
                town.revive(0)
            }
            Fault::KillForGood => town.kill(0),
            Fault::Rolling => (0..town.nodes()).try_for_each(|node| {
                town.stop(node)?;
                thread::sleep(Duration::from_millis(500));
                town.revive(node)
            }),
            Fault::Cut | Fault::LinksDown => {
                town.cut(true)?;
                thread::sleep(outage);
                town.cut(false)
            }
            Fault::ClockSet => {
                town.set_clock(3_600_000)?;
                thread::sleep(outage);
                town.set_clock(0)
            }
            Fault::DatabaseNode => {
                town.database("kill", 2)?;
                thread::sleep(outage.min(Duration::from_secs(10)));
                town.database("revive", 2)
            }
            Fault::DatabaseStopped => {
                town.all_databases("pause")?;
                thread::sleep(outage);
                town.all_databases("resume")
            }
            Fault::DatabaseSlow => {
                let end = Instant::now() + outage;
                while Instant::now() < end {
                    town.all_databases("pause")?;
                    thread::sleep(Duration::from_millis(150));
                    town.all_databases("resume")?;
                    thread::sleep(Duration::from_millis(50));
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Fault::None => "none",
            Fault::Split => "split",
            Fault::Kill => "kill",
            Fault::KillForGood => "kill-for-good",
            Fault::Rolling => "rolling",
            Fault::Cut => "cut",
            Fault::LinksDown => "links-down",
            Fault::DatabaseNode => "database-node",
            Fault::DatabaseStopped => "database-stopped",
            Fault::DatabaseSlow => "database-slow",
            Fault::Clocks => "clocks",
            Fault::ClockSet => "clock-set",
        };
        f.pad(name)
    }
}
