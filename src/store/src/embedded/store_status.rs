//! State that the threads of a store and its ports share without waiting.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use machine::stats::{Board, Counters};

use super::group::cleanup::CleanupOp;
use super::mail::CommitterMail;
use super::options::Options;
use super::room::Space;
use super::stats::{StoreStats, Tally};

/// Upkeep mails on their way to the committer. Shed: the next walk finds the same rows.
const UPKEEP_MAX: usize = 64;

/// State that the threads of a store and its ports share without waiting.
pub(super) struct StoreStatus {
    pub(super) started: Instant,
    pub(super) stall_after: Duration,
    pub(super) user_rows_max: u64,
    pub(super) compact_every: Duration,
    pub(super) sweep: bool,
    pub(super) space: Arc<Space>,
    /// Milliseconds since `started` of the commit under way; 0 while there is none.
    pub(super) commit_since: AtomicU64,
    pub(super) circuit_open: AtomicBool,
    /// Operations waiting for the committer.
    pub(super) queued: AtomicU64,
    /// Upkeep mails waiting for the committer.
    pub(super) upkeep: AtomicUsize,
    pub(super) tally: Tally,
    pub(super) board: Arc<Board>,
}

impl StoreStatus {
    pub(super) fn new(dir: &Path, options: &Options) -> StoreStatus {
        StoreStatus {
            started: Instant::now(),
            stall_after: options.stall_after,
            user_rows_max: options.user_rows_max,
            space: Arc::new(Space::new(dir, options)),
            compact_every: options.compact_every,
            sweep: options.sweep,
            commit_since: AtomicU64::new(0),
            circuit_open: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            upkeep: AtomicUsize::new(0),
            tally: Tally::default(),
            board: Arc::new(Board::new(&[StoreStats::MEANINGS])),
        }
    }

    pub(super) fn commit_began(&self) {
        self.commit_since.store((self.started.elapsed().as_millis() as u64).max(1), Ordering::Relaxed);
    }

    pub(super) fn commit_ended(&self) {
        self.commit_since.store(0, Ordering::Relaxed);
        self.circuit_open.store(false, Ordering::Relaxed);
    }

    /// Opens the circuit when the commit under way takes too long; it closes with that commit's end.
    pub(super) fn watch(&self) {
        let since = self.commit_since.load(Ordering::Relaxed);
        let now = self.started.elapsed().as_millis() as u64;
        if since > 0 && now.saturating_sub(since) > self.stall_after.as_millis() as u64 {
            self.circuit_open.store(true, Ordering::Relaxed);
            if self.commit_since.load(Ordering::Relaxed) != since {
                // It ended between the two looks.
                self.circuit_open.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Sends upkeep to the committer; returns false if it was dropped: the sweep is off, or many mails wait.
    pub(super) fn tell(&self, committer: &Sender<CommitterMail>, upkeep: CleanupOp) -> bool {
        if !self.sweep && !matches!(upkeep, CleanupOp::ClearMark(_)) {
            return false;
        }
        let fits = self.upkeep.fetch_add(1, Ordering::Relaxed) < UPKEEP_MAX;
        if fits {
            let _ = committer.send(CommitterMail::Upkeep(upkeep));
        } else {
            self.upkeep.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }

    pub(super) fn upkeep_taken(&self) {
        self.upkeep.fetch_sub(1, Ordering::Relaxed);
    }
}
