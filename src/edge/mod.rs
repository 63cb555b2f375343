//! The adapter between bytes and the shard machine: what a connection's bytes mean, and how events are spelled.
//!
//! One [`PushEdge`] per shard, on its thread. [`websocket`] speaks to user agents, [`relay`] to who speaks for several
//! of them, [`endpoint`] to app servers, [`receipts`] to those who ask what became of a message, [`simple`] to those of
//! SimplePush, [`node`] to other nodes; [`http`] drives the exchanges of the last four, [`answer`] writes their
//! responses and [`close`] is the one table of goodbyes. [`gate`] and [`senders`] are bounds on who may come.

mod answer;
mod close;
mod endpoint;
mod events;
mod fresh;
mod gate;
mod http;
mod node;
mod receipts;
mod relay;
mod senders;
mod simple;
mod stats;
mod websocket;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use machine::ids::ShardId;
use machine::place::Placement;
use machine::simple::Mode;
use machine::stats::{Board, Counters as _, Histogram, HistogramMeaning, Meaning};
use machine::time::Now;
use machine::{AgentEvent, CloseReason, Event, SessionEvent};
use shards::ports::{Edge, Emitted, Ingest, Port};
use shards::quota::PortQuotas;

use protocol::webpush::endpoint::{BadKey, TokenForm, Tokens, split_url};
use protocol::webpush::key::{BearerKeys, PointChecker};
use protocol::webpush::message_id::MessageIds;
use protocol::webpush::vapid::Verifier;

use answer::{HttpDate, Pages};
use events::Reporter;
pub use events::{Counts, Ended, Events, Happening, Report};
use fresh::FreshUaids;
pub use gate::Gate;
use http::Exchange;
pub use stats::EdgeStats;
use websocket::{Fragments, Session, Stage};

/// What an edge is told once. Plain values: reading and checking configuration is done elsewhere.
#[derive(Clone)]
pub struct EdgeConfig {
    /// `endpoint.url`: base of the URLs given to user agents; its origin is what VAPID's `aud` must be.
    pub endpoint_url: String,
    /// `endpoint.tokens`: which endpoint tokens are made.
    pub tokens: TokenForm,
    /// The keys to begin with.
    pub keys: EdgeKeys,
    /// Who owns whom.
    pub placement: Placement,
    /// Which shard this edge serves.
    pub shard: ShardId,
    /// The largest body of a POST, in bytes: [`BODY_BYTES_DEFAULT`].
    pub body_bytes_max: usize,
    /// `simplepush.enabled`: user agents that do not ask for WebPush are in SimplePush mode.
    pub simplepush: bool,
    /// Verified VAPID tokens remembered: [`VAPID_CACHE_DEFAULT`].
    pub vapid_cache_max: usize,
    /// Memory that half messages and half bodies may hold together, in bytes: [`UNFINISHED_BYTES_MAX`].
    pub unfinished_bytes_max: usize,
    /// Whether `relay.members` is not 0: a hello may make its connection a relay.
    pub relays: bool,
    /// `hello.reconcile`: the machine is told the channels of a hello.
    pub reconcile: bool,
    /// Which run of this node it is: other nodes say whom they mean (ARCHITECTURE.md 8.9).
    pub boot: u64,
    /// Whether WebSockets are welcome; the same for all shards.
    pub gate: Arc<Gate>,
    /// Whether `Prefer: respond-async` is heard. One node remembers what became of a message, so that several behind
    /// one name must not promise a receipt.
    pub receipts: bool,
    /// `endpoint.origin_rate`: messages per second of one application server; 0 is off.
    pub origin_rate: u32,
    /// What `/__version__` says.
    pub version: VersionInfo,
    /// Where it tells what clients meet; `None` when nobody logs it.
    pub events: Option<Arc<Events>>,
}

/// The secrets of an edge: the part of its configuration that may change while it runs. Not to be shown.
#[derive(Clone, Default)]
pub struct EdgeKeys {
    /// `endpoint.crypto_keys`: Fernet keys; the first seals, all open.
    pub crypto: Vec<String>,
    /// `node.keys`: any of them lets a node in; none lets nobody in.
    pub node: Vec<String>,
}

