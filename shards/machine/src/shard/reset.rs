//! Users who start over (PROTOCOL.md 1.10): the record is dropped with all its rows, and the session closes with 1000.
//! The user agent, whose UAID is unknown at its next hello, subscribes anew.
//!
//! Two reasons: more stored messages than `delivery.msg_limit` for one drain, and a record of an older version, once
//! there is nothing left to deliver. The drop comes behind the save of what the session leaves, so a drop that fails
//! loses nothing: the next session is reset again.

use super::command::CloseReason;
use super::components::active_session::ActiveSession;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::slab::SlabKey;
use super::store::StoreOp;

impl ShardMachine {
    /// Returns true if `more` stored messages are too many for the running drain; then the user is reset.
    pub(super) fn over_msg_limit(&mut self, cx: &mut StepContext<'_>, at: SlabKey, more: usize) -> bool {
        let limit = self.config.msg_limit;
        let active = self.active_sessions.live_mut(self.sessions.live(at).active);
        if !active.drain.sends_too_many(more, limit) {
            return false;
        }
        let unacked = active.window.len() as u64;
        self.stats.resets_too_many += 1;
        self.stats.reset_discarded += unacked + more as u64;
        self.reset_user(cx, at);
        true
    }

    /// Resets the user of an old record as soon as no message is left, acked or not: an idle one at once.
    pub(super) fn reset_old_record(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live(at);
        // Messages that are held are left to deliver.
        if !session.stored.is_old() || self.may_hold_topic(at) {
            return;
        }
        let (uaid, index) = (session.uaid, session.active);
        let empty = self.active_of(index).is_none_or(ActiveSession::is_delivered);
        if empty && !self.write_in_flight(uaid) {
            self.stats.resets_old_record += 1;
            self.reset_user(cx, at);
        }
    }

    fn reset_user(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live(at);
        let (uaid, saved) = (session.uaid, session.stored.has_user());
        self.end_session(cx, at, Some(CloseReason::Reset));
        if saved {
            self.submit(cx, PendingOp::Reset { uaid }, StoreOp::DropUser { uaid });
        }
    }
}
