//! State of one other node: calls that wait for a connection, whether it answers at all, and what it is owed. Decides,
//! and does nothing itself.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::time::{Instant, TimeSpan};

use super::call::{BootRow, PeerCall};
use super::circuit::Circuit;
use super::debts::Debt;
use super::retry_queue::RetryQueue;

/// One other node.
pub(super) struct Peer<T> {
    pub url: Arc<str>,
    pub circuit: Circuit,
    pub retry_queue: RetryQueue,
    pub debt: Debt<T>,
    /// Calls that wait for a connection, oldest first.
    pub waiting: VecDeque<PeerCall<T>>,
    /// Calls under way, each with a connection of its own.
    pub in_flight: usize,
    /// Those of `in_flight` that are owed.
    pub retries_in_flight: usize,
    /// Time of the last request for this node.
    pub last_requested: Instant,
    /// A lookup of its row is under way; `last_lookup` is the time of the last one.
    pub lookup_running: bool,
    last_lookup: Option<Instant>,
    /// Time since which every look found its lease lapsed, while it did not answer.
    silent_since: Option<Instant>,
    /// Boots of it that are over for good, the latest last.
    ended_boots: VecDeque<u64>,
    /// The boot that was called last.
    pub boot: u64,
}

/// State of a node, as operators see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerState {
    /// It does not answer: calls fail at once, and it is probed.
    pub is_open: bool,
    /// It answers, but not what it is owed: those calls wait before they are made again.
    pub backs_off: bool,
    pub in_flight: usize,
    /// Calls that wait for a connection.
    pub waiting: usize,
    /// Notifications that it is owed.
    pub owed: usize,
}

impl<T> Peer<T> {
    pub fn new(url: Arc<str>, boot: u64, now: Instant, retry_queue_max: usize) -> Peer<T> {
        Peer {
            url,
            circuit: Circuit::Closed { failures: 0 },
            retry_queue: RetryQueue::new(now, retry_queue_max),
            debt: Debt::new(now),
            waiting: VecDeque::new(),
            in_flight: 0,
            retries_in_flight: 0,
            last_requested: now,
            lookup_running: false,
            last_lookup: None,
            silent_since: None,
            ended_boots: VecDeque::new(),
            boot,
        }
    }

    /// Returns the number of notifications that it is owed.
    pub fn owed(&self) -> usize {
        self.retry_queue.len() + self.retries_in_flight
    }

    /// Returns true if it is owed something. At the end of this boot also if it may still be: what is under way then
    /// does not outlive this boot either.
    pub fn may_owe(&self, ending: bool) -> bool {
        self.owed() > 0 || ending && (self.in_flight > 0 || !self.waiting.is_empty())
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

    /// As operators see it.
    pub fn state(&self, now: Instant) -> PeerState {
        PeerState {
            is_open: self.is_open(),
            backs_off: self.retry_queue.len() > 0 && !self.retry_queue.is_due(now),
            in_flight: self.in_flight,
            waiting: self.waiting.len(),
            owed: self.owed(),
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
        self.circuit.failed(now)
    }

    /// Returns true if the node must be probed now, and notes the probe. Only if it is owed something or was wanted
    /// lately.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        let last_requested = self.retry_queue.len() > 0 || now.since(self.last_requested) < REQUESTED_TIME;
        last_requested && self.circuit.begin_probe(now)
    }

    /// Returns true if its row must be looked up now, and notes the lookup. Only if it does not answer or is owed
    /// something.
    pub fn begin_look(&mut self, now: Instant) -> bool {
        let lacks = self.is_open() || self.retry_queue.len() > 0;
        let due = self.last_lookup.is_none_or(|last_lookup| now.since(last_lookup) >= LOOK_INTERVAL);
        if !lacks || !due || self.lookup_running {
            return false;
        }
        (self.lookup_running, self.last_lookup) = (true, Some(now));
        true
    }

    /// Returns true if the boot of this row is gone: its lease has lapsed, and it did not answer for `gone_time`. In
    /// that time it could renew: the database may have been away from all, and this node cut off from that one.
    pub fn seems_gone(&mut self, row: Option<BootRow>, gone_time: TimeSpan, now: Instant) -> bool {
        let silent = self.is_open() && row.is_some_and(|row| row.lapsed && !row.left);
        self.silent_since = silent.then(|| self.silent_since.unwrap_or(now));
        self.silent_since.is_some_and(|since| now.since(since) >= gone_time)
    }

    /// Returns true if forgetting the node would lose something.
    pub fn is_needed(&self) -> bool {
        let has_calls = self.in_flight > 0 || !self.waiting.is_empty() || self.retry_queue.len() > 0 || self.debt.busy;
        has_calls || self.lookup_running || self.circuit.is_probing()
    }

    /// Returns true if the node is forgotten by itself.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_needed() && self.debt.due(false).is_none() && now.since(self.last_requested) >= FORGET_TIME
    }

    /// Returns true if an owed notification may be called now, beside news.
    pub fn has_retry_room(&self, connections_max: usize) -> bool {
        let room = RETRY_CALLS_MAX.min(connections_max.div_ceil(2));
        !self.is_open() && self.in_flight < connections_max && self.retries_in_flight < room
    }

