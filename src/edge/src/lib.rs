//! Adapter between bytes and the shard machine: decodes the bytes of a connection to commands and writes events as
//! bytes.
//!
//! Each shard has one [`PushEdge`], on its thread. [`websocket`] serves user agents, and [`relay`] serves connections
//! that speak for several of them; [`messages`] reads what both say, and [`frames`] writes to both. [`endpoint`] serves
//! app servers, [`receipts`] their requests for the outcome of a message, and [`simplepush`] the app servers of
//! SimplePush. [`registration`] serves devices of mobile bridges, and [`node`] other nodes. [`ingest`] calls them and
//! counts the work, [`http`] reads the heads of the last five and [`http_body`] their bodies. [`respond`] and
//! [`published`] answer them, and [`response`] writes the responses. [`pages`] has health pages and [`front`] the page
//! of `/`, and [`close`] is the one table of goodbyes.
//! [`admission`] and [`sender_rates`] limit connections and senders, and [`access`] has the rules about callers, and
//! [`callers`] reads the addresses that proxies name.

#![forbid(unsafe_code)]

mod access;
mod respond;
mod response;
mod callers;
mod close;
mod config;
mod drafts;
mod endpoint;
mod events;
mod exchange;
mod uaid_generator;
mod frames;
mod front;
mod admission;
mod health;
mod http;
mod http_body;
mod ingest;
mod messages;
mod node;
mod pages;
mod published;
mod receipt_urls;
mod receipts;
mod registering;
mod registration;
mod reply;
mod relay;
mod sender_rates;
mod simplepush;
mod stats;
mod upgraded;
mod websocket;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use machine::simplepush::Mode;
use machine::stats::{Board, Counters as _, Histogram, HistogramMeaning, Meaning};
use machine::time::Now;
use machine::{AgentEvent, CloseReason, Event, SessionEvent};
use runtime::ports::{Edge, Emitted, Ingest, Ingested, Port, ProxyHeader, Refused};
use runtime::process_clock::ProcessClock;
use runtime::quota::PortQuotas;
use runtime::strangers;

use protocol::webpush::endpoint::{BadKey, TokenForm, Tokens};
use protocol::webpush::errno::ApiError;
use protocol::webpush::key::{BearerKeys, PointChecker};
use protocol::webpush::message_id::MessageIds;
use protocol::webpush::vapid::Verifier;
use protocol::wire::http1::Head;
use protocol::wire::url::{BaseUrl, Origin};

use access::Access;
pub use access::{AccessRules, Register};
pub use admission::AdmissionGate;
pub use callers::Forwarding;
pub use config::{BODY_BYTES_DEFAULT, EdgeConfig, EdgeKeys, UNFINISHED_BYTES_MAX, VAPID_CACHE_DEFAULT};
use events::Reporter;
pub use events::{Counts, Ended, EventKind, Events, Report};
use exchange::Exchange;
use front::Front;
pub use health::Health;
use registering::Registrations;
pub use registering::{BridgeProfiles, RegistrationSettings};
pub use response::VersionInfo;
pub use response::is_turned;
use response::{Context, HttpDate, Pages};
pub use stats::EdgeStats;
use uaid_generator::UaidGenerator;
use upgraded::{Fragments, Stage};

/// Maximum number of valid keys of registers in the cache.
const POINTS_MAX: usize = 4_096;

/// Translation between bytes and commands and events, for one shard; lives on its thread.
pub struct PushEdge {
    tokens: Tokens,
    ids: MessageIds,
    points: PointChecker,
    vapid: Verifier,
    node_keys: BearerKeys,
    fresh: UaidGenerator,
    pages: Pages,
    access: Access,
    forwarding: Forwarding,
    /// Address that the head of the last upgrade, or of the last call of the registration API, names.
    forwarded: Option<IpAddr>,
    /// Refusals by rules about callers that the reactor has not taken.
    refused: Refused,
    /// Signatures of the request that is being decoded.
    signatures: ingest::Signatures,
    front: Front,
    agent_url: Origin,
    date: HttpDate,
    location: String,
    receipts: receipt_urls::ReceiptUrls,
    registrations: Registrations,
    offers_receipts: bool,
    gate: Arc<AdmissionGate>,
    boot: u64,
    hsts: u32,
    senders: sender_rates::SenderRates,
    endpoint_url: BaseUrl,
    clock: Arc<ProcessClock>,
    form: TokenForm,
    /// Endpoint URL of the event that is being written.
    url: Vec<u8>,
    body_bytes_max: usize,
    simplepush: bool,
    reconcile: bool,
    relays: bool,
    unfinished: PortQuotas,
    /// Free places for requests under way.
    #[expect(clippy::vec_box, reason = "the boxes are what is used again: connections own one each")]
    exchanges: Vec<Box<Exchange>>,
    reporter: Reporter,
    stats: EdgeStats,
    /// Time from the head of a POST to its answer, for POSTs that reached the owner of the user.
    post_times: Histogram,
}

