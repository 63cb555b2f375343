//! State of frozen sessions that the driver keeps beside their sockets.

use std::collections::BTreeMap;

use machine::ids::Uaid;

use crate::hibernation_plan::HibernationPlan;
use crate::rng::Rng;
use crate::shared::SECOND;
use crate::socket::{SessionRecord, SocketId};

/// State of frozen sessions that the driver keeps beside their sockets.
pub(crate) struct Hibernation {
    pub(crate) plan: HibernationPlan,
    pub(crate) rng: Rng,
    /// Sessions of an earlier process whose hellos were not said yet.
    pub(crate) waiting: Vec<(SocketId, SessionRecord)>,
    /// Sessions whose hello is under way, and their users.
    pub(crate) greeting: BTreeMap<SocketId, Uaid>,
    /// Earliest instant of a hello in this process.
    pub(crate) begins: u64,
    /// For the oracle: sessions that were left to the next process and that it does not serve yet.
    pub(crate) left: BTreeMap<SocketId, Uaid>,
}

impl Hibernation {
    /// Nothing is frozen yet.
    pub(crate) fn new(plan: HibernationPlan, rng: Rng) -> Hibernation {
        let (waiting, greeting, left) = Default::default();
        Hibernation { plan, rng, waiting, greeting, begins: 0, left }
    }

    /// Time that something takes. Without faults a Ping and its Pong are in time.
    pub(crate) fn delay(&mut self, calm: bool) -> u64 {
        let longest = if calm { self.plan.delay.min(SECOND / 2) } else { self.plan.delay };
        self.rng.below(longest.max(1))
    }

    /// Chance per thousand.
    pub(crate) fn may(&mut self, chance: u64, calm: bool) -> bool {
        !calm && chance > 0 && self.rng.permille(chance)
    }
}
