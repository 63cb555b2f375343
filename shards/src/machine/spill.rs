//! Time in the window: a direct that is unacked for `delivery.spill_after` goes to storage; a notification that is
//! unacked for `delivery.retry_after` is sent again, at most three times, and then waits in storage (PROTOCOL.md 1.8).
//!
//! One deadline per session that has something under way (`components::actives`).

use std::sync::Arc;

use crate::ids::Stamp;
use crate::limits;
use crate::message::Message;
use crate::time::{Instant, Span};

use super::active::{Entry, Parked, Source};
use super::cluster::Doubt;
use super::command::{CloseReason, Event};
use super::input::Effect;
use super::receipt::Outcome;
use super::session::{BLOCKED, NONE};
use super::slab::Ref;
use super::store::{RowKey, StoreError, StoreOp, StoreReply};
use super::tickets::Work;
use super::{ShardMachine, Turn};

impl ShardMachine {
    /// Arms the session's deadline for the oldest thing in its window; never at once, so that what cannot be done
    /// now (a blocked socket) does not spin.
    pub(super) fn arm_active(&mut self, turn: &Turn<'_>, at: Ref) {
        self.activate(at);
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        let due = self.active_of(index).and_then(|active| active.window.iter().filter_map(|e| self.entry_due(e)).min());
        if let Some(due) = due {
            self.arm_active_at(at, due.max(turn.now.mono.after(LEAST_PAUSE)));
        }
        self.arm_pace(turn, at);
    }

    /// When something must be done about an entry: what waits to be sent is looked at with its session's pace.
    pub(super) fn entry_due(&self, entry: &Entry) -> Option<Instant> {
        let spill = entry.accepted.after(self.config.spill_after);
        let retry = entry.since.after(self.config.retry_after);
        match entry.source {
            Source::Direct(_) => Some(if entry.sent { spill.min(retry) } else { spill }),
            Source::Row if entry.sent && entry.body.is_some() => Some(entry.since.after(BODY_KEPT).min(retry)),
            Source::Spilling(_) | Source::Row => entry.sent.then_some(retry),
        }
    }

    /// Arms it for what was just sent; `rows`: of which storage has a copy.
    pub(super) fn arm_sent(&mut self, turn: &Turn<'_>, at: Ref, rows: bool) {
        let retry = self.config.retry_after;
        let due = if rows { retry.min(BODY_KEPT) } else { retry };
        self.arm_active_at(at, turn.now.mono.after(due));
    }

    /// Arms it for a pause from now.
    pub(super) fn arm_active_in(&mut self, at: Ref, pause: Span, turn: &Turn<'_>) {
        self.arm_active_at(at, turn.now.mono.after(pause));
    }

    /// Works on the sessions whose deadline has come.
    pub(super) fn active_timeouts(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some(at) = self.next_active_due(turn.now.mono)
        {
            self.spill_unacked_for(turn, at, self.config.spill_after);
            self.retry_due(turn, at);
            self.forget_bodies(turn, at, BODY_KEPT);
            if self.sessions.get(at).is_some() {
                self.continue_drain(turn, at);
                self.arm_active(turn, at);
                self.deactivate_if_idle(at);
            }
            // Now, not when the step ends: what this one caused counts before the next is looked at.
            self.submit_settles(turn);
        }
    }

    /// Saves the directs that are unacked for this long and lets the log forget them when that is done.
    pub(super) fn spill_unacked_for(&mut self, turn: &mut Turn<'_>, at: Ref, wait: Span) {
        let now = turn.now;
        let Some(session) = self.sessions.get(at) else { return };
        let index = session.active;
        let Some(active) = self.active_of_mut(index) else { return };
        let mut messages: Vec<Arc<Message>> = Vec::new();
        let mut expired: Vec<RowKey> = Vec::new();
        for entry in &mut active.window {
            let (Source::Direct(slot), Some(body)) = (entry.source, &entry.body) else { continue };
            if active.unregistering == Some(entry.row.chid) {
                continue;
            }
            if entry.accepted.after(wait) > now.mono {
                continue;
            }
            if body.expired(now.unix()) {
                expired.push(entry.row);
            } else {
                messages.push(body.clone());
                entry.source = Source::Spilling(slot);
            }
        }
        for row in expired {
            self.stats.expired += 1;
            self.end_receipt(&row, Outcome::Expired);
            self.take_entry(turn, at, row.stamp);
        }
        if messages.is_empty() {
            return;
        }
        self.stats.spills += messages.len() as u64;
        let stamps = messages.iter().map(|m| m.stamp).collect();
        self.submit(turn, Work::Spill { session: at, stamps }, StoreOp::Save { messages });
    }

