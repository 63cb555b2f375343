//! The vocabulary of delivery receipts (RFC 8030 sections 5.1 and 6.3).

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::time::{Span, UnixSeconds};

use super::row::RowKey;

/// A receipt, opened, and how long its holder would like to wait.
#[derive(Clone, Copy, Debug)]
pub struct ReceiptQuery {
    /// Whose message.
    pub uaid: Uaid,
    /// On which channel.
    pub chid: Chid,
    /// Exactly which one.
    pub stamp: Stamp,
    /// Its topic slot, if it had one.
    pub topic: Option<Topic>,
    /// When it expires.
    pub expires: UnixSeconds,
    /// How long to wait for an outcome; at most [`limits::RECEIPT_WAIT_SECONDS_MAX`].
    pub wait: Span,
}

/// How a message ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The user agent acked it with 100 or no code.
    Delivered,
    /// The user agent acked it with 101: it could not decrypt it.
    Undecryptable,
    /// The user agent acked it with 102: it has it and could not hand it to its application.
    Undelivered,
    /// Its TTL was over first; with TTL 0, nobody was there to take it.
    Expired,
    /// It was delivered `delivery.attempts_max` times, and no ack came.
    Unacked,
    /// A newer message of its topic took its place.
    Replaced,
    /// Its sender took it back.
    Cancelled,
    /// Its channel was unregistered, or its user was reset.
    Unregistered,
}

impl Outcome {
    /// Of the code of an ack.
    pub fn of_ack(code: u16) -> Outcome {
        match code {
            101 => Outcome::Undecryptable,
            102 => Outcome::Undelivered,
            _ => Outcome::Delivered,
        }
    }
}

/// The answer to a [`ReceiptQuery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiptAnswer {
    /// It ended.
    Ended(Outcome),
    /// It is still under way.
    Pending,
    /// There is no such message any more, and what became of it was forgotten, or its storage did not say.
    Unknown,
    /// 503: too many wait, or storage could not say.
    Unavailable,
}

impl ReceiptQuery {
    /// The row of the message.
    pub(super) fn row(&self) -> RowKey {
        RowKey { uaid: self.uaid, chid: self.chid, stamp: self.stamp, topic: self.topic }
    }
}

/// When nothing but an ack of what was sent can come any more. A message of TTL 0 is sent once: its ack has a minute.
pub(super) fn expires(message: &Message) -> UnixSeconds {
    let expires = message.expires();
    if message.ttl == 0 { UnixSeconds(expires.0 + ACK_OF_TTL_ZERO_SECONDS) } else { expires }
}

const ACK_OF_TTL_ZERO_SECONDS: u64 = 60;
