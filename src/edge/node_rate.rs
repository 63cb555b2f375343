//! A rate that all shards of a node share, for requests that concern no user and are rare.
//!
//! One instant, as in [`machine::token_bucket`]: the time at which the bucket will be full again. A shard that loses a
//! race tries again, so the rate is exact however a proxy spreads its connections.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use machine::time::{Instant, TimeSpan};
use machine::token_bucket::BURST_SECONDS;

/// Bucket of one node. Any thread.
#[derive(Debug, Default)]
pub struct NodeRate {
    /// 0: no limit.
    per_second: AtomicU32,
    /// Nanoseconds of [`Instant`].
    full_at: AtomicU64,
}

impl NodeRate {
    /// Sets the rate; 0 means no limit, as at the start.
    pub(super) fn set(&self, per_second: u32) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is no token; the error is the time until there is one.
    pub(super) fn take(&self, now: Instant) -> Result<(), TimeSpan> {
        let Some(interval) = 1_000_000_000_u64.checked_div(u64::from(self.per_second.load(Ordering::Relaxed))) else {
            return Ok(());
        };
        let tolerance = BURST_SECONDS * 1_000_000_000 - interval.min(BURST_SECONDS * 1_000_000_000);
        let next = |full_at: u64| {
            let full_at = full_at.max(now.0);
            (full_at - now.0 <= tolerance).then(|| full_at.saturating_add(interval))
        };
        let taken = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.map(drop).map_err(|full_at| TimeSpan(full_at.saturating_sub(now.0).saturating_sub(tolerance)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_ten_seconds_passes_and_then_the_rate() {
        let at = |ms: u64| Instant(1_000_000_000).after(TimeSpan::from_ms(ms));
        let rate = NodeRate::default();
        rate.set(2);
        assert_eq!((0..30).filter(|_| rate.take(at(0)).is_ok()).count(), 20);
        assert_eq!(rate.take(at(0)), Err(TimeSpan::from_ms(500)));
        assert_eq!(rate.take(at(500)), Ok(()));
        assert_eq!((0..100).filter(|n| rate.take(at(500 + 100 * n)).is_ok()).count(), 19);
        rate.set(0);
        assert!((0..1_000).all(|_| rate.take(at(0)).is_ok()), "no limit");
    }

    #[test]
    fn several_shards_have_one_rate() {
        let rate = NodeRate::default();
        rate.set(100);
        let shard = || (0..1_000).filter(|_| rate.take(Instant(1)).is_ok()).count();
        let taken = std::thread::scope(|scope| {
            let shards: Vec<_> = (0..4).map(|_| scope.spawn(shard)).collect();
            shards.into_iter().map(|shard| shard.join().unwrap()).sum::<usize>()
        });
        assert_eq!(taken, 1_000);
    }
}