/// Decoding state of one connection.
pub enum Codec {
    /// A connection that speaks HTTP; on the WebSocket port it can become a WebSocket.
    Http {
        port: Port,
        /// True if its bytes come and go in TLS.
        tls: bool,
        /// True behind the head of a request that is no upgrade.
        sender: bool,
        /// Bytes of a request head that were read and wait for the rest; 0 if there is none.
        partial: u16,
        /// The request under way, between its head and its answer.
        exchange: Option<Box<Exchange>>,
        /// True if the connection was accepted when there was no place left for a WebSocket: no upgrade, and one
        /// answer.
        placeless: bool,
    },
    WebSocket {
        /// Fragments of a message whose last one has not arrived.
        fragments: Option<Box<Fragments>>,
        /// Family of the user agent; the hello event reports it.
        agent_family: u16,
        stage: Stage,
        /// Minute in which its hello was answered, 0 before.
        since: u16,
        /// Commands of its client, counted only if client events are logged.
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
    pub fn new(config: &EdgeConfig) -> Result<PushEdge, BadKey> {
        let access = Access::new(&config.rules);
        let base = &config.endpoint_url;
        Ok(PushEdge {
            tokens: Tokens::new(base, config.tokens, &config.keys.crypto)?,
            ids: MessageIds::new(&config.keys.crypto)?,
            points: PointChecker::new(POINTS_MAX),
            vapid: Verifier::new(base.origin(), config.vapid_cache_max),
            node_keys: BearerKeys::new(&config.keys.node),
            fresh: UaidGenerator::new(config.placement, config.shard),
            pages: Pages::new(&config.version),
            front: Front::new(&config.agent_url, access.sentence()),
            access,
            forwarding: config.forwarding.clone(),
            forwarded: None,
            refused: Refused::default(),
            signatures: ingest::Signatures::default(),
            agent_url: config.agent_url.clone(),
            date: HttpDate::default(),
            location: format!("{base}/m/"),
            receipts: receipt_urls::ReceiptUrls::new(base, &config.keys.crypto)?,
            registrations: Registrations::new(&config.registrations),
            offers_receipts: config.receipts,
            gate: Arc::clone(&config.gate),
            boot: config.boot,
            hsts: config.hsts,
            senders: sender_rates::SenderRates::new(config.origin_rate),
            endpoint_url: base.clone(),
            clock: Arc::clone(&config.clock),
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

    /// Replaces the keys. Sessions and requests under way go on. Tokens that no new key opens are unknown from now on.
    /// Nothing changes when a key is refused.
    pub fn rekey(&mut self, keys: &EdgeKeys) -> Result<(), BadKey> {
        let tokens = Tokens::new(&self.endpoint_url, self.form, &keys.crypto)?;
        self.ids = MessageIds::new(&keys.crypto)?;
        self.receipts.rekey(&keys.crypto)?;
        self.tokens = tokens;
        self.node_keys = BearerKeys::new(&keys.node);
        Ok(())
    }

    /// Replaces the queue of client events; `None`: the log has no lines for them.
    pub fn set_events(&mut self, events: Option<Arc<Events>>) {
        self.reporter.set_events(events);
    }

    /// Replaces the rules. Sessions and requests under way go on.
    pub fn set_rules(&mut self, rules: &AccessRules) {
        self.access = Access::new(rules);
        self.front = Front::new(&self.agent_url, self.access.sentence());
    }

    /// Counts a refusal by a rule. The reactor adds the address of the caller.
    fn refuse_access(&mut self, rule: strangers::Access) {
        self.refused.by_rule[rule as usize] += 1;
    }

    /// Counts a request that a rule refuses, with the address that its head names. The answer can come much later, when
    /// the body was read.
    fn refuse_caller(&mut self, head: &Head<'_, '_>, fault: ApiError) {
        let rule = match fault {
            ApiError::AccessToken => strangers::Access::Token,
            ApiError::SenderNotAllowed => strangers::Access::AllowedKeys,
            _ => return,
        };
        self.refuse_access(rule);
        self.refused.caller = self.forwarding.caller(head);
    }

    /// Reports a happening, if there is a queue.
    #[inline]
    fn tell(&mut self, happening: EventKind) {
        self.stats.log_events_dropped += self.reporter.tell(happening);
    }

    /// Counts and reports a refusal. Those by a rule about callers are counted at their head.
    fn refuse(&mut self, fault: ApiError) {
        self.stats.refused(fault);
        self.report_error(fault);
    }

    /// Reports a refusal that has another counter.
    fn report_error(&mut self, fault: ApiError) {
        if self.reporter.is_on() {
            let row = fault.row();
            let (port, status, errno, cause) = (self.reporter.port, row.status, row.errno, row.message);
            self.tell(EventKind::Refused { port, status, errno, cause });
        }
    }

    pub fn stats(&self) -> &EdgeStats {
        &self.stats
    }

    /// Seconds in `Strict-Transport-Security` of the answers of a connection (RFC 6797 section 7.2).
    fn hsts_of(&self, tls: bool) -> u32 {
        if tls { self.hsts } else { 0 }
    }

    /// Ends a connection whose half message or half body exceeds the quota.
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

    fn open(&mut self, port: Port, tls: bool) -> Codec {
        Codec::Http { port, tls, sender: false, partial: 0, exchange: None, placeless: false }
    }

    fn open_placeless(&mut self, port: Port) -> Option<Codec> {
        // Senders and other nodes have places of their own, and health checks may ask there.
        let heard = matches!(port, Port::WebSocket | Port::Public);
        // Over TLS nothing is said without a handshake.
        let codec = Codec::Http { port, tls: false, sender: false, partial: 0, exchange: None, placeless: true };
        heard.then_some(codec)
    }

    fn arrived(&mut self) -> Codec {
        Codec::websocket(0, Stage::WebPush)
    }

    fn resumed(&mut self, now: Now) -> Codec {
        let since = events::minute(now);
        Codec::WebSocket { fragments: None, agent_family: 0, stage: Stage::WebPush, since, counts: Counts::default() }
    }

    fn ingest(&mut self, now: Now, codec: &mut Codec, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingested {
        self.ingest_counted(now, codec, bytes, out)
    }

    fn emit(&mut self, now: Now, codec: &mut Codec, event: &Event, out: &mut Vec<u8>) -> Emitted {
        match (codec, event) {
            (Codec::Http { exchange, port, .. }, Event::Sender(event)) => {
                let Some(exchange) = self.take_asked(now, *port, exchange) else { return Emitted::Stay };
                let keep_alive = exchange.context.keep_alive;
                self.emit_sender(now, exchange, event, out);
                if keep_alive { Emitted::Stay } else { Emitted::Last }
            }
            (Codec::Http { exchange, port, .. }, Event::Registration(answer)) => {
                let Some(exchange) = self.take_asked(now, *port, exchange) else { return Emitted::Stay };
                self.emit_registration_answer(&exchange, answer, out);
                if exchange.context.keep_alive { Emitted::Stay } else { Emitted::Last }
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
                    self.tell(EventKind::Greeted { mode: stage.name() });
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
            | (Codec::WebSocket { .. }, Event::Sender(_) | Event::Registration(_) | Event::Node(_)) => {
                unreachable!("an event is of the kind of its connection")
            }
        }
    }

    fn close(&mut self, codec: &mut Codec, reason: CloseReason, out: &mut Vec<u8>) {
        match codec {
            Codec::Http { partial, exchange, port, tls, .. } => {
                let under_way = *partial > 0 || exchange.is_some();
                if let Some(fault) = close::http_fault(reason, under_way) {
                    self.reporter.on(*port);
                    self.report_error(fault);
                    let hsts = self.hsts_of(*tls);
                    let context = exchange.take().map_or(Context::of_port(*port, hsts), |exchange| exchange.context);
                    response::fault(&self.date, &context.closing(), fault, out);
                }
            }
            Codec::WebSocket { fragments, .. } => {
                // Frees the memory now, not when the goodbye is over.
                *fragments = None;
                if let Some((code, text)) = close::close_frame(reason) {
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
                reason => close::close_frame(reason).map(|(code, _)| code),
            };
            let (mode, minutes) = (stage.name(), events::minutes_since(*since, now));
            let (agent_family, counts) = (*agent_family, *counts);
            self.tell(EventKind::Ended(Ended { reason, code, mode, agent_family, minutes, counts }));
        }
    }

    fn mid_request(&self, codec: &Codec) -> bool {
        match codec {
            Codec::Http { partial, exchange, .. } => *partial > 0 || exchange.is_some(),
            Codec::WebSocket { fragments, .. } => fragments.is_some(),
        }
    }

    fn unfinished_is_tight(&self, port: Port) -> bool {
        self.unfinished.of(port).is_tight()
    }

    fn role(&self, codec: &Codec, port: Port) -> Port {
        match codec {
            Codec::WebSocket { .. } => Port::WebSocket,
            Codec::Http { port: Port::Public, sender: true, .. } => Port::Endpoint,
            Codec::Http { .. } => port,
        }
    }

    fn proxy_header(&self, bytes: &[u8]) -> ProxyHeader {
        callers::proxy_header(bytes)
    }

    fn forwarded(&mut self) -> Option<IpAddr> {
        self.forwarded.take()
    }

    fn take_refused(&mut self) -> Refused {
        std::mem::take(&mut self.refused)
    }

    fn is_websocket(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::WebSocket { .. })
    }

    fn too_many(&self, port: Port) -> &'static [u8] {
        // The queue counts the reports that it drops.
        self.reporter.tell(EventKind::Refused { port, status: 503, errno: None, cause: "Too many connections" });
        response::TOO_MANY
    }
}
