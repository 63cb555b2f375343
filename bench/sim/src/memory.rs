//! Memory under a ledger log: what a killed process, a damaged file and a host without power leave of it.

use runtime::ledger::Medium;

use crate::rng::Rng;

/// The bytes of one log, with the last stores while they are watched.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    salt: u64,
    /// Bytes that the watched stores overwrote, each behind its place, in the order of the stores.
    undo: Option<Vec<(usize, Vec<u8>)>>,
    /// Least that a loss of power leaves of the first page; of the others it may leave zeroes.
    synced: Option<[u8; PAGE]>,
}

impl Memory {
    pub(crate) fn new(bytes: usize, salt: u64) -> Memory {
        Memory { bytes: vec![0; bytes], salt, undo: None, synced: None }
    }

    /// The first page of a new log outlives a loss of power: the server syncs it before it gives the file its name.
    pub(crate) fn sync(&mut self) {
        self.synced = self.bytes.first_chunk().copied();
    }

    /// From now on stores can be taken back.
    pub(crate) fn watch(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// The process died in the middle of the watched stores: some first ones are there, the next one in part.
    pub(crate) fn tear(&mut self, rng: &mut Rng) {
        let mut undo = self.undo.take().unwrap_or_default();
        let kept = rng.index(undo.len() + 1);
        while undo.len() > kept {
            let Some((at, before)) = undo.pop() else { break };
            // A word is stored at once; of anything longer some first bytes may be there.
            let stored = if undo.len() == kept && before.len() > 4 { rng.index(before.len()) } else { 0 };
            self.bytes[at + stored..at + before.len()].copy_from_slice(&before[stored..]);
        }
    }

    /// One bit behind the header is another.
    pub(crate) fn damage(&mut self, at: usize, bit: u32) {
        self.bytes[at] ^= 1 << (bit % 8);
    }

    /// The host lost power: of each page the kernel may have written nothing yet.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        for (number, page) in self.bytes.chunks_mut(PAGE).enumerate() {
            if rng.permille(300) {
                match &self.synced {
                    Some(header) if number == 0 => page.copy_from_slice(header),
                    _ => page.fill(0),
                }
            }
        }
    }
}

const PAGE: usize = 4096;

impl Medium for Memory {
    fn salt(&self) -> u64 {
        self.salt
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let place = &mut self.bytes[at..at + bytes.len()];
        if let Some(undo) = &mut self.undo {
            undo.push((at, place.to_vec()));
        }
        place.copy_from_slice(bytes);
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(word)
    }

    fn set_word(&mut self, at: usize, word: u32) {
        self.write(at, &word.to_le_bytes());
    }
}
