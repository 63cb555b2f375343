//! Findings about a host, and the settings that the scripts of `tuning/` change.

use super::facts::Facts;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// murre starts, but is slower, holds fewer connections or does less than intended.
    Warn,
    /// murre does not start.
    Fail,
}

impl Verdict {
    /// Spelling in the table and in the JSON.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Good => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The subject, as an operator would search for it.
    pub what: &'static str,
    pub found: String,
    pub wanted: String,
    pub verdict: Verdict,
    /// Consequence of a bad value, one sentence.
    pub why: String,
    /// Commands that fix it; empty when all is well.
    pub mend: Vec<String>,
}

impl Finding {
    /// One sentence for a log: the fact, its consequence, and the first command that fixes it.
    pub fn sentence(&self) -> String {
        let Finding { what, found, why, mend, .. } = self;
        let command = mend.first().map_or_else(String::new, |command| format!("; {command}"));
        format!("{what}: {found}: {why}{command}")
    }
}

/// A kernel setting that the scripts of `tuning/` change, judged.
#[derive(Debug)]
pub struct Sysctl {
    /// The judged part can follow behind a blank.
    pub name: &'static str,
    /// `None` when it cannot be read.
    pub(super) found: Option<String>,
    /// The recommendation in words.
    pub wanted: String,
    pub good: bool,
    /// A value that is as recommended. A minimum is given as it is, also where the host has more.
    pub value: String,
    /// The consequence of a worse value.
    pub why: &'static str,
}

impl Sysctl {
    pub(super) fn least(name: &'static str, found: Option<u64>, min: u64, why: &'static str) -> Sysctl {
        let good = found.is_some_and(|value| value >= min);
        Sysctl { name, found: found.map(number), wanted: format!(">= {min}"), good, value: min.to_string(), why }
    }

    /// A setting of the whole host cannot be seen in another network namespace, where it is no fault of the process.
    pub(super) fn of_the_host(self, facts: &Facts) -> Sysctl {
        if !facts.hides_host_network() {
            return self;
        }
        Sysctl { found: Some("not to be seen in this network namespace".into()), good: true, ..self }
    }

    pub(super) fn finding(self) -> Finding {
        let Sysctl { name: what, found, wanted, good: is_good, value, why } = self;
        let setting = what.split(' ').next().unwrap_or(what);
        let Some(found) = found else {
            return unknown(what, wanted, &format!("/proc/sys/{}", setting.replace('.', "/")));
        };
        if is_good {
            return good(what, found, wanted);
        }
        let value = if value.contains(' ') { format!("\"{value}\"") } else { value };
        let mend = vec![format!("sysctl -w {setting}={value}")];
        Finding { what, found, wanted, verdict: Verdict::Warn, why: why.into(), mend }
    }
}
/// The ports of `murre serve` when nothing is configured.
pub(super) const PORTS: (u64, u64) = (8080, 8083);

/// A finding with which all is well.
pub fn good(what: &'static str, found: String, wanted: String) -> Finding {
    Finding { what, found, wanted, verdict: Verdict::Good, why: String::new(), mend: Vec::new() }
}

pub(super) fn unknown(what: &'static str, wanted: String, file: &str) -> Finding {
    let why = format!("{file} could not be read or understood");
    let mend = vec![format!("cat {file}   # is /proc mounted here?")];
    Finding { what, found: "unknown".into(), wanted, verdict: Verdict::Warn, why, mend }
}

pub(super) fn dotted(version: (u32, u32)) -> String {
    format!("{}.{}", version.0, version.1)
}

pub(super) fn number(value: u64) -> String {
    if value == u64::MAX { "unlimited".into() } else { value.to_string() }
}
