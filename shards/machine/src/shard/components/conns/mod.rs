//! State of each WebSocket by its slot: 8 bytes each, generation-checked.

pub(in crate::shard) mod virtual_conns;
mod state;

use crate::ids::ConnId;

pub(in crate::shard) use state::ConnState;
use virtual_conns::{VirtualConns, is_virtual};

/// Slot -> state, in chunks that never move and go when they are empty.
pub(in crate::shard) struct ConnTable {
    chunks: Vec<Option<Box<Chunk>>>,
    len: usize,
    /// Number of connections that are `Opened`.
    opened: usize,
    /// Connections by name only; no number here counts them.
    pub virtual_conns: VirtualConns,
}

struct Chunk {
    entries: [Entry; CHUNK_SLOTS],
    len: u32,
    /// Number of connections that are `Opened`.
    opened: u32,
    /// No connection here was opened before this tick, if it is set: most chunks need not be searched for late ones.
    oldest: Option<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    generation: u32,
    /// Tag in the top 3 bits, index in the rest; `EMPTY` without a connection.
    packed: u32,
}

const _: () = assert!(size_of::<Entry>() == 8);

impl ConnTable {
    pub fn new() -> ConnTable {
        ConnTable { chunks: Vec::new(), len: 0, opened: 0, virtual_conns: VirtualConns::new() }
    }

    pub fn get(&self, conn: ConnId) -> Option<ConnState> {
        if is_virtual(conn) {
            return self.virtual_conns.state(conn);
        }
        let chunk = self.chunks.get(conn.slot as usize / CHUNK_SLOTS)?.as_ref()?;
        let entry = chunk.entries[conn.slot as usize % CHUNK_SLOTS];
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
        if is_virtual(conn) {
            return self.virtual_conns.set(conn, state);
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
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(Chunk::new);
        let entry = &mut chunk.entries[conn.slot as usize % CHUNK_SLOTS];
        let (was_empty, was_opened) = (entry.packed == EMPTY, is_opened(entry.packed));
        *entry = Entry { generation: conn.generation, packed: (tag << TAG_SHIFT) | index };
        chunk.len += u32::from(was_empty);
        self.len += usize::from(was_empty);
        if tag == 0 {
            // The tick of a chunk without an opened connection may be older than half a round of ticks.
            let before = chunk.oldest.filter(|_| chunk.opened > u32::from(was_opened));
            chunk.oldest = Some(before.map_or(index, |before| earlier(before, index)));
        }
        chunk.opened = chunk.opened - u32::from(was_opened) + u32::from(tag == 0);
        self.opened = self.opened - usize::from(was_opened) + usize::from(tag == 0);
    }

    pub fn remove(&mut self, conn: ConnId) -> Option<ConnState> {
        if is_virtual(conn) {
            return self.virtual_conns.leave(conn);
        }
        let state = self.get(conn)?;
        let was_opened = matches!(state, ConnState::Opened(_));
        let place = &mut self.chunks[conn.slot as usize / CHUNK_SLOTS];
        let chunk = place.as_mut()?;
        chunk.entries[conn.slot as usize % CHUNK_SLOTS].packed = EMPTY;
        chunk.opened -= u32::from(was_opened);
        self.opened -= usize::from(was_opened);
        chunk.len -= 1;
        self.len -= 1;
        // The first is kept: a small server has no other.
        if chunk.len == 0 && conn.slot as usize >= CHUNK_SLOTS {
            *place = None;
        }
        Some(state)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of connections that have not said hello.
    pub fn opened(&self) -> usize {
        self.opened
    }

    /// Those that were opened at `tick` or in the half round of ticks (310 days) before it and have not said hello, at
    /// most `most` of them. The caller removes them; they are not found a second time.
    pub fn opened_until(&mut self, tick: u32, most: usize) -> Vec<ConnId> {
        let mut late = Vec::new();
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            let old = |chunk: &&mut Box<Chunk>| chunk.oldest.is_some_and(|oldest| is_by(oldest, tick));
            let Some(chunk) = chunk.as_mut().filter(|chunk| chunk.opened > 0 && old(chunk)) else { continue };
            let mut oldest = None;
            for (at, entry) in chunk.entries.iter().enumerate().filter(|(_, entry)| is_opened(entry.packed)) {
                let opened = entry.packed & INDEX_MASK;
                if !is_by(opened, tick) {
                    oldest = Some(oldest.map_or(opened, |oldest| earlier(oldest, opened)));
                    continue;
                }
                if late.len() == most {
                    // The rest of this chunk is looked through again.
                    return late;
                }
                late.push(ConnId { slot: (number * CHUNK_SLOTS + at) as u32, generation: entry.generation });
            }
            // The caller closes those that were found here.
            chunk.oldest = oldest;
        }
        late
    }

    /// Every connection in use whose slot is at or behind `from`, at most `most` of them.
    pub fn scan(&self, from: u32, most: usize) -> Vec<ConnId> {
        let first = from as usize / CHUNK_SLOTS;
        let chunks = self.chunks.iter().enumerate().skip(first).filter_map(|(at, chunk)| Some((at, chunk.as_ref()?)));
        let entries = chunks.flat_map(|(number, chunk)| {
            let slots = (number * CHUNK_SLOTS) as u32..;
            slots.zip(chunk.entries.iter()).filter(|(_, entry)| entry.packed != EMPTY)
        });
        let conns = entries.map(|(slot, entry)| ConnId { slot, generation: entry.generation });
        conns.filter(|conn| conn.slot >= from).take(most).collect()
    }
}

impl Chunk {
    fn new() -> Box<Chunk> {
        let entries = [Entry { generation: 0, packed: EMPTY }; CHUNK_SLOTS];
        Box::new(Chunk { entries, len: 0, opened: 0, oldest: None })
    }
}

fn is_opened(packed: u32) -> bool {
    packed >> TAG_SHIFT == 0
}

/// Returns true if tick `one` comes at `other` or before it. Both wrap as an index does and are less than half a round
/// apart.
fn is_by(one: u32, other: u32) -> bool {
    other.wrapping_sub(one) & INDEX_MASK <= INDEX_MASK / 2
}

/// The one of two ticks that comes first, as above.
fn earlier(one: u32, other: u32) -> u32 {
    if is_by(one, other) { one } else { other }
}

/// The longest time after which a connection can be told late: a quarter of a round of ticks (155 days).
pub(in crate::shard) const OPENED_TICKS_MAX: u32 = (INDEX_MASK + 1) / 4;

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

