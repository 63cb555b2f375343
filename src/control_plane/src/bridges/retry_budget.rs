//! Budget of second attempts of one profile: a tenth of the calls of the last seconds, and ten more.

use std::time::Duration;

use tokio::time::Instant;

use super::recent::RecentCounts;

pub(super) struct RetryBudget {
    /// Calls and second attempts.
    recent: RecentCounts<2>,
}

impl RetryBudget {
    pub fn new() -> RetryBudget {
        RetryBudget { recent: RecentCounts::over(SPAN) }
    }

    pub fn called(&mut self, now: Instant) {
        self.recent.add(now, [true, false]);
    }

    /// Takes one attempt out of the budget; false if nothing is left.
    pub fn take(&mut self, now: Instant) -> bool {
        let [calls, retries] = self.recent.sums(now);
        let is_left = retries < calls / 10 + RETRIES_MIN;
        if is_left {
            self.recent.add(now, [false, true]);
        }
        is_left
    }
}

const SPAN: Duration = Duration::from_secs(10);
/// Second attempts within [`SPAN`] beside a tenth of the calls.
const RETRIES_MIN: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tenth_of_the_calls_and_ten_more_are_retried() {
        let (mut budget, now) = (RetryBudget::new(), Instant::now());
        for _ in 0..50 {
            budget.called(now);
        }
        assert_eq!((0..100).filter(|_| budget.take(now)).count(), 15);
        assert!(!budget.take(now + Duration::from_secs(9)));
        assert_eq!((0..100).filter(|_| budget.take(now + Duration::from_secs(10))).count(), 10);
    }
}
