//! Users that this shard has dropped because they had no channel. Their user agents may come back with the UAID that
//! they were given: they keep it, and count as no new users.
//!
//! The memory of a shard, not of the store: a restart or another node forgets them, and then they get fresh UAIDs. A
//! register ends the entry, so that a user which is removed for another reason starts over. Owner shard only.

use crate::ids::Uaid;
use crate::limits;
use crate::lru::Lru;

/// These users of one shard.
pub(in crate::shard) struct DroppedUsers {
    uaids: Lru<Uaid, ()>,
}

impl DroppedUsers {
    pub fn new() -> DroppedUsers {
        DroppedUsers { uaids: Lru::new(limits::DROPPED_USERS_MAX) }
    }

    /// Notes a user that was dropped.
    pub fn insert(&mut self, uaid: Uaid) {
        self.uaids.insert(uaid, ());
    }

    /// Returns true if this user was dropped, and has not registered a channel since.
    pub fn contains(&mut self, uaid: Uaid) -> bool {
        self.uaids.get(&uaid).is_some()
    }

    /// Forgets a user: storage has it again, or will have it.
    pub fn remove(&mut self, uaid: Uaid) {
        self.uaids.remove(&uaid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_kept_until_it_registers_or_too_many_come_behind_it() {
        let name = |n: usize| Uaid((n as u128).to_be_bytes());
        let mut dropped = DroppedUsers::new();
        (0..limits::DROPPED_USERS_MAX).for_each(|n| dropped.insert(name(n)));
        assert!(dropped.contains(name(0)) && dropped.contains(name(1)));
        dropped.remove(name(1));
        assert!(!dropped.contains(name(1)));
        dropped.insert(name(1));
        dropped.insert(name(limits::DROPPED_USERS_MAX));
        assert!(dropped.contains(name(0)) && !dropped.contains(name(2)));
    }
}
