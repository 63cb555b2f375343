//! Memory of windows for messages that storage has: bodies of rows, and the pages that are on their way.

use crate::limits;
use crate::limits::SMALL_HOLDER_BYTES_MAX;

/// The account of one shard.
#[derive(Default)]
pub(in crate::shard) struct RowMemory {
    /// Bytes of the bodies that windows keep of rows. Each body in a window counts here or in the ledger's room.
    bytes: u64,
    /// Pages that storage was asked for and has not answered: room is kept for each.
    pages: u32,
}

impl RowMemory {
    /// A window keeps `bytes` more.
    pub fn add(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
    }

    /// A window keeps `bytes` less.
    pub fn remove(&mut self, bytes: u32) {
        assert!(self.bytes >= u64::from(bytes), "bytes are removed once");
        self.bytes -= u64::from(bytes);
    }

    /// A page is asked for.
    pub fn begin_page(&mut self) {
        self.pages += 1;
    }

    /// A page has come, or will not.
    pub fn end_page(&mut self) {
        assert!(self.pages > 0, "a page is answered once");
        self.pages -= 1;
    }

    /// Bytes that all windows keep.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if a window that keeps `kept` bytes may not take more (`limits::ROW_BYTES_MAX`).
    pub fn is_full(&self, kept: u32) -> bool {
        self.bytes > bytes_max(kept)
    }

    /// As [`RowMemory::is_full`], with the pages that are on their way and one more.
    pub fn pages_are_full(&self, kept: u32) -> bool {
        let coming = u64::from(self.pages + 1) * u64::from(limits::READ_AHEAD_BYTES);
        self.bytes + coming > bytes_max(kept)
    }
}

/// The second half is for windows that keep little.
fn bytes_max(kept: u32) -> u64 {
    if kept as usize <= SMALL_HOLDER_BYTES_MAX { limits::ROW_BYTES_MAX } else { limits::ROW_BYTES_MAX / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_is_for_windows_that_keep_little() {
        let mut memory = RowMemory::default();
        let half = (limits::ROW_BYTES_MAX / 2) as u32;
        memory.add(half);
        assert!(!memory.is_full(u32::MAX) && !memory.is_full(0));
        memory.add(1);
        assert!(memory.is_full(u32::MAX) && !memory.is_full(0));
        memory.add(half);
        assert!(memory.is_full(0));
        memory.remove(half);
        assert_eq!((memory.bytes(), memory.is_full(SMALL_HOLDER_BYTES_MAX as u32)), (u64::from(half) + 1, false));
    }

    #[test]
    fn room_is_kept_for_each_page_on_its_way() {
        let mut memory = RowMemory::default();
        let pages = limits::ROW_BYTES_MAX / u64::from(limits::READ_AHEAD_BYTES);
        for _ in 0..pages {
            assert!(!memory.pages_are_full(0));
            memory.begin_page();
        }
        assert!(memory.pages_are_full(0) && !memory.is_full(0));
        memory.end_page();
        assert!(!memory.pages_are_full(0));
    }
}
