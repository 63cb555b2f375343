//! Deadlines of sessions with work under way, the earliest first.
//!
//! Almost all deadlines are the same span from now, so they come in order and stand in a line. The few that are earlier
//! than the last go to a heap. Most belong to messages that were acked long before: their session tells them apart
//! (`Active::is_armed_at`), and they are dropped as soon as they are first in line, so that no shard is woken for them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::time::Instant;

use super::components::queue::give_back;
use super::slab::SlabKey;

/// Deadlines of one shard. Owner shard only. At most twice as many as there are active sessions, and `STALE_MAX`.
#[derive(Default)]
pub(super) struct Deadlines {
    line: VecDeque<(Instant, SlabKey)>,
    heap: BinaryHeap<Reverse<(Instant, SlabKey)>>,
}

impl Deadlines {
    /// Returns the earliest deadline.
    pub fn first(&self) -> Option<(Instant, SlabKey)> {
        let in_heap = self.heap.peek().map(|Reverse(first)| *first);
        match (self.line.front().copied(), in_heap) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Removes the earliest deadline.
    pub fn pop(&mut self) {
        if self.first() == self.line.front().copied() {
            self.line.pop_front();
        } else {
            self.heap.pop();
        }
    }

    /// Adds a deadline.
    pub fn push(&mut self, due: Instant, at: SlabKey) {
        if self.line.back().is_none_or(|(last, _)| *last <= due) {
            self.line.push_back((due, at));
        } else {
            self.heap.push(Reverse((due, at)));
        }
    }

    /// Drops stale deadlines in front, and all stale ones if they are the majority.
    pub fn forget_stale(&mut self, active_sessions: usize, stands: impl Fn(Instant, SlabKey) -> bool) {
        while self.first().is_some_and(|(due, at)| !stands(due, at)) {
            self.pop();
        }
        if self.len() > 2 * active_sessions + STALE_MAX {
            self.line.retain(|(due, at)| stands(*due, *at));
            self.heap.retain(|Reverse((due, at))| stands(*due, *at));
        }
        give_back(&mut self.line);
        if self.heap.capacity() > HEAP_KEPT && self.heap.len() < self.heap.capacity() / 4 {
            self.heap.shrink_to(HEAP_KEPT.max(self.heap.len() * 2));
        }
    }

    /// Returns the number of deadlines, stale ones included.
    pub fn len(&self) -> usize {
        self.line.len() + self.heap.len()
    }
}

/// Maximum number of stale deadlines behind one session that does not ack, before they are swept out: 1.5 MB.
const STALE_MAX: usize = 65_536;
/// Entries of the heap that are always kept.
const HEAP_KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(index: u32) -> SlabKey {
        SlabKey { index, generation: 0 }
    }

    proptest! {
        #[test]
        fn come_in_their_order(dues in prop::collection::vec(0u64..50, 0..200)) {
            let mut deadlines = Deadlines::default();
            for (n, due) in dues.iter().enumerate() {
                deadlines.push(Instant(*due), at(n as u32));
            }
            prop_assert_eq!(deadlines.len(), dues.len());
            let mut came = Vec::new();
            while let Some(first) = deadlines.first() {
                deadlines.pop();
                came.push(first);
            }
            let mut expected: Vec<_> = dues.iter().enumerate().map(|(n, due)| (Instant(*due), at(n as u32))).collect();
            expected.sort_unstable();
            prop_assert_eq!(came, expected);
        }
    }

    #[test]
    fn what_stands_for_nothing_is_dropped_in_front_and_swept_when_it_is_most() {
        let mut deadlines = Deadlines::default();
        deadlines.push(Instant(9), at(9));
        deadlines.push(Instant(1), at(1));
        deadlines.push(Instant(2), at(2));
        deadlines.forget_stale(3, |_, of| of != at(1));
        assert_eq!((deadlines.first(), deadlines.len()), (Some((Instant(2), at(2))), 2));
        for n in 0..STALE_MAX as u64 + 10 {
            deadlines.push(Instant(10 + n), at(3));
        }
        deadlines.forget_stale(2, |_, of| of != at(3));
        assert_eq!(deadlines.len(), 2, "one that stands in front does not keep the others");
    }
}
