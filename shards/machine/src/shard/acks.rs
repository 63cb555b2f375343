//! Settling: what an ack, a cancel or a replacement ends, exactly and per message (ARCHITECTURE.md 3).
//!
//! A direct ends by marking its ledger record dead. A row ends by deleting exactly that version; until the
//! delete is confirmed its stamp is remembered per UAID, so that no read brings it back.

use crate::ids::{Clock, Stamp, Uaid};

use super::command::{AckUpdate, Cancel, Cancelled};
use super::components::ledger_room::ledger_bytes;
use super::components::requests::Asker;
use super::components::settling::Settled;
use super::components::user_index::Resident;
use super::components::window::Entry;
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::Ref;
use super::stats::DeliveryTimes;
use super::store::StoreOp;
use super::work::Work;

impl ShardMachine {
    pub(super) fn ack(&mut self, turn: &mut Turn<'_>, at: Ref, updates: &[AckUpdate]) {
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
            if !self.acked(turn, at, update.stamp) {
                self.ack_outside_window(turn, at, update);
            }
        }
        self.pace_acked(turn, at, out);
        self.continue_drain(turn, at);
        self.reset_old_record(turn, at);
        self.deactivate_if_idle(at);
    }

    /// Ends the notification that an ack names, and counts how long it took; false when the window does not hold it.
    fn acked(&mut self, turn: &mut Turn<'_>, at: Ref, stamp: Stamp) -> bool {
        let index = self.sessions.live(at).active;
        let Some(entry) = self.remove_entry(index, stamp) else { return false };
        let DeliveryTimes { direct, stored } = &mut self.delivery_times;
        let times = if entry.is_direct() { direct } else { stored };
        // A clock that was set back in between, or one of another node, may be ahead.
        times.record(turn.now.unix_us.saturating_sub(stamp.clock.0));
        self.end_entry(turn, entry);
        true
    }

    /// An id that is not in the window: one that waits parked, one that an earlier session was sent, or noise. The
    /// first two are in storage, so they are only looked at while storage may hold something for this session; or they
    /// wait until a full storage takes them.
    fn ack_outside_window(&mut self, turn: &mut Turn<'_>, at: Ref, update: &AckUpdate) {
        let session = self.sessions.live(at);
        let (uaid, index) = (session.uaid, session.active);
        // While unsure of a channel a check has passed its rows by, also those that an earlier session was sent.
        let mut known = session.stored.is_unsure();
        known |= self.ack_departing(turn, uaid, update.stamp);
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

    /// Ends one notification that is in the window: out of the ledger, out of storage.
    pub(super) fn take_entry(&mut self, turn: &mut Turn<'_>, at: Ref, stamp: Stamp) {
        let index = self.sessions.live(at).active;
        let entry = self.take_out(index, stamp);
        self.end_entry(turn, entry);
    }

    /// Takes an entry that is in the window out of it.
    pub(super) fn take_out(&mut self, index: u32, stamp: Stamp) -> Entry {
        // Invariant: the caller has the stamp from the window.
        self.remove_entry(index, stamp).expect("an entry of the window is taken once")
    }

    /// Takes an entry out of the window, keeping the window's sums.
    pub(super) fn remove_entry(&mut self, index: u32, stamp: Stamp) -> Option<Entry> {
        let entry = self.active_of_mut(index)?.window.remove(stamp)?;
        if !entry.is_direct() {
            self.row_memory.remove(entry.body_bytes());
        }
        Some(entry)
    }

    /// Settles what an entry that left the window still holds.
    pub(super) fn end_entry(&mut self, turn: &mut Turn<'_>, entry: Entry) {
        let row = entry.row();
        self.forget_record(turn, &entry);
        if entry.may_be_stored() {
            self.settle(row);
        }
        if row.stamp.origin != self.config.origin {
            self.settling.remember(turn.now.mono, row.uaid, row.stamp);
        }
    }

    /// Marks the ledger record of a direct dead.
    pub(super) fn forget_record(&mut self, turn: &mut Turn<'_>, entry: &Entry) {
        if let Some((slot, body)) = entry.record() {
            self.ledger_room.give_back(slot, ledger_bytes(body));
            turn.effects.push_back(Effect::LedgerDead(slot));
        }
    }

    /// Queues the deletion of a row; the end of this step submits it with the others of this user.
    pub(super) fn settle(&mut self, row: RowKey) {
        self.stats.settles_shed += u64::from(!self.settling.add(row));
    }

    /// Submits what this step has queued, one operation per user.
    pub(super) fn submit_settles(&mut self, turn: &mut Turn<'_>) {
        while let Some(uaid) = self.settling.next_named() {
            self.settle_next(turn, uaid);
        }
    }

    fn settle_next(&mut self, turn: &mut Turn<'_>, uaid: Uaid) {
        // Those at storage go first: their answer comes by here.
        let Some(rows) = self.settling.begin(uaid) else { return };
        let work = Work::Settle { uaid, count: rows.len() };
        let low_water = self.raise_low_water(uaid);
        self.submit(turn, work, StoreOp::Settle { rows, low_water, durable: false });
    }

    /// A settled mark that has risen, to ride with a delete: it costs no write of its own.
    fn raise_low_water(&mut self, uaid: Uaid) -> Option<Clock> {
        let Some(Resident::Session(index)) = self.resident(uaid) else { return None };
        let active = self.sessions.at(index)?.1.active;
        let low_water = self.active_of_mut(active)?.raise_low_water()?;
        self.stats.low_water_raised += 1;
        Some(low_water)
    }

    pub(super) fn settled(&mut self, turn: &mut Turn<'_>, uaid: Uaid, count: usize, done: bool) {
        match self.settling.answered(uaid, count, done) {
            Settled::Done => {}
            Settled::More => self.settle_next(turn, uaid),
            Settled::Again(rows) => {
                let op = StoreOp::Settle { rows, low_water: None, durable: false };
                self.submit_later(turn, Work::Settle { uaid, count }, op);
            }
        }
    }

    /// `DELETE /m/{id}`: in none of the three forms it may have (PROTOCOL.md 2.9). What was handed to the user agent
    /// is not recalled, and not sent again either.
    pub(super) fn cancel(&mut self, turn: &mut Turn<'_>, asker: Asker<Cancelled>, cancel: Cancel) {
        self.stats.cancels += 1;
        self.settling.begin_cancel(cancel.uaid, cancel.stamp);
        let asked = self.cancel_at_storage(turn, asker, &cancel);
        if !asked {
            self.settling.end_cancel(cancel.uaid, cancel.stamp);
        }
        if let Some(Resident::Session(index)) = self.resident(cancel.uaid) {
            let at = self.session_ref(index);
            self.continue_drain(turn, at);
            self.deactivate_if_idle(at);
        }
    }

    /// Takes it out of the window and of what departs, and has storage delete its row; false when that is not needed
    /// or not possible, and the answer was given.
    fn cancel_at_storage(&mut self, turn: &mut Turn<'_>, asker: Asker<Cancelled>, cancel: &Cancel) -> bool {
        if cancel.stamp.origin != self.config.origin {
            self.settling.remember(turn.now.mono, cancel.uaid, cancel.stamp);
        }
        if let Some(Resident::Session(index)) = self.resident(cancel.uaid) {
            let at = self.session_ref(index);
            let active = self.sessions.live(at).active;
            if let Some(entry) = self.remove_entry(active, cancel.stamp) {
                self.forget_record(turn, &entry);
                if !entry.may_be_stored() {
                    self.end_receipt(&cancel.row(), Outcome::Cancelled);
                    self.answer(turn, asker, Cancelled { done: true });
                    return false;
                }
            }
        }
        self.cancel_departing(turn, cancel.uaid, cancel.stamp);
        if !self.tickets.room() {
            self.answer(turn, asker, Cancelled { done: false });
            return false;
        }
        let row = cancel.row();
        let op = StoreOp::Settle { rows: vec![row], low_water: None, durable: true };
        self.submit(turn, Work::Cancel { asker, row }, op);
        true
    }

    /// Storage has answered a cancel. After an error the delete is tried again all the same: the message has left the
    /// window, so an ack of it would find nothing.
    pub(super) fn cancelled(&mut self, turn: &mut Turn<'_>, asker: Asker<Cancelled>, row: RowKey, done: bool) {
        if !done {
            self.settle(row);
        }
        self.end_receipt(&row, Outcome::Cancelled);
        self.settling.end_cancel(row.uaid, row.stamp);
        self.answer(turn, asker, Cancelled { done });
    }
}
