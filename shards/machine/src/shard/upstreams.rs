//! Calls of the services of bridged users: each reply finds the state that waits for it.
//!
//! The shard where a request landed makes its calls, so that a slow service holds no reply credit between shards.

use crate::ids::StoreTicket;
use crate::upstream::{BridgeOutcome, UpstreamOp};

use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_bridge::BridgeCall;

impl ShardMachine {
    /// Calls a service. Returns false if too many calls are under way, or the node stops.
    pub(super) fn call_upstream(&mut self, cx: &mut StepContext<'_>, work: Box<BridgeCall>, op: UpstreamOp) -> bool {
        let user = op.message.uaid;
        // Its calls must not take the places of other users.
        if self.draining() || !self.upstream_calls.has_room(user) {
            self.stats.upstream_calls_shed += 1;
            return false;
        }
        self.stats.upstream_calls += 1;
        let ticket = self.upstream_calls.begin(user, work);
        cx.effects.push_back(Effect::Upstream(ticket, op));
        true
    }

    /// Handles the reply of a service, or its absence.
    pub(super) fn upstream_replied(&mut self, cx: &mut StepContext<'_>, ticket: StoreTicket, outcome: BridgeOutcome) {
        match self.upstream_calls.end(ticket) {
            Some(call) => self.bridge_replied(cx, *call, outcome),
            None => self.stats.upstream_replies_stale += 1,
        }
    }
}
