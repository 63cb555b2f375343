//! Outcomes by message, and the app servers that wait for them: the bounded tables behind delivery receipts.
//!
//! The owner shard keeps a record of every message whose sender asked for a receipt, from its acceptance or, after a
//! restart, from its first sending. Where the message ends the outcome is noted, and those that wait for it are told. A
//! record that the bound or a restart took is made again when the message is found; else the answer is that it is not
//! known: never that it expired, since it may have been delivered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Chid, ShardId, Stamp, Uaid};
use crate::limits;
use crate::message::Topic;
use crate::time::{Instant, Now, TimeSpan, UnixSeconds};

use super::super::receipt::{Outcome, ReceiptAnswer, ReceiptQuery};
use super::super::row::RowKey;
use super::super::stats::MachineStats;
use super::requests::ReplyTo;

/// A message whose sender asked for a receipt. Ordered so that a channel is a range, and a slot of a channel too.
type Key = (Uaid, Chid, Option<Topic>, Stamp);

/// Stale entries of a user that are kept beside twice its records.
const STALE_MAX: usize = 16;

fn key(row: &RowKey) -> Key {
    (row.uaid, row.chid, row.topic, row.stamp)
}

/// The receipts of one shard.
pub(in crate::shard) struct Receipts {
    records: BTreeMap<Key, Record>,
    users: BTreeMap<Uaid, OfUser>,
    /// Users by the number of their records: the last one has the most.
    most: BTreeSet<(usize, Uaid)>,
    changes: u64,
    waiting: BTreeMap<Key, Vec<Waiter>>,
    due: BTreeSet<(Instant, Key)>,
    waiters: usize,
    /// Answers to send, when a step has room for them.
    ready: VecDeque<(ReplyTo<ReceiptAnswer>, ReceiptAnswer)>,
    /// Questions of this shard at each other shard.
    asked: BTreeMap<ShardId, usize>,
}

/// Receipts of one user. It is there while the user has a record or is waited for.
#[derive(Default)]
struct OfUser {
    records: usize,
    /// Oldest first, by acceptance and again by outcome. An entry whose number is not the record's is stale.
    order: VecDeque<(u64, Key)>,
    waiters: usize,
}

struct Record {
    change: u64,
    outcome: Option<Outcome>,
    /// From then on nothing but the ack of what was sent can come.
    expires: UnixSeconds,
}

struct Waiter {
    reply_to: ReplyTo<ReceiptAnswer>,
    due: Instant,
}

