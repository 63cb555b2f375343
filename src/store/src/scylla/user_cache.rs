//! A lane's memory of recent users: enough to spare reads and tombstones, nothing that must be right. Every answer is
//! the same when all of it is forgotten.
//!
//! Only the node that has a user's session settles its messages and changes its channels, and its hello reads the user:
//! so the memory is as of that read or newer.
//! Lives on: the store's runtime, one for each shard.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::ids::{Clock, Stamp, Uaid};

/// Users of one shard: 16,384 x about 110 B = 1.8 MB. Shed: the user that has the place.
const PLACES: usize = 16_384;
/// Rows of one user. Shed: the one read longest ago; its ack costs a delete more.
const ROWS_MAX: usize = 64;

/// Message rows of one user that are deleted alone before the database is told so, for the next reader on any node.
const DELETES_NOTED: usize = 64;
/// Message rows of one user that are deleted alone before low water is raised past them. Both databases warn at 1,000
/// tombstones of one read, and Cassandra refuses it at 100,000.
const DELETES_PASSED: usize = 1_024;
/// Channels of one user that are unregistered before their tombstones become one.
const UNREGISTERS_SWEPT: usize = 256;

/// Consequences of deletes of message rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Deletes {
    /// The database is told that there are many.
    pub(super) note: bool,
    /// Low water is raised past them.
    pub(super) pass: bool,
}

/// Memory of one user.
#[derive(Default)]
pub(super) struct CachedUser {
    /// Every message row at or below it is settled; remembered of users that are there only.
    pub(super) low_water: Option<Clock>,
    /// Number of channels.
    pub(super) channels: Option<usize>,
    /// The latest message row that was deleted alone, if there were many.
    pub(super) deleted: Clock,
    /// Message rows that were deleted alone since low water passed the last of them.
    deletes: usize,
    /// Channels that were unregistered since their tombstones were swept.
    unregisters: usize,
    /// The timestamp of the drop of the user that was there before: later writes must have a later one.
    pub(super) dropped_at: Clock,
    /// The topics were read last and no saved row stands behind them: the first page of messages need not look for one.
    no_saved: bool,
    /// The read of topics that began last; 0 when a row was saved since, or none began.
    read: u32,
    /// Rows that were read from the message family and not from the saved one: an ack that low water covers needs no
    /// delete.
    plain: Vec<Stamp>,
}

impl CachedUser {
    /// No user, since this drop.
    pub(super) fn dropped(at: Clock) -> CachedUser {
        CachedUser { dropped_at: at, ..CachedUser::default() }
    }

    /// A row may be saved from now on: the results of earlier reads are void.
    pub(super) fn may_have_saved(&mut self) {
        (self.no_saved, self.read) = (false, 0);
    }

    /// Returns true if the first page of messages need not look for a saved row. It is good for one page.
    pub(super) fn take_no_saved(&mut self) -> bool {
        std::mem::take(&mut self.no_saved)
    }

    /// Notes that a drain has read this row in the message family only.
    pub(super) fn note_unsaved_row(&mut self, stamp: Stamp) {
        if !self.plain.contains(&stamp) {
            if self.plain.len() >= ROWS_MAX {
                self.plain.remove(0);
            }
            self.plain.push(stamp);
        }
    }

    /// Returns true if a drain has read it in the message family only, and forgets it: the row is settled now, or
    /// saved.
    pub(super) fn take_unsaved_row(&mut self, stamp: Stamp) -> bool {
        let place = self.plain.iter().position(|one| *one == stamp);
        place.map(|place| self.plain.remove(place)).is_some()
    }

    /// Notes that the user was read and is there. Low water only rises.
    pub(super) fn is_there(&mut self, low_water: Clock, deleted: Clock) {
        self.low_water = self.low_water.max(Some(low_water));
        self.deleted = self.deleted.max(deleted);
    }

    /// Counts message rows that are deleted alone, the latest of them at `last`.
    pub(super) fn count_deletes(&mut self, count: usize, last: Clock) -> Deletes {
        let (before, after) = (self.deletes, self.deletes + count);
        self.deletes = after;
        let reached = |every: usize| before / every != after / every;
        if reached(DELETES_NOTED) {
            self.deleted = self.deleted.max(last);
        }
        Deletes { note: reached(DELETES_NOTED), pass: reached(DELETES_PASSED) }
    }

    /// Counts an unregister. Returns true if the tombstones of its channels are many.
    pub(super) fn count_unregister(&mut self) -> bool {
        self.unregisters += 1;
        self.unregisters.is_multiple_of(UNREGISTERS_SWEPT)
    }

    /// Notes that low water was written.
    pub(super) fn raise(&mut self, low_water: Clock) {
        self.low_water = self.low_water.map(|before| before.max(low_water));
        if low_water >= self.deleted {
            self.deletes = 0;
        }
    }
}

