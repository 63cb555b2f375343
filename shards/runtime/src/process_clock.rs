//! The only code of shards that reads the host's clock.
//!
//! A host's clock can be set: by hand, by NTP, after a sleep. So it is read once, when the process begins, and from
//! then on [`ProcessClock`] runs at monotonic speed. That the two have come apart is seen
//! ([`ProcessClock::host_offset_us`]), and the control plane, which finds the right one, takes the host's over or
//! distrusts it (decision 0019).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant as Monotonic, SystemTime, UNIX_EPOCH};

use machine::time::{Instant, Now, UnixSeconds};

/// The time of a process: all its threads share one. Read from any thread; one thread at most changes it.
pub struct ProcessClock {
    origin: Monotonic,
    /// Microseconds since the Unix epoch at the origin.
    base_us: AtomicU64,
    host: HostClock,
    /// Microseconds by which the host's clock is known to be wrong, ahead of this one; 0 while it is believed.
    host_wrong_us: AtomicI64,
    /// Microseconds by which this clock is known to be late.
    late_us: AtomicU64,
    /// This clock is known to be too far from the clocks of the database.
    stopped: AtomicBool,
}

impl ProcessClock {
    /// Begins with the time of the host.
    pub fn start() -> ProcessClock {
        ProcessClock::of(HostClock::default())
    }

    /// Begins with the time of this clock.
    pub fn of(host: HostClock) -> ProcessClock {
        let base_us = AtomicU64::new(host.unix_us());
        let (host_wrong_us, late_us) = (AtomicI64::new(0), AtomicU64::new(0));
        ProcessClock {
            origin: Monotonic::now(),
            base_us,
            host,
            host_wrong_us,
            late_us,
            stopped: AtomicBool::new(false),
        }
    }

    /// Stands at this time, microseconds since the Unix epoch, with any host clock: for tests of dated items.
    pub fn standing(unix_us: u64) -> ProcessClock {
        let wall = ProcessClock { origin: Monotonic::now() + FAR_AHEAD, ..ProcessClock::start() };
        wall.base_us.store(unix_us, Ordering::Relaxed);
        wall.mark_host_wrong(i64::MAX, 0);
        wall
    }

    pub fn now(&self) -> Now {
        let since = Monotonic::now().saturating_duration_since(self.origin);
        let unix_us = self.base_us.load(Ordering::Relaxed).saturating_add(since.as_micros() as u64);
        Now { mono: Instant(since.as_nanos() as u64), unix_us }
    }

    pub fn unix_us(&self) -> u64 {
        self.now().unix_us
    }

    pub fn unix(&self) -> UnixSeconds {
        self.now().unix()
    }

    /// Returns the later of this time and the host's, which is corrected by its known error: the time that may have
    /// passed between two looks. After a sleep of the host its clock is right at once and this one is late until the
    /// next look.
    pub fn latest_us(&self) -> u64 {
        let wrong_us = self.host_wrong_us.load(Ordering::Relaxed);
        let host = self.host.unix_us().saturating_add_signed(wrong_us.saturating_neg());
        self.unix_us().saturating_add(self.late_us.load(Ordering::Relaxed)).max(host)
    }

    /// Returns the time of the host, corrected by its known error, if it differs from this one by a second or more: a
    /// step awaits confirmation. A time that the clock of a peer made is good if either of them allows it.
    pub fn host_in_doubt(&self) -> Option<UnixSeconds> {
        let wrong_us = self.host_wrong_us.load(Ordering::Relaxed);
        let host_us = self.host.unix_us().saturating_add_signed(wrong_us.saturating_neg());
        let differs = host_us > 0 && host_us.abs_diff(self.unix_us()) >= DOUBT_US_MIN;
        differs.then_some(UnixSeconds(host_us / 1_000_000))
    }

    /// Returns the lead of the host's clock in microseconds; negative when it is behind.
    pub fn host_offset_us(&self) -> i64 {
        let mut gap = 0;
        for _ in 0..READS_MAX {
            let (before, host, after) = (self.unix_us(), self.host.unix_us(), self.unix_us());
            gap = (i128::from(host) - i128::from(before.midpoint(after))) as i64;
            // A thread that was held up in between would see a gap that is not there.
            if after.saturating_sub(before) <= READ_US_MAX {
                break;
            }
        }
        gap
    }

    /// Moves on by this gap, or back. One thread only.
    pub fn apply_step(&self, host_offset_us: i64) {
        let base_us = self.base_us.load(Ordering::Relaxed).saturating_add_signed(host_offset_us);
        self.base_us.store(base_us, Ordering::Relaxed);
    }

    /// Notes that the host's clock is known to be wrong, by `host_wrong_us` ahead of this one, and this one late by
    /// `late_us`.
    pub fn mark_host_wrong(&self, host_wrong_us: i64, late_us: u64) {
        self.host_wrong_us.store(host_wrong_us, Ordering::Relaxed);
        self.late_us.store(late_us, Ordering::Relaxed);
    }

