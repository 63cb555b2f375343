//! Virtual connections: connections by name only, on which the sessions of members sit. The rest of the machine treats
//! them as any connection; their names are in a part of the slot space that no ring has, so the table of real ones is
//! as it was.

use std::collections::BTreeMap;

use crate::ids::{ConnId, EmissionId};
use crate::limits;

use super::super::super::member::{PLACE_BITS, VirtualConnId};
use super::super::super::slab::{Slab, SlabKey};
use super::state::ConnState;

/// One virtual connection. Owner shard only, from the hello of a member until its end is told.
pub(in crate::shard) struct VirtualConn {
    id: VirtualConnId,
    /// `None` once the machine has forgotten the connection; the virtual connection goes with the end of that step.
    state: Option<ConnState>,
    /// The home refuses a round from its first refusal on.
    round: u64,
    /// Words on their way to the home, and those of a choked virtual connection, which go nowhere.
    unanswered: u32,
    /// Value of `wakes` at the relay's home when its socket refused the first of this round.
    refused: Option<u64>,
    /// Wakes of the relay's socket so far, as far as is known here.
    wakes: u64,
    /// Its words found too many waiting for credit: it says nothing more, and its session ends.
    choked: bool,
}

impl VirtualConn {
    pub fn id(&self) -> VirtualConnId {
        self.id
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    pub fn is_choked(&self) -> bool {
        self.choked
    }

    /// It has said something, which is on its way; if it is not `sent`, the virtual connection is choked.
    pub fn said(&mut self, sent: bool) {
        self.unanswered += 1;
        self.choked = !sent;
    }

    /// The home has answered one of its words.
    pub fn answered(&mut self) {
        self.unanswered -= 1;
    }

    /// The home refuses its round, the first time at this count of wakes.
    pub fn refuse(&mut self, wakes: u64) {
        self.refused = self.refused.max(Some(wakes));
    }

    /// The relay's socket has taken bytes again this often.
    pub fn woken(&mut self, wakes: u64) {
        self.wakes = self.wakes.max(wakes);
    }

    /// Begins the next round, if it may.
    pub fn begin_round(&mut self) -> bool {
        let may = self.may_begin();
        if may {
            self.refused = None;
            self.round += 1;
        }
        may
    }

    /// All that was refused is known, and the socket has taken bytes since.
    pub fn may_begin(&self) -> bool {
        self.unanswered == 0 && self.refused.is_some_and(|at| self.wakes > at)
    }
}

/// The virtual connections of one shard, by the name the machine has for each and by the name all shards have.
pub(in crate::shard) struct VirtualConns {
    virtual_conns: Slab<VirtualConn>,
    by_id: BTreeMap<VirtualConnId, SlabKey>,
    /// Those without a state.
    left: Vec<SlabKey>,
}

/// Returns true if this names a virtual connection and no socket.
pub(in crate::shard) fn is_virtual(conn: ConnId) -> bool {
    conn.slot & SEAT != 0
}

impl VirtualConns {
    pub fn new() -> VirtualConns {
        VirtualConns { virtual_conns: Slab::new(), by_id: BTreeMap::new(), left: Vec::new() }
    }

    /// Makes a virtual connection.
    pub fn take(&mut self, id: VirtualConnId, state: ConnState) -> ConnId {
        let vconn =
            VirtualConn { id, state: Some(state), round: 0, unanswered: 0, refused: None, wakes: 0, choked: false };
        let at = self.virtual_conns.insert(vconn);
        let before = self.by_id.insert(id, at);
        assert!(before.is_none(), "a virtual connection is taken once");
        name(at)
    }

    pub fn state(&self, conn: ConnId) -> Option<ConnState> {
        self.get(conn)?.state
    }

    pub fn set(&mut self, conn: ConnId, state: ConnState) {
        if let Some(vconn) = self.get_mut(conn) {
            vconn.state = Some(state);
        }
    }

    /// The machine forgets the connection. The name of the virtual connection is known until `free_left`.
    pub fn leave(&mut self, conn: ConnId) -> Option<ConnState> {
        let state = self.get_mut(conn)?.state.take()?;
        self.left.push(place(conn));
        Some(state)
    }

    /// Frees the virtual connections that were left.
    pub fn free_left(&mut self) {
        while let Some(at) = self.left.pop() {
            if let Some(vconn) = self.virtual_conns.remove(at) {
                self.by_id.remove(&vconn.id);
            }
        }
    }

    pub fn get(&self, conn: ConnId) -> Option<&VirtualConn> {
        self.virtual_conns.get(place(conn)).filter(|_| is_virtual(conn))
    }

    /// The virtual connection of a connection that was not freed.
    ///
    /// # Panics
    /// It is free: the caller kept the name beyond the step that left it.
    pub fn live(&self, conn: ConnId) -> &VirtualConn {
        // Invariant: a virtual connection that was left is freed at the end of that step.
        self.get(conn).expect("an effect names a virtual connection")
    }