impl Receipts {
    pub fn new() -> Receipts {
        Receipts {
            records: BTreeMap::new(),
            users: BTreeMap::new(),
            most: BTreeSet::new(),
            changes: 0,
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            waiters: 0,
            ready: VecDeque::new(),
            asked: BTreeMap::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// Makes a record of a message that has none. True when an older record had to go for it: one of the user that has
    /// the most.
    fn begin(&mut self, row: &RowKey, expires: UnixSeconds) -> bool {
        if self.records.contains_key(&key(row)) {
            return false;
        }
        let forgets = self.records.len() >= limits::RECEIPTS_MAX;
        if forgets && let Some((_, uaid)) = self.most.last().copied() {
            self.forget_oldest(uaid);
        }
        let change = self.note(key(row));
        self.records.insert(key(row), Record { change, outcome: None, expires });
        self.count(row.uaid, |records| records + 1);
        forgets
    }

    fn note(&mut self, key: Key) -> u64 {
        self.changes += 1;
        self.users.entry(key.0).or_default().order.push_back((self.changes, key));
        self.changes
    }

    /// Forgets the record of this user that was accepted, or ended, longest ago.
    fn forget_oldest(&mut self, uaid: Uaid) {
        while let Some((change, key)) = self.users.get_mut(&uaid).and_then(|user| user.order.pop_front()) {
            if self.records.get(&key).is_some_and(|record| record.change == change) {
                return self.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        if self.records.remove(key).is_some() {
            self.count(key.0, |records| records - 1);
        }
    }

    /// Counts the records of a user anew. A user with neither records nor waiters is forgotten.
    fn count(&mut self, uaid: Uaid, next: impl FnOnce(usize) -> usize) {
        let user = self.users.entry(uaid).or_default();
        self.most.remove(&(user.records, uaid));
        user.records = next(user.records);
        if user.records > 0 {
            self.most.insert((user.records, uaid));
            // What was forgotten out of turn leaves its entries.
            if user.order.len() > 2 * user.records + STALE_MAX {
                let records = &self.records;
                user.order.retain(|(change, key)| records.get(key).is_some_and(|record| record.change == *change));
            }
            return;
        }
        user.order = VecDeque::new();
        if user.waiters == 0 {
            self.users.remove(&uaid);
        }
    }

    /// The record's outcome, if there is a record and an outcome, and the time at which the message expires.
    fn find(&self, row: &RowKey) -> Option<(Option<Outcome>, UnixSeconds)> {
        self.records.get(&key(row)).map(|record| (record.outcome, record.expires))
    }

    /// Sets the outcome of a message that has a record and none yet, and tells those that wait. The first outcome
    /// stays.
    fn end(&mut self, row: &RowKey, outcome: Outcome) -> bool {
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
            self.release(key.0, waiter.reply_to, ReceiptAnswer::Ended(outcome));
        }
        true
    }

    /// Forgets a message whose end is not known, and tells that to those that wait.
    fn forget(&mut self, row: &RowKey) {
        self.remove(&key(row));
        for waiter in self.waiting.remove(&key(row)).unwrap_or_default() {
            self.due.remove(&(waiter.due, key(row)));
            self.release(row.uaid, waiter.reply_to, ReceiptAnswer::Unknown);
        }
    }

    /// Ends everything of a slot that is older than `newest` as replaced. Returns the number of these messages.
    fn replace_slot(&mut self, uaid: Uaid, (chid, topic): (Chid, Topic), newest: Stamp) -> u64 {
        let from = (uaid, chid, Some(topic), Stamp::default());
        let until = (uaid, chid, Some(topic), newest);
        // Messages older than an ended one were ended by it, or before.
        let older = self.records.range(from..until).rev().take_while(|(_, record)| record.outcome.is_none());
        let keys: Vec<Key> = older.map(|(key, _)| *key).collect();
        keys.into_iter().map(|key| u64::from(self.end_key(key, Outcome::Replaced))).sum()
    }

    /// Ends everything of a channel. Returns the number of these messages.
    fn unregister(&mut self, uaid: Uaid, chid: Chid) -> u64 {
        self.end_from((uaid, chid, None, Stamp::default()), |(u, c, ..)| (*u, *c) == (uaid, chid))
    }

    /// Ends everything of a user. Returns the number of these messages.
    fn drop_user(&mut self, uaid: Uaid) -> u64 {
        self.end_from((uaid, Chid([0; 16]), None, Stamp::default()), |(u, ..)| *u == uaid)
    }

    fn end_from(&mut self, from: Key, belongs: impl Fn(&Key) -> bool) -> u64 {
        let those = self.records.range(from..).take_while(|(key, _)| belongs(key));
        let keys: Vec<Key> = those.filter(|(_, record)| record.outcome.is_none()).map(|(key, _)| *key).collect();
        keys.into_iter().map(|key| u64::from(self.end_key(key, Outcome::Unregistered))).sum()
    }

    /// An app server waits for the outcome until `due`; false when too many wait.
    fn wait(&mut self, row: &RowKey, reply_to: ReplyTo<ReceiptAnswer>, due: Instant) -> bool {
        let of_user = self.users.get(&row.uaid).map_or(0, |user| user.waiters);
        if self.waiters >= limits::RECEIPT_WAITERS_MAX || of_user >= limits::RECEIPT_WAITERS_OF_USER_MAX {
            return false;
        }
        self.waiters += 1;
        self.users.entry(row.uaid).or_default().waiters += 1;
        self.due.insert((due, key(row)));
        self.waiting.entry(key(row)).or_default().push(Waiter { reply_to, due });
        true
    }

    /// Time at which the first wait is over.
    fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The next message for which an app server has waited long enough; `give_up` must follow.
    fn next_overdue(&mut self, now: Instant) -> Option<RowKey> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (_, (uaid, chid, topic, stamp)) = self.due.pop_first()?;
        Some(RowKey { uaid, chid, stamp, topic })
    }

    /// Tells those that wait for it until `now` at most that it is pending.
    fn give_up(&mut self, row: &RowKey, now: Instant) {
        // No app server waits for it.
        let Some(waiters) = self.waiting.remove(&key(row)) else { return };
        let (over, still): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|waiter| waiter.due <= now);
        for waiter in over {
            self.due.remove(&(waiter.due, key(row)));
            self.release(row.uaid, waiter.reply_to, ReceiptAnswer::Pending);
        }
        if !still.is_empty() {
            self.waiting.insert(key(row), still);
        }
    }

    /// Ends every wait: the shard is draining.
    pub fn give_up_all(&mut self) {
        self.due.clear();
        for ((uaid, ..), waiters) in std::mem::take(&mut self.waiting) {
            waiters.into_iter().for_each(|waiter| self.release(uaid, waiter.reply_to, ReceiptAnswer::Pending));
        }
    }

    fn release(&mut self, uaid: Uaid, reply_to: ReplyTo<ReceiptAnswer>, answer: ReceiptAnswer) {
        self.waiters -= 1;
        if let Some(user) = self.users.get_mut(&uaid) {
            user.waiters -= 1;
            if user.waiters == 0 && user.records == 0 {
                self.users.remove(&uaid);
            }
        }
        self.ready.push_back((reply_to, answer));
    }

    /// The next answer to send.
    pub fn next_ready(&mut self) -> Option<(ReplyTo<ReceiptAnswer>, ReceiptAnswer)> {
        self.ready.pop_front()
    }

    fn has_ready(&self) -> bool {
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

/// Facts that the siblings know about a message that is asked about.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Whereabouts {
    /// It is in the window of a session or on its way to storage: its end is still to come.
    pub in_memory: bool,
    /// A page is on its way that may hold what expired since it was asked for.
    pub reading: bool,
    /// It was settled and its row may still be there.
    pub settling: bool,
}

/// Result of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Look {
    Answer(ReceiptAnswer),
    /// It waits for the outcome; [`Receipts::next_ready`] has its answer then.
    Waits,
}

impl Receipts {
    // --- what happens to messages ----------------------------------------------------------------------

