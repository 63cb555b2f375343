//! Sizes and faults of one seed's world.

use crate::rng::Rng;
use crate::shared::SECOND;

/// Drawn once per seed. Chances are per thousand draws of the thing they speak of; 0 is off.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) steps: u64,
    /// One, or two that share the store.
    pub(super) nodes: usize,
    /// Shards of each node.
    pub(super) shards: u16,
    pub(super) phones: usize,
    /// Chance of an outside action although something is deliverable.
    pub(super) eagerness: u64,
    /// Longest time of an operation of storage, nanoseconds.
    pub(super) store_delay: u64,
    /// Longest time of a call of the service, nanoseconds.
    pub(super) service_delay: u64,
    /// Distance of each clock from the right time at most, microseconds.
    pub(super) skew_us: u64,
    /// Chance that a phone acts while another request of it is under way.
    pub(super) impatience: u64,
    /// Chance that the service answers otherwise than it usually does for a device.
    pub(super) whims: u64,
    pub(super) faults: Faults,
}

/// Chance of each fault.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// A storage operation fails without effect.
    pub(super) store_error: u64,
    /// A storage operation takes effect and is said to have failed.
    pub(super) store_reply_lost: u64,
    /// A storage operation fails and takes effect later.
    pub(super) store_late: u64,
    /// The service answers a call a second time.
    pub(super) answered_twice: u64,
    /// A node dies.
    pub(super) kill: u64,
    /// A node is told to stop.
    pub(super) stop: u64,
    /// A shard stands still for some seconds.
    pub(super) stall: u64,
    /// A clock is set, within the allowed skew.
    pub(super) clock_set: u64,
    /// The guard becomes active.
    pub(super) guard: u64,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let faulty = rng.permille(800);
        let nodes = if rng.permille(400) { 2 } else { 1 };
        let mut chance = |of: &[u64]| if faulty { rng.pick(of) } else { 0 };
        let faults = Faults {
            store_error: chance(&[0, 10, 60]),
            store_reply_lost: chance(&[0, 10, 60]),
            // A database of several nodes settles late writes by their versions; the embedded store has none.
            store_late: if nodes > 1 { chance(&[0, 10, 60]) } else { 0 },
            answered_twice: chance(&[0, 20]),
            kill: chance(&[0, 2, 8]),
            stop: chance(&[0, 0, 4]),
            stall: chance(&[0, 5, 20]),
            clock_set: chance(&[0, 0, 10]),
            guard: chance(&[0, 5, 20]),
        };
        Plan {
            steps: rng.between(300, 900),
            nodes,
            shards: rng.between(1, 3) as u16,
            phones: rng.between(1, 4) as usize,
            eagerness: rng.between(50, 500),
            store_delay: rng.pick(&[0, SECOND / 10, 3 * SECOND]),
            service_delay: rng.pick(&[SECOND / 10, 5 * SECOND, 5 * SECOND]),
            skew_us: rng.pick(&[0, 0, 1_000_000, 15_000_000]),
            impatience: rng.pick(&[0, 200, 600]),
            whims: rng.pick(&[0, 100, 300]),
            faults,
        }
    }
}
