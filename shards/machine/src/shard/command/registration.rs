//! Commands of the registration API (PROTOCOL.md 3), and the answers of the machine.

use crate::ids::{CallerAddress, Chid, KeyDigest, Uaid};
use crate::upstream::BridgeKind;

use super::sender::Refusal;

/// A call with a good path and, but for the first one of a user, the right secret.
#[derive(Debug)]
pub struct RegistrationCommand {
    pub uaid: Uaid,
    pub call: RegistrationCall,
}

/// The request of a call. A broken rule of its body travels with it: the owner answers 410 before that rule.
#[derive(Debug)]
pub enum RegistrationCall {
    /// Make the user, of a fresh UAID, with its first channel.
    Create {
        device: Option<Device>,
        channel: NewChannel,
        /// Address of the caller ([`Command::set_caller`](super::Command::set_caller)).
        caller: Option<CallerAddress>,
    },
    /// Replace the device.
    Update(Result<Option<Device>, Refusal>),
    Subscribe(Result<NewChannel, Refusal>),
    /// List the channels; the user is alive.
    List,
    Remove,
    /// `None`: no name of a channel.
    Unsubscribe(Option<Chid>),
}

/// Device of a bridged user; users without one hold a WebSocket.
#[derive(PartialEq, Eq)]
pub struct Device {
    pub kind: BridgeKind,
    pub app: Box<str>,
    pub token: Box<str>,
    pub aps: Option<Box<str>>,
}

impl std::fmt::Debug for Device {
    /// Never shows the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("kind", &self.kind).field("app", &self.app).finish_non_exhaustive()
    }
}

/// Channel of a registered user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewChannel {
    pub chid: Chid,
    /// Digest of the key that locks the endpoint.
    pub key: Option<KeyDigest>,
}

/// Outcome of a call.
#[derive(PartialEq, Eq, Debug)]
pub enum RegistrationAnswer {
    /// 200: the channel is registered in storage, and its user too.
    Registered { uaid: Uaid, channel: NewChannel },
    /// 200 without news: storage has the change.
    Done,
    /// 200: the channels of the user.
    Channels(Box<[Chid]>),
    /// 410 errno 103: no such user.
    NoUser,
    /// 410 errno 106: the user has no such channel.
    NoChannel,
    /// 409 errno 108: the user or the channel is registered in another way.
    Conflict,
    /// 400 errno 108: the user has `limits::CHANNELS_MAX` channels.
    Full,
    /// The call broke this rule, found by the shard where it landed.
    Refused(Refusal),
    /// 429 errno 203: the address of the caller may make no more users or channels now. The landing shard says so
    /// itself.
    TooMany { retry_after: u32 },
    /// 503: storage has no room or failed, or another call of this user is under way. The change may have taken effect.
    Unavailable,
}
