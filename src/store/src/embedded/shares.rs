//! Bytes of addresses and of users, for the shares of a store that is nearly full (decision 0039).
//!
//! The record of a user counts one row in 64, and this row for all of them. The bytes of an address are the sum over
//! its users; after a start they are read from the records in small steps, and an address counts too little until then.
//! The bytes of one user are read from its rows when they matter, and remembered for a while.
//!
//! Lives on: the committer.

use std::ops::Bound;
use std::time::{Duration, Instant};

use machine::ids::{AddressDigest, Uaid};
use machine::lru::Lru;

use super::database::Database;
use super::record::{Charge, Record};
use super::rows;

/// Records that one step reads after a start: about a millisecond.
const RECORDS_PER_STEP: usize = 1_024;
/// Users whose bytes are remembered: x about 120 B = 2 MB.
const USERS_KNOWN_MAX: usize = 16_384;
/// Time for which they are remembered: a compaction takes expired rows away and tells nobody.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Least time between two reads of the rows of a user of which some went: a user who takes one message and gets one
/// costs no read for each.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Counts of addresses and users.
pub(super) struct Shares {
    addresses: Sketch,
    /// Users up to this one are in `addresses`; `None` when all of them are.
    counted_to: Option<Option<Uaid>>,
    users: Lru<Uaid, Held>,
}

/// Bytes of one user's rows.
#[derive(Clone, Copy)]
struct Held {
    bytes: u64,
    /// False if the user had this much or more.
    whole: bool,
    /// A row of them went since they were read.
    fewer: bool,
    at: Instant,
}

impl Shares {
    /// Counts of a store that was just opened.
    pub(super) fn new() -> Shares {
        Shares { addresses: Sketch::new(), counted_to: Some(None), users: Lru::new(USERS_KNOWN_MAX) }
    }

    /// Returns true if records are left to be read.
    pub(super) fn is_behind(&self) -> bool {
        self.counted_to.is_some()
    }

    /// Reads the next records. Between two groups: what they changed is in the database.
    pub(super) fn catch_up(&mut self, db: &Database) -> fjall::Result<()> {
        let Some(last) = self.counted_to else { return Ok(()) };
        let behind = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.0));
        let (mut last, mut count) = (last, 0);
        for row in db.users.range::<[u8; 16], _>((behind, Bound::Unbounded)).take(RECORDS_PER_STEP) {
            // An error leaves the others uncounted: their addresses are refused nothing.
            let (key, value) = row.into_inner().inspect_err(|_| self.counted_to = None)?;
            count += 1;
            last = rows::uaid_of(&key).or(last);
            if let Some(record) = Record::parse(&value) {
                self.addresses.add(record.charge());
            }
        }
        self.counted_to = (count == RECORDS_PER_STEP).then_some(last);
        Ok(())
    }

    /// A user's charge has changed.
    pub(super) fn charge(&mut self, uaid: Uaid, before: Charge, after: Charge) {
        let is_counted = self.counted_to.is_none_or(|last| last.is_some_and(|last| uaid <= last));
        if is_counted && before != after {
            self.addresses.remove(before);
            self.addresses.add(after);
        }
    }

    /// The bytes of an address, or a little more.
    pub(super) fn of_address(&self, address: AddressDigest) -> u64 {
        self.addresses.of(address)
    }

    /// Returns true if a user has `share` bytes or more; `None` if its rows must be read. Rows that went are noticed a
    /// second late.
    pub(super) fn has_share(&mut self, uaid: Uaid, share: u64, now: Instant) -> Option<bool> {
        let held = self.users.get(&uaid)?;
        let age = now.saturating_duration_since(held.at);
        let has_share = held.bytes >= share;
        let is_sure = if has_share { !held.fewer || age < READ_EVERY } else { held.whole };
        (is_sure && age < KNOWN_FOR).then_some(has_share)
    }

    /// The rows of a user were read; `whole` if all of them were.
    pub(super) fn know(&mut self, uaid: Uaid, bytes: u64, whole: bool, at: Instant) {
        self.users.insert(uaid, Held { bytes, whole, fewer: false, at });
    }

    /// A row of a user was written.
    pub(super) fn row_came(&mut self, uaid: Uaid, bytes: u64) {
        if let Some(held) = self.users.get(&uaid) {
            held.bytes = held.bytes.saturating_add(bytes);
        }
    }

    /// A row of a user was removed.
    pub(super) fn row_went(&mut self, uaid: Uaid) {
        if let Some(held) = self.users.get(&uaid) {
            held.fewer = true;
        }
    }

    /// A user was removed.
    pub(super) fn forget(&mut self, uaid: Uaid) {
        self.users.remove(&uaid);
    }
}

