//! The second half of an HTTP exchange: its body, and the request to the machine.
//!
//! The edge decides on a request when its head is complete, and answers when it has read the body. The next request of
//! a kept connection therefore starts in the right place. An unwanted body is discarded up to [`BODY_CUT_BYTES`];
//! beyond that the edge answers at once and ends the connection.

use std::sync::Arc;

use machine::ids::{Chid, Uaid};
use machine::message::Message;
use machine::time::{Instant, Now};
use machine::{Command, Publish, SenderCommand};
use runtime::ports::{Ingest, Port};

use super::PushEdge;
use super::drafts::Posted;
use super::exchange::{BodyAction, Exchange, Pending, Stage};
use super::registering;
use super::reply::Reply;
use super::response::Context;
use protocol::webpush::errno::ApiError;
use protocol::wire::body::{BodyReader, Piece};
use protocol::wire::http1::{Framing, Head};

/// Maximum number of bytes of an unwanted body, its framing included, that are read to keep the connection. A wanted
/// body is smaller, unless it comes in tiny chunks with extensions of the maximum length.
pub const BODY_CUT_BYTES: u64 = 64 * 1024;

/// State of one call of `ingest`.
pub(super) struct IngestContext<'t> {
    pub(super) now: Now,
    pub(super) port: Port,
    pub(super) begun: Instant,
    /// Number of consumed bytes before those that are being read.
    pub(super) base: usize,
    pub(super) exchange: &'t mut Option<Box<Exchange>>,
    pub(super) out: &'t mut Vec<u8>,
}

impl PushEdge {
    /// Begins to read the body of a request, if any of it is read at all.
    pub(super) fn begin(
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
            BodyAction::Ask(_) | BodyAction::Node { .. } => true,
        };
        if wanted {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        !wanted
    }

    pub(super) fn read_body(
        &mut self,
        context: Context,
        mut pending: Pending,
        bytes: &[u8],
        mut cx: IngestContext<'_>,
    ) -> Ingest {
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
            if pending.wire.saturating_add(pending.reader.announced()) > BODY_CUT_BYTES {
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
            BodyAction::Post(_)
            | BodyAction::Update(_)
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
                match self.finish_registration(*draft, too_large(registering::BODY_BYTES_MAX)) {
                    Ok((command, asked)) => (command, Stage::Registering(Box::new(asked))),
                    Err(reply) => return self.reply(&context, &reply, consumed, out),
                }
            }
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
}

/// Returns the command to the owner: publish this message, or check the channel first and then report the fault.
#[inline]
fn publish(uaid: Uaid, chid: Chid, message: Result<Message, ApiError>) -> Command {
    let message = message.map(Arc::new).map_err(ApiError::refusal);
    SenderCommand::Publish(Box::new(Publish { uaid, chid, message })).into()
}
