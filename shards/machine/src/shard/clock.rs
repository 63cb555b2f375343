//! The hybrid clock (ARCHITECTURE.md 8.3): 64-bit microseconds, strictly increasing per shard, never behind its
//! persisted floor, past every clock that it was shown. It follows the time of the process, which runs at monotonic
//! speed. If that time is set back, this clock stands until the time has caught up, and no stamp comes before an
//! earlier one.

use crate::ids::Clock;
use crate::time::{Now, TimeSpan};

/// Hybrid clock of one shard. Owner shard only.
pub(super) struct HybridClock {
    /// Last value given out or seen; the next one is greater.
    last: u64,
    /// Latest time that it was shown. No later stamp is below it, so that no clock that a check proved settled is
    /// stamped again.
    latest: u64,
    /// Maximum lead of a clock that it is shown.
    apart_max: TimeSpan,
    /// True while the time of the process is too far from the clocks of the database: nothing may be stamped.
    stopped: bool,
    /// Persisted bound: `last <= persisted` whenever an effect queue has been carried out.
    persisted: u64,
}

/// Error for a clock that is further ahead than two nodes may be apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooFarAhead;

impl HybridClock {
    /// Creates a clock that starts above `floor` and accepts clocks that are ahead by up to `apart_max`.
    pub fn new(floor: Clock, apart_max: TimeSpan) -> HybridClock {
        HybridClock { last: floor.0, latest: 0, apart_max, stopped: false, persisted: floor.0 }
    }

    /// Forbids stamps while the time of the process is too far from the clocks of the database, or allows them again.
    pub fn stop(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// Returns true while nothing may be stamped.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the next value.
    pub fn tick(&mut self, now: Now) -> Clock {
        self.last = self.running(now).max(self.last + 1);
        Clock(self.last)
    }

    /// Returns the minimum of the next value, without giving one out.
    pub fn now(&mut self, now: Now) -> Clock {
        Clock(self.running(now))
    }

    /// Steps past a clock that was read (a user row, another node's message).
    pub fn advance(&mut self, now: Now, seen: Clock) -> Result<(), TooFarAhead> {
        if seen.0 > self.running(now).max(self.last) + self.apart_max.micros() {
            return Err(TooFarAhead);
        }
        self.last = self.last.max(seen.0);
        Ok(())
    }

    /// Returns the value to persist when the clock has come near the persisted one: a few seconds ahead, so that this
    /// is rare. After a restart the clock stands above it.
    pub fn floor_to_persist(&mut self) -> Option<Clock> {
        if self.last + PERSIST_NEAR_US <= self.persisted {
            return None;
        }
        self.persisted = self.last + PERSIST_AHEAD_US;
        Some(Clock(self.persisted))
    }

    fn running(&mut self, now: Now) -> u64 {
        self.latest = self.latest.max(now.unix_us);
        self.latest
    }
}

const PERSIST_NEAR_US: u64 = 1_000_000;
const PERSIST_AHEAD_US: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    const APART: TimeSpan = TimeSpan::from_secs(30);

    fn at(unix_us: u64) -> Now {
        Now { mono: Instant(0), unix_us }
    }

    #[test]
    fn follows_a_time_that_is_set_and_stands_until_one_that_is_set_back_has_caught_up() {
        let mut clock = HybridClock::new(Clock(0), APART);
        assert_eq!(clock.tick(at(5_000_000)), Clock(5_000_000));
        assert_eq!(clock.tick(at(9_000_000_000)), Clock(9_000_000_000));
        assert_eq!(clock.tick(at(5_000_010)), Clock(9_000_000_001));
        assert_eq!(clock.tick(at(8_999_999_999)), Clock(9_000_000_002));
        assert_eq!(clock.tick(at(9_000_000_500)), Clock(9_000_000_500));
    }

    #[test]
    fn what_was_vouched_for_is_not_stamped_again_when_time_is_set_back() {
        let mut clock = HybridClock::new(Clock(0), APART);
        assert_eq!(clock.now(at(9_000_000)), Clock(9_000_000));
        assert_eq!(clock.now(at(1_000_000)), Clock(9_000_000));
        assert!(clock.tick(at(1_000_000)) >= Clock(9_000_000));
        assert!(clock.tick(at(1_000_000)) > Clock(9_000_000));
    }

    #[test]
    fn starts_above_what_was_persisted() {
        let mut clock = HybridClock::new(Clock(7_000_000), APART);
        assert_eq!(clock.tick(at(5_000_000)), Clock(7_000_001));
    }

    #[test]
    fn persists_ahead_and_rarely() {
        let mut clock = HybridClock::new(Clock(0), APART);
        clock.tick(at(100_000_000));
        assert_eq!(clock.floor_to_persist(), Some(Clock(105_000_000)));
        clock.tick(at(103_000_000));
        assert_eq!(clock.floor_to_persist(), None);
        clock.tick(at(104_500_000));
        assert!(clock.floor_to_persist().is_some());
    }

    #[test]
    fn passes_what_it_sees_unless_that_is_absurd() {
        let mut clock = HybridClock::new(Clock(0), APART);
        clock.tick(at(1_000));
        assert_eq!(clock.advance(at(1_000), Clock(20_000_000)), Ok(()));
        assert_eq!(clock.tick(at(1_000)), Clock(20_000_001));
        assert_eq!(clock.advance(at(1_000), Clock(60_000_000)), Err(TooFarAhead));
    }
}
