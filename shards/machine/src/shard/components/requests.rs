//! Requests to other shards under reply credit: which are open, which wait, and who gets each reply.
//!
//! A request goes out only while fewer than the credit are outstanding at that peer, so both lanes of the
//! exchange always have room; the others wait here, oldest first.

use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::ids::{Claim, ConnId, RequestId, ShardId};
use crate::limits;

use super::super::command::Hello;
use super::super::input::Effect;
use super::super::mail::{Mail, Request};
use super::super::slab::{Slab, SlabKey};

/// A request of another shard that this shard works on. It is answered with an `A`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Caller<A> {
    pub shard: ShardId,
    pub id: RequestId,
    answer: PhantomData<A>,
}

impl<A> Caller<A> {
    /// The request `id` of `shard`.
    pub fn new(shard: ShardId, id: RequestId) -> Caller<A> {
        Caller { shard, id, answer: PhantomData }
    }
}

/// Receiver of an answer of type `A`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum ReplyTo<A> {
    /// A connection of this shard.
    Local(ConnId),
    /// Another shard.
    Remote(Caller<A>),
}

/// Receiver of the reply to a request of this shard.
pub(in crate::shard) enum Waiter {
    /// The request of an app server or of another node.
    Conn(ConnId),
    /// A socket with a hello of another shard's user. The hello goes with the socket.
    Claim { conn: ConnId, claim: Claim, hello: Box<Hello> },
    /// Words of a virtual connection.
    Seat(ConnId),
    /// No state waits for it.
    Nothing,
}

/// A request of this shard at another shard, or waiting for credit.
pub(in crate::shard) struct OutgoingRequest {
    pub peer: ShardId,
    pub waiter: Waiter,
}

/// Outstanding requests of one shard.
pub(in crate::shard) struct Requests {
    shard: ShardId,
    open: Slab<OutgoingRequest>,
    peers: Vec<ShardCredit>,
    credit: usize,
    claims: u64,
}

#[derive(Default)]
struct ShardCredit {
    /// `outstanding <= credit`.
    outstanding: usize,
    waiting: VecDeque<(RequestId, Request)>,
}

impl Requests {
    /// Requests of `shard`, one of `shard_count`.
    pub fn new(shard: ShardId, shard_count: u16) -> Requests {
        Requests {
            shard,
            open: Slab::new(),
            peers: (0..shard_count).map(|_| ShardCredit::default()).collect(),
            credit: limits::reply_credit(shard_count),
            claims: 0,
        }
    }

    /// No request is open.
    pub fn idle(&self) -> bool {
        self.open.is_empty()
    }

    /// A name for the next claim of this shard.
    pub fn name_claim(&mut self) -> Claim {
        self.claims += 1;
        Claim::new(self.shard, self.claims)
    }

    /// Returns true if one more request may wait for credit at that peer.
    pub fn has_room(&mut self, peer: ShardId) -> bool {
        self.peer(peer).waiting.len() < limits::CREDIT_WAITERS_MAX
    }

    /// Opens a request. Returns the mail, or `None` when it waits for credit.
    pub fn send(&mut self, outgoing: OutgoingRequest, request: Request) -> Option<Effect> {
        let (to, credit, from) = (outgoing.peer, self.credit, self.shard);
        let at = self.open.insert(outgoing);
        let id = RequestId { index: at.index, generation: at.generation };
        let peer = self.peer(to);
        if peer.outstanding >= credit {
            peer.waiting.push_back((id, request));
            return None;
        }
        peer.outstanding += 1;
        Some(Effect::Mail(to, Mail::Request { from, id, request }))
    }

    /// Closes the request that a reply names. Returns it, and the mail that its credit lets out. `None` when there is
    /// no such request.
    pub fn close(&mut self, id: RequestId) -> Option<(OutgoingRequest, Option<Effect>)> {
        let outgoing = self.open.remove(SlabKey { index: id.index, generation: id.generation })?;
        let (to, from) = (outgoing.peer, self.shard);
        let peer = self.peer(to);
        assert!(peer.outstanding > 0, "a reply answers a request that had credit");
        let next = match peer.waiting.pop_front() {
            Some((id, request)) => Some(Effect::Mail(to, Mail::Request { from, id, request })),
            None => {
                peer.outstanding -= 1;
                None
            }
        };
        Some((outgoing, next))
    }

    fn peer(&mut self, peer: ShardId) -> &mut ShardCredit {
        // Invariant: shard ids come from the placement, which has as many slices as there are peers here.
        self.peers.get_mut(usize::from(peer.0)).expect("a shard of this process")
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::command::{NodeCommand, NodeDisconnect};
    use super::*;
    use crate::ids::Uaid;
    use proptest::prelude::*;

    fn request(n: u64) -> Request {
        Request::Node(NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid: Uaid([0; 16]), connected_at: n })))
    }

    fn sent(effect: Option<Effect>) -> Option<(RequestId, u64)> {
        match effect {
            Some(Effect::Mail(_, Mail::Request { id, request: Request::Node(NodeCommand::Disconnect(of)), .. })) => {
                Some((id, of.connected_at))
            }
            _ => None,
        }
    }

    proptest! {
        /// Requests go out in their order, at most the credit of them at a time, and each is closed once.
        #[test]
        fn requests_go_out_in_order_within_the_credit(ops in prop::collection::vec(any::<bool>(), 0..3_000)) {
            let mut requests = Requests::new(ShardId(0), 200);
            let (peer, credit) = (ShardId(3), limits::reply_credit(200));
            let mut open: VecDeque<RequestId> = VecDeque::new();
            let (mut opened, mut went, mut closed) = (0, 0, 0);
            for send in ops {
                let out = if send && requests.has_room(peer) {
                    opened += 1;
                    sent(requests.send(OutgoingRequest { peer, waiter: Waiter::Nothing }, request(opened - 1)))
                } else if let Some(id) = open.pop_front() {
                    closed += 1;
                    let (outgoing, next) = requests.close(id).unwrap();
                    prop_assert_eq!(outgoing.peer, peer);
                    prop_assert!(requests.close(id).is_none());
                    sent(next)
                } else {
                    None
                };
                if let Some((id, number)) = out {
                    prop_assert_eq!(number, went);
                    went += 1;
                    open.push_back(id);
                }
                prop_assert!(open.len() <= credit);
                prop_assert!(went == opened || open.len() == credit);
                prop_assert_eq!(requests.idle(), opened == closed);
            }
        }
    }
}
