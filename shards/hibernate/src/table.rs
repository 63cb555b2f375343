//! Connections whose segments the gate holds, by tuple. On the reader's thread.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::tuple::Tuple;

/// Parts of the table, so that the growth of one stops no segment for long.
const PARTS: usize = 256;

/// Name of a connection at its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnName {
    pub slot: u32,
    pub generation: u32,
}

/// Connections whose segments are held. Parts of it grow one by one.
pub struct Table {
    parts: Vec<HashTable<Held>>,
    hasher: RandomState,
}

/// A connection in the table: 24 bytes. Two connections share a hash of 64 bits once in 10^5 tables of ten million; the
/// shard compares the whole tuple.
struct Held {
    hash: u64,
    conn: ConnName,
    shard: u16,
}

impl Default for Table {
    fn default() -> Table {
        Table { parts: (0..PARTS).map(|_| HashTable::new()).collect(), hasher: RandomState::new() }
    }
}

impl Table {
    fn part(&mut self, hash: u64) -> &mut HashTable<Held> {
        // The table uses the other bits.
        &mut self.parts[(hash >> 32) as usize % PARTS]
    }

    /// Holds segments of this tuple for a connection of `shard`.
    pub fn insert(&mut self, shard: u16, tuple: Tuple, conn: ConnName) {
        let hash = self.hasher.hash_one(tuple);
        let part = self.part(hash);
        let held = Held { hash, conn, shard };
        match part.find_mut(hash, |held| held.hash == hash) {
            // The same tuple begins anew: its last connection has ended unseen.
            Some(old) => *old = held,
            None => drop(part.insert_unique(hash, held, |held| held.hash)),
        }
    }

    /// Holds its segments no more, unless the tuple has another connection by now.
    pub fn remove(&mut self, shard: u16, tuple: Tuple, conn: ConnName) {
        let hash = self.hasher.hash_one(tuple);
        let part = self.part(hash);
        if let Ok(entry) = part.find_entry(hash, |held| held.hash == hash && held.shard == shard && held.conn == conn) {
            entry.remove();
        }
        if part.len() * 4 < part.capacity() && part.capacity() > 64 {
            part.shrink_to(part.len() * 2, |held| held.hash);
        }
    }

    /// Returns the shard and the name of the connection with this tuple.
    pub fn find(&mut self, tuple: Tuple) -> Option<(u16, ConnName)> {
        let hash = self.hasher.hash_one(tuple);
        self.part(hash).find(hash, |held| held.hash == hash).map(|held| (held.shard, held.conn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple::new(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], port).into())
    }

    fn name(slot: u32) -> ConnName {
        ConnName { slot, generation: 1 }
    }

    #[test]
    fn a_table_finds_what_is_in_it_and_gives_memory_back() {
        let mut table = Table::default();
        for port in 0..50_000 {
            table.insert(3, tuple(port), name(port.into()));
        }
        assert!((0..50_000).all(|port| table.find(tuple(port)) == Some((3, name(port.into())))));
        assert_eq!(table.find(tuple(60_000)), None);
        for port in 0..50_000 {
            table.remove(3, tuple(port), name(port.into()));
        }
        assert!(table.parts.iter().all(HashTable::is_empty));
        assert!(table.parts.iter().map(HashTable::capacity).sum::<usize>() < 50_000 / 2);
    }

    #[test]
    fn the_name_of_an_ended_connection_removes_nothing_of_the_next() {
        let mut table = Table::default();
        table.insert(0, tuple(1), name(1));
        table.insert(1, tuple(1), name(2));
        table.remove(0, tuple(1), name(1));
        assert_eq!(table.find(tuple(1)), Some((1, name(2))));
    }
}
