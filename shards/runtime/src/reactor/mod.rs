//! The loop of one shard: reap, step, carry out, submit, park.
//!
//! A turn reaps what the rings completed, turns it into inputs of the machine, carries out the effects of each
//! input before the next, and stages what must be sent; the next turn submits it. When a turn found nothing to
//! do the shard parks. Each concern is one file: [`accept`], [`callers`], [`recv`], [`begun`], [`send`], [`sealed`]
//! (TLS), [`lines`] (who is served next), [`lingering_close`], [`hand_off`], [`http_timeouts`] (timeouts of requests
//! and blocked sockets), [`input_horizon`] (silences), [`hibernation`], [`park`]; [`event_loop`] is the loop itself.
//!
//! Lives on: the shard's thread.

mod accept;
mod admission;
mod begun;
mod caller_rules;
mod callers;
mod control;
mod lingering_close;
mod lines;
mod hand_off;
mod input_horizon;
mod stats;
mod park;
mod recv;
mod sealed;
mod send;
mod event_loop;
mod hibernation;
mod http_timeouts;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::mailbox::{Mailbox, Waker};
use crate::poll::PollPlane;
use crate::ports::{Edge, Hibernation, Ledger, Listening, Peers, Port, Records, Store, Upstreams, Wake};
use crate::process_clock::ProcessClock;
use crate::ring::{ConnBufferPool, Conns, Fence, Plane, PlaneConfig, PlaneKind, RingPlane, RingUses};
use crate::tls::{Tls, TlsStats};
use machine::ids::{ConnId, EmissionId, ShardId, StoreTicket, Uaid};
use machine::limits;
use machine::stats::{Board, Counters, HistogramMeaning, Meaning};
use machine::time::{Instant, Now, TimeSpan};
use machine::upstream::BridgeOutcome;
use machine::{
    DeliveryTimes, EffectQueue, Hello, Input, MachineStats, PeerReply, ShardMachine, StoreError, StoreReply,
};

pub use caller_rules::{CallerRules, Proxies};
pub use control::ControlMessage;
pub(crate) use control::ControlQueue;
pub use stats::{CloseStats, PlaneStats};

/// Bytes that a peer may still send once it was told the end: what its socket and ours hold when it writes a whole
/// message before it reads. Sockets of clients hold some 200 KB at first and 4 MiB at most (net.ipv4.tcp_wmem). A
/// client that sends more without reading may see a reset in place of the reason.
const LINGER_BYTES_MAX: u32 = 1 << 20;

/// Limits of a shard's connections.
#[derive(Clone, Copy, Debug)]
pub struct PlaneLimits {
    /// Connections this shard may have; beyond it they are answered 503 and closed.
    pub connections_max: u32,
    /// Longest time that an HTTP request, the upgrade of a WebSocket, and a message on it may take to arrive.
    pub request_timeout: TimeSpan,
    /// Longest time in which a WebSocket that is owed something may take no byte.
    pub blocked_timeout: TimeSpan,
    /// Longest time from the accept of a TLS connection to the end of its handshake.
    pub handshake_timeout: TimeSpan,
    /// Longest time that an HTTP connection may be idle between requests.
    pub keep_alive_timeout: TimeSpan,
    /// Longest time that a peer may take to receive the last bytes and to close.
    pub linger_timeout: TimeSpan,
    /// Bytes that it may still send meanwhile.
    pub linger_bytes: u32,
    /// Bytes of unfinished input that all connections may keep aside together: `limits::UNFINISHED_BYTES_MAX`.
    pub unfinished_bytes_max: usize,
    /// Slots of one ring's table at most; the soft limit on descriptors and 2^20 bound it too.
    pub table_max: u32,
    /// The `backlog` of its listening sockets: tables leave room for it.
    pub backlog: u16,
    /// Kind of the plane, the same for all shards of a process.
    pub kind: PlaneKind,
}

