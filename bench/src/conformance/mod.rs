//! `murre-bench conformance`: asks any server of this kind, one requirement after the other, over its public sockets.
//!
//! The tool knows nothing of murre: endpoint URLs come from the replies to register, and tokens are opaque.
//! [`table::REQUIREMENTS`] is the only list of requirements; docs/CONFORMANCE.md is made from it.

pub mod table;

mod subject;

mod raw;

mod frames;

mod messages;

mod mailbox;

mod push;

mod content;

mod vapid;

mod output;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use subject::Subject;
use table::{Level, REQUIREMENTS, Requirement};

/// Arguments of this command.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// WebSocket URL of the server: ws://HOST:PORT/ or wss://HOST:PORT/.
    #[arg(long, value_name = "URL")]
    pub ws: String,
    /// Address to POST to instead of that in the endpoint URL: http://HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// PEM file of the authorities to trust for wss and https; by default those that this host trusts.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Requirements whose failure makes the exit status 1; `should` includes `must`.
    #[arg(long, value_enum, default_value = "must")]
    pub level: Level,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Seconds that one check may take.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub patience: u64,
    /// Milliseconds of silence that show that no message comes.
    #[arg(long, value_name = "MS", default_value_t = 700, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub silence: u64,
}

/// The reason why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Miss {
    /// The server breaks the requirement.
    Fail(String),
    /// This server, or any server, cannot be asked.
    NotAsked(String),
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Miss {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Miss::Fail("no reply in time".into()),
            io::ErrorKind::UnexpectedEof => Miss::Fail("the server ended the connection".into()),
            _ => Miss::Fail(error.to_string()),
        }
    }
}

/// Answer of a check.
pub type Answer = Result<(), Miss>;

/// Passes if `holds`; else fails with this reason.
fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Answer {
    if holds { Ok(()) } else { Err(Miss::Fail(reason())) }
}

/// One requirement with its answer.
pub struct Outcome {
    pub requirement: &'static Requirement,
    pub answer: Answer,
}

/// Asks every requirement. Returns 0 when none of the level fails, 1 when one does, 2 when the server is not reached.
pub fn run(options: &Options) -> ExitCode {
    let outcomes = match check(options) {
        Ok(outcomes) => outcomes,
        Err(error) => {
            eprintln!("murre-bench conformance: {error}");
            return ExitCode::from(2);
        }
    };
    output::print(&outcomes, options.json);
    ExitCode::from(status(&outcomes, options.level))
}

/// 1 when a requirement of this level, or of a stricter one, fails; else 0.
fn status(outcomes: &[Outcome], level: Level) -> u8 {
    let failed = |outcome: &Outcome| outcome.requirement.level <= level && matches!(outcome.answer, Err(Miss::Fail(_)));
    u8::from(outcomes.iter().any(failed))
}

/// Asks every requirement, in the order of the table.
///
/// # Errors
/// The server is not reached, or gives no endpoint.
pub fn check(options: &Options) -> io::Result<Vec<Outcome>> {
    let patience = Duration::from_secs(options.patience);
    let subject = || Subject::new(options, patience);
    subject()?.is_reached()?;
    let ask = |requirement: &'static Requirement| {
        let answer = subject().map_err(Miss::from).and_then(|subject| (requirement.check)(&subject));
        Outcome { requirement, answer }
    };
    Ok(REQUIREMENTS.iter().map(ask).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_from_its_level_on() {
        let outcome = |level: Level, answer: Answer| {
            let requirement = REQUIREMENTS.iter().find(|row| row.level == level).unwrap();
            vec![Outcome { requirement, answer }]
        };
        let fail = || Err(Miss::Fail("no".into()));
        assert_eq!(status(&outcome(Level::Must, fail()), Level::Must), 1);
        assert_eq!(status(&outcome(Level::Must, fail()), Level::Should), 1);
        assert_eq!(status(&outcome(Level::Should, fail()), Level::Must), 0);
        assert_eq!(status(&outcome(Level::Should, fail()), Level::Should), 1);
        assert_eq!(status(&outcome(Level::Must, Ok(())), Level::Should), 0);
        assert_eq!(status(&outcome(Level::Must, Err(Miss::NotAsked("no".into()))), Level::Should), 0);
    }
}
