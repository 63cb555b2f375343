//! A connection, both ends, and what each side knows of it.

use std::collections::{BTreeMap, VecDeque};

use machine::ids::{Chid, ConnId, EmissionId, Stamp, Uaid};
use machine::message::{Message, Urgency};
use machine::{AckUpdate, BroadcastDelta, BroadcastVersion, CloseReason, Command, ShardMachine};

/// Index into the world's sockets; never reused.
pub(crate) type SocketId = usize;

/// Place of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Connected, and not accepted yet.
    Waiting { shard: usize },
    /// In the ring of a shard, under this name.
    At { shard: usize, conn: ConnId },
    /// A member of a relay: no shard knows it by a name.
    Member { relay: usize },
    /// Between two rings.
    Moving,
    /// Frozen, and left to the next process, which has not said its hello yet.
    Left,
    /// Closed at the server's end.
    #[default]
    Ended,
}

/// One connection, both ends.
#[derive(Default)]
pub(crate) struct Socket {
    /// Its user agent; `None` for app servers.
    pub(crate) agent: Option<usize>,
    pub(crate) place: Place,
    /// Its relay, and the members whose hellos the relay has said and not had decoded.
    pub(crate) relay: Option<usize>,
    pub(crate) attaching: VecDeque<SocketId>,
    /// The loop may decode a command.
    pub(crate) ready: bool,
    /// Sent by the peer and not decoded.
    pub(crate) inbox: VecDeque<Command>,
    /// Received before a move and not decoded: travels with the mail.
    pub(crate) carried: VecDeque<Command>,
    /// Sent by the server and not read.
    pub(crate) outbox: VecDeque<Frame>,
    pub(crate) blocked: Option<Blocked>,
    /// It hibernates.
    pub(crate) frozen: Option<Box<Frozen>>,
    /// The server has given it up, and its peer does not know.
    pub(crate) is_stale: bool,
    /// The peer has not closed.
    pub(crate) peer_open: bool,
    pub(crate) peer: Peer,
    pub(crate) session: Session,
}

/// A socket that takes no more bytes.
#[derive(Default)]
pub(crate) struct Blocked {
    /// The machine knows.
    pub(crate) told: bool,
    pub(crate) unsent: VecDeque<EmissionId>,
    /// Begun or never refused: goes out first.
    pub(crate) tail: VecDeque<Frame>,
}

/// The user agent's view of a connection.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) hello_sent: bool,
    pub(crate) asked: Option<Uaid>,
    pub(crate) uaid: Option<Uaid>,
    pub(crate) silent: bool,
    pub(crate) paused: bool,
    pub(crate) got: Vec<AckUpdate>,
    pub(crate) acked: Vec<AckUpdate>,
    pub(crate) pinged_at: Option<u64>,
    /// No ack before this, of one that acks in batches.
    pub(crate) batch_at: u64,
    pub(crate) broadcasts: BTreeMap<Box<str>, Box<str>>,
}

/// The oracle's view of the session on a socket.
#[derive(Default)]
pub(crate) struct Session {
    /// The UAID that the machine said in its hello.
    pub(crate) served: Option<Uaid>,
    /// Step at which the hello was decoded.
    pub(crate) hello_step: u64,
    /// The channels that it said, where `hello.reconcile` is on.
    pub(crate) channels_said: Option<Box<[Chid]>>,
    /// Minimum urgency that surely holds, and the one that waits for its reply.
    pub(crate) minimum: Urgency,
    pub(crate) naming: Urgency,
    /// Time of the last command that the machine took (monotonic nanoseconds).
    pub(crate) heard_at: u64,
    /// Storage knew the UAID of the hello when it was decoded.
    pub(crate) known: bool,
    /// Messages that the socket took: how often, and when last (monotonic nanoseconds).
    pub(crate) sent: BTreeMap<Stamp, (u32, u64)>,
    /// The clocks of this connection as its user agent sees them (monotonic nanoseconds).
    pub(crate) clocks: Clocks,
    /// Time at which its hello was answered, wall milliseconds.
    pub(crate) connected_at: u64,
    /// Of a member: its session is over as far as its owner knows.
    pub(crate) stale: bool,
    /// The bytes it moved with came back.
    pub(crate) fed: bool,
}

