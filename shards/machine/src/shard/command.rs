//! What edges ask of the machine ([`Command`]) and what the machine has them say ([`Event`]).
//!
//! A connection has at most one command under way: after a command the loop decodes no further bytes of
//! that connection until the machine says [`super::Effect::Ready`] (ring/RULES.md rule 8).

use std::sync::Arc;

use crate::ids::{Chid, EmissionId, KeyDigest, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::simple::{Mode, WakeData};

use super::receipt::{ReceiptAnswer, ReceiptQuery};
use super::row::RowKey;

/// One decoded request of a peer.
#[derive(Debug)]
pub enum Command {
    /// User agent: first message of a WebSocket (PROTOCOL.md 1.5). Answered by [`Event::Hello`].
    Hello(Box<Hello>),
    /// User agent: [`Event::Registered`] answers.
    Register {
        /// The channel, already checked to be spelled lower-case and dashed.
        chid: Chid,
        /// Digest of the VAPID key the endpoint is locked to, if any; already checked to be on the curve.
        key: Option<KeyDigest>,
    },
    /// User agent: [`Event::Unregistered`] answers, also for unknown channels.
    Unregister {
        /// The channel.
        chid: Chid,
        /// Why (200, 201, 202 of Firefox; 0 when absent). A counter only.
        code: u32,
    },
    /// User agent: no answer.
    Ack(Vec<AckUpdate>),
    /// User agent in SimplePush mode: no answer.
    AckVersions(Vec<AckVersion>),
    /// User agent: a service worker failed (301-303). A counter only.
    Nack {
        /// The code, 0 for anything undocumented.
        code: u32,
    },
    /// User agent: [`Event::Broadcast`] answers when something differs or is unknown.
    BroadcastSubscribe(Vec<BroadcastVersion>),
    /// User agent: the message `{}` or `{"messageType":"ping"}`. [`Event::Pong`] answers, or close 4774 when too soon.
    Ping,
    /// User agent: a WebSocket Pong frame arrived.
    Pong,
    /// Relay: it is one, or a message for a user agent it speaks for.
    Relay(RelayCommand),
    /// App server: a message. [`Event::Published`] answers.
    Publish(Box<Publish>),
    /// App server: `DELETE /m/{id}`. [`Event::Cancelled`] answers.
    Cancel(Box<Cancel>),
    /// App server: `GET /r/{receipt}`. [`Event::Receipt`] answers, perhaps after a while.
    Receipt(Box<ReceiptQuery>),
    /// Another node: `PUT /push/{uaid}` with a message that is already stamped. [`Event::NodeAnswer`] answers.
    NodePush(Box<NodePush>),
    /// Another node: `PUT /notif/{uaid}`. [`Event::NodeAnswer`] answers.
    NodeNotify(Box<NodeNotify>),
    /// Another node: `DELETE /notif/{uaid}/{connected_at}`. [`Event::NodeAnswer`] answers.
    NodeDisconnect {
        /// Whose session to end.
        uaid: Uaid,
        /// Only the session whose presence row says this (`Presence::connected_at`).
        connected_at: u64,
    },
}

/// The contents of a hello.
#[derive(Debug)]
pub struct Hello {
    /// The UAID the user agent says it has; `None` when absent, empty or not a UUID.
    pub uaid: Option<Uaid>,
    /// A fresh random UAID that falls in the slice of the shard on which the socket is now.
    pub fresh: Uaid,
    /// Its channels, where it said them and `hello.reconcile` is on.
    pub channels: Option<Box<[Chid]>>,
    /// Broadcasts to subscribe to with the last version known.
    pub broadcasts: Vec<BroadcastVersion>,
    /// Interned user-agent family, for the session log.
    pub agent_family: u16,
    /// What the user agent understands.
    pub mode: Mode,
    /// How it wants to be woken; only in mode `Simple`.
    pub wake: Option<WakeData>,
}

impl Hello {
    /// A hello that says who it is and nothing else.
    pub fn new(uaid: Option<Uaid>, fresh: Uaid) -> Hello {
        Hello { uaid, fresh, channels: None, broadcasts: Vec::new(), agent_family: 0, mode: Mode::WebPush, wake: None }
    }
}

/// A broadcast id and a version of it; both opaque texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastVersion {
    /// For example `remote-settings/monitor_changes`.
    pub id: Box<str>,
    /// What the peer has, or what is new.
    pub version: Box<str>,
}