    /// A tick has 29 bits here; the tick that is asked for has 32.
    #[test]
    fn late_connections_are_found_on_both_sides_of_the_wrap_around_of_ticks() {
        const ROUND: u32 = 1 << TAG_SHIFT;
        for wrap in [ROUND, 7 * ROUND, 0] {
            let mut table = ConnTable::new();
            let conn = |slot| ConnId { slot, generation: 1 };
            let found = |table: &mut ConnTable, tick: u32| -> Vec<u32> {
                let late = table.opened_until(wrap.wrapping_add(tick), 9);
                late.iter().map(|conn| conn.slot).collect()
            };
            for (slot, tick) in [(0, wrap.wrapping_sub(20)), (1, wrap), (2, wrap.wrapping_add(30))] {
                table.set(conn(slot), ConnState::Opened(tick));
            }
            assert!(found(&mut table, 0u32.wrapping_sub(21)).is_empty());
            assert_eq!(found(&mut table, 0u32.wrapping_sub(1)), [0]);
            table.remove(conn(0));
            assert_eq!(found(&mut table, 29), [1]);
            table.remove(conn(1));
            assert!(found(&mut table, 29).is_empty());
            // Nothing was opened for most of a round: the tick of the chunk is not taken for something to come.
            table.set(conn(2), ConnState::Session(2));
            table.set(conn(3), ConnState::Opened(wrap.wrapping_add(ROUND / 4 * 3)));
            assert!(found(&mut table, ROUND / 4 * 3 - 1).is_empty());
            assert_eq!(found(&mut table, ROUND / 4 * 3), [3]);
        }
    }

    #[test]
    fn who_is_late_is_found_once_wherever_it_is_and_empty_chunks_go() {
        let mut table = ConnTable::new();
        let conn = |slot| ConnId { slot, generation: 1 };
        let slots = (0..5 * CHUNK_SLOTS as u32).step_by(10);
        for slot in slots.clone() {
            table.set(conn(slot), ConnState::Opened(if slot % 20 == 0 { 100 } else { 200 }));
        }
        assert!(table.opened_until(99, 9).is_empty());
        let mut found = Vec::new();
        loop {
            let late = table.opened_until(150, 100);
            for conn in &late {
                assert!(table.remove(*conn).is_some());
            }
            found.extend(late.iter().map(|conn| conn.slot));
            if late.len() < 100 {
                break;
            }
        }
        assert_eq!(found, slots.clone().filter(|slot| slot % 20 == 0).collect::<Vec<_>>());
        assert_eq!(table.opened_until(200, usize::MAX).len(), table.opened());
        let rest = table.scan(0, usize::MAX);
        assert_eq!(table.scan(rest[9].slot + 1, 3), rest[10..13]);
        for conn in rest {
            table.remove(conn);
        }
        assert_eq!((table.len(), table.chunks.iter().flatten().count()), (0, 1), "the first is kept");
    }
}