    pub(super) fn spilled(&mut self, turn: &mut Turn<'_>, at: Ref, stamps: &[Stamp], saved: bool) {
        let Some(session) = self.sessions.get(at) else { return };
        let index = session.active;
        for stamp in stamps {
            let Some(active) = self.active_of_mut(index) else { return };
            let Some(place) = active.position(*stamp) else { continue };
            let entry = &mut active.window[place];
            let Source::Spilling(slot) = entry.source else { continue };
            if !saved {
                entry.source = Source::Direct(slot);
                entry.maybe_row = true;
                entry.accepted = turn.now.mono;
                continue;
            }
            let bytes = entry.body_bytes();
            entry.source = Source::Row;
            // The socket may still refuse what it was just handed: `forget_bodies` drops the body when it has not.
            active.ahead_bytes += entry.ahead_bytes();
            active.direct_bytes -= bytes;
            active.row_bytes += bytes;
            self.row_memory.add(bytes);
            self.ledger_room.give_back(slot, bytes);
            turn.effects.push_back(Effect::LedgerDead(slot));
        }
        if self.rows_are_full(at) && !self.let_go_of_rows(turn, at) {
            return;
        }
        self.continue_drain(turn, at);
        self.doubt(turn, at, Doubt::Unacked);
        self.arm_active(turn, at);
        self.deactivate_if_idle(at);
    }

    /// Drops the bodies of rows that the socket took this long ago: it says soon when it has not, and storage has them.
    fn forget_bodies(&mut self, turn: &Turn<'_>, at: Ref, kept: Span) {
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        let Some(active) = self.active_of_mut(index) else { return };
        let mut bytes = 0;
        for entry in active.window.iter_mut().filter(|entry| entry.source == Source::Row && entry.sent) {
            if entry.since.after(kept) <= turn.now.mono {
                bytes += entry.body_bytes();
                entry.body = None;
            }
        }
        active.row_bytes -= bytes;
        self.row_memory.remove(bytes);
    }

    /// True if windows keep so much of what storage has too that this one may not take more (`limits::ROW_BYTES_MAX`).
    pub(super) fn rows_are_full(&self, at: Ref) -> bool {
        self.row_memory.is_full(self.kept_of_rows(at))
    }

    /// As `rows_are_full`, with the pages that are on their way and one more.
    pub(super) fn pages_are_full(&self, at: Ref) -> bool {
        self.row_memory.pages_are_full(self.kept_of_rows(at))
    }

    fn kept_of_rows(&self, at: Ref) -> u32 {
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        self.active_of(index).map_or(0, |active| active.row_bytes)
    }

    /// At the bound a window keeps no body of what the socket was handed: storage has it if the socket refuses it yet.
    /// What waits for its turn at the end of the window leaves it, and is read again when there is room.
    /// What the socket did refuse must be sent from memory, in its order, so that session ends. The next session of its
    /// user is sent everything from storage. False when it ended.
    fn let_go_of_rows(&mut self, turn: &mut Turn<'_>, at: Ref) -> bool {
        self.forget_bodies(turn, at, Span(0));
        let blocked = self.sessions.get(at).is_some_and(|session| session.has(BLOCKED));
        if blocked && self.rows_are_full(at) {
            self.stats.blocked_shed += 1;
            self.end_session(turn, at, Some(CloseReason::BudgetExhausted));
            return false;
        }
        if self.rows_are_full(at) {
            self.leave_to_storage(at);
        }
        true
    }

    /// Takes rows that wait to be sent out of the end of the window. A direct behind them keeps them there, or it would
    /// overtake them; it becomes a row after `delivery.spill_after`, and no other comes until then.
    pub(super) fn leave_to_storage(&mut self, at: Ref) {
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        let Some(active) = self.active_of(index) else { return };
        let waits = |entry: &&Entry| !entry.sent && entry.source == Source::Row;
        let stamps: Vec<Stamp> = active.window.iter().rev().take_while(waits).map(|entry| entry.row.stamp).collect();
        if stamps.is_empty() {
            return;
        }
        stamps.into_iter().for_each(|stamp| _ = self.remove_entry(index, stamp));
        if let Some(active) = self.active_of_mut(index) {
            // From the start: what has left the window is not covered any more.
            active.drain.restart();
        }
    }

    /// Sends again what was not acked in time, from memory or from storage, at the pace of the session.
    fn retry_due(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let (now, retry_after) = (turn.now.mono, self.config.retry_after);
        let Some(session) = self.sessions.get(at) else { return };
        if session.has(BLOCKED) {
            return;
        }
        let index = session.active;
        let Some(active) = self.active_of_mut(index) else { return };
        let due: Vec<Stamp> = active
            .window
            .iter()
            .filter(|entry| entry.sent && !entry.reading && entry.since.after(retry_after) <= now)
            .map(|entry| entry.row.stamp)
            .take(usize::from(active.pace.room_again(now)))
            .collect();
        if !due.is_empty() {
            self.doubt(turn, at, Doubt::Unacked);
        }
        for stamp in due {
            if !self.retry_one(turn, at, index, stamp) {
                return;
            }
        }
    }

