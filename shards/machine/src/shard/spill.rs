//! Time in the window: a direct that is unacked for `delivery.spill_after` goes to storage. A notification that is
//! unacked for `delivery.retry_after` is sent again, at most three times, and then waits in storage (PROTOCOL.md 1.8).
//!
//! One deadline per session that has something under way (`components::actives`).

use std::sync::Arc;

use crate::ids::Stamp;
use crate::message::Message;
use crate::time::TimeSpan;

use super::command::{CloseReason, SessionEvent};
use super::components::window::{BODY_KEPT, ReadEntry, Retry, Spill};
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::SlabKey;
use super::store::{Page, StoreError, StoreOp};

impl ShardMachine {
    /// Arms the session's deadline for the oldest entry in its window; never at once, so that work that cannot be done
    /// now (a blocked socket) does not spin.
    pub(super) fn arm_active(&mut self, cx: &StepContext<'_>, at: SlabKey) {
        self.activate(at);
        let active = self.active_sessions.live(self.sessions.live(at).active);
        if let Some(due) = active.window.due(self.config.spill_after, self.config.retry_after) {
            self.arm_active_at(at, due.max(cx.now.mono.after(LEAST_PAUSE)));
        }
        if let Some(until) = self.active_sessions.live(self.sessions.live(at).active).awake {
            self.arm_active_at(at, until.max(cx.now.mono.after(LEAST_PAUSE)));
        }
        self.arm_pace(cx, at);
    }

    /// Arms the deadline for entries that were just sent; `rows`: storage has a copy of them.
    pub(super) fn arm_sent(&mut self, cx: &StepContext<'_>, at: SlabKey, rows: bool) {
        let retry = self.config.retry_after;
        let due = if rows { retry.min(BODY_KEPT) } else { retry };
        self.arm_active_at(at, cx.now.mono.after(due));
    }

    /// Arms the deadline for a pause from now.
    pub(super) fn arm_active_in(&mut self, at: SlabKey, pause: TimeSpan, cx: &StepContext<'_>) {
        self.arm_active_at(at, cx.now.mono.after(pause));
    }

    /// Works on the sessions whose deadline has come.
    pub(super) fn active_timeouts(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some(at) = self.next_active_due(cx.now.mono)
        {
            self.fall_asleep(cx, at);
            self.spill_unacked_for(cx, at, self.config.spill_after);
            self.retry_due(cx, at);
            self.forget_bodies(cx, at, BODY_KEPT);
            if self.sessions.get(at).is_some() {
                self.continue_drain(cx, at);
                self.arm_active(cx, at);
                self.deactivate_if_idle(at);
            }
            // Submits the settles now, not when the step ends: the effects of this session count before the next one's
            // turn.
            self.submit_settles(cx);
        }
    }

    /// Saves the directs that are unacked for this long, and lets the log forget them after the save.
    pub(super) fn spill_unacked_for(&mut self, cx: &mut StepContext<'_>, at: SlabKey, wait: TimeSpan) {
        let now = cx.now;
        // An idle session has nothing to save.
        let Some(active) = self.active_mut(at) else { return };
        let Spill { messages, expired } = active.window.spill(now, wait, active.command.unregistering());
        for row in expired {
            self.stats.expired += 1;
            self.end_receipt(&row, Outcome::Expired);
            self.take_entry(cx, at, row.stamp);
        }
        if messages.is_empty() {
            return;
        }
        self.stats.spills += messages.len() as u64;
        let stamps = messages.iter().map(|m| m.stamp).collect();
        self.submit(cx, PendingOp::Spill { session: at, stamps }, StoreOp::Save { messages });
    }

