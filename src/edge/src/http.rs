//! The first half of an HTTP exchange: its head, and the plan for it. `http_body` has the second half.

use machine::CloseReason;
use machine::time::Now;
use runtime::ports::{Ingest, Port};

use super::access::TOKEN_PATH;
use super::exchange::{BodyAction, Exchange, Stage};
use super::front::Front;
use super::http_body::IngestContext;
use super::reply::Reply;
use super::response::{self, Context, HEARTBEAT};
use super::{Codec, EventKind, PushEdge};
use protocol::webpush::errno::ApiError;
use protocol::wire::http1::{HEAD_BYTES_MAX, Head, HeaderSlots, Malformed, find_head, parse_head};
use protocol::wire::upgrade::{self, UpgradeError};

/// Seconds after which a user agent that was sent to another node may try again: the next node is there at once.
const ELSEWHERE_SECONDS: u32 = 1;
const NOT_WELCOME: Reply = Reply::FaultUntil(ApiError::NotWelcome, ELSEWHERE_SECONDS);
/// Answer to an upgrade when the node has no place left, and to the health check of a load balancer then.
const FULL: Reply = Reply::FaultUntil(ApiError::NotWelcome, 120);
/// Answer of health pages while a condition of the node turns them.
const UNREADY: Reply = Reply::FaultUntil(ApiError::Unready, ELSEWHERE_SECONDS);
const STOPPING: Reply = Reply::FaultUntil(ApiError::Stopping, ELSEWHERE_SECONDS);

// `Codec` counts the bytes of half a head in 16 bits.
const _: () = assert!(HEAD_BYTES_MAX <= u16::MAX as usize);

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
        if self.gate.is_stopping() && response::is_health(&head.path) && matches!(head.method, "GET" | "HEAD") {
            return BodyAction::Reply(STOPPING);
        }
        let is_on_port = port != Port::Public || head.path == HEARTBEAT;
        if is_on_port && response::is_turned(&head.path, self.gate.health()) && matches!(head.method, "GET" | "HEAD") {
            return BodyAction::Reply(UNREADY);
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
            Port::Public if self.is_for_operators(&head.path) => BodyAction::Reply(Reply::Fault(ApiError::NotFound)),
            Port::Endpoint | Port::Public => self.plan_endpoint(now, head),
            Port::Node => self.plan_node(head),
        }
    }
}
