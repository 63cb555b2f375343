//! Rows that have ended and whose deletion is not confirmed, per user, and what no read may bring back meanwhile.
//!
//! Outlives the session. The rows of one user go to storage together, one operation at a time; what ends meanwhile goes
//! with the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Clock, Origin, Stamp, Uaid};
use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::row::RowKey;

/// The ended rows of one shard.
#[derive(Default)]
pub(in crate::shard) struct Settling {
    users: BTreeMap<Uaid, Rows>,
    /// Users with rows to delete that this step has named.
    named: Vec<Uaid>,
    /// Cancels at storage.
    cancelling: BTreeSet<(Uaid, Stamp)>,
    settled: Lately,
    kept: Lately,
    refused: Lately,
}

/// Rows of one user whose deletion is not confirmed.
#[derive(Default)]
struct Rows {
    /// Oldest first; the first `in_flight` are at storage.
    rows: VecDeque<RowKey>,
    in_flight: usize,
}

/// Work that is left when a delete has come back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Settled {
    Done,
    /// More rows of this user have ended meanwhile: [`Settling::begin`] is next.
    More,
    /// These rows, once more.
    Again(Vec<RowKey>),
}

impl Settling {
    /// Queues the deletion of a row. False when too many of its user wait: it is left to a later read.
    pub fn add(&mut self, row: RowKey) -> bool {
        let user = self.users.entry(row.uaid).or_default();
        if user.rows.len() >= SETTLING_ROWS_MAX {
            return false;
        }
        user.rows.push_back(row);
        if user.in_flight == 0 && self.named.last() != Some(&row.uaid) {
            self.named.push(row.uaid);
        }
        true
    }

    /// Takes a user for whom rows were queued since the last call.
    pub fn next_named(&mut self) -> Option<Uaid> {
        self.named.pop()
    }

    /// Takes the rows of a user to storage. `None` while others of the user are there, and when there are none.
    pub fn begin(&mut self, uaid: Uaid) -> Option<Vec<RowKey>> {
        let user = self.users.get_mut(&uaid).filter(|user| user.in_flight == 0 && !user.rows.is_empty())?;
        user.in_flight = user.rows.len();
        Some(user.rows.iter().copied().collect())
    }

    /// Storage has answered the deletion of `count` rows of a user.
    pub fn answered(&mut self, uaid: Uaid, count: usize, done: bool) -> Settled {
        // Invariant: the rows at storage keep the entry of their user.
        let user = self.users.get_mut(&uaid).expect("rows at storage have a user");
        assert!(user.in_flight == count, "the answer is to the rows at storage");
        if !done {
            return Settled::Again(user.rows.iter().take(count).copied().collect());
        }
        user.rows.drain(..count);
        user.in_flight = 0;
        if !user.rows.is_empty() {
            return Settled::More;
        }
        self.users.remove(&uaid);
        Settled::Done
    }

    /// Returns true if this message has ended and its row may still be there.
    pub fn holds(&self, uaid: Uaid, stamp: Stamp) -> bool {
        self.users.get(&uaid).is_some_and(|user| user.rows.iter().any(|row| row.stamp == stamp))
            || self.cancelling.contains(&(uaid, stamp))
    }

    /// A cancel begins: no read brings the message back.
    pub fn begin_cancel(&mut self, uaid: Uaid, stamp: Stamp) {
        self.cancelling.insert((uaid, stamp));
    }

    /// The cancel is over.
    pub fn end_cancel(&mut self, uaid: Uaid, stamp: Stamp) {
        self.cancelling.remove(&(uaid, stamp));
    }

    /// Remembers that a message of another node ended here, so that a late copy of it is known.
    pub fn remember(&mut self, now: Instant, uaid: Uaid, stamp: Stamp) {
        self.settled.remember(now, uaid, stamp);
    }

    /// Returns true if a message of another node ended here within the last minute.
    pub fn ended_lately(&self, uaid: Uaid, stamp: Stamp) -> bool {
        self.settled.known.contains(&(uaid, stamp))
    }

    /// Remembers that the session of an unacked message of another node has ended, and that the message is saved here.
    pub fn keep(&mut self, now: Instant, uaid: Uaid, stamp: Stamp) {
        self.kept.remember(now, uaid, stamp);
    }

    /// Returns true if a message of another node was taken here and has left its session within the last minute.
    pub fn taken_lately(&self, uaid: Uaid, stamp: Stamp) -> bool {
        self.ended_lately(uaid, stamp) || self.kept.known.contains(&(uaid, stamp))
    }

    /// Remembers that a push was refused here: the node that made it gives the message another stamp.
    pub fn refuse(&mut self, now: Instant, uaid: Uaid, stamp: Stamp) {
        self.refused.remember(now, uaid, stamp);
    }

    /// Returns true if a push of this message was refused here within the last minute.
    pub fn refused_lately(&self, uaid: Uaid, stamp: Stamp) -> bool {
        self.refused.known.contains(&(uaid, stamp))
    }

    /// Returns true if a push to this user was refused here within the last minute: another node may store it yet.
    pub fn refuses_lately(&mut self, now: Instant, uaid: Uaid) -> bool {
        let last = Stamp { clock: Clock(u64::MAX), origin: Origin(u32::MAX) };
        self.refused.forget_old(now);
        self.refused.known.range((uaid, Stamp::default())..=(uaid, last)).next().is_some()
    }
}

/// Messages of other nodes of the last minute.
#[derive(Default)]
struct Lately {
    order: VecDeque<(Instant, Uaid, Stamp)>,
    known: BTreeSet<(Uaid, Stamp)>,
}

