//! Placement: the shard that owns a UAID (ARCHITECTURE.md 8.1). Pure, versioned by its key, tested for balance.
//!
//! `owner = (keyed_hash(uaid) * shards) >> 64`: each shard owns one contiguous slice of the hash space.
//! The key lives in the data directory and is secret: strangers cannot aim at one shard.

use std::hash::Hasher;
use std::num::NonZeroU64;

use siphasher::sip::SipHasher13;

use crate::ids::{AddressDigest, CallerAddress, Chid, ShardId, Uaid};

/// The secret key of the placement hash, and the number of slices. Same on every shard of a process.
#[derive(Clone, Copy)]
pub struct Placement {
    key: (u64, u64),
    shard_count: u16,
}

impl Placement {
    /// `shard_count` slices under the 16-byte key of the data directory.
    pub fn new(key: [u8; 16], shard_count: u16) -> Placement {
        assert!(shard_count > 0, "a process has at least one shard");
        let (low, high) = key.split_at(8);
        let word = |half: &[u8]| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(half);
            u64::from_le_bytes(bytes)
        };
        Placement { key: (word(low), word(high)), shard_count }
    }

    /// The shard that decides everything about `uaid`.
    pub fn owner(&self, uaid: Uaid) -> ShardId {
        let slice = (u128::from(self.hash(uaid)) * u128::from(self.shard_count)) >> 64;
        ShardId(slice as u16)
    }

    /// The keyed hash of a UAID; also the key of the index of sessions.
    pub fn hash(&self, uaid: Uaid) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write(&uaid.0);
        hasher.finish()
    }

    /// The 4-byte keyed fingerprint under which a session remembers a channel (ARCHITECTURE.md 8.10).
    pub fn fingerprint(&self, chid: Chid) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.key.1, self.key.0);
        hasher.write(&chid.0);
        hasher.finish() as u32
    }

    /// A keyed name of one subscription, for tables in which a collision harms only its own user for a minute.
    pub fn subscription(&self, uaid: Uaid, chid: Chid) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write(&uaid.0);
        hasher.write(&chid.0);
        hasher.finish()
    }

    /// The keyed digest under which a store remembers the address that made a user.
    pub fn address(&self, address: CallerAddress) -> AddressDigest {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write(b"address that made a user");
        hasher.write(&address.0.get().to_be_bytes());
        AddressDigest(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
    }

    pub fn shard_count(&self) -> u16 {
        self.shard_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_balanced_and_within_range() {
        for shard_count in [1u16, 2, 3, 4, 7, 64] {
            let placement = Placement::new([7; 16], shard_count);
            let mut counts = vec![0u32; usize::from(shard_count)];
            for n in 0..64_000u128 {
                let owner = placement.owner(Uaid((n * 0x9e37_79b9).to_be_bytes()));
                counts[usize::from(owner.0)] += 1;
            }
            let mean = 64_000 / u32::from(shard_count);
            for count in counts {
                assert!(count > mean * 4 / 5, "a slice holds {count} of a mean of {mean}");
                assert!(count < mean * 6 / 5 + 1, "a slice holds {count} of a mean of {mean}");
            }
        }
    }

    #[test]
    fn another_key_places_differently() {
        let (a, b) = (Placement::new([1; 16], 16), Placement::new([2; 16], 16));
        let moved = (0..1000u128).filter(|n| {
            let uaid = Uaid(n.to_be_bytes());
            a.owner(uaid) != b.owner(uaid)
        });
        assert!(moved.count() > 800);
    }
}
