//! State of one other node: connections that wait for the next call, calls that wait for a connection, whether it
//! answers at all, and what it is owed. Decides, and does nothing itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::circuit::Circuit;
use super::lane::Job;
use super::numbers::{Shown, Standing, Tally};
use super::owed::Owed;
use super::wire::Conn;
use protocol::wire::url::HttpUrl;
use store::nodes::{NodeRow, SILENT_TIME};

/// One other node.
pub(super) struct Node {
    pub base: Arc<HttpUrl>,
    pub circuit: Circuit,
    pub owed: Owed,
    /// Calls that wait for a connection, oldest first.
    pub waiting: VecDeque<Job>,
    /// Calls under way, each with a connection of its own.
    pub under_way: usize,
    /// Those of `under_way` that are owed.
    pub owed_under_way: usize,
    /// Connections without a call, with the time of their last use; the last one used is used first.
    idle: Vec<(Conn, Instant)>,
    /// Time of the last request for this node.
    pub wanted: Instant,
    /// A lookup of its row is under way; `looked` is the time of the last one.
    pub looking: bool,
    pub looked: Option<Instant>,
    /// Time since which every look found its lease lapsed, while it did not answer.
    silent_since: Option<Instant>,
    /// Runs of it that are over for good, the latest last.
    over: VecDeque<u64>,
    /// The run that was called last.
    pub boot: u64,
    pub tally: Tally,
}

impl Node {
    pub fn new(base: HttpUrl, boot: u64, now: Instant) -> Node {
        Node {
            base: Arc::new(base),
            circuit: Circuit::Closed { failures: 0 },
            owed: Owed::new(now),
            waiting: VecDeque::new(),
            under_way: 0,
            owed_under_way: 0,
            idle: Vec::new(),
            wanted: now,
            looking: false,
            looked: None,
            silent_since: None,
            over: VecDeque::new(),
            boot,
            tally: Tally::new(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.circuit.is_open()
    }

    /// Returns true if this run of the node is known to be over.
    pub fn is_over(&self, boot: u64) -> bool {
        self.over.contains(&boot)
    }

    pub fn set_over(&mut self, boot: u64) {
        if !self.is_over(boot) {
            if self.over.len() >= OVER_MAX {
                self.over.pop_front();
            }
            self.over.push_back(boot);
        }
    }

    /// A connection to use again.
    pub fn take_idle(&mut self) -> Option<Conn> {
        std::iter::from_fn(|| self.idle.pop()).map(|(conn, _)| conn).find(|conn| !conn.is_closed())
    }

    /// A call has ended; its connection can be used again, if there is one.
    pub fn ended(&mut self, conn: Option<Conn>, now: Instant) {
        self.under_way -= 1;
        self.idle.extend(conn.map(|conn| (conn, now)));
    }

    /// As operators see it.
    pub fn show(&mut self, url: &str, now: Instant) -> Shown {
        let (ends, quantiles) = self.tally.look();
        Shown {
            url: url.into(),
            state: match self.circuit {
                Circuit::Open { .. } => Standing::Open,
                Circuit::Closed { .. } if self.owed.len() > 0 && !self.owed.is_due(now) => Standing::BackingOff,
                Circuit::Closed { .. } => Standing::Closed,
            },
            connections: self.idle.len() + self.under_way,
            under_way: self.under_way,
            waiting: self.waiting.len(),
            owed: self.owed.len() + self.owed_under_way,
            ends,
            quantiles,
        }
    }

    /// Notes an answer. Returns true if its circuit was open.
    pub fn answered(&mut self, now: Instant) -> bool {
        let again = self.circuit.answered();
        self.silent_since = None;
        if again {
            self.owed.answered(now);
        }
        again
    }

    /// Notes a call without an answer. Returns true if that opened the circuit.
    pub fn failed(&mut self, now: Instant) -> bool {
        let opened = self.circuit.failed(now);
        if opened {
            self.idle.clear();
        }
        opened
    }

    /// Returns true if the node must be probed now, and notes the probe. Only if it is owed something or was wanted
    /// lately.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        let wanted = self.owed.len() > 0 || now.duration_since(self.wanted) < WANTED_TIME;
        wanted && self.circuit.begin_probe(now)
    }

    /// Returns true if its row must be looked up now, and notes the lookup. Only if it does not answer or is owed
    /// something.
    pub fn begin_look(&mut self, now: Instant) -> bool {
        let lacks = self.is_open() || self.owed.len() > 0;
        let due = self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_INTERVAL);
        if !lacks || !due || self.looking {
            return false;
        }
        (self.looking, self.looked) = (true, Some(now));
        true
    }

    /// Returns true if the run of this row is gone: its lease has lapsed, and it did not answer for `gone_time`. In
    /// that time it could renew: the database may have been away from all, and this node cut off from that one.
    pub fn seems_gone(&mut self, row: Option<NodeRow>, gone_time: Duration, now: Instant) -> bool {
        let lapsed = |row: NodeRow| !row.left && row.silent.is_some_and(|silent| silent >= SILENT_TIME);
        let silent = self.is_open() && row.is_some_and(lapsed);
        self.silent_since = silent.then(|| self.silent_since.unwrap_or(now));
        self.silent_since.is_some_and(|since| now.duration_since(since) >= gone_time)
    }

