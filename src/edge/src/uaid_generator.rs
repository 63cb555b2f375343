//! Fresh UAIDs: random v4 UUIDs, drawn until one falls in the slice of this shard (ARCHITECTURE.md 8.1).

use machine::ids::{Chid, ShardId, Uaid};
use machine::placement::Placement;

use protocol::webpush::entropy::Pool;

/// Generator of UAIDs. With N shards a UAID takes N draws on average.
pub struct UaidGenerator {
    pool: Pool,
    placement: Placement,
    shard: ShardId,
}

impl UaidGenerator {
    pub fn new(placement: Placement, shard: ShardId) -> UaidGenerator {
        UaidGenerator { pool: Pool::default(), placement, shard }
    }

    /// Returns the name of a new channel; `None` as below.
    pub fn draw_channel(&mut self) -> Option<Chid> {
        Some(Chid(uuid::Builder::from_random_bytes(self.pool.draw()?).into_uuid().into_bytes()))
    }

    /// Returns a UAID of this shard; `None` when the kernel gives no random bytes.
    pub fn draw(&mut self) -> Option<Uaid> {
        loop {
            let uaid = Uaid(uuid::Builder::from_random_bytes(self.pool.draw()?).into_uuid().into_bytes());
            if self.placement.owner(uaid) == self.shard {
                return Some(uaid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uaids_are_distinct_version_4_and_of_this_shard() {
        let placement = Placement::new([3; 16], 5);
        let mut fresh = UaidGenerator::new(placement, ShardId(2));
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
