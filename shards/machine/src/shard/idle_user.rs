//! Users without a channel (PROTOCOL.md 1.10): dropped from storage when their session ends. Nothing can be sent to
//! them, and a user agent that asks how it is, such as `murre probe`, would leave one user behind each time.
//!
//! The shard drops only if nothing of the user can be under way here; storage decides, in the order of its operations
//! on the user, and asks for rows of other nodes. The next session of the user is as one before its first register:
//! that writes the user again, whole ([`Session::registers_user`]).

use crate::ids::{Chid, Uaid};

use super::command::CloseReason;
use super::components::conns::virtual_conns::is_virtual;
use super::components::session::Session;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::store::{StoreError, StoreOp, StoreReply};

impl ShardMachine {
    /// Drops the user of a session that has ended for this reason, if the user has no channel but this one, whose
    /// unregister is at storage. The caller knows that no register is.
    pub(super) fn drop_idle_user(
        &mut self,
        cx: &mut StepContext<'_>,
        session: &Session,
        why: Option<CloseReason>,
        unregistering: Option<Chid>,
    ) {
        let uaid = session.uaid;
        let left = unregistering.map(|chid| self.config.placement.fingerprint(chid));
        let has_channel = session.channels.as_slice().iter().any(|channel| Some(*channel) != left);
        // A newer session has the user, or the user is dropped in any case.
        let is_taken_over = match why {
            Some(CloseReason::Superseded | CloseReason::Elsewhere | CloseReason::Reset) => true,
            Some(_) | None => self.registering.contains(uaid) || self.pending_saves.contains(uaid),
        };
        // A relay brings its members back, and a minimum is named once.
        let stays = is_virtual(session.conn) || session.link.named_minimum().is_some();
        let is_stored = session.stored.has_user();
        if has_channel || is_taken_over || !is_stored || stays || self.draining() || !self.tickets.room() {
            return;
        }
        self.submit(cx, PendingOp::DropIdle { uaid }, StoreOp::DropIdle { uaid });
    }

    /// Handles the reply of storage. After an error the user may be there or not: its next hello finds out.
    pub(super) fn idle_user_dropped(&mut self, uaid: Uaid, result: Result<StoreReply, StoreError>) {
        if matches!(result, Ok(StoreReply::Done)) {
            self.stats.idle_users_dropped += 1;
            self.dropped_users.insert(uaid);
        }
    }
}
