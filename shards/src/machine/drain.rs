//! The stored drain: what storage holds is read ahead into the window, which sends it at its pace (decision 0020).
//!
//! A check starts at the beginning (low_water), topic rows first, then message and saved rows merged in clock
//! order; it skips what is in the window, parked or settled. The next page is asked for when most of what was read is
//! sent. While a check is wanted or running every new message is stored, so none overtakes.
//!
//! A check may begin while writes of its user are under way, since a busy user may always have one. It cannot be the
//! last then: the flag stays, and the completion of a write begins the next.
//!
//! A check also finds out how far storage is settled: it has seen every message row at or below the row it is at,
//! except those that may have been written since it began, which are younger than `MachineConfig::settle_lag`.

use std::sync::Arc;

use crate::ids::{Clock, Stamp};
use crate::limits::{PAGE_ROWS_MAX, PAGE_ROWS_MIN, READ_AHEAD_BYTES};
use crate::message::{Message, Urgency};
use crate::time::{Now, Span};

use super::active::{DrainCursor, Source};
use super::cluster::Doubt;
use super::components::ledger_room::ledger_bytes;
use super::receipt::Outcome;
use super::session::{BLOCKED, ENTERING, UNSURE};
use super::slab::Ref;
use super::store::{Page, RowKey, StoreError, StoreOp, StoreReply};
use super::tickets::Work;
use super::{ShardMachine, Turn};

impl ShardMachine {
    /// Storage holds or may hold something for this session: look, now or when the running check is over.
    pub(super) fn check_storage(&mut self, turn: &mut Turn<'_>, at: Ref) {
        self.want_check(at);
        self.continue_drain(turn, at);
    }

    /// Sets the sticky flag: storage holds something, or will before it says so.
    pub(super) fn want_check(&mut self, at: Ref) {
        if self.sessions.get(at).is_some() {
            let drain = &mut self.activate(at).drain;
            (drain.wanted, drain.news) = (true, true);
        }
    }

    /// Sets the sticky flag only: the completion of a store that is about to be submitted will start the check.
    pub(super) fn want_check_later(&mut self, at: Ref) {
        if self.sessions.get(at).is_some() {
            self.activate(at).drain.wanted = true;
        }
    }

    /// Sends what waits in the window, and asks for the next page when there is room for it.
    pub(super) fn continue_drain(&mut self, turn: &mut Turn<'_>, at: Ref) {
        self.send_waiting(turn, at);
        let Some(session) = self.sessions.get(at) else { return };
        let (uaid, blocked, index) = (session.uaid, session.has(BLOCKED) || session.has(ENTERING), session.active);
        let window = usize::from(self.config.window);
        let writing = self.write_in_flight(uaid);
        // Where time was set back the clock stands ahead of it: others write by the earlier of the two.
        let sure = self.clock.now(turn.now).0.min(turn.now.unix_us);
        // A clock that is too far from the database's vouches for nothing.
        let sure = if self.clock.is_stopped() { 0 } else { sure };
        let horizon = Clock(sure.saturating_sub(self.config.settle_lag().micros()));
        let (room, full) = (self.tickets.room(), self.pages_are_full(at));
        let Some(active) = self.active_of_mut(index) else { return };
        if active.drain.reading || blocked {
            return;
        }
        let cursor = match active.drain.at {
            Some(cursor) => cursor,
            // What a write under way brings is not seen by this check: its completion asks for another.
            None if active.drain.wanted && (active.drain.news || !writing) => {
                (active.drain.wanted, active.drain.news) = (writing, false);
                active.drain.horizon = horizon;
                active.drain.passed_by = 0;
                DrainCursor::Topics(None)
            }
            None => return,
        };
        active.drain.at = Some(cursor);
        let ahead = active.unsent > PAGE_ROWS_MAX / 2 || active.ahead_bytes >= READ_AHEAD_BYTES;
        if ahead || active.window.len() >= window {
            return;
        }
        if !room || full {
            self.stats.pages_postponed += u64::from(full);
            self.arm_active_in(at, DRAIN_PAUSE, turn);
            return;
        }
        active.drain.reading = true;
        let limit = active.drain.rows.max(PAGE_ROWS_MIN).min((window - active.window.len()) as u16);
        let now = turn.now.unix();
        let op = match cursor {
            DrainCursor::Topics(after) => StoreOp::Topics { uaid, after, limit, now },
            DrainCursor::Messages(after) => StoreOp::Messages { uaid, after, limit, now },
        };
        self.stats.pages += 1;
        self.row_memory.begin_page();
        self.submit(turn, Work::Page { session: at }, op);
    }

