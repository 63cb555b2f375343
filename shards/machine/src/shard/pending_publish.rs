//! A POST that is at storage.

use std::sync::Arc;

use crate::ids::Chid;
use crate::message::{Message, Rank, Topic};
use crate::time::{Instant, UnixSeconds};

use super::command::{Published, Refusal};
use super::components::dead_endpoints::Epoch;
use super::components::requests::Asker;
use super::peer::Presence;
use super::row::RowKey;

/// A POST at storage.
pub(super) struct PublishWork {
    pub asker: Asker<Published>,
    pub row: RowKey,
    /// Registers of this subscription when storage was asked.
    pub epoch: Epoch,
    /// Set when its sender asked for a receipt: when the message expires.
    pub receipt: Option<UnixSeconds>,
    /// Bytes taken from the user's budget of today.
    pub charged: u32,
    /// The topic slot it takes when it is written, and its place among those that want it.
    pub slot: Option<(Chid, Topic, Rank)>,
    /// Time of its stamp; of a saved row, which low water does not cover, the time at which it was submitted.
    pub since: Instant,
    /// The rule it broke, to be said unless there is no subscription.
    pub refusal: Option<Refusal>,
    /// TTL 0 or a refusal: only the check is made, nothing is written.
    pub check_only: bool,
    /// Place of the user, and the act after the commit.
    pub storing: Storing,
}

/// State that a stored POST needs when its commit returns.
pub(super) enum Storing {
    /// The user is here, or this node is alone.
    Here {
        /// `delivery.durable`: send this from memory.
        send: Option<Arc<Message>>,
    },
    /// The user was looked up and is elsewhere, or nowhere.
    Routed {
        /// The stored message: the second look may find that it has to be stored once more.
        message: Arc<Message>,
        /// `delivery.durable`: the node that has the user sends it from memory.
        send: bool,
        /// A push to this session got no answer.
        unsure: Option<Presence>,
    },
}

impl Storing {
    /// The message that is sent from memory once it is stored.
    pub fn send(&self) -> Option<&Arc<Message>> {
        match self {
            Storing::Here { send } => send.as_ref(),
            Storing::Routed { message, send, .. } => Some(message).filter(|_| *send),
        }
    }
}
