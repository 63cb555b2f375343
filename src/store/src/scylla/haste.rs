//! Reads that are sent to a second node because the first has not answered in time. The first answer counts.
//!
//! A budget bounds them: one read in ten may be sent twice. When every read is slow the database is, and asking it
//! twice would make it slower.
//!
//! Lives on: the store's runtime; asked by the driver for each read.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use scylla::policies::speculative_execution::{Context, SpeculativeExecutionPolicy};

use super::limit::Limit;

/// A read is late when it has taken this many times the least time, and [`LATE_MIN`] at least.
const LATE_FACTOR: u32 = 8;
/// The least time after which a read is late; it counts before the least time of a statement is known, too.
const LATE_MIN: Duration = Duration::from_millis(20);
/// The greatest part of the time of an attempt after which a read is late.
const LATE_PART: u32 = 2;
/// Reads that a full budget pays for, in tenths.
const BUDGET_MAX: i64 = 100;
/// Cost of a late read and gain of a read, in tenths.
const LATE_COSTS: i64 = 10;

/// The policy, and its budget.
pub(super) struct Haste {
    limit: Arc<Limit>,
    attempt: Duration,
    budget: AtomicI64,
    sent: AtomicU64,
}

impl Haste {
    /// `attempt` is the time of one attempt.
    pub(super) fn new(limit: Arc<Limit>, attempt: Duration) -> Haste {
        Haste { limit, attempt, budget: AtomicI64::new(BUDGET_MAX), sent: AtomicU64::new(0) }
    }

    /// Number of reads that were late while the budget allowed it: those were sent to another node, where there is one.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn late(&self) -> Duration {
        let least = self.limit.least().unwrap_or_default();
        (least * LATE_FACTOR).clamp(LATE_MIN.min(self.attempt / LATE_PART), self.attempt / LATE_PART)
    }

    fn may(&self) -> bool {
        self.budget.load(Ordering::Relaxed) >= LATE_COSTS
    }

    pub(super) fn took(&self, took: Duration) {
        if took < self.late() {
            if self.budget.load(Ordering::Relaxed) < BUDGET_MAX {
                self.budget.fetch_add(1, Ordering::Relaxed);
            }
        } else if self.may() {
            self.budget.fetch_sub(LATE_COSTS, Ordering::Relaxed);
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Haste {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Haste").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl SpeculativeExecutionPolicy for Haste {
    fn max_retry_count(&self, _: &Context) -> usize {
        usize::from(self.may())
    }

    fn retry_interval(&self, _: &Context) -> Duration {
        self.late()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn few_reads_are_sent_twice_and_none_when_all_are_late() {
        let limit = Arc::new(Limit::new(256, Duration::from_secs(5)));
        let haste = Haste::new(Arc::clone(&limit), Duration::from_millis(2_500));
        assert_eq!(haste.late(), LATE_MIN);
        let (quick, late) = (Duration::from_millis(10), Duration::from_millis(500));
        let now = Instant::now() + Duration::from_secs(1);
        (0..100).for_each(|_| limit.take(now, quick, false));
        assert!((79..=81).contains(&haste.late().as_millis()), "{:?}", haste.late());
        (0..1_000).for_each(|_| haste.took(late));
        assert_eq!(haste.sent(), 10, "what the budget held");
        assert!(!haste.may());
        for n in 0..10_000 {
            haste.took(if n % 20 == 0 { late } else { quick });
        }
        assert!((500..=512).contains(&haste.sent()), "one in twenty: {}", haste.sent());
        let before = haste.sent();
        for n in 0..10_000 {
            haste.took(if n % 2 == 0 { late } else { quick });
        }
        assert!((haste.sent() - before) <= 10_000 / 19, "{}", haste.sent() - before);
    }

    #[test]
    fn a_read_is_late_before_its_attempt_is_over() {
        let limit = Arc::new(Limit::new(256, Duration::from_secs(1)));
        let haste = Haste::new(Arc::clone(&limit), Duration::from_millis(500));
        let now = Instant::now() + Duration::from_secs(1);
        (0..100).for_each(|_| limit.take(now, Duration::from_millis(400), false));
        assert_eq!(haste.late(), Duration::from_millis(250));
    }
}
