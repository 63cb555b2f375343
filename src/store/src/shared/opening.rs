//! Opening of a shared store: its environment, and the error of a store that is not open.

use std::sync::Arc;

use runtime::process_clock::ProcessClock;

/// Cause for which the shared store is not open.
#[derive(Debug)]
pub struct OpenError {
    /// Every fault, a line each.
    pub said: String,
    /// A later try may succeed: the database is away, and none of its answers shows a wrong configuration.
    pub passes: bool,
}

/// Environment of the store. Only tests do not take the default.
#[derive(Clone)]
pub struct ConnectOptions {
    pub process_clock: Arc<ProcessClock>,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions { process_clock: Arc::new(ProcessClock::start()) }
    }
}
