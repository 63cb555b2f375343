//! A slab that grows by chunks and never moves its entries (ARCHITECTURE.md 8.10): no rehash-like pause when a shard
//! passes a power of two. Every place counts its uses, so a stale reference finds no entry.
//!
//! New entries go to the lowest free place. After a crowd has left, the last chunks therefore become empty: an empty
//! chunk returns its memory.

/// Name of one use of one place of a slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SlabKey {
    pub index: u32,
    pub generation: u32,
}

/// Entries in chunks of `CHUNK_ENTRIES`.
pub(super) struct Slab<T> {
    chunks: Vec<Option<Box<Chunk<T>>>>,
    /// First generation of each chunk when it is made: greater than every one that the chunk ever used.
    begins: Vec<u32>,
    /// One bit for each chunk that has a free place, chunks without memory included.
    room: Vec<u64>,
    /// Number of places ever used; `len <= used <= chunks * CHUNK_ENTRIES`.
    used: u32,
    len: u32,
    /// An empty chunk that is kept, so that the number of entries can change by one without a new allocation.
    spare: Option<u32>,
}

struct Chunk<T> {
    entries: [Option<T>; CHUNK_ENTRIES],
    generations: [u32; CHUNK_ENTRIES],
    /// One bit for each place in use.
    taken: [u64; CHUNK_ENTRIES / 64],
    len: u32,
}

impl<T> Chunk<T> {
    fn new(begin: u32) -> Box<Chunk<T>> {
        Box::new(Chunk {
            entries: [const { None }; CHUNK_ENTRIES],
            generations: [begin; CHUNK_ENTRIES],
            taken: [0; CHUNK_ENTRIES / 64],
            len: 0,
        })
    }

    /// Returns the lowest free place.
    fn free(&self) -> Option<usize> {
        let word = self.taken.iter().position(|word| *word != u64::MAX)?;
        Some(word * 64 + self.taken[word].trailing_ones() as usize)
    }
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), begins: Vec::new(), room: Vec::new(), used: 0, len: 0, spare: None }
    }

    pub fn insert(&mut self, value: T) -> SlabKey {
        let number = self.with_room();
        let begin = self.begins[number];
        let chunk = self.chunks[number].get_or_insert_with(|| Chunk::new(begin));
        // Invariant: a chunk whose bit is set has a free place.
        let at = chunk.free().expect("a chunk with room has a free place");
        assert!(chunk.entries[at].is_none(), "a free place is empty");
        chunk.entries[at] = Some(value);
        chunk.taken[at / 64] |= 1 << (at % 64);
        chunk.len += 1;
        let generation = chunk.generations[at];
        if chunk.len as usize == CHUNK_ENTRIES {
            self.room[number / 64] &= !(1 << (number % 64));
        }
        if self.spare == Some(number as u32) {
            self.spare = None;
        }
        let index = (number * CHUNK_ENTRIES + at) as u32;
        self.len += 1;
        self.used = self.used.max(index + 1);
        SlabKey { index, generation }
    }

    pub fn remove(&mut self, wanted: SlabKey) -> Option<T> {
        self.get(wanted)?;
        let (number, at) = place(wanted.index);
        let chunk = self.chunks[number].as_mut()?;
        chunk.generations[at] = chunk.generations[at].wrapping_add(1);
        chunk.taken[at / 64] &= !(1 << (at % 64));
        chunk.len -= 1;
        let value = chunk.entries[at].take();
        let empty = chunk.len == 0;
        self.room[number / 64] |= 1 << (number % 64);
        self.len -= 1;
        if empty {
            self.run_empty(number as u32);
        }
        value
    }

    pub fn get(&self, wanted: SlabKey) -> Option<&T> {
        let (chunk, at) = place(wanted.index);
        let chunk = self.chunks.get(chunk)?.as_ref()?;
        if chunk.generations[at] != wanted.generation { None } else { chunk.entries[at].as_ref() }
    }

    pub fn get_mut(&mut self, wanted: SlabKey) -> Option<&mut T> {
        let (chunk, at) = place(wanted.index);
        let chunk = self.chunks.get_mut(chunk)?.as_mut()?;
        if chunk.generations[at] != wanted.generation { None } else { chunk.entries[at].as_mut() }
    }

    /// Returns the entry of a reference that must be live.
    ///
    /// # Panics
    /// If the entry has ended: the caller kept the reference beyond its use.
    pub fn live(&self, wanted: SlabKey) -> &T {
        // Invariant: the caller has the reference from a table that names live entries only.
        self.get(wanted).expect("a reference to a live entry")
    }

    /// Returns the same entry as [`Slab::live`], mutably.
    ///
    /// # Panics
    /// If the entry has ended, as above.
    pub fn live_mut(&mut self, wanted: SlabKey) -> &mut T {
        // Invariant: as above.
        self.get_mut(wanted).expect("a reference to a live entry")
    }

    /// Returns the present use of a place, if any.
    pub fn at(&self, index: u32) -> Option<(SlabKey, &T)> {
        let (chunk, at) = place(index);
        let chunk = self.chunks.get(chunk)?.as_ref()?;
        let value = chunk.entries[at].as_ref()?;
        Some((SlabKey { index, generation: chunk.generations[at] }, value))
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns one more than the greatest index that can be in use: the end of a sweep.
    pub fn end(&self) -> u32 {
        self.used
    }

    /// Returns the lowest chunk that has a free place, and makes one if there is none.
    fn with_room(&mut self) -> usize {
        let word = self.room.iter().position(|word| *word != 0);
        if let Some(word) = word {
            return word * 64 + self.room[word].trailing_zeros() as usize;
        }
        let number = self.chunks.len();
        self.chunks.push(None);
        if self.begins.len() == number {
            self.begins.push(0);
        }
        if self.room.len() * 64 == number {
            self.room.push(0);
        }
        self.room[number / 64] |= 1 << (number % 64);
        number
    }

    /// Keeps the lower one of this empty chunk and the spare one as the spare, and frees the other.
    fn run_empty(&mut self, number: u32) {
        // There was no other spare chunk.
        let Some(before) = self.spare.replace(number).filter(|before| *before != number) else { return };
        // The lower one is kept, because it is filled again first.
        let (kept, gone) = (before.min(number), before.max(number));
        self.spare = Some(kept);
        if let Some(chunk) = self.chunks[gone as usize].take() {
            let newest = chunk.generations.iter().copied().reduce(later).unwrap_or_default();
            self.begins[gone as usize] = newest;
        }
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
            let number = self.chunks.len();
            self.room[number / 64] &= !(1 << (number % 64));
            self.used = self.used.min((number * CHUNK_ENTRIES) as u32);
        }
    }
}

