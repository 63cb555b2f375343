//! Numbers of the profiles, for the metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use machine::upstream::BridgeKind;

use super::judgement::{Judgement, Reason};
use super::name::BridgeName;
use super::request::CredentialAges;

/// Numbers of one profile.
#[derive(Clone, Debug)]
pub(crate) struct ProfileStats {
    pub sent: u64,
    /// Notifications that were not sent, by reason.
    pub errors: BTreeMap<Reason, u64>,
    pub retries: u64,
    /// Calls by their time: how many took at most [`SECONDS`] of this place, and the last of all longer ones.
    pub times: [u64; SECONDS.len() + 1],
    /// Sum of the times.
    pub seconds: f64,
}

/// Bounds of the histogram of call times, in seconds.
pub(crate) const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

impl ProfileStats {
    pub(super) fn new() -> ProfileStats {
        ProfileStats { sent: 0, errors: BTreeMap::new(), retries: 0, times: [0; SECONDS.len() + 1], seconds: 0.0 }
    }

    /// Counts an outcome.
    pub(super) fn count(&mut self, reason: Reason) {
        match reason {
            Reason::Sent => self.sent += 1,
            reason => *self.errors.entry(reason).or_default() += 1,
        }
    }

    /// Counts a call that has its reply.
    pub(super) fn replied(&mut self, judgement: &Judgement, took: Duration) {
        self.count(judgement.reason);
        let seconds = took.as_secs_f64();
        let place = SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(SECONDS.len());
        self.times[place] += 1;
        self.seconds += seconds;
    }
}

/// State of one profile.
#[derive(Clone, Debug)]
pub(crate) struct ProfileSnapshot {
    pub name: Arc<BridgeName>,
    pub stats: ProfileStats,
    pub in_flight: usize,
    pub waiting: usize,
    pub waiting_bytes: usize,
    pub is_breaker_open: bool,
    pub is_guard_active: bool,
    pub(crate) ages: CredentialAges,
}

impl ProfileSnapshot {
    /// Numbers of the calls of this bridge whose profile is not configured.
    pub(super) fn of_strays(kind: BridgeKind, stats: ProfileStats) -> ProfileSnapshot {
        ProfileSnapshot {
            name: Arc::new(BridgeName { kind, app: "".into() }),
            stats,
            in_flight: 0,
            waiting: 0,
            waiting_bytes: 0,
            is_breaker_open: false,
            is_guard_active: false,
            ages: CredentialAges::default(),
        }
    }
}

/// State of all profiles, as of the last look.
#[derive(Default)]
pub(crate) struct ProfileSnapshots(Mutex<Vec<ProfileSnapshot>>);

impl ProfileSnapshots {
    pub fn look(&self) -> MutexGuard<'_, Vec<ProfileSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
