//! A fault of the database or of the settings for it: one sentence that says what to do.

use std::fmt;

/// One fault of the database, of its tables, or of the settings for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatabaseError {
    said: String,
    passes: bool,
}

impl DatabaseError {
    /// `passes`: the next try may find nothing wrong.
    pub(crate) fn new(said: impl Into<String>, passes: bool) -> DatabaseError {
        DatabaseError { said: said.into(), passes }
    }

    /// A fault that stays until something is changed.
    pub fn lasting(said: impl Into<String>) -> DatabaseError {
        DatabaseError::new(said, false)
    }

    /// Returns true if the next try may find nothing wrong.
    pub fn passes(&self) -> bool {
        self.passes
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for DatabaseError {}
