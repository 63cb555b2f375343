//! Settings of an embedded store.

use std::sync::Arc;
use std::time::Duration;

use runtime::process_clock::ProcessClock;

/// End of the process, called when nothing can be written any more.
pub type Fatal = Arc<dyn Fn(&str) + Send + Sync>;

/// Probe of a test in the committer.
#[cfg(test)]
pub(crate) type CommitProbe = Arc<dyn Fn() -> fjall::Result<()> + Send + Sync>;

/// Rows that one user may have, about. More messages are refused until some are acked, expired or dropped.
const USER_ROWS_MAX: u64 = 262_144;
/// Exit status when storage fails.
const EXIT_STORAGE: i32 = 74;

/// Settings of an embedded store.
#[derive(Clone)]
pub struct Options {
    /// Cache of blocks, bytes (`store.cache`).
    pub cache_bytes: u64,
    /// At this much on disk, bytes (`store.max_bytes`), messages are refused; registers and saves go on for an eighth
    /// more. Journals alone take 64 MiB and up to 320, so anything below 1 GiB is for tests.
    pub bytes_max: u64,
    /// Rows that one user may have, about: one row in 64 is counted.
    pub user_rows_max: u64,
    /// Reserve of the file system, bytes, at most an eighth of it: free beside what the store needs for itself.
    pub bytes_free_min: u64,
    /// Reader threads, at least 1.
    pub readers: usize,
    /// A write under way for longer opens the circuit.
    pub stall_after: Duration,
    /// Minimum time between two compactions of a full store, which give the space of deletes back.
    pub compact_every: Duration,
    /// True if expired rows and idle users are reclaimed in the background.
    pub sweep: bool,
    /// The clock for expiry.
    pub process_clock: Arc<ProcessClock>,
    /// Called once when nothing can be written any more; the default prints the reason on standard error and exits.
    pub fatal: Fatal,
    /// Called before each sync.
    #[cfg(test)]
    pub(crate) before_commit: Option<CommitProbe>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 32 << 20,
            bytes_max: u64::MAX,
            user_rows_max: USER_ROWS_MAX,
            bytes_free_min: 256 << 20,
            readers: 2,
            stall_after: Duration::from_secs(3),
            compact_every: Duration::from_secs(60),
            sweep: true,
            process_clock: Arc::new(ProcessClock::start()),
            fatal: Arc::new(|why| {
                eprintln!("murre: {why}");
                std::process::exit(EXIT_STORAGE);
            }),
            #[cfg(test)]
            before_commit: None,
        }
    }
}