/// Returns the later of two wrapping numbers that are less than half a round apart.
pub(super) fn later(one: u32, other: u32) -> u32 {
    if other.wrapping_sub(one) < 1 << 31 { other } else { one }
}

fn place(index: u32) -> (usize, usize) {
    (index as usize / CHUNK_ENTRIES, index as usize % CHUNK_ENTRIES)
}

const CHUNK_ENTRIES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stale_reference_finds_nobody() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
        assert_eq!(slab.at(second.index).map(|(r, _)| r), Some(second));
    }

    #[test]
    fn entries_survive_growth_over_many_chunks() {
        let mut slab = Slab::new();
        let refs: Vec<_> = (0..CHUNK_ENTRIES as u32 * 3 + 1).map(|n| slab.insert(n)).collect();
        assert!(refs.iter().enumerate().all(|(n, r)| slab.get(*r) == Some(&(n as u32))));
        assert_eq!(slab.len(), refs.len());
        assert_eq!(slab.end() as usize, refs.len());
    }

    #[test]
    fn what_a_crowd_needed_is_given_back_and_its_names_stay_stale() {
        let mut slab = Slab::new();
        let refs: Vec<_> = (0..CHUNK_ENTRIES as u32 * 70).map(|n| slab.insert(n)).collect();
        for r in &refs[1..] {
            assert_eq!(slab.remove(*r), Some(r.index));
        }
        assert_eq!((slab.len(), slab.chunks.iter().flatten().count()), (1, 2), "its chunk, and a spare one");
        assert_eq!(slab.end() as usize, 2 * CHUNK_ENTRIES);
        let again: Vec<_> = (0..CHUNK_ENTRIES as u32 * 70).map(|n| slab.insert(n)).collect();
        assert!(refs[1..].iter().all(|r| slab.get(*r).is_none()), "a stale name finds nobody in a chunk made anew");
        assert!(again.iter().enumerate().all(|(n, r)| slab.get(*r) == Some(&(n as u32))));
    }

    #[test]
    fn stale_references_find_nobody_over_the_wrap_around_of_generations() {
        let mut slab = Slab::new();
        let crowd: Vec<_> = (0..CHUNK_ENTRIES as u32 * 3).map(|n| slab.insert(n)).collect();
        for chunk in slab.chunks.iter_mut().flatten() {
            chunk.generations = [u32::MAX - 1; CHUNK_ENTRIES];
        }
        let mut stale: Vec<_> = crowd.iter().map(|r| SlabKey { generation: u32::MAX - 1, ..*r }).collect();
        assert!(stale.iter().all(|r| slab.remove(*r) == Some(r.index)));
        for round in 0..4 {
            let again: Vec<_> = (0..CHUNK_ENTRIES as u32 * 3).map(|n| slab.insert(n)).collect();
            assert!(stale.iter().all(|r| slab.get(*r).is_none()), "round {round}");
            assert!(again.iter().all(|r| slab.remove(*r) == Some(r.index)));
            stale.extend(again);
        }
        assert!(stale.iter().any(|r| r.generation == u32::MAX) && stale.iter().any(|r| r.generation == 0));
    }

    proptest! {
        #[test]
        fn a_slab_is_a_map_from_names(
            crowd in 0usize..3 * CHUNK_ENTRIES,
            ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400),
        ) {
            let (mut slab, mut model, mut gone) = (Slab::new(), Vec::new(), Vec::new());
            for n in 0..crowd {
                model.push((slab.insert(n), n));
            }
            for (n, (add, which)) in ops.into_iter().enumerate() {
                if add || model.is_empty() {
                    model.push((slab.insert(n), n));
                } else {
                    let (at, value) = model.swap_remove(which.index(model.len()));
                    prop_assert_eq!(slab.remove(at), Some(value));
                    gone.push(at);
                }
            }
            for (at, _) in model.drain(..model.len() / 2) {
                slab.remove(at);
                gone.push(at);
            }
            prop_assert_eq!(slab.len(), model.len());
            prop_assert!(model.iter().all(|(at, value)| slab.get(*at) == Some(value) && at.index < slab.end()));
            prop_assert!(gone.iter().all(|at| slab.get(*at).is_none()));
        }
    }
}
