//! Deletes of rows that ended: one operation for all rows of a user, at the end of a step.
//!
//! Until a delete is confirmed its stamp is remembered per UAID, so that no read returns the row.

use crate::ids::{Clock, Uaid};

use super::components::settling::Settled;
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::store::StoreOp;

impl ShardMachine {
    /// Submits the queued settles of this step, one operation per user.
    pub(super) fn submit_settles(&mut self, cx: &mut StepContext<'_>) {
        while let Some(uaid) = self.settling.next_named() {
            self.settle_next(cx, uaid);
        }
    }

    fn settle_next(&mut self, cx: &mut StepContext<'_>, uaid: Uaid) {
        // Settles that are at storage go first: their answer calls this again.
        let Some(rows) = self.settling.begin(uaid) else { return };
        let work = PendingOp::Settle { uaid, count: rows.len() };
        let low_water = self.raise_low_water(uaid);
        self.submit(cx, work, StoreOp::Settle { rows, low_water, durable: false });
    }

    /// Returns a settled mark that has risen, to ride with a delete: it costs no write of its own.
    fn raise_low_water(&mut self, uaid: Uaid) -> Option<Clock> {
        let Some(Resident::Session(index)) = self.resident(uaid) else { return None };
        let active = self.sessions.at(index)?.1.active;
        let low_water = self.active_of_mut(active)?.raise_low_water()?;
        self.stats.low_water_raised += 1;
        Some(low_water)
    }

    pub(super) fn settled(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, count: usize, done: bool) {
        match self.settling.answered(uaid, count, done) {
            Settled::Done => {}
            Settled::More => self.settle_next(cx, uaid),
            Settled::Again(rows) => {
                let op = StoreOp::Settle { rows, low_water: None, durable: false };
                self.submit_later(cx, PendingOp::Settle { uaid, count }, op);
            }
        }
    }
}