impl EdgeKeys {
    /// Whether an edge will take them.
    pub fn check(&self) -> Result<(), BadKey> {
        MessageIds::new(&self.crypto).map(|_| ())
    }
}

/// The facts of `/__version__` (PROTOCOL.md 7.1).
#[derive(Clone, Debug, Default)]
pub struct VersionInfo {
    /// Of the package.
    pub version: String,
    /// Of the source.
    pub commit: String,
    /// Where the source is.
    pub source: String,
    /// Which build.
    pub build: String,
}

/// PROTOCOL.md 2.6: 4,096 bytes of plain text fit after encryption and base64.
pub const BODY_BYTES_DEFAULT: usize = 5_630;
/// About 120 bytes each.
pub const VAPID_CACHE_DEFAULT: usize = 8_192;
/// Memory that fragments of messages and requests without the end of their body hold, for all connections of a shard:
/// 64 MiB are 1,024 messages of the largest size, or some 10,000 notifications on their way in. A million connections
/// could have 64 GiB of them. Each port has its own part (`PortQuotas` in `shards::quota`), and half of each part is
/// for those who hold little (`LITTLE_BYTES` there). At the bound the connection that takes more is closed 1013, or
/// answered 503.
pub const UNFINISHED_BYTES_MAX: usize = 64 << 20;
/// Keys of registers remembered as good.
const POINTS_MAX: usize = 4_096;

/// Bytes <-> domain for one shard; lives on its thread.
pub struct PushEdge {
    tokens: Tokens,
    ids: MessageIds,
    points: PointChecker,
    vapid: Verifier,
    node_keys: BearerKeys,
    fresh: FreshUaids,
    pages: Pages,
    date: HttpDate,
    location: String,
    receipts: receipts::Receipts,
    offers_receipts: bool,
    gate: Arc<Gate>,
    boot: u64,
    senders: senders::Senders,
    endpoint_url: String,
    form: TokenForm,
    /// The URL that is being told.
    url: Vec<u8>,
    body_bytes_max: usize,
    simplepush: bool,
    reconcile: bool,
    relays: bool,
    unfinished: PortQuotas,
    /// Places for requests under way that nobody uses.
    #[expect(clippy::vec_box, reason = "the boxes are what is used again: connections own one each")]
    exchanges: Vec<Box<Exchange>>,
    reporter: Reporter,
    stats: EdgeStats,
    /// From the head of a POST to its answer, of those that reached the owner of the user.
    post_times: Histogram,
}

/// Decoding state of one connection.
pub enum Codec {
    /// A connection that speaks HTTP; on the WebSocket port perhaps not for long.
    Http {
        /// Where it came in.
        port: Port,
        /// Part of a request head is waiting for the rest.
        partial: bool,
        /// The request under way, between its head and its answer.
        exchange: Option<Box<Exchange>>,
        /// It came in when there was no place left for a WebSocket: no upgrade, and one answer.
        placeless: bool,
    },
    /// An upgraded WebSocket.
    WebSocket {
        /// A fragmented message, as far as it is there.
        fragments: Option<Box<Fragments>>,
        /// Family of the user agent, told with the hello.
        agent_family: u16,
        /// How far it is, and what it speaks.
        stage: Stage,
        /// The minute in which its hello was answered, 0 before.
        since: u16,
        /// Commands of its client, where such events are logged.
        counts: Counts,
    },
}

const _: () = assert!(size_of::<Codec>() <= 16);

impl Codec {
    fn websocket(agent_family: u16, stage: Stage) -> Codec {
        Codec::WebSocket { fragments: None, agent_family, stage, since: 0, counts: Counts::default() }
    }
}