impl PlaneLimits {
    /// The usual limits for a shard of `connections_max` connections.
    pub fn new(connections_max: u32) -> PlaneLimits {
        PlaneLimits {
            connections_max,
            request_timeout: TimeSpan::from_secs(30),
            blocked_timeout: TimeSpan::from_secs(30),
            handshake_timeout: TimeSpan::from_secs(10),
            keep_alive_timeout: TimeSpan::from_secs(75),
            linger_timeout: TimeSpan::from_secs(2),
            linger_bytes: LINGER_BYTES_MAX,
            unfinished_bytes_max: limits::UNFINISHED_BYTES_MAX,
            table_max: u32::MAX,
            backlog: limits::BACKLOG_DEFAULT,
            kind: PlaneKind::Rings,
        }
    }

    /// Returns the tables for `connections_max` connections. The soft limit on descriptors caps the table of a ring. On
    /// the poll plane that limit applies to all sockets of the process together, and caps no table.
    fn layout(&self) -> PlaneConfig {
        let nofile = match self.kind {
            PlaneKind::Rings => crate::ring::nofile_limit().min(u64::from(u32::MAX)) as u32,
            PlaneKind::Poll => u32::MAX,
        };
        PlaneConfig::sized(self.connections_max, self.table_max.min(nofile), self.backlog)
    }

    /// Returns the fence of a shard with these uses.
    pub(crate) fn fence(&self, uses: RingUses) -> Fence {
        match self.kind {
            PlaneKind::Rings => Fence::of(u32::from(self.layout().rings), uses),
            PlaneKind::Poll => Fence::default(),
        }
    }

    /// Opens the plane of a shard, on its thread.
    fn open(&self, config: PlaneConfig, uses: RingUses, waker: &Waker) -> io::Result<Box<dyn Plane>> {
        Ok(match self.kind {
            PlaneKind::Rings => Box::new(RingPlane::new(config, uses, waker.event_fd())?),
            PlaneKind::Poll => Box::new(PollPlane::new(config, waker.event_fd())?),
        })
    }
}

/// Returns the uses that a shard with these parts has for its rings.
pub(crate) fn ring_uses(callers: &CallerRules, hibernation: Option<&Hibernation>) -> RingUses {
    RingUses { asks_addresses: callers.need_addresses(), freezes: hibernation.is_some() }
}

/// State machine that the loop drives: the shard's, and in this crate's tests a script in its place.
pub(crate) trait Machine: 'static {
    /// Meanings of its numbers.
    const MEANINGS: &'static [Meaning];
    const HISTOGRAMS: &'static [HistogramMeaning] = &[];
    /// As `ShardMachine::step`.
    fn step(&mut self, now: Now, input: Input, effects: &mut EffectQueue);
    /// As `ShardMachine::next_timeout`.
    fn next_timeout(&self) -> Option<Instant>;
    /// As `ShardMachine::hello_of`.
    fn hello_of(&self, conn: ConnId) -> Option<Hello> {
        let _ = conn;
        None
    }
    /// As `ShardMachine::owes_nothing_but`.
    fn owes_nothing_but(&self, idle: usize) -> bool;
    /// As `ShardMachine::has_user`.
    fn has_user(&self, uaid: Uaid) -> bool {
        let _ = uaid;
        false
    }
    /// Copies its numbers to the board, from place `at` on.
    fn write_to(&mut self, board: &Board, at: usize);
    /// Copies its histograms to the board, from the first place on.
    fn write_histograms(&self, board: &Board) {
        let _ = board;
    }
}

impl Machine for ShardMachine {
    const MEANINGS: &'static [Meaning] = MachineStats::MEANINGS;

    const HISTOGRAMS: &'static [HistogramMeaning] = DeliveryTimes::MEANINGS;

    fn step(&mut self, now: Now, input: Input, effects: &mut EffectQueue) {
        ShardMachine::step(self, now, input, effects);
    }

