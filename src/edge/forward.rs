//! Forward endpoints: `POST /fpush/v1/new` and `POST /fpush/v1/{token}` (docs/FORWARD.md). Off unless
//! `forward.enabled`.
//!
//! A token holds the URL of a target at another push service, which the control plane calls. The edge opens the token,
//! verifies the sender and reads the message. The order of validation is that of `POST /wpush`.

use std::sync::Arc;

use machine::time::Now;
use machine::upstream::{ForwardCall, ForwardMessage, ForwardOutcome};

use super::PushEdge;
use super::drafts::{ForwardDraft, Forwarding, MessageDraft};
use super::exchange::{BodyAction, method_refused};
use super::forward_rules::PATH;
use super::reply::Reply;
use super::response::{self, Context};
use super::sender_rates::PostSender;
use super::stats::EdgeStats;
use protocol::webpush::endpoint::KeyLock;
use protocol::webpush::errno::ApiError;
use protocol::webpush::forward::{CREATION_BYTES_MAX, CreationError, ForwardFault, ForwardToken, read_creation};
use protocol::webpush::headers::{Delivery, Encoding};
use protocol::webpush::vapid;
use protocol::wire::http1::Head;
use protocol::wire::text::{push_json, push_u64};

/// Maximum length of a body: a message of one record of RFC 8188, or a request for an endpoint.
pub(super) const BODY_BYTES_MAX: u64 = 4_096;
/// Seconds in `Retry-After` if a target that has too many requests, or is down, names none.
const TOO_MANY_SECONDS: u32 = 60;
const DOWN_SECONDS: u32 = 120;
/// The same if too many calls are under way here.
const BUSY_SECONDS: u32 = 10;

const _: () = assert!(CREATION_BYTES_MAX as u64 == BODY_BYTES_MAX);

/// The next thing to do when the body was read.
pub(super) enum ForwardStep {
    Ask(Arc<ForwardCall>, Forwarding),
    Reply(Reply),
}

impl PushEdge {
    /// Plans a request, if this is a path of forward endpoints and they are on.
    pub(super) fn plan_forward(&mut self, now: Now, head: &Head<'_, '_>) -> Option<BodyAction> {
        let text = head.path.strip_prefix(PATH).filter(|_| self.forwards.is_some())?;
        let is_new = text == "new";
        match head.method {
            "POST" => {}
            "GET" if !is_new => return Some(BodyAction::Reply(Reply::Discovery)),
            _ if is_new => return Some(method_refused(head, "POST, HEAD, OPTIONS")),
            _ => return Some(method_refused(head, "POST, GET, HEAD, OPTIONS")),
        }
        let planned = if is_new { self.plan_creation(now, head) } else { self.plan_message(now, head, text) };
        Some(match planned {
            Ok(message) => BodyAction::Forward(Box::new(ForwardDraft { message, body: Vec::new() })),
            Err(reply) => {
                if !is_new {
                    self.stats.count_forward(reply.status());
                }
                BodyAction::Reply(reply)
            }
        })
    }

    fn plan_creation(&mut self, now: Now, head: &Head<'_, '_>) -> Result<Option<MessageDraft>, Reply> {
        let Some(forwards) = &self.forwards else { return Err(Reply::Fault(ApiError::NotFound)) };
        if forwards.creators.as_ref().is_some_and(|creators| !creators.allow(head.header("authorization"))) {
            return Err(Reply::Fault(ApiError::Forward(ForwardFault::Creator)));
        }
        let taken = forwards.rate.take(now.mono);
        taken
            .map_err(|wait| Reply::FaultUntil(ApiError::Forward(ForwardFault::TooManyCreated), wait.seconds_ceil()))?;
        Ok(None)
    }

    fn plan_message(&mut self, now: Now, head: &Head<'_, '_>, text: &str) -> Result<Option<MessageDraft>, Reply> {
        let token = self.forwards.as_ref().and_then(|forwards| forwards.open(text));
        let token = token.ok_or(Reply::Fault(ApiError::BadToken))?;
        let claims = self.authorize_forward(now, head.header("authorization"), &token)?;
        let encoding = head.joined("content-encoding");
        let encoding = match encoding.as_deref().and_then(Encoding::named) {
            Some(Encoding::Aes128gcm) => Ok(()),
            _ => Err(ApiError::Forward(ForwardFault::Encoding)),
        };
        let delivery = Delivery::read(head.header("ttl"), head.header("topic"), head.every("urgency"));
        Ok(Some(MessageDraft { token, claims, delivery, encoding }))
    }

