//! A POST that is at storage.

use std::sync::Arc;

use crate::ids::Chid;
use crate::message::{Message, Rank, Topic, Urgency};
use crate::time::{Instant, UnixSeconds};

use super::command::{Published, Refusal};
use super::components::dead_endpoints::Epoch;
use super::components::requests::ReplyTo;
use super::peer::Presence;
use super::row::RowKey;

/// A POST at storage.
pub(super) struct PendingPublish {
    pub reply_to: ReplyTo<Published>,
    pub row: RowKey,
    /// The message, for the service of a bridged user.
    pub message: Arc<Message>,
    /// Number of registers and unregisters of this subscription at the request to storage.
    pub epoch: Epoch,
    /// Expiry of the message; set if its sender requested a receipt.
    pub receipt: Option<UnixSeconds>,
    /// Bytes charged to the user's budget of today.
    pub charged: u32,
    /// Topic slot of the message, and its rank in that slot.
    pub slot: Option<(Chid, Topic, Rank)>,
    /// Time of its stamp. For a saved row, which low water does not cover, the time of its submission.
    pub since: Instant,
    pub urgency: Urgency,
    /// Rule that it broke, reported unless there is no subscription.
    pub refusal: Option<Refusal>,
    /// True with TTL 0 or a refusal: only the check is made, nothing is written.
    pub check_only: bool,
    /// Location of the user, and the action after the commit.
    pub storing: AfterCommit,
}

/// State of a stored POST that the return of its commit needs.
pub(super) enum AfterCommit {
    /// The user is on this shard, or this node is alone.
    Here {
        /// `delivery.durable`: the message that this shard sends from memory.
        send: Option<Arc<Message>>,
    },
    /// The user is on this shard, and the message is below its minimum urgency: nothing is sent.
    Held,
    /// The user was looked up and is on another node, or not connected.
    Routed {
        /// The stored message: after the second look it may be necessary to store it once more.
        message: Arc<Message>,
        /// `delivery.durable`: the node that has the user sends it from memory.
        send: bool,
        push: PushOutcome,
    },
}

/// Result of the pushes of a message that is stored now.
pub(super) enum PushOutcome {
    /// No session has it.
    NotTaken,
    /// This session may have it: its push got no answer.
    Unsure(Presence),
    /// This session holds it: it is below the minimum there.
    Held(Presence),
}

impl PendingPublish {
    /// Returns true if a message behind it waits for its write, so that it does not overtake it. Nothing waits for a
    /// message that is held.
    pub fn orders(&self) -> bool {
        !self.check_only && !matches!(self.storing, AfterCommit::Held)
    }
}

impl AfterCommit {
    /// Returns the message that is sent from memory once it is stored.
    pub fn send(&self) -> Option<&Arc<Message>> {
        match self {
            AfterCommit::Here { send } => send.as_ref(),
            AfterCommit::Held => None,
            AfterCommit::Routed { message, send, .. } => Some(message).filter(|_| *send),
        }
    }
}