    fn next_timeout(&self) -> Option<Instant> {
        ShardMachine::next_timeout(self)
    }

    fn hello_of(&self, conn: ConnId) -> Option<Hello> {
        ShardMachine::hello_of(self, conn)
    }

    fn owes_nothing_but(&self, idle: usize) -> bool {
        ShardMachine::owes_nothing_but(self, idle)
    }

    fn has_user(&self, uaid: Uaid) -> bool {
        ShardMachine::has_user(self, uaid)
    }

    fn write_to(&mut self, board: &Board, at: usize) {
        self.stats().write_to(board, at);
    }

    fn write_histograms(&self, board: &Board) {
        self.delivery_times().write_to(board);
    }
}

/// Parts of a reactor.
pub(crate) struct Parts<E: Edge, M> {
    pub edge: E,
    pub machine: M,
    pub store: Box<dyn Store>,
    pub peers: Box<dyn Peers>,
    pub upstreams: Box<dyn Upstreams>,
    pub ledger: Box<dyn Ledger>,
    pub wake: Wake,
    pub mailbox: Mailbox,
    pub control: Arc<ControlQueue<E>>,
    pub listeners: Vec<Listening>,
    pub tls: Box<dyn Tls>,
    pub callers: CallerRules,
    pub hibernation: Option<Hibernation>,
    pub limits: PlaneLimits,
    /// From [`ring_uses`]: what the fence of the rings allows.
    pub uses: RingUses,
    pub board: Arc<Board>,
    pub clock: Arc<ProcessClock>,
}

/// One shard at work.
pub(crate) struct Reactor<E: Edge, M = ShardMachine> {
    edge: E,
    machine: M,
    store: Box<dyn Store>,
    peers: Box<dyn Peers>,
    upstreams: Box<dyn Upstreams>,
    ledger: Box<dyn Ledger>,
    wake: Wake,
    mailbox: Mailbox,
    control: Arc<ControlQueue<E>>,
    limits: PlaneLimits,
    board: Arc<Board>,
    clock: Arc<ProcessClock>,
    /// State of the clock that the machine was told last.
    clock_stopped: bool,
    /// Time of this turn.
    now: Now,

    plane: Box<dyn Plane>,
    conns: Conns<E::Codec>,
    buffer_pool: ConnBufferPool,
    listeners: Vec<accept::Listener>,
    tls: Box<dyn Tls>,
    handshakes: sealed::Handshakes,
    lines: lines::Lines,
    callers: callers::Callers,
    accepting: accept::Accepting,
    http: http_timeouts::HttpTimeouts,
    websockets: http_timeouts::HttpTimeouts,
    /// By `Port as usize`.
    begun: [begun::Begun; 3],
    lingering: VecDeque<lingering_close::CloseDeadline>,
    hibernator: Option<hibernation::Hibernator>,

    /// Completions that one turn handles.
    completions_max: usize,
    input_horizon: input_horizon::InputHorizon,

    /// Inputs that the machine has not been told yet.
    inputs: VecDeque<Input>,
    effects: EffectQueue,
    /// Connections with something to send.
    dirty: Vec<ConnId>,
    /// Connections that wait for a receive span.
    starved: VecDeque<ConnId>,
    /// Connections of app servers that are handed over between two requests.
    senders_to_move: VecDeque<ConnId>,
    /// A reply that was collected while parking.
    collected: Option<(StoreTicket, Result<StoreReply, StoreError>)>,
    /// As `collected`, of another node.
    heard: Option<(StoreTicket, PeerReply)>,
    /// As `collected`, of the service of a bridged user.
    answered: Option<(StoreTicket, BridgeOutcome)>,
    /// Buffer that an edge writes into before it is known whether there are bytes to send.
    scratch: Vec<u8>,
    /// TLS: what was received last, and what was written while it was opened.
    ciphertext: Vec<u8>,
    wire: Vec<u8>,
    unsent: Vec<EmissionId>,

