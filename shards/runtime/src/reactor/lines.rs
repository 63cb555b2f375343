//! Lines: the one place where connections wait to be read and decoded, whatever they speak.
//!
//! A connection takes its turn in a line. A turn gives it a bounded amount of work, measured in cost
//! ([`limits::REQUEST_COST`]), and what is left of its bytes goes to the end of the line. Its bytes stay in its socket
//! until its turn comes. A turn of the shard serves each line up to a cost, too, so that a turn is short: a POST needs
//! three of them to become a frame.
//!
//! Its last request decides where a connection stands ([`Standing`]). Those that were carried out, and sessions, are
//! served in every turn, and so are new app servers, beside them and not among them. The others come last, because
//! strangers can have any number of them: they share slices. A turn in which the first lines have no work has a slice,
//! and there is one at least every [`PATIENCE`]. A slice takes from its lines in rotation, so that none of these crowds
//! delays another one. Hellos, and reads of storage for them, come no faster than upgrades.

use std::collections::VecDeque;

use crate::ports::{Edge, Port};
use crate::ring::{ArenaSpan, Flags, Standing, State};
use crate::tls::Stage;
use machine::ids::ConnId;
use machine::limits::{
    LINE_COST_PER_TURN, NEW_SENDERS_COST_PER_TURN, READS_PER_TURN, REQUEST_COST, TLS_HANDSHAKES_MAX,
};
use machine::time::{Instant, TimeSpan};

use super::recv::may_read;
use super::{Machine, Reactor};

/// Longest time for which the last lines wait for the first.
const PATIENCE: TimeSpan = TimeSpan(500_000);

/// A line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// App servers whose last request was carried out, and other nodes.
    Senders,
    /// Upgraded WebSockets.
    Sessions,
    /// App servers before the end of their first request.
    NewSenders,
    /// Connections of user agents before their upgrade, of public ports before their first request, and those whose TLS
    /// handshake has begun.
    Newcomers,
    /// TLS connections that have sent nothing that was read. They need one of [`TLS_HANDSHAKES_MAX`] places.
    Handshakes,
    /// Connections whose last request was refused.
    Refused,
    /// The same, and new app servers, of an address that fails ([`super::callers`]).
    Failing,
}

/// Number of lines.
pub(super) const LINES: usize = 7;

/// Lines that every turn serves, each up to this cost.
const FIRST: [(Line, u32); 3] = [
    (Line::Senders, LINE_COST_PER_TURN),
    (Line::Sessions, LINE_COST_PER_TURN),
    (Line::NewSenders, NEW_SENDERS_COST_PER_TURN),
];
/// Lines that share slices.
const LAST: [Line; 4] = [Line::Newcomers, Line::Handshakes, Line::Refused, Line::Failing];

/// Next thing to do for a connection in line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Read the socket, in which the bytes wait.
    Read,
    /// Decode the bytes that were kept aside.
    Decode,
}

/// Connections of one line.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<(ConnId, Work)>,
    /// Connections whose bytes wait in a span, of the last turn that read some. They come before the others.
    received: VecDeque<(ConnId, ArenaSpan, usize)>,
}

/// Numbers of connections in line, by line.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct InLine {
    /// Those that the input horizon waits for: all but TLS handshakes that have not begun.
    pub waiting: [usize; LINES],
    pub received: [usize; LINES],
}

/// The lines of a shard.
pub(super) struct Lines {
    queues: [Queue; LINES],
    /// Time of the first turn since the last slice in which a connection waited for one.
    since: Option<Instant>,
    /// Of [`LAST`], the line that comes next.
    next: usize,
    /// Cost of the work since the line, or the slice, got its turn.
    spent: u32,
    pub(super) patience: TimeSpan,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { queues: Default::default(), since: None, next: 0, spent: 0, patience: PATIENCE }
    }
}

/// Work that a turn of some lines may still do.
struct Allowance {
    cost: u32,
    reads: usize,
    /// Handshakes that may begin.
    places: usize,
}

