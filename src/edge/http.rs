//! HTTP exchanges: head, body, one request to the machine or an answer of the edge, and the answer.
//!
//! The edge decides on a request when its head is complete, and answers when it has read the body. The next request of
//! a kept connection therefore starts in the right place. An unwanted body is discarded up to [`BODY_CUT_BYTES`];
//! beyond that the edge answers at once and ends the connection.

use std::sync::Arc;

use machine::ids::{Chid, Uaid};
use machine::message::Message;
use machine::time::{Instant, Now};
use machine::{CloseReason, Command, Publish, RegistrationAnswer, SenderCommand, SenderEvent};
use shards::ports::{Ingest, Port};

use super::access::TOKEN_PATH;
use super::drafts::Posted;
use super::exchange::{BodyAction, Exchange, Pending, Stage};
use super::forward::{self, ForwardStep};
use super::front::Front;
use super::registering;
use super::reply::Reply;
use super::response::{self, Context, HEARTBEAT};
use super::{Codec, EventKind, PushEdge};
use protocol::webpush::errno::ApiError;
use protocol::wire::body::{BodyReader, Piece};
use protocol::wire::http1::{Framing, HEAD_BYTES_MAX, Head, HeaderSlots, Malformed, find_head, parse_head};
use protocol::wire::upgrade::{self, UpgradeError};

/// Maximum number of bytes of an unwanted body, its framing included, that are read to keep the connection. A wanted
/// body is smaller, unless it comes in tiny chunks with extensions of the maximum length.
pub const BODY_CUT_BYTES: u64 = 64 * 1024;
/// Seconds after which a user agent that was sent to another node may try again: the next node is there at once.
const ELSEWHERE_SECONDS: u32 = 1;
const NOT_WELCOME: Reply = Reply::FaultUntil(ApiError::NotWelcome, ELSEWHERE_SECONDS);
/// Answer to an upgrade when the node has no place left, and to the health check of a load balancer then.
const FULL: Reply = Reply::FaultUntil(ApiError::NotWelcome, 120);
const STOPPING: Reply = Reply::FaultUntil(ApiError::Stopping, ELSEWHERE_SECONDS);

/// Maximum number of free places for requests under way: 16 KiB.
const EXCHANGES_KEPT: usize = 64;

// `Codec` counts the bytes of half a head in 16 bits.
const _: () = assert!(HEAD_BYTES_MAX <= u16::MAX as usize);

/// State of one call of `ingest`.
struct IngestContext<'t> {
    now: Now,
    port: Port,
    begun: Instant,
    /// Number of consumed bytes before those that are being read.
    base: usize,
    exchange: &'t mut Option<Box<Exchange>>,
    out: &'t mut Vec<u8>,
}

/// The answer of UnifiedPush servers to GET of any endpoint (PROTOCOL.md 2.1). It reads no token.
const DISCOVERY: &[u8] = br#"{"unifiedpush":{"version":1}}"#;