/// Times of events on a connection.
#[derive(Default)]
pub(crate) struct Clocks {
    pub(crate) opened: u64,
    pub(crate) greeted: u64,
    /// The server's last Ping, and the one that waits for its Pong.
    pub(crate) pinged: Option<u64>,
    pub(crate) pong_owed: Option<u64>,
    /// The last two messages `{}`.
    pub(crate) client_pings: [Option<u64>; 2],
}

impl Session {
    /// A frame was refused: the machine may send this message as if it had not been sent before.
    pub(crate) fn refused(&mut self, stamp: Option<Stamp>) {
        if let Some(sent) = stamp.and_then(|stamp| self.sent.get_mut(&stamp)) {
            *sent = (0, 0);
        }
    }
}

/// Frames that a user agent reads.
#[derive(Debug)]
pub(crate) enum Frame {
    Hello(Uaid, Box<BroadcastDelta>),
    Registered(Chid, u16),
    Unregistered(Chid, u16),
    Urgency,
    Notification(Box<Message>),
    Broadcast(Box<BroadcastDelta>),
    Ping,
    Pong,
    Closed(CloseReason),
    /// To a member of a relay.
    Of(SocketId, Box<Frame>),
}

impl Socket {
    /// A connection that a peer opens to a shard.
    pub(crate) fn new(agent: Option<usize>, place: Place) -> Socket {
        Socket { agent, place, peer_open: true, ..Socket::default() }
    }

    /// Returns true if the machine knows it as one.
    pub(crate) fn is_websocket(&self) -> bool {
        self.agent.is_some() || self.relay.is_some()
    }

    pub(crate) fn can_receive(&self) -> bool {
        self.peer_open && !self.outbox.is_empty() && !self.peer.paused && !self.peer.silent
    }

    pub(crate) fn can_decode(&self) -> bool {
        let tail = self.blocked.as_ref().is_some_and(|blocked| !blocked.tail.is_empty());
        self.ready && !tail && self.frozen.is_none() && !(self.inbox.is_empty() && self.carried.is_empty())
    }

    pub(crate) fn takes_bytes(&self) -> bool {
        self.outbox.is_empty() && self.frozen.is_none()
    }
}

/// The part of a session that outlives its process.
#[derive(Clone)]
pub(crate) struct SessionRecord {
    pub(crate) uaid: Uaid,
    pub(crate) broadcasts: Vec<BroadcastVersion>,
}

impl SessionRecord {
    /// The record of a session on this connection, if a hello makes it again.
    pub(crate) fn of(machine: &ShardMachine, conn: machine::ids::ConnId) -> Option<SessionRecord> {
        let hello = machine.hello_of(conn)?;
        Some(SessionRecord { uaid: hello.fresh, broadcasts: hello.broadcasts })
    }
}

/// A connection without a socket.
#[derive(Default)]
pub(crate) struct Frozen {
    /// Its record in a file; without one it ends with the process.
    pub(crate) record: Option<SessionRecord>,
    /// Frames that wait for the thaw.
    pub(crate) frames: VecDeque<(Frame, Option<EmissionId>)>,
    /// Earliest thaw for a frame, and arrival of a segment (monotonic nanoseconds).
    pub(crate) thaw_at: u64,
    pub(crate) segment_at: u64,
    /// The kernel makes no socket before this.
    pub(crate) fails_until: u64,
    /// Time of the first thaw for a frame that failed.
    pub(crate) failed_at: Option<u64>,
    /// Time at which the kernel of the peer answers a probe.
    pub(crate) probe_at: Option<u64>,
    /// The peer has gone and its last segment was lost: only a frame shows that.
    pub(crate) deaf: bool,
}

impl Frozen {
    /// Returns true if something arrives for it or leaves it.
    pub(crate) fn is_due(&self, socket: &Socket) -> bool {
        self.owes_frame(socket) || self.has_segment(socket) || self.probe_at.is_some()
    }

    /// Returns true if it must be thawed for a frame.
    pub(crate) fn owes_frame(&self, socket: &Socket) -> bool {
        !self.frames.is_empty() || socket.blocked.is_some()
    }

    /// Returns true if its peer has said something.
    pub(crate) fn has_segment(&self, socket: &Socket) -> bool {
        !self.deaf && (!socket.inbox.is_empty() || !socket.peer_open)
    }
}
