//! The seams of a shard: what its loop needs from the crates above. `Edge` is the only generic of the system;
//! storage is one boxed object per shard. Nothing here blocks.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use machine::ids::StoreTicket;
use machine::limits;
use machine::simplepush::WakeData;
use machine::stats::{Board, HistogramMeaning, Meaning};
use machine::time::{Now, TimeSpan};
use machine::upstream::{BridgeFailure, BridgeOutcome, UpstreamOp};
use machine::{CloseReason, Command, Event, PeerOp, PeerReply, StoreError, StoreOp, StoreReply};

/// Public port of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    /// User agents. Small receive spans.
    WebSocket,
    /// App servers. 8 KiB spans; dealt to the least loaded shard (ring/RULES.md rule 7).
    Endpoint,
    /// Other nodes. As endpoint.
    Node,
    /// User agents and app servers on one address. Only listeners are of this port: each of its connections is one of
    /// [`Port::WebSocket`] until its first head says otherwise ([`Edge::role`]).
    Public,
}

impl Port {
    /// Returns the port that a new connection of a listener counts as.
    pub fn first_role(self) -> Port {
        if self == Port::Public { Port::WebSocket } else { self }
    }
}

/// A listening socket of one shard.
#[derive(Debug)]
pub struct Listening {
    pub port: Port,
    /// Connections of it speak TLS.
    pub tls: bool,
    /// From [`crate::ring::listen`].
    pub socket: OwnedFd,
}

/// Hibernation of a shard: its idle sessions are frozen (decision 0034).
pub struct Hibernation {
    /// Silence in both directions after which a session is frozen.
    pub after: TimeSpan,
    /// The gate that holds the segments of frozen sessions.
    pub gate: hibernate::ShardGate,
    /// `None`: frozen sessions end with the process.
    pub records: Option<Records>,
    /// `None`: a Ping of the machine thaws a session.
    pub probes: Option<Probes>,
}

/// Probes of frozen sessions in place of Pings.
pub struct Probes {
    pub prober: hibernate::Prober,
    /// Silence after which a Ping thaws a session all the same, so that its user agent answers.
    pub ping_after: TimeSpan,
    /// Time for the answer to a probe; then the Ping itself is sent.
    pub answer_within: TimeSpan,
}

/// Records of the frozen sessions of a shard.
pub struct Records {
    /// Files for those of this process. `None`: they could not be made, and its frozen sessions end with it.
    pub files: Option<hibernate::RecordFiles>,
    /// Records of an earlier process whose users this shard owns.
    pub earlier: Vec<hibernate::Record>,
}