    /// Lets go of connections that were not used for a while: the other end would, soon.
    pub fn close_idle(&mut self, now: Instant) {
        self.idle.retain(|(conn, since)| now.duration_since(*since) < IDLE_TIME && !conn.is_closed());
    }

    /// Returns true if forgetting the node would lose something.
    pub fn is_needed(&self) -> bool {
        let has_calls = self.under_way > 0 || !self.waiting.is_empty() || self.owed.len() > 0;
        has_calls || self.looking || self.circuit.is_probing()
    }

    /// Returns true if the node is forgotten by itself.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_needed() && now.duration_since(self.wanted) >= FORGET_TIME
    }
}

/// Nodes that are known. Beyond it those that are not needed are forgotten, then of those that do not answer the one
/// wanted longest ago, with what it is owed. Refuse, when all answer: `Unreachable`.
pub(super) const NODES_MAX: usize = 256;
/// Calls of one node that wait for a connection. Refuse: `Unreachable`.
pub(super) const WAITING_MAX: usize = 4_096;
/// Owed notifications of one node under way; the other connections are for news.
pub(super) const OWED_CALLS_MAX: usize = 4;
/// Time after the last call in which a node that is owed nothing is probed.
const WANTED_TIME: Duration = Duration::from_secs(10);
/// Between looks at the row of a node that does not answer.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which a connection is kept without a call; the other end keeps it for `http.keep_alive`, 75 s.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// Time without a call after which a node that is owed nothing is forgotten.
const FORGET_TIME: Duration = Duration::from_secs(300);
/// Runs of one node that are known to be over.
const OVER_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::island::peers::circuit::{FAILURES_MAX, PROBE_INTERVAL};

    fn node(now: Instant) -> Node {
        Node::new(HttpUrl::parse("http://127.0.0.1:1").unwrap(), 1, now)
    }

    #[test]
    fn a_circuit_opens_after_failures_in_a_row_and_is_probed_while_somebody_wants_it() {
        let now = Instant::now();
        let mut node = node(now);
        assert!(!node.failed(now) && !node.failed(now));
        assert!(!node.answered(now));
        assert!(!node.failed(now) && !node.failed(now) && node.failed(now) && node.is_open());
        assert!(!node.begin_probe(now));
        let later = now + PROBE_INTERVAL;
        assert!(node.begin_probe(later) && !node.begin_probe(later));
        node.circuit.probe_failed(later);
        assert!(!node.begin_probe(later));
        assert!(!node.begin_probe(now + WANTED_TIME));
        node.wanted = now + WANTED_TIME;
        assert!(node.begin_probe(now + WANTED_TIME));
        assert!(node.answered(now + WANTED_TIME) && !node.is_open());
    }

    #[test]
    fn a_row_is_looked_at_now_and_then_while_the_node_does_not_answer() {
        let now = Instant::now();
        let mut node = node(now);
        assert!(!node.begin_look(now));
        assert_eq!((0..FAILURES_MAX).filter(|_| node.failed(now)).count(), 1);
        assert!(node.begin_look(now));
        node.looking = false;
        assert!(!node.begin_look(now));
        assert!(node.begin_look(now + LOOK_INTERVAL) && !node.begin_look(now + LOOK_INTERVAL));
    }

    #[test]
    fn a_node_is_gone_when_its_lease_has_lapsed_and_it_has_not_answered_for_a_while() {
        const GONE_TIME: Duration = Duration::from_secs(60);
        let now = Instant::now();
        let row = |silent| Some(NodeRow { boot: 1, left: false, silent });
        let lapsed = row(Some(SILENT_TIME));
        let mut node = node(now);
        assert!(!node.seems_gone(lapsed, GONE_TIME, now), "it answers");
        assert!(!node.seems_gone(lapsed, GONE_TIME, now + GONE_TIME), "it answers");
        (0..FAILURES_MAX).for_each(|_| _ = node.failed(now));
        assert!(!node.seems_gone(lapsed, GONE_TIME, now) && node.seems_gone(lapsed, GONE_TIME, now + GONE_TIME));
        // It renewed, or a version without leases runs there, or the database did not say.
        for between in [row(Some(SILENT_TIME - Duration::from_secs(1))), row(None), None] {
            assert!(!node.seems_gone(between, GONE_TIME, now + GONE_TIME));
            assert!(!node.seems_gone(lapsed, GONE_TIME, now + GONE_TIME), "the time begins anew");
            assert!(node.seems_gone(lapsed, GONE_TIME, now + 2 * GONE_TIME));
        }
        node.answered(now);
        (0..FAILURES_MAX).for_each(|_| _ = node.failed(now));
        assert!(!node.seems_gone(lapsed, GONE_TIME, now + 2 * GONE_TIME), "it has answered in between");
    }

    #[test]
    fn runs_that_are_over_are_known_up_to_a_bound() {
        let mut node = node(Instant::now());
        (0..20).for_each(|boot| node.set_over(boot));
        node.set_over(19);
        assert!(!node.is_over(3) && node.is_over(4) && node.is_over(19));
        assert_eq!(node.over.len(), OVER_MAX);
    }

    #[test]
    fn a_node_that_nobody_needs_is_forgotten_after_a_while() {
        let now = Instant::now();
        let mut node = node(now);
        assert!(!node.is_forgotten(now));
        assert!(node.is_forgotten(now + FORGET_TIME));
        node.under_way = 1;
        assert!(!node.is_forgotten(now + FORGET_TIME));
    }
}
