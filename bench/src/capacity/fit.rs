//! Curves: a straight line through readings, and the one table that does not grow in a straight line.

/// A straight line through readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// y at x = 0.
    pub fixed: f64,
    /// y for each x.
    pub slope: f64,
    /// The reading that is furthest off, as a share of what the slope adds up to at the last x.
    pub off: f64,
}

/// Share of the largest number of sessions from which on a server has made what it makes once.
pub(super) const WARM_SHARE: f64 = 0.49;

impl Line {
    /// By least squares, through the readings of the upper half: the first few thousand sessions pay for what is made
    /// once (arenas, lanes, reader threads, caches), and that must not be taken for a slope. Fewer than two there:
    /// through all with sessions, else through all.
    pub fn through(points: &[[f64; 2]]) -> Option<Line> {
        let last = points.last().map_or(0.0, |point| point[0]);
        let from = |least: f64| points.iter().copied().filter(|point| point[0] >= least).collect::<Vec<_>>();
        let distinct = |points: &[[f64; 2]]| points.windows(2).any(|pair| pair[1][0] > pair[0][0]);
        let parts = [from(last * WARM_SHARE), from(f64::MIN_POSITIVE), points.to_vec()];
        let points = parts.iter().find(|part| distinct(part))?;
        let count = points.len() as f64;
        let mean = |at: usize| points.iter().map(|point| point[at]).sum::<f64>() / count;
        let (x, y) = (mean(0), mean(1));
        let spread: f64 = points.iter().map(|point| (point[0] - x).powi(2)).sum();
        let slope = points.iter().map(|point| (point[0] - x) * (point[1] - y)).sum::<f64>() / spread;
        let fixed = y - slope * x;
        let furthest = points.iter().map(|point| (fixed + slope * point[0] - point[1]).abs()).fold(0.0, f64::max);
        Some(Line { fixed, slope, off: furthest / (slope * last).abs().max(1.0) })
    }
}

/// Bytes that the index of user agents takes: up to 1,024 segments a shard, each a table of 4-byte slots and 1-byte
/// tags that doubles when it is seven eighths full (CAPACITY.md,
/// `shards/machine/src/shard/components/user_index.rs`). So its
/// bytes per session go up and down between 6 and 12 with the number of sessions.
pub(super) fn index_bytes(sessions: f64, shards: f64, max_connections: f64) -> f64 {
    const SEGMENTS_MAX: f64 = 1_024.0;
    const SEGMENT_ENTRIES: f64 = 1_024.0;
    // A shard is made for 2 % more than its part, since users fall on shards by chance.
    let spare = if shards > 1.0 { 1.02 } else { 1.0 };
    let wanted = (max_connections / shards * spare / SEGMENT_ENTRIES).max(1.0);
    let segments = 2f64.powf(wanted.log2().ceil()).clamp(1.0, SEGMENTS_MAX);
    let mean = sessions / shards / segments;
    // Users fall on segments by chance, about normally: the mean over the likely counts.
    let deviation = mean.sqrt();
    let mut sum = (0.0, 0.0);
    for step in -40..=40 {
        let away = f64::from(step) / 10.0;
        let weight = (-away * away / 2.0).exp();
        sum.0 += weight * table_bytes((mean + away * deviation).max(0.0));
        sum.1 += weight;
    }
    sum.0 / sum.1 * segments * shards
}

/// Bytes of one hash table that has this number of 4-byte entries, with what the allocator puts before it.
fn table_bytes(entries: f64) -> f64 {
    const TAGS_BEHIND: f64 = 16.0;
    const ALLOCATION: f64 = 16.0;
    if entries < 0.5 {
        return 0.0;
    }
    let mut buckets = 4.0;
    while entries > if buckets < 8.0 { buckets - 1.0 } else { buckets / 8.0 * 7.0 } {
        buckets *= 2.0;
    }
    buckets * 5.0 + TAGS_BEHIND + ALLOCATION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_the_first_sessions_do_not_bend_it() {
        let line = Line::through(&[[0.0, 100.0], [10.0, 1_900.0], [20.0, 3_000.0], [30.0, 4_000.0]]).unwrap();
        assert!((line.slope - 100.0).abs() < 1e-6 && (line.fixed - 1_000.0).abs() < 1e-6 && line.off < 1e-9);
        let far = Line::through(&[[0.0, 0.0], [10.0, 400.0], [30.0, 800.0]]).unwrap();
        assert_eq!((far.slope, far.fixed), (20.0, 200.0), "one reading in the upper half: all with sessions");
        let two = Line::through(&[[0.0, 100.0], [10.0, 600.0]]).unwrap();
        assert_eq!((two.fixed, two.slope), (100.0, 50.0));
        assert!(Line::through(&[[5.0, 1.0], [5.0, 2.0]]).is_none() && Line::through(&[]).is_none());
        assert!(Line::through(&[[2.0, 10.0], [3.0, 30.0], [4.0, 30.0]]).unwrap().off > 0.1);
    }

    #[test]
    fn the_index_takes_6_to_12_bytes_and_doubles_in_steps() {
        for sessions in [1e5, 2e5, 5e5, 8e5, 1e6] {
            let each = index_bytes(sessions, 4.0, 1e6) / sessions;
            assert!((5.5..13.5).contains(&each), "{sessions}: {each}");
        }
        // 3,500 users in each of 256 segments need tables of 4,096 slots, 3,700 of 8,192.
        let each = |sessions: f64| index_bytes(sessions, 1.0, 256.0 * 1_024.0) / sessions;
        assert!(each(3_700.0 * 256.0) > 1.6 * each(3_400.0 * 256.0));
        assert_eq!(index_bytes(0.0, 4.0, 1e6), 0.0);
    }
}
