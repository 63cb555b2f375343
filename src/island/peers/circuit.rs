//! Whether a node is called at all. Some calls in a row without an answer open its circuit: calls of it fail at once,
//! and one probe at a time asks whether it answers again.

use std::time::Duration;

use tokio::time::Instant;

/// Of one node.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Circuit {
    /// It is called; so many calls in a row went wrong.
    Closed { failures: u32 },
    /// It is not, but for one probe at a time.
    Open { probe_at: Instant, probing: bool },
}

impl Circuit {
    pub fn is_open(self) -> bool {
        matches!(self, Circuit::Open { .. })
    }

    pub fn is_probing(self) -> bool {
        matches!(self, Circuit::Open { probing: true, .. })
    }

    /// The node answered. Whether it had not before.
    pub fn answered(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Circuit::Closed { failures: 0 };
        was_open
    }

    /// A call was not answered. Whether that was once too often.
    pub fn failed(&mut self, now: Instant) -> bool {
        match self {
            Circuit::Closed { failures } if *failures + 1 < FAILURES_MAX => {
                *failures += 1;
                false
            }
            Circuit::Closed { .. } => {
                *self = Circuit::Open { probe_at: now + PROBE_INTERVAL, probing: false };
                true
            }
            Circuit::Open { .. } => false,
        }
    }

    /// Whether a probe is due: then it is noted as being under way.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        match self {
            Circuit::Open { probe_at, probing } if !*probing && now >= *probe_at => {
                *probing = true;
                true
            }
            Circuit::Open { .. } | Circuit::Closed { .. } => false,
        }
    }

    /// A probe was not answered.
    pub fn probe_failed(&mut self, now: Instant) {
        if self.is_open() {
            *self = Circuit::Open { probe_at: now + PROBE_INTERVAL, probing: false };
        }
    }
}

/// Calls in a row without an answer that open the circuit.
pub(super) const FAILURES_MAX: u32 = 3;
/// Between probes of a node whose circuit is open.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);
