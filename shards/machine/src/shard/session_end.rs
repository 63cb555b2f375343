//! The end of a session: its unacked directs are saved under their own ids, and a hello of the same user waits for the
//! save (ARCHITECTURE.md 3). Until storage has them their ledger records stay live and count.

use std::sync::Arc;

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::simplepush::Mode;

use super::cluster::pending::PeerNotify;
use super::command::CloseReason;
use super::components::ledger_room::ledger_bytes;
use super::components::pending_saves::{Save, Saved, Unsaved};
use super::components::user_index::Resident;
use super::components::window::Window;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::SlabKey;
use super::stats::MachineStats;
use super::store::{StoreError, StoreOp};

impl ShardMachine {
    /// Ends an identified session. `goodbye` is set if the server ends it.
    pub(super) fn end_session(&mut self, cx: &mut StepContext<'_>, at: SlabKey, goodbye: Option<CloseReason>) {
        // Invariant: a table that names live sessions led here.
        let session = self.sessions.remove(at).expect("a session ends once");
        self.remove_resident(session.uaid, Resident::Session(at.index));
        self.conns.remove(session.conn);
        self.stats.sessions_ended += 1;
        self.broadcasts.close(session.broadcasts);
        self.simple.end(at.index);
        self.leave(cx, &session, goodbye);
        if let Some(reason) = goodbye {
            cx.effects.push_back(Effect::Close(session.conn, reason));
        }
        // An idle session leaves nothing but what is below its minimum.
        let Some(mut active) = self.active_sessions.end(session.active) else {
            self.leave_rows(cx, session.uaid, goodbye, session.link.holds());
            return self.drop_idle_user(cx, &session, goodbye, None);
        };
        active.window.undo_deliveries(self.conns.virtual_conns.unanswered(session.conn) as usize);
        self.row_memory.remove(active.window.row_bytes());
        let unregistering = active.command.unregistering();
        let is_registering = active.command.waits() && unregistering.is_none();
        // Includes the rows that a requested or running check would have found.
        let rows_left = active.drain.is_looking() || active.window.has_rows() || session.link.holds();
        self.write_down_tries(cx, &active.window);
        let mut messages = Vec::new();
        for entry in active.window.into_entries() {
            let Some((slot, body)) = entry.record() else { continue };
            if body.expired(cx.now.unix()) {
                self.stats.expired += 1;
                self.end_receipt(&entry.row(), Outcome::Expired);
                self.forget_record(cx, &entry);
            } else {
                let mut message = body.clone();
                if message.stamp.origin != self.config.origin {
                    self.settling.keep(cx.now.mono, session.uaid, message.stamp);
                }
                if entry.tried() != message.tries {
                    Arc::make_mut(&mut message).tries = entry.tried();
                }
                messages.push(Unsaved { message, slot });
            }
        }
        if messages.is_empty() {
            self.leave_rows(cx, session.uaid, goodbye, rows_left);
            if !is_registering {
                self.drop_idle_user(cx, &session, goodbye, unregistering);
            }
        } else {
            self.depart(cx, session.uaid, messages, unregistering);
        }
    }

    /// Leaves rows to a session on another node, which may have read storage before they were there.
    fn leave_rows(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, goodbye: Option<CloseReason>, rows_left: bool) {
        if rows_left && self.in_cluster() && goodbye != Some(CloseReason::Superseded) {
            self.notify_holder(cx, PeerNotify::of_save(uaid));
        }
    }

    /// Writes the number of vain deliveries of the window's rows to storage. Directs carry that number with them. If
    /// storage is behind, the next session counts from before.
    fn write_down_tries(&mut self, cx: &mut StepContext<'_>, window: &Window) {
        let rows = window.tried_rows();
        if rows.is_empty() || self.config.attempts_max == 0 {
            return;
        }
        if !self.tickets.room() {
            self.stats.tries_shed += rows.len() as u64;
            return;
        }
        self.submit(cx, PendingOp::Touch, StoreOp::Tried { rows });
    }

    fn depart(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, messages: Vec<Unsaved>, unregistering: Option<Chid>) {
        self.stats.departures += 1;
        self.pending_saves.add(uaid, messages, unregistering);
        self.save_departure(cx, uaid);
    }

