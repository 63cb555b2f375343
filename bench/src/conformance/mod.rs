//! `murre-bench conformance`: asks any server of this kind, one requirement after the other, over its public sockets.
//!
//! The tool knows nothing of murre: endpoint URLs come from the replies to register, and tokens are opaque.
//! [`table::REQUIREMENTS`] is the only list of requirements; docs/CONFORMANCE.md is made from it.

pub mod table;

mod answer;

mod options;

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
use std::process::ExitCode;
use std::time::Duration;

pub use answer::{Answer, Level, Miss};
pub use options::Options;

use subject::Subject;
use table::{REQUIREMENTS, Requirement};

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
