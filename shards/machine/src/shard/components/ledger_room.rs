//! The room of one shard's ledger log: numbers of records, and the bytes that live ones reserve.

use crate::ids::LedgerSlot;
use crate::limits;
use crate::message::Message;

/// Room that live records take. A record is taken once and given back once.
pub(in crate::shard) struct LedgerRoom {
    /// Numbers that are free again; the others below `used` are live.
    free: Vec<u32>,
    used: u32,
    bytes: u64,
    bytes_max: u64,
}

impl LedgerRoom {
    /// Room for `bytes_max` bytes (`delivery.ledger_bytes_max` of one shard), and no record.
    pub fn new(bytes_max: u64) -> LedgerRoom {
        LedgerRoom { free: Vec::new(), used: 0, bytes: 0, bytes_max }
    }

    /// Returns true if a record of this size fits, of a session that has `held` bytes in the log. Sessions that hold
    /// much have half of it.
    pub fn fits(&self, bytes: u32, held: u32) -> bool {
        let is_small = held + bytes <= limits::LEDGER_SMALL_HOLDER_BYTES;
        self.bytes + u64::from(bytes) <= if is_small { self.bytes_max } else { self.bytes_max / 2 }
    }

    /// Takes a record of this size.
    pub fn take(&mut self, bytes: u32) -> LedgerSlot {
        self.bytes += u64::from(bytes);
        LedgerSlot(self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        }))
    }

    /// Gives back a record that [`LedgerRoom::take`] gave for this size. The caller has the log forget it.
    pub fn give_back(&mut self, slot: LedgerSlot, bytes: u32) {
        assert!(self.bytes >= u64::from(bytes) && self.live() > 0, "a record is given back once");
        self.bytes -= u64::from(bytes);
        self.free.push(slot.0);
    }

    /// Bytes that live records reserve.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of live records.
    pub fn live(&self) -> usize {
        self.used as usize - self.free.len()
    }
}

/// Bytes that a direct reserves of its session and its shard.
pub(in crate::shard) fn ledger_bytes(message: &Message) -> u32 {
    message.encoded_len() as u32 + limits::LEDGER_RECORD_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn live_records_have_numbers_and_bytes_of_their_own(ops in prop::collection::vec(0u32..100, 0..200)) {
            let mut room = LedgerRoom::new(1_000);
            let mut live: BTreeMap<u32, u32> = BTreeMap::new();
            for op in ops {
                let taken: u32 = live.values().sum();
                prop_assert_eq!(room.fits(op, 0), taken + op <= 1_000);
                prop_assert_eq!(room.fits(op, limits::LEDGER_SMALL_HOLDER_BYTES + 1), taken + op <= 500);
                if op % 3 > 0 && room.fits(op, 0) {
                    prop_assert!(live.insert(room.take(op).0, op).is_none());
                } else if let Some((slot, bytes)) = live.pop_first() {
                    room.give_back(LedgerSlot(slot), bytes);
                }
                prop_assert_eq!(room.bytes(), live.values().map(|bytes| u64::from(*bytes)).sum::<u64>());
                prop_assert_eq!(room.live(), live.len());
                prop_assert!(live.keys().all(|slot| *slot < room.used));
            }
        }
    }

    #[test]
    #[should_panic(expected = "given back once")]
    fn a_record_that_is_not_live_is_not_given_back() {
        LedgerRoom::new(1_000).give_back(LedgerSlot(0), 0);
    }
}
