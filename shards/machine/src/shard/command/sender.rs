//! Words between app servers and the machine.

use std::sync::Arc;

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};

use super::super::receipt::{ReceiptAnswer, ReceiptQuery};
use super::super::row::RowKey;

/// Requests of an app server.
#[derive(Debug)]
pub enum SenderCommand {
    /// A message. [`Published`] answers.
    Publish(Box<Publish>),
    /// `DELETE /m/{id}`. [`Cancelled`] answers.
    Cancel(Box<Cancel>),
    /// `GET /r/{receipt}`. [`ReceiptAnswer`] answers, perhaps after a while.
    Receipt(Box<ReceiptQuery>),
}

/// Answers to an app server.
#[derive(Debug)]
pub enum SenderEvent {
    /// To a POST.
    Published(Published),
    /// To a cancel.
    Cancelled(Cancelled),
    /// To a look at a receipt.
    Receipt(ReceiptAnswer),
}

/// A POST whose token and VAPID were good (404 and 401 are answered where it landed).
#[derive(Debug)]
pub struct Publish {
    /// From the token.
    pub uaid: Uaid,
    /// From the token.
    pub chid: Chid,
    /// The message with a zero stamp (a set one on the node API), or the first header or size rule it broke.
    /// The owner answers 410 before it (ARCHITECTURE.md 8.5).
    pub message: Result<Arc<Message>, Refusal>,
}

/// Which rule of PROTOCOL.md 2.3 steps 8 to 11 a POST broke. The edge that made the value knows status and errno;
/// the machine carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u8);

/// `DELETE /m/{id}`, opened.
#[derive(Debug)]
pub struct Cancel {
    /// Whose message.
    pub uaid: Uaid,
    /// On which channel.
    pub chid: Chid,
    /// Exactly which one.
    pub stamp: Stamp,
    /// Its topic slot, if it had one.
    pub topic: Option<Topic>,
}

impl Cancel {
    /// The row it removes.
    pub(in crate::shard) fn row(&self) -> RowKey {
        RowKey { uaid: self.uaid, chid: self.chid, stamp: self.stamp, topic: self.topic }
    }
}

/// What became of a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// 201: it was accepted under this stamp (ARCHITECTURE.md 5).
    Accepted {
        /// What the Location is sealed from.
        stamp: Stamp,
        /// How it went.
        disposition: Disposition,
    },
    /// 410 errno 106: no such user, or the channel is not registered.
    NoSubscription,
    /// 400 errno 108: the user is not reached in the mode of this message.
    OtherMode,
    /// The rule the landing shard found broken.
    Refused(Refusal),
    /// 429: the endpoint gets more messages than `endpoint.token_rate`. Nothing was accepted.
    TooMany {
        /// Seconds until one will be taken.
        retry_after: u32,
    },
    /// 429: more bytes than `store.user_bytes_per_day` were stored for the user today. Nothing was accepted.
    OverBudget {
        /// Seconds until it is worth trying again.
        retry_after: u32,
    },
    /// 503 with Retry-After: storage, credit or tickets are exhausted. Nothing was accepted.
    Unavailable,
}

/// How an accepted message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Handed to a live session and held by a ledger until it is acked.
    Direct,
    /// In storage.
    Stored,
    /// TTL 0 and no session that could take it.
    Dropped,
}

/// Outcome of a cancel: 204, or 503 when storage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Storage has taken it.
    pub done: bool,
}
