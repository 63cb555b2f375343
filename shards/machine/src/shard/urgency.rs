//! The minimum urgency of a user agent (PROTOCOL.md 15; decision 0029): messages below it are held in storage until it
//! falls, until they expire, or until the user agent's own traffic shows that its radio is awake.
//!
//! The minimum stands in the record of the user and in the flags of its session. A message below it goes to storage and
//! causes no read. A flag of the session says that storage may hold such messages, so that a user agent without any
//! pays nothing for its traffic.

use crate::message::{Message, Topic, Urgency};
use crate::simplepush::{Contact, Mode};
use crate::time::{Instant, TimeSpan};

use super::command::{CloseReason, SessionEvent};
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::pending_publish::PendingPublish;
use super::slab::SlabKey;
use super::store::StoreOp;

impl ShardMachine {
    /// Handles the message `urgency`. `None` is an unknown word.
    pub(super) fn set_minimum(&mut self, cx: &mut StepContext<'_>, at: SlabKey, minimum: Option<Urgency>) {
        let session = self.sessions.live(at);
        let (uaid, mode, stored) = (session.uaid, session.link.mode(), session.stored.has_user());
        // It writes the user durably, and may read all that is held: it has the budget of registers.
        if !self.rates.take_register(cx.now.mono, uaid, &mut self.stats) {
            return self.end_session(cx, at, Some(CloseReason::BudgetExhausted));
        }
        // An update has no urgency.
        let Some(minimum) = minimum.filter(|_| mode == Mode::WebPush) else {
            return self.minimum_answered(cx, at, 404);
        };
        // While it was very low, the message did not count as traffic (`heard_from`).
        if minimum > Urgency::VeryLow && self.config.release_on_activity > TimeSpan(0) {
            self.stay_awake(cx, at);
        }
        if !stored {
            // The first register writes it. Without one, the next hello starts over: a user agent names its minimum
            // once.
            self.dropped_users.remove(uaid);
            self.minimum_answered(cx, at, 200);
            return self.apply_minimum(cx, at, minimum);
        }
        if !self.tickets.room() || self.refuses_stamp() {
            return self.minimum_answered(cx, at, 500);
        }
        self.activate(at).command.begin(None);
        let contact = Box::new(Contact { minimum: Some(minimum), ..Contact::default() });
        let op = StoreOp::SetContact { uaid, contact, durable: true };
        self.submit(cx, PendingOp::Minimum { session: at, minimum }, op);
    }

    /// Handles the reply of storage. After an error the session keeps its minimum, and the record may have either.
    pub(super) fn minimum_set(&mut self, cx: &mut StepContext<'_>, at: SlabKey, minimum: Urgency, done: bool) {
        if self.sessions.get(at).is_none() {
            self.stats.store_replies_stale += 1;
            return;
        }
        self.command_done(at);
        self.minimum_answered(cx, at, if done { 200 } else { 500 });
        if done {
            self.apply_minimum(cx, at, minimum);
        } else if self.activate(at).kept_minimum.begin() {
            let (work, op) = self.keep_minimum(at);
            self.submit_later(cx, work, op);
        }
        self.deactivate_if_idle(at);
    }

    /// Writes the minimum of a session back into the record.
    fn keep_minimum(&self, at: SlabKey) -> (PendingOp, StoreOp) {
        let session = self.sessions.live(at);
        let minimum = session.link.named_minimum();
        let contact = Box::new(Contact { minimum, ..Contact::default() });
        let op = StoreOp::SetContact { uaid: session.uaid, contact, durable: true };
        (PendingOp::KeepMinimum { session: at, minimum }, op)
    }

    /// Decides what becomes of the write of a minimum that had to wait and is due now. `None`: nothing is written. The
    /// session has ended, and the next one of the user may have named another minimum, on any node.
    pub(super) fn minimum_due(
        &mut self,
        cx: &StepContext<'_>,
        work: PendingOp,
        op: StoreOp,
    ) -> Option<(PendingOp, StoreOp)> {
        let (PendingOp::Minimum { session: at, .. } | PendingOp::KeepMinimum { session: at, .. }) = work else {
            return Some((work, op));
        };
        let active = self.sessions.get(at)?.active;
        if matches!(work, PendingOp::Minimum { .. }) {
            return Some((work, op));
        }
        let (work, op) = self.keep_minimum(at);
        if self.active_of(active).is_some_and(|active| active.command.waits()) {
            // A newer minimum may be on its way, and this write must not come behind it.
            self.submit_later(cx, work, op);
            return None;
        }
        Some((work, op))
    }

