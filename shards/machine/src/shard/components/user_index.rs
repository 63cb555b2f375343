//! The index of this shard's users: UAID -> session or pending hello, in up to 1,024 segments (ARCHITECTURE.md 8.10).
//!
//! One table would rehash for 44 ms at a million entries; a segment of a thousand does in microseconds. A shard that
//! may hold fewer has fewer segments: small tables waste most of their slots.
//! Owner shard only; authoritative for its slice; empty at start.

use hashbrown::HashTable;

/// Place of a user on this shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Resident {
    /// Identified: index of the session.
    Session(u32),
    /// A hello under way: index of the pending hello. Registered before storage is read, so that no message falls
    /// between hello and the registry (ARCHITECTURE.md 4).
    Hello(u32),
}

/// `u32` slots only: the key lives in the session or pending hello that the slot names.
#[derive(Default)]
pub(in crate::shard) struct UserIndex {
    segments: Box<[HashTable<u32>]>,
}

impl UserIndex {
    /// Makes the index of a shard of at most this number of sessions.
    pub fn new(sessions_max: u32) -> UserIndex {
        let count = (sessions_max / SEGMENT_ENTRIES).next_power_of_two().clamp(1, SEGMENTS_MAX);
        UserIndex { segments: (0..count).map(|_| HashTable::new()).collect() }
    }

    /// The resident under `hash` for which `is_it` holds.
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(Resident) -> bool) -> Option<Resident> {
        self.segments[self.segment(hash)].find(hash, |slot| is_it(unpack(*slot))).map(|slot| unpack(*slot))
    }

    /// Adds a resident that is not there yet. `hash_of` gives the hash of any resident, when the segment grows.
    pub fn insert(&mut self, hash: u64, resident: Resident, hash_of: impl Fn(Resident) -> u64) {
        let segment = self.segment(hash);
        self.segments[segment].insert_unique(hash, pack(resident), |slot| hash_of(unpack(*slot)));
    }

    /// Removes exactly this resident; false when it is not there.
    /// `hash_of` gives the hash of any other resident, when the segment shrinks.
    pub fn remove(&mut self, hash: u64, resident: Resident, hash_of: impl Fn(Resident) -> u64) -> bool {
        let segment = self.segment(hash);
        match self.segments[segment].find_entry(hash, |slot| *slot == pack(resident)) {
            Ok(entry) => {
                entry.remove();
                self.give_back(segment, hash_of);
                true
            }
            Err(_) => false,
        }
    }

    /// Gives back what a crowd that has left needed.
    fn give_back(&mut self, segment: usize, hash_of: impl Fn(Resident) -> u64) {
        let segment = &mut self.segments[segment];
        if segment.capacity() > SEGMENT_KEPT && segment.len() < segment.capacity() / 8 {
            segment.shrink_to(segment.len() * 2, |slot| hash_of(unpack(*slot)));
        }
    }

    fn segment(&self, hash: u64) -> usize {
        // The top bits choose the shard and the low ones the place within a segment: take others.
        (hash >> 20) as usize & (self.segments.len() - 1)
    }
}

fn pack(resident: Resident) -> u32 {
    match resident {
        Resident::Session(index) => index,
        Resident::Hello(index) => index | GREETING,
    }
}

fn unpack(slot: u32) -> Resident {
    if slot & GREETING == 0 { Resident::Session(slot) } else { Resident::Hello(slot & !GREETING) }
}

const SEGMENTS_MAX: u32 = 1_024;
const SEGMENT_ENTRIES: u32 = 1_024;
/// Slots that a segment keeps.
const SEGMENT_KEPT: usize = 28;
const GREETING: u32 = 1 << 31;

const _: () = assert!(crate::limits::SESSIONS_MAX < GREETING as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residents_are_found_by_key_and_removed_exactly() {
        let mut index = UserIndex::new(10_000);
        let hash_of = |r: Resident| match r {
            Resident::Session(n) | Resident::Hello(n) => u64::from(n) << 33,
        };
        for n in 0..5_000 {
            index.insert(hash_of(Resident::Session(n)), Resident::Session(n), hash_of);
        }
        let hash = hash_of(Resident::Session(77));
        assert_eq!(index.find(hash, |r| r == Resident::Session(77)), Some(Resident::Session(77)));
        assert!(!index.remove(hash, Resident::Hello(77), hash_of));
        assert!(index.remove(hash, Resident::Session(77), hash_of));
        assert_eq!(index.find(hash, |r| r == Resident::Session(77)), None);
        for n in (0..5_000).filter(|n| *n != 77 && *n != 4_000) {
            assert!(index.remove(hash_of(Resident::Session(n)), Resident::Session(n), hash_of));
        }
        assert!(index.segments.iter().all(|segment| segment.capacity() <= SEGMENT_KEPT), "a crowd's memory is kept");
        let last = Resident::Session(4_000);
        assert_eq!(index.find(hash_of(last), |r| r == last), Some(last));
    }
}
