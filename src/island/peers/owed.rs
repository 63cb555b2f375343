//! Notifications without an answer: they are called again until the node answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use machine::ids::{Stamp, Uaid};
use machine::{NodeId, PeerOp, RowKey};
use tokio::time::Instant;

/// Notifications owed to one node, oldest first.
pub(super) struct Owed {
    debts: BTreeMap<u64, Debt>,
    places: HashMap<Key, u64>,
    next: u64,
    /// Earliest time of the next call.
    due: Instant,
    /// The wait after the next failure.
    wait: Duration,
}

/// One session is told once of any number of messages, but for those that it must name. The run of the node is part of
/// it: an answer of one run, that the session is not there, says nothing of the user's session on a later one.
type Key = (Uaid, Stamp, u64);

/// One notification.
#[derive(Clone)]
pub(super) struct Debt {
    pub to: Arc<NodeId>,
    pub uaid: Uaid,
    pub unsure: Option<RowKey>,
}

impl Debt {
    /// Returns the debt that a call leaves if it gets no answer.
    pub fn of(op: &PeerOp) -> Option<Debt> {
        match op {
            PeerOp::Notify { to, uaid, unsure } => Some(Debt { to: Arc::clone(to), uaid: *uaid, unsure: *unsure }),
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

impl Owed {
    pub fn new(now: Instant) -> Owed {
        Owed { debts: BTreeMap::new(), places: HashMap::new(), next: 0, due: now, wait: WAIT_MIN }
    }

    pub fn len(&self) -> usize {
        self.debts.len()
    }

    /// Remembers one. At [`OWED_MAX`] the oldest is forgotten, and returned.
    pub fn insert(&mut self, debt: Debt) -> Option<Debt> {
        if let Some(place) = self.places.get(&debt.key()) {
            self.debts.insert(*place, debt);
            return None;
        }
        let forgotten = if self.debts.len() >= OWED_MAX { self.take() } else { None };
        self.places.insert(debt.key(), self.next);
        self.debts.insert(self.next, debt);
        self.next += 1;
        forgotten
    }

    /// The oldest, which is in the hands of the caller now.
    pub fn take(&mut self) -> Option<Debt> {
        let (_, debt) = self.debts.pop_first()?;
        self.places.remove(&debt.key());
        Some(debt)
    }

    /// Removes one that was answered. Returns true if it was owed.
    pub fn remove(&mut self, debt: &Debt) -> bool {
        let place = self.places.remove(&debt.key());
        place.is_some_and(|place| self.debts.remove(&place).is_some())
    }

    /// Forgets the notifications of runs that are over, and returns their number.
    pub fn forget(&mut self, is_over: impl Fn(u64) -> bool) -> usize {
        let before = self.debts.len();
        self.debts.retain(|_, debt| !is_over(debt.to.boot));
        let debts = &self.debts;
        self.places.retain(|_, place| debts.contains_key(place));
        before - self.debts.len()
    }

    /// Every run of the node that is owed something.
    pub fn boots(&self) -> impl Iterator<Item = u64> + '_ {
        self.debts.values().map(|debt| debt.to.boot)
    }

    /// Returns true if something is owed and a call is due.
    pub fn is_due(&self, now: Instant) -> bool {
        !self.debts.is_empty() && now >= self.due
    }

    pub fn answered(&mut self, now: Instant) {
        (self.due, self.wait) = (now, WAIT_MIN);
    }

    /// It does not: wait, each time twice as long, and not in step with other nodes. `chance` is between 0 and 1.
    pub fn failed(&mut self, now: Instant, chance: f64) {
        self.due = now + self.wait.mul_f64(0.5 + chance);
        self.wait = (self.wait * 2).min(WAIT_MAX);
    }
}

/// Notifications owed to one node: 65,536 x 150 B = 10 MB. Shed: the oldest is forgotten and counted; that session
/// reads storage at the next message or hello.
pub(super) const OWED_MAX: usize = 65_536;
/// Between calls of a node that answers connections and not calls.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use machine::ids::{Chid, Clock, Origin};

    fn debt(n: u32, boot: u64, clock: u64) -> Debt {
        let mut uaid = [0; 16];
        uaid[..4].copy_from_slice(&n.to_be_bytes());
        let stamp = Stamp { clock: Clock(clock), origin: Origin(1) };
        let row = RowKey { uaid: Uaid(uaid), chid: Chid([2; 16]), stamp, topic: None };
        let to = Arc::new(NodeId { url: "http://n".into(), boot });
        Debt { to, uaid: Uaid(uaid), unsure: (clock > 0).then_some(row) }
    }

    fn owed() -> Owed {
        Owed::new(Instant::now())
    }

    #[test]
    fn one_session_is_told_once_but_of_each_message_it_must_name() {
        let mut owed = owed();
        for debt in [debt(1, 1, 0), debt(2, 1, 0), debt(1, 1, 0), debt(1, 1, 5), debt(1, 1, 5)] {
            assert!(owed.insert(debt).is_none());
        }
        assert_eq!(owed.len(), 3);
        assert_eq!(owed.take().map(|debt| (debt.uaid, debt.to.boot)), Some((debt(1, 0, 0).uaid, 1)));
        assert!(owed.remove(&debt(2, 1, 0)) && !owed.remove(&debt(2, 1, 0)));
        assert_eq!(owed.take().and_then(|debt| debt.unsure).map(|row| row.stamp.clock), Some(Clock(5)));
        assert!(owed.take().is_none() && owed.places.is_empty());
    }

    #[test]
    fn an_answer_of_an_earlier_run_settles_nothing_of_a_later_one() {
        let mut owed = owed();
        // The call of the earlier run is under way when word for the later one is owed; then it fails, or is answered.
        owed.insert(debt(1, 1, 0));
        let earlier = owed.take().unwrap();
        owed.insert(debt(1, 2, 0));
        assert!(!owed.remove(&earlier));
        owed.insert(earlier);
        let runs: Vec<u64> = std::iter::from_fn(|| owed.take()).map(|debt| debt.to.boot).collect();
        assert_eq!(runs, [2, 1]);
    }

    #[test]
    fn at_the_bound_the_oldest_goes() {
        let mut owed = owed();
        for n in 0..OWED_MAX as u32 {
            assert!(owed.insert(debt(n, 1, 0)).is_none());
        }
        assert_eq!(owed.insert(debt(OWED_MAX as u32, 1, 0)).map(|debt| debt.uaid), Some(debt(0, 1, 0).uaid));
        assert_eq!((owed.len(), owed.places.len()), (OWED_MAX, OWED_MAX));
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut owed = owed();
        for (n, boot) in [(1, 1), (2, 2), (3, 1)] {
            owed.insert(debt(n, boot, 0));
        }
        assert_eq!(owed.forget(|boot| boot == 1), 2);
        assert_eq!((owed.len(), owed.places.len(), owed.boots().next()), (1, 1, Some(2)));
    }

    #[test]
    fn waits_grow_to_their_bound_and_an_answer_ends_them() {
        let (mut owed, now) = (owed(), Instant::now());
        assert!(!owed.is_due(now));
        owed.insert(debt(1, 1, 0));
        assert!(owed.is_due(now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            owed.failed(now, 0.5);
            waits.push(owed.due.duration_since(now).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(!owed.is_due(now));
        owed.answered(now);
        assert!(owed.is_due(now));
    }
}
