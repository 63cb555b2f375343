//! Token buckets: the rate at which each of many senders or endpoints may do something.
//!
//! Lives in the machine of a shard (endpoints, by their owner) and in its edge (application servers, where they land).

use crate::limits;
use crate::lru::Lru;
use crate::time::{Instant, TimeSpan};

/// One bucket per key, all of one rate. A bucket is one instant: the time at which it will be full again (the generic
/// cell rate algorithm), so that an idle bucket is the same as none.
pub struct TokenBuckets<K> {
    full_at: Lru<K, Instant>,
    /// Time between two tokens.
    interval: TimeSpan,
    /// Greatest lead of `full_at` over the present at which another token is taken.
    tolerance: TimeSpan,
    forgotten: u64,
}

impl<K: Ord + Copy> TokenBuckets<K> {
    /// Buckets that fill at `per_second` and hold [`BURST_SECONDS`] of it; `None` when it is 0: no limit, no cost.
    pub fn new(per_second: u32) -> Option<TokenBuckets<K>> {
        TokenBuckets::bounded(per_second, limits::RATE_BUCKETS_MAX)
    }

    fn bounded(per_second: u32, limit: usize) -> Option<TokenBuckets<K>> {
        let interval = TimeSpan(1_000_000_000_u64.checked_div(u64::from(per_second.min(RATE_MAX)))?);
        let tolerance = TimeSpan(interval.0 * (u64::from(per_second) * BURST_SECONDS - 1));
        Some(TokenBuckets { full_at: Lru::new(limit), interval, tolerance, forgotten: 0 })
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is no token; the error is the time until there is one.
    pub fn take(&mut self, now: Instant, key: K) -> Result<(), TimeSpan> {
        self.forget_full(now);
        // A refusal is a use too: a sender that keeps trying is not forgotten.
        let full_at = self.full_at.get(&key).map_or(now, |full_at| (*full_at).max(now));
        let ahead = full_at.since(now);
        if ahead > self.tolerance {
            return Err(TimeSpan(ahead.0 - self.tolerance.0));
        }
        if let Some((_, full_at)) = self.full_at.insert(key, full_at.after(self.interval))
            && full_at > now
        {
            self.forgotten += 1;
        }
        Ok(())
    }

    /// Buckets that were not full and had to go since there were too many: their keys begin again with a full one.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub fn len(&self) -> usize {
        self.full_at.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Two at a time go for each one that comes, so the table is as small as its use.
    fn forget_full(&mut self, now: Instant) {
        for _ in 0..2 {
            match self.full_at.oldest() {
                Some((_, full_at)) if *full_at <= now => self.full_at.pop_oldest(),
                _ => return,
            };
        }
    }
}

/// A bucket holds this many seconds' worth of tokens.
pub const BURST_SECONDS: u64 = 10;
/// The highest rate: one token in a microsecond.
pub const RATE_MAX: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(0).after(TimeSpan::from_ms(ms))
    }

    #[test]
    fn zero_is_off() {
        assert!(TokenBuckets::<u8>::new(0).is_none());
    }

    #[test]
    fn a_burst_of_ten_seconds_passes_and_then_the_rate() {
        let mut buckets = TokenBuckets::new(2).unwrap();
        for n in 0..20 {
            assert_eq!(buckets.take(at(0), 'a'), Ok(()), "{n}");
        }
        assert_eq!(buckets.take(at(0), 'a'), Err(TimeSpan::from_ms(500)));
        assert_eq!(buckets.take(at(400), 'a'), Err(TimeSpan::from_ms(100)));
        assert_eq!(buckets.take(at(400), 'b'), Ok(()), "each key has its own");
        assert_eq!(buckets.take(at(500), 'a'), Ok(()));
        assert_eq!(buckets.take(at(500), 'a'), Err(TimeSpan::from_ms(500)));
        // Refusals take nothing: a sender that keeps trying gets its rate all the same.
        let passed = (0..10_000).filter(|ms| buckets.take(at(501 + ms), 'a').is_ok()).count();
        assert_eq!(passed, 20);
    }

    #[test]
    fn the_highest_rate_is_exact() {
        let mut buckets = TokenBuckets::new(RATE_MAX).unwrap();
        assert_eq!(buckets.interval, TimeSpan(1_000));
        (0..10).for_each(|_| buckets.take(at(0), 'a').unwrap());
        // Burst and rate of a second, as one number: the bucket is full ten microseconds after ten tokens were taken.
        assert_eq!(buckets.full_at.peek(&'a'), Some(&Instant(10_000)));
        assert_eq!(buckets.tolerance, TimeSpan(9_999_999_000));
    }

    #[test]
    fn full_buckets_are_forgotten() {
        let mut buckets = TokenBuckets::new(1).unwrap();
        (0..1_000).for_each(|key| buckets.take(at(0), key).unwrap());
        assert_eq!(buckets.len(), 1_000);
        (0..600).for_each(|key| buckets.take(at(2_000), 10_000 + key).unwrap());
        assert_eq!(buckets.len(), 600, "all that were idle are gone");
        assert_eq!(buckets.forgotten(), 0);
    }

    #[test]
    fn at_the_bound_the_one_used_longest_ago_goes_and_is_counted() {
        let mut buckets = TokenBuckets::bounded(1, 4).unwrap();
        for key in 0..4 {
            (0..10).for_each(|_| buckets.take(at(0), key).unwrap());
        }
        assert!(buckets.take(at(0), 3).is_err());
        assert_eq!(buckets.take(at(0), 4), Ok(()));
        assert_eq!((buckets.len(), buckets.forgotten()), (4, 1));
        assert_eq!(buckets.take(at(0), 0), Ok(()), "it begins again");
    }
}
