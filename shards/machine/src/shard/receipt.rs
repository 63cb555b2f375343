//! The vocabulary of delivery receipts (RFC 8030 sections 5.1 and 6.3).

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::time::{TimeSpan, UnixSeconds};

use super::row::RowKey;

/// An opened receipt, and the time that its holder waits.
#[derive(Clone, Copy, Debug)]
pub struct ReceiptQuery {
    pub uaid: Uaid,
    pub chid: Chid,
    pub stamp: Stamp,
    /// Topic slot of the message, if it had one.
    pub topic: Option<Topic>,
    pub expires: UnixSeconds,
    /// Maximum wait for an outcome; at most [`limits::RECEIPT_WAIT_SECONDS_MAX`].
    pub wait: TimeSpan,
}

/// Outcome of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The user agent acked it with 100 or no code.
    Delivered,
    /// The user agent acked it with 101: it could not decrypt it.
    Undecryptable,
    /// The user agent acked it with 102: it could not pass the message to its application.
    Undelivered,
    /// Its TTL ended first; with TTL 0, no session could take it.
    Expired,
    /// It was delivered `delivery.attempts_max` times, and no ack came.
    Unacked,
    /// A newer message of its topic took its place.
    Replaced,
    /// Its sender cancelled it.
    Cancelled,
    /// Its channel was unregistered, or its user was reset.
    Unregistered,
}

impl Outcome {
    /// Returns the outcome for the code of an ack.
    pub fn of_ack(code: u16) -> Outcome {
        match code {
            101 => Outcome::Undecryptable,
            102 => Outcome::Undelivered,
            _ => Outcome::Delivered,
        }
    }
}

/// Answer to a [`ReceiptQuery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiptAnswer {
    Ended(Outcome),
    /// It is still under way.
    Pending,
    /// The message does not exist any more, and its outcome was forgotten, or its storage did not report one.
    Unknown,
    /// 503: too many requests wait, or storage did not answer.
    Unavailable,
}

impl ReceiptQuery {
    /// Returns the row of the message.
    pub(super) fn row(&self) -> RowKey {
        RowKey { uaid: self.uaid, chid: self.chid, stamp: self.stamp, topic: self.topic }
    }
}

/// Returns the time after which only an ack of a sent message can come. A message of TTL 0 is sent once; its ack has a
/// minute.
pub(super) fn expires(message: &Message) -> UnixSeconds {
    let expires = message.expires();
    if message.ttl == 0 { UnixSeconds(expires.0 + ACK_OF_TTL_ZERO_SECONDS) } else { expires }
}

const ACK_OF_TTL_ZERO_SECONDS: u64 = 60;
