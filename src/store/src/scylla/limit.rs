//! Limit of the operations that one shard may have at the database at once, from the speed of its answers.
//!
//! One number for every lane of the process, between [`LIMIT_MIN`] and `store.scylla.in_flight`. It follows the idea of
//! TCP Vegas (Brakmo and Peterson, 1995): the time of a statement beyond the least time of the last minute is waiting
//! time in the database. Statements are judged together in windows. A window that took twice the least time, or in
//! which statements were given up, lowers the number by a quarter; one that did not, while the number was used, raises
//! it by a few. At the start each such window doubles it, until the first that is slow. Twice a minute it is halved for
//! a moment, to see the least time again: under a load that lasts, the queue would be taken for it.
//!
//! Lives on: the store's runtime; shared by all lanes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Operations of one shard that may always be at the database. With 16 shards and 20 nodes these are 1,280.
pub(super) const LIMIT_MIN: usize = 4;
/// The limit at the start.
const LIMIT_FIRST: usize = 32;
/// Rise of the limit after one window.
const LIMIT_STEP: usize = 4;
/// Statements and time that make a window.
const WINDOW_STATEMENTS: u32 = 16;
const WINDOW: Duration = Duration::from_millis(100);
/// The least time is that of the windows of this span and of the one before it.
const EPOCH: Duration = Duration::from_secs(30);
/// Windows for which the limit is halved when an epoch begins: the first sees statements that were sent before.
const PROBE_WINDOWS: u32 = 2;
/// Time below which a window is not slow, for any earlier speed of the database: a few milliseconds are no queue.
const QUICK: Duration = Duration::from_millis(10);
/// Part of the time limit of a statement above which a window is slow, for any earlier speed of the database.
const SLOW_PART: u32 = 8;
/// One statement in this many that is given up makes a window slow.
const GIVEN_UP_PART: u32 = 8;

/// The limit, and its inputs.
pub(super) struct Limit {
    most: usize,
    now: AtomicUsize,
    /// Operations that one lane had at the database at once, at most, since the window began.
    used: AtomicUsize,
    lowered: AtomicU64,
    least_us: AtomicU64,
    window: Mutex<Window>,
}

impl Limit {
    /// Creates a limit of at most `most`. `request_timeout` is the time of one statement.
    pub(super) fn new(most: usize, request_timeout: Duration) -> Limit {
        Limit {
            most: most.max(1),
            now: AtomicUsize::new(LIMIT_FIRST.min(most).max(1)),
            used: AtomicUsize::new(0),
            lowered: AtomicU64::new(0),
            least_us: AtomicU64::new(0),
            window: Mutex::new(Window::new(Instant::now(), request_timeout / SLOW_PART)),
        }
    }

    pub(super) fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// Number of reductions of the limit.
    pub(super) fn lowered(&self) -> u64 {
        self.lowered.load(Ordering::Relaxed)
    }

    /// The least time of the last minute; `None` before the first window is over.
    pub(super) fn least(&self) -> Option<Duration> {
        let least_us = self.least_us.load(Ordering::Relaxed);
        (least_us > 0).then(|| Duration::from_micros(least_us))
    }

    /// Notes that a lane has this many operations at the database.
    pub(super) fn used(&self, running: usize) {
        self.used.fetch_max(running, Ordering::Relaxed);
    }

    /// Notes that a statement was answered, or given up, at `now` after `took`.
    pub(super) fn take(&self, now: Instant, took: Duration, given_up: bool) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.take(took, given_up);
        let epoch = window.epoch;
        let Some(slow) = window.judge(now) else { return };
        self.least_us.store(window.least_us() as u64, Ordering::Relaxed);
        let (before, used) = (self.get(), self.used.swap(0, Ordering::Relaxed));
        if window.probe > 0 {
            window.probe -= 1;
            self.now.store(if window.probe == 0 { window.held } else { before }, Ordering::Relaxed);
            return;
        }
        if window.epoch != epoch {
            (window.probe, window.held) = (PROBE_WINDOWS, before);
            self.now.store((before / 2).max(LIMIT_MIN.min(self.most)), Ordering::Relaxed);
            return;
        }
        let after = if slow {
            (before - before.div_ceil(4)).max(LIMIT_MIN.min(self.most))
        } else if used < before / 2 {
            // Less than half of the limit was used: a higher one may be slow or not.
            before
        } else if window.starting {
            before.saturating_mul(2)
        } else {
            before + LIMIT_STEP
        };
        window.starting &= !slow;
        let after = after.min(self.most);
        self.lowered.fetch_add(u64::from(after < before), Ordering::Relaxed);
        self.now.store(after, Ordering::Relaxed);
    }
}

/// Statements that are judged together, and the times of those before.
struct Window {
    began: Instant,
    statements: u32,
    given_up: u32,
    /// Sum of the binary logarithms of microseconds. Their geometric mean counts: one statement of seconds does not
    /// dominate the others.
    logs: f64,
    epoch: Instant,
    /// Least means in microseconds: of this epoch and of the one before.
    least: [f64; 2],
    slow_us: f64,
    /// No window was slow yet.
    starting: bool,
    /// Windows for which the limit is still halved, and its value before.
    probe: u32,
    held: usize,
}

impl Window {
    fn new(now: Instant, slow: Duration) -> Window {
        Window {
            began: now,
            statements: 0,
            given_up: 0,
            logs: 0.0,
            epoch: now,
            least: [f64::INFINITY; 2],
            slow_us: slow.as_secs_f64() * 1e6,
            starting: true,
            probe: 0,
            held: 0,
        }
    }

