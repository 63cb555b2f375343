//! Outcomes by message, and who waits for them: the bounded tables behind delivery receipts. Owner shard only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Chid, ShardId, Stamp, Uaid};
use crate::limits;
use crate::message::Topic;
use crate::time::{Instant, UnixSeconds};

use super::receipts::{Outcome, ReceiptAnswer};
use super::remote::Asker;
use super::store::RowKey;

/// A message whose sender asked for a receipt. Ordered so that a channel is a range, and a slot of a channel too.
type Key = (Uaid, Chid, Option<Topic>, Stamp);

fn key(row: &RowKey) -> Key {
    (row.uaid, row.chid, row.topic, row.stamp)
}

/// The receipts of one shard.
pub(super) struct Receipts {
    records: BTreeMap<Key, Record>,
    /// Oldest first, by acceptance and again by outcome; `len <= 2 * records`. An entry whose number is not the
    /// record's is stale.
    order: VecDeque<(u64, Key)>,
    changes: u64,
    waiting: BTreeMap<Key, Vec<Waiter>>,
    due: BTreeSet<(Instant, Key)>,
    waiters: usize,
    /// What is to be said, when a step has room for it.
    ready: VecDeque<(Asker, ReceiptAnswer)>,
    /// Questions of ours at each other shard.
    asked: BTreeMap<ShardId, usize>,
}

struct Record {
    change: u64,
    outcome: Option<Outcome>,
    /// From then on nothing but the ack of what was sent can come.
    expires: UnixSeconds,
}

struct Waiter {
    asker: Asker,
    due: Instant,
}

impl Receipts {
    pub fn new() -> Receipts {
        Receipts {
            records: BTreeMap::new(),
            order: VecDeque::new(),
            changes: 0,
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            waiters: 0,
            ready: VecDeque::new(),
            asked: BTreeMap::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// Makes a record of a message that has none. True when an older record had to go for it.
    pub fn begin(&mut self, row: &RowKey, expires: UnixSeconds) -> bool {
        if self.records.contains_key(&key(row)) {
            return false;
        }
        let forgets = self.records.len() >= limits::RECEIPTS_MAX;
        if forgets {
            self.forget_oldest();
        }
        let change = self.note(key(row));
        self.records.insert(key(row), Record { change, outcome: None, expires });
        forgets
    }

    fn note(&mut self, key: Key) -> u64 {
        self.changes += 1;
        self.order.push_back((self.changes, key));
        self.changes
    }

    fn forget_oldest(&mut self) {
        while let Some((change, key)) = self.order.pop_front() {
            if self.records.get(&key).is_some_and(|record| record.change == change) {
                self.records.remove(&key);
                return;
            }
        }
    }

    /// What is known: no record, no outcome yet, or one. With the time at which the message expires.
    pub fn find(&self, row: &RowKey) -> Option<(Option<Outcome>, UnixSeconds)> {
        self.records.get(&key(row)).map(|record| (record.outcome, record.expires))
    }

    /// Sets the outcome of a message that has a record and none yet; the first one stays. Whoever waits is told.
    pub fn end(&mut self, row: &RowKey, outcome: Outcome) -> bool {
        self.end_key(key(row), outcome)
    }

    fn end_key(&mut self, key: Key, outcome: Outcome) -> bool {
        match self.records.get(&key) {
            Some(record) if record.outcome.is_none() => {}
            _ => return false,
        }
        let change = self.note(key);
        if let Some(record) = self.records.get_mut(&key) {
            record.change = change;
            record.outcome = Some(outcome);
        }
        for waiter in self.waiting.remove(&key).unwrap_or_default() {
            self.due.remove(&(waiter.due, key));
            self.release(waiter.asker, ReceiptAnswer::Ended(outcome));
        }
        true
    }

    /// Forgets a message whose end is not known. Whoever waits is told that.
    pub fn forget(&mut self, row: &RowKey) {
        self.records.remove(&key(row));
        for waiter in self.waiting.remove(&key(row)).unwrap_or_default() {
            self.due.remove(&(waiter.due, key(row)));
            self.release(waiter.asker, ReceiptAnswer::Unknown);
        }
    }

    /// Everything of a slot that is older than `newest` is replaced. How many that were.
    pub fn end_slot(&mut self, uaid: Uaid, (chid, topic): (Chid, Topic), newest: Stamp) -> u64 {
        let from = (uaid, chid, Some(topic), Stamp::default());
        let until = (uaid, chid, Some(topic), newest);
        // What is older than an ended one was ended by it, or before.
        let older = self.records.range(from..until).rev().take_while(|(_, record)| record.outcome.is_none());
        let keys: Vec<Key> = older.map(|(key, _)| *key).collect();
        keys.into_iter().map(|key| u64::from(self.end_key(key, Outcome::Replaced))).sum()
    }

    /// Everything of a channel ends with it. How many that were.
    pub fn end_channel(&mut self, uaid: Uaid, chid: Chid) -> u64 {
        self.end_from((uaid, chid, None, Stamp::default()), |(u, c, ..)| (*u, *c) == (uaid, chid))
    }

    /// Everything of a user ends with it. How many that were.
    pub fn end_user(&mut self, uaid: Uaid) -> u64 {
        self.end_from((uaid, Chid([0; 16]), None, Stamp::default()), |(u, ..)| *u == uaid)
    }

    fn end_from(&mut self, from: Key, belongs: impl Fn(&Key) -> bool) -> u64 {
        let those = self.records.range(from..).take_while(|(key, _)| belongs(key));
        let keys: Vec<Key> = those.filter(|(_, record)| record.outcome.is_none()).map(|(key, _)| *key).collect();
        keys.into_iter().map(|key| u64::from(self.end_key(key, Outcome::Unregistered))).sum()
    }

    /// Somebody waits for the outcome until `due`; false when too many do.
    pub fn wait(&mut self, row: &RowKey, asker: Asker, due: Instant) -> bool {
        if self.waiters >= limits::RECEIPT_WAITERS_MAX {
            return false;
        }
        self.waiters += 1;
        self.due.insert((due, key(row)));
        self.waiting.entry(key(row)).or_default().push(Waiter { asker, due });
        true
    }

    /// Whose wait is over first.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The next message for which somebody has waited long enough; `give_up` is to follow.
    pub fn next_overdue(&mut self, now: Instant) -> Option<RowKey> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (_, (uaid, chid, topic, stamp)) = self.due.pop_first()?;
        Some(RowKey { uaid, chid, stamp, topic })
    }

    /// Whoever waits for it until `now` at most is told that there is nothing to tell.
    pub fn give_up(&mut self, row: &RowKey, now: Instant) {
        let Some(waiters) = self.waiting.remove(&key(row)) else { return };
        let (over, still): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|waiter| waiter.due <= now);
        for waiter in over {
            self.due.remove(&(waiter.due, key(row)));
            self.release(waiter.asker, ReceiptAnswer::Pending);
        }
        if !still.is_empty() {
            self.waiting.insert(key(row), still);
        }
    }

