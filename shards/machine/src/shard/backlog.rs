//! The stored drain: reads stored messages ahead into the window, which sends them at its pace (decision 0020).
//!
//! A check starts at the beginning (low_water), topic rows first, then message and saved rows merged in clock order. It
//! skips rows that are in the window, deferred or settled. It requests the next page when most of the rows that it read
//! are sent. While a check is requested or running every new message is stored, so none overtakes.
//!
//! A check can begin while writes of its user are under way, since a busy user may always have one. Such a check cannot
//! be the last one: the flag stays, and the completion of a write begins the next.
//!
//! A check also finds out up to which clock storage is settled. It has seen every message row at or below its current
//! row, except rows that may have been written since it began, which are younger than `MachineConfig::settle_lag`.

use std::sync::Arc;

use crate::ids::Clock;
use crate::message::{Message, Urgency};
use crate::time::{Now, TimeSpan};

use super::components::backlog_state::BacklogCursor;
use super::components::window::CopyLocation;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::SlabKey;
use super::store::{Page, StoreError, StoreOp};

impl ShardMachine {
    /// Checks storage for this session, now or after the running check: storage holds or may hold something for it.
    pub(super) fn check_storage(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        self.activate(at).drain.want_all();
        self.continue_drain(cx, at);
    }

    /// As `check_storage`, for messages that are younger than everything that a check has left because it is held.
    pub(super) fn check_news(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        self.want_check(at);
        self.continue_drain(cx, at);
    }

    /// Sets the sticky flag: storage holds something, or will before it replies.
    pub(super) fn want_check(&mut self, at: SlabKey) {
        self.activate(at).drain.want();
    }

    /// Sets the sticky flag only: the completion of the store that follows starts the check.
    pub(super) fn want_check_later(&mut self, at: SlabKey) {
        self.activate(at).drain.want_later();
    }

    /// Sends the waiting messages of the window, and requests the next page if there is room for it.
    pub(super) fn continue_drain(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        // The last direct among what is held may have ended unsaved. A blocked socket still gives back frames.
        let link = self.sessions.live(at).link;
        if link.minimum() > Urgency::VeryLow && !link.is_blocked() {
            self.leave_held(at);
        }
        self.send_waiting(cx, at);
        let session = self.sessions.live(at);
        let (uaid, blocked, index) =
            (session.uaid, session.link.is_blocked() || session.stored.is_entering(), session.active);
        let window = usize::from(self.config.window);
        let writing = self.write_in_flight(uaid);
        // After a step back of the process time, the clock is ahead of it. Other nodes write by the earlier of the two.
        let sure = self.clock.now(cx.now).0.min(cx.now.unix_us);
        // A clock that is too far from the database's proves nothing.
        let sure = if self.clock.is_stopped() { 0 } else { sure };
        let horizon = Clock(sure.saturating_sub(self.config.settle_lag().micros()));
        let (room, full) = (self.tickets.room(), self.pages_are_full(at));
        let settling = &mut self.settling;
        // The minimum may be raised again before the other node has stored.
        let expects_held = || link.named_minimum().is_some() && settling.refuses_lately(cx.now.mono, uaid);
        // An idle session has no drain.
        let Some(active) = self.active_sessions.get_mut(index) else { return };
        if active.drain.is_reading() || blocked {
            return;
        }
        // No check runs, and none is requested or can begin now.
        let Some(cursor) = active.drain.go_on(writing, horizon, expects_held) else { return };
        if active.window.is_ahead() || active.window.len() >= window {
            return;
        }
        if !room || full {
            self.stats.pages_postponed += u64::from(full);
            self.arm_active_in(at, DRAIN_PAUSE, cx);
            return;
        }
        let limit = active.drain.begin_page(window - active.window.len());
        let now = cx.now.unix();
        let op = match cursor {
            BacklogCursor::Topics(after) => StoreOp::Topics { uaid, after, limit, now },
            BacklogCursor::Messages(after) => StoreOp::Messages { uaid, after, limit, now },
        };
        self.stats.pages += 1;
        self.row_memory.begin_page();
        self.submit(cx, PendingOp::Page { session: at }, op);
    }

