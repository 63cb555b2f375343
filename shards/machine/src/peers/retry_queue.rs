//! Notifications without an answer: they are called again until the node answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{Stamp, Uaid};
use crate::time::{Instant, TimeSpan};
use crate::{NodeId, PeerOp, RowKey};

/// Notifications owed to one node, oldest first.
pub(super) struct RetryQueue {
    entries: BTreeMap<u64, PendingNotify>,
    positions: BTreeMap<Key, u64>,
    next: u64,
    /// Earliest time of the next call.
    due: Instant,
    /// The wait after the next failure.
    wait: TimeSpan,
    /// Most entries.
    bound: usize,
}

/// One session is told once of any number of messages, but for those that it must name. The boot of the node is part of
/// it: an answer of one boot, that the session is not there, says nothing of the user's session on a later one.
type Key = (Uaid, Stamp, u64);

/// One notification.
#[derive(Clone)]
pub(super) struct PendingNotify {
    pub to: Arc<NodeId>,
    pub uaid: Uaid,
    pub unsure: Option<RowKey>,
}

impl PendingNotify {
    /// Returns the debt that a call leaves if it gets no answer.
    pub fn of(op: &PeerOp) -> Option<PendingNotify> {
        match op {
            PeerOp::Notify { to, uaid, unsure } => {
                Some(PendingNotify { to: Arc::clone(to), uaid: *uaid, unsure: *unsure })
            }
            PeerOp::Push { .. } | PeerOp::Leave { .. } => None,
        }
    }

    pub fn to_op(&self) -> PeerOp {
        PeerOp::Notify { to: Arc::clone(&self.to), uaid: self.uaid, unsure: self.unsure }
    }

    fn key(&self) -> Key {
        (self.uaid, self.unsure.map(|row| row.stamp).unwrap_or_default(), self.to.boot)
    }
}

impl RetryQueue {
    /// An empty queue of this many entries at most.
    pub fn new(now: Instant, bound: usize) -> RetryQueue {
        RetryQueue { entries: BTreeMap::new(), positions: BTreeMap::new(), next: 0, due: now, wait: WAIT_MIN, bound }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Remembers one. At the bound the oldest is forgotten, and returned.
    pub fn insert(&mut self, pending: PendingNotify) -> Option<PendingNotify> {
        if let Some(position) = self.positions.get(&pending.key()) {
            self.entries.insert(*position, pending);
            return None;
        }
        let forgotten = if self.entries.len() >= self.bound { self.take() } else { None };
        self.positions.insert(pending.key(), self.next);
        self.entries.insert(self.next, pending);
        self.next += 1;
        forgotten
    }

    /// The oldest, which is in the hands of the caller now.
    pub fn take(&mut self) -> Option<PendingNotify> {
        let (_, pending) = self.entries.pop_first()?;
        self.positions.remove(&pending.key());
        Some(pending)
    }

    /// Removes one that was answered. Returns true if it was owed.
    pub fn remove(&mut self, pending: &PendingNotify) -> bool {
        let position = self.positions.remove(&pending.key());
        position.is_some_and(|position| self.entries.remove(&position).is_some())
    }

    /// Forgets the notifications of boots that are over, and returns their number.
    pub fn forget(&mut self, is_over: impl Fn(u64) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, pending| !is_over(pending.to.boot));
        let entries = &self.entries;
        self.positions.retain(|_, position| entries.contains_key(position));
        before - self.entries.len()
    }

    /// Every boot of the node that is owed something.
    pub fn boots(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.values().map(|pending| pending.to.boot)
    }

    /// Returns true if something is owed and a call is due.
    pub fn is_due(&self, now: Instant) -> bool {
        !self.entries.is_empty() && now >= self.due
    }

    /// Returns when the next call is due.
    pub fn due(&self) -> Option<Instant> {
        (!self.entries.is_empty()).then_some(self.due)
    }

    pub fn answered(&mut self, now: Instant) {
        (self.due, self.wait) = (now, WAIT_MIN);
    }

    /// It does not: wait, each time twice as long, and not in step with other nodes. `chance` is below 1,000.
    pub fn failed(&mut self, now: Instant, chance: u64) {
        self.due = now.after(TimeSpan(self.wait.0 / 1_000 * (500 + chance)));
        self.wait = TimeSpan(self.wait.0 * 2).min(WAIT_MAX);
    }
}

