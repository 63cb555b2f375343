//! The port of app servers in SimplePush: `PUT /spush/[v1/]{token}` (PROTOCOL.md 1.12). Off unless
//! `simplepush.enabled`.
//!
//! Validation has the same order as for `POST /wpush`. The edge answers 404 itself. A faulty form travels to the owner,
//! because the owner's 410 comes first.

use machine::time::Now;
use machine::{Disposition, Published};

use super::PushEdge;
use super::drafts::UpdateDraft;
use super::exchange::{BodyAction, method_refused};
use super::reply::Reply;
use super::response::{self, Context};
use super::sender_rates::PostSender;
use protocol::webpush::endpoint::parse_path;
use protocol::webpush::errno::ApiError;
use protocol::wire::http1::Head;

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
        if let Err(fault) = self.access.may_send(None) {
            return BodyAction::Reply(Reply::Fault(fault));
        }
        match self.take_from_sender(now, PostSender::ToUser(opened.uaid)) {
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
