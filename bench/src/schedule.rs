//! The clock of an open loop: the time at which the n-th thing is due, regardless of the things before it. A latency
//! that counts from there also counts the wait that a late generator or a slow server causes (coordinated omission).

use std::time::{Duration, Instant};

/// Evenly spaced instants from a beginning.
#[derive(Clone, Copy, Debug)]
pub struct OpenLoopSchedule {
    begin: Instant,
    /// Things per second.
    rate: f64,
}

impl OpenLoopSchedule {
    /// `rate` things per second from `begin` on; at least one in a thousand seconds.
    pub fn new(begin: Instant, rate: f64) -> OpenLoopSchedule {
        OpenLoopSchedule { begin, rate: rate.max(0.001) }
    }

    /// `count` things spread over `span` from `begin` on.
    pub fn spread(begin: Instant, count: usize, span: Duration) -> OpenLoopSchedule {
        OpenLoopSchedule::new(begin, count.max(1) as f64 / span.as_secs_f64().max(1e-9))
    }

    /// Time at which the thing of this number is due; the first has number 0 and is due at the beginning.
    pub fn due(&self, number: u64) -> Instant {
        self.begin + Duration::from_secs_f64(number as f64 / self.rate)
    }

    /// Number of things due at `now`.
    pub fn owed(&self, now: Instant) -> u64 {
        match now.checked_duration_since(self.begin) {
            Some(passed) => (passed.as_secs_f64() * self.rate) as u64 + 1,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_what_was_due() {
        let begin = Instant::now() + Duration::from_secs(5);
        let pace = OpenLoopSchedule::spread(begin, 40, Duration::from_secs(10));
        assert_eq!((pace.due(0), pace.due(8)), (begin, begin + Duration::from_secs(2)));
        assert_eq!(pace.owed(begin - Duration::from_nanos(1)), 0);
        assert_eq!((pace.owed(begin), pace.owed(begin + Duration::from_millis(260))), (1, 2));
        assert_eq!(OpenLoopSchedule::new(begin, 0.0).owed(begin + Duration::from_secs(1)), 1);
    }
}