    stats: PlaneStats,
    closes: CloseStats,
    published: Instant,
    /// The numbers may have changed since they were published, or never were: gauges have values from the start.
    unpublished: bool,
    stopping: bool,
    parking: park::Parking,
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Opens the rings and publishes them to the other shards. On the shard's thread.
    pub(crate) fn new(parts: Parts<E, M>) -> io::Result<Reactor<E, M>> {
        let Parts { edge, machine, store, peers, upstreams, ledger, wake, mailbox, control, .. } = parts;
        let (listeners, tls, limits, board, clock) =
            (parts.listeners, parts.tls, parts.limits, parts.board, parts.clock);
        let config = limits.layout();
        let plane = limits.open(config, parts.uses, mailbox.waker())?;
        mailbox.publish_rings((0..plane.rings()).map(|ring| plane.address(ring)).collect());
        let now = clock.now();
        let waker = Arc::clone(mailbox.waker());
        let (hibernator, records) = hibernation::Hibernator::of(parts.hibernation, now.mono);
        let mut reactor = Reactor {
            edge,
            machine,
            store,
            peers,
            upstreams,
            ledger,
            wake,
            mailbox,
            control,
            limits,
            board,
            clock,
            clock_stopped: false,
            now,
            conns: Conns::new(config.rings, config.shift()),
            plane,
            buffer_pool: ConnBufferPool::new(limits.unfinished_bytes_max),
            listeners: listeners.into_iter().map(accept::Listener::new).collect(),
            tls,
            handshakes: sealed::Handshakes::default(),
            lines: lines::Lines::default(),
            callers: callers::Callers::new(parts.callers),
            accepting: accept::Accepting::default(),
            http: http_timeouts::HttpTimeouts::new(
                limits.request_timeout.min(limits.keep_alive_timeout).min(limits.handshake_timeout),
            ),
            websockets: http_timeouts::HttpTimeouts::new(limits.request_timeout.min(limits.blocked_timeout)),
            begun: Default::default(),
            lingering: VecDeque::new(),
            hibernator,
            completions_max: event_loop::COMPLETIONS_PER_TURN,
            input_horizon: input_horizon::InputHorizon::new(now.mono),
            inputs: VecDeque::new(),
            effects: EffectQueue::with_capacity(limits::EFFECTS_PER_INPUT_MAX),
            dirty: Vec::new(),
            starved: VecDeque::new(),
            senders_to_move: VecDeque::new(),
            collected: None,
            heard: None,
            answered: None,
            scratch: Vec::new(),
            ciphertext: Vec::new(),
            wire: Vec::new(),
            unsent: Vec::new(),
            stats: PlaneStats { poll_shards: u64::from(limits.kind == PlaneKind::Poll), ..PlaneStats::default() },
            closes: CloseStats::default(),
            published: now.mono,
            unpublished: true,
            stopping: false,
            parking: park::Parking::default(),
        };
        reactor.begin_hibernation(records, waker);
        Ok(reactor)
    }

