//! The answer to a POST: what the owner of the user did with the message, or why it refused it (PROTOCOL.md 2).

use machine::ids::Stamp;
use machine::upstream::BridgeFailure;
use machine::{Disposition, Published};

use super::PushEdge;
use super::drafts::Posted;
use super::response::{self, Context};
use protocol::webpush::errno::ApiError;
use protocol::webpush::message_id::MessageId;
use protocol::webpush::receipt::Receipt;
use protocol::wire::text::push_u64;

impl PushEdge {
    pub(super) fn emit_published(
        &mut self,
        context: &Context,
        posted: &Posted,
        published: Published,
        out: &mut Vec<u8>,
    ) {
        let Some((stamp, disposition)) = self.accepted(context, published, ApiError::NoSubscription, out) else {
            return;
        };
        match disposition {
            Disposition::Direct => self.stats.posts_accepted_direct += 1,
            Disposition::Stored => self.stats.posts_accepted_stored += 1,
            Disposition::Dropped => self.stats.posts_accepted_dropped += 1,
            Disposition::Bridged => self.stats.posts_accepted_bridged += 1,
        }
        let Posted { uaid, chid, topic, ttl, receipt } = *posted;
        // No ack of a bridged user comes back, so there is nothing to report.
        let receipt = receipt && disposition != Disposition::Bridged;
        let id = MessageId { stamp, uaid, chid, topic };
        let mut response = response::start(&self.date, context, if receipt { 202 } else { 201 }, out);
        if receipt {
            self.stats.posts_with_receipt += 1;
            let receipt = Receipt { stamp, uaid, chid, topic, ttl };
            response = response.header_with("Link", |out| self.receipts.push_link(&receipt, out));
        }
        response
            .header_with("Location", |out| {
                out.extend_from_slice(self.location.as_bytes());
                self.ids.seal(&id, out);
            })
            .header_with("TTL", |out| push_u64(u64::from(ttl), out))
            .empty();
    }

    /// Returns the stamp and the disposition of an accepted message, or writes the refusal. The caller gives the
    /// refusal for a missing subscription.
    pub(super) fn accepted(
        &mut self,
        context: &Context,
        published: Published,
        nobody: ApiError,
        out: &mut Vec<u8>,
    ) -> Option<(Stamp, Disposition)> {
        let (fault, retry_after) = match published {
            Published::Accepted { stamp, disposition } => return Some((stamp, disposition)),
            Published::NoSubscription => (nobody, None),
            Published::OtherMode => (ApiError::OtherMode, None),
            Published::Refused(refusal) => (ApiError::of(refusal), None),
            Published::TooMany { retry_after } => (ApiError::TooManyToEndpoint, Some(retry_after)),
            Published::OverBudget { retry_after } => (ApiError::OverBudget, Some(retry_after)),
            Published::NotBridged(failure) => not_bridged(failure),
            Published::Unavailable => (ApiError::Unavailable, None),
        };
        match retry_after {
            None => self.emit_fault(context, fault, out),
            Some(seconds) => self.emit_fault_until(context, fault, seconds, out),
        }
        None
    }
}

/// Returns the refusal for a failure at the service of a bridged user, and the seconds until a new try can succeed.
fn not_bridged(failure: BridgeFailure) -> (ApiError, Option<u32>) {
    match failure {
        BridgeFailure::TooLarge { excess } => (ApiError::BridgeTooLarge { excess }, None),
        BridgeFailure::Quota { retry_after } => (ApiError::BridgeQuota, Some(retry_after)),
        BridgeFailure::BadRequest => (ApiError::BridgeBadRequest, None),
        BridgeFailure::Configuration => (ApiError::BridgeConfiguration, None),
        BridgeFailure::Authentication => (ApiError::BridgeAuthentication, None),
        BridgeFailure::Unreachable => (ApiError::BridgeUnreachable, None),
        BridgeFailure::NoAnswer => (ApiError::BridgeNoAnswer, None),
        BridgeFailure::Unavailable { retry_after } => (ApiError::BridgeUnavailable, Some(retry_after)),
    }
}
