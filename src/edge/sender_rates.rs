//! `endpoint.origin_rate`: rate limit of each application server. A sender is its VAPID public key; all senders without
//! a key are one sender together.
//!
//! The shard that receives a request decides with its own table. A sender that spreads its connections over k shards
//! gets up to k times the rate.

use machine::ids::KeyDigest;
use machine::time::Now;
use machine::token_bucket::TokenBuckets;

/// Senders of one shard; `None` when there is no rate.
pub(super) struct SenderRates {
    buckets: Option<TokenBuckets<[u8; 32]>>,
}

impl SenderRates {
    /// Lets each sender send `per_second` messages; 0 means no limit.
    pub(super) fn new(per_second: u32) -> SenderRates {
        SenderRates { buckets: TokenBuckets::new(per_second) }
    }

    /// Counts a POST of the sender of this key. Returns the seconds to wait if the sender exceeds its rate.
    pub(super) fn take(&mut self, now: Now, sender: Option<KeyDigest>) -> Result<(), u32> {
        let Some(buckets) = &mut self.buckets else { return Ok(()) };
        // In practice no digest is zero.
        buckets.take(now.mono, sender.map_or([0; 32], |key| key.0)).map_err(|wait| wait.seconds_ceil())
    }

    /// Returns the number of senders that the full table has forgotten.
    pub(super) fn forgotten(&self) -> u64 {
        self.buckets.as_ref().map_or(0, TokenBuckets::forgotten)
    }
}
