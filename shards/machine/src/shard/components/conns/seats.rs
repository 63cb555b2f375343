//! Seats: connections by name only, on which the sessions of members sit. The rest of the machine treats them as any
//! connection; their names are in a part of the slot space that no ring has, so the table of real ones is as it was.

use std::collections::BTreeMap;

use crate::ids::{ConnId, EmissionId};
use crate::limits;

use super::super::super::member::{PLACE_BITS, SeatId};
use super::super::super::slab::{Ref, Slab};
use super::state::ConnState;

/// One seat. Owner shard only, from the hello of a member until its end is told.
pub(in crate::shard) struct Seat {
    id: SeatId,
    /// `None` once the machine has forgotten the connection; the seat goes with the end of that step.
    state: Option<ConnState>,
    /// The home refuses a round from its first refusal on.
    round: u64,
    /// Words on their way to the home, and those of a choked seat, which go nowhere.
    unanswered: u32,
    /// Value of `wakes` at the relay's home when its socket refused the first of this round.
    refused: Option<u64>,
    /// Wakes of the relay's socket so far, as far as is known here.
    wakes: u64,
    /// Its words found too many waiting for credit: it says nothing more, and its session ends.
    choked: bool,
}

impl Seat {
    pub fn id(&self) -> SeatId {
        self.id
    }

    pub fn round(&self) -> u64 {
        self.round
    }

    pub fn is_choked(&self) -> bool {
        self.choked
    }

    /// It has said something, which is on its way; if it is not `sent`, the seat is choked.
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

/// The seats of one shard, by the name the machine has for each and by the name all shards have.
pub(in crate::shard) struct Seats {
    seats: Slab<Seat>,
    by_id: BTreeMap<SeatId, Ref>,
    /// Those without a state.
    left: Vec<Ref>,
}

/// Returns true if this names a seat and no socket.
pub(in crate::shard) fn is_seat(conn: ConnId) -> bool {
    conn.slot & SEAT != 0
}

impl Seats {
    pub fn new() -> Seats {
        Seats { seats: Slab::new(), by_id: BTreeMap::new(), left: Vec::new() }
    }

    /// Makes a seat.
    pub fn take(&mut self, id: SeatId, state: ConnState) -> ConnId {
        let seat = Seat { id, state: Some(state), round: 0, unanswered: 0, refused: None, wakes: 0, choked: false };
        let at = self.seats.insert(seat);
        let before = self.by_id.insert(id, at);
        assert!(before.is_none(), "a seat is taken once");
        name(at)
    }

    pub fn state(&self, conn: ConnId) -> Option<ConnState> {
        self.get(conn)?.state
    }

    pub fn set(&mut self, conn: ConnId, state: ConnState) {
        if let Some(seat) = self.get_mut(conn) {
            seat.state = Some(state);
        }
    }

    /// The machine forgets the connection. The name of the seat is known until `free_left`.
    pub fn leave(&mut self, conn: ConnId) -> Option<ConnState> {
        let state = self.get_mut(conn)?.state.take()?;
        self.left.push(place(conn));
        Some(state)
    }

    /// Frees the seats that were left.
    pub fn free_left(&mut self) {
        while let Some(at) = self.left.pop() {
            if let Some(seat) = self.seats.remove(at) {
                self.by_id.remove(&seat.id);
            }
        }
    }

    pub fn get(&self, conn: ConnId) -> Option<&Seat> {
        self.seats.get(place(conn)).filter(|_| is_seat(conn))
    }

    /// The seat of a connection that was not freed.
    ///
    /// # Panics
    /// It is free: the caller kept the name beyond the step that left it.
    pub fn live(&self, conn: ConnId) -> &Seat {
        // Invariant: a seat that was left is freed at the end of that step.
        self.get(conn).expect("an effect names a seat")
    }

    /// As [`Seats::live`], to change it.
    ///
    /// # Panics
    /// It is free, as above.
    pub fn live_mut(&mut self, conn: ConnId) -> &mut Seat {
        // Invariant: as above.
        self.get_mut(conn).expect("an effect names a seat")
    }

    /// Number of words of a seat of which the home has not said that it took them; 0 for a socket.
    pub fn unanswered(&self, conn: ConnId) -> u32 {
        self.get(conn).map_or(0, |seat| seat.unanswered)
    }

    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut Seat> {
        self.seats.get_mut(place(conn)).filter(|_| is_seat(conn))
    }

    /// The name that the machine has for it, while it has a state.
    pub fn find(&self, id: SeatId) -> Option<ConnId> {
        self.by_id.get(&id).map(|at| name(*at)).filter(|conn| self.state(*conn).is_some())
    }

    /// The first seat of the same relay at or behind `from` that has a state.
    pub fn next_from(&self, from: SeatId) -> Option<(SeatId, ConnId)> {
        let last = SeatId { number: u64::MAX, ..from };
        let mut seats = self.by_id.range(from..=last).map(|(id, at)| (*id, name(*at)));
        seats.find(|(_, conn)| self.state(*conn).is_some())
    }

    /// At most `most` seats with a session.
    pub fn some_sessions(&self, most: usize) -> Vec<ConnId> {
        let seats = self.by_id.values().map(|at| name(*at));
        seats.filter(|conn| matches!(self.state(*conn), Some(ConnState::Session(_)))).take(most).collect()
    }

    pub fn len(&self) -> usize {
        self.seats.len()
    }

    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }
}

fn name(at: Ref) -> ConnId {
    ConnId { slot: at.index | SEAT, generation: at.generation }
}

fn place(conn: ConnId) -> Ref {
    Ref { index: conn.slot & !SEAT, generation: conn.generation }
}

/// An emission on a relay's socket: the member's place above, the lowest bits of the session's own emission below. A
/// window holds far fewer than `2^EMISSION_BITS`.
pub(in crate::shard) fn pack(place: usize, emission: EmissionId) -> EmissionId {
    EmissionId(((place as u32) << EMISSION_BITS) | (emission.0 & EMISSION_MASK))
}

/// Compares the name of a frame with the one that its socket gave back: on a seat only the lowest bits come back.
pub(in crate::shard) fn same_emission(conn: ConnId, ours: EmissionId, theirs: EmissionId) -> bool {
    if is_seat(conn) { (ours.0 ^ theirs.0) & EMISSION_MASK == 0 } else { ours == theirs }
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
        let relay = RelayId { home: ShardId(3), at: Ref { index: 1, generation: 2 } };
        let mut seats = Seats::new();
        let ids: Vec<SeatId> = (0..3).map(|number| SeatId { relay, number }).collect();
        let conns: Vec<ConnId> = ids.iter().map(|id| seats.take(*id, ConnState::Waiting)).collect();
        assert!(conns.iter().all(|conn| is_seat(*conn)));
        assert_eq!(seats.find(ids[1]), Some(conns[1]));
        assert_eq!(seats.leave(conns[1]), Some(ConnState::Waiting));
        assert_eq!((seats.find(ids[1]), seats.leave(conns[1])), (None, None));
        assert_eq!(seats.get(conns[1]).map(|seat| seat.id), Some(ids[1]));
        assert_eq!(seats.next_from(ids[1]), Some((ids[2], conns[2])));
        seats.free_left();
        assert!(seats.get(conns[1]).is_none());
        let again = seats.take(ids[1], ConnState::Session(5));
        assert_ne!(again, conns[1], "another generation");
        assert_eq!(seats.some_sessions(9), [again]);
        assert_eq!(seats.len(), 3);
    }
}
