//! The bytes under a log, and how records are laid into them.
//!
//! A server has a [`Map`](super::Map), a file mapped shared. A simulator gives memory that can die between any two
//! stores, so that the code above is tested as it is.

use machine::ids::{Clock, LedgerSlot, ShardId};

use super::layout::{self, DEAD, HEADER_BYTES, RECORD_HEAD_BYTES};

/// Bytes that one log writes. The order of the calls is the order in which a killed process leaves the stores behind.
pub trait Medium {
    /// Secret of this log: marks its records, and salts their checks.
    fn salt(&self) -> u64;

    /// Every byte, header included.
    fn bytes(&self) -> &[u8];

    /// Copies `bytes` to `at`. Panics outside the medium.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Word at `at`, a multiple of 4.
    fn word(&self, at: usize) -> u32;

    /// Sets that word, after everything written before.
    fn set_word(&mut self, at: usize, word: u32);
}

const STATE_AT: u64 = 12;

/// Records and header of a medium. Places count from the beginning of the ring.
pub(super) trait Records: Medium {
    /// Begins a new log whose clock starts above `floor`.
    fn begin(&mut self, shard: ShardId, ring: u64, floor: Clock) {
        let head = layout::header(shard, ring, self.salt());
        self.write_header_bytes(0, &head);
        self.write_floor(0, floor);
    }

    /// Writes one of the two floor cells. Torn by a kill, its check fails and the other cell counts: the caller
    /// was not told yet that the floor is raised.
    fn write_floor(&mut self, cell: usize, clock: Clock) {
        let (at, bytes) = layout::floor(cell, clock);
        self.write_header_bytes(at, &bytes);
    }

    /// Copies `bytes` to `at` of the header page.
    fn write_header_bytes(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= HEADER_BYTES as usize, "the header is one page");
        self.write(at, bytes);
    }

    /// State word of the record at `place`.
    fn state(&self, place: u64) -> u32 {
        self.word(self.state_at(place))
    }

    /// Sets that word, after everything written before.
    fn set_state(&mut self, place: u64, state: u32) {
        if place + RECORD_HEAD_BYTES <= self.bytes().len() as u64 - HEADER_BYTES {
            self.set_word(self.state_at(place), state);
        }
        // Else fewer bytes than a record head are left: a reader knows the rest for a filler by its size.
    }

    /// Body length and slot of the record at `place`.
    fn record_head(&self, place: u64) -> (usize, LedgerSlot) {
        let head = self.span(place, RECORD_HEAD_BYTES as usize);
        let len = u32::from_le_bytes(layout::field(head, 0)) as usize;
        (len, LedgerSlot(u32::from_le_bytes(layout::field(head, 4))))
    }

    /// Body of the record at `place`.
    fn body(&self, place: u64, len: usize) -> &[u8] {
        self.span(place + RECORD_HEAD_BYTES, len)
    }

    /// Writes a record at `place` and then marks it live.
    fn write_record(&mut self, place: u64, slot: LedgerSlot, body: &[u8]) {
        let salt = self.salt();
        self.set_state(place, DEAD);
        let mut head = [0u8; RECORD_HEAD_BYTES as usize];
        head[0..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&slot.0.to_le_bytes());
        head[8..12].copy_from_slice(&layout::record_crc(salt, slot, body).to_le_bytes());
        head[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let at = (HEADER_BYTES + place) as usize;
        self.write(at, &head);
        self.write(at + head.len(), body);
        self.set_state(place, layout::live_word(salt));
    }

    fn span(&self, place: u64, len: usize) -> &[u8] {
        let start = (HEADER_BYTES + place) as usize;
        &self.bytes()[start..start + len]
    }

    fn state_at(&self, place: u64) -> usize {
        assert!(place.is_multiple_of(8) && place + RECORD_HEAD_BYTES <= self.bytes().len() as u64 - HEADER_BYTES);
        (HEADER_BYTES + place + STATE_AT) as usize
    }
}

impl<M: Medium> Records for M {}