impl PushEdge {
    /// The edge of one shard.
    pub fn new(config: &EdgeConfig) -> Result<PushEdge, BadKey> {
        let (base, origin) = split_url(&config.endpoint_url).ok_or(BadKey::Url)?;
        Ok(PushEdge {
            tokens: Tokens::new(&config.endpoint_url, config.tokens, &config.keys.crypto)?,
            ids: MessageIds::new(&config.keys.crypto)?,
            points: PointChecker::new(POINTS_MAX),
            vapid: Verifier::new(&origin, config.vapid_cache_max),
            node_keys: BearerKeys::new(&config.keys.node),
            fresh: FreshUaids::new(config.placement, config.shard),
            pages: Pages::new(&config.version),
            date: HttpDate::default(),
            location: format!("{base}/m/"),
            receipts: receipts::Receipts::new(base, &config.keys.crypto)?,
            offers_receipts: config.receipts,
            gate: Arc::clone(&config.gate),
            boot: config.boot,
            senders: senders::Senders::new(config.origin_rate),
            endpoint_url: config.endpoint_url.clone(),
            form: config.tokens,
            url: Vec::new(),
            body_bytes_max: config.body_bytes_max,
            simplepush: config.simplepush,
            reconcile: config.reconcile,
            relays: config.relays,
            unfinished: PortQuotas::new(config.unfinished_bytes_max),
            exchanges: Vec::new(),
            reporter: Reporter::new(config.shard, config.events.clone()),
            stats: EdgeStats::default(),
            post_times: Histogram::default(),
        })
    }

    /// Takes other keys from now on. Sessions and requests under way go on; what no key of the new list opens is a
    /// stranger's. Nothing changes when a key is refused.
    pub fn rekey(&mut self, keys: &EdgeKeys) -> Result<(), BadKey> {
        let tokens = Tokens::new(&self.endpoint_url, self.form, &keys.crypto)?;
        self.ids = MessageIds::new(&keys.crypto)?;
        self.receipts.rekey(&keys.crypto)?;
        self.tokens = tokens;
        self.node_keys = BearerKeys::new(&keys.node);
        Ok(())
    }

    /// What it counted.
    pub fn stats(&self) -> &EdgeStats {
        &self.stats
    }

    /// Ends a connection whose half message or half body is more than there is room for.
    fn refuse_unfinished(&mut self) -> Ingest {
        self.stats.unfinished_refused += 1;
        Ingest::Close { reason: CloseReason::Overloaded }
    }
}

impl Edge for PushEdge {
    type Codec = Codec;

    const MEANINGS: &'static [Meaning] = EdgeStats::MEANINGS;

    fn write_to(&self, board: &Board, at: usize) {
        let (fragments, bodies) = (self.unfinished.of(Port::WebSocket).used(), self.unfinished.used());
        let stats = EdgeStats {
            unfinished_fragment_bytes: fragments as u64,
            unfinished_body_bytes: (bodies - fragments) as u64,
            ..self.stats.clone()
        };
        stats.write_to(board, at);
    }

