//! Ending connections (ring/RULES.md rules 3 and 4).
//!
//! A lingering close is: the closing frame, Shutdown(WR), its completion, then reading and throwing away what the peer
//! still sends, then Close. Closing with unread input would reset the connection and destroy the close code.

use crate::ports::Edge;
use crate::ring::{CompletionKey, Flags, SocketMove, State};
use crate::tls::{GivenUp, Stage};
use machine::ids::ConnId;
use machine::limits::ENDED_PER_TURN;
use machine::time::{Instant, TimeSpan};
use machine::{CloseReason, Input};

use super::{Machine, Reactor};

/// Time at which a lingering close has taken long enough. All take equally long, so these stand in line.
pub(super) struct CloseDeadline {
    at: Instant,
    conn: ConnId,
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Ends an open connection with the closing frame for `reason`. The machine does not know it any more.
    pub(super) fn lingering_close(&mut self, conn: ConnId, reason: CloseReason) {
        if reason == CloseReason::Draining && self.leave_to_next(conn) {
            return;
        }
        let is_back = self.bring_back(conn);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if !is_back {
            // Its peer is reset when it speaks.
            self.closes.count(reason);
            if let Some(codec) = &entry.codec {
                self.edge.ended(self.now, codec, reason);
            }
            return self.close(conn);
        }
        if entry.state != State::Open {
            return;
        }
        self.closes.count(reason);
        if let Some(codec) = entry.codec.as_mut() {
            self.edge.ended(self.now, codec, reason);
        }
        if self.in_handshake(conn) {
            // Without keys nothing can be said.
            self.tls.give_up(conn.slot, GivenUp::Closed);
            return self.close(conn);
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if let Some(codec) = entry.codec.as_mut() {
            self.edge.close(codec, reason, &mut self.scratch);
        }
        if !self.scratch.is_empty() {
            self.buffer_pool.entry(&mut entry.buffers, entry.port).out.push(&self.scratch);
            self.scratch.clear();
        }
        self.begin_close(conn);
    }

    /// Ends the connection behind the bytes that are encoded: they are its last.
    pub(super) fn begin_close(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::SendingLast;
        if let Some(buffers) = self.buffer_pool.get(entry.buffers) {
            buffers.drop_input();
        }
        if entry.flags.has(Flags::TLS) && self.tls.stage(conn.slot) == Stage::Established {
            // RFC 8446 section 6.1. A client without it may take the end for an attack.
            self.buffer_pool.entry(&mut entry.buffers, entry.port).out.end_with_close_notify();
        }
        let owed = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.out.is_empty());
        let sending = entry.flags.has(Flags::SENDING) || entry.flags.has(Flags::POLL_OUT);
        self.stats.goodbyes += 1;
        // In steps, so that the deadlines of a crowd are one.
        let timeout = self.limits.linger_timeout;
        let at = self.now.mono.after(timeout).rounded_up(TimeSpan(timeout.0 / 16));
        self.lingering.push_back(CloseDeadline { at, conn });
        if owed {
            self.mark_dirty(conn);
        } else if !sending {
            self.shutdown_write(conn);
        }
    }

    /// Everything is said: end our side of the stream.
    pub(super) fn shutdown_write(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.flags.has(Flags::ENDED) {
            // The peer has said everything too: nothing is unread.
            return self.close(conn);
        }
        entry.state = State::ShuttingDown;
        self.plane.shutdown(conn);
    }

    pub(super) fn shut_down(&mut self, done: CompletionKey, result: i32) {
        let Some(conn) = self.conns.name(done) else { return };
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.state != State::ShuttingDown {
            return;
        }
        if result < 0 {
            return self.close(conn);
        }
        entry.state = State::DiscardingInput;
        self.start_receive(conn);
    }

