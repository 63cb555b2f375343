//! Calls of servers that are not of this cluster: each reply finds the state that waits for it.
//!
//! The shard where a request landed makes its calls, so that a slow server holds no reply credit between shards.

use crate::ids::StoreTicket;
use crate::upstream::{UpstreamOp, UpstreamReply};

use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingUpstreamOp;

impl ShardMachine {
    /// Calls a server, or gives the work back: too many calls are under way, or the node stops.
    pub(super) fn call_upstream(
        &mut self,
        cx: &mut StepContext<'_>,
        work: PendingUpstreamOp,
        op: UpstreamOp,
    ) -> Result<(), PendingUpstreamOp> {
        if self.draining() || !self.upstream_calls.has_room() {
            self.stats.upstream_calls_shed += 1;
            return Err(work);
        }
        self.stats.upstream_calls += 1;
        let ticket = self.upstream_calls.begin(work);
        cx.effects.push_back(Effect::Upstream(ticket, op));
        Ok(())
    }

    /// Handles the reply of a server, or its absence.
    pub(super) fn upstream_replied(&mut self, cx: &mut StepContext<'_>, ticket: StoreTicket, reply: UpstreamReply) {
        let Some(work) = self.upstream_calls.end(ticket) else {
            self.stats.upstream_replies_stale += 1;
            return;
        };
        match (work, reply) {
            (PendingUpstreamOp::Bridge(call), UpstreamReply::Bridge(outcome)) => {
                self.bridge_replied(cx, *call, outcome)
            }
        }
    }
}
