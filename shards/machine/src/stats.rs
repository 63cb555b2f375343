//! Counters with one writer: plain `u64` fields on a shard, copied now and then to a board others may read.
//!
//! [`Histogram`] counts durations in fixed buckets in the same way.
//!
//! `counters!` declares a struct whose fields are counters and gauges, each with the sentence that becomes
//! its help text. Fields are named like the metric they become, without the prefix `murre_`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Meaning of a number over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows. Its metric gets the suffix `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Name, meaning and help of one number.
#[derive(Clone, Copy, Debug)]
pub struct Meaning {
    /// Field name.
    pub name: &'static str,
    pub kind: Kind,
    /// One sentence.
    pub help: &'static str,
}

/// A struct of counters.
pub trait Counters {
    /// Meanings of its numbers, in the order of `write_to`.
    const MEANINGS: &'static [Meaning];

    /// Copies every number to `board`, starting at `at`; returns where the next struct starts.
    fn write_to(&self, board: &Board, at: usize) -> usize;
}

/// Declares a struct of counters: `counters! { /// doc  pub struct Name { counter field: "help", gauge field:
/// "help" } }`.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident { $($kind:ident $field:ident : $help:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default)]
        pub struct $name { $(#[doc = $help] pub $field: u64),+ }

        impl $crate::stats::Counters for $name {
            const MEANINGS: &'static [$crate::stats::Meaning] = &[$($crate::stats::Meaning {
                name: stringify!($field),
                kind: $crate::counters!(@kind $kind),
                help: $help,
            }),+];

            fn write_to(&self, board: &$crate::stats::Board, at: usize) -> usize {
                let mut next = at;
                $( board.set(next, self.$field); next += 1; )+
                next
            }
        }
    };
    (@kind counter) => { $crate::stats::Kind::Counter };
    (@kind gauge) => { $crate::stats::Kind::Gauge };
}

/// Buckets of a [`Histogram`], with the one for everything longer than the longest bound.
pub const BUCKETS: usize = 25;

/// The shortest bound is 2 to this power in microseconds: 128 us.
const FIRST_BOUND_POWER: u32 = 7;

/// Upper bound of bucket `at` in microseconds, inclusive. Each is twice the one before, up to 18 minutes; the last
/// bucket has none.
pub const fn bound_us(at: usize) -> Option<u64> {
    if at + 1 < BUCKETS { Some(1 << (at as u32 + FIRST_BOUND_POWER)) } else { None }
}

/// Durations counted in buckets. One writer: its shard. 208 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// Durations in each bucket, without those in the buckets before it.
    pub counts: [u64; BUCKETS],
    /// Sum of all durations in microseconds; wraps after 584,942 years.
    pub sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], sum_us: 0 }
    }
}

impl Histogram {
    /// Counts one duration in microseconds: two additions, no branch but the bound.
    pub fn record(&mut self, us: u64) {
        let bits = u64::BITS - us.saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(FIRST_BOUND_POWER) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += 1;
        self.sum_us = self.sum_us.wrapping_add(us);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }
}

/// Name, label and help of one histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistogramMeaning {
    /// The metric, without the prefix `murre_`; its unit is seconds.
    pub name: &'static str,
    /// The label that tells it from others of the same name.
    pub label: Option<(&'static str, &'static str)>,
    /// One sentence.
    pub help: &'static str,
}

