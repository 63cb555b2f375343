//! Numbers of the calls of other nodes, for the metrics and the admin page.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use machine::counters;
use machine::stats::HistogramMeaning;
use machine::{PeerOp, PeerReply};

counters! {
    /// Numbers of the calls of other nodes, all nodes together.
    pub struct PeerStats {
        counter peer_push_done: "PUT /push that the other node took.",
        counter peer_push_not_here: "PUT /push answered 404: the session is not there.",
        counter peer_push_busy: "PUT /push answered 503: the session takes nothing now, or holds the message below its minimum urgency.",
        counter peer_push_no_answer: "PUT /push sent and not answered in time.",
        counter peer_push_unreachable: "PUT /push not sent: no connection, circuit open, or too many wait.",
        counter peer_notify_done: "PUT /notif that the other node took.",
        counter peer_notify_not_here: "PUT /notif answered 404: the session is not there.",
        counter peer_notify_no_answer: "PUT /notif sent and not answered in time; it is owed then.",
        counter peer_notify_unreachable: "PUT /notif not sent; it is owed then.",
        counter peer_leave_done: "DELETE /notif that ended a session there.",
        counter peer_leave_not_here: "DELETE /notif answered 404: the session is not there.",
        counter peer_leave_no_answer: "DELETE /notif sent and not answered in time.",
        counter peer_leave_unreachable: "DELETE /notif not sent.",
        counter peer_refused: "Calls answered with a status that says that keys or versions of the nodes differ.",
        counter peer_answers: "Calls answered, owed ones too.",
        counter peer_owed_answered: "Owed notifications that were answered later.",
        counter peer_owed_over: "Owed notifications given up because their node's run is over.",
        counter peer_owed_dropped: "Owed notifications forgotten because there were too many; their nodes read storage for all sessions.",
        counter peer_debts_written: "Times the database was told that a node is owed notifications.",
        counter peer_debts_failed: "Times it could not be told.",
        counter peer_connects: "Connections to other nodes made.",
        counter peer_connects_failed: "Connections to other nodes that could not be made.",
        counter peer_connects_untrusted: "Those of them whose other end showed a certificate that node.ca does not trust for its name.",
        counter peer_runs_gone: "Runs of other nodes found gone: silent for 10 minutes, and no answer at their address.",
        counter peer_circuits_opened: "How often a node was given up until it answers a probe.",
        gauge peer_nodes: "Other nodes called lately.",
        gauge peer_circuits_open: "Nodes that do not answer; calls of them fail at once.",
        gauge peer_owed: "Notifications owed to nodes that do not answer.",
        gauge peer_calls_under_way: "Calls being made.",
        gauge peer_calls_waiting: "Calls waiting for a connection.",
    }
}

/// The histogram of the calls of other nodes.
pub(super) const CALL_TIMES: &[HistogramMeaning] = &[HistogramMeaning {
    name: "peer_call_duration_seconds",
    label: None,
    help: "Time from the submission of a call of another node to its response.",
}];

impl PeerStats {
    /// Counts what a shard was told.
    pub(super) fn replied(&mut self, op: &PeerOp, reply: PeerReply) {
        use PeerReply::{Busy, Done, Held, NoAnswer, NotHere, Unreachable};
        let counter = match (op, reply) {
            (PeerOp::Push { .. }, Done) => &mut self.peer_push_done,
            (PeerOp::Push { .. }, NotHere) => &mut self.peer_push_not_here,
            (PeerOp::Push { .. }, Busy | Held) => &mut self.peer_push_busy,
            (PeerOp::Push { .. }, NoAnswer) => &mut self.peer_push_no_answer,
            (PeerOp::Push { .. }, Unreachable) => &mut self.peer_push_unreachable,
            (PeerOp::Notify { .. }, Done) => &mut self.peer_notify_done,
            (PeerOp::Notify { .. }, NotHere) => &mut self.peer_notify_not_here,
            (PeerOp::Notify { .. }, NoAnswer) => &mut self.peer_notify_no_answer,
            (PeerOp::Notify { .. }, Busy | Held | Unreachable) => &mut self.peer_notify_unreachable,
            (PeerOp::Leave { .. }, Done) => &mut self.peer_leave_done,
            (PeerOp::Leave { .. }, NotHere) => &mut self.peer_leave_not_here,
            (PeerOp::Leave { .. }, NoAnswer) => &mut self.peer_leave_no_answer,
            (PeerOp::Leave { .. }, Busy | Held | Unreachable) => &mut self.peer_leave_unreachable,
        };
        *counter += 1;
    }
}

/// Outcomes of the calls of one node, and its recent response times.
pub(super) struct CallStats {
    ends: OutcomeCounts,
    latency: Histogram<u32>,
    /// Of the last window in which there were answers.
    quantiles: (Duration, Duration),
    looks: u32,
}

