//! Circuit breaker of a node. Some calls in a row without an answer open its circuit: calls of it fail at once, and one
//! probe at a time asks whether it answers again.

use crate::time::{Instant, TimeSpan};

/// Of one node.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Circuit {
    /// The node is called; `failures` calls in a row went wrong.
    Closed { failures: u32 },
    /// The node is not called, but for one probe at a time.
    Open { probe_at: Instant, probing: bool },
}

impl Circuit {
    pub fn is_open(self) -> bool {
        matches!(self, Circuit::Open { .. })
    }

    pub fn is_probing(self) -> bool {
        matches!(self, Circuit::Open { probing: true, .. })
    }

    /// Notes an answer. Returns true if the circuit was open.
    pub fn answered(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Circuit::Closed { failures: 0 };
        was_open
    }

    /// Notes a call without an answer. Returns true if that opened the circuit.
    pub fn failed(&mut self, now: Instant) -> bool {
        match self {
            Circuit::Closed { failures } if *failures + 1 < FAILURES_MAX => {
                *failures += 1;
                false
            }
            Circuit::Closed { .. } => {
                *self = Circuit::Open { probe_at: now.after(PROBE_INTERVAL), probing: false };
                true
            }
            Circuit::Open { .. } => false,
        }
    }

    /// Returns true if a probe is due, and notes it as under way.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        match self {
            Circuit::Open { probe_at, probing } if !*probing && now >= *probe_at => {
                *probing = true;
                true
            }
            Circuit::Open { .. } | Circuit::Closed { .. } => false,
        }
    }

    /// Returns when the next probe is due.
    pub fn due(self) -> Option<Instant> {
        match self {
            Circuit::Open { probe_at, probing: false } => Some(probe_at),
            Circuit::Open { .. } | Circuit::Closed { .. } => None,
        }
    }

    pub fn probe_failed(&mut self, now: Instant) {
        if self.is_open() {
            *self = Circuit::Open { probe_at: now.after(PROBE_INTERVAL), probing: false };
        }
    }
}

/// Calls in a row without an answer that open the circuit.
pub(super) const FAILURES_MAX: u32 = 3;
/// Between probes of a node whose circuit is open.
pub(super) const PROBE_INTERVAL: TimeSpan = TimeSpan::from_secs(1);
