//! Bytes out: one coalesced SEND per socket and submission; a blocked socket keeps one tail (ring/RULES.md
//! rules 1, 2 and 6).

use crate::ports::Edge;
use crate::ring::{CompletionKey, Flags, PendingOutput, Sent, State};
use machine::ids::ConnId;
use machine::{CloseReason, Input};

use super::{Machine, Reactor};

/// Bytes of one outbox beyond which it is sent within the turn, so that a socket that takes nothing is found
/// out before more is encoded for it.
pub(super) const OUTBOX_BYTES_MAX: usize = 64 * 1024;

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Something was encoded for this connection.
    pub(super) fn mark_dirty(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if !entry.flags.has(Flags::DIRTY) {
            entry.flags.set(Flags::DIRTY);
            self.dirty.push(conn);
        }
    }

    /// Stages one send for every connection that has something and may.
    pub(super) fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for conn in dirty.drain(..) {
            if self.hibernator.is_some() && !self.bring_back_for_frame(conn) {
                continue;
            }
            let Some(entry) = self.conns.get_mut(conn) else { continue };
            entry.flags.clear(Flags::DIRTY);
            // A connection that is being sent to, or waits for room, is marked again when that is over.
            if entry.flags.has(Flags::SENDING) || entry.flags.has(Flags::POLL_OUT) {
                continue;
            }
            let fresh = self.buffer_pool.take_output();
            let Some(buffers) = self.buffer_pool.get(entry.buffers).filter(|buffers| !buffers.out.is_empty()) else {
                self.buffer_pool.put_outbox(fresh);
                continue;
            };
            let mut output = std::mem::replace(&mut buffers.out, fresh);
            entry.flags.set(Flags::SENDING);
            self.stats.sends += 1;
            self.stats.sent_bytes += output.len() as u64;
            if entry.flags.has(Flags::TLS) {
                self.seal(conn, &mut output);
            }
            self.plane.send(conn, output);
        }
        self.dirty = dirty;
    }

    /// Sends what is encoded now, and finds out which sockets are blocked.
    pub(super) fn flush_now(&mut self) {
        self.flush();
        self.plane.enter();
        while let Some(sent) = self.plane.next_sent() {
            self.sent(sent);
        }
    }

    /// The submission that carried this outbox is over.
    pub(super) fn sent(&mut self, sent: Sent) {
        let Sent { conn, output, refused } = sent;
        let Some(entry) = self.conns.get_mut(conn) else { return self.buffer_pool.put_outbox(output) };
        entry.flags.clear(Flags::SENDING);
        let Some(result) = refused else {
            self.buffer_pool.put_outbox(output);
            if entry.state == State::Open && entry.flags.has(Flags::TLS) && self.tls.key_used_up(conn.slot) {
                self.forget(conn, CloseReason::BudgetExhausted);
                return self.lingering_close(conn, CloseReason::BudgetExhausted);
            }
            let more = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.out.is_empty());
            return if more { self.mark_dirty(conn) } else { self.owes_nothing(conn) };
        };
        match usize::try_from(result) {
            Ok(taken) => self.blocked(conn, output, taken),
            Err(_) if result == -libc::EAGAIN => self.blocked(conn, output, 0),
            Err(_) => {
                self.buffer_pool.put_outbox(output);
                self.lost(conn);
            }
        }
    }

    /// The socket took only `taken` bytes. Keeps the tail of the frame that was begun and replies behind it,
    /// gives whole notifications back to the machine, and waits for room.
    fn blocked(&mut self, conn: ConnId, mut output: PendingOutput, taken: usize) {
        self.stats.sends_short += 1;
        let now_ms = self.now_ms();
        let in_handshake = self.in_handshake(conn);
        let Some(entry) = self.conns.get_mut(conn) else { return self.buffer_pool.put_outbox(output) };
        let mut unsent = std::mem::take(&mut self.unsent);
        if entry.flags.has(Flags::TLS) {
            let untouched = output.keep_sealed_tail(taken, &mut unsent);
            if untouched > 0 {
                self.tls.rewind(conn.slot, untouched);
            }
        } else {
            output.keep_tail(taken, &mut unsent);
        }
        let buffers = self.buffer_pool.entry(&mut entry.buffers, entry.port);
        output.append_replies(&mut buffers.out, &mut unsent);
        if taken > 0 || !entry.flags.has(Flags::BLOCKED) {
            // A slow reader makes progress; only one that takes nothing is ended.
            buffers.blocked_since = now_ms;
        }
        let emptied = std::mem::replace(&mut buffers.out, output);
        self.buffer_pool.put_outbox(emptied);
        if !entry.flags.has(Flags::BLOCKED) {
            entry.flags.set(Flags::BLOCKED);
            if !entry.flags.has(Flags::PARTIAL) && !in_handshake {
                entry.since = now_ms;
            }
            if entry.flags.has(Flags::KNOWN) {
                self.inputs.push_back(Input::Blocked { conn });
            }
        }
        if entry.flags.has(Flags::KNOWN) {
            self.stats.unsent_notifications += unsent.len() as u64;
            self.inputs.extend(unsent.iter().map(|emission| Input::Unsent { conn, emission: *emission }));
        }
        unsent.clear();
        self.unsent = unsent;
        entry.flags.set(Flags::POLL_OUT);
        self.plane.poll_out(conn);
        self.watch_websocket(conn);
    }

    /// There is room, or the peer hung up, which the send will tell.
    pub(super) fn writable(&mut self, done: CompletionKey) {
        let Some(conn) = self.conns.name(done) else { return };
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.flags.clear(Flags::POLL_OUT);
        let owed = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.out.is_empty());
        if owed { self.mark_dirty(conn) } else { self.owes_nothing(conn) }
    }

    /// Everything that was encoded for this connection is out.
    fn owes_nothing(&mut self, conn: ConnId) {
        let now_ms = self.now_ms();
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let was_blocked = entry.flags.has(Flags::BLOCKED);
        entry.flags.clear(Flags::BLOCKED);
        if was_blocked && entry.flags.has(Flags::KNOWN) {
            self.inputs.push_back(Input::Writable { conn });
        }
        let (state, last) = (entry.state, entry.flags.has(Flags::LAST));
        self.buffer_pool.free_if_idle(&mut entry.buffers);
        if state == State::Open && !entry.flags.has(Flags::PARTIAL) && entry.flags.has(Flags::KNOWN) {
            entry.since = now_ms;
        }
        match state {
            State::Open if last => self.lingering_close(conn, CloseReason::Finished),
            State::Open if was_blocked => self.resume(conn),
            State::Moving => self.leave_for_owner(conn),
            State::SendingLast => self.shutdown_write(conn),
            _ => {}
        }
    }
}