    pub(super) fn page_loaded(&mut self, turn: &mut Turn<'_>, at: Ref, result: Result<StoreReply, StoreError>) {
        let Some(session) = self.sessions.get(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        let (index, blocked) = (session.active, session.has(BLOCKED));
        let Some(active) = self.active_of_mut(index) else { return };
        active.drain.reading = false;
        if blocked {
            // Nothing can be sent: the check begins again when the socket takes bytes.
            active.drain.restart();
            return;
        }
        let Some(cursor) = active.drain.at else {
            self.continue_drain(turn, at);
            return;
        };
        match result {
            Ok(StoreReply::Page(page)) => {
                active.drain.at = next_cursor(cursor, &page);
                let covered = covered_by(cursor, &page, active.drain.horizon);
                let passed_by = active.drain.passed_by;
                if let Some(largest) = page.messages.iter().map(|message| ledger_bytes(message)).max() {
                    active.drain.rows = ((READ_AHEAD_BYTES / largest) as u16).clamp(PAGE_ROWS_MIN, PAGE_ROWS_MAX);
                }
                self.take_page(turn, at, page.messages);
                self.page_sent(at, covered);
                if self.active_of(index).is_some_and(|active| active.drain.passed_by > passed_by) {
                    self.doubt(turn, at, Doubt::UnknownChannel);
                }
                self.continue_drain(turn, at);
                self.forget_acked(at);
                self.reset_old_record(turn, at);
                self.deactivate_if_idle(at);
            }
            // Storage is down: the check begins again in a while.
            Ok(_) | Err(_) => {
                active.drain.restart();
                self.arm_active_in(at, DRAIN_PAUSE, turn);
            }
        }
    }

    /// Takes a page into the window, most urgent first; Urgency reorders only within one page, and never within a
    /// channel.
    fn take_page(&mut self, turn: &mut Turn<'_>, at: Ref, mut messages: Vec<Arc<Message>>) {
        if messages.iter().any(|m| m.urgency != Urgency::Normal) {
            urgent_first(&mut messages);
        }
        messages.retain(|message| self.is_news(turn.now, at, message));
        if messages.is_empty() || self.over_msg_limit(turn, at, messages.len()) {
            return;
        }
        for message in messages {
            if let Err(super::clock::TooFarAhead) = self.clock.advance(turn.now, message.stamp.clock) {
                self.stats.clocks_refused += 1;
            }
            self.stats.stored_sent += 1;
            self.enter_window(turn, at, message, Source::Row);
        }
    }

    /// True if a row is to be sent: it is neither in flight nor settled nor delivered too often, its channel is
    /// registered, and it is of the session's mode.
    fn is_news(&mut self, now: Now, at: Ref, message: &Message) -> bool {
        let Some(session) = self.sessions.get(at) else { return false };
        let registered = session.channels.contains(self.config.placement.fingerprint(message.chid));
        let stamp = message.stamp;
        let in_flight = self.active_of(session.active).is_some_and(|active| {
            active.position(stamp).is_some() || active.parked.iter().any(|parked| parked.row.stamp == stamp)
        });
        if in_flight || self.settling.holds(message.uaid, stamp) {
            return false;
        }
        if self.settling.ended_lately(message.uaid, stamp) {
            // Acked before another node had stored it: the answer to its push was lost.
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
            return true;
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

    /// Whether the session may end a row that is for no channel of its, or for the other mode. While unsure it has the
    /// channel perhaps all the same. Among nodes the user may have a newer session elsewhere with other channels, and
    /// only what was stored surely before this one read its own is surely for none; the next session decides the rest.
    fn knows_better(&self, now: Now, at: Ref, message: &Message) -> bool {
        let Some(session) = self.sessions.get(at) else { return false };
        let before = message.stamp.clock.0.saturating_add(self.config.settle_lag().micros()) <= session.connected_at;
        // A session that is stamped ahead of time does not say when it began.
        let before = before && session.connected_at <= now.unix_us;
        !session.has(UNSURE) && (!self.in_cluster() || before)
    }

    /// A row stays where it is: the running check vouches for nothing any more.
    fn pass_by(&mut self, at: Ref) {
        self.stats.rows_passed_by += 1;
        self.activate(at).drain.passed_by += 1;
    }

    /// What a page brought is in the window: the check vouches for what it read, unless rows were passed by.
    fn page_sent(&mut self, at: Ref, covered: Option<Clock>) {
        let Some(session) = self.sessions.get(at) else { return };
        let index = session.active;
        let Some(active) = self.active_of_mut(index) else { return };
        if let Some(covered) = covered
            && active.drain.passed_by == 0
        {
            active.drain.covered = active.drain.covered.max(covered);
        }
        if active.drain.at.is_none() {
            active.drain.sent = 0;
        }
    }
}

/// Up to where a page has seen every message row, as far as a check that began then may say so.
fn covered_by(cursor: DrainCursor, page: &Page, horizon: Clock) -> Option<Clock> {
    match (cursor, page.messages.last()) {
        (DrainCursor::Topics(_), _) => None,
        (DrainCursor::Messages(_), _) if page.exhausted => Some(horizon),
        // Others of the same clock may follow on the next page.
        (DrainCursor::Messages(_), Some(last)) => Some(horizon.min(Clock(last.stamp.clock.0.saturating_sub(1)))),
        (DrainCursor::Messages(_), None) => None,
    }
}

/// Where the next page starts; `None` when the check is over.
fn next_cursor(cursor: DrainCursor, page: &Page) -> Option<DrainCursor> {
    let last = page.messages.last();
    match (cursor, last) {
        (DrainCursor::Topics(_), Some(last)) if !page.exhausted => {
            Some(DrainCursor::Topics(last.topic.map(|topic| (last.chid, topic))))
        }
        (DrainCursor::Topics(_), _) => Some(DrainCursor::Messages(Stamp::default())),
        (DrainCursor::Messages(_), Some(last)) if !page.exhausted => Some(DrainCursor::Messages(last.stamp)),
        (DrainCursor::Messages(_), _) => None,
    }
}

/// Moves whole channels forward by their most urgent message, keeping the order within each channel.
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

/// How long a drain rests when storage is down or busy.
pub(super) const DRAIN_PAUSE: Span = Span::from_ms(1_000);
