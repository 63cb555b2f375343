//! What a scenario found: a table for people, the same figures as JSON for scripts.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Figures in the order they were found.
pub struct Report {
    name: &'static str,
    lines: Vec<(String, Value, &'static str)>,
    failures: Vec<String>,
}

impl Report {
    /// An empty report of this scenario.
    pub fn new(name: &'static str) -> Report {
        Report { name, lines: Vec::new(), failures: Vec::new() }
    }

    /// Adds a figure; `unit` may be empty. Printed at once: a run may be long.
    pub fn add(&mut self, what: impl Into<String>, value: impl Into<Value>, unit: &'static str) {
        let (what, value) = (what.into(), value.into());
        println!("{what:<58} {:>16} {unit}", shown(&value));
        self.lines.push((what, value, unit));
    }

    /// Adds a figure that must be `wanted`.
    pub fn check(&mut self, what: impl Into<String>, found: u64, wanted: u64) {
        let what = what.into();
        if found != wanted {
            self.failures.push(format!("{what}: {found}, must be {wanted}"));
        }
        self.add(what, found, "");
    }

    /// Adds a failure in words.
    pub fn fail(&mut self, why: String) {
        self.failures.push(why);
    }

    /// Prints the verdict, writes the file if one is wanted, and says whether all checks held.
    pub fn finish(self, file: Option<&Path>) -> io::Result<bool> {
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
        if let Some(file) = file {
            let figures: Map<String, Value> = self
                .lines
                .iter()
                .map(|(what, value, unit)| (format!("{what} {unit}").trim().into(), value.clone()))
                .collect();
            let all = json!({
                "scenario": self.name, "host": crate::host::description(), "figures": figures,
                "failures": self.failures,
            });
            std::fs::write(file, serde_json::to_vec_pretty(&all)?)?;
        }
        Ok(self.failures.is_empty())
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{:.2}", number.as_f64().unwrap_or(0.0)),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