    /// Nobody waits any more: the shard is draining.
    pub fn give_up_all(&mut self) {
        self.due.clear();
        for waiter in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.release(waiter.asker, ReceiptAnswer::Pending);
        }
    }

    fn release(&mut self, asker: Asker, answer: ReceiptAnswer) {
        self.waiters -= 1;
        self.ready.push_back((asker, answer));
    }

    /// The next thing to say.
    pub fn next_ready(&mut self) -> Option<(Asker, ReceiptAnswer)> {
        self.ready.pop_front()
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A question to `peer`; false when half the reply credit is taken by those that may wait there.
    pub fn ask(&mut self, peer: ShardId, credit: usize) -> bool {
        let asked = self.asked.entry(peer).or_default();
        let fits = *asked < (credit / 2).max(1);
        *asked += usize::from(fits);
        fits
    }

    /// A question came back from `peer`, or was not sent.
    pub fn came_back(&mut self, peer: ShardId) {
        if let Some(asked) = self.asked.get_mut(&peer) {
            *asked -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u64) -> RowKey {
        let stamp = Stamp { clock: crate::ids::Clock(n), ..Stamp::default() };
        RowKey { uaid: Uaid([1; 16]), chid: Chid([2; 16]), stamp, topic: None }
    }

    #[test]
    fn the_bound_holds_and_what_ended_last_stays() {
        let mut receipts = Receipts::new();
        let until = UnixSeconds(1);
        for n in 0..limits::RECEIPTS_MAX as u64 {
            assert!(!receipts.begin(&row(n), until));
        }
        assert!(receipts.end(&row(0), Outcome::Delivered));
        assert!(receipts.begin(&row(1 << 40), until));
        assert!(receipts.find(&row(1)).is_none(), "the oldest is forgotten");
        assert_eq!(receipts.find(&row(0)), Some((Some(Outcome::Delivered), until)), "an outcome is news");
        for n in 0..3 * limits::RECEIPTS_MAX as u64 {
            receipts.begin(&row((2 << 40) + n), until);
            receipts.end(&row((2 << 40) + n), Outcome::Delivered);
            assert!(receipts.len() <= limits::RECEIPTS_MAX);
            assert!(receipts.order.len() <= 2 * limits::RECEIPTS_MAX);
        }
        assert!(receipts.find(&row(0)).is_none());
    }

    #[test]
    fn the_first_outcome_stays() {
        let mut receipts = Receipts::new();
        assert!(!receipts.end(&row(1), Outcome::Delivered), "nobody asked");
        receipts.begin(&row(1), UnixSeconds(1));
        assert!(receipts.end(&row(1), Outcome::Expired));
        assert!(!receipts.end(&row(1), Outcome::Delivered));
        assert_eq!(receipts.find(&row(1)).unwrap().0, Some(Outcome::Expired));
    }
}
