//! Words of shards about notifications of bridged users.

use std::sync::Arc;

use crate::ids::{Chid, Clock, Stamp, Uaid};
use crate::message::Message;
use crate::upstream::Bridged;

/// A stamped notification on its way from the owner of its user to the shard that calls the service.
#[derive(Debug)]
pub struct BridgeHandover {
    pub to: Arc<Bridged>,
    pub message: Arc<Message>,
}

/// Verdict of the service on the device of a user, on its way to the owner of the user.
#[derive(Debug)]
pub struct DeviceReport {
    pub uaid: Uaid,
    /// Channel of the notification.
    pub chid: Chid,
    /// Version of the record with the token that the service judged.
    pub registered: Clock,
    pub verdict: DeviceVerdict,
}

/// Consequence for the record of a device.
#[derive(Debug)]
pub enum DeviceVerdict {
    /// The service took the notification with this stamp: the mark of this record goes.
    Taken { stamp: Stamp },
    /// The service refused the device, which is believed the next time. True if the record has a mark already.
    Doubted { marked: bool },
    /// The token has ended, or was refused often enough: the user is removed.
    Ended,
}