    pub(super) fn page_loaded(&mut self, cx: &mut StepContext<'_>, at: SlabKey, result: Result<Box<Page>, StoreError>) {
        let Some(session) = self.sessions.get(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        let (index, blocked) = (session.active, session.link.is_blocked());
        let active = self.active_sessions.live_mut(index);
        active.drain.end_page();
        if blocked {
            // Nothing can be sent: the check begins again when the socket takes bytes.
            active.drain.restart();
            return;
        }
        if !active.drain.is_running() {
            self.continue_drain(cx, at);
            return;
        }
        match result {
            Ok(page) => {
                let read = active.drain.page_read(&page);
                if !self.take_page(cx, at, page.messages) {
                    return;
                }
                let drain = &mut self.active_sessions.live_mut(index).drain;
                let passed_by = drain.page_taken(read);
                if let Some(holds) = drain.holds() {
                    self.sessions.live_mut(at).link.hold(holds);
                }
                if passed_by {
                    self.check_presence(cx, at);
                }
                self.continue_drain(cx, at);
                self.forget_acked(at);
                self.reset_old_record(cx, at);
                self.deactivate_if_idle(at);
            }
            // Storage is down: the check begins again after a pause.
            Err(_) => {
                active.drain.restart();
                self.arm_active_in(at, DRAIN_PAUSE, cx);
            }
        }
    }

    /// Takes a page into the window, most urgent first. Urgency reorders only within one page, and never within a
    /// channel. Returns false if the user had too many messages and was reset.
    fn take_page(&mut self, cx: &mut StepContext<'_>, at: SlabKey, mut messages: Vec<Arc<Message>>) -> bool {
        if messages.iter().any(|m| m.urgency != Urgency::Normal) {
            urgent_first(&mut messages);
        }
        messages.retain(|message| self.is_news(cx.now, at, message));
        if messages.is_empty() {
            return true;
        }
        if self.over_msg_limit(cx, at, messages.len()) {
            return false;
        }
        for message in messages {
            if let Err(super::clock::TooFarAhead) = self.clock.advance(cx.now, message.stamp.clock) {
                self.stats.clocks_refused += 1;
            }
            self.stats.stored_sent += 1;
            self.enter_window(cx, at, message, CopyLocation::Row);
        }
        true
    }

    /// Returns true if a row must be sent: it is neither in flight nor settled nor delivered too often, its channel is
    /// registered, and it has the session's mode.
    fn is_news(&mut self, now: Now, at: SlabKey, message: &Message) -> bool {
        let session = self.sessions.live(at);
        let registered = session.channels.contains(self.config.placement.fingerprint(message.chid));
        let stamp = message.stamp;
        let in_flight = self.active_of(session.active).is_some_and(|active| active.window.holds(stamp));
        if in_flight || self.settling.holds(message.uaid, stamp) {
            return false;
        }
        if self.settling.ended_lately(message.uaid, stamp) {
            // It was acked before another node had stored it: the answer to its push was lost.
            self.settle(RowKey::of(message));
            return false;
        }
        if message.tries.are_spent(self.config.attempts_max) {
            self.stats.unacked_ended += 1;
            self.end_receipt(&RowKey::of(message), Outcome::Unacked);
            self.settle(RowKey::of(message));
            return false;
        }
        if registered && self.is_for_session(at, message) {
            let held = self.is_held(now.mono, at, message);
            if held {
                self.sessions.live_mut(at).link.hold(true);
                self.activate(at).drain.pass_held();
            }
            return !held;
        }
        if self.knows_better(now, at, message) {
            self.stats.rows_unregistered += u64::from(!registered);
            self.end_receipt(&RowKey::of(message), Outcome::Unregistered);
            self.settle(RowKey::of(message));
        } else {
            self.pass_by(at);
        }
        false
    }

    /// Returns true if the session may end a row of an unknown channel, or of the other mode. An unsure session may
    /// have the channel all the same. With several nodes the user can have a newer session elsewhere with other
    /// channels. Then only rows that were certainly stored before this session read its channels belong to no channel;
    /// the next session decides about the rest.
    fn knows_better(&self, now: Now, at: SlabKey, message: &Message) -> bool {
        let session = self.sessions.live(at);
        let before =
            message.stamp.clock.0.saturating_add(self.config.settle_lag().micros()) <= session.connected_at.get();
        // The start of a session that is stamped ahead of time proves nothing.
        let before = before && session.connected_at.get() <= now.unix_us;
        !session.stored.is_unsure() && (!self.in_cluster() || before)
    }

    /// Leaves a row in storage: the running check cannot raise low water any more.
    fn pass_by(&mut self, at: SlabKey) {
        self.stats.rows_passed_by += 1;
        self.activate(at).drain.pass_by();
    }
}

/// Moves complete channels forward by their most urgent message, keeping the order within each channel.
fn urgent_first(messages: &mut [Arc<Message>]) {
    let urgency_of: Vec<_> = messages
        .iter()
        .map(|m| messages.iter().filter(|o| o.chid == m.chid).map(|o| o.urgency).max().unwrap_or_default())
        .collect();
    let mut order: Vec<usize> = (0..messages.len()).collect();
    order.sort_by_key(|n| std::cmp::Reverse(urgency_of[*n]));
    let sorted: Vec<_> = order.into_iter().map(|n| messages[n].clone()).collect();
    messages.clone_from_slice(&sorted);
}

/// Pause of a drain when storage is down or busy.
pub(super) const DRAIN_PAUSE: TimeSpan = TimeSpan::from_ms(1_000);
