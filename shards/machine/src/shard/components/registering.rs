//! Users for whom a call of the registration API, or the removal of a refused device, is under way: one at a time, so
//! that what such work has read of the user still holds when it writes.

use std::collections::BTreeSet;

use crate::ids::Uaid;

/// These users of one shard. Bounded by the tickets of storage.
#[derive(Default)]
pub(in crate::shard) struct Registering {
    users: BTreeSet<Uaid>,
}

impl Registering {
    /// Begins work on this user. Returns false if other work is under way.
    pub fn begin(&mut self, uaid: Uaid) -> bool {
        self.users.insert(uaid)
    }

    /// Returns true if work on this user is under way.
    pub fn contains(&self, uaid: Uaid) -> bool {
        self.users.contains(&uaid)
    }

    /// Ends the work that has begun.
    pub fn end(&mut self, uaid: Uaid) {
        let had = self.users.remove(&uaid);
        assert!(had, "work that ends has begun");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_work_per_user() {
        let (mut registering, [one, two]) = (Registering::default(), [1, 2].map(|n| Uaid([n; 16])));
        assert!(registering.begin(one) && !registering.begin(one) && registering.begin(two));
        registering.end(one);
        assert!(registering.begin(one) && !registering.begin(two));
    }
}