/// One histogram on a board.
struct HistogramPlace {
    meaning: HistogramMeaning,
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// Numbers of one shard as others may see them: written by the shard about once a second, read by the admin page.
pub struct Board {
    meanings: Vec<Meaning>,
    values: Vec<AtomicU64>,
    histograms: Vec<HistogramPlace>,
}

impl Board {
    /// A board for these structs of counters, in this order.
    pub fn new(parts: &[&'static [Meaning]]) -> Board {
        let meanings: Vec<Meaning> = parts.concat();
        let values = meanings.iter().map(|_| AtomicU64::new(0)).collect();
        Board { meanings, values, histograms: Vec::new() }
    }

    /// The same board with these histograms, in this order.
    pub fn with_histograms(mut self, parts: &[&'static [HistogramMeaning]]) -> Board {
        let place = |meaning: &HistogramMeaning| HistogramPlace {
            meaning: *meaning,
            counts: Default::default(),
            sum_us: AtomicU64::new(0),
        };
        self.histograms = parts.iter().flat_map(|part| part.iter().map(place)).collect();
        self
    }

    /// Sets histogram `at`; a place behind the end is ignored.
    pub fn set_histogram(&self, at: usize, histogram: &Histogram) {
        let Some(place) = self.histograms.get(at) else { return };
        for (place, count) in place.counts.iter().zip(histogram.counts) {
            place.store(count, Ordering::Relaxed);
        }
        place.sum_us.store(histogram.sum_us, Ordering::Relaxed);
    }

    /// Every histogram with its meaning.
    pub fn histograms(&self) -> impl Iterator<Item = (HistogramMeaning, Histogram)> + '_ {
        self.histograms.iter().map(|place| {
            let counts = place.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            (place.meaning, Histogram { counts, sum_us: place.sum_us.load(Ordering::Relaxed) })
        })
    }

    /// Sets number `at`; a place behind the end is ignored.
    pub fn set(&self, at: usize, value: u64) {
        if let Some(place) = self.values.get(at) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Every number with its meaning.
    pub fn read(&self) -> impl Iterator<Item = (Meaning, u64)> + '_ {
        self.meanings.iter().copied().zip(self.values.iter().map(|v| v.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Two numbers.
        pub struct Pair { counter seen: "How many were seen.", gauge open: "How many are open." }
    }

    #[test]
    fn a_board_shows_what_was_written_to_it() {
        let board = Board::new(&[Pair::MEANINGS, Pair::MEANINGS]);
        let next = Pair { seen: 3, open: 1 }.write_to(&board, 0);
        Pair { seen: 5, open: 2 }.write_to(&board, next);
        let read: Vec<_> = board.read().map(|(m, v)| (m.name, m.kind, v)).collect();
        assert_eq!(read[0], ("seen", Kind::Counter, 3));
        assert_eq!(read[3], ("open", Kind::Gauge, 2));
    }

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let bounds: Vec<u64> = (0..BUCKETS).map_while(bound_us).collect();
        assert_eq!((bounds.len(), bounds[0], bounds[1], bounds[23]), (BUCKETS - 1, 128, 256, 1_073_741_824));
        for (at, bound) in bounds.iter().enumerate() {
            let mut histogram = Histogram::default();
            histogram.record(*bound);
            histogram.record(bound + 1);
            assert_eq!((histogram.counts[at], histogram.counts[at + 1]), (1, 1), "{bound}");
        }
        let mut histogram = Histogram::default();
        [0, 1, u64::MAX].into_iter().for_each(|us| histogram.record(us));
        assert_eq!((histogram.counts[0], histogram.counts[BUCKETS - 1]), (2, 1));
    }

    #[test]
    fn a_board_shows_its_histograms() {
        const MEANINGS: &[HistogramMeaning] =
            &[HistogramMeaning { name: "took_seconds", label: None, help: "Time it took." }];
        let board = Board::new(&[]).with_histograms(&[MEANINGS, MEANINGS]);
        let mut histogram = Histogram::default();
        histogram.record(300);
        board.set_histogram(1, &histogram);
        board.set_histogram(2, &histogram);
        let shown: Vec<Histogram> = board.histograms().map(|(_, shown)| shown).collect();
        assert_eq!(shown, [Histogram::default(), histogram.clone()]);
        let mut sum = histogram.clone();
        sum.add(&histogram);
        assert_eq!((sum.counts[2], sum.sum_us), (2, 600));
    }
}
