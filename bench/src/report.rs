//! Findings of a scenario: a table for people as it goes, and the whole as an [`Outcome`] in JSON for scripts and
//! reports.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use serde_json::{Map, Value};

use crate::metrics::Metrics;
use crate::result::{Check, Distribution, Figure, Outcome, SCHEMA, Series, names};

/// Figures, checks, curves and distributions in the order they were found.
pub struct Report {
    outcome: Outcome,
}

impl Report {
    /// An empty report of this scenario. Facts of the host and the command line are taken now.
    pub fn new(name: &'static str) -> Report {
        Report {
            outcome: Outcome {
                schema: SCHEMA,
                scenario: name.into(),
                when: 0,
                machine: crate::host::machine(),
                server: "murre".into(),
                commit: commit(),
                command: command_line(std::env::args()),
                options: Map::new(),
                figures: Vec::new(),
                checks: Vec::new(),
                series: Vec::new(),
                histograms: Vec::new(),
            },
        }
    }

    /// Sets the name of the measured server; `murre` when never called. Two results that differ in it stand side by
    /// side in a report.
    pub fn server(&mut self, label: impl Into<String>) {
        self.outcome.server = label.into();
    }

    /// Keeps one option of the run; the names that readers look for are in [`names`].
    pub fn option(&mut self, name: &str, value: impl Into<Value>) {
        self.outcome.options.insert(name.into(), value.into());
    }

    /// Adds a figure; `unit` may be empty. Printed at once: a run may be long.
    pub fn add(&mut self, what: impl Into<String>, value: impl Into<Value>, unit: &'static str) {
        let (name, value) = (what.into(), value.into());
        println!("{name:<58} {:>16} {unit}", shown(&value));
        self.outcome.figures.push(Figure { name, value, unit: unit.into() });
    }

    /// Adds a figure that must be `wanted`.
    pub fn check(&mut self, what: impl Into<String>, found: u64, wanted: u64) {
        let name = what.into();
        self.outcome.checks.push(Check {
            name: name.clone(),
            got: found.into(),
            want: wanted.into(),
            ok: found == wanted,
        });
        self.add(name, found, "");
    }

    /// Adds a figure that must be `most` or less: a budget.
    pub fn check_at_most(&mut self, what: impl Into<String>, found: f64, most: f64, unit: &'static str) {
        let name = what.into();
        self.outcome.checks.push(Check {
            name: name.clone(),
            got: found.into(),
            want: format!("<= {most} {unit}").trim().into(),
            ok: found <= most,
        });
        self.add(name, found, unit);
    }

    /// Adds a failure in words.
    pub fn fail(&mut self, why: String) {
        self.outcome.checks.push(Check { name: why, got: Value::Null, want: Value::Null, ok: false });
    }

    /// Adds a curve; points are sorted by x here. Nothing is printed.
    pub fn series(&mut self, name: impl Into<String>, x_unit: &str, unit: &str, points: impl Into<Vec<[f64; 2]>>) {
        let mut points = points.into();
        points.retain(|point| point.iter().all(|number| number.is_finite()));
        points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        self.outcome.series.push(Series { name: name.into(), x_unit: x_unit.into(), unit: unit.into(), points });
    }

    /// Adds one point to the curve of this name, which is made when it is the first. For values that are read while a
    /// run goes on; x must not be less than the last.
    pub fn point(&mut self, name: &str, x_unit: &str, unit: &str, x: f64, y: f64) {
        if !self.outcome.series.iter().any(|one| one.name == name) {
            self.series(name, x_unit, unit, []);
        }
        let found = self.outcome.series.iter_mut().find(|one| one.name == name);
        if let Some(one) = found.filter(|one| one.points.last().is_none_or(|last| last[0] <= x) && y.is_finite()) {
            one.points.push([x, y]);
        }
    }

    /// Adds a distribution whose values were recorded in nanoseconds, shown in microseconds, and prints its quantiles.
    pub fn latency(&mut self, name: &str, nanoseconds: &Histogram<u64>) {
        self.histogram(name, "us", nanoseconds, 1e3);
    }

    /// Adds a distribution; each value is divided by `divisor` to be in `unit`. Its quantiles become figures.
    pub fn histogram(&mut self, name: &str, unit: &'static str, recorded: &Histogram<u64>, divisor: f64) {
        for (label, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            self.add(format!("{name} {label}"), recorded.value_at_quantile(quantile) as f64 / divisor, unit);
        }
        self.outcome.histograms.push(Distribution::new(name, unit, recorded, divisor));
    }

    /// Adds the spread of the sessions over the shards, from murre's own numbers; another server has none.
    pub fn shards(&mut self, metrics: &Metrics) {
        let points = metrics.by_shard("murre_sessions");
        if !points.is_empty() {
            self.option(names::OPTION_SHARDS, points.len());
            self.series(names::SHARD_SESSIONS, "shard", "sessions", points);
        }
        self.rooms(metrics);
    }

    /// Keeps the number of connections that the server is sized for. Of several shards each has a fiftieth more room
    /// than its share, because users fall on shards by chance (`src/server/src/lib.rs`).
    pub fn rooms(&mut self, metrics: &Metrics) {
        let rooms = metrics.by_shard("murre_connections_max");
        let spare = if rooms.len() > 1 { 1.02 } else { 1.0 };
        let most: f64 = rooms.iter().map(|[_, room]| (room / spare).ceil()).sum();
        if most > 0.0 {
            self.option(names::OPTION_MAX_CONNECTIONS, most as u64);
        }
    }