    /// Takes the sessions of an earlier process over, and lets the gate begin.
    fn begin_hibernation(&mut self, records: Option<Records>, waker: Arc<Waker>) {
        let (files, earlier) = match records {
            Some(Records { files, earlier }) => (files, earlier),
            None => (None, Vec::new()),
        };
        if let Some((hibernator, files)) = self.hibernator.as_mut().zip(files) {
            hibernator.write_records(files);
        }
        let held = self.take_over(earlier);
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.attach(held, move || waker.wake());
        }
    }

    /// The numbers of a shard, in the order of its board.
    pub(crate) fn board() -> Board {
        let numbers =
            Board::new(&[PlaneStats::MEANINGS, CloseStats::MEANINGS, TlsStats::MEANINGS, M::MEANINGS, E::MEANINGS]);
        numbers.with_histograms(&[M::HISTOGRAMS, E::HISTOGRAMS, hibernation::ThawTimes::MEANINGS])
    }

    /// Copies every number to the board, and gives back what a burst made the queues grow to.
    fn publish(&mut self) {
        trim(&mut self.lingering);
        trim(&mut self.inputs);
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.trim();
        }
        self.handshakes.trim();
        self.lines.trim();
        self.callers.trim();
        self.plane.trim();
        self.published = self.now.mono;
        self.unpublished = false;
        self.stats.connections = u64::from(self.conns.open_count());
        self.stats.connections_max = u64::from(self.limits.connections_max);
        self.stats.ring_submits = self.plane.enters();
        let waiting = |of: &[lines::Line]| of.iter().map(|line| self.lines.len(*line) as u64).sum();
        self.stats.senders_waiting = waiting(&[lines::Line::Senders, lines::Line::NewSenders]);
        self.stats.sessions_waiting = waiting(&[lines::Line::Sessions]);
        self.stats.newcomers_waiting = waiting(&[lines::Line::Newcomers, lines::Line::Handshakes]);
        self.stats.refused_waiting = waiting(&[lines::Line::Refused, lines::Line::Failing]);
        let hibernator = self.hibernator.as_ref();
        self.stats.frozen = hibernator.map_or(0, |hibernator| hibernator.frozen().into());
        self.stats.takeovers_waiting = hibernator.map_or(0, |hibernator| hibernator.taken_over() as u64);
        self.stats.frozen_recorded = hibernator.map_or(0, |hibernator| hibernator.recorded().into());
        self.stats.frozen_bytes = hibernator.map_or(0, |hibernator| hibernator.heap_bytes() as u64);
        if self.mailbox.shard() == ShardId(0)
            && let Some(hibernator) = hibernator
        {
            let [judged, unknown, dropped] = hibernator.segments();
            self.stats.segments_judged = judged;
            self.stats.segments_unknown = unknown;
            self.stats.segments_dropped = dropped;
        }
        self.stats.side_entries = self.buffer_pool.used() as u64;
        self.stats.side_bytes = self.buffer_pool.heap_bytes() as u64;
        let unfinished = self.buffer_pool.unfinished();
        self.stats.unfinished_bytes = unfinished.used() as u64;
        self.stats.unfinished_websocket_bytes = unfinished.of(Port::WebSocket).used() as u64;
        self.stats.unfinished_endpoint_bytes = unfinished.of(Port::Endpoint).used() as u64;
        self.stats.unfinished_node_bytes = unfinished.of(Port::Node).used() as u64;
        self.stats.slab_bytes = (self.conns.heap_bytes() + self.callers.heap_bytes()) as u64;
        let next = self.stats.write_to(&self.board, 0);
        let next = self.closes.write_to(&self.board, next);
        let next = self.tls.stats().write_to(&self.board, next);
        self.machine.write_to(&self.board, next);
        self.edge.write_to(&self.board, next + M::MEANINGS.len());
        self.machine.write_histograms(&self.board);
        self.edge.write_histograms(&self.board, M::HISTOGRAMS.len());
        if let Some(hibernator) = &self.hibernator {
            hibernator.thaw_times.write_to(&self.board, M::HISTOGRAMS.len() + E::HISTOGRAMS.len());
        }
    }

    /// Milliseconds since the process started, wrapping.
    fn now_ms(&self) -> u32 {
        (self.now.mono.0 / 1_000_000) as u32
    }

    /// The connections that are left, for the report.
    pub(crate) fn connections(&self) -> u32 {
        self.conns.open_count()
    }
}

/// Halves a queue that is mostly empty: what a burst of connections needed must not be paid for by idle ones.
fn trim<T>(queue: &mut VecDeque<T>) {
    const SMALL: usize = 1_024;
    if queue.capacity() > SMALL && queue.len() < queue.capacity() / 4 {
        queue.shrink_to((queue.capacity() / 2).max(SMALL));
    }
}
