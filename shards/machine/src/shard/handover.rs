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

/// "The service refused the device of this user", or takes its notifications again.
#[derive(Debug)]
pub struct DeviceRefused {
    pub uaid: Uaid,
    /// Channel of the notification.
    pub chid: Chid,
    /// Version of the record whose token was refused.
    pub registered: Clock,
    /// True if the user is removed for it: the token has ended, or was refused often enough.
    pub ended: bool,
    /// True if the record has a mark already.
    pub marked: bool,
    /// The service took a notification with this stamp, so that the mark of this record goes.
    pub taken: Option<(Stamp, Arc<Bridged>)>,
}