    /// A message was accepted, or is sent for the first time since a restart.
    pub fn accepted(&mut self, row: &RowKey, expires: UnixSeconds, stats: &mut MachineStats) {
        stats.receipts_forgotten += u64::from(self.begin(row, expires));
    }

    /// A message ended. Says nothing of one that no app server asked about.
    pub fn ended(&mut self, row: &RowKey, outcome: Outcome, stats: &mut MachineStats) {
        if !self.is_empty() && self.end(row, outcome) {
            count_outcome(stats, outcome, 1);
        }
    }

    /// A newer message took a slot.
    pub fn replaced(&mut self, uaid: Uaid, slot: (Chid, Topic), newest: Stamp, stats: &mut MachineStats) {
        if !self.is_empty() {
            count_outcome(stats, Outcome::Replaced, self.replace_slot(uaid, slot, newest));
        }
    }

    /// A channel is no more.
    pub fn unregistered(&mut self, uaid: Uaid, chid: Chid, stats: &mut MachineStats) {
        if !self.is_empty() {
            count_outcome(stats, Outcome::Unregistered, self.unregister(uaid, chid));
        }
    }

    /// A user is no more, and every channel with it.
    pub fn user_dropped(&mut self, uaid: Uaid, stats: &mut MachineStats) {
        if !self.is_empty() {
            count_outcome(stats, Outcome::Unregistered, self.drop_user(uaid));
        }
    }

    /// Storage has a message no more, and this shard has not ended it. It expired, or what removed it was answered with
    /// an error: an unregister, or a newer message of its topic. Where neither is certain its end is not known.
    pub fn gone(&mut self, now: UnixSeconds, row: &RowKey, registered: bool, stats: &mut MachineStats) {
        match self.find(row) {
            Some((None, expires)) if expires <= now => self.ended(row, Outcome::Expired, stats),
            Some((None, _)) if !registered => self.ended(row, Outcome::Unregistered, stats),
            Some((None, _)) => self.forget(row),
            Some((Some(_), _)) | None => {}
        }
    }

    // --- queries ---------------------------------------------------------------------------------------

