//! Words between other nodes and the machine (PROTOCOL.md 4.1).

use std::sync::Arc;

use crate::ids::Uaid;
use crate::message::Message;

use super::super::row::RowKey;

/// Requests of another node. [`NodeAnswer`] answers each.
#[derive(Debug)]
pub enum NodeCommand {
    /// `PUT /push/{uaid}` with a message that is already stamped.
    Push(Box<NodePush>),
    /// `PUT /notif/{uaid}`.
    Notify(Box<NodeNotify>),
    /// `DELETE /notif/{uaid}/{connected_at}`.
    Disconnect(Box<NodeDisconnect>),
}

impl NodeCommand {
    /// The user that it concerns.
    pub fn uaid(&self) -> Uaid {
        match self {
            NodeCommand::Push(push) => push.message.uaid,
            NodeCommand::Notify(notify) => notify.uaid,
            NodeCommand::Disconnect(disconnect) => disconnect.uaid,
        }
    }
}

/// A message that another node took.
#[derive(Debug)]
pub struct NodePush {
    /// Stamped by that node; its id is `version`.
    pub message: Arc<Message>,
    /// It is in storage already (`delivery.durable`).
    pub stored: bool,
}

/// Another node has stored something for a user.
#[derive(Debug)]
pub struct NodeNotify {
    /// Whose storage to check.
    pub uaid: Uaid,
    /// A push of this message got no answer there, and it was stored: when it was settled here, its row goes
    /// (PROTOCOL.md 4.1).
    pub unsure: Option<RowKey>,
}

/// A session that is elsewhere by now.
#[derive(Debug)]
pub struct NodeDisconnect {
    /// User of the session.
    pub uaid: Uaid,
    /// Only the session whose presence row says this (`Presence::connected_at`).
    pub connected_at: u64,
}

/// Statuses of the node API (PROTOCOL.md 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAnswer {
    /// 200: queued to the session, or the session checks storage now, or it was ended.
    Done,
    /// 202: noted; the session checks storage when it can.
    Noted,
    /// 404: no such session here.
    NotHere,
    /// 503: the window is full; the session's sticky flag is set, store it.
    Busy,
}
