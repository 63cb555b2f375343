//! Moving sockets between shards (ring/RULES.md): a session to its owner, an endpoint connection to the least loaded
//! shard.
//!
//! The mail with hello and undecoded bytes goes out when the descriptor is known to be there; bytes that arrive at the
//! socket meanwhile are read by the target.

use crate::ports::{Edge, Port};
use crate::ring::{Departure, Done, Flags, State};
use machine::ids::{Claim, ConnId};
use machine::{Arrival, Carried, Input, Mail};

use super::{Machine, Reactor};

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Moves a connection as soon as what it still owes is sent.
    pub(super) fn depart(&mut self, conn: ConnId, departure: Departure) {
        let Some(entry) = self.conns.get_mut(conn).filter(|entry| entry.state == State::Open) else {
            // It has ended, and the machine has not heard of that yet.
            if let Departure::Claimed { to, claim, .. } = departure {
                self.inputs.push_back(Input::MoveFailed { conn, to, claim });
            }
            return;
        };
        entry.state = State::Moving;
        entry.flags.clear(Flags::KNOWN);
        let side = self.sides.entry(&mut entry.side, entry.port);
        side.departure = Some(departure);
        let owed = !side.out.is_empty() || entry.flags.has(Flags::SENDING) || entry.flags.has(Flags::POLL_OUT);
        if !owed {
            self.leave_for_owner(conn);
        }
    }

    /// Nothing is owed any more: the descriptor leaves.
    pub(super) fn leave_for_owner(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let departure = self.sides.get(entry.side).and_then(|side| side.departure.as_ref());
        let Some(Departure::Claimed { to, claim, .. }) = departure else { return };
        let Some(target) = self.mailbox.roomy_ring_of(*to) else { return };
        let polls = (entry.flags.has(Flags::POLL_IN), entry.flags.has(Flags::POLL_OUT));
        entry.flags.clear(Flags::POLL_IN);
        entry.flags.clear(Flags::POLL_OUT);
        self.plane.move_claimed(conn, polls, target, *claim, entry.flags.has(Flags::TLS));
    }

    /// The kernel has moved the descriptor, or could not (-ENFILE: target full; -EOWNERDEAD: target gone).
    pub(super) fn moved(&mut self, done: Done, result: i32) {
        let Some(conn) = self.conns.name(done) else { return };
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let Some(side) = self.sides.get(entry.side) else { return };
        match side.departure.take() {
            Some(Departure::Claimed { to, claim, hello }) if result >= 0 => {
                let caller = self.callers.packed(conn);
                let caller = caller.as_ref().map_or(&[][..], |number| number);
                let bytes = if entry.flags.has(Flags::TLS) {
                    let mut packed = self.tls.export(conn.slot);
                    pack(&mut packed, side.inbox.bytes(), side.sealed.bytes(), caller);
                    packed
                } else {
                    let mut bytes = side.inbox.take();
                    bytes.extend_from_slice(caller);
                    bytes
                };
                let bytes = Carried(bytes.into());
                self.stats.sockets_sent += 1;
                self.release(conn);
                self.post(to, Mail::Arrive(Box::new(Arrival { claim, hello, bytes })));
            }
            Some(Departure::Claimed { to, claim, .. }) => {
                self.stats.sockets_kept += 1;
                entry.state = State::Open;
                entry.flags.set(Flags::KNOWN);
                self.inputs.push_back(Input::MoveFailed { conn, to, claim });
            }
            Some(Departure::Dealt { .. }) if result >= 0 => {
                self.stats.dealt_out += 1;
                self.release(conn);
            }
            Some(Departure::Dealt { to, kind }) => self.keep_dealt(conn, to, kind),
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
