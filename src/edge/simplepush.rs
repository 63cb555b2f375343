//! The port of app servers in SimplePush: `PUT /spush/[v1/]{token}` (PROTOCOL.md 1.12). Off unless
//! `simplepush.enabled`.
//!
//! Validation has the same order as for `POST /wpush`. The edge answers 404 itself. A faulty form travels to the owner,
//! because the owner's 410 comes first.

use machine::ids::{Chid, Uaid};
use machine::message::Message;
use machine::simplepush::Update;
use machine::time::{Now, UnixSeconds};
use machine::{Disposition, Published};

use super::PushEdge;
use super::http::BodyAction;
use super::pages::method_refused;
use super::reply::Reply;
use super::response::{self, Context};
use protocol::webpush::endpoint::parse_path;
use protocol::webpush::errno::ApiError;
use protocol::webpush::headers::TTL_MAX;
use protocol::wire::http1::Head;
use protocol::wire::simplepush::{BadVersion, read_form};

/// A PUT whose token is good, while its body arrives.
pub(super) struct UpdateDraft {
    pub(super) uaid: Uaid,
    pub(super) chid: Chid,
    query: Box<[u8]>,
    body: Vec<u8>,
}

impl UpdateDraft {
    /// Keeps a piece of the body. The body is at most [`PushEdge::form_bytes_max`] bytes long.
    pub(super) fn extend(&mut self, piece: &[u8]) {
        self.body.extend_from_slice(piece);
    }

    /// Heap memory, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.query.len() + self.body.capacity()
    }

    /// Returns the message, or the fault of the form. An update has no TTL, so it is kept as long as any message can
    /// be.
    pub(super) fn finish(self, accepted: UnixSeconds, data_bytes_max: usize) -> Result<Message, ApiError> {
        let form = if self.body.is_empty() { &self.query[..] } else { &self.body };
        let form = read_form(form, accepted.0).map_err(|BadVersion| ApiError::BadUpdate)?;
        if form.data.len() > data_bytes_max {
            return Err(ApiError::TooLarge);
        }
        let update = Update { version: form.version, data: &form.data };
        Ok(update.to_message(self.uaid, self.chid, accepted, TTL_MAX))
    }
}

impl PushEdge {
    /// Plans a PUT; `path` is the part after `/spush/`.
    pub(super) fn plan_update(&mut self, now: Now, head: &Head<'_, '_>, path: &str) -> BodyAction {
        if head.method != "PUT" {
            return method_refused(head, "PUT, HEAD, OPTIONS");
        }
        self.stats.update_requests += 1;
        let token = parse_path(path).filter(|(version, _)| *version == 1).map(|(_, token)| token);
        let Some(opened) = token.and_then(|token| self.tokens.open(1, token)).filter(|opened| opened.lock.is_none())
        else {
            return BodyAction::Reply(Reply::Fault(ApiError::BadToken));
        };
        // An update has no VAPID key.
        if let Err(fault) = self.may_send(None) {
            return BodyAction::Reply(Reply::Fault(fault));
        }
        match self.take_from_sender(now, None) {
            Ok(()) => BodyAction::Update(Box::new(UpdateDraft {
                uaid: opened.uaid,
                chid: opened.chid,
                query: head.query.as_bytes().into(),
                body: Vec::new(),
            })),
            Err(reply) => BodyAction::Reply(reply),
        }
    }

    /// Maximum length of the body: in a form, every byte of the data can take three.
    pub(super) fn form_bytes_max(&self) -> u64 {
        3 * self.body_bytes_max as u64 + FORM_OVERHEAD_BYTES
    }

    pub(super) fn emit_updated(&mut self, context: &Context, published: Published, out: &mut Vec<u8>) {
        let Some((_, disposition)) = self.accepted(context, published, ApiError::NoUser, out) else { return };
        let (status, body) = match disposition {
            Disposition::Direct => {
                self.stats.updates_delivered += 1;
                (200, &b"Delivered"[..])
            }
            Disposition::Stored | Disposition::Dropped | Disposition::Bridged => {
                self.stats.updates_stored += 1;
                (202, &b"Notification Stored"[..])
            }
        };
        response::start(&self.date, context, status, out)
            .header("Content-Type", b"text/plain")
            .body(body, context.to_head);
    }
}

/// Bytes for the names and the version of a form.
const FORM_OVERHEAD_BYTES: u64 = 128;
