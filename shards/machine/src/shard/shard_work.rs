//! Requests that other shards sent: the work for each of them.

use crate::ids::{RequestId, ShardId};

use super::command::{NodeAnswer, NodeCommand};
use super::components::requests::{Caller, ReplyTo};
use super::composer::{ShardMachine, StepContext};
use super::mail::Request;
use super::member::MemberReply;

impl ShardMachine {
    /// Handles a request as the owner. Each arm names its caller with the type of the answer.
    pub(super) fn work_on(&mut self, cx: &mut StepContext<'_>, (from, id): (ShardId, RequestId), request: Request) {
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

    pub(super) fn work_for_node(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<NodeAnswer>,
        command: NodeCommand,
    ) {
        let answer = match command {
            NodeCommand::Push(push) => self.node_push(cx, *push),
            NodeCommand::Notify(notify) => self.node_notify(cx, &notify),
            NodeCommand::Disconnect(disconnect) => self.node_disconnect(cx, &disconnect),
        };
        self.answer(cx, reply_to, answer);
    }
}