impl PushEdge {
    /// Reads one request, or the part of it in these bytes.
    pub(super) fn ingest_http(&mut self, now: Now, codec: &mut Codec, bytes: &[u8], out: &mut Vec<u8>) -> Ingest {
        self.date.set(now.unix());
        let Codec::Http { port, tls, sender, partial, exchange, placeless } = codec else {
            return Ingest::Close { reason: CloseReason::Said };
        };
        self.reporter.on(*port);
        if let Some(under_way) = exchange.take() {
            let Exchange { context, stage: Stage::Body(pending), begun } = *under_way else {
                // The loop decodes nothing while a command is under way.
                return Ingest::Close { reason: CloseReason::Said };
            };
            let cx = IngestContext { now, begun, port: *port, base: 0, exchange, out };
            return self.read_body(context, *pending, bytes, cx);
        }
        match bytes {
            // A line end behind a body, as old senders write it (RFC 9112 section 2.2).
            [b'\r', b'\n', ..] => return Ingest::Next { consumed: 2 },
            [b'\r'] => return Ingest::More { consumed: 0 },
            _ => {}
        }
        let (port, placeless, hsts) = (*port, *placeless, self.hsts_of(*tls));
        let length = match find_head(bytes, usize::from(*partial)) {
            Ok(Some(length)) => length,
            Ok(None) => {
                // `find_head` refuses what is longer than a head may be.
                *partial = bytes.len() as u16;
                return Ingest::More { consumed: 0 };
            }
            Err(malformed) => return self.malformed(&Context::of_port(port, hsts), malformed, out),
        };
        *partial = 0;
        let (head, body) = bytes.split_at(length);
        let mut slots = HeaderSlots::new();
        let head = match parse_head(head, &mut slots) {
            Ok(head) => head,
            Err(malformed) => return self.malformed(&Context::of_port(port, hsts), malformed, out),
        };
        let mut context = Context::of(port, hsts, &head);
        // After one answer the slot is free again.
        context.keep_alive &= !placeless;
        let is_front = matches!(port, Port::WebSocket | Port::Public) && head.path == "/";
        if head.lacks_host && port != Port::WebSocket && !is_front {
            return self.malformed(&context, Malformed::Syntax, out);
        }
        let is_session =
            is_front || (matches!(port, Port::WebSocket | Port::Public) && head.path.starts_with(TOKEN_PATH));
        if is_session && head.method == "GET" && upgrade::is_asked(&head) {
            return match if placeless { Err(FULL) } else { self.upgrade(&head, hsts, out) } {
                Ok(websocket) => {
                    *codec = websocket;
                    Ingest::Upgraded { consumed: length }
                }
                Err(reply) => {
                    let context = Context { keep_alive: false, ..context };
                    let cx = IngestContext { now, begun: now.mono, port, base: length, exchange, out };
                    self.begin(&head, context, BodyAction::Reply(reply), body, cx)
                }
            };
        }
        *sender = true;
        let plan = self.plan(now, port, placeless, &head);
        self.begin(
            &head,
            context,
            plan,
            body,
            IngestContext { now, begun: now.mono, port, base: length, exchange, out },
        )
    }

    /// Writes the 101, if this is an upgrade and there is room. Returns the codec of the WebSocket.
    fn upgrade(&mut self, head: &Head<'_, '_>, hsts: u32, out: &mut Vec<u8>) -> Result<Codec, Reply> {
        let accepted = upgrade::check(head).map_err(|fault| {
            Reply::Fault(match fault {
                UpgradeError::Required => ApiError::UpgradeRequired,
                UpgradeError::Malformed => ApiError::BadUpgrade,
            })
        })?;
        if !self.access.admits(head) {
            return Err(Reply::Fault(ApiError::AccessToken));
        }
        if self.gate.is_stopping() {
            return Err(STOPPING);
        }
        if self.gate.is_full() {
            return Err(NOT_WELCOME);
        }
        self.stats.upgrades += 1;
        self.forwarded = self.forwarding.caller(head);
        self.gate.enter();
        accepted.write(hsts, out);
        let agent_family = accepted.agent_family;
        self.tell(EventKind::Upgraded { agent_family });
        Ok(Codec::websocket(agent_family, super::upgraded::Stage::Upgraded))
    }

    /// Returns the plan for a head that is no upgrade.
    fn plan(&mut self, now: Now, port: Port, placeless: bool, head: &Head<'_, '_>) -> BodyAction {
        if self.gate.is_stopping() && response::is_health(head.path) && matches!(head.method, "GET" | "HEAD") {
            return BodyAction::Reply(STOPPING);
        }
        match port {
            Port::WebSocket | Port::Public if head.path == "/" => Front::plan(head),
            // Health check that a load balancer makes before it sends more.
            Port::WebSocket | Port::Public if head.path == HEARTBEAT && placeless => BodyAction::Reply(FULL),
            Port::WebSocket | Port::Public if head.path == HEARTBEAT && self.gate.is_full() => {
                BodyAction::Reply(NOT_WELCOME)
            }
            Port::WebSocket => self.plan_page(head),
            Port::Public if placeless => BodyAction::Reply(FULL),
            Port::Public if self.is_for_operators(head.path) => BodyAction::Reply(Reply::Fault(ApiError::NotFound)),
            Port::Endpoint | Port::Public => self.plan_endpoint(now, head),
            Port::Node => self.plan_node(head),
        }
    }

