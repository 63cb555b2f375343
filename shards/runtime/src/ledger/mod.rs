//! The mapped ledger log: accepted directs that survive `kill -9` (ARCHITECTURE.md 5).
//!
//! One ring log per shard, a file of the data directory mapped `MAP_SHARED`, so that what was written is the
//! kernel's the moment the store instruction retires: a killed process loses nothing, a power cut may.
//!
//! ```text
//! 0     header: magic, version, shard, capacity, salt, CRC; two clock floors, each with its own check
//! 4096  ring: records of 24 bytes of head and one encoded message, padded to 8
//! ```
//!
//! A record is written, then marked live with a release store; an ack marks it dead. The live word and the
//! CRC are salted per file, so that no payload can be mistaken for a record. When the ring is three quarters
//! full, every appended byte makes the tail pass four: dead records are freed, live ones copied to the head.
//! While live bytes are at most [`capacity_for`] the log always has room (the arithmetic is at [`Log::append`]).
//!
//! Logs are never reused: at start [`replay`] reads every log of the directory, also those of an earlier shard count.
//! The caller makes new ones, saves the messages and then discards the old files.
//!
//! Lives on: its shard only; `replay` on the starting thread.

#![allow(unsafe_code)]

mod error;
mod layout;
mod map;
mod medium;
mod replay;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use crate::ports::Ledger;
use machine::ids::{Clock, LedgerSlot, Origin, ShardId};
use machine::message::Message;

pub use error::LedgerError;
pub use layout::MESSAGE_BYTES_MAX;
pub use map::Map;
pub use medium::Medium;
pub use replay::{Replay, read_log, replay};

use layout::{DEAD, FILLER, HEADER_BYTES, RECORD_HEAD_BYTES};
use medium::Records;

/// The smallest log: the filler at the wrap and the slack of compaction must stay small beside it.
pub const LOG_BYTES_MIN: u64 = 1 << 20;
/// The largest log: offsets are kept in units of 8 bytes in 32 bits.
pub const LOG_BYTES_MAX: u64 = 1 << 34;

const _: () = assert!(MESSAGE_BYTES_MAX >= machine::limits::PAYLOAD_BYTES_MAX * 3 / 2);
// Slack of 1/16 of the ring holds the record being copied, the one being appended, and two fillers.
const _: () = assert!(LOG_BYTES_MIN - HEADER_BYTES >= 16 * 3 * (MESSAGE_BYTES_MAX as u64 / 3 + 64));

// A record takes its head and at most 7 bytes of padding beside the message; the machine reserves at least that.
const _: () = assert!(RECORD_HEAD_BYTES + 7 <= machine::limits::LEDGER_RECORD_OVERHEAD_BYTES as u64);

/// Returns the bytes that `message` takes from the log: the machine reserves them before it accepts a direct.
pub fn record_bytes(message: &Message) -> u64 {
    layout::record_bytes(message.encoded_len())
}

/// Returns the bytes of live records that a log file of `log_bytes` may hold: half of its ring.
pub fn capacity_for(log_bytes: u64) -> u64 {
    layout::ring_bytes(log_bytes) / 2
}

/// A slot without a record.
const VACANT: u32 = u32::MAX;

/// One shard's log. Its shard is the only writer.
pub struct Log<M = Map> {
    map: M,
    path: PathBuf,
    /// Bytes of the ring; positions below count on without wrapping, `position % ring` is the place.
    ring: u64,
    /// Position of the next record. `tail <= head <= tail + ring`.
    head: u64,
    /// Position of the oldest record, live or dead.
    tail: u64,
    /// Bytes of live records; at most `ring / 2`.
    live: u64,
    /// Per slot the place of its record in units of 8 bytes.
    slots: Vec<u32>,
    floor: Clock,
    /// Index of the floor cell that is written next.
    floor_cell: usize,
    scratch: Vec<u8>,
}

impl Log {
    /// Makes the log of `shard` in `dir` (which is created), `log_bytes` long, all of it allocated and faulted in.
    /// Never overwrites a file: `origin` differs per boot.
    ///
    /// # Errors
    /// If the directory is not writable or the disk is full; the sentence says what to do.
    pub fn create(
        dir: &Path,
        shard: ShardId,
        origin: Origin,
        log_bytes: u64,
        floor: Clock,
    ) -> Result<Log, LedgerError> {
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes) {
            return Err(LedgerError::size(dir, log_bytes));
        }
        fs::create_dir_all(dir).map_err(|e| LedgerError::io(dir, "create", e))?;
        let path = dir.join(format!("shard-{}-{:08x}.log", shard.0, origin.0));
        // Written and synced under another name first: a file called `.log` has a whole header and its floor, also
        // after a power cut. The earlier logs, whose floor it takes over, may be removed once this returns.
        let draft = path.with_extension("tmp");
        let _ = fs::remove_file(&draft);
        if path.exists() {
            let taken = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(LedgerError::io(&path, "create", taken));
        }
        let ring = layout::ring_bytes(log_bytes);
        let mut map = Map::create(&draft, HEADER_BYTES + ring, |map| map.begin(shard, ring, floor))?;
        fs::rename(&draft, &path).map_err(|e| LedgerError::io(&path, "name", e))?;
        map::sync_directory(dir)?;
        map.fault_in();
        Ok(Log::empty(map, path, ring, floor))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file; for a shard that ends with nothing live. With live records the file stays for the next start.
    pub fn finish(self) -> Result<(), LedgerError> {
        if self.live > 0 {
            return Ok(());
        }
        fs::remove_file(&self.path).map_err(|e| LedgerError::io(&self.path, "remove", e))
    }
}