/// Bytes <-> domain: what a connection's bytes mean and how events are spelled. One per shard, on its thread.
pub trait Edge: 'static {
    /// Decoding state of one connection. Idle ones number a million: at most 16 bytes, heap only while
    /// something is half done.
    type Codec: Sized + 'static;

    /// Meanings of its numbers: its part of the shard's board.
    const MEANINGS: &'static [Meaning] = &[];

    /// Copies its numbers to the board, from place `at` on.
    fn write_to(&self, board: &Board, at: usize) {
        let _ = (board, at);
    }

    /// Meanings of its histograms: its part of the shard's board.
    const HISTOGRAMS: &'static [HistogramMeaning] = &[];

    /// Copies its histograms to the board, from place `at` on.
    fn write_histograms(&self, board: &Board, at: usize) {
        let _ = (board, at);
    }

    /// A connection was accepted on this port; `tls` is true if its bytes come and go in TLS.
    fn open(&mut self, port: Port, tls: bool) -> Self::Codec;

    /// A connection was accepted for which no place is left: the state in which it is heard once all the same, so that
    /// a health page can be asked for; `None` where [`Edge::too_many`] is all it is told.
    fn open_placeless(&mut self, port: Port) -> Option<Self::Codec> {
        let _ = port;
        None
    }

    /// A WebSocket arrived from another shard: upgraded, its hello decoded and not answered yet.
    fn arrived(&mut self) -> Self::Codec;

    /// A WebSocket of an earlier process goes on here: its hello was answered there.
    fn resumed(&mut self, now: Now) -> Self::Codec {
        let _ = now;
        self.arrived()
    }

    /// Decodes at most one request from the front of `bytes` (it may scribble on them, to unmask). Bytes it
    /// wants to answer at once are appended to `out`. Never called while a command is under way.
    fn ingest(&mut self, now: Now, codec: &mut Self::Codec, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingested;

    /// Appends the spelling of `event`.
    fn emit(&mut self, now: Now, codec: &mut Self::Codec, event: &Event, out: &mut Vec<u8>) -> Emitted;

    /// Appends the closing frame for this reason: a close frame, an HTTP error, or nothing.
    fn close(&mut self, codec: &mut Self::Codec, reason: CloseReason, out: &mut Vec<u8>);

    /// The connection ends for this reason, by us or by its peer: once for each that was open. [`Edge::close`] follows
    /// if there is something left to say.
    fn ended(&mut self, now: Now, codec: &Self::Codec, reason: CloseReason) {
        let _ = (now, codec, reason);
    }

    /// Returns true if a half-decoded request is under way: such a connection is ended after the request timeout, an
    /// idle one after the keep-alive timeout. For an upgraded WebSocket: true if a message is begun whose last fragment
    /// has not come.
    fn mid_request(&self, codec: &Self::Codec) -> bool;

    /// Returns true if unfinished requests and messages of this port hold enough memory that the oldest should be
    /// ended.
    fn unfinished_is_tight(&self, port: Port) -> bool {
        let _ = port;
        false
    }

    /// Returns the port that the connection counts as from now on; `port` is the one it counts as so far. Only a
    /// connection of [`Port::Public`] changes it, with the head of a request.
    fn role(&self, codec: &Self::Codec, port: Port) -> Port {
        let _ = codec;
        port
    }

    /// Reads a PROXY header at the front of `bytes`.
    fn proxy_header(&self, bytes: &[u8]) -> ProxyHeader {
        let _ = bytes;
        ProxyHeader::Malformed
    }

    /// Takes the address that the head of the last upgrade, or of the last registration by request, names as its
    /// caller's. The loop uses it only if a trusted proxy sent that head.
    fn forwarded(&mut self) -> Option<IpAddr> {
        None
    }

    /// Takes the requests since the last call that a rule about callers refused.
    fn take_refused(&mut self) -> Refused {
        Refused::default()
    }

    /// Returns true if the connection is an upgraded WebSocket: the machine then knows it.
    fn is_websocket(&self, codec: &Self::Codec) -> bool;

    /// The whole answer to a connection for which its port has no place (503 and close).
    fn too_many(&self, port: Port) -> &'static [u8];
}

/// Result of [`Edge::take_refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// Numbers by [`Access`](crate::strangers::Access).
    pub by_rule: [u64; 3],
    /// Address that the head of the last of them names as its caller's, as in [`Edge::forwarded`].
    pub caller: Option<IpAddr>,
}

/// Result of [`Edge::proxy_header`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyHeader {
    /// The front of a header; at most a bound that the edge keeps.
    Incomplete,
    /// No header.
    Malformed,
    /// A whole header.
    Whole {
        /// Its bytes.
        len: usize,
        /// Address of the caller; `None`: the proxy itself.
        source: Option<IpAddr>,
    },
}

/// Result of [`Edge::ingest`], and the work that it took.
#[derive(Debug)]
pub struct Ingested {
    pub ingest: Ingest,
    /// Cost of the work: [`limits::REQUEST_COST`] and more.
    pub cost: u32,
    /// Authorizations whose signature was verified in vain.
    pub failed_signatures: u32,
}

impl From<Ingest> for Ingested {
    /// The work of an ordinary request.
    fn from(ingest: Ingest) -> Ingested {
        Ingested { ingest, cost: limits::REQUEST_COST, failed_signatures: 0 }
    }
}

