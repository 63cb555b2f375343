//! `murre-bench report`: results of any scenarios, runs and servers become one HTML file that needs nothing else: plots
//! are drawn into it as SVG, it has no script, follows the reader's light or dark setting and prints.
//!
//! Reading order: [`runs`] names the runs, [`axis`] makes honest axes, [`plot`] draws, [`cards`] and [`costs`] select
//! the plots, [`tables`] holds the numbers, [`page`] puts it together.

use std::io;
use std::path::{Path, PathBuf};

use crate::result::Outcome;
use runs::{Run, Runs};

mod runs;

mod axis;

mod plot;

mod card;

mod cards;

mod costs;

mod tables;

mod page;

/// Input files and output file.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Results (`--json` of the scenarios) and directories of them.
    #[arg(required = true, value_name = "DIR|FILE")]
    pub from: Vec<PathBuf>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Heading of the report.
    #[arg(long, value_name = "TEXT", default_value = "murre, measured")]
    pub title: String,
}

/// More results than this are refused: such a report is too long to read, and it would take all memory.
const RUNS_MAX: usize = 200;

/// Writes the report. Each unreadable file gets one sentence, here and in the report; a file that was named and cannot
/// be read makes the outcome false, one that happens to lie in a directory does not.
pub fn run(options: &Options) -> io::Result<bool> {
    let found = Found::read(&options.from)?;
    found.left_out.iter().for_each(|why| eprintln!("murre-bench: left out: {why}"));
    match found.runs.len() {
        0 => return Err(io::Error::other("there is no result to report: run a scenario with --json FILE first")),
        1..=RUNS_MAX => {}
        count => {
            let why = format!("{count} results are too many for one report, at most {RUNS_MAX}");
            return Err(io::Error::other(why));
        }
    }
    let runs = Runs::new(found.runs);
    let page = page::write(&options.title, &runs, &found.left_out)?;
    std::fs::write(&options.out, page)?;
    println!("{} results in {}", runs.all.len(), options.out.display());
    Ok(!found.named_failed)
}

/// Results to report.
#[derive(Default)]
struct Found {
    runs: Vec<Run>,
    /// Sentences about the unreadable files, one each.
    left_out: Vec<String>,
    /// True if one of these files was named on the command line.
    named_failed: bool,
}

impl Found {
    fn read(from: &[PathBuf]) -> io::Result<Found> {
        let mut found = Found::default();
        for path in from {
            if !path.is_dir() {
                found.named_failed |= !found.take(path);
                continue;
            }
            let files = results_in(path)?;
            if files.is_empty() {
                found.left_out.push(format!("{}: there is no .json file in this directory", path.display()));
            }
            for file in files {
                found.take(&file);
            }
        }
        Ok(found)
    }

    /// Reads one file; false when it is no result.
    fn take(&mut self, file: &Path) -> bool {
        match Outcome::read(file) {
            Ok(outcome) => self.runs.push(Run::new(file, outcome)),
            Err(error) => {
                self.left_out.push(error.to_string());
                return false;
            }
        }
        true
    }
}

/// The .json files directly in this directory, by name.
fn results_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Text as it may stand in HTML, between tags and in attributes.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests;
