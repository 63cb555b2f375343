//! Probes that are under way, and the times at which their answers are due.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hibernate::Frozen;

use crate::ports::Probes;
use machine::ids::ConnId;
use machine::time::{Instant, TimeSpan};

/// The probes of a shard that are under way.
pub(super) struct PendingProbes {
    options: Probes,
    /// Connections by slot whose peer has not answered.
    unanswered: HashMap<u32, ConnId>,
    /// Every probe, with the time at which its answer is due: the oldest first.
    due: VecDeque<(Instant, ConnId)>,
}

impl PendingProbes {
    pub(super) fn new(options: Probes) -> PendingProbes {
        PendingProbes { options, unanswered: HashMap::new(), due: VecDeque::new() }
    }

    /// Time for the answer to a probe.
    pub(super) fn answer_within(&self) -> TimeSpan {
        self.options.answer_within
    }

    /// Time at which the next answer is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Sends a probe to a peer that has been silent for so long. Returns false if a Ping is due in its place.
    pub(super) fn send(&mut self, now: Instant, silence: TimeSpan, conn: ConnId, frozen: &Frozen) -> bool {
        if silence >= self.options.ping_after || self.options.prober.send(frozen).is_err() {
            return false;
        }
        self.unanswered.insert(conn.slot, conn);
        self.due.push_back((now.after(self.options.answer_within), conn));
        true
    }

    /// The peer of this connection has answered.
    pub(super) fn answered(&mut self, conn: ConnId) {
        self.unanswered.remove(&conn.slot);
    }

    /// Returns a connection whose answer was due by now and has not come.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<ConnId> {
        while let Some((_, conn)) = self.due.pop_front_if(|(at, _)| *at <= now) {
            if self.unanswered.get(&conn.slot) == Some(&conn) {
                self.unanswered.remove(&conn.slot);
                return Some(conn);
            }
        }
        None
    }

    /// Gives back what a crowd of probes needed.
    pub(super) fn trim(&mut self) {
        super::super::trim(&mut self.due);
        if self.unanswered.capacity() > 1_024 && self.unanswered.len() < self.unanswered.capacity() / 4 {
            self.unanswered.shrink_to(self.unanswered.capacity() / 2);
        }
    }
}