    /// Returns the earliest time at which there is something to do, if nothing comes before.
    pub fn due(
        &self,
        now: Instant,
        (connections_max, request_timeout): (usize, TimeSpan),
        ending: bool,
    ) -> Option<Instant> {
        let looks = self.is_open() || self.retry_queue.len() > 0;
        let look = self.last_lookup.map_or(Instant(0), |at| at.after(LOOK_INTERVAL));
        let retry = self.retry_queue.due().filter(|_| self.has_retry_room(connections_max));
        let probes = |at: &Instant| now.max(*at).since(self.last_requested) < REQUESTED_TIME;
        [
            self.circuit.due().filter(|at| self.retry_queue.len() > 0 || probes(at)),
            Some(look).filter(|_| looks && !self.lookup_running),
            retry,
            self.waiting.front().map(|call| call.since.after(request_timeout)),
            self.debt.due(self.may_owe(ending)),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Owed notifications of one node under way; the other connections are for news.
pub const RETRY_CALLS_MAX: usize = 4;
/// Time after the last call in which a node that is owed nothing is probed.
const REQUESTED_TIME: TimeSpan = TimeSpan::from_secs(10);
/// Between looks at the row of a node that does not answer.
const LOOK_INTERVAL: TimeSpan = TimeSpan::from_secs(5);
/// Time without a call after which a node that is owed nothing is forgotten.
const FORGET_TIME: TimeSpan = TimeSpan::from_secs(300);
/// Boots of one node that are known to be over.
const ENDED_BOOTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::circuit::{FAILURES_MAX, PROBE_INTERVAL};

    const NOW: Instant = Instant(1_000_000_000);

    fn peer() -> Peer<()> {
        Peer::new("http://127.0.0.1:1".into(), 1, NOW, 10)
    }

    #[test]
    fn a_circuit_opens_after_failures_in_a_row_and_is_probed_while_calls_want_it() {
        let (now, mut peer) = (NOW, peer());
        assert!(!peer.failed(now) && !peer.failed(now));
        assert!(!peer.answered(now));
        assert!(!peer.failed(now) && !peer.failed(now) && peer.failed(now) && peer.is_open());
        assert!(!peer.begin_probe(now));
        let later = now.after(PROBE_INTERVAL);
        assert!(peer.begin_probe(later) && !peer.begin_probe(later));
        peer.circuit.probe_failed(later);
        assert!(!peer.begin_probe(later));
        let late = now.after(REQUESTED_TIME);
        assert!(!peer.begin_probe(late));
        peer.last_requested = late;
        assert!(peer.begin_probe(late));
        assert!(peer.answered(late) && !peer.is_open());
    }

    #[test]
    fn a_row_is_looked_at_now_and_then_while_the_node_does_not_answer() {
        let (now, mut peer) = (NOW, peer());
        assert!(!peer.begin_look(now));
        assert_eq!((0..FAILURES_MAX).filter(|_| peer.failed(now)).count(), 1);
        assert!(peer.begin_look(now));
        peer.lookup_running = false;
        assert!(!peer.begin_look(now));
        let later = now.after(LOOK_INTERVAL);
        assert!(peer.begin_look(later) && !peer.begin_look(later));
    }

    #[test]
    fn a_node_is_gone_when_its_lease_has_lapsed_and_it_has_not_answered_for_a_while() {
        const GONE_TIME: TimeSpan = TimeSpan::from_secs(60);
        let (now, mut peer) = (NOW, peer());
        let (later, last) = (now.after(GONE_TIME), now.after(TimeSpan(2 * GONE_TIME.0)));
        let row = |lapsed| Some(BootRow { boot: 1, left: false, lapsed });
        assert!(!peer.seems_gone(row(true), GONE_TIME, now), "it answers");
        assert!(!peer.seems_gone(row(true), GONE_TIME, later), "it answers");
        (0..FAILURES_MAX).for_each(|_| _ = peer.failed(now));
        assert!(!peer.seems_gone(row(true), GONE_TIME, now) && peer.seems_gone(row(true), GONE_TIME, later));
        // It renewed, or the database did not say.
        for between in [row(false), None] {
            assert!(!peer.seems_gone(between, GONE_TIME, later));
            assert!(!peer.seems_gone(row(true), GONE_TIME, later), "the time begins anew");
            assert!(peer.seems_gone(row(true), GONE_TIME, last));
        }
        peer.answered(now);
        (0..FAILURES_MAX).for_each(|_| _ = peer.failed(now));
        assert!(!peer.seems_gone(row(true), GONE_TIME, last), "it has answered in between");
    }

    #[test]
    fn runs_that_are_over_are_known_up_to_a_bound() {
        let mut peer = peer();
        (0..20).for_each(|boot| peer.note_ended(boot));
        peer.note_ended(19);
        assert!(!peer.is_over(3) && peer.is_over(4) && peer.is_over(19));
        assert_eq!(peer.ended_boots.len(), ENDED_BOOTS_MAX);
    }

    #[test]
    fn a_node_without_calls_is_forgotten_after_a_while() {
        let (now, mut peer) = (NOW, peer());
        assert!(!peer.is_forgotten(now));
        assert!(peer.is_forgotten(now.after(FORGET_TIME)));
        peer.in_flight = 1;
        assert!(!peer.is_forgotten(now.after(FORGET_TIME)));
    }
}
