//! Nodes that share one store (ARCHITECTURE.md 8.9). On a node that is alone only the requests of other nodes reach
//! this code, which a test or an operator may send too.
//!
//! `presence` writes to storage that a user is connected here, and finds out when that is no longer so.
//! `remote_publish` brings a POST for a user who is not here to the node that has the user. `peer_notify` makes that
//! node read storage after a message was stored for its user. `node_requests` is the other end: it handles the requests
//! of other nodes. `shard/peer.rs` is the vocabulary.

mod node_requests;
pub(super) mod pending;
mod presence;
mod remote_publish;
mod peer_notify;

use std::sync::Arc;

use crate::ids::{Clock, StoreTicket};

use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::peer::{NodeId, PeerOp, PeerReply};
use super::pending_op::{PendingPeerOp, Waiting};

impl ShardMachine {
    /// Returns true if other nodes read this storage too.
    pub(super) fn in_cluster(&self) -> bool {
        self.config.node.is_some()
    }

    /// Returns this boot of this node; `None` when it is alone.
    pub(super) fn me(&self) -> Option<&Arc<NodeId>> {
        self.config.node.as_ref()
    }

    /// Returns the next reading of the shard's clock, and persists its floor if necessary.
    pub(super) fn tick(&mut self, cx: &mut StepContext<'_>) -> Clock {
        let clock = self.clock.tick(cx.now);
        if let Some(floor) = self.clock.floor_to_persist() {
            cx.effects.push_back(Effect::ClockFloor(floor));
        }
        clock
    }

    /// Returns true, and counts it, while nothing may be stamped: requests that need a stamp are refused for the
    /// moment.
    pub(super) fn refuses_stamp(&mut self) -> bool {
        let stopped = self.clock.is_stopped();
        self.stats.stamps_refused += u64::from(stopped);
        stopped
    }

    /// Calls another node.
    fn call(&mut self, cx: &mut StepContext<'_>, work: PendingPeerOp, op: PeerOp) {
        self.stats.peer_calls += 1;
        let ticket = self.tickets.call(Waiting::Peer(work));
        cx.effects.push_back(Effect::Peer(ticket, op));
    }

    /// Handles the reply of another node, or its absence: finds the state that waits for it.
    pub(super) fn peer_replied(&mut self, cx: &mut StepContext<'_>, ticket: StoreTicket, reply: PeerReply) {
        match self.tickets.close(ticket) {
            Some(Waiting::Peer(PendingPeerOp::Push(route))) => self.push_replied(cx, route, reply),
            Some(Waiting::Peer(PendingPeerOp::Notify(notify))) => self.notify_replied(cx, notify, reply),
            Some(Waiting::Peer(PendingPeerOp::Leave { uaid, presence })) => self.left(cx, uaid, presence, reply),
            Some(Waiting::Store(_)) | None => self.stats.store_replies_stale += 1,
        }
        self.submit_deferred(cx);
    }
}
