//! Moving sockets between shards (ring/RULES.md): a session to its owner, a connection of an app server to the least
//! loaded shard.
//!
//! The mail with hello and undecoded bytes goes out when the descriptor is known to be there; bytes that arrive at the
//! socket meanwhile are read by the target.

use crate::ports::{Edge, Port};
use crate::ring::{CompletionKey, ConnBufferPool, Conns, Flags, Origin, SocketMove, State};
use crate::tls::Tls;
use machine::ids::{Claim, ConnId};
use machine::{Arrival, Carried, Input, Mail};

use super::callers::Callers;
use super::{Machine, Reactor};

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Moves a connection as soon as what it still owes is sent.
    pub(super) fn depart(&mut self, conn: ConnId, departure: SocketMove) {
        // One that stays frozen has ended to the machine.
        self.bring_back(conn);
        let Some(entry) = self.conns.get_mut(conn).filter(|entry| entry.state == State::Open) else {
            // It has ended, and the machine has not heard of that yet.
            if let SocketMove::Claimed { to, claim, .. } = departure {
                self.inputs.push_back(Input::MoveFailed { conn, to, claim });
            }
            return;
        };
        entry.state = State::Moving;
        entry.flags.clear(Flags::KNOWN);
        let buffers = self.buffer_pool.entry(&mut entry.buffers, entry.port);
        buffers.departure = Some(departure);
        let owed = !buffers.out.is_empty() || entry.flags.has(Flags::SENDING) || entry.flags.has(Flags::POLL_OUT);
        if !owed {
            self.leave_for_owner(conn);
        }
    }

    /// Nothing is owed any more: the descriptor leaves.
    pub(super) fn leave_for_owner(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let departure = self.buffer_pool.get(entry.buffers).and_then(|buffers| buffers.departure.as_ref());
        let Some(SocketMove::Claimed { to, claim, .. }) = departure else { return };
        let Some(target) = self.mailbox.target_ring_of(*to) else { return };
        let polls = (entry.flags.has(Flags::POLL_IN), entry.flags.has(Flags::POLL_OUT));
        entry.flags.clear(Flags::POLL_IN);
        entry.flags.clear(Flags::POLL_OUT);
        self.plane.move_claimed(conn, polls, target, *claim, entry.flags.has(Flags::TLS));
    }

    /// The kernel has moved the descriptor, or could not (-ENFILE: target full; -EOWNERDEAD: target gone).
    pub(super) fn moved(&mut self, done: CompletionKey, result: i32) {
        let Some(conn) = self.conns.name(done) else { return };
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let Some(buffers) = self.buffer_pool.get(entry.buffers) else { return };
        match buffers.departure.take() {
            Some(SocketMove::Claimed { to, claim, hello }) if result >= 0 => {
                let bytes = luggage(&mut self.conns, &mut self.buffer_pool, &mut *self.tls, &self.callers, conn);
                self.stats.sockets_sent += 1;
                self.release(conn);
                self.post(to, Mail::Arrive(Box::new(Arrival { claim, hello, bytes })));
            }
            Some(SocketMove::Claimed { to, claim, .. }) => {
                self.stats.sockets_kept += 1;
                entry.state = State::Open;
                entry.flags.set(Flags::KNOWN);
                self.inputs.push_back(Input::MoveFailed { conn, to, claim });
            }
            Some(SocketMove::Dealt { .. }) if result >= 0 => {
                self.stats.dealt_out += 1;
                self.release(conn);
            }
            Some(SocketMove::Dealt { to, kind }) => self.keep_dealt(conn, to, kind),
            Some(SocketMove::HandedOver { .. }) if result >= 0 => {
                self.stats.handed_over += 1;
                self.release(conn);
            }
            Some(SocketMove::HandedOver { to, from }) => {
                self.mailbox.take_handed_over(to, from);
                self.mailbox.count_assigned(to, false);
                self.close(conn);
            }
            None => {}
        }
    }

    /// The descriptor of a claim is here. Its mail may have come already, or comes later; the machine pairs
    /// them, and says `Ready` when the hello is answered.
    pub(super) fn arrived(&mut self, claim: Claim, tls: bool, ring: u16, result: i32) {
        let Ok(direct) = u32::try_from(result) else { return };
        self.stats.sockets_received += 1;
        let codec = self.edge.arrived();
        let since = self.now_ms();
        let slot = self.plane.slot(ring, direct);
        let opened = self.conns.open(slot, Port::WebSocket, Some(codec), since);
        let conn = self.settle_in(opened);
        self.conns.take_place(conn);
        if let Some(entry) = self.conns.get_mut(conn) {
            entry.flags.set(Flags::KNOWN);
            entry.flags.set(Flags::BUSY);
            if tls {
                entry.flags.set(Flags::TLS);
            }
        }
        self.inputs.push_back(Input::Arrived { conn, claim });
    }
}