    pub(super) fn spilled(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamps: &[Stamp], saved: bool) {
        let Some(session) = self.sessions.get(at) else {
            // The departure of the session saves them once more.
            self.stats.store_replies_stale += 1;
            return;
        };
        // All notifications were acked meanwhile, and the session is idle.
        let Some(active) = self.active_sessions.get_mut(session.active) else { return };
        for stamp in stamps {
            if !saved {
                active.window.not_spilled(*stamp, cx.now.mono);
            } else if let Some((slot, bytes)) = active.window.spilled(*stamp) {
                self.row_memory.add(bytes);
                self.ledger_room.give_back(slot, bytes);
                cx.effects.push_back(Effect::LedgerDead(slot));
            }
        }
        self.leave_held(at);
        if self.rows_are_full(at) && !self.let_go_of_rows(cx, at) {
            return;
        }
        self.continue_drain(cx, at);
        self.check_presence(cx, at);
        self.arm_active(cx, at);
        self.deactivate_if_idle(at);
    }

    /// Drops the bodies of rows that the socket took this long ago: a refusal would have come soon, and storage has
    /// them.
    fn forget_bodies(&mut self, cx: &StepContext<'_>, at: SlabKey, kept: TimeSpan) {
        // One of its retries has ended the session.
        let Some(active) = self.active_mut(at) else { return };
        let bytes = active.window.forget_bodies(cx.now.mono, kept);
        self.row_memory.remove(bytes);
    }

    /// Returns true if the windows hold too many bytes of stored rows for this one to take more
    /// (`limits::ROW_BYTES_MAX`).
    pub(super) fn rows_are_full(&self, at: SlabKey) -> bool {
        self.row_memory.is_full(self.kept_of_rows(at))
    }

    /// As `rows_are_full`, including the pages that are on their way and one more.
    pub(super) fn pages_are_full(&self, at: SlabKey) -> bool {
        self.row_memory.pages_are_full(self.kept_of_rows(at))
    }

    fn kept_of_rows(&self, at: SlabKey) -> u32 {
        self.active(at).map_or(0, |active| active.window.row_bytes())
    }

    /// Frees bodies at the bound. Bodies of rows that the socket was given are dropped; storage has them if the socket
    /// still refuses them. Rows that wait at the end of the window leave it, and are read again when there is room.
    /// Rows that the socket refused must be sent from memory, in their order, so that session ends. The next session of
    /// its user is sent everything from storage. Returns false if the session ended.
    fn let_go_of_rows(&mut self, cx: &mut StepContext<'_>, at: SlabKey) -> bool {
        self.forget_bodies(cx, at, TimeSpan(0));
        let blocked = self.sessions.get(at).is_some_and(|session| session.link.is_blocked());
        if blocked && self.rows_are_full(at) {
            self.stats.blocked_shed += 1;
            self.end_session(cx, at, Some(CloseReason::BudgetExhausted));
            return false;
        }
        if self.rows_are_full(at) {
            self.leave_to_storage(at);
        }
        true
    }

    /// Takes waiting rows out of the end of the window. A direct behind them keeps them there, or it would overtake
    /// them. The direct becomes a row after `delivery.spill_after`, and no other comes until then.
    pub(super) fn leave_to_storage(&mut self, at: SlabKey) {
        let index = self.sessions.live(at).active;
        let stamps = self.active_sessions.live(index).window.rows_at_end();
        if stamps.is_empty() {
            return;
        }
        stamps.into_iter().for_each(|stamp| _ = self.remove_entry(index, stamp));
        // From the start, because the check no longer covers rows that left the window.
        self.active_sessions.live_mut(index).drain.restart();
    }

    /// Sends unacked notifications again after their time, from memory or from storage, at the pace of the session.
    fn retry_due(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let (now, retry_after) = (cx.now.mono, self.config.retry_after);
        let session = self.sessions.live(at);
        if session.link.is_blocked() {
            return;
        }
        let index = session.active;
        let due = self.active_sessions.live(index).window.unacked_for(now, retry_after);
        if !due.is_empty() {
            self.check_presence(cx, at);
        }
        for stamp in due {
            if !self.retry_one(cx, at, index, stamp) {
                return;
            }
        }
    }

