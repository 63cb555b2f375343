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
use machine::limits::{TLS_FLIGHT_BYTES_MAX, TLS_HANDSHAKES_MAX};
use machine::time::{Instant, TimeSpan};

use super::recv::may_read;
use super::{Machine, Reactor};

/// Handshakes of a shard. Those that wait for a step stand in line as others do ([`super::lines`]).
#[derive(Default)]
pub(super) struct Handshakes {
    /// Connections with a handshake in flight and when it began, oldest first. Those that are over stay until they come
    /// to the front.
    pub(super) begun: VecDeque<(ConnId, Instant)>,
}

/// A handshake that takes longer makes room for one that waits.
pub(super) const PATIENCE: TimeSpan = TimeSpan::from_secs(1);

impl Handshakes {
    /// Gives back what a crowd needed.
    pub(super) fn trim(&mut self) {
        super::trim(&mut self.begun);
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Time at which a handshake has taken long enough to make room for one that waits.
    pub(super) fn next_room_for_handshake(&self) -> Option<Instant> {
        let oldest = self.handshakes.begun.front().filter(|_| self.lines.has_fresh_handshake());
        oldest.map(|(_, since)| since.after(PATIENCE))
    }

    /// Ends a handshake that waits for its peer and has taken long. Returns false if there is none.
    pub(super) fn make_room_for_handshake(&mut self) -> bool {
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
        bytes.extend_from_slice(self.plane.arena().bytes(&span, len));
        self.plane.arena().free(span);
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

    /// Opens the ciphertext that waits, if the connection may be read. Returns false if its turn is over.
    pub(super) fn open_waiting(&mut self, conn: ConnId) -> bool {
        let Some(entry) = self.conns.get_mut(conn) else { return true };
        let held = self.buffer_pool.held(entry.buffers);
        let Some(buffers) = self.buffer_pool.get(entry.buffers) else { return true };
        if buffers.sealed.is_empty() || !may_read(entry.state, entry.flags) {
            return true;
        }
        let mut bytes = buffers.sealed.take();
        self.open(conn, held, &mut bytes)
    }

    /// Opens whole records, keeps the rest, decodes the plaintext, and acts on the state of the connection. `held` is
    /// the memory that the connection had before. Returns false if the turn of the connection is over.
    fn open(&mut self, conn: ConnId, held: usize, bytes: &mut [u8]) -> bool {
        let stage = self.tls.stage(conn.slot);
        if stage == Stage::Fresh && self.tls.handshakes() >= TLS_HANDSHAKES_MAX {
            self.keep_sealed(conn, bytes);
            self.lines.first_handshake(conn);
            self.act_within_bounds(conn, held, None);
            return false;
        }
        let begun = (stage != Stage::Established).then(|| self.clock.now().mono);
        let Received { plain, consumed, next } = self.tls.receive(conn.slot, bytes, &mut self.wire);
        if let Some(begun) = begun {
            let took = self.clock.now().mono.since(begun).micros();
            self.lines.charge(u32::try_from(took).unwrap_or(u32::MAX));
        }
        if stage == Stage::Fresh {
            self.note_begun_handshake(conn);
        }
        self.send_wire(conn);
        self.keep_sealed(conn, &bytes[consumed..]);
        let in_handshake = self.in_handshake(conn);
        if in_handshake && bytes.len() - consumed > TLS_FLIGHT_BYTES_MAX {
            self.tls.give_up(conn.slot, GivenUp::Flood);
            self.fail(conn);
            return false;
        }
        if next == Next::Failed {
            self.fail(conn);
            return false;
        }
        if in_handshake {
            // The time of a handshake counts from its accept: a half record does not renew it.
            if next == Next::Again && consumed < bytes.len() {
                self.wait_to_decode(conn);
            } else {
                self.want_input(conn);
            }
            self.act_within_bounds(conn, held, None);
            return false;
        }
        if !self.decode_bytes(conn, held, &mut bytes[..plain]) {
            return false;
        }
        if next == Next::Again {
            self.wait_to_decode(conn);
        }
        self.end_if_peer_closed(conn);
        true
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
