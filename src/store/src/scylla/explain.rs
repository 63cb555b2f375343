//! Errors of the database, in sentences that name the cause.

use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

use crate::shared::error::DatabaseError;

impl DatabaseError {
    /// A statement that failed with `error`.
    pub(super) fn failed(said: impl Into<String>, error: &ExecutionError) -> DatabaseError {
        DatabaseError::new(said, passes(error))
    }

    /// A fault that may be gone at the next try, with the same configuration and the same tables.
    pub(super) fn passing(said: impl Into<String>) -> DatabaseError {
        DatabaseError::new(said, true)
    }
}

/// Cause for which a statement of a command or of the preflight failed. Never shows values of statements: the
/// database's answers about those have none.
pub(super) fn say(error: &ExecutionError) -> String {
    match db_error(error) {
        Some((DbError::Unauthorized, said)) => format!("this user may not: {said}"),
        Some((DbError::Unavailable { consistency, required, alive }, _)) => {
            format!("{consistency} needs {required} replicas and {alive} are up; start the other nodes of the database")
        }
        Some((DbError::ReadTimeout { .. } | DbError::WriteTimeout { .. } | DbError::Overloaded, said)) => {
            format!("the database is too slow: {said}")
        }
        Some((_, said)) => said.to_owned(),
        None => match error {
            ExecutionError::RequestTimeout(span) => format!("no answer within {} s", span.as_secs_f64()),
            other => other.to_string(),
        },
    }
}

/// Returns true if the same statement may be answered later: the database, or enough of it, is away or busy.
pub(super) fn passes(error: &ExecutionError) -> bool {
    match db_error(error) {
        Some((kind, _)) => matches!(
            kind,
            DbError::Unavailable { .. }
                | DbError::Overloaded
                | DbError::IsBootstrapping
                | DbError::TruncateError
                | DbError::ReadTimeout { .. }
                | DbError::WriteTimeout { .. }
                | DbError::ServerError
                | DbError::RateLimitReached { .. }
        ),
        None => true,
    }
}

/// The database's own error, if it answered.
pub(super) fn db_error(error: &ExecutionError) -> Option<(&DbError, &str)> {
    match error {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, said)) => Some((error, said)),
        _ => None,
    }
}