    /// Verifies the sender if the token names one. Returns its claims if a key signs them anew.
    fn authorize_forward(
        &mut self,
        now: Now,
        authorization: Option<&[u8]>,
        token: &ForwardToken,
    ) -> Result<Option<Box<[u8]>>, Reply> {
        let mut sender = None;
        let mut claims = None;
        if let Some(digest) = token.sender {
            let authorization = authorization.ok_or(Reply::Fault(ApiError::VapidRequired))?;
            if !vapid::is_current(authorization) {
                return Err(Reply::Fault(ApiError::VapidScheme));
            }
            let shown = self.verify_vapid(now, authorization, None).map_err(Reply::Fault)?;
            if !KeyLock::Digest(digest).fits(&shown) {
                return Err(Reply::Fault(ApiError::VapidKeyMismatch));
            }
            sender = Some(shown);
            claims = token.key.and_then(|_| vapid::claims(authorization));
        }
        self.access.may_send(sender).map_err(Reply::Fault)?;
        self.take_from_sender(now, sender.map_or(PostSender::Unknown, |key| PostSender::Key(key.0)))?;
        Ok(claims)
    }

    /// Carries a request out when its body was read; `too_large` if it was not read to its end.
    pub(super) fn finish_forward(&mut self, draft: ForwardDraft, too_large: bool) -> ForwardStep {
        let ForwardDraft { message, body } = draft;
        let Some(message) = message else {
            let created = if too_large { Err(ApiError::TooLarge) } else { self.create_forward(&body) };
            return created.unwrap_or_else(|fault| ForwardStep::Reply(Reply::Fault(fault)));
        };
        let step = if too_large { Err(ApiError::TooLarge) } else { message.finish(body) };
        let step = step.unwrap_or_else(|fault| ForwardStep::Reply(Reply::Fault(fault)));
        if let ForwardStep::Reply(reply) = &step {
            self.stats.count_forward(reply.status());
        }
        step
    }

    fn create_forward(&self, body: &[u8]) -> Result<ForwardStep, ApiError> {
        let Some(forwards) = &self.forwards else { return Err(ApiError::NotFound) };
        let token = read_creation(body, &forwards.targets).map_err(|error| match error {
            CreationError::Json => ApiError::Forward(ForwardFault::Json),
            CreationError::Url => ApiError::Forward(ForwardFault::Target),
            CreationError::PublicKey => ApiError::Forward(ForwardFault::PublicKey),
            CreationError::PrivateKey => ApiError::Forward(ForwardFault::PrivateKey),
        })?;
        let endpoint = forwards.endpoint(&token).ok_or(ApiError::Forward(ForwardFault::Target))?;
        Ok(ForwardStep::Ask(Arc::new(ForwardCall { url: token.url, message: None }), Forwarding::Created(endpoint)))
    }

    pub(super) fn emit_forwarded(
        &mut self,
        context: &Context,
        forwarding: &Forwarding,
        outcome: ForwardOutcome,
        out: &mut Vec<u8>,
    ) {
        match (forwarding, outcome) {
            (Forwarding::Created(endpoint), ForwardOutcome::Allowed) => {
                self.stats.forwards_created += 1;
                let mut body = br#"{"url":"#.to_vec();
                push_json(endpoint, &mut body);
                body.push(b'}');
                let response = response::start(&self.date, context, 200, out);
                response.header("Content-Type", b"application/json").body(&body, context.to_head);
            }
            (Forwarding::Sent { ttl }, ForwardOutcome::Answered { status: status @ 200..=299, .. }) => {
                self.stats.count_forward(status);
                let response = response::start(&self.date, context, status, out);
                let response = response.header_with("TTL", |out| push_u64(u64::from(*ttl), out));
                // RFC 9110 sections 15.3.5 and 15.3.6: these two have no content.
                match status {
                    204 | 205 => response.empty(),
                    _ => response.header("Content-Type", b"application/json").body(TAKEN, context.to_head),
                }
            }
            (forwarding, outcome) => {
                let is_creation = matches!(forwarding, Forwarding::Created(_));
                let (fault, retry_after) = refusal(is_creation, outcome);
                if !is_creation {
                    self.stats.count_forward(fault.row().status);
                }
                match retry_after {
                    None => self.emit_fault(context, fault, out),
                    Some(seconds) => self.emit_fault_until(context, fault, seconds, out),
                }
            }
        }
    }
}

