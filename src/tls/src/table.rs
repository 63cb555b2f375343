//! TLS state of the connections of a shard by slot, in chunks that come with the first TLS connection in them and go
//! with the last: a slot without TLS costs nothing.

use runtime::ports::Port;
use runtime::tls::Stage;

use crate::handshake::Handshake;
use crate::record::Session;

/// TLS state of one slot.
#[expect(clippy::large_enum_variant, reason = "a million are established, and a box would cost them 16 bytes more")]
pub(crate) enum Entry {
    Empty,
    Fresh(Port),
    Handshake(Box<Handshake>),
    Established(Session),
    Failed(Port),
}

// Bytes of a TLS connection beside those of a plain one, in TLS 1.2 and 1.3 (docs/CAPACITY.md): 224 MB for a million.
const _: () = assert!(size_of::<Entry>() <= 224);

impl Entry {
    pub(crate) fn stage(&self) -> Stage {
        match self {
            Entry::Fresh(_) => Stage::Fresh,
            Entry::Handshake(_) => Stage::Handshake,
            Entry::Established(_) => Stage::Established,
            Entry::Failed(_) | Entry::Empty => Stage::Failed,
        }
    }

    pub(crate) fn port(&self) -> Option<Port> {
        match self {
            Entry::Empty => None,
            Entry::Handshake(handshake) => Some(handshake.port),
            Entry::Established(session) => Some(session.port),
            Entry::Fresh(port) | Entry::Failed(port) => Some(*port),
        }
    }
}

const CHUNK: usize = 512;

struct Chunk {
    entries: Box<[Entry]>,
    occupied: usize,
}

/// Entries of all slots.
pub(crate) struct Table {
    chunks: Vec<Option<Chunk>>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { chunks: Vec::new() }
    }

    pub(crate) fn get(&self, slot: u32) -> &Entry {
        let chunk = self.chunks.get(slot as usize / CHUNK).and_then(Option::as_ref);
        chunk.map_or(&Entry::Empty, |chunk| &chunk.entries[slot as usize % CHUNK])
    }

    /// The entry of a slot whose chunk is there.
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?.as_mut()?;
        Some(&mut chunk.entries[slot as usize % CHUNK])
    }

    /// Puts the entry into its slot. The secrets that were there are overwritten.
    pub(crate) fn set(&mut self, slot: u32, entry: Entry) {
        let (number, place) = (slot as usize / CHUNK, slot as usize % CHUNK);
        if self.chunks.len() <= number {
            self.chunks.resize_with(number + 1, || None);
        }
        let chunk = self.chunks[number].get_or_insert_with(|| Chunk {
            entries: std::iter::repeat_with(|| Entry::Empty).take(CHUNK).collect(),
            occupied: 0,
        });
        chunk.occupied += usize::from(!matches!(entry, Entry::Empty));
        chunk.occupied -= usize::from(!matches!(chunk.entries[place], Entry::Empty));
        chunk.entries[place] = entry;
        if chunk.occupied == 0 {
            self.chunks[number] = None;
        }
    }

    /// Bytes of heap that the table holds.
    pub(crate) fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count();
        chunks * CHUNK * size_of::<Entry>() + self.chunks.len() * size_of::<Option<Chunk>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_with_their_first_connection_and_go_with_the_last() {
        let mut table = Table::new();
        assert_eq!(table.heap_bytes(), 0);
        for slot in [5_000, 5_001] {
            table.set(slot, Entry::Fresh(Port::Node));
        }
        assert!(table.heap_bytes() > CHUNK * size_of::<Entry>());
        assert!(matches!(table.get(5_001), Entry::Fresh(Port::Node)) && matches!(table.get(9), Entry::Empty));
        table.set(5_000, Entry::Failed(Port::Node));
        table.set(5_000, Entry::Empty);
        assert!(matches!(table.get(5_001), Entry::Fresh(Port::Node)));
        table.set(5_001, Entry::Empty);
        assert!(table.heap_bytes() < CHUNK);
        assert!(table.get_mut(5_001).is_none());
    }
}