    const HISTOGRAMS: &'static [HistogramMeaning] = &[HistogramMeaning {
        name: "post_duration_seconds",
        label: None,
        help: "Time from the head of a POST to its response, for POSTs that reached the owner shard of their user.",
    }];

    fn write_histograms(&self, board: &Board, at: usize) {
        board.set_histogram(at, &self.post_times);
    }

    fn open(&mut self, port: Port) -> Codec {
        Codec::Http { port, partial: false, exchange: None, placeless: false }
    }

    fn open_placeless(&mut self, port: Port) -> Option<Codec> {
        // Senders and other nodes have places of their own, and who looks after the process may ask there.
        let heard = port == Port::WebSocket;
        heard.then_some(Codec::Http { port, partial: false, exchange: None, placeless: true })
    }

    fn arrived(&mut self) -> Codec {
        Codec::websocket(0, Stage::WebPush)
    }

    fn ingest(&mut self, now: Now, codec: &mut Codec, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingest {
        match codec {
            Codec::Http { .. } => self.ingest_http(now, codec, bytes, out),
            Codec::WebSocket { fragments, agent_family, stage, since, counts } => {
                let before = *stage;
                let session = Session { fragments, agent_family: *agent_family, stage: &mut *stage };
                let ingest = self.ingest_websocket(session, bytes, out);
                if *stage == Stage::Relay && before != Stage::Relay {
                    *since = events::minute(now);
                    self.tell(Happening::Greeted { mode: stage.name() });
                }
                if self.reporter.is_on()
                    && let Ingest::Command { command, .. } = &ingest
                {
                    counts.take(command);
                }
                ingest
            }
        }
    }

    fn emit(&mut self, now: Now, codec: &mut Codec, event: &Event, out: &mut Vec<u8>) -> Emitted {
        match (codec, event) {
            (Codec::Http { exchange, port, .. }, Event::Sender(event)) => {
                let Some(exchange) = self.take_asked(now, *port, exchange) else { return Emitted::Stay };
                let keep_alive = exchange.context.keep_alive;
                self.emit_sender(now, exchange, event, out);
                if keep_alive { Emitted::Stay } else { Emitted::Last }
            }
            (Codec::Http { exchange, port, .. }, Event::Node(answer)) => {
                let Some(exchange) = self.take_asked(now, *port, exchange) else { return Emitted::Stay };
                self.emit_node_answer(&exchange.context, *answer, out);
                if exchange.context.keep_alive { Emitted::Stay } else { Emitted::Last }
            }
            (Codec::WebSocket { stage, since, .. }, Event::Agent(event)) => {
                if let AgentEvent::Session(SessionEvent::Hello { mode, .. }) = event {
                    *stage = if *mode == Mode::Simple { Stage::SimplePush } else { Stage::WebPush };
                    *since = events::minute(now);
                    self.tell(Happening::Greeted { mode: stage.name() });
                }
                self.emit_websocket(*stage == Stage::SimplePush, event, out);
                Emitted::Stay
            }
            (Codec::WebSocket { .. }, Event::Relay(event)) => {
                self.emit_relay(event, out);
                Emitted::Stay
            }
            // Invariant: the machine answers a connection in the kind of its command, and an HTTP connection with a
            // request under way is not upgraded.
            (Codec::Http { .. }, Event::Agent(_) | Event::Relay(_))
            | (Codec::WebSocket { .. }, Event::Sender(_) | Event::Node(_)) => {
                unreachable!("an event is of the kind of its connection")
            }
        }
    }

    fn close(&mut self, codec: &mut Codec, reason: CloseReason, out: &mut Vec<u8>) {
        match codec {
            Codec::Http { partial, exchange, port, .. } => {
                let under_way = *partial || exchange.is_some();
                if let Some(fault) = close::http_fault(reason, under_way) {
                    self.reporter.on(*port);
                    self.tell_fault(fault);
                    let exchange = exchange.take().unwrap_or_default();
                    answer::fault(&self.date, &exchange.context.closing(), fault, out);
                }
            }
            Codec::WebSocket { fragments, .. } => {
                // Their memory is needed now, not when the goodbye is over.
                *fragments = None;
                if let Some((code, text)) = close::websocket_goodbye(reason) {
                    self.stats.websocket_closes += 1;
                    protocol::wire::ws::write_close(out, Some(code), text);
                }
            }
        }
    }

    fn ended(&mut self, now: Now, codec: &Codec, reason: CloseReason) {
        if !self.reporter.is_on() {
            return;
        }
        if let Codec::WebSocket { fragments, agent_family, stage, since, counts } = codec {
            let code = match reason {
                CloseReason::PeerClosed => fragments.as_ref().and_then(|fragments| fragments.peer_code),
                reason => close::websocket_goodbye(reason).map(|(code, _)| code),
            };
            let (mode, minutes) = (stage.name(), events::minutes_since(*since, now));
            let (agent_family, counts) = (*agent_family, *counts);
            self.tell(Happening::Ended(Ended { reason, code, mode, agent_family, minutes, counts }));
        }
    }

    fn mid_request(&self, codec: &Codec) -> bool {
        match codec {
            Codec::Http { partial, exchange, .. } => *partial || exchange.is_some(),
            Codec::WebSocket { fragments, .. } => fragments.is_some(),
        }
    }

    fn unfinished_is_tight(&self, port: Port) -> bool {
        self.unfinished.of(port).is_tight()
    }

    fn is_websocket(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::WebSocket { .. })
    }

    fn too_many(&self, port: Port) -> &'static [u8] {
        // What does not fit is counted by the queue, too.
        self.reporter.tell(Happening::Refused { port, status: 503, errno: None, cause: "Too many connections" });
        answer::TOO_MANY
    }
}
