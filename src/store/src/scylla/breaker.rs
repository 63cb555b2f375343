//! Protection of a database in trouble: the circuit, and the budget of retries.
//!
//! Every failure of the database counts; `FAILURES_MAX` in a row open the circuit. While it is open every operation is
//! refused at once and one task probes the database (`super::client`).
//! Lives on: the store's runtime; shards read one flag.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Failures in a row that open the circuit.
const FAILURES_MAX: u32 = 16;
/// Failures in a row that open it when they go on for the time limit of one statement: a node with little to do must
/// not wait for sixteen of them.
const FAILURES_WHEN_SILENT: u32 = 2;

/// Retries that a full budget pays for, in tenths.
const BUDGET_MAX: i64 = 1_000;
/// Cost of a retry and gain of a first attempt, in tenths: one retry for ten statements.
const RETRY_COSTS: i64 = 10;

/// The circuit.
pub(super) struct Breaker {
    open: watch::Sender<bool>,
    failures: AtomicU32,
    began: Instant,
    /// Milliseconds after `began` of the first failure in the row.
    failing_since_ms: AtomicU64,
    silence: Duration,
}

impl Breaker {
    /// Creates a closed circuit. `silence` is the time limit of one statement.
    pub(super) fn new(silence: Duration) -> Breaker {
        Breaker {
            open: watch::Sender::new(false),
            failures: AtomicU32::new(0),
            began: Instant::now(),
            failing_since_ms: AtomicU64::new(0),
            silence,
        }
    }

    /// Returns true if operations are refused.
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Notes an answer of the database.
    pub(super) fn answered(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Notes a missing answer or an error of the database. Returns true if that opens the circuit.
    pub(super) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.began.elapsed().as_millis() as u64;
        if failures == 1 {
            self.failing_since_ms.store(now, Ordering::Relaxed);
        }
        let silent_ms = now.saturating_sub(self.failing_since_ms.load(Ordering::Relaxed));
        let silent = u128::from(silent_ms) >= self.silence.as_millis();
        let enough = failures >= FAILURES_MAX || (silent && failures >= FAILURES_WHEN_SILENT);
        enough && !self.open.send_replace(true)
    }

    pub(super) fn close(&self) {
        self.answered();
        self.open.send_replace(false);
    }

    /// Reports every change.
    pub(super) fn watch(&self) -> watch::Receiver<bool> {
        self.open.subscribe()
    }
}

/// Budget that bounds retries by the number of statements: a database in trouble does not get twice the load.
pub(super) struct Budget(AtomicI64);

impl Budget {
    /// Creates a full budget.
    pub(super) fn new() -> Budget {
        Budget(AtomicI64::new(BUDGET_MAX))
    }

    /// Earns for a statement that was sent for the first time.
    pub(super) fn earn(&self) {
        if self.0.load(Ordering::Relaxed) < BUDGET_MAX {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true if one may be sent again, and pays for it.
    pub(super) fn spend(&self) -> bool {
        let pays = self.0.fetch_sub(RETRY_COSTS, Ordering::Relaxed) >= RETRY_COSTS;
        if !pays {
            self.0.fetch_add(RETRY_COSTS, Ordering::Relaxed);
        }
        pays
    }
}

/// A random time between half of `span` and all of it, so that operations that failed together do not come back
/// together.
pub(super) fn jittered(span: Duration) -> Duration {
    // The random keys of a hasher are the only randomness without another library; this is not a secret.
    use std::hash::{BuildHasher as _, RandomState};
    let chance = RandomState::new().hash_one(Instant::now());
    span / 2 + (span / 2).mul_f64((chance % 1_024) as f64 / 1_024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_it_and_answers_between_do_not() {
        let breaker = Breaker::new(Duration::from_secs(3_600));
        for _ in 0..FAILURES_MAX - 1 {
            assert!(!breaker.failed());
        }
        breaker.answered();
        for _ in 0..FAILURES_MAX - 1 {
            assert!(!breaker.failed());
        }
        assert!(breaker.failed() && breaker.is_open());
        assert!(!breaker.failed(), "it is opened once");
        breaker.close();
        assert!(!breaker.is_open() && !breaker.failed());
    }

    #[test]
    fn a_silent_database_needs_few() {
        let breaker = Breaker::new(Duration::ZERO);
        assert!(!breaker.failed());
        assert!(breaker.failed());
    }

    #[test]
    fn retries_are_a_share_of_statements() {
        let budget = Budget::new();
        let paid = (0..1_000).filter(|_| budget.spend()).count();
        assert_eq!(paid as i64, BUDGET_MAX / RETRY_COSTS);
        (0..50).for_each(|_| budget.earn());
        assert_eq!((0..1_000).filter(|_| budget.spend()).count(), 5);
    }

    #[test]
    fn jitter_stays_within_its_half() {
        let span = Duration::from_millis(100);
        assert!((0..1_000).all(|_| (span / 2..=span).contains(&jittered(span))));
    }
}