/// One entry of an ack. `version` on the wire is the sealed message id; an id we did not seal is left out by the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckUpdate {
    /// Which message.
    pub stamp: Stamp,
    /// Its channel, from the sealed id.
    pub chid: Chid,
    /// Its topic, from the sealed id.
    pub topic: Option<Topic>,
    /// 100 delivered, 101 decryption error, 102 not delivered; all three settle (PROTOCOL.md 12).
    pub code: u16,
}

/// One entry of an ack in SimplePush mode: it ends every update of the channel up to this version (PROTOCOL.md 1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckVersion {
    /// The channel.
    pub chid: Chid,
    /// The version that was seen.
    pub version: u64,
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

/// A message that another node took.
#[derive(Debug)]
pub struct NodePush {
    /// Stamped by that node; its id is `version`.
    pub message: Arc<Message>,
    /// It is in storage already (`delivery.durable`).
    pub stored: bool,
}

/// Another node has stored something for a user.
#[derive(Debug)]
pub struct NodeNotify {
    /// Whose storage to check.
    pub uaid: Uaid,
    /// A push of this message got no answer there, and it was stored: when it was settled here, its row goes
    /// (PROTOCOL.md 4.1).
    pub unsure: Option<RowKey>,
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
    pub(super) fn row(&self) -> RowKey {
        RowKey { uaid: self.uaid, chid: self.chid, stamp: self.stamp, topic: self.topic }
    }
}

/// What the machine has an edge write on one connection.
#[derive(Debug)]
pub enum Event {
    /// The reply to hello (PROTOCOL.md 1.6).
    Hello {
        /// The UAID this session has from now on.
        uaid: Uaid,
        /// In which mode it is.
        mode: Mode,
        /// Versions that differ from what the user agent said.
        broadcasts: Box<BroadcastDelta>,
    },
    /// The reply to register; the edge seals the endpoint.
    Registered {
        /// Of this session.
        uaid: Uaid,
        /// The channel.
        chid: Chid,
        /// The key the endpoint is locked to.
        key: Option<KeyDigest>,
        /// 200, or 500 when storage failed.
        status: u16,
    },
    /// The reply to unregister.
    Unregistered {
        /// The channel.
        chid: Chid,
        /// 200, or 500 when storage failed.
        status: u16,
    },
    /// A notification to the user agent.
    Notification {
        /// What to send; the edge seals its id as `version`.
        message: Arc<Message>,
        /// Named again in [`super::Input::Unsent`] when the socket took none of its frame.
        emission: EmissionId,
    },
    /// New versions of subscribed broadcasts, and ids nobody knows.
    Broadcast(Box<BroadcastDelta>),
    /// The reply to `{}`.
    Pong,
    /// A WebSocket Ping frame with an empty payload.
    Ping,
    /// To a relay.
    Relay(Box<RelayEvent>),
    /// The reply to a POST.
    Published(Published),
    /// The reply to a cancel: 204, or 503 when storage failed.
    Cancelled {
        /// Whether storage has taken it.
        done: bool,
    },
    /// The reply to a look at a receipt.
    Receipt(ReceiptAnswer),
    /// The reply to another node (PROTOCOL.md 4.1).
    NodeAnswer(NodeAnswer),
}

