//! The refresh of users who are alive, with sessions and storage (`components::refresh` decides which are due).
//!
//! With several nodes a refresh of a live session also writes its presence row again and then reads storage. A lost
//! notification of another node therefore delays a message by at most one interval.

use crate::time::UnixSeconds;

use super::components::refresh::Refresh;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::slab::SlabKey;
use super::store::StoreOp;

impl ShardMachine {
    /// Refreshes the user of a live session whose interval has begun.
    pub(super) fn refresh_session(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live_mut(at);
        if !session.stored.has_user() {
            // The first register writes the user.
            return;
        }
        let room = self.tickets.room();
        let refresh = self.refreshes.visit(session.uaid, &mut session.refreshed, cx.now.unix(), room);
        self.refresh(cx, at, refresh, true);
    }

    /// Refreshes the user of a session that has just begun, who was last seen at `seen`.
    pub(super) fn refresh_known(&mut self, cx: &mut StepContext<'_>, at: SlabKey, seen: UnixSeconds) {
        let room = self.tickets.room();
        let session = self.sessions.live_mut(at);
        let times = (seen, cx.now.unix());
        let refresh = self.refreshes.greet(session.uaid, &mut session.refreshed, times, room);
        self.refresh(cx, at, refresh, false);
    }

    fn refresh(&mut self, cx: &mut StepContext<'_>, at: SlabKey, refresh: Refresh, look: bool) {
        match refresh {
            Refresh::NotDue => {}
            Refresh::Postponed => self.stats.refreshes_postponed += 1,
            Refresh::Due => {
                self.stats.refreshes += 1;
                let op = StoreOp::Touch { uaid: self.sessions.live(at).uaid, seen: cx.now.unix() };
                self.submit(cx, PendingOp::Refresh { session: at, look }, op);
            }
        }
    }

    /// Handles the end of a refresh at storage. The session's row is written next, and after that the session reads
    /// storage.
    pub(super) fn refreshed(&mut self, cx: &mut StepContext<'_>, at: SlabKey, look: bool, done: bool) {
        if done && look && self.renews_presence(cx, at) {
            return;
        }
        self.refresh_over(at, done);
    }

    /// Handles the end of a renewal of a presence row.
    pub(super) fn presence_renewed(&mut self, cx: &mut StepContext<'_>, at: SlabKey, done: bool) {
        self.refresh_over(at, done);
        if done && self.sessions.get(at).is_some() {
            self.check_storage(cx, at);
        }
    }

    /// Ends a refresh. The next round of the sweep tries a failed one again.
    fn refresh_over(&mut self, at: SlabKey, done: bool) {
        self.stats.refreshes_failed += u64::from(!done);
        let session = self.sessions.get_mut(at);
        self.refreshes.done(session.map(|session| &mut session.refreshed), done);
    }
}
