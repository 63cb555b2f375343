//! Calls of servers that are not of this cluster: each reply finds the state that waits for it.
//!
//! The shard where a request landed makes its calls, so that a slow server holds no reply credit between shards.

use std::sync::Arc;

use crate::ids::{ConnId, StoreTicket};
use crate::upstream::{ForwardCall, ForwardOutcome, UpstreamOp, UpstreamReply};

use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingUpstreamOp;
use super::shard_replies::answer_conn;

impl ShardMachine {
    /// Calls a server, or gives the work back: too many calls are under way, or the node stops.
    pub(super) fn call_upstream(
        &mut self,
        cx: &mut StepContext<'_>,
        work: PendingUpstreamOp,
        op: UpstreamOp,
    ) -> Result<(), PendingUpstreamOp> {
        // Its calls must not take the places of other users.
        let user = match &op {
            UpstreamOp::Bridge { message, .. } => Some(message.uaid),
            UpstreamOp::Forward(_) => None,
        };
        if self.draining() || !self.upstream_calls.has_room(user) {
            self.stats.upstream_calls_shed += 1;
            return Err(work);
        }
        self.stats.upstream_calls += 1;
        let ticket = self.upstream_calls.begin(user, work);
        cx.effects.push_back(Effect::Upstream(ticket, op));
        Ok(())
    }

    /// Calls the target of a forward endpoint. It concerns no user, so no other shard has a part in it.
    pub(super) fn call_target(&mut self, cx: &mut StepContext<'_>, conn: ConnId, call: Arc<ForwardCall>) {
        if self.call_upstream(cx, PendingUpstreamOp::Forward(conn), UpstreamOp::Forward(call)).is_err() {
            answer_conn(cx, conn, ForwardOutcome::Unavailable);
        }
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
            (PendingUpstreamOp::Forward(conn), UpstreamReply::Forward(outcome)) => answer_conn(cx, conn, outcome),
            // Invariant: a port answers each call with the reply that its variant names.
            (PendingUpstreamOp::Bridge(_), UpstreamReply::Forward(_))
            | (PendingUpstreamOp::Forward(_), UpstreamReply::Bridge(_)) => {
                unreachable!("a reply is of the kind of its call")
            }
        }
    }
}
