//! Requests to other shards under reply credit, and answers to whoever asked (DESIGN.md 5, lanes).
//!
//! A request goes out only while fewer than the credit are outstanding at that peer, so both lanes of the
//! exchange always have room; the others wait here, oldest first.

use std::collections::VecDeque;

use crate::ids::{Claim, ConnId, RequestId, ShardId, Uaid};
use crate::limits;

use super::command::{Command, Event, Hello, NodeAnswer, Published};
use super::input::Effect;
use super::mail::{Mail, Reply, Request};
use super::relay::MemberReply;
use super::slab::{Ref, Slab};
use super::{ShardMachine, Turn};

/// Who gets the answer to a request that this shard works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A connection of this shard.
    Local(ConnId),
    /// A request of another shard.
    Remote(ShardId, RequestId),
}

/// A request of ours at another shard, or waiting for credit.
pub(super) struct Outgoing {
    pub peer: ShardId,
    pub conn: ConnId,
    /// Set for a claim: its name, and the hello that goes with the socket.
    pub claim: Option<(Claim, Box<Hello>)>,
}

impl Outgoing {
    /// A request on behalf of no connection.
    pub fn to(peer: ShardId) -> Outgoing {
        Outgoing { peer, conn: ConnId { slot: u32::MAX, generation: u32::MAX }, claim: None }
    }
}

/// Outstanding requests of one shard.
pub(super) struct Requests {
    open: Slab<Outgoing>,
    peers: Vec<Peer>,
    credit: usize,
}

#[derive(Default)]
struct Peer {
    /// `outstanding <= credit`.
    outstanding: usize,
    waiting: VecDeque<(RequestId, Request)>,
}

impl Requests {
    pub fn new(shard_count: u16) -> Requests {
        Requests {
            open: Slab::new(),
            peers: (0..shard_count).map(|_| Peer::default()).collect(),
            credit: limits::reply_credit(shard_count),
        }
    }

    pub fn idle(&self) -> bool {
        self.open.is_empty()
    }

    fn peer(&mut self, peer: ShardId) -> &mut Peer {
        // Invariant: shard ids come from the placement, which has as many slices as there are peers here.
        self.peers.get_mut(usize::from(peer.0)).expect("a shard of this process")
    }
}

impl ShardMachine {
    /// Asks the owner of `uaid`: this shard itself, or another one. `refuse` is answered when too many wait already.
    pub(super) fn ask(&mut self, turn: &mut Turn<'_>, conn: ConnId, uaid: Uaid, request: Request, refuse: Reply) {
        let owner = self.config.placement.owner(uaid);
        if owner == self.config.shard {
            self.work_on(turn, Asker::Local(conn), request);
        } else if !self.send_request(turn, Outgoing { peer: owner, conn, claim: None }, request) {
            self.stats.requests_refused += 1;
            self.answer(turn, Asker::Local(conn), refuse);
        }
    }

    /// Sends a request or queues it for credit; false when too many wait at that peer.
    pub(super) fn send_request(&mut self, turn: &mut Turn<'_>, outgoing: Outgoing, request: Request) -> bool {
        let room = self.requests.peer(outgoing.peer).waiting.len() < limits::CREDIT_WAITERS_MAX;
        if room {
            self.send_request_always(turn, outgoing, request);
        }
        room
    }

    /// Sends a request or queues it, however many wait: whoever calls this has a bound of its own.
    pub(super) fn send_request_always(&mut self, turn: &mut Turn<'_>, outgoing: Outgoing, request: Request) {
        let (to, credit) = (outgoing.peer, self.requests.credit);
        let at = self.requests.open.insert(outgoing);
        let id = RequestId { index: at.index, generation: at.generation };
        let from = self.config.shard;
        let peer = self.requests.peer(to);
        if peer.outstanding < credit {
            peer.outstanding += 1;
            self.stats.requests_sent += 1;
            turn.effects.push_back(Effect::Mail(to, Mail::Request { from, id, request }));
        } else {
            peer.waiting.push_back((id, request));
        }
    }

    pub(super) fn mail(&mut self, turn: &mut Turn<'_>, mail: Mail) {
        match mail {
            Mail::Request { from, id, request } => self.work_on(turn, Asker::Remote(from, id), request),
            Mail::Reply { id, reply } => self.replied(turn, id, reply),
            Mail::Arrive(arrival) => self.mail_arrived(turn, *arrival),
            Mail::Stayed(claim) => self.stayed(turn, claim),
        }
    }

