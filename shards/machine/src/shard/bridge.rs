//! Notifications of bridged users (ARCHITECTURE.md 8.11): the shard where the POST landed calls the service, and its
//! answer is the answer to the sender. Nothing is stored and nothing is sent again.

use std::sync::Arc;

use crate::ids::ConnId;
use crate::message::Message;
use crate::upstream::{BridgeFailure, BridgeOutcome, Bridged, UpstreamOp};

use super::command::{Disposition, Published};
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingUpstreamOp;
use super::shard_requests::answer_conn;

/// A stamped notification on its way from the owner of its user to the shard that calls the service.
#[derive(Debug)]
pub struct BridgeHandover {
    pub to: Arc<Bridged>,
    pub message: Arc<Message>,
}

/// A POST that is at the service of its user. Shard where it landed; bounded by `limits::UPSTREAM_CALLS_MAX`.
pub(super) struct BridgeCall {
    conn: ConnId,
    handover: BridgeHandover,
}

impl ShardMachine {
    /// Hands a notification to the service of its user.
    pub(super) fn call_bridge(&mut self, cx: &mut StepContext<'_>, conn: ConnId, handover: BridgeHandover) {
        let op = UpstreamOp::Bridge { to: handover.to.clone(), message: handover.message.clone() };
        let work = PendingUpstreamOp::Bridge(Box::new(BridgeCall { conn, handover }));
        if self.call_upstream(cx, work, op).is_err() {
            answer_conn(cx, conn, Published::Unavailable);
        }
    }

    /// Answers the POST with the outcome at the service.
    pub(super) fn bridge_replied(&mut self, cx: &mut StepContext<'_>, call: BridgeCall, outcome: BridgeOutcome) {
        let BridgeCall { conn, handover } = call;
        let answer = match outcome {
            BridgeOutcome::Sent => {
                Published::Accepted { stamp: handover.message.stamp, disposition: Disposition::Bridged }
            }
            BridgeOutcome::Failed(failure) => Published::NotBridged(failure),
            BridgeOutcome::Gone | BridgeOutcome::Doubted => Published::NotBridged(BridgeFailure::Configuration),
        };
        answer_conn(cx, conn, answer);
    }
}
