//! Path of each node to the store. Operations of one user of one node take effect in their order.

use machine::ids::StoreTicket;
use machine::{StoreError, StoreOp, StoreReply};

use super::parts::{Reply, Work};
use super::world::Bridges;
use crate::shared::{Late, SECOND, Verdict, first_of_each};

impl Bridges {
    pub(super) fn submit(&mut self, at: (usize, usize), ticket: StoreTicket, op: StoreOp) {
        let ready_at = self.now + self.rng.store.below(self.plan.store_delay + 1);
        self.works.push(Work { at, ticket, op, ready_at });
    }

    /// An operation takes effect, or fails.
    pub(super) fn work(&mut self, at: usize) -> Verdict {
        let Work { at, ticket, op, .. } = self.works.remove(at);
        let faults = self.plan.faults.clone();
        let uaid = op.uaid();
        let result = if self.rng.store.permille(faults.store_error) {
            self.marks.hit("store: failed without effect");
            Err(StoreError::Transient)
        } else if is_version(&op) && self.rng.store.permille(faults.store_late) {
            let at = self.now + self.rng.store.below(20 * SECOND);
            self.late.push(Late { at, op });
            Err(StoreError::Transient)
        } else {
            let reply = self.effect(&op)?;
            if self.rng.store.permille(faults.store_reply_lost) {
                self.marks.hit("store: failed after success");
                Err(StoreError::Transient)
            } else {
                reply
            }
        };
        self.replies.push(Reply { at, uaid, ticket, result });
        Ok(())
    }

    pub(super) fn lands_late(&mut self, at: usize) -> Verdict {
        let Late { op, .. } = self.late.swap_remove(at);
        self.marks.hit("store: landed late");
        self.effect(&op).map(drop)
    }

    /// An operation is carried out, and the oracle looks at what it has changed.
    fn effect(&mut self, op: &StoreOp) -> Result<Result<StoreReply, StoreError>, String> {
        self.log(None, format_args!("takes effect: {op:?}"));
        let reply = self.apply_broken(op);
        self.user_changed(op)?;
        Ok(reply)
    }

    /// A node is gone: of the operations of each user some first ones take effect.
    pub(super) fn works_cut(&mut self, n: usize) -> Verdict {
        self.replies.retain(|reply| reply.at.0 != n);
        let (cut, rest): (Vec<Work>, Vec<Work>) =
            std::mem::take(&mut self.works).into_iter().partition(|work| work.at.0 == n);
        self.works = rest;
        let (done, _) = first_of_each(cut, |work| work.op.uaid(), || !self.rng.store.permille(500));
        for work in done {
            let _ = self.effect(&work.op)?;
        }
        Ok(())
    }
}

/// A write that is settled by its version, whenever it comes.
fn is_version(op: &StoreOp) -> bool {
    matches!(
        op,
        StoreOp::SetBridge { .. }
            | StoreOp::MarkRefused { .. }
            | StoreOp::ClearRefused { .. }
            | StoreOp::DropBridged { .. }
    )
}
