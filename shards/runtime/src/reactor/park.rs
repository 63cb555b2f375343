//! Sleeping and waking: the one place where a shard waits (ring/RULES.md).
//!
//! A shard blocks in its hub ring, which polls the eventfd of the shard, so that it hears of the other rings, of other
//! threads and of its deadline there.

use crate::ports::Edge;
use machine::time::{Instant, TimeSpan};

use super::event_loop::PUBLISH_EVERY;
use super::{Machine, Reactor};

/// A shard that had no request for so long gathers what comes in its sleeps: pings of a fleet of phones, which come one
/// by one, then share a sleep.
const GATHER_AFTER: TimeSpan = TimeSpan::from_ms(20);

/// State of the shard's sleeps.
#[derive(Default)]
pub(super) struct Parking {
    /// Time of the last request.
    requested: Instant,
}

impl Parking {
    /// Notes a request: a new connection, bytes of an app server or a node, and every input of the machine but frames
    /// that ask for nothing, pongs and the passing of time.
    pub(super) fn requested(&mut self, now: Instant) {
        self.requested = now;
    }

    fn may_gather(&self, now: Instant) -> bool {
        now.since(self.requested) >= GATHER_AFTER
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Sleeps until a ring, a lane, storage or a deadline has something. May return early.
    pub(super) fn park(&mut self) {
        let until = self.next_deadline();
        if until.is_some_and(|at| at <= self.now.mono) {
            return;
        }
        let is_watching = self.plane.watch();
        if let Some(until) = until {
            self.plane.wake_at(self.now.mono, until);
        }
        self.plane.enter();
        if !is_watching {
            // An old signal may complete the new poll at once: the next turn reads it.
            return;
        }
        // From here on every sender wakes this shard; so look once more, then sleep.
        self.mailbox.waker().park();
        self.collected = self.collected.take().or_else(|| self.store.collect());
        self.heard = self.heard.take().or_else(|| self.peers.collect());
        self.answered = self.answered.take().or_else(|| self.upstreams.collect());
        let has_reply = self.collected.is_some() || self.heard.is_some() || self.answered.is_some();
        let has_news = self.hibernator.as_ref().is_some_and(|hibernator| hibernator.has_news());
        if !has_reply && !has_news && !self.mailbox.has_mail() && self.control.is_empty() {
            self.sleep();
        }
        self.mailbox.waker().unpark();
    }

    fn sleep(&mut self) {
        let gather = self.parking.may_gather(self.clock.now().mono);
        if self.plane.wait(gather) {
            self.stats.parks += 1;
            self.input_horizon.slept();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let numbers = self.unpublished.then(|| self.published.after(PUBLISH_EVERY));
        let timeouts =
            [self.machine.next_timeout(), self.next_close_deadline(), self.http.next(), self.websockets.next()];
        let open = self.conns.open_count();
        let hibernation =
            self.hibernator.as_ref().and_then(|hibernator| hibernator.next(open, self.accepting.is_over()));
        let deadlines =
            timeouts.into_iter().chain([self.accepting.next(), self.next_room_for_handshake(), hibernation, numbers]);
        deadlines.flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_gathers_when_it_had_no_request_of_late() {
        let mut parking = Parking::default();
        let last = Instant(1_000_000_000);
        parking.requested(last);
        assert!(!parking.may_gather(last) && !parking.may_gather(Instant(last.0 + GATHER_AFTER.0 - 1)));
        assert!(parking.may_gather(last.after(GATHER_AFTER)));
    }
}
