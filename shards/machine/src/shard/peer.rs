//! Calls of a shard to the other nodes of a cluster, as plain data (ARCHITECTURE.md 8.9; PROTOCOL.md 4.1).
//!
//! Only on a shared store. [`Presence`] rows in storage name the node of each connected user. A node that takes a POST
//! for a user of another node passes it on with [`PeerOp::Push`], or stores it and notifies that node with
//! [`PeerOp::Notify`].

use std::fmt;
use std::sync::Arc;

use crate::ids::Uaid;
use crate::message::Message;

use super::row::RowKey;

/// One boot of one node. A node that starts again is another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// `node.url`: base URL of its node API, without a slash at the end.
    pub url: Box<str>,
    /// Random at every start.
    pub boot: u64,
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:016x}", self.url, self.boot)
    }
}

/// "This user is connected to this node": one row per user and node. The row is written at hello and cleared in exactly
/// this version, so that no session clears the row of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    pub node: Arc<NodeId>,
    /// Version of the row: a reading of the hybrid clock of the shard that holds the session, in microseconds.
    pub connected_at: u64,
}

/// One call of another node. Its reply comes back under the ticket it was submitted with.
#[derive(Clone, Debug)]
pub enum PeerOp {
    /// `PUT /push/{uaid}`: deliver this to the live session. -> `Done`, `NotHere`, `Busy`, `Held`, `NoAnswer` or
    /// `Unreachable`.
    Push {
        to: Arc<NodeId>,
        message: Arc<Message>,
        /// True if storage has the message already (`delivery.durable`): the ack deletes its row.
        stored: bool,
    },
    /// `PUT /notif/{uaid}`: the user's session must read storage. -> `Done`, `NotHere`, `NoAnswer` or `Unreachable`.
    /// After the last two the peer client calls again until the node answers or is gone for good.
    Notify {
        to: Arc<NodeId>,
        uaid: Uaid,
        /// Row of a message that was stored because its push got no answer: the row is deleted once the session has
        /// settled the message.
        unsure: Option<RowKey>,
    },
    /// `DELETE /notif/{uaid}/{connected_at}`: the user is connected to the calling node now. -> `Done`, `NotHere`,
    /// `NoAnswer`, `Unreachable`.
    Leave {
        to: Arc<NodeId>,
        uaid: Uaid,
        /// Version of the session's presence row.
        connected_at: u64,
    },
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerReply {
    /// 200 or 202: the call was carried out, or is noted for a hello that is under way.
    Done,
    /// 404: the node has no such session, another boot answers there, or the node has announced that it left. The
    /// presence row that led there is out of date.
    NotHere,
    /// 503: the session is there and cannot take the message now. The message was not taken. The session has set its
    /// own flag, so it finds what is stored now.
    Busy,
    /// 503: as `Busy`, and the session holds the message: it need not read what is stored now.
    Held,
    /// The call was sent and no answer came in time, so it may have been carried out.
    NoAnswer,
    /// The call was certainly not carried out: no connection, or no place in the queue.
    Unreachable,
}
