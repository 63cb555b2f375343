//! TLS connections: ciphertext in, ciphertext out, handshakes in bounds (LIMITS.md).
//!
//! Received bytes go through [`crate::tls::Tls`] into the same decoding as plain bytes ([`super::recv`]). Encoded bytes
//! are sealed when they are sent ([`super::send`]). Ciphertext waits unopened while a command is under way.

use std::collections::VecDeque;

use crate::ports::Edge;
use crate::ring::{ArenaSpan, Flags, PendingOutput, State};
use crate::tls::{GivenUp, Next, Received, Stage};
use machine::CloseReason;
use machine::ids::ConnId;
use machine::limits::{TLS_FLIGHT_BYTES_MAX, TLS_HANDSHAKES_MAX, TLS_STEPS_PER_SLICE};
use machine::time::{Instant, TimeSpan};

use super::recv::may_read;
use super::{Machine, Reactor};

/// Handshakes of a shard.
#[derive(Default)]
pub(super) struct Handshakes {
    /// Connections with a handshake in flight and when it began, oldest first. Those that are over stay until they come
    /// to the front.
    pub(super) begun: VecDeque<(ConnId, Instant)>,
    /// Connections that wait for a step of a handshake that has begun.
    shaking: VecDeque<(ConnId, Step)>,
    /// Connections that wait for the first step.
    fresh: VecDeque<(ConnId, Step)>,
    /// Bytes that were received for a step and wait in their spans for the time that it takes.
    received: VecDeque<(ConnId, ArenaSpan, usize)>,
    /// Time that the steps of this slice took.
    spent: TimeSpan,
}

/// Next thing to do for a handshake.
#[derive(Clone, Copy)]
enum Step {
    /// Read the socket, in which the bytes wait.
    Receive,
    /// Open a whole record that was kept aside.
    Open,
}

/// A handshake that takes longer makes room for one that waits.
pub(super) const PATIENCE: TimeSpan = TimeSpan::from_secs(1);
/// Time that the steps of one slice take, and one step more: others wait for them. A first flight is some 110 us.
const STEPS_SPAN: TimeSpan = TimeSpan(100_000);

impl Handshakes {
    /// Time at which a handshake has taken long enough to make room for one that waits.
    pub(super) fn next(&self) -> Option<Instant> {
        self.begun.front().filter(|_| !self.fresh.is_empty()).map(|(_, since)| since.after(PATIENCE))
    }

    /// Number of connections that wait for a step.
    pub(super) fn waiting(&self) -> usize {
        self.shaking.len() + self.fresh.len() + self.received.len()
    }

    /// Returns true if a slice may do another step, when `left` are left.
    fn has_time(&self, left: usize) -> bool {
        left > 0 && self.spent < STEPS_SPAN
    }

