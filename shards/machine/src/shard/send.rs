//! Sends the waiting notifications of a window in their order, at the pace of the session (decision 0020).
//!
//! Directs and rows that were read ahead share one line. A step sends a few of them and leaves the rest to the next
//! turn, so that one session with many notifications delays its neighbours for some tens of microseconds at a time.

use std::sync::Arc;

use crate::ids::Stamp;
use crate::limits;
use crate::message::Message;
use crate::time::Span;

use super::command::SessionEvent;
use super::components::active::Active;
use super::components::window::{Entry, Gap, Sent, Source};
use super::composer::{ShardMachine, Turn};
use super::drain::DRAIN_PAUSE;
use super::input::Effect;
use super::receipt::Outcome;
use super::slab::Ref;
use super::store::StoreOp;
use super::work::Work;

impl ShardMachine {
    /// Adds a notification to the window and sends it as soon as its turn comes.
    pub(super) fn push_entry(&mut self, turn: &mut Turn<'_>, at: Ref, message: Arc<Message>, source: Source) {
        self.enter_window(turn, at, message, source);
        self.send_waiting(turn, at);
    }

    /// Adds a notification to the window.
    pub(super) fn enter_window(&mut self, turn: &Turn<'_>, at: Ref, message: Arc<Message>, source: Source) {
        assert!(!self.sessions.live(at).link.is_blocked(), "nothing is added to the window of a blocked socket");
        self.expect_receipt(&message);
        let entry = Entry::new(message, source, turn.now.mono);
        let due = entry.due(self.config.spill_after, self.config.retry_after);
        if source == Source::Row {
            self.row_memory.add(entry.body_bytes());
        }
        self.activate(at).window.enter(entry);
        if let Some(due) = due {
            self.arm_active_at(at, due);
        }
    }

    /// Sends the waiting notifications of the window in their order, as far as the pace of the session allows and no
    /// longer than a turn. The rest is visited again when there is room.
    pub(super) fn send_waiting(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let session = self.sessions.live(at);
        if session.link.is_blocked() {
            return;
        }
        let (conn, index, now) = (session.conn, session.active, turn.now);
        let tells_urgency = session.link.named_minimum().is_some();
        // Nothing waits.
        let Some(active) = self.active_of_mut(index).filter(|active| active.window.waits()) else { return };
        let Sent { count: sent, rows, expired } =
            active.window.send_waiting(now, limits::SENT_PER_STEP, |message, emission| {
                let event = SessionEvent::Notification { message, emission, tells_urgency };
                turn.effects.push_back(Effect::Emit(conn, event.into()));
            });
        self.stats.notifications_sent += sent as u64;
        if sent > 0 {
            self.simple_active(at, now.mono);
            self.arm_sent(turn, at, rows);
        }
        for row in expired {
            self.stats.expired += 1;
            self.end_receipt(&row, Outcome::Expired);
            self.take_entry(turn, at, row.stamp);
        }
        self.read_gap(turn, at);
        let paced = |active: &Active| active.window.is_paced(now.mono);
        self.stats.paced += u64::from(sent > 0 && self.active_of(index).is_some_and(paced));
        self.arm_pace(turn, at);
    }

    /// Reads the body of a row whose frame the socket refused after the body was forgotten: the entries behind it wait.
    fn read_gap(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let (room, full) = (self.tickets.room(), self.rows_are_full(at));
        let active = self.actives.live_mut(self.sessions.live(at).active);
        // Nothing waits, or the next entry has its body, or a read of it is under way.
        let Some(Gap { row, reading: false }) = active.window.gap() else { return };
        if full {
            self.leave_to_storage(at);
        } else if room {
            active.window.begin_read(row.stamp);
            let op = StoreOp::Read { row, now: turn.now.unix() };
            self.submit(turn, Work::Retry { session: at, stamp: row.stamp }, op);
        }
    }

    /// Sends a refused row in its place after its body was read.
    pub(super) fn fill_gap(&mut self, turn: &mut Turn<'_>, at: Ref, stamp: Stamp, message: Arc<Message>) {
        let active = self.actives.live_mut(self.sessions.live(at).active);
        // It was left to storage after this read began, and came back with a page.
        let Some(bytes) = active.window.fill(stamp, message) else { return };
        self.row_memory.add(bytes);
        self.continue_drain(turn, at);
    }

    /// Arms the session's deadline for the next waiting entry of its window.
    pub(super) fn arm_pace(&mut self, turn: &Turn<'_>, at: Ref) {
        let session = self.sessions.live(at);
        if session.link.is_blocked() {
            return;
        }
        let index = session.active;
        // Nothing waits.
        let Some(active) = self.active_of_mut(index).filter(|active| active.window.waits()) else { return };
        if let Some(Gap { reading, .. }) = active.window.gap() {
            // The answer to its read continues.
            if !reading {
                self.arm_active_in(at, DRAIN_PAUSE, turn);
            }
            return;
        }
        // With room left, this turn stopped because it was long enough.
        let next_turn = turn.now.mono.after(Span(1));
        let due = active.window.pace_due(turn.now.mono, next_turn);
        self.arm_active_at(at, due);
    }

    /// Returns the number of notifications that are sent and unacked.
    pub(super) fn out(&self, at: Ref) -> u16 {
        self.active(at).map_or(0, |active| active.window.out())
    }

    /// Counts acks in the pace. `before` is the number of notifications that were out before them.
    pub(super) fn pace_acked(&mut self, turn: &Turn<'_>, at: Ref, before: u16) {
        if let Some(active) = self.active_mut(at) {
            active.window.acked(turn.now.mono, before);
        }
    }
}
