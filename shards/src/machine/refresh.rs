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

use super::session::UNSAVED;
use super::slab::Ref;
use super::store::StoreOp;
use super::tickets::Work;
use super::{ShardMachine, Turn};

impl ShardMachine {
    /// Refreshes the user of a live session whose interval has begun.
    pub(super) fn refresh_session(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let Some(session) = self.sessions.get_mut(at) else { return };
        let now = interval(session.uaid, turn.now.unix());
        if session.refreshed == now || session.has(UNSAVED) {
            return;
        }
        if self.refreshes >= limits::REFRESHES_MAX || !self.tickets.room() {
            self.stats.refreshes_postponed += 1;
            return;
        }
        session.refreshed = now;
        self.refresh(turn, at, true);
    }

    /// Refreshes the user of a session that has just begun, who was last seen at `seen`. Where there is no place the
    /// sweep does it; but the session may be short, so a user whose rows have spent half of their time does not wait.
    pub(super) fn refresh_known(&mut self, turn: &mut Turn<'_>, at: Ref, seen: UnixSeconds) {
        let Some(session) = self.sessions.get_mut(at) else { return };
        let wall = turn.now.unix();
        let now = interval(session.uaid, wall);
        // Another node may have refreshed it a moment ago by a clock that is ahead of this one.
        let ahead = seen > wall && seen.0 - wall.0 <= limits::REFRESH_INTERVAL_SECONDS;
        if ahead || session.refreshed == now {
            session.refreshed = now;
            return;
        }
        let late = wall.0.abs_diff(seen.0) >= LATE_SECONDS;
        if !self.tickets.room() || (self.refreshes >= limits::REFRESHES_MAX && !late) {
            self.stats.refreshes_postponed += 1;
            return;
        }
        session.refreshed = now;
        self.refresh(turn, at, false);
    }

    fn refresh(&mut self, turn: &mut Turn<'_>, at: Ref, look: bool) {
        let Some(session) = self.sessions.get(at) else { return };
        let uaid = session.uaid;
        self.refreshes += 1;
        self.stats.refreshes += 1;
        self.submit(turn, Work::Refresh { session: at, look }, StoreOp::Touch { uaid, seen: turn.now.unix() });
    }

    /// Storage has refreshed a user, or has not: then the next round of the sweep tries again.
    pub(super) fn refreshed(&mut self, turn: &mut Turn<'_>, at: Ref, look: bool, done: bool) {
        self.refreshes -= 1;
        self.stats.refreshes_failed += u64::from(!done);
        let Some(session) = self.sessions.get_mut(at) else { return };
        if !done {
            session.refreshed = session.refreshed.wrapping_sub(1);
        } else if look && self.in_cluster() {
            self.check_storage(turn, at);
        }
    }
}

/// The interval of a user in which `time` lies. 16 bits last for 1,250 years.
pub(super) fn interval(uaid: Uaid, time: UnixSeconds) -> u16 {
    let id = u128::from_be_bytes(uaid.0);
    // UAIDs are random; the product spreads also those of one shard or of one kind evenly.
    let mixed = (id as u64 ^ (id >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let shift = (mixed * limits::REFRESH_INTERVAL_SECONDS) >> 32;
    (time.0.saturating_add(shift) / limits::REFRESH_INTERVAL_SECONDS) as u16
}

/// Half of the 60 days for which storage keeps a user, about.
const LATE_SECONDS: u64 = 4 * limits::REFRESH_INTERVAL_SECONDS;