impl MessageDraft {
    /// Returns the call, an empty 200 for an empty message, or the first broken rule.
    fn finish(self, body: Vec<u8>) -> Result<ForwardStep, ApiError> {
        let granted = self.delivery.grant(if body.is_empty() { Ok(()) } else { self.encoding })?;
        if body.is_empty() {
            return Ok(ForwardStep::Reply(Reply::Empty));
        }
        let message = ForwardMessage {
            ttl: granted.ttl,
            urgency: granted.urgency,
            topic: granted.topic,
            vapid: self.claims.zip(self.token.key),
            body: body.into(),
        };
        let call = ForwardCall { url: self.token.url, message: Some(message) };
        Ok(ForwardStep::Ask(Arc::new(call), Forwarding::Sent { ttl: granted.ttl }))
    }
}

/// Returns the refusal for an outcome that is no success, and the seconds until a new try can succeed.
fn refusal(is_creation: bool, outcome: ForwardOutcome) -> (ApiError, Option<u32>) {
    match outcome {
        ForwardOutcome::Forbidden if is_creation => (ApiError::Forward(ForwardFault::Target), None),
        ForwardOutcome::Answered { status, retry_after } => match status {
            400 => (ApiError::Forward(ForwardFault::Refused), None),
            401 | 403 => (ApiError::Forward(ForwardFault::Authentication), None),
            404 => (ApiError::Forward(ForwardFault::NotFound), None),
            410 => (ApiError::Forward(ForwardFault::Gone), None),
            413 => (ApiError::Forward(ForwardFault::TooLarge), None),
            429 => (ApiError::Forward(ForwardFault::TooMany), Some(retry_after.unwrap_or(TOO_MANY_SECONDS))),
            500..=599 => (ApiError::Forward(ForwardFault::Unavailable), Some(retry_after.unwrap_or(DOWN_SECONDS))),
            _ => (ApiError::Forward(ForwardFault::Unreachable), None),
        },
        // The machine gives the outcome that fits the request. If it does not, an error is better than silence.
        ForwardOutcome::Allowed | ForwardOutcome::Forbidden | ForwardOutcome::Unreachable => {
            (ApiError::Forward(ForwardFault::Unreachable), None)
        }
        ForwardOutcome::NoAnswer => (ApiError::Forward(ForwardFault::NoAnswer), None),
        ForwardOutcome::Unavailable => (ApiError::Forward(ForwardFault::Unavailable), Some(BUSY_SECONDS)),
    }
}

impl EdgeStats {
    /// Returns the counter of a refusal.
    pub(super) fn forward_refused(&mut self, fault: ForwardFault) -> &mut u64 {
        match fault {
            ForwardFault::Creator
            | ForwardFault::TooManyCreated
            | ForwardFault::Json
            | ForwardFault::Target
            | ForwardFault::PublicKey
            | ForwardFault::PrivateKey => &mut self.forwards_not_created,
            ForwardFault::Encoding => &mut self.posts_bad_headers,
            ForwardFault::Refused
            | ForwardFault::NotFound
            | ForwardFault::Gone
            | ForwardFault::TooLarge
            | ForwardFault::TooMany
            | ForwardFault::Authentication
            | ForwardFault::Unreachable
            | ForwardFault::NoAnswer
            | ForwardFault::Unavailable => &mut self.forwards_not_taken,
        }
    }

    /// Counts the answer to a message for a target.
    fn count_forward(&mut self, status: u16) {
        let counter = match status {
            200..=299 => &mut self.forward_2xx,
            400 => &mut self.forward_400,
            401 => &mut self.forward_401,
            404 => &mut self.forward_404,
            410 => &mut self.forward_410,
            413 => &mut self.forward_413,
            429 => &mut self.forward_429,
            502 => &mut self.forward_502,
            _ => &mut self.forward_503,
        };
        *counter += 1;
    }
}

/// Body of the answer to a message that the target took.
const TAKEN: &[u8] = br#"{"msg":"upstream status code"}"#;
