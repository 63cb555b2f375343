//! Settling: the exact messages that an ack, a cancel or a replacement ends (ARCHITECTURE.md 3).
//!
//! A direct ends when its ledger record is marked dead. A row ends when exactly that version is deleted. Until the
//! delete is confirmed its stamp is remembered per UAID, so that no read returns it.

use crate::ids::{Clock, Stamp, Uaid};

use super::command::{AckUpdate, Cancel, Cancelled};
use super::components::ledger_room::ledger_bytes;
use super::components::requests::ReplyTo;
use super::components::settling::Settled;
use super::components::user_index::Resident;
use super::components::window::WindowEntry;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::SlabKey;
use super::stats::DeliveryTimes;
use super::store::StoreOp;

impl ShardMachine {
    pub(super) fn ack(&mut self, cx: &mut StepContext<'_>, at: SlabKey, updates: &[AckUpdate]) {
        let uaid = self.sessions.live(at).uaid;
        let out = self.out(at);
        for update in updates {
            let row = RowKey { uaid, chid: update.chid, stamp: update.stamp, topic: update.topic };
            self.end_receipt(&row, Outcome::of_ack(update.code));
            match update.code {
                101 => self.stats.acks_decryption_error += 1,
                102 => self.stats.acks_not_delivered += 1,
                _ => self.stats.acks += 1,
            }
            if !self.acked(cx, at, update.stamp) {
                self.ack_outside_window(cx, at, update);
            }
        }
        self.pace_acked(cx, at, out);
        self.continue_drain(cx, at);
        self.reset_old_record(cx, at);
        self.deactivate_if_idle(at);
    }

    /// Ends the notification that an ack names, and records its delivery time; false if the window does not hold it.
    fn acked(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamp: Stamp) -> bool {
        let index = self.sessions.live(at).active;
        let Some(entry) = self.remove_entry(index, stamp) else { return false };
        let DeliveryTimes { direct, stored } = &mut self.delivery_times;
        let times = if entry.is_direct() { direct } else { stored };
        // The clock may be ahead, after a step back or on another node.
        times.record(cx.now.unix_us.saturating_sub(stamp.clock.0));
        self.end_entry(cx, entry);
        true
    }

    /// Handles an id that is not in the window: of a deferred message, of one that an earlier session was sent, or
    /// noise. The first two are in storage, so the id is only looked up while storage may hold something for this
    /// session, or while the message waits for room in a full storage.
    fn ack_outside_window(&mut self, cx: &mut StepContext<'_>, at: SlabKey, update: &AckUpdate) {
        let session = self.sessions.live(at);
        let (uaid, index) = (session.uaid, session.active);
        // While the session is unsure of a channel, a check has left its rows in storage, also those that an earlier
        // session was sent.
        let mut known = session.stored.is_unsure();
        known |= self.ack_departing(cx, uaid, update.stamp);
        if let Some(active) = self.active_of_mut(index) {
            known |= !active.drain.clear();
            known |= active.window.unpark(update.stamp);
        }
        if known {
            self.settle(RowKey { uaid, chid: update.chid, stamp: update.stamp, topic: update.topic });
        } else {
            self.stats.acks_unknown += 1;
        }
    }

    /// Ends one notification that is in the window: removes it from the ledger and from storage.
    pub(super) fn take_entry(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamp: Stamp) {
        let index = self.sessions.live(at).active;
        let entry = self.take_out(index, stamp);
        self.end_entry(cx, entry);
    }

    /// Removes an entry that is in the window.
    pub(super) fn take_out(&mut self, index: u32, stamp: Stamp) -> WindowEntry {
        // Invariant: the caller has the stamp from the window.
        self.remove_entry(index, stamp).expect("an entry of the window is taken once")
    }

    /// Removes an entry from the window if it is there, and keeps the window's sums.
    pub(super) fn remove_entry(&mut self, index: u32, stamp: Stamp) -> Option<WindowEntry> {
        let entry = self.active_of_mut(index)?.window.remove(stamp)?;
        if !entry.is_direct() {
            self.row_memory.remove(entry.body_bytes());
        }
        Some(entry)
    }

    /// Settles the remains of an entry that left the window.
    pub(super) fn end_entry(&mut self, cx: &mut StepContext<'_>, entry: WindowEntry) {
        let row = entry.row();
        self.forget_record(cx, &entry);
        if entry.may_be_stored() {
            self.settle(row);
        }
        if row.stamp.origin != self.config.origin {
            self.settling.remember(cx.now.mono, row.uaid, row.stamp);
        }
    }

    /// Marks the ledger record of a direct dead.
    pub(super) fn forget_record(&mut self, cx: &mut StepContext<'_>, entry: &WindowEntry) {
        if let Some((slot, body)) = entry.record() {
            self.ledger_room.give_back(slot, ledger_bytes(body));
            cx.effects.push_back(Effect::LedgerDead(slot));
        }
    }

    /// Queues the deletion of a row; the end of this step submits it with the others of this user.
    pub(super) fn settle(&mut self, row: RowKey) {
        self.stats.settles_shed += u64::from(!self.settling.add(row));
    }

    /// Submits the queued settles of this step, one operation per user.
    pub(super) fn submit_settles(&mut self, cx: &mut StepContext<'_>) {
        while let Some(uaid) = self.settling.next_named() {
            self.settle_next(cx, uaid);
        }
    }

    fn settle_next(&mut self, cx: &mut StepContext<'_>, uaid: Uaid) {
        // Settles that are at storage go first: their answer calls this again.
        let Some(rows) = self.settling.begin(uaid) else { return };
        let work = PendingOp::Settle { uaid, count: rows.len() };
        let low_water = self.raise_low_water(uaid);
        self.submit(cx, work, StoreOp::Settle { rows, low_water, durable: false });
    }

    /// Returns a settled mark that has risen, to ride with a delete: it costs no write of its own.
    fn raise_low_water(&mut self, uaid: Uaid) -> Option<Clock> {
        let Some(Resident::Session(index)) = self.resident(uaid) else { return None };
        let active = self.sessions.at(index)?.1.active;
        let low_water = self.active_of_mut(active)?.raise_low_water()?;
        self.stats.low_water_raised += 1;
        Some(low_water)
    }

    pub(super) fn settled(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, count: usize, done: bool) {
        match self.settling.answered(uaid, count, done) {
            Settled::Done => {}
            Settled::More => self.settle_next(cx, uaid),
            Settled::Again(rows) => {
                let op = StoreOp::Settle { rows, low_water: None, durable: false };
                self.submit_later(cx, PendingOp::Settle { uaid, count }, op);
            }
        }
    }

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