    /// Gives back what a crowd needed.
    pub(super) fn trim(&mut self) {
        super::trim(&mut self.begun);
        super::trim(&mut self.shaking);
        super::trim(&mut self.fresh);
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Does the steps of one slice: first those whose bytes were received. Then some of the connections that wait for a
    /// step get one, oldest first. Half of the steps are for handshakes that have begun, so that neither kind starves
    /// the other. Returns true if a step was done.
    pub(super) fn step_handshakes(&mut self) -> bool {
        self.handshakes.spent = TimeSpan(0);
        let received = self.handshakes.received.len();
        while self.handshakes.has_time(1)
            && let Some((conn, span, len)) = self.handshakes.received.pop_front()
        {
            self.step_received(conn, span, len);
        }
        if !self.handshakes.received.is_empty() {
            return true;
        }
        let mut room = TLS_HANDSHAKES_MAX.saturating_sub(self.tls.handshakes());
        let mut left = TLS_STEPS_PER_SLICE;
        self.step_begun(&mut left, TLS_STEPS_PER_SLICE / 2);
        while self.handshakes.has_time(left)
            && let Some((conn, step)) = self.handshakes.fresh.pop_front()
        {
            if self.conns.get(conn).is_none() {
                continue;
            }
            if room == 0 && !self.make_room_for_handshake() {
                self.handshakes.fresh.push_front((conn, step));
                break;
            }
            room = room.saturating_sub(1);
            left -= self.step_handshake(conn, step);
        }
        self.step_begun(&mut left, 0);
        received > 0 || left < TLS_STEPS_PER_SLICE
    }

    /// Keeps what was received for a step of a handshake until the next slice. Returns the span of another connection.
    pub(super) fn keep_for_step(&mut self, conn: ConnId, span: ArenaSpan, len: usize) -> Option<ArenaSpan> {
        if !self.in_handshake(conn) {
            return Some(span);
        }
        self.handshakes.received.push_back((conn, span, len));
        None
    }

    /// Does the step for which these bytes were received.
    fn step_received(&mut self, conn: ConnId, span: ArenaSpan, len: usize) {
        if self.conns.get(conn).is_some_and(|entry| entry.state == State::Open) {
            self.ingest_sealed(conn, span, len);
        } else {
            self.plane.arena.free(span);
        }
    }

    /// Gives steps to handshakes that have begun, until `spared` steps are left.
    fn step_begun(&mut self, left: &mut usize, spared: usize) {
        while *left > spared
            && self.handshakes.has_time(*left)
            && let Some((conn, step)) = self.handshakes.shaking.pop_front()
        {
            *left -= self.step_handshake(conn, step);
        }
    }

    /// Does a step. Returns the number of steps that it takes: none if the connection is gone.
    fn step_handshake(&mut self, conn: ConnId, step: Step) -> usize {
        if self.conns.get(conn).is_none_or(|entry| entry.state != State::Open) {
            return 0;
        }
        match step {
            Step::Receive => self.start_receive(conn),
            Step::Open => self.open_waiting(conn),
        }
        1
    }

    /// Puts a readable connection in line for a step if its handshake is not over. Its bytes stay in the socket.
    pub(super) fn must_wait_for_handshake(&mut self, conn: ConnId) -> bool {
        let is_open = self.conns.get(conn).is_some_and(|entry| entry.state == State::Open);
        let waits = is_open && self.in_handshake(conn);
        if waits {
            self.line_of(conn).push_back((conn, Step::Receive));
        }
        waits
    }

    /// The line in which this connection waits for a step.
    fn line_of(&mut self, conn: ConnId) -> &mut VecDeque<(ConnId, Step)> {
        let fresh = self.tls.stage(conn.slot) == Stage::Fresh;
        if fresh { &mut self.handshakes.fresh } else { &mut self.handshakes.shaking }
    }

    /// Ends a handshake that waits for its peer and has taken long. Returns false if there is none.
    fn make_room_for_handshake(&mut self) -> bool {
        for _ in 0..self.handshakes.begun.len() {
            let Some((conn, since)) = self.handshakes.begun.pop_front() else { return false };
            let flags = self.conns.get(conn).map(|entry| entry.flags);
            let Some(flags) = flags.filter(|_| self.tls.stage(conn.slot) == Stage::Handshake) else { continue };
            // Its flight may lie unread beyond the horizon.
            if self.input_horizon.until().since(since) < PATIENCE {
                self.handshakes.begun.push_front((conn, since));
                return false;
            }
            if flags.has(Flags::POLL_IN) {
                self.tls.give_up(conn.slot, GivenUp::Late);
                self.lingering_close(conn, CloseReason::Idle);
                return true;
            }
            // It waits for this shard.
            self.handshakes.begun.push_back((conn, self.now.mono));
        }
        false
    }

    /// A connection was accepted on a TLS listener.
    pub(super) fn begin_tls(&mut self, conn: ConnId) {
        if let Some(entry) = self.conns.get_mut(conn) {
            entry.flags.set(Flags::TLS);
            self.tls.open(conn.slot, entry.port);
        }
    }

    /// Returns true if the connection speaks TLS and its handshake is not over.
    pub(super) fn in_handshake(&self, conn: ConnId) -> bool {
        self.is_tls(conn) && self.tls.stage(conn.slot) != Stage::Established
    }

    fn is_tls(&self, conn: ConnId) -> bool {
        self.conns.get(conn).is_some_and(|entry| entry.flags.has(Flags::TLS))
    }

    /// Takes a span of ciphertext. It waits unopened while the connection may not be read, or other ciphertext waits.
    pub(super) fn ingest_sealed(&mut self, conn: ConnId, span: ArenaSpan, len: usize) {
        let mut bytes = std::mem::take(&mut self.ciphertext);
        bytes.extend_from_slice(self.plane.arena.bytes(&span, len));
        self.plane.arena.free(span);
        if let Some(entry) = self.conns.get_mut(conn) {
            let held = self.buffer_pool.held(entry.buffers);
            let in_line = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.sealed.is_empty());
            if in_line || !may_read(entry.state, entry.flags) {
                self.buffer_pool.entry(&mut entry.buffers, entry.port).sealed.keep(&bytes);
                self.act_within_bounds(conn, held, None);
                self.open_waiting(conn);
            } else {
                self.open(conn, held, &mut bytes);
            }
        }
        bytes.clear();
        self.ciphertext = bytes;
    }