    /// Handles the reply to a minimum that was written back. Other nodes may have held messages by the record before,
    /// so the session reads all of storage. A minimum that was named meanwhile is written once more.
    pub(super) fn minimum_kept(&mut self, cx: &mut StepContext<'_>, at: SlabKey, written: Option<Urgency>, done: bool) {
        let Some(session) = self.sessions.get(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        let stands = done && session.link.named_minimum() == written;
        if self.activate(at).kept_minimum.end(stands) {
            self.release(cx, at);
            self.deactivate_if_idle(at);
            return;
        }
        let (work, op) = self.keep_minimum(at);
        self.submit_later(cx, work, op);
    }

    fn minimum_answered(&mut self, cx: &mut StepContext<'_>, at: SlabKey, status: u16) {
        match status {
            200 => self.stats.minimums += 1,
            _ => self.stats.minimums_refused += 1,
        }
        let conn = self.sessions.live(at).conn;
        cx.effects.push_back(Effect::Emit(conn, SessionEvent::Urgency { status }.into()));
        cx.effects.push_back(Effect::Ready(conn));
    }

    /// Holds or releases messages by a new minimum.
    fn apply_minimum(&mut self, cx: &mut StepContext<'_>, at: SlabKey, minimum: Urgency) {
        let link = &mut self.sessions.live_mut(at).link;
        let before = link.minimum();
        link.set_minimum(minimum);
        if minimum < before {
            self.release(cx, at);
        } else {
            self.hold_window(cx, at);
        }
    }

    /// Returns the urgency below which nothing is sent to this session now.
    pub(super) fn minimum(&self, now: Instant, at: SlabKey) -> Urgency {
        let session = self.sessions.live(at);
        // A shard that stood still hears of its end late.
        if self.active_of(session.active).is_some_and(|active| active.awake.is_some_and(|until| now < until)) {
            return Urgency::VeryLow;
        }
        session.link.minimum()
    }

    /// Returns true if the message waits in storage for a lower minimum.
    pub(super) fn is_held(&self, now: Instant, at: SlabKey, message: &Message) -> bool {
        message.urgency < self.minimum(now, at) && message.mode() == Mode::WebPush
    }

    /// As `is_held`, for a message that was at storage meanwhile.
    pub(super) fn is_held_now(&self, now: Instant, at: SlabKey, work: &PendingPublish) -> bool {
        let update = work.row.topic == Some(Topic::UPDATE);
        !update && work.urgency < self.minimum(now, at)
    }

    /// Notes that storage has a message below the minimum, or will have it.
    pub(super) fn hold(&mut self, at: SlabKey) {
        let session = self.sessions.live_mut(at);
        session.link.hold(true);
        let index = session.active;
        if let Some(active) = self.active_of_mut(index) {
            active.drain.hold();
        }
    }

    /// Returns true if storage may hold an older message of a topic that no window knows. The newer message must then
    /// replace it there. Another node may store one unnoticed.
    pub(super) fn may_hold_topic(&self, at: SlabKey) -> bool {
        let link = self.sessions.live(at).link;
        link.holds() || (self.in_cluster() && link.minimum() > Urgency::VeryLow)
    }

    /// Holds what waits in the window and is below the minimum: its directs go to storage, and then all of it leaves
    /// the window together.
    pub(super) fn hold_window(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let minimum = self.minimum(cx.now.mono, at);
        // Nothing waits, or nothing is held. A blocked socket still gives back frames, in parts: what is held must
        // leave together, so it waits until the socket takes bytes again.
        if minimum > Urgency::VeryLow
            && !self.sessions.live(at).link.is_blocked()
            && let Some(active) = self.active_mut(at)
            && active.window.hold(minimum)
        {
            self.spill_unacked_for(cx, at, self.config.spill_after);
            self.leave_held(at);
        }
    }

    /// Takes what is held out of the window once storage has all of it.
    pub(super) fn leave_held(&mut self, at: SlabKey) {
        let index = self.sessions.live(at).active;
        let Some(active) = self.active_of(index) else { return };
        let stamps = active.window.held_rows();
        if stamps.is_empty() {
            return;
        }
        self.stats.messages_held += stamps.len() as u64;
        stamps.into_iter().for_each(|stamp| _ = self.remove_entry(index, stamp));
        self.sessions.live_mut(at).link.hold(true);
        self.active_sessions.live_mut(index).drain.hold_again();
    }

    /// Sends what was held and is no longer below the minimum: first what is still in the window, then what storage
    /// has.
    fn release(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let (minimum, holds) =
            (self.minimum(cx.now.mono, at), self.sessions.live(at).link.holds() || self.in_cluster());
        if let Some(active) = self.active_mut(at) {
            active.window.release(minimum);
        }
        if holds {
            self.stats.releases += 1;
            self.activate(at).drain.restart();
        }
        self.continue_drain(cx, at);
    }

    /// Notes traffic of the user agent: its radio is awake, so held messages may go out for a while
    /// (`delivery.release_on_activity`).
    pub(super) fn heard_from(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live(at);
        let (span, link, uaid) = (self.config.release_on_activity, session.link, session.uaid);
        if span == TimeSpan(0) || link.minimum() == Urgency::VeryLow {
            return;
        }
        let slept = self.stay_awake(cx, at);
        let active = self.activate(at);
        let due = slept && active.window.release(Urgency::VeryLow);
        // A check that runs since it woke finds all that is stored. For what another node may still store there is one
        // read for each time that the radio wakes, and one more when no refused push is remembered any more.
        let clear = active.drain.clear();
        let unread = link.holds() && (slept || clear && !self.settling.refuses_lately(cx.now.mono, uaid));
        if unread || due {
            self.release(cx, at);
        }
    }

    /// Begins the time in which held messages may go out, and arms its end. Returns true if the last one is over.
    fn stay_awake(&mut self, cx: &StepContext<'_>, at: SlabKey) -> bool {
        let now = cx.now.mono;
        let until = now.after(self.config.release_on_activity);
        // The end of the last time may have come unheard.
        let slept = self.activate(at).awake.replace(until).is_none_or(|ended| ended <= now);
        self.arm_active_at(at, until);
        slept
    }

    /// Ends the time in which held messages may go out.
    pub(super) fn fall_asleep(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let now = cx.now.mono;
        if let Some(active) = self.active_mut(at)
            && active.awake.is_some_and(|until| until <= now)
        {
            active.awake = None;
            self.hold_window(cx, at);
        }
    }
}
