//! The only place of this crate that reads a clock.

use std::time::{Duration, Instant as Monotonic, SystemTime, UNIX_EPOCH};

use crate::time::{Instant, Now};

/// Counts from the start of the process; all shards share its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Monotonic,
    /// How far the wall clock is ahead of the host's, in microseconds; not zero only in tests.
    ahead_us: u64,
}

impl Clock {
    /// Starts counting.
    pub(crate) fn start() -> Clock {
        Clock { origin: Monotonic::now(), ahead_us: 0 }
    }

    /// The same with a wall clock that is ahead of the host's.
    pub(crate) fn ahead(self, by: Duration) -> Clock {
        Clock { ahead_us: by.as_micros() as u64, ..self }
    }

    /// The times of one turn.
    pub(crate) fn now(&self) -> Now {
        let mono = Instant(self.origin.elapsed().as_nanos() as u64);
        // A host that believes to live before 1970 gets 1970.
        let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        Now { mono, unix_us: unix_us + self.ahead_us }
    }
}
