//! State of one other node: connections that wait for the next call, calls that wait for a connection, whether it
//! answers at all, and what it is owed. Decides, and does nothing itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::circuit::Circuit;
use super::queue::PeerCall;
use super::retry_queue::RetryQueue;
use super::stats::{CallStats, PeerSnapshot, PeerStatus};
use super::wire::Conn;
use protocol::wire::url::HttpUrl;
use store::nodes::{NodeRow, SILENT_TIME};

/// One other node.
pub(super) struct PeerNode {
    pub base: Arc<HttpUrl>,
    pub circuit: Circuit,
    pub retry_queue: RetryQueue,
    /// Calls that wait for a connection, oldest first.
    pub waiting: VecDeque<PeerCall>,
    /// Calls under way, each with a connection of its own.
    pub in_flight: usize,
    /// Those of `under_way` that are owed.
    pub retries_in_flight: usize,
    /// Connections without a call, with the time of their last use; the last one used is used first.
    idle: Vec<(Conn, Instant)>,
    /// Time of the last request for this node.
    pub last_requested: Instant,
    /// A lookup of its row is under way; `looked` is the time of the last one.
    pub lookup_running: bool,
    pub last_lookup: Option<Instant>,
    /// Time since which every look found its lease lapsed, while it did not answer.
    silent_since: Option<Instant>,
    /// Boots of it that are over for good, the latest last.
    ended_boots: VecDeque<u64>,
    /// The boot that was called last.
    pub boot: u64,
    pub call_stats: CallStats,
}