    /// The socket of a handshake takes bytes again: goes on with what waits.
    pub(super) fn resume_handshake(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get(conn) else { return };
        if self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.sealed.is_empty()) {
            self.line_of(conn).push_back((conn, Step::Open));
        }
        self.want_input(conn);
    }

    /// Opens the ciphertext that waits, if the connection may be read.
    pub(super) fn open_waiting(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let held = self.buffer_pool.held(entry.buffers);
        let Some(buffers) = self.buffer_pool.get(entry.buffers) else { return };
        if buffers.sealed.is_empty() || !may_read(entry.state, entry.flags) {
            return;
        }
        let mut bytes = buffers.sealed.take();
        self.open(conn, held, &mut bytes);
    }

    /// Opens whole records, keeps the rest, decodes the plaintext, and acts on the state of the connection. `held` is
    /// the memory that the connection had before.
    fn open(&mut self, conn: ConnId, held: usize, bytes: &mut [u8]) {
        let stage = self.tls.stage(conn.slot);
        let is_full = stage == Stage::Fresh && self.tls.handshakes() >= TLS_HANDSHAKES_MAX;
        if is_full || (stage != Stage::Established && self.handshakes.spent >= STEPS_SPAN) {
            self.keep_sealed(conn, bytes);
            self.line_of(conn).push_front((conn, Step::Open));
            return self.act_within_bounds(conn, held, None);
        }
        let begun = (stage != Stage::Established).then(|| self.clock.now().mono);
        let Received { plain, consumed, next } = self.tls.receive(conn.slot, bytes, &mut self.wire);
        if let Some(begun) = begun {
            self.handshakes.spent = TimeSpan(self.handshakes.spent.0 + self.clock.now().mono.since(begun).0);
        }
        if stage == Stage::Fresh {
            self.note_begun_handshake(conn);
        }
        self.send_wire(conn);
        self.keep_sealed(conn, &bytes[consumed..]);
        let in_handshake = self.in_handshake(conn);
        if in_handshake && bytes.len() - consumed > TLS_FLIGHT_BYTES_MAX {
            self.tls.give_up(conn.slot, GivenUp::Flood);
            return self.fail(conn);
        }
        if next == Next::Failed {
            return self.fail(conn);
        }
        if in_handshake {
            // The time of a handshake counts from its accept: a half record does not renew it.
            if next == Next::Again && consumed < bytes.len() {
                self.line_of(conn).push_back((conn, Step::Open));
            } else {
                self.want_input(conn);
            }
            return self.act_within_bounds(conn, held, None);
        }
        self.decode_bytes(conn, held, &mut bytes[..plain]);
        if next == Next::Again {
            self.undecoded.push_back(conn);
        }
        self.end_if_peer_closed(conn);
    }

    /// Ends a connection whose peer sent close_notify, as soon as what it sent before is served.
    pub(super) fn end_if_peer_closed(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get(conn) else { return };
        let served = may_read(entry.state, entry.flags) && entry.state == State::Open;
        if served && entry.flags.has(Flags::TLS) && self.tls.peer_closed(conn.slot) {
            self.ended_in_tls(conn);
        }
    }

    fn note_begun_handshake(&mut self, conn: ConnId) {
        let Handshakes { begun, .. } = &mut self.handshakes;
        begun.push_back((conn, self.now.mono));
        if begun.len() > 2 * TLS_HANDSHAKES_MAX {
            begun.retain(|(conn, _)| self.conns.get(*conn).is_some() && self.tls.stage(conn.slot) == Stage::Handshake);
        }
    }

    /// Sends the ciphertext that was written while records were opened.
    fn send_wire(&mut self, conn: ConnId) {
        if !self.wire.is_empty()
            && let Some(entry) = self.conns.get_mut(conn)
        {
            debug_assert!(!entry.flags.has(Flags::SENDING), "nothing is received while a submission is being made");
            self.buffer_pool.entry(&mut entry.buffers, entry.port).out.push_wire(&self.wire);
            self.mark_dirty(conn);
        }
        self.wire.clear();
    }

    fn keep_sealed(&mut self, conn: ConnId, bytes: &[u8]) {
        if let Some(entry) = self.conns.get_mut(conn)
            && !bytes.is_empty()
        {
            self.buffer_pool.entry(&mut entry.buffers, entry.port).sealed.keep(bytes);
        }
    }

    /// Ends a connection whose peer broke a rule of TLS. The alert is its last record.
    fn fail(&mut self, conn: ConnId) {
        self.forget(conn, CloseReason::TlsFailed);
        let Some(entry) = self.conns.get_mut(conn).filter(|entry| entry.state == State::Open) else { return };
        self.closes.count(CloseReason::TlsFailed);
        if let Some(codec) = &entry.codec {
            self.edge.ended(self.now, codec, CloseReason::TlsFailed);
        }
        if let Some(buffers) = self.buffer_pool.get(entry.buffers) {
            buffers.out.drop_frames();
        }
        self.begin_close(conn);
    }

    /// Seals what is sent now.
    pub(super) fn seal(&mut self, conn: ConnId, output: &mut PendingOutput) {
        if self.tls.stage(conn.slot) == Stage::Established {
            output.seal(self.tls.as_mut(), conn.slot);
        } else {
            // Frames are encoded only for established connections, and a failed one drops them.
            output.drop_frames();
        }
    }
}