    /// Says whether this time is too far from the clocks of the database, so that nothing may be stamped with it.
    pub fn stop(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }

    /// Returns true while nothing may be stamped with this time.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Says that nothing is known to be wrong.
    pub fn trust(&self) {
        self.mark_host_wrong(0, 0);
    }
}

impl fmt::Debug for ProcessClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wall({} us)", self.unix_us())
    }
}

/// The clock of the host; tests set it wrong by an offset, never the system's.
#[derive(Clone, Debug, Default)]
pub struct HostClock {
    off_us: Arc<AtomicI64>,
}

impl HostClock {
    /// One that is ahead by `by`.
    pub fn ahead(by: Duration) -> HostClock {
        let clock = HostClock::default();
        clock.set_off(by.as_micros() as i64);
        clock
    }

    /// Sets it wrong by `off_us` from now on, or right; for all copies of it.
    pub fn set_off(&self, off_us: i64) {
        self.off_us.store(off_us, Ordering::Relaxed);
    }

    fn unix_us(&self) -> u64 {
        // A host that believes to live before 1970 gets 1970.
        let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        unix_us.saturating_add_signed(self.off_us.load(Ordering::Relaxed))
    }
}

/// Tries to read two clocks at one time, and the longest time between two such reads, in microseconds.
const READS_MAX: usize = 5;
const READ_US_MAX: u64 = 1_000;
/// Difference of two clocks, in microseconds, from which they do not agree on the second.
const DOUBT_US_MIN: u64 = 1_000_000;
/// An origin so far ahead is not reached.
const FAR_AHEAD: Duration = Duration::from_secs(1 << 30);

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: u64 = 3_600_000_000;
    /// Time that a test may take from one line to the next.
    const SLOW_US: u64 = 60_000_000;

    #[test]
    fn a_host_clock_that_is_set_is_seen_and_changes_nothing_until_it_is_taken_over() {
        let host = HostClock::default();
        let wall = ProcessClock::of(host.clone());
        let began = wall.unix_us();
        for off in [HOUR_US as i64, -(HOUR_US as i64)] {
            host.set_off(off);
            assert!((wall.host_offset_us() - off).unsigned_abs() < SLOW_US);
            assert!(wall.unix_us().abs_diff(began) < SLOW_US);
        }
        host.set_off(HOUR_US as i64);
        wall.apply_step(wall.host_offset_us());
        assert!(wall.host_offset_us().unsigned_abs() < SLOW_US);
        assert!(wall.unix_us() >= began + HOUR_US - SLOW_US);
        host.set_off(0);
        wall.apply_step(wall.host_offset_us());
        assert!(wall.unix_us().abs_diff(began) < SLOW_US);
    }

    #[test]
    fn the_latest_time_counts_the_host_s_but_for_what_is_known_to_be_wrong() {
        let host = HostClock::default();
        let wall = ProcessClock::of(host.clone());
        host.set_off(HOUR_US as i64);
        assert!(wall.latest_us() >= wall.unix_us() + HOUR_US - SLOW_US);
        wall.mark_host_wrong(wall.host_offset_us(), 0);
        assert!(wall.latest_us() <= wall.unix_us() + SLOW_US);
        // Progress of a slept host's clock beyond its known error is time that has passed.
        host.set_off(2 * HOUR_US as i64);
        assert!(wall.latest_us() >= wall.unix_us() + HOUR_US - SLOW_US);
        wall.mark_host_wrong(wall.host_offset_us(), HOUR_US);
        assert!(wall.latest_us().abs_diff(wall.unix_us() + HOUR_US) < SLOW_US, "ours is known to be late");
        wall.trust();
        host.set_off(-(HOUR_US as i64));
        assert!(wall.latest_us() + SLOW_US >= wall.unix_us());
    }

    #[test]
    fn the_host_clock_is_in_doubt_from_its_step_until_that_is_judged() {
        let host = HostClock::default();
        let wall = ProcessClock::of(host.clone());
        assert_eq!(wall.host_in_doubt(), None);
        for off in [HOUR_US as i64, -(HOUR_US as i64)] {
            host.set_off(off);
            let doubted = wall.host_in_doubt().unwrap();
            let wanted = wall.unix_us().saturating_add_signed(off) / 1_000_000;
            assert!(doubted.0.abs_diff(wanted) < SLOW_US / 1_000_000);
            wall.mark_host_wrong(wall.host_offset_us(), 0);
            assert_eq!(wall.host_in_doubt(), None, "known to be wrong");
            wall.trust();
            wall.apply_step(wall.host_offset_us());
            assert_eq!(wall.host_in_doubt(), None, "taken over");
            host.set_off(0);
            wall.apply_step(wall.host_offset_us());
        }
    }

    #[test]
    fn a_wall_that_stands_tells_one_time() {
        let wall = ProcessClock::standing(5_000_000);
        assert_eq!(wall.host_in_doubt(), None);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!((wall.now().mono, wall.latest_us(), wall.unix()), (Instant(0), 5_000_000, UnixSeconds(5)));
    }
}
