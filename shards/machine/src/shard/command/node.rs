//! Commands of other nodes, and the answers of the machine (PROTOCOL.md 4.1).

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
    /// Returns the user that it concerns.
    pub fn uaid(&self) -> Uaid {
        match self {
            NodeCommand::Push(push) => push.message.uaid,
            NodeCommand::Notify(notify) => notify.uaid,
            NodeCommand::Disconnect(disconnect) => disconnect.uaid,
        }
    }
}

/// A message that another node accepted.
#[derive(Debug)]
pub struct NodePush {
    /// Stamped by that node; its id is `version`.
    pub message: Arc<Message>,
    /// True if storage has it already (`delivery.durable`).
    pub stored: bool,
}

/// Another node has stored something for a user.
#[derive(Debug)]
pub struct NodeNotify {
    pub uaid: Uaid,
    /// Row of a message that was stored because its push to this node got no answer. It is deleted if the message was
    /// settled here (PROTOCOL.md 4.1).
    pub unsure: Option<RowKey>,
}

/// End of a session whose user is on another node by now.
#[derive(Debug)]
pub struct NodeDisconnect {
    pub uaid: Uaid,
    /// Version of the session's presence row (`Presence::connected_at`). Any other session stays.
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
    /// 503: the window is full; the session's sticky flag is set, so the caller stores the message.
    Busy,
    /// 503: the message is below the minimum of the session, which notes that storage will have it.
    Held,
}