impl<M: Medium> Log<M> {
    /// Begins the log of `shard` on a medium whose bytes are zero, as [`Log::create`] begins a file. For simulators.
    ///
    /// A medium smaller than [`LOG_BYTES_MIN`] has room for every append only while no encoded message is longer than a
    /// fiftieth of it.
    pub fn on(mut medium: M, shard: ShardId, floor: Clock) -> Log<M> {
        let ring = layout::ring_bytes(medium.bytes().len() as u64);
        medium.begin(shard, ring, floor);
        Log::empty(medium, PathBuf::new(), ring, floor)
    }

    fn empty(map: M, path: PathBuf, ring: u64, floor: Clock) -> Log<M> {
        Log {
            map,
            path,
            ring,
            head: 0,
            tail: 0,
            live: 0,
            slots: Vec::new(),
            floor,
            floor_cell: 1,
            scratch: Vec::with_capacity(MESSAGE_BYTES_MAX),
        }
    }

    /// The bytes that it writes.
    pub fn medium(&mut self) -> &mut M {
        &mut self.map
    }

    /// Bytes of live records, overhead included.
    pub fn live_bytes(&self) -> u64 {
        self.live
    }

    /// Bytes between the oldest record and the head.
    pub fn used_bytes(&self) -> u64 {
        self.head - self.tail
    }

    fn raise_floor(&mut self, clock: Clock) {
        if clock > self.floor {
            self.floor = clock;
            self.map.write_floor(self.floor_cell, clock);
            self.floor_cell ^= 1;
        }
    }

    /// Writes one record at the head and marks it live; a filler first when it would cross the end of the ring.
    fn write_at_head(&mut self, slot: LedgerSlot, body: &[u8]) {
        let size = layout::record_bytes(body.len());
        let mut place = self.head % self.ring;
        let until_end = self.ring - place;
        let filler = if until_end < size { until_end } else { 0 };
        assert!(self.used_bytes() + filler + size <= self.ring, "the machine reserves ledger bytes before it accepts");
        if filler > 0 {
            self.map.set_state(place, FILLER);
            self.head += filler;
            place = 0;
        }
        self.map.write_record(place, slot, body);
        self.head += size;
        let index = slot.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, VACANT);
        }
        self.slots[index] = (place / 8) as u32;
    }

    /// Makes the tail pass the oldest record: frees it when dead, copies it to the head when live. Returns the number
    /// of bytes that it passed.
    fn pass_oldest(&mut self) -> u64 {
        assert!(self.tail < self.head, "only a log that holds records is compacted");
        let place = self.tail % self.ring;
        let until_end = self.ring - place;
        if until_end < RECORD_HEAD_BYTES || self.map.state(place) == FILLER {
            self.tail += until_end;
            return until_end;
        }
        let (len, slot) = self.map.record_head(place);
        let size = layout::record_bytes(len);
        if self.map.state(place) != DEAD {
            let mut body = std::mem::take(&mut self.scratch);
            body.clear();
            body.extend_from_slice(self.map.body(place, len));
            self.write_at_head(slot, &body);
            self.scratch = body;
            // Only now: between the two stores both are live, and replay keeps one of them.
            self.map.set_state(place, DEAD);
        }
        self.tail += size;
        size
    }
}

impl<M: Medium> Ledger for Log<M> {
    /// Room is certain while live bytes are at most half the ring `R`: at `3/4 R` used, at least `1/4 R` is
    /// dead. From there the tail passes 4 bytes per appended byte, so it has passed all of those `3/4 R`
    /// after `3/16 R` of appends, when used is at most `15/16 R`, and is then at most `1/2 R + 3/16 R`.
    fn append(&mut self, slot: LedgerSlot, message: &Message) {
        let occupied = self.slots.get(slot.0 as usize).is_some_and(|&place| place != VACANT);
        assert!(!occupied, "a slot is appended to once before it is dead");
        let size = record_bytes(message);
        assert!(message.encoded_len() <= MESSAGE_BYTES_MAX, "the edge bounds what it accepts");
        assert!(self.live + size <= self.ring / 2, "the machine reserves ledger bytes before it accepts");
        let mut passed = 0;
        while self.used_bytes() + size > self.ring / 4 * 3 && passed < 4 * size {
            passed += self.pass_oldest();
        }
        self.raise_floor(message.stamp.clock);
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        message.encode(&mut body);
        self.write_at_head(slot, &body);
        self.scratch = body;
        self.live += size;
    }

    fn dead(&mut self, slot: LedgerSlot) {
        let place = self.slots.get(slot.0 as usize).copied().unwrap_or(VACANT);
        assert!(place != VACANT, "a record is marked dead once");
        let place = u64::from(place) * 8;
        let (len, _) = self.map.record_head(place);
        self.map.set_state(place, DEAD);
        self.slots[slot.0 as usize] = VACANT;
        self.live -= layout::record_bytes(len);
        if self.live == 0 {
            self.tail = self.head;
        }
    }

    fn clock_floor(&mut self, clock: Clock) {
        self.raise_floor(clock);
    }
}
