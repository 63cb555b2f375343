//! Sleeping and waking: the one place where a shard waits (ring/RULES.md).
//!
//! A *cold* shard awaits its eventfd through glommio, which costs no CPU while idle and a good deal for each wake, and
//! some allocations. A shard that is woken now and then is *warm*: it blocks in its hub ring, which polls that eventfd,
//! and spares the way through the executor. Nothing else runs on that executor, so no other task waits for it
//! meanwhile. Warm sleeps are bounded; the first that is long makes the shard cold again.

use crate::ports::Edge;
use machine::time::{Instant, TimeSpan};

use super::event_loop::PUBLISH_EVERY;
use super::{Machine, Reactor};

/// A cold sleep shorter than this speaks for a shard that has something to do.
const SHORT_SLEEP: TimeSpan = TimeSpan::from_ms(50);
/// Short sleeps in a row that make the shard warm.
const SHORT_SLEEPS_TO_WARM: u32 = 8;
/// A warm sleep ends after this. It may begin late, or end with a deadline that was armed before.
const WARM_SLEEP_MAX: TimeSpan = TimeSpan::from_secs(2);
/// A warm sleep of this length makes the shard cold.
const LONG_SLEEP: TimeSpan = TimeSpan::from_secs(1);

/// A shard that had no request for so long gathers what comes in its warm sleeps: pings of a fleet of phones, which
/// come one by one, then share a sleep.
const GATHER_AFTER: TimeSpan = TimeSpan::from_ms(20);

/// State of the shard's sleeps.
#[derive(Default)]
pub(super) struct Parking {
    warm: bool,
    /// Short sleeps in a row.
    short: u32,
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

    fn slept(&mut self, span: TimeSpan) {
        if self.warm {
            self.warm = span < LONG_SLEEP;
            self.short = 0;
        } else if span < SHORT_SLEEP {
            self.short += 1;
            self.warm = self.short >= SHORT_SLEEPS_TO_WARM;
        } else {
            self.short = 0;
        }
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Sleeps until a ring, a lane, storage or a deadline has something. May return early.
    pub(super) async fn park(&mut self) {
        let mut until = self.next_deadline();
        if until.is_some_and(|at| at <= self.now.mono) {
            return;
        }
        let prepared = if self.parking.warm {
            let bound = self.now.mono.after(WARM_SLEEP_MAX);
            until = Some(until.map_or(bound, |at| at.min(bound)));
            self.plane.warm()
        } else {
            self.plane.cold()
        };
        if let Some(until) = until {
            self.plane.wake_at(self.now.mono, until);
        }
        self.plane.enter();
        if !prepared {
            // The reply of the hub to the change comes with the next turn.
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
            self.sleep().await;
        }
        self.mailbox.waker().unpark();
    }

    async fn sleep(&mut self) {
        let before = self.clock.now().mono;
        if self.parking.warm {
            if !self.plane.wait(self.parking.may_gather(before)) {
                return;
            }
            self.stats.warm_parks += 1;
        } else {
            if !self.plane.quiet() {
                return;
            }
            self.bed.sleep().await;
            self.plane.awake();
        }
        self.stats.parks += 1;
        self.input_horizon.slept();
        self.parking.slept(self.clock.now().mono.since(before));
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
    fn short_sleeps_warm_and_one_long_one_cools() {
        let mut parking = Parking::default();
        for _ in 0..SHORT_SLEEPS_TO_WARM - 1 {
            parking.slept(TimeSpan::from_ms(0));
        }
        parking.slept(SHORT_SLEEP);
        assert!(!parking.warm, "in a row");
        (0..SHORT_SLEEPS_TO_WARM).for_each(|_| parking.slept(TimeSpan::from_ms(0)));
        assert!(parking.warm);
        parking.slept(SHORT_SLEEP);
        assert!(parking.warm, "a shard that warmed up does not cool at once");
        parking.slept(LONG_SLEEP);
        assert!(!parking.warm);
    }

    #[test]
    fn a_shard_gathers_when_it_had_no_request_of_late() {
        let mut parking = Parking::default();
        let last = Instant(1_000_000_000);
        parking.requested(last);
        assert!(!parking.may_gather(last) && !parking.may_gather(Instant(last.0 + GATHER_AFTER.0 - 1)));
        assert!(parking.may_gather(last.after(GATHER_AFTER)));
    }
}
