//! A bounded map that forgets what was used longest ago.
//!
//! Ordered maps only, so that the machine stays deterministic; every call costs the logarithm of the bound. Lives with
//! its owner: in the machine or the edge of one shard.

use std::collections::BTreeMap;

/// At most `limit` entries.
pub struct Lru<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    /// Keys by the number of their last use. Same length as `entries`.
    order: BTreeMap<u64, K>,
    uses: u64,
    limit: usize,
}

struct Entry<V> {
    used: u64,
    value: V,
}

impl<K: Ord + Copy, V> Lru<K, V> {
    /// Holds at most `limit` entries, at least one.
    pub fn new(limit: usize) -> Lru<K, V> {
        Lru { entries: BTreeMap::new(), order: BTreeMap::new(), uses: 0, limit: limit.max(1) }
    }

    /// The value of `key`; this is a use of it.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        self.order.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.order.insert(self.uses, *key);
        Some(&mut entry.value)
    }

    /// The value of `key` as it stands; no use of it.
    #[cfg(test)]
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Sets the value of `key`, which is a use of it. At the bound the entry that was used longest ago goes and is
    /// returned.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        if let Some(place) = self.get(&key) {
            *place = value;
            return None;
        }
        let gone = if self.entries.len() >= self.limit { self.pop_oldest() } else { None };
        self.uses += 1;
        self.order.insert(self.uses, key);
        self.entries.insert(key, Entry { used: self.uses, value });
        gone
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.used);
        Some(entry.value)
    }

    /// The entry that was used longest ago.
    pub fn oldest(&self) -> Option<(&K, &V)> {
        let (_, key) = self.order.first_key_value()?;
        Some((key, &self.entries.get(key)?.value))
    }

    /// Forgets the entry that was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (_, key) = self.order.pop_first()?;
        let entry = self.entries.remove(&key)?;
        Some((key, entry.value))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut lru = Lru::new(2);
        assert_eq!(lru.insert('a', 1), None);
        assert_eq!(lru.insert('b', 2), None);
        assert_eq!(lru.get(&'a').copied(), Some(1));
        assert_eq!(lru.insert('c', 3), Some(('b', 2)));
        assert_eq!(lru.peek(&'a'), Some(&1));
        assert_eq!(lru.oldest(), Some((&'a', &1)), "a peek is no use");
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list(steps in prop::collection::vec((0u8..4, 0u8..6), 0..200)) {
            let mut lru = Lru::new(4);
            // Used longest ago first.
            let mut list: Vec<(u8, usize)> = Vec::new();
            for (n, (kind, key)) in steps.into_iter().enumerate() {
                let at = list.iter().position(|(k, _)| *k == key);
                match kind {
                    0 => {
                        let gone = lru.insert(key, n);
                        let expected = match at {
                            Some(at) => { list.remove(at); None }
                            None if list.len() == 4 => Some(list.remove(0)),
                            None => None,
                        };
                        list.push((key, n));
                        prop_assert_eq!(gone, expected);
                    }
                    1 => {
                        let found = lru.get(&key).copied();
                        let expected = at.map(|at| { let entry = list.remove(at); list.push(entry); entry.1 });
                        prop_assert_eq!(found, expected);
                    }
                    2 => prop_assert_eq!(lru.remove(&key), at.map(|at| list.remove(at).1)),
                    _ => {
                        let expected = if list.is_empty() { None } else { Some(list.remove(0)) };
                        prop_assert_eq!(lru.pop_oldest(), expected);
                    }
                }
                prop_assert_eq!(lru.len(), list.len());
                prop_assert_eq!(lru.oldest().map(|(k, v)| (*k, *v)), list.first().copied());
                prop_assert_eq!(lru.order.len(), lru.entries.len());
            }
        }
    }
}
