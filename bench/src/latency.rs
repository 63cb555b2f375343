//! Latencies: a histogram from 100 ns to an hour with three significant digits, and the same cut into seconds.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::Report;

/// A histogram of durations.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        // Invariant: the bounds are constants that the library accepts.
        Latency(Histogram::new_with_bounds(100, 3_600_000_000_000, 3).expect("the bounds are in order"))
    }
}

impl Latency {
    /// Counts one; a duration longer than an hour counts as an hour.
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value in microseconds that this share (0 to 1) does not exceed.
    pub fn us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Counts all of `other` too.
    pub fn add(&mut self, other: &Latency) {
        // Invariant: both histograms have the same bounds, the only reason to refuse.
        self.0.add(&other.0).expect("the bounds are the same");
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The histogram, in nanoseconds.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    /// Its quantiles as figures that begin with `what`, and the whole as a distribution.
    pub fn show(&self, report: &mut Report, what: &str) {
        report.latency(what, &self.0);
    }
}

/// One histogram for each second, 1,000 at most: a later value counts in the last.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<Latency>);

const SECONDS_MAX: usize = 1_000;

impl Series {
    /// Counts one that was due `after` the beginning.
    pub fn record(&mut self, after: Duration, took: Duration) {
        let second = (after.as_secs() as usize).min(SECONDS_MAX - 1);
        if self.0.len() <= second {
            self.0.resize(second + 1, Latency::default());
        }
        self.0[second].record(took);
    }

    /// Adds two curves that begin with `what`: p50 and p99 of each second in which something was due.
    pub fn show(&self, report: &mut Report, what: &str) {
        for (label, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let seconds = self.0.iter().enumerate().filter(|(_, latency)| latency.count() > 0);
            let points: Vec<[f64; 2]> = seconds.map(|(at, latency)| [at as f64, latency.us(quantile)]).collect();
            report.series(format!("{what} {label}"), "s", "us", points);
        }
    }
}

/// The middle of these; 0 of none. Of an even number the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_in_microseconds() {
        let mut latency = Latency::default();
        for us in 1..=1_000 {
            latency.record(Duration::from_micros(us));
        }
        assert!((latency.us(0.5) - 500.0).abs() < 2.0, "{}", latency.us(0.5));
        latency.record(Duration::from_secs(100_000));
        assert_eq!(latency.count(), 1_001);
        latency.clear();
        assert_eq!((latency.count(), latency.us(0.99)), (0, 0.0));
    }

    #[test]
    fn each_second_has_its_own() {
        let mut series = Series::default();
        for (after, count) in [(0, 1), (2, 3), (1_000_000, 2)] {
            (0..count).for_each(|_| series.record(Duration::from_secs(after), Duration::from_millis(1)));
        }
        let counts: Vec<u64> = series.0.iter().map(Latency::count).collect();
        assert_eq!((counts.len(), counts[0], counts[1], counts[2], counts[999]), (SECONDS_MAX, 1, 0, 3, 2));
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