    /// False when the session was closed.
    fn retry_one(&mut self, turn: &mut Turn<'_>, at: Ref, index: u32, stamp: Stamp) -> bool {
        let (room, attempts_max) = (self.tickets.room(), self.config.attempts_max);
        let Some(active) = self.active_of_mut(index) else { return false };
        let Some(place) = active.position(stamp) else { return true };
        let entry = &mut active.window[place];
        entry.since = turn.now.mono;
        if entry.tried().are_spent(attempts_max) {
            let row = entry.row;
            self.stats.unacked_ended += 1;
            self.end_receipt(&row, Outcome::Unacked);
            self.take_entry(turn, at, stamp);
            return true;
        }
        if entry.retries < limits::RETRIES_MAX {
            match entry.body.clone() {
                Some(message) => self.resend(turn, at, stamp, message),
                None if room => {
                    entry.reading = true;
                    let op = StoreOp::Read { row: entry.row, now: turn.now.unix() };
                    self.submit(turn, Work::Retry { session: at, stamp }, op);
                }
                None => {}
            }
            return true;
        }
        if entry.source != Source::Row {
            // Storage has not taken it: it stays in the window and in the ledger.
            return true;
        }
        let parked = Parked { row: entry.row, version: entry.version, tries: entry.tried() };
        self.stats.parked += 1;
        self.remove_entry(index, stamp);
        let Some(active) = self.active_of_mut(index) else { return false };
        if active.parked.len() >= limits::PARKED_IDS_MAX {
            self.end_session(turn, at, Some(CloseReason::BudgetExhausted));
            return false;
        }
        active.parked.push(parked);
        true
    }

    /// The body of a retry was read.
    pub(super) fn retry_loaded(
        &mut self,
        turn: &mut Turn<'_>,
        at: Ref,
        stamp: Stamp,
        result: Result<StoreReply, StoreError>,
    ) {
        let Some(session) = self.sessions.get(at) else { return };
        let (index, blocked) = (session.active, session.has(BLOCKED));
        let Some(active) = self.active_of_mut(index) else { return };
        let Some(place) = active.position(stamp) else { return };
        active.window[place].reading = false;
        let (row, sent) = (active.window[place].row, active.window[place].sent);
        let room = active.pace.room_again(turn.now.mono) > 0;
        // After an error the next retry reads again, or the next look at what waits.
        if let Ok(StoreReply::Page(page)) = result {
            match page.messages.into_iter().next() {
                // Refused meanwhile, or before: it has its place in the window, and its pace.
                Some(message) if !sent && !blocked => self.fill_gap(turn, at, stamp, message),
                Some(message) if sent && !blocked && room => self.resend(turn, at, stamp, message),
                Some(_) => {}
                // Expired, or removed by what storage has answered with an error: nothing is left to deliver.
                None => {
                    // A wall clock that goes back must not revive it: its ack would find no entry.
                    self.stats.expired += 1;
                    let registered = self.registered_channel(at, row.chid);
                    self.receipt_of_gone(turn.now.unix(), &row, registered);
                    self.take_entry(turn, at, stamp);
                    self.continue_drain(turn, at);
                }
            }
        } else if !sent {
            self.arm_pace(turn, at);
        }
        self.deactivate_if_idle(at);
    }

    /// Sends a notification of the window again.
    fn resend(&mut self, turn: &mut Turn<'_>, at: Ref, stamp: Stamp, message: Arc<Message>) {
        let Some(session) = self.sessions.get(at) else { return };
        let (conn, index) = (session.conn, session.active);
        if message.expired(turn.now.unix()) {
            self.stats.expired += 1;
            self.end_receipt(&RowKey::of(&message), Outcome::Expired);
            self.take_entry(turn, at, stamp);
            return;
        }
        let Some(active) = self.active_of_mut(index) else { return };
        let emission = active.emission();
        let Some(place) = active.position(stamp) else { return };
        let entry = &mut active.window[place];
        entry.retries += 1;
        entry.burst = active.pace.send_again(turn.now.mono, entry.burst);
        entry.emission = emission;
        entry.since = turn.now.mono;
        self.stats.retries += 1;
        self.simple_active(at, turn.now.mono);
        self.stats.notifications_sent += 1;
        turn.effects.push_back(Effect::Emit(conn, Event::Notification { message, emission }));
    }
}

/// How long the body of a sent row stays: longer than the loop needs to say `Blocked`.
const BODY_KEPT: Span = Span::from_secs(1);
const LEAST_PAUSE: Span = Span::from_ms(100);