/// Notifications owed to one node: 65,536 x 150 B = 10 MB. Shed: the oldest is forgotten and counted, and that node is
/// told in the database to read storage for all of its sessions.
pub const RETRY_QUEUE_MAX: usize = 65_536;
/// Between calls of a node that answers connections and not calls.
const WAIT_MIN: TimeSpan = TimeSpan::from_secs(1);
const WAIT_MAX: TimeSpan = TimeSpan::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Chid, Clock, Origin};

    fn pending(n: u32, boot: u64, clock: u64) -> PendingNotify {
        let mut uaid = [0; 16];
        uaid[..4].copy_from_slice(&n.to_be_bytes());
        let stamp = Stamp { clock: Clock(clock), origin: Origin(1) };
        let row = RowKey { uaid: Uaid(uaid), chid: Chid([2; 16]), stamp, topic: None };
        let to = Arc::new(NodeId { url: "http://n".into(), boot });
        PendingNotify { to, uaid: Uaid(uaid), unsure: (clock > 0).then_some(row) }
    }

    fn owed() -> RetryQueue {
        RetryQueue::new(Instant(0), RETRY_QUEUE_MAX)
    }

    #[test]
    fn one_session_is_told_once_but_of_each_message_it_must_name() {
        let mut owed = owed();
        for pending in [pending(1, 1, 0), pending(2, 1, 0), pending(1, 1, 0), pending(1, 1, 5), pending(1, 1, 5)] {
            assert!(owed.insert(pending).is_none());
        }
        assert_eq!(owed.len(), 3);
        assert_eq!(owed.take().map(|pending| (pending.uaid, pending.to.boot)), Some((pending(1, 0, 0).uaid, 1)));
        assert!(owed.remove(&pending(2, 1, 0)) && !owed.remove(&pending(2, 1, 0)));
        assert_eq!(owed.take().and_then(|pending| pending.unsure).map(|row| row.stamp.clock), Some(Clock(5)));
        assert!(owed.take().is_none() && owed.positions.is_empty());
    }

    #[test]
    fn an_answer_of_an_earlier_run_settles_nothing_of_a_later_one() {
        let mut owed = owed();
        // The call of the earlier boot is under way when word for the later one is owed; then it fails, or is answered.
        owed.insert(pending(1, 1, 0));
        let earlier = owed.take().unwrap();
        owed.insert(pending(1, 2, 0));
        assert!(!owed.remove(&earlier));
        owed.insert(earlier);
        let runs: Vec<u64> = std::iter::from_fn(|| owed.take()).map(|pending| pending.to.boot).collect();
        assert_eq!(runs, [2, 1]);
    }

    #[test]
    fn at_the_bound_the_oldest_goes() {
        let mut owed = owed();
        for n in 0..RETRY_QUEUE_MAX as u32 {
            assert!(owed.insert(pending(n, 1, 0)).is_none());
        }
        assert_eq!(
            owed.insert(pending(RETRY_QUEUE_MAX as u32, 1, 0)).map(|pending| pending.uaid),
            Some(pending(0, 1, 0).uaid)
        );
        assert_eq!((owed.len(), owed.positions.len()), (RETRY_QUEUE_MAX, RETRY_QUEUE_MAX));
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut owed = owed();
        for (n, boot) in [(1, 1), (2, 2), (3, 1)] {
            owed.insert(pending(n, boot, 0));
        }
        assert_eq!(owed.forget(|boot| boot == 1), 2);
        assert_eq!((owed.len(), owed.positions.len(), owed.boots().next()), (1, 1, Some(2)));
    }

    #[test]
    fn waits_grow_to_their_bound_and_an_answer_ends_them() {
        let (mut owed, now) = (owed(), Instant(0));
        assert!(!owed.is_due(now));
        owed.insert(pending(1, 1, 0));
        assert!(owed.is_due(now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            owed.failed(now, 500);
            waits.push(u64::from(owed.due.since(now).seconds_ceil()));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(!owed.is_due(now));
        owed.answered(now);
        assert!(owed.is_due(now));
    }
}