    /// Answers the unregister that was under way when the session ended.
    pub(super) fn departing_unregistered(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, chid: Chid, done: bool) {
        if !self.pending_saves.unregistered(uaid) {
            self.stats.store_replies_stale += 1;
            return;
        }
        if done {
            self.release_departing(cx, uaid, |message| message.chid == chid, |stats| &mut stats.dropped_with_channel);
        }
        // The answer to a save that is under way then ends the departure.
        if self.pending_saves.is_over(uaid) {
            self.unacked_saved(cx, uaid, Ok(()));
        } else {
            self.save_departure(cx, uaid);
        }
    }

    /// Ends the older messages of a topic: a save that is tried again leaves them out, and a save under way does not
    /// displace the newer row.
    pub(super) fn end_older_departing(
        &mut self,
        cx: &mut StepContext<'_>,
        uaid: Uaid,
        older: impl Fn(&Message) -> bool,
    ) {
        self.release_departing(cx, uaid, older, |stats| &mut stats.replaced);
    }

    /// Removes messages that wait for a save.
    fn release_departing(
        &mut self,
        cx: &mut StepContext<'_>,
        uaid: Uaid,
        which: impl Fn(&Message) -> bool,
        counter: impl Fn(&mut MachineStats) -> &mut u64,
    ) {
        for left in self.pending_saves.release(uaid, which) {
            *counter(&mut self.stats) += 1;
            self.release_record(cx, &left);
        }
    }

    fn save_departure(&mut self, cx: &mut StepContext<'_>, uaid: Uaid) {
        // Another save, or an unregister, goes first: its answer calls this again.
        let Some(Save { messages, later }) = self.pending_saves.begin_save(uaid) else { return };
        let (work, op) = (PendingOp::SaveUnacked { uaid }, StoreOp::Save { messages });
        if later {
            self.submit_later(cx, work, op);
        } else {
            self.submit(cx, work, op);
        }
    }

    pub(super) fn unacked_saved(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, saved: Result<(), StoreError>) {
        let records = match self.pending_saves.saved(uaid, saved) {
            Saved::Over(records) => records,
            Saved::Failed { full } => {
                // Storage can still look up a user: the hello goes before the next attempt and does not wait behind it.
                self.departure_over(cx, uaid, full);
                self.save_departure(cx, uaid);
                return;
            }
        };
        let updates = records.iter().any(|left| left.message.mode() == Mode::Simple);
        for left in records {
            self.release_record(cx, &left);
        }
        self.departure_over(cx, uaid, true);
        match self.resident(uaid) {
            // The session began while storage was full.
            Some(Resident::Session(index)) => {
                let at = self.session_ref(index);
                self.check_storage(cx, at);
            }
            Some(Resident::Hello(index)) => self.nudge_pending_hello(index),
            None => {}
        }
        if self.in_cluster() {
            // The user may be on another node by now, whose session read storage before this row was there.
            self.notify_holder(cx, PeerNotify::of_save(uaid));
        }
        if updates {
            self.wake_absent(cx, uaid, Topic::UPDATE);
        }
    }

    /// Cancels a message that is on its way to storage: the delete behind the save removes the row, and a save that is
    /// tried again leaves it out.
    pub(super) fn cancel_departing(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, stamp: Stamp) {
        self.release_departing(cx, uaid, |message| message.stamp == stamp, |stats| &mut stats.cancels_departing);
    }

    /// Handles an ack of a message that waits for a save while storage is full: a save that is tried again leaves it
    /// out. Returns false if there is no such message. The caller deletes the row of a save that is under way.
    pub(super) fn ack_departing(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, stamp: Stamp) -> bool {
        let acked = self.pending_saves.release(uaid, |message| message.stamp == stamp);
        acked.iter().for_each(|left| self.release_record(cx, left));
        !acked.is_empty()
    }

    /// As `ack_departing`, for every update of a channel up to a version. Returns the rows for the caller to delete.
    pub(super) fn ack_departing_updates(
        &mut self,
        cx: &mut StepContext<'_>,
        uaid: Uaid,
        (chid, version): (Chid, u64),
    ) -> Vec<RowKey> {
        let acked = self.pending_saves.release(uaid, |message| {
            message.chid == chid && message.simple_version().is_some_and(|of| of != 0 && of <= version)
        });
        acked.iter().for_each(|left| self.release_record(cx, left));
        acked.iter().map(|left| RowKey::of(&left.message)).collect()
    }

    fn release_record(&mut self, cx: &mut StepContext<'_>, left: &Unsaved) {
        self.ledger_room.give_back(left.slot, ledger_bytes(&left.message));
        cx.effects.push_back(Effect::LedgerDead(left.slot));
    }
}