    /// A receive of a connection that is discarding has completed.
    pub(super) fn discard(&mut self, conn: ConnId, result: i32) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        match u32::try_from(result) {
            Ok(0) => self.close(conn),
            Ok(more) => {
                let buffers = self.buffer_pool.entry(&mut entry.buffers, entry.port);
                buffers.discarded = buffers.discarded.saturating_add(more);
                if buffers.discarded > self.limits.linger_bytes {
                    self.stats.goodbyes_cut += 1;
                    self.close(conn);
                } else {
                    self.start_receive(conn);
                }
            }
            Err(_) if result == -libc::EAGAIN => {
                if !entry.flags.has(Flags::POLL_IN) {
                    entry.flags.set(Flags::POLL_IN);
                    self.plane.poll_in(conn);
                }
            }
            Err(_) => self.close(conn),
        }
    }

    /// The peer has ended its side of an open connection.
    pub(super) fn ended(&mut self, conn: ConnId) {
        if let Some(entry) = self.conns.get_mut(conn) {
            entry.flags.set(Flags::ENDED);
        }
        self.ended_in_tls(conn);
    }

    /// The peer has said that no data follows, with close_notify. Its socket may still have bytes.
    pub(super) fn ended_in_tls(&mut self, conn: ConnId) {
        self.stats.peers_gone += 1;
        self.forget(conn, CloseReason::PeerClosed);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if let Some(codec) = &entry.codec {
            self.edge.ended(self.now, codec, CloseReason::PeerClosed);
        }
        self.begin_close(conn);
    }

    /// Ends a connection whose socket is broken: no goodbye can be sent.
    pub(super) fn lost(&mut self, conn: ConnId) {
        self.stats.peers_gone += 1;
        self.forget(conn, CloseReason::PeerClosed);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if matches!(entry.state, State::Open | State::Apart | State::Frozen)
            && let Some(codec) = &entry.codec
        {
            self.edge.ended(self.now, codec, CloseReason::PeerClosed);
        }
        if entry.state == State::Moving
            && let Some(SocketMove::Claimed { to, claim, .. }) =
                self.buffer_pool.get(entry.buffers).and_then(|buffers| buffers.departure.take())
        {
            // It never left. The machine closes what could not be moved.
            self.inputs.push_back(Input::MoveFailed { conn, to, claim });
        }
        self.close(conn);
    }

    /// Removes polls and closes the slot: the last operation of a connection.
    pub(super) fn close(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get(conn) else { return };
        let flags = entry.flags;
        self.plane.close(conn, flags.has(Flags::POLL_IN), flags.has(Flags::POLL_OUT));
        self.release(conn);
    }

    /// Takes the connection out of all tables; its Close is staged.
    pub(super) fn release(&mut self, conn: ConnId) {
        self.leave_hibernation(conn);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        self.buffer_pool.free(&mut entry.buffers);
        if entry.flags.has(Flags::TLS) {
            self.tls.end(conn.slot);
        }
        if entry.flags.has(Flags::COUNTED) {
            self.mailbox.count_assigned(self.mailbox.shard(), false);
            self.stats.endpoint_connections -= 1;
        }
        if entry.flags.has(Flags::REFUSED) {
            self.accepting.refused_one_less();
        }
        self.callers.leave(conn, self.now.mono);
        self.conns.closing(conn);
    }

    pub(super) fn closed(&mut self, done: CompletionKey, result: i32) {
        // The second half of a move that failed: the connection is still here.
        if result == -libc::ECANCELED {
            return;
        }
        if self.conns.closed(done) {
            self.stats.closes += 1;
            self.slot_freed(self.plane.ring_of(done.slot));
        }
    }

    pub(super) fn next_close_deadline(&self) -> Option<Instant> {
        self.lingering.front().map(|first| first.at)
    }

    /// Closes those that have had their time. True when there were any.
    pub(super) fn end_overdue_closes(&mut self) -> bool {
        let mut ended = 0;
        while ended < ENDED_PER_TURN && self.next_close_deadline().is_some_and(|at| at <= self.now.mono) {
            let Some(CloseDeadline { conn, .. }) = self.lingering.pop_front() else { break };
            if self.conns.get(conn).is_some() {
                ended += 1;
                self.stats.goodbyes_cut += 1;
                self.close(conn);
            }
        }
        ended > 0
    }
}
