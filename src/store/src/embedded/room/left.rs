//! The room that is left until messages are refused: below `store.max_bytes`, and on the disk.

use std::sync::atomic::Ordering;

use machine::share;

use super::Space;

/// Most that journals take: 256 MiB sealed, and the one that is written.
const JOURNALS_BYTES_MAX: u64 = 320 << 20;
/// Part of `store.max_bytes` that is set aside for them at most: all of it from 1 GiB on.
const JOURNALS_PART: u64 = 3;

impl Space {
    /// Returns the room that is left, of what is nearer to its end.
    pub(in crate::embedded) fn left(&self) -> share::Room {
        let on_disk = self.left_on_disk();
        let of = |left: u64, whole: u64| share::Room { left, whole };
        let on_disk = of(on_disk, self.used().saturating_add(on_disk));
        if self.bytes_max == u64::MAX {
            return on_disk;
        }
        let below_bound = of(self.bytes_max.saturating_sub(self.used_of_bound()), self.bytes_max);
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let is_nearer = product(below_bound.left, on_disk.whole) < product(on_disk.left, below_bound.whole);
        if is_nearer { below_bound } else { on_disk }
    }

    /// Bytes that count for `store.max_bytes`: tables, those that write buffers will be, and journals.
    ///
    /// Journals come and go by hundreds of megabytes, so their room is set aside: they never push a store that grows
    /// slowly over its bound.
    pub(super) fn used_of_bound(&self) -> u64 {
        let aside = JOURNALS_BYTES_MAX.min(self.bytes_max / JOURNALS_PART);
        let more = aside.saturating_sub(self.journals.load(Ordering::Relaxed));
        let since = self.used_since.load(Ordering::Relaxed);
        [self.unflushed.load(Ordering::Relaxed), since, more].into_iter().fold(self.used(), u64::saturating_add)
    }

    /// Bytes of journals, and of everything that is or will be in tables.
    #[cfg(test)]
    pub(in crate::embedded) fn journals_and_tables(&self) -> (u64, u64) {
        let (journals, unflushed) = (&self.journals, &self.unflushed);
        let journals = journals.load(Ordering::Relaxed);
        (journals, self.used() - journals + unflushed.load(Ordering::Relaxed))
    }

    /// Bytes that the file system has left for more than what the store needs for itself.
    fn left_on_disk(&self) -> u64 {
        let since = self.free_since.load(Ordering::Relaxed);
        let needed = 2 * (self.buffers() + since) + self.largest_compaction() + self.reserve();
        self.free().saturating_sub(since).saturating_sub(needed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::embedded::Options;

    const MIB: u64 = 1 << 20;

    #[test]
    fn room_is_what_is_left_of_the_nearer_bound() {
        let space = Space::new(Path::new("/"), &Options { bytes_max: 1 << 30, ..Options::default() });
        space.total.store(1 << 40, Ordering::Relaxed);
        let at = |used: u64, journals: u64, free: u64| {
            space.used.store(used * MIB, Ordering::Relaxed);
            space.journals.store(journals * MIB, Ordering::Relaxed);
            space.free.store(free * MIB, Ordering::Relaxed);
            (space.left().left / MIB, space.left().is_scarce())
        };
        assert_eq!(at(64, 64, 1 << 20), (704, false), "an empty store has room for its journals");
        assert_eq!(at(320, 320, 1 << 20), (704, false), "and they take none of the other");
        assert_eq!(at(820, 320, 1 << 20), (204, true));
        assert_eq!(at(820 - 256, 64, 1 << 20), (204, true));
        assert_eq!(at(256, 256, 300), (44, true), "256 MiB are the reserve of the disk");
        assert_eq!(at(256, 256, 330), (74, false));
        assert_eq!(at(2_000, 256, 1 << 20), (0, true));
        space.unflushed.store(32 * MIB, Ordering::Relaxed);
        assert_eq!(at(800, 320, 1 << 20), (192, true), "what journals hold for tables takes room of its own");
        assert_eq!(at(800 - 256, 64, 1 << 20), (192, true));
    }

    #[test]
    fn a_store_without_a_bound_has_the_disk() {
        let space = Space::new(Path::new("/"), &Options::default());
        space.total.store(1 << 40, Ordering::Relaxed);
        space.used.store(1_000 * MIB, Ordering::Relaxed);
        let at = |free: u64| {
            space.free.store(free * MIB, Ordering::Relaxed);
            space.left().is_scarce()
        };
        assert!(at(500) && !at(510), "a fifth of 1,250 MiB beside the reserve");
    }
}
