//! Histograms of durations since the process began, by name. The buckets never change, so a scraper can make quantiles
//! over any time and any number of nodes.
//!
//! Written by any thread, read by the control plane.

use std::sync::atomic::{AtomicU64, Ordering};

/// The upper bounds of the buckets but the last, in microseconds; inclusive. From the time of one replica near by to
/// the limit of the longest statement.
pub const BOUNDS_US: [u64; 12] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];
/// Number of buckets. The last one is for times above all bounds.
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// Histograms, one for each name.
pub struct LatencyHistograms {
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// Counts under one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistogramSnapshot {
    pub name: &'static str,
    /// Number of times in each bucket: one for each of [`BOUNDS_US`] without those below it, and one for the rest.
    pub counts: [u64; BUCKETS],
    /// Sum of all times, in microseconds.
    pub sum_us: u64,
}

impl LatencyHistograms {
    pub fn new(names: &[&'static str]) -> LatencyHistograms {
        let row = |name: &&'static str| Row { name, counts: Default::default(), sum_us: AtomicU64::new(0) };
        LatencyHistograms { rows: names.iter().map(row).collect() }
    }

    /// Counts a time under the name at `at`; an index behind the end is ignored.
    pub fn record(&self, at: usize, took_us: u64) {
        let Some(row) = self.rows.get(at) else { return };
        let bucket = BOUNDS_US.partition_point(|bound| *bound < took_us);
        row.counts[bucket].fetch_add(1, Ordering::Relaxed);
        row.sum_us.fetch_add(took_us, Ordering::Relaxed);
    }

    /// Every row, in the order of the names.
    pub fn read(&self) -> impl Iterator<Item = HistogramSnapshot> + '_ {
        self.rows.iter().map(|row| HistogramSnapshot {
            name: row.name,
            counts: row.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_us: row.sum_us.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_as_long_as_a_bound_is_in_its_bucket_and_what_took_longer_in_the_next() {
        let latencies = LatencyHistograms::new(&["read", "write"]);
        for took in [0, 250, 251, 5_000_000, 5_000_001, 9_000_000] {
            latencies.record(1, took);
        }
        latencies.record(2, 1);
        let read: Vec<HistogramSnapshot> = latencies.read().collect();
        assert_eq!((read[0].counts, read[0].sum_us), ([0; BUCKETS], 0));
        assert_eq!(
            read[1],
            HistogramSnapshot { name: "write", counts: [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2], sum_us: 19_000_502 }
        );
    }
}