impl PeerNode {
    pub fn new(base: HttpUrl, boot: u64, now: Instant) -> PeerNode {
        PeerNode {
            base: Arc::new(base),
            circuit: Circuit::Closed { failures: 0 },
            retry_queue: RetryQueue::new(now),
            waiting: VecDeque::new(),
            in_flight: 0,
            retries_in_flight: 0,
            idle: Vec::new(),
            last_requested: now,
            lookup_running: false,
            last_lookup: None,
            silent_since: None,
            ended_boots: VecDeque::new(),
            boot,
            call_stats: CallStats::new(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.circuit.is_open()
    }

    /// Returns true if this boot of the node is known to be over.
    pub fn is_over(&self, boot: u64) -> bool {
        self.ended_boots.contains(&boot)
    }

    pub fn note_ended(&mut self, boot: u64) {
        if !self.is_over(boot) {
            if self.ended_boots.len() >= ENDED_BOOTS_MAX {
                self.ended_boots.pop_front();
            }
            self.ended_boots.push_back(boot);
        }
    }

    /// A connection to use again.
    pub fn take_idle(&mut self) -> Option<Conn> {
        std::iter::from_fn(|| self.idle.pop()).map(|(conn, _)| conn).find(|conn| !conn.is_closed())
    }

    /// A call has ended; its connection can be used again, if there is one.
    pub fn ended(&mut self, conn: Option<Conn>, now: Instant) {
        self.in_flight -= 1;
        self.idle.extend(conn.map(|conn| (conn, now)));
    }

    /// As operators see it.
    pub fn show(&mut self, url: &str, now: Instant) -> PeerSnapshot {
        let (ends, quantiles) = self.call_stats.look();
        PeerSnapshot {
            url: url.into(),
            state: match self.circuit {
                Circuit::Open { .. } => PeerStatus::Open,
                Circuit::Closed { .. } if self.retry_queue.len() > 0 && !self.retry_queue.is_due(now) => {
                    PeerStatus::BackingOff
                }
                Circuit::Closed { .. } => PeerStatus::Closed,
            },
            connections: self.idle.len() + self.in_flight,
            in_flight: self.in_flight,
            waiting: self.waiting.len(),
            owed: self.retry_queue.len() + self.retries_in_flight,
            ends,
            quantiles,
        }
    }

    /// Notes an answer. Returns true if its circuit was open.
    pub fn answered(&mut self, now: Instant) -> bool {
        let again = self.circuit.answered();
        self.silent_since = None;
        if again {
            self.retry_queue.answered(now);
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
        let last_requested = self.retry_queue.len() > 0 || now.duration_since(self.last_requested) < REQUESTED_TIME;
        last_requested && self.circuit.begin_probe(now)
    }

    /// Returns true if its row must be looked up now, and notes the lookup. Only if it does not answer or is owed
    /// something.
    pub fn begin_look(&mut self, now: Instant) -> bool {
        let lacks = self.is_open() || self.retry_queue.len() > 0;
        let due = self.last_lookup.is_none_or(|last_lookup| now.duration_since(last_lookup) >= LOOK_INTERVAL);
        if !lacks || !due || self.lookup_running {
            return false;
        }
        (self.lookup_running, self.last_lookup) = (true, Some(now));
        true
    }

    /// Returns true if the boot of this row is gone: its lease has lapsed, and it did not answer for `gone_time`. In
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
        let has_calls = self.in_flight > 0 || !self.waiting.is_empty() || self.retry_queue.len() > 0;
        has_calls || self.lookup_running || self.circuit.is_probing()
    }

    /// Returns true if the node is forgotten by itself.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_needed() && now.duration_since(self.last_requested) >= FORGET_TIME
    }
}

/// Nodes that are known. Beyond it those that are not needed are forgotten, then of those that do not answer the one
/// wanted longest ago, with what it is owed. Refuse, when all answer: `Unreachable`.
pub(super) const NODES_MAX: usize = 256;
/// Calls of one node that wait for a connection. Refuse: `Unreachable`.
pub(super) const WAITING_MAX: usize = 4_096;
/// Owed notifications of one node under way; the other connections are for news.
pub(super) const RETRY_CALLS_MAX: usize = 4;
/// Time after the last call in which a node that is owed nothing is probed.
const REQUESTED_TIME: Duration = Duration::from_secs(10);
/// Between looks at the row of a node that does not answer.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which a connection is kept without a call; the other end keeps it for `http.keep_alive`, 75 s.
const IDLE_TIME: Duration = Duration::from_secs(30);
/// Time without a call after which a node that is owed nothing is forgotten.
const FORGET_TIME: Duration = Duration::from_secs(300);
/// Boots of one node that are known to be over.
const ENDED_BOOTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::peer_client::circuit::{FAILURES_MAX, PROBE_INTERVAL};

    fn node(now: Instant) -> PeerNode {
        PeerNode::new(HttpUrl::parse("http://127.0.0.1:1").unwrap(), 1, now)
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
        assert!(!node.begin_probe(now + REQUESTED_TIME));
        node.last_requested = now + REQUESTED_TIME;
        assert!(node.begin_probe(now + REQUESTED_TIME));
        assert!(node.answered(now + REQUESTED_TIME) && !node.is_open());
    }

    #[test]
    fn a_row_is_looked_at_now_and_then_while_the_node_does_not_answer() {
        let now = Instant::now();
        let mut node = node(now);
        assert!(!node.begin_look(now));
        assert_eq!((0..FAILURES_MAX).filter(|_| node.failed(now)).count(), 1);
        assert!(node.begin_look(now));
        node.lookup_running = false;
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
        (0..20).for_each(|boot| node.note_ended(boot));
        node.note_ended(19);
        assert!(!node.is_over(3) && node.is_over(4) && node.is_over(19));
        assert_eq!(node.ended_boots.len(), ENDED_BOOTS_MAX);
    }

    #[test]
    fn a_node_that_nobody_needs_is_forgotten_after_a_while() {
        let now = Instant::now();
        let mut node = node(now);
        assert!(!node.is_forgotten(now));
        assert!(node.is_forgotten(now + FORGET_TIME));
        node.in_flight = 1;
        assert!(!node.is_forgotten(now + FORGET_TIME));
    }
}