    fn take(&mut self, took: Duration, given_up: bool) {
        self.statements += 1;
        self.given_up += u32::from(given_up);
        self.logs += (took.as_secs_f64() * 1e6).max(1.0).log2();
    }

    fn least_us(&self) -> f64 {
        self.least[0].min(self.least[1])
    }

    /// At the end of a window, returns true if it was slow, and begins the next.
    fn judge(&mut self, now: Instant) -> Option<bool> {
        if self.statements < WINDOW_STATEMENTS || now.duration_since(self.began) < WINDOW {
            return None;
        }
        let mean_us = (self.logs / f64::from(self.statements)).exp2();
        if now.duration_since(self.epoch) >= EPOCH {
            (self.least, self.epoch) = ([f64::INFINITY, self.least[0]], now);
        }
        self.least[0] = self.least[0].min(mean_us);
        let queued = mean_us > (2.0 * self.least_us()).max(QUICK.as_secs_f64() * 1e6);
        let slow = queued || mean_us > self.slow_us || self.given_up * GIVEN_UP_PART > self.statements;
        (self.began, self.statements, self.given_up, self.logs) = (now, 0, 0, 0.0);
        Some(slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database that answers in a millisecond while it has at most `fits` requests at once, and has a queue beyond.
    struct Database {
        limit: Limit,
        now: Instant,
    }

    impl Database {
        fn new(most: usize) -> Database {
            Database { limit: Limit::new(most, Duration::from_secs(5)), now: Instant::now() }
        }

        /// Windows in which every statement took this long; the limit was used.
        fn windows(&mut self, count: usize, took: impl Fn(usize) -> Duration) {
            for _ in 0..count {
                self.now += WINDOW;
                let now = self.limit.get();
                self.limit.used(now);
                (0..WINDOW_STATEMENTS).for_each(|_| self.limit.take(self.now, took(now), false));
            }
        }
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn it_doubles_at_the_start_and_ends_at_the_setting() {
        let mut database = Database::new(256);
        assert_eq!(database.limit.get(), LIMIT_FIRST);
        database.windows(3, |_| ms(1));
        assert_eq!(database.limit.get(), 256);
        database.windows(20, |_| ms(1));
        assert_eq!((database.limit.get(), database.limit.lowered()), (256, 0));
        for most in [1, 2, 3, 4, 5] {
            let mut small = Database::new(most);
            small.windows(5, |_| ms(1));
            assert_eq!(small.limit.get(), most);
            small.windows(20, |_| ms(1_000));
            assert_eq!(small.limit.get(), most.min(LIMIT_MIN));
        }
    }

    #[test]
    fn it_falls_when_latency_rises_and_recovers() {
        let mut database = Database::new(256);
        database.windows(10, |_| ms(2));
        database.windows(5, |_| ms(100));
        let fallen = database.limit.get();
        assert!(fallen <= 64, "{fallen}");
        database.windows(30, |_| ms(100));
        assert_eq!(database.limit.get(), LIMIT_MIN);
        assert!(database.limit.lowered() >= 10);
        database.windows(63, |_| ms(2));
        assert_eq!(database.limit.get(), 256);
    }

    #[test]
    fn it_settles_where_the_queue_of_the_database_begins() {
        let mut database = Database::new(256);
        // 10 ms for 40 at once; the others wait for those.
        let took = |now: usize| ms(10).mul_f64((now as f64 / 40.0).max(1.0));
        database.windows(100, took);
        // Ten minutes: the queue is not taken for the least time.
        let mut seen = Vec::new();
        for _ in 0..6_000 {
            database.windows(1, took);
            seen.push(database.limit.get());
        }
        let halved = seen.iter().filter(|now| **now < 40).count();
        assert!(seen.iter().all(|now| (20..=100).contains(now)) && halved < 100, "{halved} {seen:?}");
    }

    #[test]
    fn statements_that_are_given_up_lower_it_and_one_does_not() {
        let mut database = Database::new(256);
        database.windows(5, |_| ms(1));
        for given_up in [1, WINDOW_STATEMENTS / GIVEN_UP_PART + 1] {
            let before = database.limit.get();
            database.now += WINDOW;
            for n in 0..WINDOW_STATEMENTS {
                database.limit.take(database.now, ms(1), n < given_up);
            }
            assert_eq!(database.limit.get() < before, given_up > 1);
        }
    }

    #[test]
    fn it_stays_when_few_operations_are_wanted_and_few_statements_say_nothing() {
        let limit = Limit::new(256, Duration::from_secs(5));
        let mut now = Instant::now();
        for _ in 0..50 {
            now += WINDOW;
            limit.used(3);
            (0..WINDOW_STATEMENTS).for_each(|_| limit.take(now, ms(1), false));
        }
        assert_eq!(limit.get(), LIMIT_FIRST);
        now += WINDOW;
        (1..WINDOW_STATEMENTS).for_each(|_| limit.take(now, ms(2_000), false));
        assert_eq!(limit.get(), LIMIT_FIRST, "a window is not over");
    }

    #[test]
    fn a_database_that_stays_slower_is_no_queue_after_a_minute() {
        let mut database = Database::new(256);
        database.windows(5, |_| ms(5));
        database.windows(50, |_| ms(50));
        assert_eq!(database.limit.get(), LIMIT_MIN);
        database.windows(700, |_| ms(50));
        assert_eq!(database.limit.get(), 256);
        database.windows(1_400, |_| ms(700));
        assert_eq!(database.limit.get(), LIMIT_MIN, "an eighth of the time of a statement is slow for ever");
    }
}
