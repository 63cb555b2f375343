//! Fresh UAIDs: random v4 UUIDs, drawn until one falls in the slice of this shard (DESIGN.md 5).

use ring::rand::{SecureRandom, SystemRandom};
use shards::ids::{ShardId, Uaid};
use shards::place::Placement;

/// Draws UAIDs. Asks the kernel for many bytes at a time: with N shards a UAID takes N draws on average.
pub struct FreshUaids {
    random: SystemRandom,
    pool: Box<[u8; POOL_BYTES]>,
    /// Bytes of the pool that were not given out; they are the last ones. `0 <= left <= POOL_BYTES`.
    left: usize,
    placement: Placement,
    shard: ShardId,
}

const POOL_BYTES: usize = 1024;

impl FreshUaids {
    /// For `shard`.
    pub fn new(placement: Placement, shard: ShardId) -> FreshUaids {
        FreshUaids { random: SystemRandom::new(), pool: Box::new([0; POOL_BYTES]), left: 0, placement, shard }
    }

    /// A UAID of this shard; `None` when the kernel gives no random bytes.
    pub fn draw(&mut self) -> Option<Uaid> {
        loop {
            let bytes = self.bytes()?;
            let uaid = Uaid(uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes());
            if self.placement.owner(uaid) == self.shard {
                return Some(uaid);
            }
        }
    }

    fn bytes(&mut self) -> Option<[u8; 16]> {
        if self.left < 16 {
            self.random.fill(&mut self.pool[..]).ok()?;
            self.left = POOL_BYTES;
        }
        let start = POOL_BYTES - self.left;
        self.left -= 16;
        let place = self.pool.get_mut(start..start + 16)?;
        let bytes: [u8; 16] = (&*place).try_into().ok()?;
        // A UAID is a bearer secret: no copy stays behind.
        place.fill(0);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uaids_are_distinct_version_4_and_of_this_shard() {
        let placement = Placement::new([3; 16], 5);
        let mut fresh = FreshUaids::new(placement, ShardId(2));
        let drawn: HashSet<[u8; 16]> = (0..200)
            .map(|_| {
                let uaid = fresh.draw().unwrap();
                assert_eq!(placement.owner(uaid), ShardId(2));
                assert_eq!((uaid.0[6] >> 4, uaid.0[8] >> 6), (4, 2));
                uaid.0
            })
            .collect();
        assert_eq!(drawn.len(), 200);
    }
}
