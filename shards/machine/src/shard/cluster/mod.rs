//! Nodes that share one store (ARCHITECTURE.md 8.9). On a node that is alone only the requests of other nodes reach
//! this code, which a test or an operator may send too.
//!
//! `presence` writes to storage that a user is connected here, and finds out when that is no longer so. `route` brings
//! a POST for a user who is not here to the node that has the user. `tell` makes that node read storage after a message
//! was stored for its user. `foreign` is the other end: it handles the requests of other nodes. `shard/peer.rs` is the
//! vocabulary.

mod foreign;
pub(super) mod pending;
mod presence;
mod route;
mod tell;

use std::sync::Arc;

use crate::ids::{Clock, StoreTicket};

use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::peer::{NodeId, PeerOp, PeerReply};
use super::work::{PeerWork, Waiting};

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
    pub(super) fn tick(&mut self, turn: &mut Turn<'_>) -> Clock {
        let clock = self.clock.tick(turn.now);
        if let Some(floor) = self.clock.floor_to_persist() {
            turn.effects.push_back(Effect::ClockFloor(floor));
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
    fn call(&mut self, turn: &mut Turn<'_>, work: PeerWork, op: PeerOp) {
        self.stats.peer_calls += 1;
        let ticket = self.tickets.call(Waiting::Peer(work));
        turn.effects.push_back(Effect::Peer(ticket, op));
    }

    /// Handles the reply of another node, or its absence: finds the state that waits for it.
    pub(super) fn peer_replied(&mut self, turn: &mut Turn<'_>, ticket: StoreTicket, reply: PeerReply) {
        match self.tickets.close(ticket) {
            Some(Waiting::Peer(PeerWork::Push(route))) => self.pushed(turn, route, reply),
            Some(Waiting::Peer(PeerWork::Tell(tale))) => self.told(turn, tale, reply),
            Some(Waiting::Peer(PeerWork::Leave { uaid, presence })) => self.left(turn, uaid, presence, reply),
            Some(Waiting::Store(_)) | None => self.stats.store_replies_stale += 1,
        }
        self.submit_backlog(turn);
    }
}
