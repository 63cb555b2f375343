//! The answer of a check, and the weight of its requirement.

use std::io;

/// The weight of a requirement, as RFC 2119 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Level {
    Must,
    Should,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
        }
    }
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
pub(super) fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Answer {
    if holds { Ok(()) } else { Err(Miss::Fail(reason())) }
}
