//! Commands of app servers, and the answers of the machine.

use std::sync::Arc;

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::upstream::BridgeFailure;

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
    Published(Published),
    Cancelled(Cancelled),
    Receipt(ReceiptAnswer),
}

/// A POST with a good token and VAPID (the shard where it landed answers 404 and 401).
#[derive(Debug)]
pub struct Publish {
    pub uaid: Uaid,
    pub chid: Chid,
    /// Message with a zero stamp (a set one on the node API), or the first header or size rule that the POST broke. The
    /// owner answers 410 before that rule (ARCHITECTURE.md 8.5).
    pub message: Result<Arc<Message>, Refusal>,
}

/// Rule of PROTOCOL.md 2.3 steps 8 to 11 that a POST broke. The edge that made the value knows status and errno; the
/// machine carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u8);

/// `DELETE /m/{id}` with its opened id.
#[derive(Debug)]
pub struct Cancel {
    pub uaid: Uaid,
    pub chid: Chid,
    pub stamp: Stamp,
    /// Topic slot of the message, if it had one.
    pub topic: Option<Topic>,
}

impl Cancel {
    /// Returns the row to remove.
    pub(in crate::shard) fn row(&self) -> RowKey {
        RowKey { uaid: self.uaid, chid: self.chid, stamp: self.stamp, topic: self.topic }
    }
}

/// Outcome of a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// 201: it was accepted under this stamp (ARCHITECTURE.md 5).
    Accepted {
        /// Stamp that the edge seals in the Location.
        stamp: Stamp,
        disposition: Disposition,
    },
    /// 410 errno 106: no such user, or the channel is not registered.
    NoSubscription,
    /// 400 errno 108: the mode of this message is not the user's.
    OtherMode,
    /// The POST broke this rule, found by the shard where it landed.
    Refused(Refusal),
    /// 429: the endpoint gets more messages than `endpoint.token_rate`. Nothing was accepted.
    TooMany {
        /// Seconds until the endpoint takes one again.
        retry_after: u32,
    },
    /// 429: more bytes than `store.user_bytes_per_day` were stored for the user today. Nothing was accepted.
    OverBudget {
        /// Seconds until a new try can succeed.
        retry_after: u32,
    },
    /// The service of a bridged user did not take it, for this reason. Nothing was accepted.
    NotBridged(BridgeFailure),
    /// 503 with Retry-After: storage, credit or tickets are exhausted. Nothing was accepted.
    Unavailable,
}

impl Published {
    /// The service of a bridged user took the message with this stamp.
    pub fn bridged(stamp: Stamp) -> Published {
        Published::Accepted { stamp, disposition: Disposition::Bridged }
    }
}

/// Way that an accepted message took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Handed to a live session and held by a ledger until it is acked.
    Direct,
    /// In storage.
    Stored,
    /// TTL 0 and no session that could take it.
    Dropped,
    /// Taken by the service of a bridged user.
    Bridged,
}

/// Outcome of a cancel: 204, or 503 when storage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// True if storage has taken it.
    pub done: bool,
}
