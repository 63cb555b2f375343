//! Cancels: an app server withdraws a message (PROTOCOL.md 2.9).

use super::command::{Cancel, Cancelled};
use super::components::requests::ReplyTo;
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::receipt::Outcome;
use super::row::RowKey;
use super::store::StoreOp;

impl ShardMachine {
    /// Handles `DELETE /m/{id}`: removes each of the three forms of the message (PROTOCOL.md 2.9). A notification that
    /// the user agent was sent is not recalled, and not sent again either.
    pub(super) fn cancel(&mut self, cx: &mut StepContext<'_>, reply_to: ReplyTo<Cancelled>, cancel: Cancel) {
        self.stats.cancels += 1;
        self.settling.begin_cancel(cancel.uaid, cancel.stamp);
        let asked = self.cancel_at_storage(cx, reply_to, &cancel);
        if !asked {
            self.settling.end_cancel(cancel.uaid, cancel.stamp);
        }
        if let Some(Resident::Session(index)) = self.resident(cancel.uaid) {
            let at = self.session_ref(index);
            self.continue_drain(cx, at);
            self.deactivate_if_idle(at);
        }
    }

    /// Removes the message from the window and from the departing messages, and deletes its row. Returns false if the
    /// delete is unnecessary or impossible, and the answer was given.
    fn cancel_at_storage(&mut self, cx: &mut StepContext<'_>, reply_to: ReplyTo<Cancelled>, cancel: &Cancel) -> bool {
        if cancel.stamp.origin != self.config.origin {
            self.settling.remember(cx.now.mono, cancel.uaid, cancel.stamp);
        }
        if let Some(Resident::Session(index)) = self.resident(cancel.uaid) {
            let at = self.session_ref(index);
            let active = self.sessions.live(at).active;
            if let Some(entry) = self.remove_entry(active, cancel.stamp) {
                self.forget_record(cx, &entry);
                if !entry.may_be_stored() {
                    self.end_receipt(&cancel.row(), Outcome::Cancelled);
                    self.answer(cx, reply_to, Cancelled { done: true });
                    return false;
                }
            }
        }
        self.cancel_departing(cx, cancel.uaid, cancel.stamp);
        if !self.tickets.room() {
            self.answer(cx, reply_to, Cancelled { done: false });
            return false;
        }
        let row = cancel.row();
        let op = StoreOp::Settle { rows: vec![row], low_water: None, durable: true };
        self.submit(cx, PendingOp::Cancel { reply_to, row }, op);
        true
    }

    /// Handles the reply of storage to a cancel. After an error the delete is tried again: the message has left the
    /// window, so an ack of it would find nothing.
    pub(super) fn cancelled(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Cancelled>,
        row: RowKey,
        done: bool,
    ) {
        if !done {
            self.settle(row);
        }
        self.end_receipt(&row, Outcome::Cancelled);
        self.settling.end_cancel(row.uaid, row.stamp);
        self.answer(cx, reply_to, Cancelled { done });
    }
}