/// Connections of app servers that a shard with too many of them hands over, each between two of its requests.
///
/// Those of the endpoint port are dealt at their accept. One of a public port is known as an app server's by its first
/// head, and leaves when that request is answered.
impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Notes a connection that has just become one of an app server.
    pub(super) fn note_sender(&mut self, conn: ConnId) {
        if self.senders_to_move.len() < SENDERS_TO_MOVE_MAX && self.mailbox.relief().is_some() {
            self.senders_to_move.push_back(conn);
        }
    }

    /// Hands over the noted connections that are between two requests, while this shard has too many.
    pub(super) fn hand_over_senders(&mut self) {
        for _ in 0..self.senders_to_move.len().min(SENDERS_PER_TURN) {
            let Some(conn) = self.senders_to_move.pop_front() else { return };
            let Some(entry) = self.conns.get(conn) else { continue };
            let (state, port, flags) = (entry.state, entry.port, entry.flags);
            if state != State::Open || port != Port::Endpoint || flags.has(Flags::LAST) {
                continue;
            }
            let under_way = [Flags::BUSY, Flags::BLOCKED, Flags::RECV, Flags::SENDING, Flags::POLL_OUT, Flags::PARTIAL];
            let busy = under_way.into_iter().any(|flag| flags.has(flag));
            if busy || self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.is_idle()) {
                self.senders_to_move.push_back(conn);
            } else {
                self.hand_over(conn);
            }
        }
    }

    fn hand_over(&mut self, conn: ConnId) {
        let Some(to) = self.mailbox.relief() else { return };
        let Some(target) = self.mailbox.target_ring_of(to) else { return };
        let Some(flags) = self.conns.get(conn).map(|entry| entry.flags) else { return };
        let tls = flags.has(Flags::TLS);
        if tls && (self.in_handshake(conn) || self.tls.peer_closed(conn.slot)) {
            return;
        }
        let from = Origin { shard: self.mailbox.shard(), slot: conn.slot, tls };
        let Reactor { mailbox, conns, buffer_pool, tls, callers, .. } = self;
        if !mailbox.hand_over(to, from, || luggage(conns, buffer_pool, &mut **tls, callers, conn)) {
            return;
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::Moving;
        entry.flags.clear(Flags::POLL_IN);
        self.buffer_pool.entry(&mut entry.buffers, entry.port).departure = Some(SocketMove::HandedOver { to, from });
        self.plane.move_handed_over(conn, flags.has(Flags::POLL_IN), target, from);
    }

    /// Another shard has handed over a connection of an app server, and counted it here.
    pub(super) fn handed_over(&mut self, from: Origin, ring: u16, result: i32) {
        let Ok(direct) = u32::try_from(result) else { return };
        let state = self.mailbox.take_handed_over(self.mailbox.shard(), from);
        let codec = self.edge.open(Port::Public, from.tls);
        let has_place = self.has_place(Port::Endpoint);
        let slot = self.plane.slot(ring, direct);
        let opened = self.conns.open(slot, Port::Endpoint, Some(codec), self.now_ms());
        let conn = self.settle_in(opened);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.flags.set(Flags::COUNTED);
        self.stats.endpoint_connections += 1;
        let Some(state) = state.filter(|_| has_place) else {
            self.stats.accepts_refused += 1;
            return self.close(conn);
        };
        if from.tls {
            entry.flags.set(Flags::TLS);
        }
        self.conns.take_place(conn);
        self.feed(conn, state);
        self.serve(conn);
    }
}

/// Connections that wait for the end of a request to be handed over, at most; later ones stay.
const SENDERS_TO_MOVE_MAX: usize = 256;
/// Of those, connections that are looked at in a turn, so that slow requests of some cost the others nothing.
const SENDERS_PER_TURN: usize = 8;

/// State that a connection takes along: its bytes, its secrets and its caller. Its TLS ends here.
fn luggage<C>(
    conns: &mut Conns<C>,
    buffer_pool: &mut ConnBufferPool,
    tls: &mut dyn Tls,
    callers: &Callers,
    conn: ConnId,
) -> Carried {
    let Some(entry) = conns.get(conn) else { return Carried::default() };
    let caller = callers.packed(conn);
    let caller = caller.as_ref().map_or(&[][..], |number| number);
    let buffers = buffer_pool.get(entry.buffers);
    if entry.flags.has(Flags::TLS) {
        let mut packed = tls.export(conn.slot);
        let (plain, ciphertext) =
            buffers.map_or_else(Default::default, |buffers| (buffers.input.take(), buffers.sealed.take()));
        pack(&mut packed, &plain, &ciphertext, caller);
        Carried(packed.into())
    } else {
        let mut bytes = buffers.map_or_else(Vec::new, |buffers| buffers.input.take());
        bytes.extend_from_slice(caller);
        Carried(bytes.into())
    }
}

/// Appends what a TLS connection carries behind its state: the number of plain bytes (u32, little endian), the plain
/// bytes, the ciphertext, the caller.
fn pack(packed: &mut Vec<u8>, plain: &[u8], ciphertext: &[u8], caller: &[u8]) {
    // At the exact size, so that no copy of the secrets stays behind in memory that grew.
    let mut whole = Vec::with_capacity(packed.len() + 4 + plain.len() + ciphertext.len() + caller.len());
    whole.extend_from_slice(packed);
    whole.extend_from_slice(&(plain.len() as u32).to_le_bytes());
    whole.extend_from_slice(plain);
    whole.extend_from_slice(ciphertext);
    whole.extend_from_slice(caller);
    packed.fill(0);
    std::hint::black_box(&packed);
    *packed = whole;
}

/// The plain bytes and the ciphertext of [`pack`], without the caller.
pub(super) fn unpack(bytes: &[u8]) -> (&[u8], &[u8]) {
    // Invariant: the bytes come from `pack` of another shard.
    let (len, rest) = bytes.split_first_chunk().expect("a shard packs what it sends");
    rest.split_at(u32::from_le_bytes(*len) as usize)
}