/// Calls of one node by outcome, owed ones included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OutcomeCounts {
    /// Answered 200: done.
    pub ok: u64,
    /// Answered 202: noted, the session looks at storage when it can.
    pub noted: u64,
    /// Answered 404: the session is not there.
    pub not_here: u64,
    /// Answered 503: the session, or the node, takes nothing now.
    pub busy: u64,
    /// Answered otherwise: keys or versions differ.
    pub other: u64,
    /// Not sent: no connection, no trust, circuit open, or too many wait.
    pub unreachable: u64,
    /// Sent, and not answered in time.
    pub no_answer: u64,
}

impl CallStats {
    pub fn new() -> CallStats {
        CallStats {
            ends: OutcomeCounts::default(),
            // Invariant: these bounds and two digits make a histogram.
            latency: Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("a histogram"),
            quantiles: (Duration::ZERO, Duration::ZERO),
            looks: 0,
        }
    }

    /// An answer that came after this long.
    pub fn answered(&mut self, status: u16, took: Duration) {
        *match status {
            200 => &mut self.ends.ok,
            202 => &mut self.ends.noted,
            404 => &mut self.ends.not_here,
            503 => &mut self.ends.busy,
            _ => &mut self.ends.other,
        } += 1;
        self.latency.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    pub fn unreachable(&mut self) {
        self.ends.unreachable += 1;
    }

    pub fn no_answer(&mut self) {
        self.ends.no_answer += 1;
    }

    /// Counts, and the latency that half and all but one in a hundred of the answers had. Called at every tick.
    pub fn look(&mut self) -> (OutcomeCounts, (Duration, Duration)) {
        if self.looks.is_multiple_of(LOOKS_PER_QUANTILE) && !self.latency.is_empty() {
            let at = |part| Duration::from_micros(self.latency.value_at_quantile(part));
            self.quantiles = (at(0.5), at(0.99));
        }
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_PER_WINDOW) {
            self.latency.reset();
        }
        (self.ends, self.quantiles)
    }
}

/// Longer than any call.
const LATENCY_US_MAX: u64 = 60_000_000;
/// Ticks between two readings of the histogram: a second.
const LOOKS_PER_QUANTILE: u32 = 10;
/// Ticks after which latency begins anew: a minute.
const LOOKS_PER_WINDOW: u32 = 600;

/// State of the calls of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PeerStatus {
    /// It does not answer: calls fail at once, and it is probed.
    Open,
    /// It answers, but not what it is owed: those calls wait before they are made again.
    BackingOff,
    Closed,
}

/// One other node as operators see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeerSnapshot {
    /// Its `node.url`.
    pub url: Box<str>,
    pub state: PeerStatus,
    pub connections: usize,
    pub in_flight: usize,
    /// Calls that wait for a connection.
    pub waiting: usize,
    /// Notifications owed to it.
    pub owed: usize,
    /// Outcomes since the node is known.
    pub ends: OutcomeCounts,
    /// Median and 99th percentile of the response times of the last minute.
    pub quantiles: (Duration, Duration),
}

/// Every node as of a moment ago, those that do not answer first; as many as [`machine::peers::NODES_MAX`].
#[derive(Default)]
pub(crate) struct PeerSnapshots(Mutex<Vec<PeerSnapshot>>);

impl PeerSnapshots {
    pub fn look(&self) -> MutexGuard<'_, Vec<PeerSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_shows_the_last_minute_in_which_there_were_answers() {
        let mut tally = CallStats::new();
        assert_eq!(tally.look(), (OutcomeCounts::default(), (Duration::ZERO, Duration::ZERO)));
        for n in 1..=100 {
            tally.answered([200, 202, 404, 503, 401][n % 5], Duration::from_millis(n as u64));
        }
        tally.unreachable();
        let near = |is: Duration, wanted: u64| is.as_millis().abs_diff(u128::from(wanted)) <= 1;
        (1..LOOKS_PER_QUANTILE).for_each(|_| _ = tally.look());
        let (ends, (half, most)) = tally.look();
        assert!(near(half, 50) && near(most, 99), "{half:?} {most:?}");
        let each = OutcomeCounts { ok: 20, noted: 20, not_here: 20, busy: 20, other: 20, unreachable: 1, no_answer: 0 };
        assert_eq!(ends, each);
        // Longer ago than a minute, and nothing since.
        (0..2 * LOOKS_PER_WINDOW).for_each(|_| _ = tally.look());
        assert_eq!(tally.look().1, (half, most));
        tally.answered(200, Duration::from_millis(7));
        (0..LOOKS_PER_QUANTILE).for_each(|_| _ = tally.look());
        assert!(near(tally.look().1.1, 7));
    }
}
