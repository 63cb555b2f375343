//! `sim`: the deterministic simulator of `bench/sim` over a range of seeds.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use crate::report::Report;

/// Worlds to run.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Seeds from A to below B; one seed is N..N+1.
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    pub seeds: Range<u64>,
    /// Several nodes on one store instead of one node.
    #[arg(long)]
    pub cluster: bool,
    /// With --cluster: worlds that press on rules which others seldom reach.
    #[arg(long, requires = "cluster")]
    pub rare: bool,
    /// Stop after this many failures; 0 is never.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub failures_max: usize,
    /// Keep the events of each world, to show those before a failure. Always on for a single seed.
    #[arg(long)]
    pub lines: bool,
    /// Also write every figure to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.filter(|range| !range.is_empty()).ok_or_else(|| "seeds are A..B with A below B, as 0..1000".to_owned())
}

/// Runs them and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let lines = options.lines || options.seeds.end - options.seeds.start == 1;
    let begin = Instant::now();
    let Options { failures_max, cluster, rare, .. } = *options;
    let how = sim::Options { lines, failures_max, cluster, rare };
    let found = sim::run(options.seeds.clone(), &how);
    println!("{found}");
    let mut report = Report::new("sim");
    report.add("seeds", found.seeds, "");
    report.add("steps of the machine", found.steps, "");
    report.add("time", begin.elapsed().as_secs_f64(), "s");
    report.check("failures", found.failures.len() as u64, 0);
    report.finish(options.json.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_ranges_are_read() {
        assert_eq!(parse_seeds("3..7"), Ok(3..7));
        assert!(parse_seeds("7..3").is_err());
        assert!(parse_seeds("7").is_err());
    }
}
