//! POSTs at storage per user: while there is one, no direct overtakes it.

use std::collections::BTreeMap;

use crate::ids::Uaid;

/// The writes of one shard.
#[derive(Default)]
pub(in crate::shard) struct Writes {
    users: BTreeMap<Uaid, u32>,
}

impl Writes {
    /// A write of this user goes to storage.
    pub fn begin(&mut self, uaid: Uaid) {
        *self.users.entry(uaid).or_insert(0) += 1;
    }

    /// Storage has answered a write of this user.
    pub fn end(&mut self, uaid: Uaid) {
        // Invariant: an answer is to a write that has begun.
        let count = self.users.get_mut(&uaid).expect("a write that ends has begun");
        *count -= 1;
        if *count == 0 {
            self.users.remove(&uaid);
        }
    }

    /// Returns true if a write of this user is at storage.
    pub fn in_flight(&self, uaid: Uaid) -> bool {
        self.users.contains_key(&uaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_a_user_are_counted() {
        let (mut writes, a, b) = (Writes::default(), Uaid([1; 16]), Uaid([2; 16]));
        writes.begin(a);
        writes.begin(a);
        writes.end(a);
        assert!(writes.in_flight(a) && !writes.in_flight(b));
        writes.end(a);
        assert!(!writes.in_flight(a) && writes.users.is_empty());
    }
}
