//! The port of other nodes: `PUT /push`, `PUT /notif`, `DELETE /notif` and `GET /boot` (PROTOCOL.md 4.1).
//!
//! Everything but the health pages needs `Authorization: Bearer` with one of the configured keys.

use std::sync::Arc;

use machine::ids::Uaid;
use machine::{NodeAnswer, NodeCommand, NodeDisconnect, NodeNotify, NodePush};

use super::PushEdge;
use super::drafts::NodeCall;
use super::exchange::{BodyAction, method_refused};
use super::reply::Reply;
use super::response::{self, Context};
use protocol::webpush::errno::ApiError;
use protocol::webpush::node_call::{NotifyCall, PushCall, parse_boot, read_push, read_told};
use protocol::wire::http1::Head;
use protocol::wire::text::{parse_u64, parse_uuid};

/// Maximum body of another node: the largest payload in base64, and its headers.
pub(super) const BODY_BYTES_MAX: u64 = 32 * 1024;

impl PushEdge {
    pub(super) fn plan_node(&mut self, head: &Head<'_, '_>) -> BodyAction {
        let (push, notif) = (head.path.strip_prefix("/push/"), head.path.strip_prefix("/notif/"));
        let boot = head.path == "/boot";
        if push.is_none() && notif.is_none() && !boot {
            return self.plan_page(head);
        }
        if !self.node_keys.allow(head.header("authorization")) {
            return BodyAction::Reply(Reply::Fault(ApiError::NodeKey));
        }
        self.stats.node_requests += 1;
        if boot {
            return match head.method {
                "GET" => BodyAction::Reply(Reply::Boot),
                _ => method_refused(head, "GET, HEAD, OPTIONS"),
            };
        }
        let uaid = |text: &str| parse_uuid(text.as_bytes()).map(Uaid);
        let plan =
            match (push, notif.map(|rest| rest.split_once('/').unwrap_or((rest, "")))) {
                (Some(text), _) if head.method == "PUT" => uaid(text).map(|uaid| with_body(NodeCall::Push, uaid)),
                (Some(_), _) => return method_refused(head, "PUT, HEAD, OPTIONS"),
                (None, Some((text, ""))) if head.method == "PUT" => {
                    uaid(text).map(|uaid| with_body(NodeCall::Notify, uaid))
                }
                (None, Some((_, ""))) => return method_refused(head, "PUT, HEAD, OPTIONS"),
                (None, Some((text, time))) if head.method == "DELETE" => uaid(text)
                    .zip(parse_u64(time.as_bytes()))
                    .map(|(uaid, connected_at)| match self.names_us(&head.query) {
                        Ok(true) => BodyAction::Ask(
                            NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid, connected_at })).into(),
                        ),
                        Ok(false) => BodyAction::Reply(Reply::Fault(ApiError::NoSession)),
                        Err(fault) => BodyAction::Reply(Reply::Fault(fault)),
                    }),
                (None, _) => return method_refused(head, "DELETE, HEAD, OPTIONS"),
            };
        plan.unwrap_or(BodyAction::Reply(Reply::Fault(ApiError::NotFound)))
    }

    /// Reads the body of a call.
    ///
    /// # Errors
    /// [`ApiError::NoSession`] for a call to an earlier boot of this node: its sessions are gone.
    pub(super) fn read_node_call(&self, call: NodeCall, uaid: Uaid, body: &[u8]) -> Result<NodeCommand, ApiError> {
        let (command, boot) = match call {
            NodeCall::Push => {
                let PushCall { message, stored, boot } = read_push(uaid, body, &self.ids)?;
                (NodeCommand::Push(Box::new(NodePush { message: Arc::new(message), stored })), boot)
            }
            NodeCall::Notify => {
                let NotifyCall { unsure, boot } = read_told(uaid, body, &self.ids)?;
                (NodeCommand::Notify(Box::new(NodeNotify { uaid, unsure })), boot)
            }
        };
        if boot.is_none_or(|boot| boot == self.boot) { Ok(command) } else { Err(ApiError::NoSession) }
    }

    /// Returns true if the query has no `boot=` or names this boot of this node.
    fn names_us(&self, query: &str) -> Result<bool, ApiError> {
        let boot = query.split('&').find_map(|item| item.strip_prefix("boot="));
        match boot.map(parse_boot) {
            None => Ok(true),
            Some(Some(boot)) => Ok(boot == self.boot),
            Some(None) => Err(ApiError::BadNodeBody),
        }
    }

    pub(super) fn emit_node_answer(&mut self, context: &Context, node_answer: NodeAnswer, out: &mut Vec<u8>) {
        match node_answer {
            NodeAnswer::Done => response::start(&self.date, context, 200, out).empty(),
            NodeAnswer::Noted => response::start(&self.date, context, 202, out).empty(),
            NodeAnswer::NotHere => self.emit_fault(context, ApiError::NoSession, out),
            NodeAnswer::Busy => self.emit_fault(context, ApiError::SessionBusy, out),
            NodeAnswer::Held => self.emit_fault(context, ApiError::SessionHolds, out),
        }
    }
}

fn with_body(call: NodeCall, uaid: Uaid) -> BodyAction {
    BodyAction::Node { call, uaid, body: Vec::new() }
}
