//! Entries of the sessions with work under way, found by the session.

use crate::time::Instant;

use super::components::active_session::ActiveSession;
use super::composer::ShardMachine;
use super::slab::SlabKey;

impl ShardMachine {
    /// Returns the entry of a session; `None` for an idle one, and for one that has ended.
    pub(super) fn active(&self, at: SlabKey) -> Option<&ActiveSession> {
        self.active_sessions.get(self.sessions.get(at)?.active)
    }

    /// Returns the same entry as [`ShardMachine::active`], mutably.
    pub(super) fn active_mut(&mut self, at: SlabKey) -> Option<&mut ActiveSession> {
        self.active_sessions.get_mut(self.sessions.get(at)?.active)
    }

    pub(super) fn active_of(&self, index: u32) -> Option<&ActiveSession> {
        self.active_sessions.get(index)
    }

    pub(super) fn active_of_mut(&mut self, index: u32) -> Option<&mut ActiveSession> {
        self.active_sessions.get_mut(index)
    }

    /// Returns the side table entry of a session that exists, and makes one if there is none.
    pub(super) fn activate(&mut self, at: SlabKey) -> &mut ActiveSession {
        self.active_sessions.entry(&mut self.sessions.live_mut(at).active)
    }

    /// Frees the entry when nothing is under way.
    pub(super) fn deactivate_if_idle(&mut self, at: SlabKey) {
        if let Some(session) = self.sessions.get_mut(at)
            && self.active_sessions.end_if_idle(&mut session.active)
        {
            let sessions = &self.sessions;
            self.active_sessions.forget_stale_deadlines(|at| sessions.get(at).map(|session| session.active));
        }
    }

    /// Arms the deadline of a session that exists, unless an earlier one is armed.
    pub(super) fn arm_active_at(&mut self, at: SlabKey, due: Instant) {
        self.active_sessions.arm(at, &mut self.sessions.live_mut(at).active, due);
    }

    /// Takes the next session whose deadline has come.
    pub(super) fn next_active_due(&mut self, now: Instant) -> Option<SlabKey> {
        let sessions = &self.sessions;
        self.active_sessions.next_due(now, |at| sessions.get(at).map(|session| session.active))
    }
}
