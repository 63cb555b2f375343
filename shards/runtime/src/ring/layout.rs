//! Layout of the rings of a shard: their number, the size of their tables, and the part of a table that accepting may
//! fill.

use machine::limits::table_connections;

/// Layout of the rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaneConfig {
    /// Rings of this shard, the hub included.
    pub rings: u16,
    /// Direct descriptors of each.
    pub table: u32,
    /// Entries of a submission queue.
    pub sq: u32,
    /// Entries of a completion queue.
    pub cq: u32,
}

impl PlaneConfig {
    /// As many rings as `connections_max` and the reserves of the other ports ([`table_connections`]) need when no
    /// table may have more than `table_max` slots: 5 % spare for goodbyes, and every table is filled only up to
    /// [`accept_limit`] by accepting from listeners of this `backlog`.
    pub(crate) fn sized(connections_max: u32, table_max: u32, backlog: u16) -> PlaneConfig {
        let table_max = table_max.clamp(64, KERNEL_TABLE_MAX);
        let wanted = (u64::from(table_connections(connections_max)) * 105).div_ceil(100) + 64;
        let rings = wanted.div_ceil(u64::from(accept_limit(table_max, backlog)));
        assert!(rings <= u64::from(u16::MAX), "that many connections need more rings than a shard can have");
        let share = wanted.div_ceil(rings) as u32;
        // The least table of which accepting may fill that much.
        let (mut low, mut table) = (share, share.saturating_mul(2).saturating_add(64));
        while low < table {
            let middle = low + (table - low) / 2;
            if accept_limit(middle, backlog) >= share { table = middle } else { low = middle + 1 }
        }
        PlaneConfig { rings: rings as u16, table: table.min(table_max), sq: SUBMISSIONS, cq: COMPLETIONS }
    }

    /// Bits of a slot that are the direct descriptor.
    pub(crate) fn shift(&self) -> u32 {
        self.table.next_power_of_two().trailing_zeros()
    }
}

/// Entries of the queues of a ring.
const SUBMISSIONS: u32 = 1_024;
const COMPLETIONS: u32 = 8_192;

/// Memory of the kernel for the queues of one ring, in bytes: entries of 64 bytes in pages of their own, completions of
/// 16, an index of 4 for each submission, and a head.
pub const RING_BYTES: u64 =
    whole_pages(64 * SUBMISSIONS as u64) + whole_pages(16 * COMPLETIONS as u64 + 4 * SUBMISSIONS as u64 + 256);

const fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(4_096)
}

/// Returns the number of rings of one shard with `connections_max`, and the slots of each table, when the limit on
/// descriptors allows tables of `table_max` and its listeners have this `backlog`. For `murre doctor`, which
/// checks a host; on any thread.
///
/// # Panics
/// If that would be more rings than a shard can have: far beyond any host.
pub fn tables(connections_max: u32, table_max: u32, backlog: u16) -> (u16, u32) {
    let PlaneConfig { rings, table, .. } = PlaneConfig::sized(connections_max, table_max, backlog);
    (rings, table)
}

/// Connections of one table beyond which nothing is accepted into it: 95 %, and less for tables so small that
/// two full queues of `backlog` would fill the rest. The rest is for connections that other shards send. A table of a
/// host that allows few descriptors gives a part of itself at most: it is for connections, and its ring is one of many.
pub(crate) fn accept_limit(table: u32, backlog: u16) -> u32 {
    let burst = 2 * u32::from(backlog);
    let part = (table / 4).min(SMALL_PART).max(table / 8);
    table - (table / 20).max(burst.min(part)).max(1)
}

/// Slots of one table at most, under any descriptor limit.
const KERNEL_TABLE_MAX: u32 = 1 << 20;
/// Up to here a quarter of a table is left to bursts, beyond twice this an eighth.
const SMALL_PART: u32 = 2_048;

#[cfg(test)]
mod tests {
    use super::*;
    use machine::limits::{BACKLOG_DEFAULT, BACKLOG_MAX, BACKLOG_MIN};

    #[test]
    fn every_share_of_connections_fits_into_its_tables() {
        for table_max in [64, 100, 1_000, 20_000, 65_536, u32::MAX] {
            for connections in [1, 10, 100, 5_000, 19_000, 20_000, 1_000_000] {
                if connections / table_max > 10_000 {
                    continue;
                }
                for backlog in [BACKLOG_MIN, 1_024, BACKLOG_DEFAULT, BACKLOG_MAX] {
                    let config = PlaneConfig::sized(connections, table_max, backlog);
                    let limit = accept_limit(config.table, backlog);
                    let accepted = u64::from(config.rings) * u64::from(limit);
                    let placed = u64::from(table_connections(connections));
                    assert!(accepted >= placed * 105 / 100, "{connections} in {config:?}");
                    assert!(config.table <= table_max.min(KERNEL_TABLE_MAX));
                    assert!(u64::from(config.rings) << config.shift() <= 1 << 28, "slots have 28 bits");
                    assert!(limit <= config.table * 19 / 20 + 1, "{config:?}");
                }
            }
        }
        assert_eq!(PlaneConfig::sized(500_000, u32::MAX, BACKLOG_DEFAULT).rings, 1, "one table on a tuned host");
        assert_eq!(PlaneConfig::sized(500_000, 20_000, BACKLOG_DEFAULT).rings, 33);
        assert_eq!(accept_limit(1_000_000, BACKLOG_DEFAULT), 950_000);
    }

    #[test]
    fn a_tuned_table_has_room_for_two_full_backlogs() {
        for backlog in [BACKLOG_DEFAULT, BACKLOG_MAX] {
            let table = KERNEL_TABLE_MAX;
            assert!(table - accept_limit(table, backlog) >= u32::from(backlog).min(table / 16) * 2);
        }
        for backlog in [BACKLOG_MIN, BACKLOG_DEFAULT, BACKLOG_MAX] {
            let limits: Vec<u32> = (1..40_000).map(|table| accept_limit(table, backlog)).collect();
            assert!(limits.is_sorted(), "a larger table takes more");
        }
    }
}