impl Event {
    /// The emission this is, of the session or, on a relay, of the connection.
    pub fn emission(&self) -> Option<EmissionId> {
        match self {
            Event::Notification { emission, .. } => Some(*emission),
            Event::Relay(event) => match &**event {
                RelayEvent::Of { event: Event::Notification { emission, .. }, .. } => Some(*emission),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Broadcast versions that changed, and ids that do not exist.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct BroadcastDelta {
    /// id and new version.
    pub changed: Vec<BroadcastVersion>,
    /// Ids asked for that nobody knows ("Broadcast not found").
    pub unknown: Vec<Box<str>>,
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

/// Statuses of the node API (PROTOCOL.md 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAnswer {
    /// 200: queued to the session, or the session checks storage now, or it was ended.
    Done,
    /// 202: noted; the session checks storage when it can.
    Noted,
    /// 404: no such session here.
    NotHere,
    /// 503: the window is full; the session's sticky flag is set, store it.
    Busy,
}

/// Why we end a connection; the edge has the one table to close codes and HTTP statuses (PROTOCOL.md
/// 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CloseReason {
    /// No hello in time. 1011.
    HandshakeTimeout,
    /// No Pong in time. 1011.
    PongTimeout,
    /// A WebSocket message was begun and not finished within `http.request_timeout`. 1008.
    MessageTimeout,
    /// The socket took no byte for `websocket.auto_ping_timeout` while something was owed to it. 1008.
    NotReading,
    /// A message this state does not allow: not hello first, hello twice. 1011.
    WrongState,
    /// Invalid JSON, unknown messageType, wrong types, missing fields. 1011.
    BadMessage,
    /// A binary frame or first frame that is not text. 1003.
    Unsupported,
    /// A frame that RFC 6455 forbids. 1002.
    ProtocolError,
    /// Text that is not UTF-8. 1007.
    BadText,
    /// A message beyond the size limit. 1009.
    TooBig,
    /// `{}` more often than `websocket.ping_min_interval`. 4774.
    PingTooSoon,
    /// A SimplePush session that can be woken said and was sent nothing for `simplepush.wake_timeout`. 4774.
    IdledOut,
    /// A newer session of this UAID. 1011.
    Superseded,
    /// Another node says the user is there, or asked to end it. 1011.
    Elsewhere,
    /// Storage could not say who this is. 1011.
    StorageDown,
    /// This shard or its target is full, or too many hellos wait. 1013.
    Overloaded,
    /// The socket could not be moved to its owner. 1013.
    MoveFailed,
    /// A budget of this session is used up (registers, parked ids). 1013.
    BudgetExhausted,
    /// The user was dropped on purpose; it starts over. 1000.
    Reset,
    /// The server is going away. 1001.
    Draining,
    /// The peer sent Close; its code is echoed.
    PeerClosed,
    /// HTTP: the exchange is complete and the connection is not kept.
    Finished,
    /// HTTP: too slow or idle too long. 408 while a request is under way, else nothing.
    Idle,
    /// The edge has already written the last words.
    Said,
}

/// Commands of a relay to its home.
#[derive(Debug)]
pub enum RelayCommand {
    /// The first message of its WebSocket: "I speak for others". [`RelayEvent::Opened`] answers.
    Open,
    /// One more user agent. [`Event::Hello`] in [`RelayEvent::Of`] answers, or [`RelayEvent::Bye`].
    Attach(Box<Hello>),
    /// A command of a member; answered as for a session of its own.
    For {
        /// UAID of the member.
        uaid: Uaid,
        /// Register, unregister, ack, nack or broadcast_subscribe.
        command: Box<Command>,
    },
    /// The relay speaks for this user agent no more. [`RelayEvent::Bye`] answers, also when it did not.
    Bye(Uaid),
}

/// Messages that are written on the socket of a relay.
#[derive(Debug)]
pub enum RelayEvent {
    /// It is a relay from now on.
    Opened {
        /// Most members at a time.
        members: u16,
    },
    /// As it would be written on a session of this member's own.
    Of {
        /// UAID of the member.
        uaid: Uaid,
        /// The reply to hello, register or unregister, a notification, or a broadcast.
        event: Event,
    },
    /// This user agent is no member any more, or could not become one.
    Bye {
        /// UAID of the member; `None` when a hello without a UAID failed.
        uaid: Option<Uaid>,
        /// Reason; `PeerClosed` when the relay asked for it.
        reason: CloseReason,
    },
}
