//! Name of a stored message.

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};

/// Name of one message in each form that storage can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey {
    pub uaid: Uaid,
    pub chid: Chid,
    pub stamp: Stamp,
    /// Set if the message occupies a topic slot.
    pub topic: Option<Topic>,
}

impl RowKey {
    /// Returns the name of a message's row.
    pub fn of(message: &Message) -> RowKey {
        RowKey { uaid: message.uaid, chid: message.chid, stamp: message.stamp, topic: message.topic }
    }
}
