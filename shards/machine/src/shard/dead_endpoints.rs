//! Endpoints that storage has said are dead, by the name of their subscription.

use crate::ids::{Chid, Uaid};
use crate::time::Instant;

use super::components::dead_endpoints::Epoch;
use super::composer::ShardMachine;

impl ShardMachine {
    /// Returns true if storage has lately replied that there is no such subscription. Called only if no session of the
    /// user is here to decide it.
    pub(super) fn known_dead(&mut self, now: Instant, uaid: Uaid, chid: Chid) -> bool {
        let dead = self.dead.contains(now, (uaid, chid));
        self.stats.dead_endpoint_hits += u64::from(dead);
        dead
    }

    pub(super) fn dead_epoch(&self, uaid: Uaid, chid: Chid) -> Epoch {
        self.dead.epoch(self.config.placement.subscription(uaid, chid))
    }

    pub(super) fn endpoint_died(&mut self, now: Instant, uaid: Uaid, chid: Chid, asked: Epoch) {
        self.dead.died(now, (uaid, chid), self.config.placement.subscription(uaid, chid), asked);
    }

    pub(super) fn endpoint_unregistering(&mut self, uaid: Uaid, chid: Chid) {
        self.dead.unregistering(self.config.placement.subscription(uaid, chid));
    }

    pub(super) fn endpoint_registering(&mut self, uaid: Uaid, chid: Chid) {
        self.dead.registering((uaid, chid), self.config.placement.subscription(uaid, chid));
    }
}
