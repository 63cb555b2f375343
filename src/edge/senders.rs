//! `endpoint.origin_rate`: how many messages one application server may send. A sender is its VAPID public key; all
//! that show none are one sender together.
//!
//! Decided where a request lands, by that shard's own table: a sender that spreads its connections over k shards gets
//! up to k times the rate.

use machine::ids::KeyDigest;
use machine::rates::Buckets;
use machine::time::Now;

use super::PushEdge;
use super::http::Reply;
use protocol::webpush::errno::Fault;

/// The senders of one shard; nothing when there is no rate.
pub(super) struct Senders {
    buckets: Option<Buckets<[u8; 32]>>,
}

impl Senders {
    /// Each may send `per_second` messages; 0 is any number.
    pub(super) fn new(per_second: u32) -> Senders {
        Senders { buckets: Buckets::new(per_second) }
    }
}

impl PushEdge {
    /// Counts a POST of the sender of this key. The refusal when it is one too many.
    pub(super) fn take_from_sender(&mut self, now: Now, sender: Option<KeyDigest>) -> Result<(), Reply> {
        let Some(buckets) = &mut self.senders.buckets else { return Ok(()) };
        // No digest is zero but by an accident that will not happen.
        let taken = buckets.take(now.mono, sender.map_or([0; 32], |key| key.0));
        self.stats.senders_forgotten = buckets.forgotten();
        taken.map_err(|wait| Reply::FaultUntil(Fault::TooManyOfSender, wait.seconds_ceil()))
    }
}
