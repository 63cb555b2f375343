//! The refresh of users who are alive: storage drops a user who was not refreshed for 60 days.
//!
//! Time is cut into intervals of [`limits::REFRESH_INTERVAL_SECONDS`]. Where the cuts of a user lie is drawn from its
//! UAID, the same on every node, so that the users of a cluster come evenly over the whole interval. A user is
//! refreshed once in each interval in which it is connected: by its first hello of the interval, or by the sweep that
//! finds its session when the interval begins. At most [`limits::REFRESHES_MAX`] of a shard are in flight; a session
//! that finds no place, or whose refresh fails, is found again by the next round of the sweep.
//!
//! Among nodes a refresh of a live session also looks at storage: a word of another node that was lost costs a
//! message one interval at most.

use crate::ids::Uaid;
use crate::limits;
use crate::time::UnixSeconds;

/// Refreshes in flight of one shard.
#[derive(Default)]
pub(in crate::shard) struct Refreshes {
    in_flight: usize,
}

/// The part of a session: the interval in which storage was last told that its user is alive. 2 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Refreshed(u16);

impl Refreshed {
    /// The user was refreshed at `time`.
    pub fn at(uaid: Uaid, time: UnixSeconds) -> Refreshed {
        Refreshed(interval(uaid, time))
    }

    /// The refresh failed: the next round of the sweep tries again.
    fn undo(&mut self) {
        self.0 = self.0.wrapping_sub(1);
    }
}

/// Action for a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Refresh {
    /// Nothing: it was refreshed in this interval.
    NotDue,
    /// Nothing now: there is no place.
    Postponed,
    /// A refresh. It counts as in flight until [`Refreshes::done`].
    Due,
}

impl Refreshes {
    /// The sweep visits the session of a saved user. `room`: storage takes more work.
    pub fn visit(&mut self, uaid: Uaid, session: &mut Refreshed, now: UnixSeconds, room: bool) -> Refresh {
        let current = Refreshed::at(uaid, now);
        if *session == current {
            return Refresh::NotDue;
        }
        self.begin(session, current, room && self.in_flight < limits::REFRESHES_MAX)
    }

    /// A session has just begun, of a user who was last seen at `seen`. Where there is no place the sweep refreshes it;
    /// but the session may be short, so a user whose rows have spent half of their time does not wait.
    pub fn greet(
        &mut self,
        uaid: Uaid,
        session: &mut Refreshed,
        (seen, now): (UnixSeconds, UnixSeconds),
        room: bool,
    ) -> Refresh {
        let current = Refreshed::at(uaid, now);
        // Another node may have refreshed it a moment ago by a clock that is ahead of this one.
        let ahead = seen > now && seen.0 - now.0 <= limits::REFRESH_INTERVAL_SECONDS;
        if ahead || *session == current {
            *session = current;
            return Refresh::NotDue;
        }
        let late = now.0.abs_diff(seen.0) >= LATE_SECONDS;
        self.begin(session, current, room && (late || self.in_flight < limits::REFRESHES_MAX))
    }

    fn begin(&mut self, session: &mut Refreshed, current: Refreshed, place: bool) -> Refresh {
        if !place {
            return Refresh::Postponed;
        }
        *session = current;
        self.in_flight += 1;
        Refresh::Due
    }

    /// Storage has answered a refresh; `session` is the one that it was for, if it is still there.
    pub fn done(&mut self, session: Option<&mut Refreshed>, done: bool) {
        assert!(self.in_flight > 0, "an answer belongs to a refresh in flight");
        self.in_flight -= 1;
        if let Some(session) = session
            && !done
        {
            session.undo();
        }
    }
}

/// The interval of a user in which `time` lies. 16 bits last for 1,250 years.
fn interval(uaid: Uaid, time: UnixSeconds) -> u16 {
    let id = u128::from_be_bytes(uaid.0);
    // UAIDs are random; the product spreads also those of one shard or of one kind evenly.
    let mixed = (id as u64 ^ (id >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let shift = (mixed * limits::REFRESH_INTERVAL_SECONDS) >> 32;
    (time.0.saturating_add(shift) / limits::REFRESH_INTERVAL_SECONDS) as u16
}

/// Half of the 60 days for which storage keeps a user, about.
const LATE_SECONDS: u64 = 4 * limits::REFRESH_INTERVAL_SECONDS;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WEEK: u64 = limits::REFRESH_INTERVAL_SECONDS;

    proptest! {
        #[test]
        fn each_interval_has_one_refresh_that_succeeds(id: u128, from in 0u64..4 * WEEK, fails: bool) {
            let (uaid, mut refreshes) = (Uaid(id.to_be_bytes()), Refreshes::default());
            let mut session = Refreshed::at(uaid, UnixSeconds(from));
            let mut due = Vec::new();
            let last = UnixSeconds(from + 14 * 24 * 3_600);
            for now in (from..=last.0).step_by(3_600).map(UnixSeconds) {
                if refreshes.visit(uaid, &mut session, now, true) == Refresh::Due {
                    let done = !fails || due.len() % 2 == 1;
                    refreshes.done(Some(&mut session), done);
                    due.push(now.0);
                }
            }
            let intervals = usize::from(interval(uaid, last) - interval(uaid, UnixSeconds(from)));
            // The last attempt may have come too late to be tried again.
            let least = if fails { 2 * intervals - 1 } else { intervals };
            prop_assert!((least..=least + usize::from(fails)).contains(&due.len()), "{} of {}", due.len(), intervals);
            prop_assert_eq!(refreshes.in_flight, 0);
        }
    }

    #[test]
    fn few_refreshes_are_in_flight_and_only_late_users_get_another_place() {
        let (uaid, mut refreshes) = (Uaid([7; 16]), Refreshes::default());
        let (old, now) = (UnixSeconds(0), UnixSeconds(WEEK));
        let fresh = || Refreshed::at(uaid, old);
        for _ in 0..limits::REFRESHES_MAX {
            assert_eq!(refreshes.visit(uaid, &mut fresh(), now, true), Refresh::Due);
        }
        let mut session = fresh();
        assert_eq!(refreshes.visit(uaid, &mut session, now, true), Refresh::Postponed);
        assert_eq!(refreshes.greet(uaid, &mut session, (old, now), true), Refresh::Postponed);
        assert_eq!(session, fresh());
        let later = UnixSeconds(LATE_SECONDS);
        assert_eq!(refreshes.greet(uaid, &mut session, (old, later), false), Refresh::Postponed);
        assert_eq!(refreshes.greet(uaid, &mut session, (old, later), true), Refresh::Due);
        refreshes.done(None, true);
        assert_eq!(refreshes.visit(uaid, &mut session, now, false), Refresh::Postponed);
    }
}