    /// Begins to read the body of a request, if any of it is read at all.
    fn begin(
        &mut self,
        head: &Head<'_, '_>,
        context: Context,
        plan: BodyAction,
        body: &[u8],
        cx: IngestContext<'_>,
    ) -> Ingest {
        if let BodyAction::Reply(Reply::Fault(fault)) = plan {
            self.refuse_caller(head, fault);
        }
        let share = self.unfinished.of(cx.port).share();
        let pending = Pending { reader: BodyReader::new(head.framing), seen: 0, wire: 0, plan, share };
        if self.cuts_at_head(head, &pending.plan, cx.out) {
            return self.cut(context, pending, cx);
        }
        self.read_body(context, pending, body, cx)
    }

    /// Returns true if the body is not read: it is too long to be discarded, or the client expects 100 and the body is
    /// not wanted. Otherwise sends the 100 that the client expects.
    fn cuts_at_head(&mut self, head: &Head<'_, '_>, plan: &BodyAction, out: &mut Vec<u8>) -> bool {
        let length = match head.framing {
            Framing::Length(length) => length,
            Framing::Chunked => 1,
        };
        if length > BODY_CUT_BYTES {
            self.stats.http_bodies_cut += 1;
            return true;
        }
        if !head.expects_continue || length == 0 {
            return false;
        }
        let wanted = match plan {
            BodyAction::Reply(_) => false,
            BodyAction::Post(_) => length <= self.body_bytes_max as u64,
            BodyAction::Update(_) => length <= self.form_bytes_max(),
            BodyAction::Registration(draft) => draft.wants_body() && length <= registering::BODY_BYTES_MAX,
            BodyAction::Forward(_) => length <= forward::BODY_BYTES_MAX,
            BodyAction::Ask(_) | BodyAction::Node { .. } => true,
        };
        if wanted {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        !wanted
    }

    fn read_body(&mut self, context: Context, mut pending: Pending, bytes: &[u8], mut cx: IngestContext<'_>) -> Ingest {
        let mut rest = bytes;
        loop {
            let used = match pending.reader.read(rest) {
                Err(malformed) => return self.malformed(&context, malformed, cx.out),
                Ok(Piece::Done) => return self.finish(context, pending, cx),
                Ok(Piece::More) if pending.is_refused(self.unfinished.of(cx.port), &context) => {
                    // The answer needs the context.
                    *cx.exchange = Some(Box::new(Exchange { context, stage: Stage::Asked, begun: cx.begun }));
                    return self.refuse_unfinished();
                }
                Ok(Piece::More) => {
                    let stage = Stage::Body(Box::new(pending));
                    *cx.exchange = Some(Box::new(Exchange { context, stage, begun: cx.begun }));
                    return Ingest::More { consumed: cx.base };
                }
                Ok(Piece::Data(length)) => {
                    self.take(&mut pending, &rest[..length]);
                    length
                }
                Ok(Piece::Framing(length)) => length,
            };
            rest = &rest[used..];
            cx.base += used;
            pending.wire += used as u64;
            if pending.wire + pending.reader.announced() > BODY_CUT_BYTES {
                self.stats.http_bodies_cut += 1;
                return self.cut(context, pending, cx);
            }
        }
    }

    /// Keeps a piece of a wanted body.
    fn take(&self, pending: &mut Pending, piece: &[u8]) {
        pending.seen += piece.len() as u64;
        match &mut pending.plan {
            BodyAction::Post(draft) if pending.seen <= self.body_bytes_max as u64 => draft.payload.extend(piece),
            BodyAction::Node { body, .. } if pending.seen <= super::node::BODY_BYTES_MAX => {
                body.extend_from_slice(piece)
            }
            BodyAction::Registration(draft) => draft.extend(piece, pending.seen),
            BodyAction::Update(draft) if pending.seen <= self.form_bytes_max() => draft.extend(piece),
            BodyAction::Forward(draft) if pending.seen <= forward::BODY_BYTES_MAX => draft.extend(piece),
            BodyAction::Post(_)
            | BodyAction::Update(_)
            | BodyAction::Forward(_)
            | BodyAction::Node { .. }
            | BodyAction::Reply(_)
            | BodyAction::Ask(_) => {}
        }
    }

    /// Carries out the plan without the rest of the body, since the body is incomplete. The connection ends with the
    /// answer.
    fn cut(&mut self, context: Context, pending: Pending, cx: IngestContext<'_>) -> Ingest {
        self.finish(Context { keep_alive: false, ..context }, Pending { seen: u64::MAX, ..pending }, cx)
    }

    /// Carries out the plan with the wanted part of the body.
    fn finish(&mut self, context: Context, pending: Pending, cx: IngestContext<'_>) -> Ingest {
        let IngestContext { now, begun, base: consumed, exchange, out, .. } = cx;
        let too_large = |limit: u64| pending.seen > limit;
        let (command, stage) = match pending.plan {
            BodyAction::Reply(reply) => return self.reply(&context, &reply, consumed, out),
            BodyAction::Ask(command) => (command, Stage::Asked),
            BodyAction::Post(draft) => {
                let (uaid, chid) = (draft.uaid, draft.chid);
                let too_large = too_large(self.body_bytes_max as u64);
                let message = if too_large { Err(ApiError::TooLarge) } else { draft.finish(now.unix()) };
                let (topic, ttl, receipt) = message.as_ref().map_or((None, 0, false), |m| (m.topic, m.ttl, m.receipt));
                (publish(uaid, chid, message), Stage::Posted(Posted { uaid, chid, topic, ttl, receipt }))
            }
            BodyAction::Update(draft) => {
                let (uaid, chid) = (draft.uaid, draft.chid);
                let too_large = too_large(self.form_bytes_max());
                let message =
                    if too_large { Err(ApiError::TooLarge) } else { draft.finish(now.unix(), self.body_bytes_max) };
                (publish(uaid, chid, message), Stage::Updated)
            }
            BodyAction::Registration(draft) => {
                match self.finish_registration(now, *draft, too_large(registering::BODY_BYTES_MAX)) {
                    Ok((command, asked)) => (command, Stage::Registering(Box::new(asked))),
                    Err(reply) => return self.reply(&context, &reply, consumed, out),
                }
            }
            BodyAction::Forward(draft) => match self.finish_forward(*draft, too_large(forward::BODY_BYTES_MAX)) {
                ForwardStep::Ask(call, forwarding) => {
                    (SenderCommand::Forward(call).into(), Stage::Forwarding(forwarding))
                }
                ForwardStep::Reply(reply) => return self.reply(&context, &reply, consumed, out),
            },
            BodyAction::Node { call, uaid, body } => {
                let too_large = too_large(super::node::BODY_BYTES_MAX);
                let command = if too_large { Err(ApiError::TooLarge) } else { self.read_node_call(call, uaid, &body) };
                match command {
                    Ok(command) => (command.into(), Stage::Asked),
                    Err(fault) => return self.reply(&context, &Reply::Fault(fault), consumed, out),
                }
            }
        };
        *exchange = Some(self.under_way(Exchange { context, stage, begun }));
        Ingest::Command { consumed, command }
    }

    /// Stores a request until its answer comes.
    fn under_way(&mut self, exchange: Exchange) -> Box<Exchange> {
        match self.exchanges.pop() {
            Some(mut place) => {
                *place = exchange;
                place
            }
            None => Box::new(exchange),
        }
    }

    /// Removes a stored request; the next one reuses its place.
    pub(super) fn answered(&mut self, mut place: Box<Exchange>) -> Exchange {
        let exchange = std::mem::take(&mut *place);
        if self.exchanges.len() < EXCHANGES_KEPT {
            self.exchanges.push(place);
        }
        exchange
    }

    fn reply(&mut self, context: &Context, reply: &Reply, consumed: usize, out: &mut Vec<u8>) -> Ingest {
        match reply {
            Reply::Fault(fault) => {
                self.refuse(*fault);
                response::fault(&self.date, context, *fault, out);
            }
            Reply::FaultUntil(fault, retry_after) => {
                self.refuse(*fault);
                response::fault_until(&self.date, context, *fault, *retry_after, out);
            }
            Reply::WrongMethod(fault, allow) => {
                self.refuse(*fault);
                response::wrong_method(&self.date, context, *fault, allow, out);
            }
            Reply::Options(requested, allow) => {
                response::options(&self.date, context, requested.as_deref(), allow, out);
            }
            Reply::Empty => response::start(&self.date, context, 200, out).empty(),
            Reply::Page(path) => {
                let body = self.pages.find(path).unwrap_or_default();
                let response = response::start(&self.date, context, 200, out);
                response.header("Content-Type", b"application/json").body(body, context.to_head);
            }
            Reply::Front(is_html) => self.front.write(&self.date, context, *is_html, out),
            Reply::Discovery => {
                let response = response::start(&self.date, context, 200, out);
                response.header("Content-Type", b"application/json").body(DISCOVERY, context.to_head);
            }
            Reply::Boot => {
                let body = format!(r#"{{"boot":"{:016x}"}}"#, self.boot);
                let response = response::start(&self.date, context, 200, out);
                response.header("Content-Type", b"application/json").body(body.as_bytes(), context.to_head);
            }
        }
        if context.keep_alive { Ingest::Next { consumed } } else { Ingest::Close { reason: CloseReason::Finished } }
    }

    fn malformed(&mut self, context: &Context, malformed: Malformed, out: &mut Vec<u8>) -> Ingest {
        let fault = match malformed {
            Malformed::Syntax => ApiError::BadRequest,
            Malformed::HeadTooLarge => ApiError::HeadTooLarge,
        };
        self.refuse(fault);
        response::fault(&self.date, &context.closing(), fault, out);
        Ingest::Close { reason: CloseReason::Said }
    }

    /// Takes the request under way, whose answer is written next. Returns `None` if there was no request.
    pub(super) fn take_asked(
        &mut self,
        now: Now,
        port: Port,
        exchange: &mut Option<Box<Exchange>>,
    ) -> Option<Exchange> {
        let exchange = exchange.take()?;
        self.reporter.on(port);
        self.date.set(now.unix());
        Some(self.answered(exchange))
    }

    pub(super) fn emit_sender(&mut self, now: Now, exchange: Exchange, event: &SenderEvent, out: &mut Vec<u8>) {
        let context = &exchange.context;
        match event {
            SenderEvent::Published(published) => match exchange.stage {
                Stage::Posted(posted) => {
                    self.post_times.record(now.mono.since(exchange.begun).micros());
                    self.emit_published(context, &posted, *published, out);
                }
                Stage::Updated => self.emit_updated(context, *published, out),
                // The machine gives the answer that fits the command. If it does not, an error is better than silence.
                Stage::Body(_) | Stage::Registering(_) | Stage::Forwarding(_) | Stage::Asked => {
                    self.emit_fault(context, ApiError::Unavailable, out)
                }
            },
            SenderEvent::Cancelled(cancelled) if cancelled.done => {
                response::start(&self.date, context, 204, out).empty()
            }
            SenderEvent::Cancelled(_) => self.emit_fault(context, ApiError::Unavailable, out),
            SenderEvent::Receipt(answer) => self.emit_receipt(context, *answer, out),
            SenderEvent::Forwarded(outcome) => match &exchange.stage {
                Stage::Forwarding(forwarding) => self.emit_forwarded(context, forwarding, *outcome, out),
                _ => self.emit_fault(context, ApiError::Unavailable, out),
            },
        }
    }

    pub(super) fn emit_registration_answer(
        &mut self,
        exchange: &Exchange,
        answer: &RegistrationAnswer,
        out: &mut Vec<u8>,
    ) {
        match &exchange.stage {
            Stage::Registering(asked) => self.emit_registration(&exchange.context, asked, answer, out),
            // As above.
            _ => self.emit_fault(&exchange.context, ApiError::Unavailable, out),
        }
    }

    pub(super) fn emit_fault(&mut self, context: &Context, fault: ApiError, out: &mut Vec<u8>) {
        self.refuse(fault);
        response::fault(&self.date, context, fault, out);
    }

    pub(super) fn emit_fault_until(&mut self, context: &Context, fault: ApiError, retry_after: u32, out: &mut Vec<u8>) {
        self.refuse(fault);
        response::fault_until(&self.date, context, fault, retry_after, out);
    }
}

/// Returns the command to the owner: publish this message, or check the channel first and then report the fault.
#[inline]
fn publish(uaid: Uaid, chid: Chid, message: Result<Message, ApiError>) -> Command {
    let message = message.map(Arc::new).map_err(ApiError::refusal);
    SenderCommand::Publish(Box::new(Publish { uaid, chid, message })).into()
}
