//! Calls of other nodes, their ends, and what the table of nodes says of a boot.

use std::sync::Arc;

use crate::time::Instant;
use crate::{NodeId, PeerOp, PeerReply};

/// One call. `T` names what waits for its reply.
#[derive(Clone, Debug)]
pub struct PeerCall<T> {
    pub op: PeerOp,
    /// `None`: the caller waits for no reply.
    pub back: Option<T>,
    /// Time of submission.
    pub since: Instant,
    /// It is owed: an earlier call of the same got no answer.
    pub is_retry: bool,
}

impl<T> PeerCall<T> {
    /// Returns the boot that is called.
    pub fn to(&self) -> &Arc<NodeId> {
        let (PeerOp::Push { to, .. } | PeerOp::Notify { to, .. } | PeerOp::Leave { to, .. }) = &self.op;
        to
    }
}

/// End of a call that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// The node answered. `None`: it refused for a reason that its operator must look into.
    Answered(Option<PeerReply>),
    /// No connection: it was surely not carried out.
    NotConnected,
    /// It was sent, wholly or in part.
    NoAnswer,
    /// It could not be sent as bytes; that says nothing of the node.
    Unsayable,
}

/// Row of a node in the table of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootRow {
    /// The last boot of the node.
    pub boot: u64,
    /// That boot is over: it ended in order, or another node found it gone.
    pub left: bool,
    /// That boot has not renewed its lease for so long that it counts as gone if its address does not answer.
    pub lapsed: bool,
}

impl BootRow {
    /// Returns true if that boot is over for good. Only for a boot whose row was written before this one was read.
    pub fn is_over(&self, boot: u64) -> bool {
        self.left || self.boot != boot
    }
}
