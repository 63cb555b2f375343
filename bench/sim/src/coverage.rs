//! Coverage marks: how often each interesting situation came about, so that a clean run is not an empty one.

use std::collections::BTreeMap;
use std::fmt;

use machine::stats::{Board, Counters, Kind};
use machine::{MachineStats, ShardMachine};

/// Counts by name; names of the machine's own counters begin with `machine.`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverageMarks(BTreeMap<String, u64>);

impl CoverageMarks {
    /// It happened once more.
    pub(crate) fn hit(&mut self, name: &str) {
        self.add(name, 1);
    }

    /// It happened `times` more.
    pub(crate) fn add(&mut self, name: &str, times: u64) {
        match self.0.get_mut(name) {
            Some(count) => *count += times,
            None => {
                self.0.insert(name.to_owned(), times);
            }
        }
    }

    /// Adds what machines counted.
    pub(crate) fn count_machines<'a>(&mut self, machines: impl Iterator<Item = &'a mut ShardMachine>) {
        let board = Board::new(&[MachineStats::MEANINGS]);
        for machine in machines {
            machine.stats().write_to(&board, 0);
            for (meaning, value) in board.read().filter(|(meaning, _)| meaning.kind == Kind::Counter) {
                self.add(&format!("machine.{}", meaning.name), value);
            }
        }
    }

    /// Number of times that it happened.
    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds everything that was counted elsewhere.
    pub(crate) fn absorb(&mut self, other: &CoverageMarks) {
        for (name, count) in &other.0 {
            self.add(name, *count);
        }
    }
}

impl fmt::Display for CoverageMarks {
    /// One line per mark.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "{count:>12}  {name}")?;
        }
        Ok(())
    }
}
