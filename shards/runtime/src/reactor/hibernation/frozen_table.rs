//! The frozen connections of a shard: one record for each slot, in chunks that come and go as those of the slab of
//! connections do.

use hibernate::{Frozen, Place};

const CHUNK: usize = 512;

/// A frozen connection, as its shard keeps it.
pub(super) struct Kept {
    pub frozen: Frozen,
    /// Its record in a file, which has its keys of TLS: they are nowhere else then.
    pub place: Place,
}

struct Chunk {
    records: Box<[Option<Kept>]>,
    occupied: u32,
}

/// Records by slot: 64 bytes for each frozen connection when a chunk is full.
#[derive(Default)]
pub(super) struct FrozenTable {
    chunks: Vec<Option<Chunk>>,
    occupied: u32,
    /// Those of them that have a record in a file.
    recorded: u32,
}

const _: () = assert!(size_of::<Option<Kept>>() == 64);

impl FrozenTable {
    /// Number of records.
    pub(super) fn len(&self) -> u32 {
        self.occupied
    }

    /// Number of connections that outlive the process.
    pub(super) fn recorded(&self) -> u32 {
        self.recorded
    }

    pub(super) fn insert(&mut self, slot: u32, kept: Kept) {
        let number = slot as usize / CHUNK;
        if self.chunks.len() <= number {
            self.chunks.resize_with(number + 1, || None);
        }
        let chunk = self.chunks[number]
            .get_or_insert_with(|| Chunk { records: (0..CHUNK).map(|_| None).collect(), occupied: 0 });
        let has_record = kept.place != Place::NONE;
        let before = chunk.records[slot as usize % CHUNK].replace(kept);
        assert!(before.is_none(), "a connection is frozen once");
        chunk.occupied += 1;
        self.occupied += 1;
        self.recorded += u32::from(has_record);
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Kept> {
        self.chunks.get(slot as usize / CHUNK)?.as_ref()?.records[slot as usize % CHUNK].as_ref()
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Kept> {
        let place = self.chunks.get_mut(slot as usize / CHUNK)?;
        let chunk = place.as_mut()?;
        let kept = chunk.records[slot as usize % CHUNK].take()?;
        chunk.occupied -= 1;
        self.occupied -= 1;
        self.recorded -= u32::from(kept.place != Place::NONE);
        if chunk.occupied == 0 {
            *place = None;
        }
        Some(kept)
    }

    /// Bytes of heap the table holds.
    pub(super) fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count();
        chunks * CHUNK * size_of::<Option<Kept>>() + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }
}
