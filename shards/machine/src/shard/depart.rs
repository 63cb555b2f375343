//! The end of a session: its unacked directs are saved under their own ids, and a hello of the same user waits for the
//! save (ARCHITECTURE.md 3). Until storage has them their ledger records stay live and count.

use std::sync::Arc;

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::simple::Mode;

use super::cluster::pending::Tale;
use super::command::CloseReason;
use super::components::departures::{Left, Save, Saved};
use super::components::ledger_room::ledger_bytes;
use super::components::user_index::Resident;
use super::components::window::Window;
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::Ref;
use super::stats::MachineStats;
use super::store::{StoreError, StoreOp};
use super::work::Work;

impl ShardMachine {
    /// Ends an identified session. `goodbye` is set if the server ends it.
    pub(super) fn end_session(&mut self, turn: &mut Turn<'_>, at: Ref, goodbye: Option<CloseReason>) {
        // Invariant: a table that names live sessions led here.
        let session = self.sessions.remove(at).expect("a session ends once");
        self.remove_resident(session.uaid, Resident::Session(at.index));
        self.conns.remove(session.conn);
        self.stats.sessions_ended += 1;
        self.broadcasts.close(session.broadcasts);
        self.simple.end(at.index);
        self.leave(turn, &session, goodbye);
        if let Some(reason) = goodbye {
            turn.effects.push_back(Effect::Close(session.conn, reason));
        }
        // An idle session leaves nothing.
        let Some(mut active) = self.actives.end(session.active) else { return };
        active.window.undo_deliveries(self.conns.seats.unanswered(session.conn) as usize);
        self.row_memory.remove(active.window.row_bytes());
        let unregistering = active.command.unregistering();
        // Includes the rows that a requested or running check would have found.
        let rows_left = active.drain.is_looking() || active.window.has_rows();
        self.write_down_tries(turn, &active.window);
        let mut messages = Vec::new();
        for entry in active.window.into_entries() {
            let Some((slot, body)) = entry.record() else { continue };
            if body.expired(turn.now.unix()) {
                self.stats.expired += 1;
                self.end_receipt(&entry.row(), Outcome::Expired);
                self.forget_record(turn, &entry);
            } else {
                let mut message = body.clone();
                if entry.tried() != message.tries {
                    Arc::make_mut(&mut message).tries = entry.tried();
                }
                messages.push(Left { message, slot });
            }
        }
        if !messages.is_empty() {
            self.depart(turn, session.uaid, messages, unregistering);
        } else if rows_left && self.in_cluster() && goodbye != Some(CloseReason::Superseded) {
            // A session on another node may have read storage before these rows were there.
            self.tell(turn, Tale::of_save(session.uaid));
        }
    }

    /// Writes the number of vain deliveries of the window's rows to storage. Directs carry that number with them. If
    /// storage is behind, the next session counts from before.
    fn write_down_tries(&mut self, turn: &mut Turn<'_>, window: &Window) {
        let rows = window.tried_rows();
        if rows.is_empty() || self.config.attempts_max == 0 {
            return;
        }
        if !self.tickets.room() {
            self.stats.tries_shed += rows.len() as u64;
            return;
        }
        self.submit(turn, Work::Touch, StoreOp::Tried { rows });
    }

    fn depart(&mut self, turn: &mut Turn<'_>, uaid: Uaid, messages: Vec<Left>, unregistering: Option<Chid>) {
        self.stats.departures += 1;
        self.departures.add(uaid, messages, unregistering);
        self.save_departure(turn, uaid);
    }

    /// Answers the unregister that was under way when the session ended.
    pub(super) fn departing_unregistered(&mut self, turn: &mut Turn<'_>, uaid: Uaid, chid: Chid, done: bool) {
        if !self.departures.unregistered(uaid) {
            self.stats.store_replies_stale += 1;
            return;
        }
        if done {
            self.release_departing(turn, uaid, |message| message.chid == chid, |stats| &mut stats.dropped_with_channel);
        }
        // The answer to a save that is under way then ends the departure.
        if self.departures.is_over(uaid) {
            self.departed(turn, uaid, Ok(()));
        } else {
            self.save_departure(turn, uaid);
        }
    }