/// Sums by address in a fixed number of cells. An address has one cell in each line, and its sum is at most the least
/// of them: another address adds to it only if it shares all four.
struct Sketch {
    cells: Box<[u64]>,
}

/// Lines and cells: 4 x 65,536 x 8 B = 2 MiB for any number of addresses. A thousand addresses with much, and one with
/// little meets four of them once in 18 million.
const LINES: usize = 4;
const CELLS_PER_LINE: usize = 1 << 16;

impl Sketch {
    fn new() -> Sketch {
        Sketch { cells: vec![0; LINES * CELLS_PER_LINE].into() }
    }

    /// The cells of an address: a digest is as good as four hashes of 16 bits.
    fn cells(address: AddressDigest) -> impl Iterator<Item = usize> {
        (0..LINES).map(move |line| line * CELLS_PER_LINE + (address.0.get() >> (16 * line)) as usize % CELLS_PER_LINE)
    }

    fn add(&mut self, charge: Charge) {
        for cell in charge.maker.into_iter().flat_map(Sketch::cells) {
            self.cells[cell] = self.cells[cell].saturating_add(charge.bytes);
        }
    }

    fn remove(&mut self, charge: Charge) {
        for cell in charge.maker.into_iter().flat_map(Sketch::cells) {
            self.cells[cell] = self.cells[cell].saturating_sub(charge.bytes);
        }
    }

    fn of(&self, address: AddressDigest) -> u64 {
        Sketch::cells(address).map(|cell| self.cells[cell]).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    fn address(nth: u64) -> AddressDigest {
        let digest = xxhash_rust::xxh3::xxh3_64(&nth.to_be_bytes());
        AddressDigest(NonZeroU64::new(digest).expect("not this one"))
    }

    fn charge(nth: u64, bytes: u64) -> Charge {
        Charge { maker: Some(address(nth)), bytes }
    }

    #[test]
    fn sums_of_many_addresses_are_hardly_more_than_they_are() {
        let mut sketch = Sketch::new();
        (0..1_000).for_each(|nth| sketch.add(charge(nth, 1 << 20)));
        (1_000..200_000).for_each(|nth| sketch.add(charge(nth, 1_000)));
        for nth in 0..200_000 {
            let bytes = if nth < 1_000 { 1 << 20 } else { 1_000 };
            let sum = sketch.of(address(nth));
            assert!(bytes <= sum && sum < bytes + 20_000, "address {nth} has {bytes} and not {sum}");
        }
        (0..1_000).for_each(|nth| sketch.remove(charge(nth, 1 << 20)));
        (1_000..200_000).for_each(|nth| sketch.remove(charge(nth, 1_000)));
        assert!(sketch.cells.iter().all(|cell| *cell == 0));
    }

    #[test]
    fn rows_of_a_user_are_read_again_when_they_may_be_fewer_but_not_for_each_of_them() {
        let (mut shares, uaid, now) = (Shares::new(), Uaid([1; 16]), Instant::now());
        assert_eq!(shares.has_share(uaid, 10, now), None);
        shares.know(uaid, 100, true, now);
        shares.row_came(uaid, 11);
        assert_eq!((shares.has_share(uaid, 111, now), shares.has_share(uaid, 112, now)), (Some(true), Some(false)));
        shares.row_went(uaid);
        assert_eq!(shares.has_share(uaid, 112, now + READ_EVERY), Some(false), "it has at most this much");
        assert_eq!(shares.has_share(uaid, 111, now), Some(true));
        assert_eq!(shares.has_share(uaid, 111, now + READ_EVERY), None);
        assert_eq!(shares.has_share(uaid, 112, now + KNOWN_FOR), None);
        shares.know(uaid, 100, false, now);
        assert_eq!((shares.has_share(uaid, 100, now), shares.has_share(uaid, 101, now)), (Some(true), None));
        shares.forget(uaid);
        assert_eq!(shares.has_share(uaid, 100, now), None);
    }
}
