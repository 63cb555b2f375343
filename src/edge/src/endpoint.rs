//! Port of app servers: the heads of `POST /wpush/...` and `DELETE /m/{id}` (PROTOCOL.md 2).
//!
//! Order of validation (ARCHITECTURE.md 8.5): the edge answers 404 and 401. Size and header rules travel with the
//! request, because the owner's 410 comes first.

use machine::ids::KeyDigest;
use machine::time::Now;
use machine::{Cancel, SenderCommand};

use super::PushEdge;
use super::drafts::PostDraft;
use super::exchange::{BodyAction, method_refused};
use super::receipt_urls;
use super::reply::Reply;
use super::sender_rates::PostSender;
use protocol::webpush::endpoint::{EndpointToken, parse_path};
use protocol::webpush::errno::ApiError;
use protocol::webpush::headers::{Delivery, Encryption};
use protocol::webpush::message_id::MessageId;
use protocol::webpush::payload::Draft;
use protocol::webpush::prefer::Preferences;
use protocol::wire::http1::{Framing, Head};

impl PushEdge {
    pub(super) fn plan_endpoint(&mut self, now: Now, head: &Head<'_, '_>) -> BodyAction {
        if let Some(path) = head.path.strip_prefix("/wpush/") {
            match head.method {
                "POST" => {}
                "GET" | "HEAD" => return BodyAction::Reply(Reply::Discovery),
                _ => return method_refused(head, "POST, GET, HEAD, OPTIONS"),
            }
            self.stats.posts += 1;
            return match self.plan_post(now, head, path) {
                Ok(draft) => BodyAction::Post(draft),
                Err(reply) => BodyAction::Reply(reply),
            };
        }
        if let Some(path) = head.path.strip_prefix("/spush/").filter(|_| self.simplepush) {
            return self.plan_update(now, head, path);
        }
        if let Some(id) = head.path.strip_prefix("/m/") {
            if head.method != "DELETE" {
                return method_refused(head, "DELETE, HEAD, OPTIONS");
            }
            self.stats.cancel_requests += 1;
            return match self.ids.open(id.as_bytes()) {
                Some(MessageId { stamp, uaid, chid, topic }) => {
                    BodyAction::Ask(SenderCommand::Cancel(Box::new(Cancel { uaid, chid, stamp, topic })).into())
                }
                None => BodyAction::Reply(Reply::Fault(ApiError::BadMessageId)),
            };
        }
        if let Some(receipt) = head.path.strip_prefix(receipt_urls::PATH) {
            return self.plan_receipt(head, receipt);
        }
        self.plan_registration(head).unwrap_or_else(|| self.plan_page(head))
    }

    fn plan_post(&mut self, now: Now, head: &Head<'_, '_>, path: &str) -> Result<PostDraft, Reply> {
        let (version, token) = parse_path(path).ok_or(Reply::Fault(ApiError::BadToken))?;
        let opened = self.tokens.open(version, token).ok_or(Reply::Fault(ApiError::BadToken))?;
        let [encoding, encryption, crypto_key, encryption_key] =
            ["content-encoding", "encryption", "crypto-key", "encryption-key"].map(|name| head.joined(name));
        let authorization = head.header("authorization");
        let shown =
            self.authorize(now, authorization, crypto_key.as_deref(), &opened, version).map_err(Reply::Fault)?;
        self.take_from_sender(now, PostSender::of(shown, opened.uaid))?;
        let body_len = match head.framing {
            Framing::Length(length) if length <= self.body_bytes_max as u64 => length as usize,
            Framing::Length(_) | Framing::Chunked => 0,
        };
        let encryption = Encryption {
            encoding: encoding.as_deref(),
            encryption: encryption.as_deref(),
            crypto_key: crypto_key.as_deref(),
            encryption_key: encryption_key.as_deref(),
        };
        Ok(PostDraft {
            uaid: opened.uaid,
            chid: opened.chid,
            payload: Draft::new(&encryption, body_len),
            delivery: Delivery::read(head.header("ttl"), head.header("topic"), head.every("urgency")),
            receipt: self.offers_receipts && Preferences::read(head.every("prefer")).respond_async,
        })
    }

    /// Counts a POST of this sender. Returns the refusal if the sender exceeds its rate.
    pub(super) fn take_from_sender(&mut self, now: Now, sender: PostSender) -> Result<(), Reply> {
        let taken = self.senders.take(now, sender);
        self.stats.senders_forgotten = self.senders.forgotten();
        taken.map_err(|seconds| Reply::FaultUntil(ApiError::TooManyOfSender, seconds))
    }

    /// Steps 3 to 5: verifies the authorization if there is one. A locked endpoint requires the matching key.
    fn authorize(
        &mut self,
        now: Now,
        authorization: Option<&[u8]>,
        crypto_key: Option<&[u8]>,
        opened: &EndpointToken,
        version: u8,
    ) -> Result<Option<KeyDigest>, ApiError> {
        let shown = match authorization {
            Some(authorization) => Some(self.verify_vapid(now, authorization, crypto_key)?),
            None => None,
        };
        if opened.version != version {
            return Err(ApiError::BadToken);
        }
        self.access.may_send(shown)?;
        match (&opened.lock, shown) {
            (None, shown) => Ok(shown),
            (Some(_), None) => Err(ApiError::VapidRequired),
            (Some(lock), Some(shown)) if lock.fits(&shown) => Ok(Some(shown)),
            (Some(_), Some(_)) => Err(ApiError::VapidKeyMismatch),
        }
    }

    /// Verifies an authorization. Returns the digest of the key that signed it.
    pub(super) fn verify_vapid(
        &mut self,
        now: Now,
        authorization: &[u8],
        crypto_key: Option<&[u8]>,
    ) -> Result<KeyDigest, ApiError> {
        let misses = self.vapid.misses;
        let mut verified = self.vapid.check(now.unix(), authorization, crypto_key);
        // The clock of the sender can be right where this one is wrong.
        if let Err(ApiError::VapidExpired | ApiError::VapidTooLong) = verified
            && let Some(host) = self.clock.host_in_doubt()
        {
            verified = self.vapid.check(host, authorization, crypto_key).or(verified);
        }
        let looked_at = (self.vapid.misses - misses) as u32;
        self.signatures.verified += looked_at;
        self.signatures.failed += looked_at.min(u32::from(verified.is_err()));
        (self.stats.vapid_cache_hits, self.stats.vapid_cache_misses) = (self.vapid.hits, self.vapid.misses);
        self.stats.vapid_odd_sub = self.vapid.odd_subs;
        self.stats.vapid_audience_without_port = self.vapid.audiences_without_port;
        verified
    }
}