    /// Adds one point for each table whose bytes murre exports, at this number of sessions.
    pub fn tables(&mut self, metrics: &Metrics, sessions: usize) {
        for (table, bytes) in metrics.tables() {
            self.point(&format!("{}{table}", names::TABLE_BYTES), "sessions", "B", sessions as f64, bytes);
        }
    }

    /// Findings so far.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Prints the verdict, writes the file if one is given, and returns true if all checks held.
    pub fn finish(mut self, file: Option<&Path>) -> io::Result<bool> {
        for check in self.outcome.checks.iter().filter(|check| !check.ok) {
            println!("FAILED {}", sentence(check));
        }
        self.outcome.when = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if let Some(file) = file {
            std::fs::write(file, serde_json::to_vec_pretty(&self.outcome)?)?;
        }
        Ok(self.outcome.all_held())
    }
}

/// A check as a sentence: its name, the value found, the value required.
pub fn sentence(check: &Check) -> String {
    match (&check.got, &check.want) {
        (Value::Null, _) => check.name.clone(),
        (got, want) => format!("{}: {}, must be {}", check.name, shown(got), shown(want)),
    }
}

/// A value for a table: two decimals if it is not whole.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.2}", number.as_f64().unwrap_or(0.0)),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The command line that started this, the program without its directory.
fn command_line(mut arguments: impl Iterator<Item = String>) -> String {
    let program = arguments.next().unwrap_or_default();
    let mut line = program.rsplit('/').next().unwrap_or("murre-bench").to_owned();
    for argument in arguments {
        let bare =
            !argument.is_empty() && argument.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@".contains(c));
        line.push(' ');
        line.push_str(&if bare { argument } else { format!("'{}'", argument.replace('\'', "'\\''")) });
    }
    line
}

/// The commit of the build, else that of the working directory.
fn commit() -> Option<String> {
    if version::build().commit != "unknown" {
        return Some(version::build().commit.into());
    }
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short=12", "HEAD"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_in_the_file_and_a_check_that_fails_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("result.json");
        let mut report = Report::new("hold");
        report.option(names::OPTION_SESSIONS, 20);
        report.add("answers", 7, "");
        report.check("sessions held", 20, 20);
        report.check_at_most("user memory", 161.0, 160.0, "B");
        report.fail("the server left".into());
        report.point(names::USER_BYTES, "sessions", "B", 0.0, 100.0);
        report.point(names::USER_BYTES, "sessions", "B", 20.0, 3_300.0);
        report.point(names::USER_BYTES, "sessions", "B", 10.0, 1.0);
        report.series(names::SERVER_CPU, "s", "cores", [[2.0, 0.5], [1.0, 0.25], [3.0, f64::NAN]]);
        let mut latency = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        latency.record(50_000).unwrap();
        report.latency(names::TO_FRAME, &latency);
        assert!(!report.finish(Some(&file)).unwrap());

        let read = Outcome::read(&file).unwrap();
        assert_eq!((read.option("sessions"), read.figure("answers")), (Some(20.0), Some(7.0)));
        assert_eq!(read.series(names::USER_BYTES).unwrap().points, [[0.0, 100.0], [20.0, 3_300.0]]);
        assert_eq!(read.series(names::SERVER_CPU).unwrap().points, [[1.0, 0.25], [2.0, 0.5]]);
        assert!((read.histogram(names::TO_FRAME).unwrap().at(0.5).unwrap() - 50.0).abs() < 0.1);
        let failed: Vec<String> = read.checks.iter().filter(|check| !check.ok).map(sentence).collect();
        assert_eq!(failed, ["user memory: 161.00, must be <= 160 B", "the server left"]);
        assert!(read.when > 1_700_000_000 && read.machine.cores > 0 && read.machine.memory_bytes > 1 << 20);
    }

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        let words = ["target/release/murre-bench", "push", "--label", "it's a test", "--rate", "5"];
        let line = command_line(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(line, "murre-bench push --label 'it'\\''s a test' --rate 5");
    }

    #[test]
    fn shards_and_tables_come_from_the_metrics() {
        let text = "murre_sessions{shard=\"0\"} 3\nmurre_sessions{shard=\"1\"} 5\nmurre_index_bytes{shard=\"0\"} 8\n\
                    murre_index_bytes{shard=\"1\"} 9\nmurre_read_bytes_total{shard=\"0\"} 1\n\
                    murre_connections_max{shard=\"0\"} 510000\nmurre_connections_max{shard=\"1\"} 510000\n\
                    murre_process_private_bytes 4\n";
        let mut report = Report::new("hold");
        report.shards(&Metrics::parse(text));
        report.tables(&Metrics::parse(text), 8);
        let found = report.outcome();
        assert_eq!(found.series(names::SHARD_SESSIONS).unwrap().points, [[0.0, 3.0], [1.0, 5.0]]);
        assert_eq!(found.series("table bytes: murre_index_bytes").unwrap().points, [[8.0, 17.0]]);
        assert_eq!(found.option(names::OPTION_MAX_CONNECTIONS), Some(1_000_000.0));
        assert_eq!(found.series.len(), 2, "neither counters nor the process are tables");
    }
}
