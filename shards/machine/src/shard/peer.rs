//! What a shard asks of the other nodes of a cluster, as plain data (ARCHITECTURE.md 8.9; PROTOCOL.md 4.1).
//!
//! Only on a shared store. Who is connected where stands in storage as [`Presence`] rows; a node that takes a POST for
//! a user of another node hands it over with [`PeerOp::Push`], or stores it and says so with [`PeerOp::Notify`].

use std::fmt;
use std::sync::Arc;

use crate::ids::Uaid;
use crate::message::Message;

use super::row::RowKey;

/// One run of one node. A node that starts again is another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// `node.url`: where its node API is reached, without a slash at the end.
    pub url: Box<str>,
    /// Random at every start.
    pub boot: u64,
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:016x}", self.url, self.boot)
    }
}

/// "This user is connected to this node": one row per user and node, written at hello and cleared in exactly this
/// version, so that nobody clears another's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Where.
    pub node: Arc<NodeId>,
    /// The version of the row: a reading of the hybrid clock of the shard that holds the session, in microseconds.
    pub connected_at: u64,
}

/// One call of another node. Its reply comes back under the ticket it was submitted with.
#[derive(Clone, Debug)]
pub enum PeerOp {
    /// `PUT /push/{uaid}`: deliver this to the live session. -> `Done`, `NotHere`, `Busy`, `NoAnswer`, `Unreachable`.
    Push {
        /// Whom to call.
        to: Arc<NodeId>,
        /// What to deliver.
        message: Arc<Message>,
        /// It is in storage already (`delivery.durable`): the ack deletes its row.
        stored: bool,
    },
    /// `PUT /notif/{uaid}`: the user's session is to look at storage. -> `Done`, `NotHere`, `NoAnswer` or
    /// `Unreachable`; after the last two whoever carries it calls again until it is answered or the node is gone for
    /// good.
    Notify {
        /// Whom to call.
        to: Arc<NodeId>,
        /// Whose session.
        uaid: Uaid,
        /// A push of this message got no answer and it was stored then: when the session has settled it, the row goes.
        unsure: Option<RowKey>,
    },
    /// `DELETE /notif/{uaid}/{connected_at}`: the user is here now. -> `Done`, `NotHere`, `NoAnswer`, `Unreachable`.
    Leave {
        /// Whom to call.
        to: Arc<NodeId>,
        /// Whose session.
        uaid: Uaid,
        /// Which one.
        connected_at: u64,
    },
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerReply {
    /// 200 or 202: it is done, or noted for a hello that is under way.
    Done,
    /// 404: no such session there; another boot answers there; or the node has said that it left. The presence row
    /// that led there is out of date.
    NotHere,
    /// 503: the session is there and cannot take it now. The message was not taken, and what is stored now is known to
    /// the session by its own flag.
    Busy,
    /// The call may have been carried out: it was sent and no answer came in time.
    NoAnswer,
    /// The call was surely not carried out: no connection, no place in the queue.
    Unreachable,
}
