//! Acks: each ends exactly the message that it names (ARCHITECTURE.md 3).

use crate::ids::Stamp;

use super::command::AckUpdate;
use super::composer::{ShardMachine, StepContext};
use super::receipt::Outcome;
use super::row::RowKey;
use super::slab::SlabKey;
use super::stats::DeliveryTimes;

impl ShardMachine {
    pub(super) fn ack(&mut self, cx: &mut StepContext<'_>, at: SlabKey, updates: &[AckUpdate]) {
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
            if !self.acked(cx, at, update.stamp) {
                self.ack_outside_window(cx, at, update);
            }
        }
        self.pace_acked(cx, at, out);
        self.continue_drain(cx, at);
        self.reset_old_record(cx, at);
        self.deactivate_if_idle(at);
    }

    /// Ends the notification that an ack names, and records its delivery time; false if the window does not hold it.
    fn acked(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamp: Stamp) -> bool {
        let index = self.sessions.live(at).active;
        let Some(entry) = self.remove_entry(index, stamp) else { return false };
        let DeliveryTimes { direct, stored } = &mut self.delivery_times;
        let times = if entry.is_direct() { direct } else { stored };
        // The clock may be ahead, after a step back or on another node.
        times.record(cx.now.unix_us.saturating_sub(stamp.clock.0));
        self.end_entry(cx, entry);
        true
    }

    /// Handles an id that is not in the window: of a deferred message, of one that an earlier session was sent, or
    /// noise. The first two are in storage, so the id is only looked up while storage may hold something for this
    /// session, or while the message waits for room in a full storage.
    fn ack_outside_window(&mut self, cx: &mut StepContext<'_>, at: SlabKey, update: &AckUpdate) {
        let session = self.sessions.live(at);
        let (uaid, index) = (session.uaid, session.active);
        // While the session is unsure of a channel, a check has left its rows in storage, also those that an earlier
        // session was sent.
        let mut known = session.stored.is_unsure();
        known |= self.ack_departing(cx, uaid, update.stamp);
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
}
