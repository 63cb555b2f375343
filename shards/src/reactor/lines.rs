//! Lines of readable WebSockets: sessions, and newcomers.
//!
//! A crowd that connects, or leaves, must not delay notifications. So the connections of user agents wait in line,
//! unread, and a turn reads few of them. Those of app servers and other nodes are read at once.
//!
//! Newcomers are WebSockets before their upgrade, and connections before the end of their TLS handshake. They are
//! served in slices: in a turn in which nothing else was to do, or when they have waited for [`NEWCOMERS_PATIENCE`].
//! Their line bounds what follows, too: hellos, and reads of storage for them, come no faster than upgrades.

use std::collections::VecDeque;

use crate::ports::{Edge, Port};
use crate::ring::{Flags, State};
use machine::ids::ConnId;
use machine::limits::{NEWCOMERS_PER_SLICE, SESSIONS_PER_TURN};
use machine::time::{Instant, TimeSpan};

use super::{Machine, Reactor};

/// Longest time for which newcomers wait for others.
const NEWCOMERS_PATIENCE: TimeSpan = TimeSpan(500_000);

/// Connections of a shard whose bytes wait in their sockets.
pub(super) struct Lines {
    sessions: VecDeque<ConnId>,
    /// Those within a TLS handshake have lines of their own ([`super::sealed::Handshakes`]).
    newcomers: VecDeque<ConnId>,
    /// Time of the first turn since the last slice in which newcomers waited.
    since: Option<Instant>,
    pub(super) patience: TimeSpan,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { sessions: VecDeque::new(), newcomers: VecDeque::new(), since: None, patience: NEWCOMERS_PATIENCE }
    }
}

impl Lines {
    /// Number of sessions in line.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Number of newcomers in line.
    pub(super) fn newcomers(&self) -> usize {
        self.newcomers.len()
    }

    /// Returns true if a slice is due in this turn. `busy`: others have work.
    fn is_due(&mut self, now: Instant, busy: bool) -> bool {
        let since = *self.since.get_or_insert(now);
        let due = !busy || now.since(since) >= self.patience;
        if due {
            self.since = None;
        }
        due
    }

    /// Gives back what a crowd needed.
    pub(super) fn trim(&mut self) {
        super::trim(&mut self.sessions);
        super::trim(&mut self.newcomers);
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Puts a readable connection of a user agent in line. Returns false for others.
    pub(super) fn must_wait_in_line(&mut self, conn: ConnId) -> bool {
        let Some(entry) = self.conns.get(conn) else { return false };
        let waits = entry.state == State::Open && entry.port == Port::WebSocket;
        if waits && entry.flags.has(Flags::KNOWN) {
            self.lines.sessions.push_back(conn);
        } else if waits {
            self.lines.newcomers.push_back(conn);
        }
        waits
    }

    /// Reads the sessions that this turn takes. Returns true if some were read.
    pub(super) fn read_sessions(&mut self) -> bool {
        let starved = self.starved.len();
        let taken = self.lines.sessions.len().min(SESSIONS_PER_TURN);
        for _ in 0..taken {
            let Some(conn) = self.lines.sessions.pop_front() else { break };
            self.read_from_line(conn);
        }
        self.input_horizon.starved(self.starved.len() - starved);
        self.input_horizon.fed([0, taken, 0]);
        taken > 0
    }

    /// Serves a slice of the newcomers, if it is due. `busy`: others have work. Returns true if something was done.
    pub(super) fn serve_newcomers(&mut self, busy: bool) -> bool {
        if self.lines.newcomers() + self.handshakes.waiting() == 0 {
            self.lines.since = None;
            return false;
        }
        if !self.lines.is_due(self.now.mono, busy) {
            return false;
        }
        let stepped = self.step_handshakes();
        let starved = self.starved.len();
        let taken = self.lines.newcomers.len().min(NEWCOMERS_PER_SLICE);
        for _ in 0..taken {
            let Some(conn) = self.lines.newcomers.pop_front() else { break };
            self.read_from_line(conn);
        }
        self.input_horizon.starved(self.starved.len() - starved);
        self.input_horizon.fed([0, 0, taken]);
        self.drive();
        stepped || taken > 0
    }

    fn read_from_line(&mut self, conn: ConnId) {
        // A connection that ends, moves, or is busy meanwhile is read when that is over, if at all.
        if self.conns.get(conn).is_some_and(|entry| super::recv::may_read(entry.state, entry.flags)) {
            self.start_receive(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_due_without_other_work_and_at_the_latest_when_patience_is_over() {
        let (mut lines, us) = (Lines::default(), |us: u64| Instant(us * 1_000));
        assert_eq!([0, 400, 499].map(|at| lines.is_due(us(at), true)), [false; 3]);
        assert!(lines.is_due(us(500), true));
        assert_eq!([501, 1_000].map(|at| lines.is_due(us(at), true)), [false; 2], "counted anew");
        assert!(lines.is_due(us(1_000), false) && !lines.is_due(us(1_001), true));
    }
}
