//! One setting as a source has it, and the place where it was written.

use std::fmt;
use std::path::PathBuf;

use super::parse::Raw;

/// One setting before it is typed.
pub struct Setting {
    pub origin: Origin,
    /// `section.key`.
    pub name: String,
    pub value: Raw,
}

/// Place where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    Variable(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{} line {line}", path.display()),
            Origin::Variable(name) => write!(f, "variable {name}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}