impl Lines {
    /// Connections in line.
    pub(super) fn in_line(&self) -> InLine {
        let mut in_line = InLine::default();
        for (at, queue) in self.queues.iter().enumerate() {
            in_line.waiting[at] = queue.waiting.len();
            in_line.received[at] = queue.received.len();
        }
        in_line.waiting[Line::Handshakes as usize] = 0;
        in_line
    }

    /// Number of connections in this line.
    pub(super) fn len(&self, line: Line) -> usize {
        let queue = &self.queues[line as usize];
        queue.waiting.len() + queue.received.len()
    }

    /// Number of connections in the lines that share slices.
    fn last(&self) -> usize {
        LAST.iter().map(|line| self.len(*line)).sum()
    }

    /// Returns true if a connection is in one of the lines that every turn serves.
    fn has_first(&self) -> bool {
        FIRST.iter().any(|(line, _)| self.len(*line) > 0)
    }

    /// Adds to the cost of the turn that is under way.
    pub(super) fn charge(&mut self, cost: u32) {
        self.spent = self.spent.saturating_add(cost);
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

    /// Puts a connection whose ciphertext found no place for a handshake back in front.
    pub(super) fn first_handshake(&mut self, conn: ConnId) {
        self.queues[Line::Handshakes as usize].waiting.push_front((conn, Work::Decode));
    }

    /// Returns true if a TLS connection waits for the first step of its handshake.
    pub(super) fn has_fresh_handshake(&self) -> bool {
        self.len(Line::Handshakes) > 0
    }

    /// Gives back what a crowd needed.
    pub(super) fn trim(&mut self) {
        self.queues.iter_mut().for_each(|queue| super::trim(&mut queue.waiting));
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Puts a readable connection in line.
    pub(super) fn wait_to_be_read(&mut self, conn: ConnId) {
        self.stand_in_line(conn, Work::Read);
    }

    /// Puts a connection in line whose bytes were kept aside.
    pub(super) fn wait_to_decode(&mut self, conn: ConnId) {
        self.stand_in_line(conn, Work::Decode);
    }

    /// Keeps what was received until the turn of its connection comes.
    pub(super) fn wait_with_span(&mut self, conn: ConnId, span: ArenaSpan, len: usize) {
        match self.line_of(conn) {
            Some(line) => self.lines.queues[line as usize].received.push_back((conn, span, len)),
            None => self.plane.arena().free(span),
        }
    }

    fn stand_in_line(&mut self, conn: ConnId, work: Work) {
        if let Some(line) = self.line_of(conn) {
            self.lines.queues[line as usize].waiting.push_back((conn, work));
        }
    }

    /// Returns the line of this connection.
    fn line_of(&self, conn: ConnId) -> Option<Line> {
        let entry = self.conns.get(conn)?;
        if entry.flags.has(Flags::KNOWN) {
            return Some(Line::Sessions);
        }
        if self.in_handshake(conn) {
            let fresh = self.tls.stage(conn.slot) == Stage::Fresh;
            return Some(if fresh { Line::Handshakes } else { Line::Newcomers });
        }
        Some(match (entry.port, self.conns.standing(conn)) {
            (Port::Node, _) | (Port::Endpoint, Standing::Proven) => Line::Senders,
            (Port::WebSocket | Port::Public, Standing::New | Standing::Proven) => Line::Newcomers,
            (_, Standing::New | Standing::Refused) if self.is_failing(conn) => Line::Failing,
            (Port::Endpoint, Standing::New) => Line::NewSenders,
            (_, Standing::Refused) => Line::Refused,
        })
    }

    /// Returns true if an answer of the edge ends the turn of this connection: it stands in another line then.
    pub(super) fn ends_with_answer(&self, conn: ConnId) -> bool {
        let known = self.conns.get(conn).is_some_and(|entry| entry.flags.has(Flags::KNOWN));
        !known && self.conns.standing(conn) != Standing::Refused
    }

    /// Serves the lines that every turn serves. Returns true if something was done.
    pub(super) fn serve_first(&mut self) -> bool {
        let mut worked = false;
        for (line, cost) in FIRST {
            if self.lines.len(line) > 0 {
                worked |= self.serve_lines(&[line], cost);
            }
        }
        worked
    }

    /// Serves a slice of the other lines, if it is due. `busy`: others have work. Returns true if connections wait.
    pub(super) fn serve_last(&mut self, busy: bool) -> bool {
        if self.lines.last() == 0 {
            self.lines.since = None;
        } else if self.lines.is_due(self.now.mono, busy || self.lines.has_first()) {
            self.serve_lines(&LAST, LINE_COST_PER_TURN);
        }
        self.lines.has_first() || self.lines.last() > 0
    }

    /// Serves these lines in rotation until nothing more may be done for any of them.
    fn serve_lines(&mut self, lines: &[Line], cost: u32) -> bool {
        self.lines.spent = 0;
        let places = if lines.contains(&Line::Handshakes) { self.free_places() } else { 0 };
        let mut allowance = Allowance { cost, reads: READS_PER_TURN, places };
        let (mut worked, mut idle) = (false, 0);
        while idle < lines.len() {
            let line = lines[self.lines.next % lines.len()];
            if self.serve_one(line, &mut allowance) {
                (worked, idle) = (true, 0);
            } else {
                idle += 1;
            }
            if lines.len() > 1 {
                self.lines.next = (self.lines.next + 1) % lines.len();
            }
        }
        worked
    }

    /// Gives the first connection of this line its turn. Returns false if it has none, or nothing more may be done.
    fn serve_one(&mut self, line: Line, allowance: &mut Allowance) -> bool {
        let has_time = self.lines.spent < allowance.cost;
        let queue = &mut self.lines.queues[line as usize];
        if !queue.received.is_empty() {
            let Some((conn, span, len)) = queue.received.pop_front_if(|_| has_time) else { return false };
            self.input_horizon.decoded(line);
            self.with_turn(|reactor| reactor.take_received(conn, span, len as i32));
            return true;
        }
        let Some((conn, work)) = queue.waiting.front().copied() else { return false };
        let may_work = match work {
            Work::Read => allowance.reads > 0,
            Work::Decode => has_time,
        };
        let waits = self.waits(conn);
        if waits && (!may_work || (line == Line::Handshakes && !self.takes_handshake(allowance))) {
            return false;
        }
        self.lines.queues[line as usize].waiting.pop_front();
        match work {
            // It ends, moves, or is busy: it is read when that is over, if at all.
            _ if !waits => {}
            Work::Read => {
                allowance.reads -= 1;
                let starved = self.starved.len();
                self.start_receive(conn);
                if self.starved.len() > starved {
                    self.input_horizon.starved();
                }
            }
            Work::Decode => self.with_turn(|reactor| reactor.decode_inbox(conn)),
        }
        if line != Line::Handshakes {
            self.input_horizon.fed(line);
        }
        true
    }

    /// Does the work of one turn, and carries out what follows. It costs something in any case.
    fn with_turn(&mut self, work: impl FnOnce(&mut Reactor<E, M>)) {
        let before = self.lines.spent;
        work(self);
        self.lines.spent = self.lines.spent.max(before + REQUEST_COST);
        self.drive();
    }

    /// Returns true if the connection can take its turn.
    fn waits(&self, conn: ConnId) -> bool {
        let entry = self.conns.get(conn).filter(|entry| entry.state == State::Open);
        entry.is_some_and(|entry| may_read(entry.state, entry.flags) && !entry.flags.has(Flags::RECV))
    }

    /// Returns the number of handshakes that may begin.
    fn free_places(&self) -> usize {
        let begun = self.tls.handshakes() + self.lines.queues[Line::Handshakes as usize].received.len();
        TLS_HANDSHAKES_MAX.saturating_sub(begun)
    }

    /// Takes a place for a handshake. Returns false if there is none, and none of those that have one gives it up.
    fn takes_handshake(&mut self, allowance: &mut Allowance) -> bool {
        if allowance.places == 0 && !self.make_room_for_handshake() {
            return false;
        }
        allowance.places = allowance.places.saturating_sub(1);
        true
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
