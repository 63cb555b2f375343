//! `GET /r/{receipt}`: outcome of a message, for the sender that requested a receipt (RFC 8030 sections 5.1 and 6.3).
//!
//! RFC 8030 pushes receipts over HTTP/2. Over HTTP/1.1 a sender asks, and the answer waits for the outcome as long as
//! `Prefer: wait=N` says. The statuses 204 and 410 of the RFC belong to the pushed message resource. Here the resource
//! is the receipt, which exists, so every outcome is a 200 and its name a member of the body.

use machine::time::TimeSpan;
use machine::{Outcome, ReceiptAnswer, ReceiptQuery, SenderCommand};

use super::PushEdge;
use super::exchange::{BodyAction, method_refused};
use super::reply::Reply;
use super::response::{self, Context};
use protocol::webpush::errno::ApiError;
use protocol::webpush::prefer::Preferences;
use protocol::webpush::receipt::Receipt;
use protocol::wire::http1::Head;

impl PushEdge {
    pub(super) fn plan_receipt(&mut self, head: &Head<'_, '_>, text: &str) -> BodyAction {
        if head.method != "GET" {
            return method_refused(head, "GET");
        }
        self.stats.receipt_requests += 1;
        let Some(receipt) = self.receipts.sealed.open(text.as_bytes()) else {
            return BodyAction::Reply(Reply::Fault(ApiError::BadReceipt));
        };
        let expires = receipt.expires();
        let Receipt { stamp, uaid, chid, topic, .. } = receipt;
        let wait = Preferences::read(head.every("prefer")).wait.unwrap_or(WAIT_SECONDS_DEFAULT);
        let wait = TimeSpan::from_secs(u64::from(wait.min(machine::limits::RECEIPT_WAIT_SECONDS_MAX)));
        BodyAction::Ask(
            SenderCommand::Receipt(Box::new(ReceiptQuery { uaid, chid, stamp, topic, expires, wait })).into(),
        )
    }

    pub(super) fn emit_receipt(&mut self, context: &Context, said: ReceiptAnswer, out: &mut Vec<u8>) {
        let status = match said {
            ReceiptAnswer::Ended(outcome) => name(outcome),
            ReceiptAnswer::Pending => "pending",
            ReceiptAnswer::Unknown => return self.emit_fault(context, ApiError::ReceiptForgotten, out),
            ReceiptAnswer::Unavailable => {
                return self.emit_fault_until(context, ApiError::Unavailable, BUSY_SECONDS, out);
            }
        };
        response::start(&self.date, context, 200, out)
            .header("Content-Type", b"application/json")
            .header("Cache-Control", b"no-store")
            .body(format!(r#"{{"status":"{status}"}}"#).as_bytes(), context.to_head);
    }
}

/// Returns the `status` of an outcome; docs/OPERATIONS.md explains them to senders.
fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Delivered => "delivered",
        Outcome::Undecryptable => "undecryptable",
        Outcome::Undelivered => "undelivered",
        Outcome::Expired => "expired",
        Outcome::Unacked => "unacked",
        Outcome::Replaced => "replaced",
        Outcome::Cancelled => "cancelled",
        Outcome::Unregistered => "unregistered",
    }
}

/// Seconds that a request waits without `Prefer: wait`.
const WAIT_SECONDS_DEFAULT: u32 = 5;
/// `Retry-After` when too many requests wait: the longest of them is answered in this time.
const BUSY_SECONDS: u32 = machine::limits::RECEIPT_WAIT_SECONDS_MAX;