/// Meaning of the bytes at the front.
#[derive(Debug)]
pub enum Ingest {
    /// Not a whole request yet. `consumed` bytes are done with; the rest is kept aside until there are more.
    /// The edge bounds what it lets be kept: beyond its limits it says `Close`.
    More {
        /// Bytes that are done with.
        consumed: usize,
    },
    /// Something was consumed and perhaps answered into `out`; decode on.
    Next {
        /// Bytes that are done with.
        consumed: usize,
    },
    /// The connection became a WebSocket; `out` holds the 101. The loop tells the machine, then decodes on.
    Upgraded {
        /// Bytes that are done with.
        consumed: usize,
    },
    /// One request for the machine. The rest waits until it is `Ready`.
    Command {
        /// Bytes that are done with.
        consumed: usize,
        command: Command,
    },
    /// End the connection after sending what is in `out` and what `Edge::close` says for this reason.
    Close {
        /// Reason, which decides the close code or the HTTP status.
        reason: CloseReason,
    },
}

/// Work that is left after `emit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emitted {
    Stay,
    /// This was its last answer (HTTP `Connection: close`): goodbye once it is sent.
    Last,
}

/// A shard's handle to storage. Replies come back in any order but that of one UAID's operations.
pub trait Store {
    /// Takes an operation. The machine keeps the number outstanding under `limits::STORE_TICKETS_MAX`,
    /// so there is always room.
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp);

    /// The next reply, if one is there.
    fn collect(&mut self) -> Option<(StoreTicket, Result<StoreReply, StoreError>)>;
}

/// A shard's handle to the other nodes of a cluster. Replies come back in any order; every call gets one.
pub trait Peers {
    /// Takes a call. What does not fit the queue is answered `Unreachable`.
    fn submit(&mut self, ticket: StoreTicket, op: PeerOp);

    /// The next reply, if one is there.
    fn collect(&mut self) -> Option<(StoreTicket, PeerReply)>;
}

/// For a node that is alone.
pub struct NoPeers;

impl Peers for NoPeers {
    fn submit(&mut self, ticket: StoreTicket, op: PeerOp) {
        unreachable!("a node without a shared store knows no other: {ticket:?} {op:?}");
    }

    fn collect(&mut self) -> Option<(StoreTicket, PeerReply)> {
        None
    }
}

/// A shard's handle to the services of bridged users. Replies come back in any order; every call gets one.
pub trait Upstreams {
    /// Takes a call. What does not fit the queue is answered `Unavailable`.
    fn submit(&mut self, ticket: StoreTicket, op: UpstreamOp);

    /// The next reply, if one is there.
    fn collect(&mut self) -> Option<(StoreTicket, BridgeOutcome)>;
}

/// For a node that calls no such server. It answers every call at once as one whose profile is not configured.
#[derive(Default)]
pub struct NoUpstreams {
    replies: VecDeque<StoreTicket>,
}

impl Upstreams for NoUpstreams {
    fn submit(&mut self, ticket: StoreTicket, _: UpstreamOp) {
        self.replies.push_back(ticket);
    }

    fn collect(&mut self) -> Option<(StoreTicket, BridgeOutcome)> {
        let ticket = self.replies.pop_front()?;
        Some((ticket, BridgeOutcome::Failed(BridgeFailure::Configuration)))
    }
}

/// Hands the wake data of one user agent to the caller of the wake-up service (`simplepush.wake_url`). Called on the
/// shard's thread: it never blocks, and drops what does not fit its queue; the update waits for the next hello.
pub type Wake = Box<dyn Fn(WakeData) + Send>;

/// Log in which a shard's accepted directs survive `kill -9` (ARCHITECTURE.md 5). The real one is `ledger::Log`.
pub trait Ledger {
    /// Appends a record and marks it live. The machine reserves bytes first, so there is always room.
    fn append(&mut self, slot: machine::ids::LedgerSlot, message: &machine::message::Message);

    /// Marks it dead.
    fn dead(&mut self, slot: machine::ids::LedgerSlot);

    /// Persists that the shard's clock may reach `clock`, so that the next boot starts above it.
    fn clock_floor(&mut self, clock: machine::ids::Clock);
}
