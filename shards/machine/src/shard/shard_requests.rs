//! Requests to the owner of a user, on this shard or another, and their answers.

use crate::ids::{ConnId, RequestId, ShardId, Uaid};

use super::command::{
    Cancelled, Event, NodeAnswer, NodeCommand, Published, RegistrationAnswer, RegistrationCommand, SenderCommand,
};
use super::components::requests::{Caller, OutgoingRequest, ReplyTo, Waiter};
use super::composer::{ShardMachine, StepContext};
use super::handover::{DeviceReport, DeviceVerdict};
use super::input::Effect;
use super::mail::{Mail, Reply, Request};
use super::member::MemberReply;

impl ShardMachine {
    /// Sends a request of an app server to the owner of its user.
    pub(super) fn sender_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: SenderCommand) {
        match command {
            SenderCommand::Publish(publish) => match self.other_owner(publish.uaid) {
                None => self.publish(cx, ReplyTo::Local(conn), *publish),
                Some(owner) => self.ask(cx, (owner, conn), Request::Publish(publish), Published::Unavailable),
            },
            SenderCommand::Cancel(cancel) => match self.other_owner(cancel.uaid) {
                None => self.cancel(cx, ReplyTo::Local(conn), *cancel),
                Some(owner) => self.ask(cx, (owner, conn), Request::Cancel(cancel), Cancelled { done: false }),
            },
            SenderCommand::Receipt(query) => match self.other_owner(query.uaid) {
                None => self.receipt(cx, ReplyTo::Local(conn), *query),
                Some(owner) => self.ask_receipt(cx, (owner, conn), query),
            },
            SenderCommand::Forward(call) => self.call_target(cx, conn, call),
        }
    }

    /// Sends a call of the registration API to the owner of its user.
    pub(super) fn registration_command(
        &mut self,
        cx: &mut StepContext<'_>,
        conn: ConnId,
        command: Box<RegistrationCommand>,
    ) {
        match self.other_owner(command.uaid) {
            None => self.registration(cx, ReplyTo::Local(conn), *command),
            Some(owner) => {
                self.ask(cx, (owner, conn), Request::Registration(command), RegistrationAnswer::Unavailable);
            }
        }
    }

    /// Tells the owner of a user the verdict of the service on its device.
    pub(super) fn device_report_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, report: DeviceReport) {
        match self.other_owner(report.uaid) {
            None => self.device_reported(cx, ReplyTo::Local(conn), report),
            Some(owner) => {
                let unheard = match report.verdict {
                    // The service took the notification, so it is accepted even if the mark stays.
                    DeviceVerdict::Taken { stamp, .. } => Published::bridged(stamp),
                    DeviceVerdict::Doubted { .. } | DeviceVerdict::Ended => Published::Unavailable,
                };
                self.ask(cx, (owner, conn), Request::DeviceReport(Box::new(report)), unheard);
            }
        }
    }

    /// Sends a request of another node to the owner of its user.
    pub(super) fn node_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: NodeCommand) {
        match self.other_owner(command.uaid()) {
            None => self.work_for_node(cx, ReplyTo::Local(conn), command),
            Some(owner) => self.ask(cx, (owner, conn), Request::Node(command), NodeAnswer::Busy),
        }
    }

    /// Returns the owner of a user, unless it is this shard.
    fn other_owner(&self, uaid: Uaid) -> Option<ShardId> {
        Some(self.config.placement.owner(uaid)).filter(|owner| *owner != self.config.shard)
    }

    /// Sends the request of a connection to another shard. `refusal` is the answer if too many requests wait already.
    fn ask<A: Into<Event>>(
        &mut self,
        cx: &mut StepContext<'_>,
        (owner, conn): (ShardId, ConnId),
        request: Request,
        refusal: A,
    ) {
        if !self.send_request(cx, OutgoingRequest { peer: owner, waiter: Waiter::Conn(conn) }, request) {
            self.stats.requests_refused += 1;
            answer_conn(cx, conn, refusal);
        }
    }

    /// Sends a request or queues it for credit; false if too many wait at that peer.
    pub(super) fn send_request(
        &mut self,
        cx: &mut StepContext<'_>,
        outgoing: OutgoingRequest,
        request: Request,
    ) -> bool {
        let room = self.requests.has_room(outgoing.peer);
        if room {
            self.send_request_always(cx, outgoing, request);
        }
        room
    }

    /// Sends a request or queues it without a bound: the caller has its own bound.
    pub(super) fn send_request_always(
        &mut self,
        cx: &mut StepContext<'_>,
        outgoing: OutgoingRequest,
        request: Request,
    ) {
        let mail = self.requests.send(outgoing, request);
        self.stats.requests_sent += u64::from(mail.is_some());
        cx.effects.extend(mail);
    }

    pub(super) fn mail(&mut self, cx: &mut StepContext<'_>, mail: Mail) {
        match mail {
            Mail::Request { from, id, request } => self.work_on(cx, (from, id), request),
            Mail::Reply { id, reply } => self.replied(cx, id, reply),
            Mail::Arrive(arrival) => self.mail_arrived(cx, *arrival),
            Mail::Stayed(claim) => self.stayed(cx, claim),
        }
    }

    /// Handles a request as the owner. Each arm names its caller with the type of the answer.
    fn work_on(&mut self, cx: &mut StepContext<'_>, (from, id): (ShardId, RequestId), request: Request) {
        match request {
            Request::Claim(claim) => self.claimed(cx, Caller::new(from, id), *claim),
            Request::Publish(publish) => self.publish(cx, ReplyTo::Remote(Caller::new(from, id)), *publish),
            Request::Cancel(cancel) => self.cancel(cx, ReplyTo::Remote(Caller::new(from, id)), *cancel),
            Request::Receipt(query) => self.receipt(cx, ReplyTo::Remote(Caller::new(from, id)), *query),
            Request::Registration(command) => {
                self.registration(cx, ReplyTo::Remote(Caller::new(from, id)), *command);
            }
            Request::DeviceReport(report) => {
                self.device_reported(cx, ReplyTo::Remote(Caller::new(from, id)), *report);
            }
            Request::Node(command) => self.work_for_node(cx, ReplyTo::Remote(Caller::new(from, id)), command),
            Request::Member(request) => {
                self.member_request(cx, *request);
                self.reply(cx, Caller::new(from, id), MemberReply::Taken);
            }
            Request::MemberEvent(event) => {
                let reply = self.member_event(cx, *event);
                self.reply(cx, Caller::new(from, id), reply);
            }
        }
    }

    fn work_for_node(&mut self, cx: &mut StepContext<'_>, reply_to: ReplyTo<NodeAnswer>, command: NodeCommand) {
        let answer = match command {
            NodeCommand::Push(push) => self.node_push(cx, *push),
            NodeCommand::Notify(notify) => self.node_notify(cx, &notify),
            NodeCommand::Disconnect(disconnect) => self.node_disconnect(cx, &disconnect),
        };
        self.answer(cx, reply_to, answer);
    }

    /// Answers a request of an app server or of another node, on the shard where it landed.
    pub(super) fn answer<A: Into<Reply> + Into<Event>>(
        &self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<A>,
        answer: A,
    ) {
        match reply_to {
            ReplyTo::Remote(caller) => self.reply(cx, caller, answer),
            ReplyTo::Local(conn) => answer_conn(cx, conn, answer),
        }
    }

    /// Replies to another shard.
    pub(super) fn reply<A: Into<Reply>>(&self, cx: &mut StepContext<'_>, caller: Caller<A>, answer: A) {
        let reply = Mail::Reply { id: caller.id, reply: answer.into() };
        cx.effects.push_back(Effect::Mail(caller.shard, reply));
    }

    fn replied(&mut self, cx: &mut StepContext<'_>, id: RequestId, reply: Reply) {
        let Some((outgoing, next)) = self.requests.close(id) else {
            self.stats.replies_stale += 1;
            return;
        };
        self.stats.requests_sent += u64::from(next.is_some());
        cx.effects.extend(next);
        match (outgoing.waiter, reply) {
            (Waiter::Conn(conn), Reply::Publish(published)) => answer_conn(cx, conn, published),
            (Waiter::Conn(conn), Reply::Bridge(handover)) => self.call_bridge(cx, conn, *handover),
            (Waiter::Conn(conn), Reply::Registration(answer)) => answer_conn(cx, conn, *answer),
            (Waiter::Conn(conn), Reply::Cancel(cancelled)) => answer_conn(cx, conn, cancelled),
            (Waiter::Conn(conn), Reply::Receipt(answer)) => {
                self.receipts.came_back(outgoing.peer);
                answer_conn(cx, conn, answer);
            }
            (Waiter::Conn(conn), Reply::Node(answer)) => answer_conn(cx, conn, answer),
            (Waiter::Claim { conn, claim, hello }, Reply::Claim(decision)) => {
                self.claim_decided(cx, conn, outgoing.peer, claim, hello, decision);
            }
            (Waiter::Seat(conn), Reply::Member(reply)) => self.member_answered(cx, conn, reply),
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
pub(super) fn answer_conn<A: Into<Event>>(cx: &mut StepContext<'_>, conn: ConnId, answer: A) {
    cx.effects.push_back(Effect::Emit(conn, answer.into()));
    cx.effects.push_back(Effect::Ready(conn));
}
