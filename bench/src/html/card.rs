//! One card of a report.

use std::collections::{BTreeMap, BTreeSet};

use super::plot::Curve;
use super::runs::Run;

/// One plot.
pub(super) struct Card {
    pub title: String,
    /// Unit and axis in words, under the title.
    pub subtitle: String,
    /// Method of the measurement, and help to read the plot.
    pub caption: String,
    /// Colour, true if dashed, and name of each curve.
    pub legend: Vec<(usize, bool, String)>,
    pub svg: String,
}

/// The curve of a run.
pub(super) fn curve(run: &Run, points: Vec<[f64; 2]>) -> Curve {
    Curve { colour: run.colour, dashed: false, points }
}

/// One entry for each colour; where runs of several scenarios share one, each says its scenario.
pub(super) fn legend<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<(usize, bool, String)> {
    let runs: Vec<&Run> = runs.collect();
    let scenarios: BTreeSet<&str> = runs.iter().map(|run| run.outcome.scenario.as_str()).collect();
    let mut entries: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for run in runs {
        let several = scenarios.len() > 1 && run.label != run.outcome.server;
        let label = if several { format!("{} ({})", run.label, run.outcome.scenario) } else { run.label.clone() };
        let labels = entries.entry(run.colour).or_default();
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    entries.into_iter().map(|(colour, labels)| (colour, false, labels.join("; "))).collect()
}