/// Fixed places for users, by their ids.
#[derive(Default)]
pub(super) struct UserCache {
    places: Mutex<Vec<Option<(Uaid, CachedUser)>>>,
    /// Reads of topics that have begun, modulo its range.
    reads: AtomicU32,
}

impl UserCache {
    pub(super) fn get<T>(&self, uaid: Uaid, look: impl FnOnce(&CachedUser) -> T) -> Option<T> {
        let places = self.lock();
        let (kept, user) = places.get(place(uaid))?.as_ref()?;
        (*kept == uaid).then(|| look(user))
    }

    /// Notes that a read of this user's topics begins; returns the argument for [`UserCache::topics_read`] at its end.
    pub(super) fn begin_topics(&self, uaid: Uaid) -> u32 {
        let read = self.reads.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        self.change(uaid, |user| (user.no_saved, user.read) = (false, read));
        read
    }

    /// Notes the end of a read: no saved row waits, or one may. Only the last that began counts: an earlier one is of a
    /// session that is over, and a row may have been saved elsewhere since.
    pub(super) fn topics_read(&self, uaid: Uaid, read: u32, no_saved: bool) {
        self.change(uaid, |user| {
            if user.read == read {
                user.no_saved = no_saved;
            }
        });
    }

    /// Changes a user; a new one takes the place of another.
    pub(super) fn change<T>(&self, uaid: Uaid, change: impl FnOnce(&mut CachedUser) -> T) -> T {
        let mut places = self.lock();
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        let kept = &mut places[place(uaid)];
        if kept.as_ref().is_none_or(|(other, _)| *other != uaid) {
            *kept = Some((uaid, CachedUser::default()));
        }
        // Invariant: it was just put there.
        change(&mut kept.as_mut().expect("a user").1)
    }

    /// The table is whole between calls, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Vec<Option<(Uaid, CachedUser)>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// UAIDs are random.
fn place(uaid: Uaid) -> usize {
    let [a, b, c, d, ..] = uaid.0;
    u32::from_be_bytes([a, b, c, d]) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_topics_that_ends_late_says_nothing_about_saved_rows() {
        let (known, uaid) = (UserCache::default(), Uaid([1; 16]));
        let take = || known.change(uaid, CachedUser::take_no_saved);
        let of_before = known.begin_topics(uaid);
        let read = known.begin_topics(uaid);
        known.topics_read(uaid, read, false);
        known.topics_read(uaid, of_before, true);
        assert!(!take(), "a row may have been saved between the two");
        let read = known.begin_topics(uaid);
        known.change(uaid, CachedUser::may_have_saved);
        known.topics_read(uaid, read, true);
        assert!(!take(), "a row was saved beside the read");
        let read = known.begin_topics(uaid);
        known.topics_read(uaid, read, true);
        assert!(take() && !take(), "one page of messages");
    }

    #[test]
    fn a_place_is_taken_by_the_last_and_rows_are_bounded() {
        let known = UserCache::default();
        let (one, other) = (
            Uaid([1; 16]),
            Uaid({
                let mut id = [1; 16];
                id[9] = 2;
                id
            }),
        );
        known.change(one, |user| user.raise(Clock(9)));
        assert_eq!(known.get(one, |user| user.low_water), Some(None), "nobody has read that it is there");
        known.change(one, |user| user.is_there(Clock(5), Clock(0)));
        known.change(one, |user| user.raise(Clock(3)));
        assert_eq!(known.get(one, |user| user.low_water), Some(Some(Clock(5))));
        known.change(other, |user| {
            for n in 0..1_000 {
                user.note_unsaved_row(Stamp { clock: Clock(n), ..Stamp::default() });
            }
            assert!(user.plain.len() <= ROWS_MAX);
            assert!(user.take_unsaved_row(Stamp { clock: Clock(999), ..Stamp::default() }));
            assert!(!user.take_unsaved_row(Stamp { clock: Clock(999), ..Stamp::default() }));
        });
        assert_eq!(known.get(one, |_| ()), None, "its place was taken");
    }

    #[test]
    fn deletes_are_noted_and_passed_every_so_often() {
        let mut user = CachedUser::default();
        user.is_there(Clock(1), Clock(0));
        let neither = Deletes { note: false, pass: false };
        assert_eq!(user.count_deletes(DELETES_NOTED - 1, Clock(5)), neither);
        assert_eq!(user.deleted, Clock(0));
        assert_eq!(user.count_deletes(1, Clock(6)), Deletes { note: true, pass: false });
        assert_eq!((user.deleted, user.count_deletes(1, Clock(7))), (Clock(6), neither));
        assert_eq!(user.count_deletes(DELETES_PASSED, Clock(8)), Deletes { note: true, pass: true });
        user.raise(Clock(7));
        assert_eq!(user.deletes, DELETES_NOTED + 1 + DELETES_PASSED, "one lies above");
        user.raise(Clock(8));
        assert_eq!(user.deletes, 0);
        assert_eq!((1..=2 * UNREGISTERS_SWEPT).filter(|_| user.count_unregister()).count(), 2);
    }
}
