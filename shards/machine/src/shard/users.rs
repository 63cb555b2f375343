//! Users of this shard by their UAID: the index names sessions and pending hellos, which have the UAIDs.

use crate::ids::Uaid;

use super::components::user_index::Resident;
use super::composer::ShardMachine;
use super::slab::SlabKey;

impl ShardMachine {
    /// Returns the present session at an index that a table of this machine names.
    pub(super) fn session_ref(&self, index: u32) -> SlabKey {
        // Invariant: conns and users name sessions only while they exist; `end_session` removes all three together.
        self.sessions.at(index).map(|(at, _)| at).expect("tables name live sessions")
    }

    /// Returns the resident of a user: an identified session or a hello under way.
    pub(super) fn resident(&self, uaid: Uaid) -> Option<Resident> {
        let hash = self.config.placement.hash(uaid);
        self.users.find(hash, |resident| self.uaid_of(resident) == Some(uaid))
    }

    /// Returns the identified session of a user.
    pub(super) fn session_of(&self, uaid: Uaid) -> Option<SlabKey> {
        match self.resident(uaid) {
            Some(Resident::Session(index)) => Some(self.session_ref(index)),
            Some(Resident::Hello(_)) | None => None,
        }
    }

    fn uaid_of(&self, resident: Resident) -> Option<Uaid> {
        match resident {
            Resident::Session(index) => self.sessions.at(index).map(|(_, session)| session.uaid),
            Resident::Hello(index) => self.pending_hellos.uaid_at(index),
        }
    }

    pub(super) fn add_resident(&mut self, uaid: Uaid, resident: Resident) {
        assert!(self.resident(uaid).is_none(), "one resident per UAID");
        let (hash, mut users) = (self.config.placement.hash(uaid), std::mem::take(&mut self.users));
        users.insert(hash, resident, |other| self.hash_of(other));
        self.users = users;
    }

    pub(super) fn remove_resident(&mut self, uaid: Uaid, resident: Resident) {
        let (hash, mut users) = (self.config.placement.hash(uaid), std::mem::take(&mut self.users));
        let was_there = users.remove(hash, resident, |other| self.hash_of(other));
        self.users = users;
        assert!(was_there, "a resident is in the index until it is removed");
    }

    fn hash_of(&self, resident: Resident) -> u64 {
        // Invariant: the index names live entries only.
        self.config.placement.hash(self.uaid_of(resident).expect("the index of users names live entries"))
    }
}