    /// A query at the owner shard. `may_wait`: the shard is not draining. `None`: only storage knows.
    pub fn query(
        &mut self,
        now: Now,
        reply_to: ReplyTo<ReceiptAnswer>,
        query: &ReceiptQuery,
        (whereabouts, may_wait): (Whereabouts, bool),
        stats: &mut MachineStats,
    ) -> Option<Look> {
        stats.receipt_queries += 1;
        let (row, wall) = (query.row(), now.unix());
        match self.find(&row) {
            Some((Some(outcome), _)) => Some(Look::Answer(ReceiptAnswer::Ended(outcome))),
            _ if whereabouts.in_memory => Some(self.wait_for(now, reply_to, query, may_wait, stats)),
            Some((None, expires)) if expires <= wall && !whereabouts.reading => {
                self.ended(&row, Outcome::Expired, stats);
                Some(Look::Answer(ReceiptAnswer::Ended(Outcome::Expired)))
            }
            Some((None, _)) => Some(self.wait_for(now, reply_to, query, may_wait, stats)),
            // Storage returns nothing that is expired, so it cannot say whether it was delivered.
            None if query.expires <= wall => Some(Look::Answer(ReceiptAnswer::Unknown)),
            None => None,
        }
    }

    /// Storage was asked for a message of which there was no record. `is_there`: it has the message.
    pub fn read(
        &mut self,
        now: Now,
        reply_to: ReplyTo<ReceiptAnswer>,
        query: &ReceiptQuery,
        (is_there, whereabouts, may_wait): (bool, Whereabouts, bool),
        stats: &mut MachineStats,
    ) -> Look {
        match self.find(&query.row()) {
            Some((Some(outcome), _)) => Look::Answer(ReceiptAnswer::Ended(outcome)),
            Some((None, _)) => self.wait_for(now, reply_to, query, may_wait, stats),
            None if is_there && !whereabouts.settling => self.wait_for(now, reply_to, query, may_wait, stats),
            None if whereabouts.in_memory => self.wait_for(now, reply_to, query, may_wait, stats),
            None => Look::Answer(ReceiptAnswer::Unknown),
        }
    }

    fn wait_for(
        &mut self,
        now: Now,
        reply_to: ReplyTo<ReceiptAnswer>,
        query: &ReceiptQuery,
        may_wait: bool,
        stats: &mut MachineStats,
    ) -> Look {
        let row = query.row();
        self.accepted(&row, query.expires, stats);
        let expires = self.find(&row).map_or(query.expires, |(_, expires)| expires);
        let longest = TimeSpan::from_secs(u64::from(limits::RECEIPT_WAIT_SECONDS_MAX));
        let wait = match expires.0.saturating_sub(now.unix().0) {
            // It may be acked all the same: it is in the window.
            0 => query.wait.min(longest),
            left => {
                query.wait.min(longest).min(TimeSpan::from_secs(left.min(u64::from(limits::RECEIPT_WAIT_SECONDS_MAX))))
            }
        };
        if wait == TimeSpan(0) || !may_wait {
            Look::Answer(ReceiptAnswer::Pending)
        } else if self.wait(&row, reply_to, now.mono.after(wait)) {
            Look::Waits
        } else {
            stats.receipts_refused += 1;
            Look::Answer(ReceiptAnswer::Unavailable)
        }
    }

    // --- time ------------------------------------------------------------------------------------------

    /// The next message for which an app server has waited long enough. [`Receipts::waited`] must follow.
    pub fn overdue(&mut self, now: Instant) -> Option<RowKey> {
        self.next_overdue(now)
    }

    /// Tells those who have waited long enough that a message is pending, unless it has expired meanwhile.
    pub fn waited(&mut self, now: Now, row: &RowKey, whereabouts: Whereabouts, stats: &mut MachineStats) {
        let over = self.find(row).is_some_and(|(_, expires)| expires <= now.unix());
        if over && !whereabouts.in_memory && !whereabouts.reading {
            self.ended(row, Outcome::Expired, stats);
        }
        self.give_up(row, now.mono);
    }

    /// Returns when there is something to say or to give up.
    pub fn due(&self) -> Option<Instant> {
        if self.has_ready() { Some(Instant(0)) } else { self.next_due() }
    }
}

fn count_outcome(stats: &mut MachineStats, outcome: Outcome, count: u64) {
    match outcome {
        Outcome::Delivered => stats.receipts_delivered += count,
        _ => stats.receipts_not_delivered += count,
    }
}

#[cfg(test)]
mod tests;
