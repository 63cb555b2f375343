//! Axes and numbers. An axis of amounts starts at zero and ends at a round number; one of session counts is logarithmic
//! if they span more than a factor of eight.

use serde_json::Value;
use time::OffsetDateTime;

/// An axis: its range in its own coordinate, and the places of its labels.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// From and to, after [`Axis::place`].
    pub range: (f64, f64),
    pub labels: Vec<(f64, String)>,
    /// True if places are decimal logarithms.
    pub logarithmic: bool,
}

impl Axis {
    /// An axis from zero to a round number of at least `max`, with about `count` steps.
    pub fn from_zero(max: f64, count: usize) -> Axis {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let step = round_step(max / count as f64);
        let steps = (max / step - 1e-9).ceil().max(1.0);
        let labels = (0..=steps as usize).map(|n| (n as f64 * step, number(n as f64 * step))).collect();
        Axis { range: (0.0, steps * step), labels, logarithmic: false }
    }

    /// An axis for counts: logarithmic when they span much, else from zero. The counts themselves are labelled where
    /// they have room.
    pub fn of_counts(counts: &[f64]) -> Axis {
        let positive = || counts.iter().copied().filter(|count| *count > 0.0);
        let (low, high) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        if high < low * 8.0 || !low.is_finite() {
            let axis = Axis::from_zero(high, 5);
            return Axis { labels: axis.labels.into_iter().map(|(x, _)| (x, compact(x))).collect(), ..axis };
        }
        let (from, to) = (low.log10() - 0.06, high.log10() + 0.06);
        let mut wanted: Vec<f64> = positive().collect();
        wanted.sort_by(|a, b| b.total_cmp(a));
        let mut labels: Vec<(f64, String)> = Vec::new();
        for count in wanted {
            // A label needs a tenth of the axis.
            if labels.iter().all(|(place, _)| (place - count.log10()).abs() > (to - from) / 10.0) {
                labels.push((count.log10(), compact(count)));
            }
        }
        labels.reverse();
        Axis { range: (from, to), labels, logarithmic: true }
    }

    /// Quantiles on a scale that gives each further nine the same room: 50 %, 90 %, 99 %, ... up to `largest`.
    pub fn of_quantiles(largest: f64) -> Axis {
        let end = tail(largest).clamp(1.0, TAIL_MAX);
        let names = ["50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];
        let places = std::iter::once(tail(0.5)).chain((1..names.len()).map(|nines| nines as f64));
        let labels = places.zip(names).filter(|(place, _)| *place <= end + 1e-9);
        Axis {
            range: (0.0, end),
            labels: labels.map(|(place, name)| (place, name.to_owned())).collect(),
            logarithmic: false,
        }
    }

    /// Place of a value on this axis.
    pub fn place(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }

    /// The text at a label's place.
    pub fn text(&self, place: f64) -> String {
        let near = |(at, _): &&(f64, String)| (at - place).abs() <= (self.range.1 - self.range.0) * 1e-6;
        self.labels.iter().find(near).map_or_else(String::new, |(_, text)| text.clone())
    }
}

/// Number of nines of a quantile.
pub(super) fn tail(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-9).log10()
}

/// Nines beyond which nothing is drawn.
pub(super) const TAIL_MAX: f64 = 6.0;

/// 1, 2, 2.5 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// A number as people write it: thousands apart, three or more figures, no zeros at the end of a fraction.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "-".into() };
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{grouped}{point}{fraction}", if value < 0.0 { "-" } else { "" })
}

/// A count in short: 10k, 1M.
pub(super) fn compact(value: f64) -> String {
    let scaled = |by: f64, unit: &str| format!("{}{unit}", number((value / by * 100.0).round() / 100.0));
    match value {
        value if value >= 1e6 => scaled(1e6, "M"),
        value if value >= 1e4 => scaled(1e3, "k"),
        value => number(value),
    }
}

/// A value of a result for a table or a label.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::Number(one) => number(one.as_f64().unwrap_or(0.0)),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Name and divisor of the unit that makes the largest value readable: microseconds, milliseconds or seconds.
pub(super) fn time_unit(largest_us: f64) -> (&'static str, f64) {
    match largest_us {
        largest if largest >= 2e6 => ("s", 1e6),
        largest if largest >= 2e3 => ("ms", 1e3),
        _ => ("us", 1.0),
    }
}

/// Day and minute of an instant in seconds since 1970, UTC. One beyond the year 9999 is not shown.
pub(super) fn date(when: u64) -> String {
    let when = i64::try_from(when).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    when.map_or_else(String::new, |at| format!("{} {:02}:{:02} UTC", at.date(), at.hour(), at.minute()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_start_at_zero_and_end_at_a_round_number() {
        let axis = Axis::from_zero(157.0, 5);
        assert_eq!(axis.range, (0.0, 200.0));
        assert_eq!(
            axis.labels.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
            ["0", "50", "100", "150", "200"]
        );
        assert_eq!(Axis::from_zero(0.0, 5).range, (0.0, 1.0));
        assert_eq!(Axis::from_zero(f64::NAN, 5).range, (0.0, 1.0));
        assert_eq!(Axis::from_zero(20.0, 5).range.1, 20.0);
    }

    #[test]
    fn counts_are_logarithmic_when_they_span_much_and_labels_have_room() {
        let axis = Axis::of_counts(&[0.0, 10_000.0, 100_000.0, 500_000.0, 980_000.0, 1_000_000.0]);
        assert!(axis.logarithmic);
        assert_eq!(
            axis.labels.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
            ["10k", "100k", "500k", "1M"]
        );
        assert!(!Axis::of_counts(&[0.0, 5_000.0, 10_000.0]).logarithmic);
        assert!(!Axis::of_counts(&[]).logarithmic);
    }

    #[test]
    fn each_nine_has_the_same_room() {
        let axis = Axis::of_quantiles(0.9995);
        assert_eq!(axis.labels.last().map(|(_, text)| text.as_str()), Some("99.9 %"));
        assert!((tail(0.99) - tail(0.9) - (tail(0.999) - tail(0.99))).abs() < 1e-9);
        assert_eq!(Axis::of_quantiles(1.0).range.1, TAIL_MAX);
    }

    #[test]
    fn numbers_are_written_for_people() {
        let cases =
            [(1_234_567.0, "1,234,567"), (152.44, "152"), (20.62, "20.6"), (0.0301, "0.0301"), (-4_000.0, "-4,000")];
        cases.iter().for_each(|(value, text)| assert_eq!(number(*value), *text));
        assert_eq!(
            (compact(1e6).as_str(), compact(10_000.0).as_str(), compact(1_500_000.0).as_str()),
            ("1M", "10k", "1.5M")
        );
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(date(u64::MAX), "");
    }
}
