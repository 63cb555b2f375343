//! What the machine knows of each WebSocket by its slot: 8 bytes each, generation-checked.

use crate::ids::ConnId;

use super::relay::{Seats, is_seat};

/// A WebSocket's part in the protocol (BEHAVIOUR.md 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnState {
    /// Upgraded at this tick (`session::ticks`); its hello has not come.
    Opened(u32),
    /// Its hello waits for a place among the hellos in flight.
    Waiting,
    /// Its hello is being worked on here (index of a greeting).
    Greeting(u32),
    /// Its hello is being worked on by the owner.
    Claiming,
    /// Identified (index of a session).
    Session(u32),
    /// It speaks for several (index of a relay).
    Relay(u32),
}

/// Slot -> state, in chunks that never move.
pub(super) struct ConnTable {
    chunks: Vec<Box<[Entry; CHUNK_SLOTS]>>,
    len: usize,
    /// How many are `Opened`.
    opened: usize,
    /// Connections by name only; no number here counts them.
    pub seats: Seats,
}

#[derive(Clone, Copy)]
struct Entry {
    generation: u32,
    /// Tag in the top 3 bits, index in the rest; `EMPTY` when nobody is there.
    packed: u32,
}

const _: () = assert!(size_of::<Entry>() == 8);

impl ConnTable {
    pub fn new() -> ConnTable {
        ConnTable { chunks: Vec::new(), len: 0, opened: 0, seats: Seats::new() }
    }

    pub fn get(&self, conn: ConnId) -> Option<ConnState> {
        if is_seat(conn) {
            return self.seats.state(conn);
        }
        let entry = self.chunks.get(conn.slot as usize / CHUNK_SLOTS)?[conn.slot as usize % CHUNK_SLOTS];
        if entry.packed == EMPTY || entry.generation != conn.generation {
            return None;
        }
        let index = entry.packed & INDEX_MASK;
        Some(match entry.packed >> TAG_SHIFT {
            0 => ConnState::Opened(index),
            1 => ConnState::Waiting,
            2 => ConnState::Greeting(index),
            3 => ConnState::Claiming,
            4 => ConnState::Session(index),
            _ => ConnState::Relay(index),
        })
    }

    /// Adds the connection or changes its state.
    pub fn set(&mut self, conn: ConnId, state: ConnState) {
        if is_seat(conn) {
            return self.seats.set(conn, state);
        }
        let (tag, index) = match state {
            ConnState::Opened(tick) => (0, tick & INDEX_MASK),
            ConnState::Waiting => (1, 0),
            ConnState::Greeting(index) => (2, index),
            ConnState::Claiming => (3, 0),
            ConnState::Session(index) => (4, index),
            ConnState::Relay(index) => (5, index),
        };
        assert!(index <= INDEX_MASK, "limits::SESSIONS_MAX keeps indices below the tag");
        let chunk = conn.slot as usize / CHUNK_SLOTS;
        while self.chunks.len() <= chunk {
            self.chunks.push(Box::new([Entry { generation: 0, packed: EMPTY }; CHUNK_SLOTS]));
        }
        let entry = &mut self.chunks[chunk][conn.slot as usize % CHUNK_SLOTS];
        if entry.packed == EMPTY {
            self.len += 1;
        }
        self.opened -= usize::from(is_opened(entry.packed));
        self.opened += usize::from(tag == 0);
        *entry = Entry { generation: conn.generation, packed: (tag << TAG_SHIFT) | index };
    }

    pub fn remove(&mut self, conn: ConnId) -> Option<ConnState> {
        if is_seat(conn) {
            return self.seats.leave(conn);
        }
        let state = self.get(conn)?;
        self.opened -= usize::from(matches!(state, ConnState::Opened(_)));
        self.chunks[conn.slot as usize / CHUNK_SLOTS][conn.slot as usize % CHUNK_SLOTS].packed = EMPTY;
        self.len -= 1;
        Some(state)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// How many have not said hello.
    pub fn opened(&self) -> usize {
        self.opened
    }

    /// Those that were opened at `tick` or before and have not said hello, at most `most` of them.
    pub fn opened_until(&self, tick: u32, most: usize) -> Vec<ConnId> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate();
        entries
            .filter(|(_, entry)| is_opened(entry.packed) && entry.packed & INDEX_MASK <= tick)
            .map(|(slot, entry)| ConnId { slot: slot as u32, generation: entry.generation })
            .take(most)
            .collect()
    }

    /// Every connection in use whose slot is at or behind `from`, at most `most` of them.
    pub fn scan(&self, from: u32, most: usize) -> Vec<ConnId> {
        let slots = from as usize..self.chunks.len() * CHUNK_SLOTS;
        slots
            .filter_map(|slot| {
                let entry = self.chunks[slot / CHUNK_SLOTS][slot % CHUNK_SLOTS];
                (entry.packed != EMPTY).then_some(ConnId { slot: slot as u32, generation: entry.generation })
            })
            .take(most)
            .collect()
    }
}

fn is_opened(packed: u32) -> bool {
    packed >> TAG_SHIFT == 0
}

const CHUNK_SLOTS: usize = 1024;
const TAG_SHIFT: u32 = 29;
const INDEX_MASK: u32 = (1 << TAG_SHIFT) - 1;
const EMPTY: u32 = u32::MAX;

const _: () = assert!(crate::limits::SESSIONS_MAX <= INDEX_MASK as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_back_as_they_were_set() {
        let mut table = ConnTable::new();
        let states = [
            ConnState::Opened(6),
            ConnState::Waiting,
            ConnState::Greeting(7),
            ConnState::Claiming,
            ConnState::Session(9),
            ConnState::Relay(11),
        ];
        for (slot, state) in states.into_iter().enumerate() {
            let conn = ConnId { slot: slot as u32 * 700, generation: 3 };
            table.set(conn, state);
            assert_eq!(table.get(conn), Some(state));
            assert_eq!(table.get(ConnId { generation: 4, ..conn }), None);
        }
        assert_eq!(table.len(), states.len());
        assert_eq!(table.scan(700, 2).len(), 2);
        assert_eq!((table.opened(), table.opened_until(5, 9).len(), table.opened_until(6, 9).len()), (1, 0, 1));
        assert_eq!(table.remove(ConnId { slot: 0, generation: 3 }), Some(ConnState::Opened(6)));
        assert_eq!(table.remove(ConnId { slot: 0, generation: 3 }), None);
        assert_eq!(table.opened(), 0);
    }
}
