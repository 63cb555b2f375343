//! Labels of runs: a letter, a name that tells a run from its like, and one colour for all plots.

use std::path::Path;

use crate::result::Outcome;

/// One result.
pub(super) struct Run {
    /// `A`, `B`, ... by scenario, then server, then time.
    pub letter: String,
    /// The server, and what distinguishes this run from others of its scenario and server.
    pub label: String,
    /// Index into the colours: the same for a server in all scenarios.
    pub colour: usize,
    /// The file it came from, without its directory.
    pub file: String,
    pub outcome: Outcome,
}

/// All results of a report, in order.
pub(super) struct Runs {
    /// Runs by scenario, then server (murre first), then time.
    pub all: Vec<Run>,
}

/// Options that differ between two runs and are named in a label, at most.
const DISTINCTIONS_MAX: usize = 2;

impl Run {
    /// A run that was not compared with others yet.
    pub fn new(file: &Path, mut outcome: Outcome) -> Run {
        if outcome.server.is_empty() {
            outcome.server = "murre".into();
        }
        let file = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Run { letter: String::new(), label: outcome.server.clone(), colour: 0, file, outcome }
    }

    fn is_like(&self, other: &Run) -> bool {
        self.outcome.scenario == other.outcome.scenario && self.outcome.server == other.outcome.server
    }
}

impl Runs {
    /// Orders, names and colours them.
    pub fn new(mut all: Vec<Run>) -> Runs {
        let server = |run: &Run| (run.outcome.server != "murre", run.outcome.server.clone());
        all.sort_by_cached_key(|run| (run.outcome.scenario.clone(), server(run), run.outcome.when, run.file.clone()));
        let labels: Vec<String> = all.iter().map(|run| label(run, &all)).collect();
        // A colour belongs to a server and to the place of the run among its like, first places first.
        let place = |at: usize| all[..at].iter().filter(|earlier| earlier.is_like(&all[at])).count();
        let keys: Vec<_> = (0..all.len()).map(|at| (place(at), server(&all[at]))).collect();
        let mut distinct = keys.clone();
        distinct.sort();
        distinct.dedup();
        let colours: Vec<usize> =
            keys.iter().map(|key| distinct.iter().position(|one| one == key).unwrap_or(0)).collect();
        for (at, (run, (label, colour))) in all.iter_mut().zip(labels.into_iter().zip(colours)).enumerate() {
            run.letter = letter(at);
            run.label = label;
            run.colour = colour;
        }
        Runs { all }
    }

    /// Scenarios in order, each with its runs.
    pub fn by_scenario(&self) -> impl Iterator<Item = (&str, &[Run])> {
        self.all
            .chunk_by(|a, b| a.outcome.scenario == b.outcome.scenario)
            .map(|runs| (runs[0].outcome.scenario.as_str(), runs))
    }

    /// The server that the headline is about: murre when it was measured, else the first.
    pub fn subject(&self) -> &str {
        let murre = self.all.iter().find(|run| run.outcome.server == "murre");
        &murre.unwrap_or(&self.all[0]).outcome.server
    }
}

/// `A` to `Z`, then `A1` and so on.
fn letter(at: usize) -> String {
    let letter = char::from(b'A' + (at % 26) as u8);
    if at < 26 { letter.to_string() } else { format!("{letter}{}", at / 26) }
}

/// The server; when there are more boots of it, the options in which they differ, or its number among them.
fn label(run: &Run, all: &[Run]) -> String {
    let server = &run.outcome.server;
    let like: Vec<&Run> = all.iter().filter(|other| other.is_like(run)).collect();
    if like.len() < 2 {
        return server.clone();
    }
    let differs =
        |name: &str| like.iter().any(|other| other.outcome.options.get(name) != run.outcome.options.get(name));
    let distinctions: Vec<String> = run
        .outcome
        .options
        .iter()
        .filter(|(name, _)| differs(name))
        .take(DISTINCTIONS_MAX)
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), super::axis::value(value)))
        .collect();
    let same = |other: &&&Run| other.outcome.options == run.outcome.options;
    let place = like.iter().filter(same).position(|other| std::ptr::eq(*other, run)).unwrap_or(0) + 1;
    let alone = like.iter().filter(same).count() == 1;
    match (distinctions.is_empty(), alone) {
        (true, _) => format!("{server}, run {place}"),
        (false, true) => format!("{server}, {}", distinctions.join(", ")),
        (false, false) => format!("{server}, {}, run {place}", distinctions.join(", ")),
    }
}
