//! Responses to requests: those of the edge itself, and those to which the machine gave the answer.

use machine::time::Now;
use machine::{CloseReason, RegistrationAnswer, SenderEvent};
use runtime::ports::{Ingest, Port};

use super::PushEdge;
use super::exchange::{Exchange, Stage};
use super::reply::Reply;
use super::response::{self, Context};
use protocol::webpush::errno::ApiError;
use protocol::wire::http1::Malformed;

/// Maximum number of free places for requests under way: 16 KiB.
const EXCHANGES_KEPT: usize = 64;

/// The answer of UnifiedPush servers to GET of any endpoint (PROTOCOL.md 2.1). It reads no token.
const DISCOVERY: &[u8] = br#"{"unifiedpush":{"version":1}}"#;

impl PushEdge {
    pub(super) fn reply(&mut self, context: &Context, reply: &Reply, consumed: usize, out: &mut Vec<u8>) -> Ingest {
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
                let body = self.pages.find(path, self.gate.health()).unwrap_or_default();
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

    pub(super) fn malformed(&mut self, context: &Context, malformed: Malformed, out: &mut Vec<u8>) -> Ingest {
        let fault = match malformed {
            Malformed::Syntax => ApiError::BadRequest,
            Malformed::HeadTooLarge => ApiError::HeadTooLarge,
        };
        self.refuse(fault);
        response::fault(&self.date, &context.closing(), fault, out);
        Ingest::Close { reason: CloseReason::Said }
    }

    pub(super) fn emit_fault(&mut self, context: &Context, fault: ApiError, out: &mut Vec<u8>) {
        self.refuse(fault);
        response::fault(&self.date, context, fault, out);
    }

    pub(super) fn emit_fault_until(&mut self, context: &Context, fault: ApiError, retry_after: u32, out: &mut Vec<u8>) {
        self.refuse(fault);
        response::fault_until(&self.date, context, fault, retry_after, out);
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

    /// Removes a stored request; the next one reuses its place.
    fn answered(&mut self, mut place: Box<Exchange>) -> Exchange {
        let exchange = std::mem::take(&mut *place);
        if self.exchanges.len() < EXCHANGES_KEPT {
            self.exchanges.push(place);
        }
        exchange
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
                Stage::Body(_) | Stage::Registering(_) | Stage::Asked => {
                    self.emit_fault(context, ApiError::Unavailable, out)
                }
            },
            SenderEvent::Cancelled(cancelled) if cancelled.done => {
                response::start(&self.date, context, 204, out).empty()
            }
            SenderEvent::Cancelled(_) => self.emit_fault(context, ApiError::Unavailable, out),
            SenderEvent::Receipt(answer) => self.emit_receipt(context, *answer, out),
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
}
