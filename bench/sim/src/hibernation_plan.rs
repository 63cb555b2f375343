//! Hibernation in the plan of a world. It is drawn apart, so that the other plans stay as they are.

use crate::plan::Plan;
use crate::rng::Rng;
use crate::shared::SECOND;

/// Drawn once per seed. Chances are per thousand.
#[derive(Clone, Debug, Default)]
pub(crate) struct HibernationPlan {
    /// Chance that a turn begins with a search for silent sessions; 0 is a server that does not hibernate.
    pub(crate) searches: u64,
    /// Longest time from a frame or a segment to its thaw, nanoseconds.
    pub(crate) delay: u64,
    /// Chance that a thaw fails.
    pub(crate) thaw_fails: u64,
    /// Chance that a segment of a peer is lost.
    pub(crate) segments_lost: u64,
    /// Pings of frozen sessions are probes.
    pub(crate) probes: bool,
    /// `hibernate.dir`: frozen sessions outlive the process.
    pub(crate) outlives: bool,
    /// `drain.mode = hibernate`.
    pub(crate) drains: bool,
    /// Chance that a record cannot be written.
    pub(crate) unrecorded: u64,
    /// Chance that a user agent leaves, or comes back by a new connection, while no process is there.
    pub(crate) leavers: u64,
}

impl HibernationPlan {
    /// The plan of a seed: one world in three hibernates.
    pub(crate) fn draw(plan: &Plan, rng: &mut Rng) -> HibernationPlan {
        if plan.busy || plan.crowd.is_some() || rng.below(3) > 0 {
            return HibernationPlan::default();
        }
        HibernationPlan {
            searches: rng.pick(&[20, 60, 200]),
            delay: rng.pick(&[1, SECOND / 20, SECOND / 2, 4 * SECOND]),
            thaw_fails: rng.pick(&[0, 0, 100, 500]),
            segments_lost: rng.pick(&[0, 0, 100, 500]),
            probes: rng.permille(500),
            outlives: rng.permille(750),
            drains: rng.permille(600),
            unrecorded: rng.pick(&[0, 0, 300]),
            leavers: rng.pick(&[0, 200, 600]),
        }
    }
}
