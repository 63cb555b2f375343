//! The name of a stored message.

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};

/// Names one message in each form that storage may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey {
    /// The user.
    pub uaid: Uaid,
    /// The channel.
    pub chid: Chid,
    /// The version.
    pub stamp: Stamp,
    /// Set when it occupies a topic slot.
    pub topic: Option<Topic>,
}

impl RowKey {
    /// The row of a message.
    pub fn of(message: &Message) -> RowKey {
        RowKey { uaid: message.uaid, chid: message.chid, stamp: message.stamp, topic: message.topic }
    }
}