    /// Retries one entry. Returns false if the session was closed.
    fn retry_one(&mut self, cx: &mut StepContext<'_>, at: SlabKey, index: u32, stamp: Stamp) -> bool {
        let (room, attempts_max, minimum) =
            (self.tickets.room(), self.config.attempts_max, self.minimum(cx.now.mono, at));
        match self.active_sessions.live_mut(index).window.retry(stamp, cx.now.mono, attempts_max, room, minimum) {
            Retry::Spent(row) => {
                self.stats.unacked_ended += 1;
                self.end_receipt(&row, Outcome::Unacked);
                self.take_entry(cx, at, stamp);
            }
            Retry::Resend(message) => self.resend(cx, at, stamp, message),
            Retry::Read(row) => {
                let op = StoreOp::Read { row, now: cx.now.unix() };
                self.submit(cx, PendingOp::Retry { session: at, stamp }, op);
            }
            Retry::Defer => return self.defer(cx, at, index, stamp),
            Retry::Stays => {}
        }
        true
    }

    /// Takes a row out of the window after its last retry. Returns false if the session was closed for it.
    fn defer(&mut self, cx: &mut StepContext<'_>, at: SlabKey, index: u32, stamp: Stamp) -> bool {
        self.stats.parked += 1;
        let entry = self.take_out(index, stamp);
        let deferred = self.active_sessions.live_mut(index).window.defer(&entry);
        if !deferred {
            self.end_session(cx, at, Some(CloseReason::BudgetExhausted));
        }
        deferred
    }

    /// Handles the read of a retry's body.
    pub(super) fn retry_loaded(
        &mut self,
        cx: &mut StepContext<'_>,
        at: SlabKey,
        stamp: Stamp,
        result: Result<Box<Page>, StoreError>,
    ) {
        let Some(session) = self.sessions.get(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        let (index, blocked) = (session.active, session.link.is_blocked());
        // All notifications were acked meanwhile, and the session is idle.
        let Some(active) = self.active_of_mut(index) else { return };
        // Acked meanwhile, or left to storage.
        let Some(ReadEntry { row, sent }) = active.window.end_read(stamp) else { return };
        let room = active.window.may_resend(cx.now.mono);
        // After an error the next retry reads again, or the next turn for the waiting entries.
        if let Ok(page) = result {
            match page.messages.into_iter().next() {
                // Refused meanwhile, or before: it has its place in the window, and its pace.
                Some(message) if !sent && !blocked => self.fill_gap(cx, at, stamp, message),
                // The minimum may have risen while it was read.
                Some(message) if sent && !blocked && room && !self.is_held(cx.now.mono, at, &message) => {
                    self.resend(cx, at, stamp, message);
                }
                Some(_) => {}
                // Expired, or removed by an operation that storage answered with an error: nothing is left to deliver.
                None => {
                    // A wall clock that goes back must not revive it: its ack would find no entry.
                    self.stats.expired += 1;
                    let registered = self.registered_channel(at, row.chid);
                    self.receipt_of_gone(cx.now.unix(), &row, registered);
                    self.take_entry(cx, at, stamp);
                    self.continue_drain(cx, at);
                }
            }
        } else if !sent {
            self.arm_pace(cx, at);
        }
        self.deactivate_if_idle(at);
    }

    /// Sends a notification of the window again.
    fn resend(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamp: Stamp, message: Arc<Message>) {
        let session = self.sessions.live(at);
        let (conn, index) = (session.conn, session.active);
        let tells_urgency = session.link.named_minimum().is_some();
        if message.expired(cx.now.unix()) {
            self.stats.expired += 1;
            self.end_receipt(&RowKey::of(&message), Outcome::Expired);
            self.take_entry(cx, at, stamp);
            return;
        }
        let emission = self.active_sessions.live_mut(index).window.resend(stamp, cx.now.mono);
        self.stats.retries += 1;
        self.simple_active(at, cx.now.mono);
        self.stats.notifications_sent += 1;
        let event = SessionEvent::Notification { message, emission, tells_urgency };
        cx.effects.push_back(Effect::Emit(conn, event.into()));
    }
}

const LEAST_PAUSE: TimeSpan = TimeSpan::from_ms(100);
