//! `endpoint.origin_rate`: rate limit of each application server. A sender is its VAPID public key. Those without a key
//! cannot be told apart, so they have one rate for each user to whom they send: none of them uses up that of another.
//!
//! The shard that receives a request decides with its own table. A sender that spreads its connections over k shards
//! gets up to k times the rate.

use machine::ids::{KeyDigest, Uaid};
use machine::time::Now;
use machine::token_bucket::TokenBuckets;

/// Sender of a POST, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PostSender {
    /// Digest of its VAPID public key.
    Key([u8; 32]),
    /// One without a key, of a message for this user.
    ToUser(Uaid),
}

impl PostSender {
    /// Returns the sender that shows this key, or none, to an endpoint of this user.
    pub(super) fn of(key: Option<KeyDigest>, uaid: Uaid) -> PostSender {
        key.map_or(PostSender::ToUser(uaid), |key| PostSender::Key(key.0))
    }
}

/// Senders of one shard; `None` when there is no rate.
pub(super) struct SenderRates {
    buckets: Option<TokenBuckets<PostSender>>,
}

impl SenderRates {
    /// Lets each sender send `per_second` messages; 0 means no limit.
    pub(super) fn new(per_second: u32) -> SenderRates {
        SenderRates { buckets: TokenBuckets::new(per_second) }
    }

    /// Counts a POST of this sender. Returns the seconds to wait if the sender exceeds its rate.
    pub(super) fn take(&mut self, now: Now, sender: PostSender) -> Result<(), u32> {
        let Some(buckets) = &mut self.buckets else { return Ok(()) };
        buckets.take(now.mono, sender).map_err(|wait| wait.seconds_ceil())
    }

    /// Returns the number of senders that the full table has forgotten.
    pub(super) fn forgotten(&self) -> u64 {
        self.buckets.as_ref().map_or(0, TokenBuckets::forgotten)
    }
}
