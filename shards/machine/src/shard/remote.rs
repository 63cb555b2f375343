//! Requests to the owner of a user, on this shard or another, and their answers.

use crate::ids::{ConnId, RequestId, ShardId, Uaid};

use super::command::{Cancelled, Event, NodeAnswer, NodeCommand, Published, SenderCommand};
use super::components::requests::{Asker, Caller, Outgoing, Waiter};
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::mail::{Mail, Reply, Request};
use super::member::MemberReply;

impl ShardMachine {
    /// Sends a request of an app server to the owner of its user.
    pub(super) fn sender_command(&mut self, turn: &mut Turn<'_>, conn: ConnId, command: SenderCommand) {
        match command {
            SenderCommand::Publish(publish) => match self.other_owner(publish.uaid) {
                None => self.publish(turn, Asker::Local(conn), *publish),
                Some(owner) => self.ask(turn, (owner, conn), Request::Publish(publish), Published::Unavailable),
            },
            SenderCommand::Cancel(cancel) => match self.other_owner(cancel.uaid) {
                None => self.cancel(turn, Asker::Local(conn), *cancel),
                Some(owner) => self.ask(turn, (owner, conn), Request::Cancel(cancel), Cancelled { done: false }),
            },
            SenderCommand::Receipt(query) => match self.other_owner(query.uaid) {
                None => self.receipt(turn, Asker::Local(conn), *query),
                Some(owner) => self.ask_receipt(turn, (owner, conn), query),
            },
        }
    }

    /// Sends a request of another node to the owner of its user.
    pub(super) fn node_command(&mut self, turn: &mut Turn<'_>, conn: ConnId, command: NodeCommand) {
        match self.other_owner(command.uaid()) {
            None => self.work_for_node(turn, Asker::Local(conn), command),
            Some(owner) => self.ask(turn, (owner, conn), Request::Node(command), NodeAnswer::Busy),
        }
    }

    /// Returns the owner of a user, unless it is this shard.
    fn other_owner(&self, uaid: Uaid) -> Option<ShardId> {
        Some(self.config.placement.owner(uaid)).filter(|owner| *owner != self.config.shard)
    }

    /// Sends the request of a connection to another shard. `refusal` is the answer if too many requests wait already.
    fn ask<A: Into<Event>>(
        &mut self,
        turn: &mut Turn<'_>,
        (owner, conn): (ShardId, ConnId),
        request: Request,
        refusal: A,
    ) {
        if !self.send_request(turn, Outgoing { peer: owner, waiter: Waiter::Conn(conn) }, request) {
            self.stats.requests_refused += 1;
            answer_conn(turn, conn, refusal);
        }
    }

    /// Sends a request or queues it for credit; false if too many wait at that peer.
    pub(super) fn send_request(&mut self, turn: &mut Turn<'_>, outgoing: Outgoing, request: Request) -> bool {
        let room = self.requests.has_room(outgoing.peer);
        if room {
            self.send_request_always(turn, outgoing, request);
        }
        room
    }

    /// Sends a request or queues it without a bound: the caller has its own bound.
    pub(super) fn send_request_always(&mut self, turn: &mut Turn<'_>, outgoing: Outgoing, request: Request) {
        let mail = self.requests.send(outgoing, request);
        self.stats.requests_sent += u64::from(mail.is_some());
        turn.effects.extend(mail);
    }

    pub(super) fn mail(&mut self, turn: &mut Turn<'_>, mail: Mail) {
        match mail {
            Mail::Request { from, id, request } => self.work_on(turn, (from, id), request),
            Mail::Reply { id, reply } => self.replied(turn, id, reply),
            Mail::Arrive(arrival) => self.mail_arrived(turn, *arrival),
            Mail::Stayed(claim) => self.stayed(turn, claim),
        }
    }