    /// Ends the older messages of a topic: a save that is tried again leaves them out, and a save under way does not
    /// displace the newer row.
    pub(super) fn end_older_departing(&mut self, turn: &mut Turn<'_>, uaid: Uaid, older: impl Fn(&Message) -> bool) {
        self.release_departing(turn, uaid, older, |stats| &mut stats.replaced);
    }

    /// Removes messages that wait for a save.
    fn release_departing(
        &mut self,
        turn: &mut Turn<'_>,
        uaid: Uaid,
        which: impl Fn(&Message) -> bool,
        counter: impl Fn(&mut MachineStats) -> &mut u64,
    ) {
        for left in self.departures.release(uaid, which) {
            *counter(&mut self.stats) += 1;
            self.release_record(turn, &left);
        }
    }

    fn save_departure(&mut self, turn: &mut Turn<'_>, uaid: Uaid) {
        // Another save, or an unregister, goes first: its answer calls this again.
        let Some(Save { messages, later }) = self.departures.begin_save(uaid) else { return };
        let (work, op) = (Work::Depart { uaid }, StoreOp::Save { messages });
        if later {
            self.submit_later(turn, work, op);
        } else {
            self.submit(turn, work, op);
        }
    }

    pub(super) fn departed(&mut self, turn: &mut Turn<'_>, uaid: Uaid, saved: Result<(), StoreError>) {
        let records = match self.departures.saved(uaid, saved) {
            Saved::Over(records) => records,
            Saved::Failed { full } => {
                // Storage can still look up a user: the hello goes before the next attempt and does not wait behind it.
                self.departure_over(turn, uaid, full);
                self.save_departure(turn, uaid);
                return;
            }
        };
        let updates = records.iter().any(|left| left.message.mode() == Mode::Simple);
        for left in records {
            self.release_record(turn, &left);
        }
        self.departure_over(turn, uaid, true);
        match self.resident(uaid) {
            // The session began while storage was full.
            Some(Resident::Session(index)) => {
                let at = self.session_ref(index);
                self.check_storage(turn, at);
            }
            Some(Resident::Greeting(index)) => self.nudge_greeting(index),
            None => {}
        }
        if self.in_cluster() {
            // The user may be on another node by now, whose session read storage before this row was there.
            self.tell(turn, Tale::of_save(uaid));
        }
        if updates {
            self.wake_absent(turn, uaid, Topic::UPDATE);
        }
    }

    /// Cancels a message that is on its way to storage: the delete behind the save removes the row, and a save that is
    /// tried again leaves it out.
    pub(super) fn cancel_departing(&mut self, turn: &mut Turn<'_>, uaid: Uaid, stamp: Stamp) {
        self.release_departing(turn, uaid, |message| message.stamp == stamp, |stats| &mut stats.cancels_departing);
    }

    /// Handles an ack of a message that waits for a save while storage is full: a save that is tried again leaves it
    /// out. Returns false if there is no such message. The caller deletes the row of a save that is under way.
    pub(super) fn ack_departing(&mut self, turn: &mut Turn<'_>, uaid: Uaid, stamp: Stamp) -> bool {
        let acked = self.departures.release(uaid, |message| message.stamp == stamp);
        acked.iter().for_each(|left| self.release_record(turn, left));
        !acked.is_empty()
    }

    /// As `ack_departing`, for every update of a channel up to a version. Returns the rows for the caller to delete.
    pub(super) fn ack_departing_updates(
        &mut self,
        turn: &mut Turn<'_>,
        uaid: Uaid,
        (chid, version): (Chid, u64),
    ) -> Vec<RowKey> {
        let acked = self.departures.release(uaid, |message| {
            message.chid == chid && message.simple_version().is_some_and(|of| of != 0 && of <= version)
        });
        acked.iter().for_each(|left| self.release_record(turn, left));
        acked.iter().map(|left| RowKey::of(&left.message)).collect()
    }

    fn release_record(&mut self, turn: &mut Turn<'_>, left: &Left) {
        self.ledger_room.give_back(left.slot, ledger_bytes(&left.message));
        turn.effects.push_back(Effect::LedgerDead(left.slot));
    }
}