    /// As [`VirtualConns::live`], to change it.
    ///
    /// # Panics
    /// It is free, as above.
    pub fn live_mut(&mut self, conn: ConnId) -> &mut VirtualConn {
        // Invariant: as above.
        self.get_mut(conn).expect("an effect names a virtual connection")
    }

    /// Number of words of a virtual connection of which the home has not said that it took them; 0 for a socket.
    pub fn unanswered(&self, conn: ConnId) -> u32 {
        self.get(conn).map_or(0, |vconn| vconn.unanswered)
    }

    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut VirtualConn> {
        self.virtual_conns.get_mut(place(conn)).filter(|_| is_virtual(conn))
    }

    /// The name that the machine has for it, while it has a state.
    pub fn find(&self, id: VirtualConnId) -> Option<ConnId> {
        self.by_id.get(&id).map(|at| name(*at)).filter(|conn| self.state(*conn).is_some())
    }

    /// The first virtual connection of the same relay at or behind `from` that has a state.
    pub fn next_from(&self, from: VirtualConnId) -> Option<(VirtualConnId, ConnId)> {
        let last = VirtualConnId { number: u64::MAX, ..from };
        let mut virtual_conns = self.by_id.range(from..=last).map(|(id, at)| (*id, name(*at)));
        virtual_conns.find(|(_, conn)| self.state(*conn).is_some())
    }

    /// At most `most` virtual connections with a session.
    pub fn some_sessions(&self, most: usize) -> Vec<ConnId> {
        let virtual_conns = self.by_id.values().map(|at| name(*at));
        virtual_conns.filter(|conn| matches!(self.state(*conn), Some(ConnState::Session(_)))).take(most).collect()
    }

    pub fn len(&self) -> usize {
        self.virtual_conns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.virtual_conns.is_empty()
    }
}

fn name(at: SlabKey) -> ConnId {
    ConnId { slot: at.index | SEAT, generation: at.generation }
}

fn place(conn: ConnId) -> SlabKey {
    SlabKey { index: conn.slot & !SEAT, generation: conn.generation }
}

/// An emission on a relay's socket: the member's place above, the lowest bits of the session's own emission below. A
/// window holds far fewer than `2^EMISSION_BITS`.
pub(in crate::shard) fn pack(place: usize, emission: EmissionId) -> EmissionId {
    EmissionId(((place as u32) << EMISSION_BITS) | (emission.0 & EMISSION_MASK))
}

/// Compares the name of a frame with the one that its socket gave back: on a virtual connection only the lowest bits
/// come back.
pub(in crate::shard) fn same_emission(conn: ConnId, ours: EmissionId, theirs: EmissionId) -> bool {
    if is_virtual(conn) { (ours.0 ^ theirs.0) & EMISSION_MASK == 0 } else { ours == theirs }
}

pub(in crate::shard) const EMISSION_BITS: u32 = 32 - PLACE_BITS;
pub(in crate::shard) const EMISSION_MASK: u32 = (1 << EMISSION_BITS) - 1;

const _: () = assert!(limits::WINDOW_MAX as u32 * 16 < EMISSION_MASK);

/// No ring has this number of slots.
const SEAT: u32 = 1 << 31;

const _: () = assert!(crate::limits::SESSIONS_MAX < SEAT as usize);

#[cfg(test)]
mod tests {
    use super::super::super::super::member::RelayId;
    use super::*;
    use crate::ids::ShardId;

    #[test]
    fn a_seat_that_was_left_is_known_until_it_is_freed() {
        let relay = RelayId { home: ShardId(3), at: SlabKey { index: 1, generation: 2 } };
        let mut virtual_conns = VirtualConns::new();
        let ids: Vec<VirtualConnId> = (0..3).map(|number| VirtualConnId { relay, number }).collect();
        let conns: Vec<ConnId> = ids.iter().map(|id| virtual_conns.take(*id, ConnState::Waiting)).collect();
        assert!(conns.iter().all(|conn| is_virtual(*conn)));
        assert_eq!(virtual_conns.find(ids[1]), Some(conns[1]));
        assert_eq!(virtual_conns.leave(conns[1]), Some(ConnState::Waiting));
        assert_eq!((virtual_conns.find(ids[1]), virtual_conns.leave(conns[1])), (None, None));
        assert_eq!(virtual_conns.get(conns[1]).map(|vconn| vconn.id), Some(ids[1]));
        assert_eq!(virtual_conns.next_from(ids[1]), Some((ids[2], conns[2])));
        virtual_conns.free_left();
        assert!(virtual_conns.get(conns[1]).is_none());
        let again = virtual_conns.take(ids[1], ConnState::Session(5));
        assert_ne!(again, conns[1], "another generation");
        assert_eq!(virtual_conns.some_sessions(9), [again]);
        assert_eq!(virtual_conns.len(), 3);
    }
}