    /// Handles a request as the owner. Each arm names its caller with the type of the answer.
    fn work_on(&mut self, turn: &mut Turn<'_>, (from, id): (ShardId, RequestId), request: Request) {
        match request {
            Request::Claim(claim) => self.claimed(turn, Caller::new(from, id), *claim),
            Request::Publish(publish) => self.publish(turn, Asker::Remote(Caller::new(from, id)), *publish),
            Request::Cancel(cancel) => self.cancel(turn, Asker::Remote(Caller::new(from, id)), *cancel),
            Request::Receipt(query) => self.receipt(turn, Asker::Remote(Caller::new(from, id)), *query),
            Request::Node(command) => self.work_for_node(turn, Asker::Remote(Caller::new(from, id)), command),
            Request::Member(request) => {
                self.member_request(turn, *request);
                self.reply(turn, Caller::new(from, id), MemberReply::Taken);
            }
            Request::MemberEvent(event) => {
                let reply = self.member_event(turn, *event);
                self.reply(turn, Caller::new(from, id), reply);
            }
        }
    }

    fn work_for_node(&mut self, turn: &mut Turn<'_>, asker: Asker<NodeAnswer>, command: NodeCommand) {
        let answer = match command {
            NodeCommand::Push(push) => self.node_push(turn, *push),
            NodeCommand::Notify(notify) => self.node_notify(turn, &notify),
            NodeCommand::Disconnect(disconnect) => self.node_disconnect(turn, &disconnect),
        };
        self.answer(turn, asker, answer);
    }

    /// Answers a request of an app server or of another node, on the shard where it landed.
    pub(super) fn answer<A: Into<Reply> + Into<Event>>(&self, turn: &mut Turn<'_>, asker: Asker<A>, answer: A) {
        match asker {
            Asker::Remote(caller) => self.reply(turn, caller, answer),
            Asker::Local(conn) => answer_conn(turn, conn, answer),
        }
    }

    /// Replies to another shard.
    pub(super) fn reply<A: Into<Reply>>(&self, turn: &mut Turn<'_>, caller: Caller<A>, answer: A) {
        let reply = Mail::Reply { id: caller.id, reply: answer.into() };
        turn.effects.push_back(Effect::Mail(caller.shard, reply));
    }

    fn replied(&mut self, turn: &mut Turn<'_>, id: RequestId, reply: Reply) {
        let Some((outgoing, next)) = self.requests.close(id) else {
            self.stats.replies_stale += 1;
            return;
        };
        self.stats.requests_sent += u64::from(next.is_some());
        turn.effects.extend(next);
        match (outgoing.waiter, reply) {
            (Waiter::Conn(conn), Reply::Publish(published)) => answer_conn(turn, conn, published),
            (Waiter::Conn(conn), Reply::Cancel(cancelled)) => answer_conn(turn, conn, cancelled),
            (Waiter::Conn(conn), Reply::Receipt(answer)) => {
                self.receipts.came_back(outgoing.peer);
                answer_conn(turn, conn, answer);
            }
            (Waiter::Conn(conn), Reply::Node(answer)) => answer_conn(turn, conn, answer),
            (Waiter::Claim { conn, claim, hello }, Reply::Claim(decision)) => {
                self.claim_decided(turn, conn, outgoing.peer, claim, hello, decision);
            }
            (Waiter::Seat(conn), Reply::Member(reply)) => self.member_answered(turn, conn, reply),
            (Waiter::Nothing, Reply::Member(MemberReply::Taken)) => {}
            // Invariant: `Caller` replies to each request in its kind, and this shard made the waiter with the request.
            (Waiter::Conn(_), Reply::Claim(_) | Reply::Member(_))
            | (Waiter::Claim { .. } | Waiter::Seat(_) | Waiter::Nothing, _) => {
                unreachable!("a reply is of the kind of its request")
            }
        }
    }
}

/// Writes the answer to the request of a connection, and ends the request.
pub(super) fn answer_conn<A: Into<Event>>(turn: &mut Turn<'_>, conn: ConnId, answer: A) {
    turn.effects.push_back(Effect::Emit(conn, answer.into()));
    turn.effects.push_back(Effect::Ready(conn));
}
