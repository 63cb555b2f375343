//! Sleeping and waking: the one place where a shard waits (DESIGN.md 4.1).
//!
//! Today always on the shard's eventfd through glommio, which costs no CPU while idle. Adaptive parking comes
//! inside [`Reactor::park`]: blocked in the hub, which then polls that eventfd.

use crate::ports::Edge;
use crate::time::Instant;

use super::turn::PUBLISH_EVERY;
use super::{Machine, Reactor};

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Sleeps until a ring, a lane, storage or a deadline has something. May return early.
    pub(super) async fn park(&mut self) {
        let until = self.next_deadline();
        if until.is_some_and(|at| at <= self.now.mono) {
            return;
        }
        if let Some(until) = until {
            self.plane.wake_at(self.now.mono, until);
            self.plane.enter();
        }
        // From here on whoever leaves something for us wakes us; so look once more, then sleep.
        self.mailbox.waker().park();
        self.collected = self.collected.take().or_else(|| self.store.collect());
        let quiet = self.collected.is_none() && !self.mailbox.has_mail() && self.control.is_empty();
        if quiet && self.plane.quiet() {
            self.stats.parks += 1;
            self.bed.sleep().await;
            self.plane.awake();
        }
        self.mailbox.waker().unpark();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let numbers = self.unpublished.then(|| self.published.after(PUBLISH_EVERY));
        let deadlines =
            [self.machine.next_timeout(), self.next_goodbye(), self.http.next(), self.accepting.next(), numbers];
        deadlines.into_iter().flatten().min()
    }
}
