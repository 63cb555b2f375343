//! Counts of the last seconds, in ten parts of that time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// `K` counts over a span of time that ends now.
pub(super) struct RecentCounts<const K: usize> {
    part: Duration,
    parts: VecDeque<Part<K>>,
}

struct Part<const K: usize> {
    /// Times of its first and its last count.
    first: Instant,
    last: Instant,
    counts: [u32; K],
}

impl<const K: usize> RecentCounts<K> {
    pub fn over(span: Duration) -> RecentCounts<K> {
        RecentCounts { part: span / PARTS, parts: VecDeque::with_capacity(PARTS as usize + 2) }
    }

    /// Adds one to each of these counts that is true.
    pub fn add(&mut self, now: Instant, counts: [bool; K]) {
        self.forget(now);
        if self.parts.back().is_none_or(|part| now.saturating_duration_since(part.first) >= self.part) {
            self.parts.push_back(Part { first: now, last: now, counts: [0; K] });
        }
        if let Some(part) = self.parts.back_mut() {
            part.last = now;
            for (number, counts) in part.counts.iter_mut().zip(counts) {
                *number = number.saturating_add(u32::from(counts));
            }
        }
    }

    /// Returns the counts of the span.
    pub fn sums(&mut self, now: Instant) -> [u32; K] {
        self.forget(now);
        let mut sums = [0u32; K];
        for part in &self.parts {
            sums.iter_mut().zip(&part.counts).for_each(|(sum, number)| *sum = sum.saturating_add(*number));
        }
        sums
    }

    pub fn clear(&mut self) {
        self.parts.clear();
    }

    fn forget(&mut self, now: Instant) {
        let span = self.part * PARTS;
        while self.parts.front().is_some_and(|part| now.saturating_duration_since(part.last) >= span) {
            self.parts.pop_front();
        }
    }
}

/// Parts of the span. A count is forgotten with the last one of its part: never before its time, and at most a part
/// later.
const PARTS: u32 = 10;
