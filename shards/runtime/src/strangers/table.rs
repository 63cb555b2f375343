//! One stripe of the table of addresses: entries, an index by hash, and a hand that walks over the entries.

use hashbrown::HashTable;
use machine::time::Instant;

use super::limits::{Limit, Stranger};

/// Counts of one address.
pub(super) struct Entry {
    stranger: Stranger,
    /// Times at which the rates are full again: handshakes, new users, registers, signatures that failed.
    pub full_at: [Instant; 4],
    pub connections: u32,
}

const _: () = assert!(size_of::<Entry>() == 48);

impl Entry {
    /// The time at which this rate is full again; `None` for a limit that is no rate.
    pub fn rate(&mut self, limit: Limit) -> Option<&mut Instant> {
        match limit {
            Limit::Connections => None,
            Limit::Handshakes => Some(&mut self.full_at[0]),
            Limit::NewUsers => Some(&mut self.full_at[1]),
            Limit::Registers => Some(&mut self.full_at[2]),
        }
    }

    /// The time from which on this entry is the same as none; `None` while it holds connections.
    fn free_at(&self) -> Option<Instant> {
        (self.connections == 0).then(|| self.full_at.into_iter().fold(Instant(0), Instant::max))
    }

    /// The time at which signatures may fail again as if none had.
    pub fn forgiven_at(&mut self) -> &mut Instant {
        &mut self.full_at[3]
    }
}

/// Some of the addresses. Bounded: see [`Table::entry`].
pub(super) struct Table {
    entries: Vec<Entry>,
    /// Places in `entries`.
    index: HashTable<u32>,
    /// Place of the entry that is looked at next.
    hand: usize,
    entries_max: usize,
    /// Addresses whose counts were lost, or never made, because there were too many.
    pub forgotten: u64,
}

/// Entries that a new address looks at for one that can leave, in a full table.
pub(super) const LOOKED_AT: usize = 16;
/// Entries that a new address looks at otherwise, so that those that hold nothing leave.
const AGED: usize = 2;
/// Entries that there is room for at first.
const ENTRIES_BEGIN: usize = 16;

impl Table {
    pub fn new(entries_max: usize) -> Table {
        Table { entries: Vec::new(), index: HashTable::new(), hand: 0, entries_max, forgotten: 0 }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entry of this address if there is one.
    pub fn find(&mut self, hash: u64, stranger: Stranger) -> Option<&mut Entry> {
        self.place(hash, stranger).map(|at| &mut self.entries[at])
    }

    fn place(&self, hash: u64, stranger: Stranger) -> Option<usize> {
        self.index.find(hash, |at| self.entries[*at as usize].stranger == stranger).map(|at| *at as usize)
    }

    /// Returns the entry of this address, and makes one if there is none.
    ///
    /// In a full table another entry leaves for it: of [`LOOKED_AT`] entries one that holds nothing, else the one
    /// without connections whose rates are full again first. An entry with connections never leaves, so `None` if all
    /// of them have some.
    pub fn entry(
        &mut self,
        hash: u64,
        stranger: Stranger,
        now: Instant,
        hasher: impl Fn(Stranger) -> u64,
    ) -> Option<&mut Entry> {
        let at = match self.place(hash, stranger) {
            Some(at) => at,
            None => self.insert(hash, stranger, now, hasher)?,
        };
        Some(&mut self.entries[at])
    }

    /// Removes the entry of this address if it holds nothing.
    pub fn release(&mut self, hash: u64, stranger: Stranger, now: Instant, hasher: impl Fn(Stranger) -> u64) {
        if let Some(at) = self.place(hash, stranger).filter(|at| self.holds_nothing(*at, now)) {
            self.remove(at, hasher);
        }
    }

    /// Looks at some entries, and removes those that hold nothing.
    pub fn age(&mut self, looks: usize, now: Instant, hasher: impl Fn(Stranger) -> u64) {
        for _ in 0..looks.min(self.entries.len()) {
            self.hand = if self.hand < self.entries.len() { self.hand } else { 0 };
            if self.holds_nothing(self.hand, now) {
                self.remove(self.hand, &hasher);
            } else {
                self.hand += 1;
            }
        }
    }

    fn holds_nothing(&self, at: usize, now: Instant) -> bool {
        self.entries.get(at).and_then(Entry::free_at).is_some_and(|free_at| free_at <= now)
    }

    fn insert(
        &mut self,
        hash: u64,
        stranger: Stranger,
        now: Instant,
        hasher: impl Fn(Stranger) -> u64,
    ) -> Option<usize> {
        if self.entries.len() < self.entries_max {
            self.age(AGED, now, &hasher);
        } else if !self.evict(now, &hasher) {
            return None;
        }
        let Table { entries, index, entries_max, .. } = self;
        let at = entries.len();
        if at == entries.capacity() {
            // Doubled, but not beyond the bound.
            entries.reserve_exact(at.max(ENTRIES_BEGIN).min(*entries_max - at));
        }
        entries.push(Entry { stranger, full_at: [Instant(0); 4], connections: 0 });
        index.insert_unique(hash, at as u32, |at| hasher(entries[*at as usize].stranger));
        Some(at)
    }

    /// Makes room for an entry. Returns false if it found none that can leave.
    fn evict(&mut self, now: Instant, hasher: impl Fn(Stranger) -> u64) -> bool {
        let len = self.entries.len();
        let looked_at = (self.hand..self.hand + LOOKED_AT.min(len)).map(|at| at % len);
        let can_leave = looked_at.filter_map(|at| Some((self.entries[at].free_at()?, at))).min();
        self.hand = (self.hand + LOOKED_AT) % len;
        let Some((free_at, at)) = can_leave else {
            self.forgotten += 1;
            return false;
        };
        self.forgotten += u64::from(free_at > now);
        self.remove(at, hasher);
        true
    }

    fn remove(&mut self, at: usize, hasher: impl Fn(Stranger) -> u64) {
        let last = self.entries.len() - 1;
        let gone = hasher(self.entries[at].stranger);
        if let Ok(place) = self.index.find_entry(gone, |place| *place as usize == at) {
            place.remove();
        }
        let moved = hasher(self.entries[last].stranger);
        if let Some(place) = self.index.find_mut(moved, |place| *place as usize == last) {
            *place = at as u32;
        }
        self.entries.swap_remove(at);
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.index.allocation_size()
    }
}