    /// The owner's side of a request.
    fn work_on(&mut self, turn: &mut Turn<'_>, asker: Asker, request: Request) {
        match request {
            Request::Claim(claim) => self.claimed(turn, asker, *claim),
            Request::Publish(publish) => self.publish(turn, asker, *publish),
            Request::Cancel(cancel) => self.cancel(turn, asker, *cancel),
            Request::Receipt(query) => self.receipt(turn, asker, *query),
            Request::NodePush(push) => self.node_push(turn, asker, *push),
            Request::NodeNotify(notify) => self.node_notify(turn, asker, &notify),
            Request::NodeDisconnect(whom) => self.node_disconnect(turn, asker, whom.0, whom.1),
            Request::Member(request) => {
                self.member_request(turn, *request);
                self.answer(turn, asker, Reply::Member(MemberReply::Taken));
            }
            Request::MemberEvent(event) => {
                let reply = self.member_event(turn, *event);
                self.answer(turn, asker, Reply::Member(reply));
            }
        }
    }

    /// Answers a request, wherever it came from.
    pub(super) fn answer(&mut self, turn: &mut Turn<'_>, asker: Asker, reply: Reply) {
        match asker {
            Asker::Remote(peer, id) => turn.effects.push_back(Effect::Mail(peer, Mail::Reply { id, reply })),
            Asker::Local(conn) => {
                let event = match reply {
                    Reply::Publish(published) => Event::Published(published),
                    Reply::Cancel(done) => Event::Cancelled { done },
                    Reply::Receipt(answer) => Event::Receipt(answer),
                    Reply::Node(answer) => Event::NodeAnswer(answer),
                    // A hello of our own slice is answered by its greeting, never through here.
                    Reply::Claim(_) => return,
                    // Home and owner in one shard answer each other without mail.
                    Reply::Member(_) => return,
                };
                turn.effects.push_back(Effect::Emit(conn, event));
                turn.effects.push_back(Effect::Ready(conn));
            }
        }
    }

    fn replied(&mut self, turn: &mut Turn<'_>, id: RequestId, reply: Reply) {
        let at = Ref { index: id.index, generation: id.generation };
        let Some(outgoing) = self.requests.open.remove(at) else {
            self.stats.replies_stale += 1;
            return;
        };
        self.return_credit(turn, outgoing.peer);
        if matches!(reply, Reply::Receipt(_)) {
            self.receipts.came_back(outgoing.peer);
        }
        match (reply, outgoing.claim) {
            (Reply::Claim(decision), Some((claim, hello))) => {
                self.claim_decided(turn, outgoing.conn, outgoing.peer, claim, hello, decision);
            }
            (Reply::Member(reply), _) => self.member_answered(turn, outgoing.conn, reply),
            (reply, _) => self.answer(turn, Asker::Local(outgoing.conn), reply),
        }
    }

    fn return_credit(&mut self, turn: &mut Turn<'_>, to: ShardId) {
        let from = self.config.shard;
        let peer = self.requests.peer(to);
        assert!(peer.outstanding > 0, "a reply answers a request that had credit");
        match peer.waiting.pop_front() {
            Some((id, request)) => {
                self.stats.requests_sent += 1;
                turn.effects.push_back(Effect::Mail(to, Mail::Request { from, id, request }));
            }
            None => peer.outstanding -= 1,
        }
    }

    /// A command of an HTTP exchange: to the owner.
    pub(super) fn http_command(&mut self, turn: &mut Turn<'_>, conn: ConnId, command: Command) {
        let busy = Reply::Node(NodeAnswer::Busy);
        match command {
            Command::Publish(publish) => {
                let refuse = Reply::Publish(Published::Unavailable);
                self.ask(turn, conn, publish.uaid, Request::Publish(publish), refuse);
            }
            Command::Cancel(cancel) => {
                self.ask(turn, conn, cancel.uaid, Request::Cancel(cancel), Reply::Cancel(false));
            }
            Command::Receipt(query) => self.ask_receipt(turn, conn, query),
            Command::NodePush(push) => self.ask(turn, conn, push.message.uaid, Request::NodePush(push), busy),
            Command::NodeNotify(notify) => self.ask(turn, conn, notify.uaid, Request::NodeNotify(notify), busy),
            Command::NodeDisconnect { uaid, connected_at } => {
                self.ask(turn, conn, uaid, Request::NodeDisconnect(Box::new((uaid, connected_at))), busy);
            }
            Command::Hello(_)
            | Command::Relay(_)
            | Command::Register { .. }
            | Command::Unregister { .. }
            | Command::Ack(_)
            | Command::AckVersions(_)
            | Command::Nack { .. }
            | Command::BroadcastSubscribe(_)
            | Command::Ping
            | Command::Pong => self.session_command(turn, conn, command),
        }
    }
}
