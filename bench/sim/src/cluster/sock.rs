//! User agents, the WebSockets between them and the nodes, and the channels that they ask for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use machine::ids::{Chid, ConnId, Stamp, Uaid};
use machine::message::Urgency;
use machine::{AckUpdate, AgentEvent, Command, Event, SessionEvent};

/// Index into the sockets of a cluster; never reused.
pub(super) type SockId = usize;

/// One user agent.
#[derive(Default)]
pub(super) struct Agent {
    /// It speaks SimplePush.
    pub(super) simple: bool,
    pub(super) uaid: Option<Uaid>,
    /// Channels that it believes to be registered.
    pub(super) channels: BTreeSet<Chid>,
    pub(super) sock: Option<SockId>,
    /// It does not connect before this.
    pub(super) retry_at: u64,
}

/// Place of the server's end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Place {
    #[default]
    Waiting,
    At(ConnId),
    Moving,
    Ended,
}

/// A WebSocket, both ends.
#[derive(Default)]
pub(super) struct Sock {
    pub(super) agent: usize,
    pub(super) node: usize,
    pub(super) shard: usize,
    pub(super) place: Place,
    pub(super) ready: bool,
    pub(super) inbox: VecDeque<Command>,
    pub(super) outbox: VecDeque<Frame>,
    /// The user agent is gone and the node can know it.
    pub(super) closed: bool,
    /// User that its hello named, if storage knew it before.
    pub(super) known: Option<Uaid>,
    /// Answer of the machine to its hello.
    pub(super) served: Option<Uaid>,
    /// The newest stamp that it was sent.
    pub(super) sent_up_to: Option<Stamp>,
    /// Minimum urgency that surely holds, and the one that waits for its reply.
    pub(super) minimum: Urgency,
    pub(super) naming: Urgency,
    /// Time of the last command that its machine was given, or of the answer to its hello.
    pub(super) spoke: u64,
    /// Step at which it was opened.
    pub(super) since: u64,
    pub(super) greeted: bool,
    /// An unregister on it was refused.
    pub(super) unsure: bool,
    pub(super) got: Vec<AckUpdate>,
    /// Versions of the channels whose register or unregister is under way.
    pub(super) asking: BTreeMap<Chid, u64>,
}

/// Frames that a user agent reads.
#[derive(Debug)]
pub(super) enum Frame {
    Hello(Uaid),
    Registered(Chid, u16),
    Unregistered(Chid, u16),
    Urgency,
    Notification(AckUpdate),
    Ping,
    Closed,
}

impl Frame {
    /// Takes from an event the part that a user agent acts on.
    pub(super) fn of(event: Event) -> Option<Frame> {
        let event = match event {
            Event::Agent(AgentEvent::Session(event)) => event,
            Event::Agent(AgentEvent::Ping) => return Some(Frame::Ping),
            _ => return None,
        };
        Some(match event {
            SessionEvent::Hello { uaid, .. } => Frame::Hello(uaid),
            SessionEvent::Registered { chid, status, .. } => Frame::Registered(chid, status),
            SessionEvent::Unregistered { chid, status } => Frame::Unregistered(chid, status),
            SessionEvent::Urgency { .. } => Frame::Urgency,
            SessionEvent::Notification { message, .. } => {
                let (stamp, chid, topic) = (message.stamp, message.chid, message.topic);
                Frame::Notification(AckUpdate { stamp, chid, topic, code: 100 })
            }
            SessionEvent::Broadcast(_) => return None,
        })
    }
}

/// State of one channel, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    /// `None` while it is not known.
    pub(super) registered: Option<bool>,
    /// Counts what was asked for.
    pub(super) version: u64,
    /// The latest step at which an unregister may have taken effect.
    pub(super) unregistered: Option<u64>,
    /// The socket that the last 200 to a register was for, and the step of that.
    pub(super) registered_on: Option<(SockId, u64)>,
}
