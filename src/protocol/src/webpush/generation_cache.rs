//! A bounded map of what was seen recently: two generations, the older dropped whole when the younger is full.
//!
//! Constant work per call and no list of uses; what is asked for again moves to the younger generation and stays.

use std::collections::HashMap;
use std::hash::Hash;

/// At most `limit` entries. Own shard only.
pub struct GenerationCache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq + Copy, V: Copy> GenerationCache<K, V> {
    /// Holds at most `limit` entries, at least two.
    pub fn new(limit: usize) -> GenerationCache<K, V> {
        GenerationCache { young: HashMap::new(), old: HashMap::new(), half: (limit / 2).max(1) }
    }

    /// The value of `key`, when it was inserted or asked for recently.
    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some(&value) = self.young.get(key) {
            return Some(value);
        }
        let value = self.old.remove(key)?;
        self.insert(*key, value);
        Some(value)
    }

    /// Remembers a value; at the bound the older half is forgotten.
    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            // The tables change places and keep what they were allocated: at the bound nothing is, any more.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of both tables, used or not: a place is a key, a value and a byte of control.
    pub fn bytes(&self) -> usize {
        // At most 7 of 8 places are filled, and their number is a power of two (the tables of `hashbrown`).
        let places = |map: &HashMap<K, V>| map.capacity().div_ceil(7).saturating_mul(8).next_power_of_two();
        let filled = |map: &HashMap<K, V>| if map.capacity() == 0 { 0 } else { places(map) };
        (filled(&self.young) + filled(&self.old)) * (size_of::<(K, V)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let mut recent = GenerationCache::new(10);
        recent.insert(0u32, 'a');
        for n in 1..1000 {
            assert_eq!(recent.get(&0), Some('a'));
            recent.insert(n, 'b');
            assert!(recent.len() <= 10, "{} at {n}", recent.len());
        }
        assert_eq!(recent.get(&1), None);
        assert_eq!(recent.get(&999), Some('b'));
    }

    /// As the memory of verified tokens: a million strangers leave it as large as ten thousand did.
    #[test]
    fn a_million_keys_take_no_more_memory_than_the_bound() {
        let mut recent = GenerationCache::new(8_192);
        let key = |n: u64| {
            let mut key = [0u8; 32];
            key[..8].copy_from_slice(&n.to_be_bytes());
            key
        };
        let value = [7u64; 5];
        for n in 0..20_000 {
            recent.insert(key(n), value);
        }
        let full = recent.bytes();
        assert!(full > 0 && full <= 4 * 8_192 * (32 + 40 + 1), "{full} bytes for 8,192 entries");
        for n in 20_000..1_020_000 {
            recent.insert(key(n), value);
            if n % 3 == 0 {
                recent.get(&key(n - 5_000));
            }
            assert!(recent.len() <= 8_192 && recent.bytes() <= full, "{} bytes at {n}", recent.bytes());
        }
        assert_eq!(recent.get(&key(1_019_999)), Some(value));
    }
}
