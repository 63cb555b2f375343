//! Commands of user agents, and the events of the machine for them.

use std::sync::Arc;

use crate::ids::{CallerAddress, Chid, EmissionId, KeyDigest, Stamp, Uaid};
use crate::message::{Message, Topic, Urgency};
use crate::simplepush::{Mode, WakeData};

/// Commands of a WebSocket that speaks for one user agent.
#[derive(Debug)]
pub enum AgentCommand {
    /// First message of a WebSocket (PROTOCOL.md 1.5). [`SessionEvent::Hello`] answers.
    Hello(Box<Hello>),
    /// Any command that needs a session.
    Session(SessionCommand),
    /// The message `{}` or `{"messageType":"ping"}`. [`AgentEvent::Pong`] answers, or close 4774 when too soon.
    Ping,
    /// A WebSocket Pong frame arrived.
    Pong,
}

/// Commands that need a session, of a user agent with a socket of its own or of a member of a relay.
#[derive(Debug)]
pub enum SessionCommand {
    /// [`SessionEvent::Registered`] answers.
    Register {
        /// Already checked to be lower-case and dashed.
        chid: Chid,
        /// Digest of the VAPID key that locks the endpoint, if any; already checked to be on the curve.
        key: Option<KeyDigest>,
        /// Address of the caller ([`Command::set_caller`](super::Command::set_caller)).
        caller: Option<CallerAddress>,
    },
    /// [`SessionEvent::Unregistered`] answers, also for unknown channels.
    Unregister {
        chid: Chid,
        /// Reason (200, 201, 202 of Firefox; 0 when absent). A counter only.
        code: u32,
    },
    /// Sets the minimum urgency of the user agent. [`SessionEvent::Urgency`] answers.
    Urgency {
        /// `None` is an unknown word.
        minimum: Option<Urgency>,
    },
    /// No answer.
    Ack(Vec<AckUpdate>),
    /// In SimplePush mode: no answer.
    AckVersions(Vec<AckVersion>),
    /// A service worker failed (301-303). A counter only.
    Nack {
        /// 0 for anything undocumented.
        code: u32,
    },
    /// [`SessionEvent::Broadcast`] answers when something differs or is unknown.
    BroadcastSubscribe(Vec<BroadcastVersion>),
}

/// Contents of a hello.
#[derive(Debug)]
pub struct Hello {
    /// UAID in the hello; `None` when absent, empty or not a UUID.
    pub uaid: Option<Uaid>,
    /// A fresh random UAID in the slice of the shard that has the socket now.
    pub fresh: Uaid,
    /// Channels in the hello, if there are any and `hello.reconcile` is on.
    pub channels: Option<Box<[Chid]>>,
    /// Broadcasts to subscribe to, with the last version known.
    pub broadcasts: Vec<BroadcastVersion>,
    /// Interned user-agent family, for the session log.
    pub agent_family: u16,
    pub mode: Mode,
    /// Data for its wake-up; only in mode `Simple`.
    pub wake: Option<WakeData>,
}

impl Hello {
    /// Returns a hello with a UAID and nothing else.
    pub fn new(uaid: Option<Uaid>, fresh: Uaid) -> Hello {
        Hello { uaid, fresh, channels: None, broadcasts: Vec::new(), agent_family: 0, mode: Mode::WebPush, wake: None }
    }
}

/// A broadcast id and a version of it; both opaque texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastVersion {
    /// For example `remote-settings/monitor_changes`.
    pub id: Box<str>,
    /// Version that the peer has, or the new one.
    pub version: Box<str>,
}

/// One entry of an ack. `version` on the wire is the sealed message id; the edge leaves out an id that this server did
/// not seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckUpdate {
    pub stamp: Stamp,
    /// Channel in the sealed id.
    pub chid: Chid,
    /// Topic in the sealed id.
    pub topic: Option<Topic>,
    /// 100 delivered, 101 decryption error, 102 not delivered; all three settle (PROTOCOL.md 12).
    pub code: u16,
}

/// One entry of an ack in SimplePush mode: it ends every update of the channel up to this version (PROTOCOL.md 1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckVersion {
    pub chid: Chid,
    pub version: u64,
}

/// Messages that are written on the socket of one user agent.
#[derive(Debug)]
pub enum AgentEvent {
    Session(SessionEvent),
    /// A WebSocket Ping frame with an empty payload.
    Ping,
    /// Reply to `{}`.
    Pong,
}

/// Messages of a session to its user agent, which has a socket of its own or is a member of a relay.
#[derive(Debug)]
pub enum SessionEvent {
    /// Reply to hello (PROTOCOL.md 1.6).
    Hello {
        /// UAID of this session from now on.
        uaid: Uaid,
        /// True if the user is new: this hello made the UAID.
        minted: bool,
        mode: Mode,
        /// Versions that differ from those in the hello.
        broadcasts: Box<BroadcastDelta>,
    },
    /// Reply to register; the edge seals the endpoint.
    Registered {
        uaid: Uaid,
        chid: Chid,
        /// Key that locks the endpoint.
        key: Option<KeyDigest>,
        /// 200, or 500 when storage failed.
        status: u16,
    },
    /// Reply to unregister.
    Unregistered {
        chid: Chid,
        /// 200, or 500 when storage failed.
        status: u16,
    },
    /// A notification.
    Notification {
        /// The edge seals its id as `version`.
        message: Arc<Message>,
        /// Name that `Input::Unsent` repeats when the socket took none of the frame.
        emission: EmissionId,
        /// True if the user agent has asked for the urgency.
        tells_urgency: bool,
    },
    /// Reply to urgency.
    Urgency {
        /// 200, 404 for an unknown word, or 500 when storage failed.
        status: u16,
    },
    /// New versions of subscribed broadcasts, and unknown ids.
    Broadcast(Box<BroadcastDelta>),
}

impl SessionEvent {
    /// Returns the name of the emission, of the session or, on a relay, of the connection.
    pub fn emission(&self) -> Option<EmissionId> {
        match self {
            SessionEvent::Notification { emission, .. } => Some(*emission),
            SessionEvent::Hello { .. }
            | SessionEvent::Registered { .. }
            | SessionEvent::Unregistered { .. }
            | SessionEvent::Urgency { .. }
            | SessionEvent::Broadcast(_) => None,
        }
    }
}

/// Broadcast versions that changed, and ids that do not exist.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct BroadcastDelta {
    pub changed: Vec<BroadcastVersion>,
    /// Requested ids that do not exist ("Broadcast not found").
    pub unknown: Vec<Box<str>>,
}
