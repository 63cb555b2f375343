//! Sends the waiting notifications of a window in their order, at the pace of the session (decision 0020).
//!
//! Directs and rows that were read ahead share one line. A step sends a few of them and leaves the rest to the next
//! turn, so that one session with many notifications delays its neighbours for some tens of microseconds at a time.

use std::sync::Arc;

use crate::ids::Stamp;
use crate::limits;
use crate::message::Message;
use crate::time::TimeSpan;

use super::backlog::DRAIN_PAUSE;
use super::command::SessionEvent;
use super::components::active_session::ActiveSession;
use super::components::window::{CopyLocation, Gap, Sent, WindowEntry};
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::receipt::Outcome;
use super::slab::SlabKey;
use super::store::StoreOp;

impl ShardMachine {
    /// Adds a notification to the window and sends it as soon as its turn comes.
    pub(super) fn push_entry(
        &mut self,
        cx: &mut StepContext<'_>,
        at: SlabKey,
        message: Arc<Message>,
        source: CopyLocation,
    ) {
        self.enter_window(cx, at, message, source);
        self.send_waiting(cx, at);
    }

    /// Adds a notification to the window.
    pub(super) fn enter_window(
        &mut self,
        cx: &StepContext<'_>,
        at: SlabKey,
        message: Arc<Message>,
        source: CopyLocation,
    ) {
        assert!(!self.sessions.live(at).link.is_blocked(), "nothing is added to the window of a blocked socket");
        self.expect_receipt(&message);
        let entry = WindowEntry::new(message, source, cx.now.mono);
        let due = entry.due(self.config.spill_after, self.config.retry_after);
        if source == CopyLocation::Row {
            self.row_memory.add(entry.body_bytes());
        }
        self.activate(at).window.enter(entry);
        if let Some(due) = due {
            self.arm_active_at(at, due);
        }
    }

    /// Sends the waiting notifications of the window in their order, as far as the pace of the session allows and no
    /// longer than a turn. The rest is visited again when there is room.
    pub(super) fn send_waiting(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        // A shard that stood still has other inputs before the timer that ends this time.
        self.fall_asleep(cx, at);
        let session = self.sessions.live(at);
        if session.link.is_blocked() {
            return;
        }
        let (conn, index, now) = (session.conn, session.active, cx.now);
        let tells_urgency = session.link.named_minimum().is_some();
        // Nothing waits.
        let Some(active) = self.active_of_mut(index).filter(|active| active.window.waits()) else { return };
        let Sent { count: sent, rows, expired } =
            active.window.send_waiting(now, limits::SENT_PER_STEP, |message, emission| {
                let event = SessionEvent::Notification { message, emission, tells_urgency };
                cx.effects.push_back(Effect::Emit(conn, event.into()));
            });
        self.stats.notifications_sent += sent as u64;
        if sent > 0 {
            self.simple_active(at, now.mono);
            self.arm_sent(cx, at, rows);
        }
        for row in expired {
            self.stats.expired += 1;
            self.end_receipt(&row, Outcome::Expired);
            self.take_entry(cx, at, row.stamp);
        }
        self.read_gap(cx, at);
        let paced = |active: &ActiveSession| active.window.is_paced(now.mono);
        self.stats.paced += u64::from(sent > 0 && self.active_of(index).is_some_and(paced));
        self.arm_pace(cx, at);
    }

    /// Reads the body of a row whose frame the socket refused after the body was forgotten: the entries behind it wait.
    fn read_gap(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let (room, full) = (self.tickets.room(), self.rows_are_full(at));
        let active = self.active_sessions.live_mut(self.sessions.live(at).active);
        // Nothing waits, or the next entry has its body, or a read of it is under way.
        let Some(Gap { row, reading: false }) = active.window.gap() else { return };
        if full {
            self.leave_to_storage(at);
        } else if room {
            active.window.begin_read(row.stamp);
            let op = StoreOp::Read { row, now: cx.now.unix() };
            self.submit(cx, PendingOp::Retry { session: at, stamp: row.stamp }, op);
        }
    }

    /// Sends a refused row in its place after its body was read.
    pub(super) fn fill_gap(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamp: Stamp, message: Arc<Message>) {
        let active = self.active_sessions.live_mut(self.sessions.live(at).active);
        // It was left to storage after this read began, and came back with a page.
        let Some(bytes) = active.window.fill(stamp, message) else { return };
        self.row_memory.add(bytes);
        self.continue_drain(cx, at);
    }

    /// Arms the session's deadline for the next waiting entry of its window.
    pub(super) fn arm_pace(&mut self, cx: &StepContext<'_>, at: SlabKey) {
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
                self.arm_active_in(at, DRAIN_PAUSE, cx);
            }
            return;
        }
        // With room left, this turn stopped because it was long enough.
        let next_turn = cx.now.mono.after(TimeSpan(1));
        let due = active.window.pace_due(cx.now.mono, next_turn);
        self.arm_active_at(at, due);
    }

    /// Returns the number of notifications that are sent and unacked.
    pub(super) fn out(&self, at: SlabKey) -> u16 {
        self.active(at).map_or(0, |active| active.window.out())
    }

    /// Counts acks in the pace. `before` is the number of notifications that were out before them.
    pub(super) fn pace_acked(&mut self, cx: &StepContext<'_>, at: SlabKey, before: u16) {
        if let Some(active) = self.active_mut(at) {
            active.window.acked(cx.now.mono, before);
        }
    }
}
