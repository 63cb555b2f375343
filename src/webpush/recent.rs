//! A bounded map of what was seen recently: two generations, the older dropped whole when the younger is full.
//!
//! Constant work per call and no list of uses; what is asked for again moves to the younger generation and stays.

use std::collections::HashMap;
use std::hash::Hash;

/// At most `limit` entries. Own shard only.
pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq + Copy, V: Copy> Recent<K, V> {
    /// Holds at most `limit` entries, at least two.
    pub fn new(limit: usize) -> Recent<K, V> {
        Recent { young: HashMap::new(), old: HashMap::new(), half: (limit / 2).max(1) }
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
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let mut recent = Recent::new(10);
        recent.insert(0u32, 'a');
        for n in 1..1000 {
            assert_eq!(recent.get(&0), Some('a'));
            recent.insert(n, 'b');
            assert!(recent.len() <= 10, "{} at {n}", recent.len());
        }
        assert_eq!(recent.get(&1), None);
        assert_eq!(recent.get(&999), Some('b'));
    }
}
