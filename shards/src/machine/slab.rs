//! A slab that grows by chunks and never moves what is in it (DESIGN.md 4.3): no rehash-like pause when a
//! shard passes a power of two. Every place counts its uses, so a stale reference finds nobody.

/// Names one use of one place of a slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Ref {
    pub index: u32,
    pub generation: u32,
}

/// Entries in chunks of `CHUNK_ENTRIES`; `free` names the places that were used and are empty.
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    free: Vec<u32>,
    /// Places ever used; `len <= used <= chunks * CHUNK_ENTRIES`.
    used: u32,
    len: u32,
}

struct Chunk<T> {
    entries: Box<[Option<T>]>,
    generations: Box<[u32]>,
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), used: 0, len: 0 }
    }

    pub fn insert(&mut self, value: T) -> Ref {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let (chunk, at) = place(index);
        let chunk = &mut self.chunks[chunk];
        assert!(chunk.entries[at].is_none(), "a free place is empty");
        chunk.entries[at] = Some(value);
        self.len += 1;
        Ref { index, generation: chunk.generations[at] }
    }

    pub fn remove(&mut self, wanted: Ref) -> Option<T> {
        self.get(wanted)?;
        let (chunk, at) = place(wanted.index);
        let chunk = &mut self.chunks[chunk];
        chunk.generations[at] = chunk.generations[at].wrapping_add(1);
        self.free.push(wanted.index);
        self.len -= 1;
        chunk.entries[at].take()
    }

    pub fn get(&self, wanted: Ref) -> Option<&T> {
        let (chunk, at) = place(wanted.index);
        let chunk = self.chunks.get(chunk)?;
        if chunk.generations[at] != wanted.generation { None } else { chunk.entries[at].as_ref() }
    }

    pub fn get_mut(&mut self, wanted: Ref) -> Option<&mut T> {
        let (chunk, at) = place(wanted.index);
        let chunk = self.chunks.get_mut(chunk)?;
        if chunk.generations[at] != wanted.generation { None } else { chunk.entries[at].as_mut() }
    }

    /// The present use of a place, if any.
    pub fn at(&self, index: u32) -> Option<(Ref, &T)> {
        let (chunk, at) = place(index);
        let chunk = self.chunks.get(chunk)?;
        let value = chunk.entries[at].as_ref()?;
        Some((Ref { index, generation: chunk.generations[at] }, value))
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the greatest index ever used: where a sweep ends.
    pub fn end(&self) -> u32 {
        self.used
    }

    fn grow(&mut self) -> u32 {
        let index = self.used;
        if index as usize == self.chunks.len() * CHUNK_ENTRIES {
            self.chunks.push(Chunk {
                entries: (0..CHUNK_ENTRIES).map(|_| None).collect(),
                generations: vec![0; CHUNK_ENTRIES].into_boxed_slice(),
            });
        }
        self.used += 1;
        index
    }
}

fn place(index: u32) -> (usize, usize) {
    (index as usize / CHUNK_ENTRIES, index as usize % CHUNK_ENTRIES)
}

const CHUNK_ENTRIES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

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
}