impl Lately {
    fn forget_old(&mut self, now: Instant) {
        while let Some((at, uaid, stamp)) = self.order.front().copied() {
            if self.order.len() < LATELY_MAX && now.since(at) < LATELY_FOR {
                break;
            }
            self.order.pop_front();
            self.known.remove(&(uaid, stamp));
        }
    }

    fn remember(&mut self, now: Instant, uaid: Uaid, stamp: Stamp) {
        self.forget_old(now);
        if self.known.insert((uaid, stamp)) {
            self.order.push_back((now, uaid, stamp));
        }
    }
}

/// At the bound an unknown ack is not looked up; window entries always fit.
const SETTLING_ROWS_MAX: usize = 4 * limits::WINDOW_MAX as usize;
/// Entries of each of the three tables, about 3 MB each. At the bound the oldest is forgotten.
const LATELY_MAX: usize = 65_536;
/// Longer than a call of another node (30 s, the most that `node.request_timeout` can be) and its write
/// (`limits::WRITE_SECONDS_MAX`) take together.
const LATELY_FOR: TimeSpan = TimeSpan::from_secs(90);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Chid;
    use proptest::prelude::*;

    fn row(user: u8, clock: u64) -> RowKey {
        let stamp = Stamp { clock: Clock(clock), ..Stamp::default() };
        RowKey { uaid: Uaid([user; 16]), chid: Chid([0; 16]), stamp, topic: None }
    }

    proptest! {
        /// Each row is held until a delete that named it has succeeded, and one delete of a user is at storage at a
        /// time.
        #[test]
        fn rows_are_held_until_their_delete_is_confirmed(ops in prop::collection::vec((0u8..3, 0u8..3), 0..80)) {
            let mut settling = Settling::default();
            let mut open: BTreeMap<Uaid, Vec<RowKey>> = BTreeMap::new();
            let mut held: Vec<RowKey> = Vec::new();
            for (n, (user, op)) in ops.into_iter().enumerate() {
                let uaid = Uaid([user; 16]);
                if op == 0 {
                    prop_assert!(settling.add(row(user, n as u64)));
                    held.push(row(user, n as u64));
                } else if let Some(rows) = open.remove(&uaid) {
                    prop_assert_eq!(settling.begin(uaid), None);
                    match settling.answered(uaid, rows.len(), op == 1) {
                        Settled::Again(again) => {
                            prop_assert_eq!(&again, &rows);
                            open.insert(uaid, again);
                        }
                        more => {
                            held.retain(|row| !rows.contains(row));
                            prop_assert_eq!(more == Settled::More, held.iter().any(|row| row.uaid == uaid));
                            if let Some(rows) = settling.begin(uaid) {
                                open.insert(uaid, rows);
                            }
                        }
                    }
                }
                while let Some(uaid) = settling.next_named() {
                    if let Some(rows) = settling.begin(uaid) {
                        prop_assert!(open.insert(uaid, rows).is_none());
                    }
                }
                prop_assert!(held.iter().all(|row| settling.holds(row.uaid, row.stamp)));
                prop_assert_eq!(settling.users.values().map(|user| user.rows.len()).sum::<usize>(), held.len());
            }
        }
    }

    #[test]
    fn rows_of_one_user_are_bounded() {
        let mut settling = Settling::default();
        for n in 0..SETTLING_ROWS_MAX as u64 {
            assert!(settling.add(row(1, n)));
        }
        assert!(!settling.add(row(1, 9)) && settling.add(row(2, 9)));
    }

    #[test]
    fn a_cancel_holds_its_message_while_it_is_at_storage() {
        let (mut settling, row) = (Settling::default(), row(1, 5));
        settling.begin_cancel(row.uaid, row.stamp);
        assert!(settling.holds(row.uaid, row.stamp));
        settling.end_cancel(row.uaid, row.stamp);
        assert!(!settling.holds(row.uaid, row.stamp));
    }

    #[test]
    fn what_ended_lately_is_known_for_a_while() {
        let (mut settling, old, new) = (Settling::default(), row(1, 5), row(1, 6));
        settling.remember(Instant(0), old.uaid, old.stamp);
        assert!(settling.ended_lately(old.uaid, old.stamp) && !settling.ended_lately(new.uaid, new.stamp));
        settling.remember(Instant(0).after(LATELY_FOR), new.uaid, new.stamp);
        assert!(!settling.ended_lately(old.uaid, old.stamp) && settling.ended_lately(new.uaid, new.stamp));
    }

    #[test]
    fn a_user_has_pushes_that_were_refused_within_the_last_minute() {
        let mut settling = Settling::default();
        settling.refuse(Instant(0), Uaid([1; 16]), row(1, 5).stamp);
        let soon = Instant(0).after(TimeSpan(LATELY_FOR.0 - 1));
        assert!(settling.refuses_lately(soon, Uaid([1; 16])) && !settling.refuses_lately(soon, Uaid([2; 16])));
        assert!(!settling.refuses_lately(Instant(0).after(LATELY_FOR), Uaid([1; 16])));
        assert!(!settling.refused_lately(Uaid([1; 16]), row(1, 5).stamp));
    }

    #[test]
    fn what_is_kept_has_not_ended() {
        let (mut settling, row) = (Settling::default(), row(1, 5));
        settling.keep(Instant(0), row.uaid, row.stamp);
        assert!(settling.taken_lately(row.uaid, row.stamp) && !settling.ended_lately(row.uaid, row.stamp));
    }
}
