//! Requests to the owner of a user, on this shard or another. `shard_replies` has their answers.

use crate::ids::{ConnId, ShardId, Uaid};

use super::command::{
    Cancelled, Event, NodeAnswer, NodeCommand, Published, RegistrationAnswer, RegistrationCommand, SenderCommand,
};
use super::components::requests::{OutgoingRequest, ReplyTo, Waiter};
use super::composer::{ShardMachine, StepContext};
use super::handover::{DeviceReport, DeviceVerdict};
use super::mail::Request;
use super::shard_replies::answer_conn;

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
}
