//! Wake of a parked shard for which something waits.
//!
//! The shard says that it parks, looks at its lanes once more, and sleeps. A sender that has put something there takes
//! the parked flag down; the one that found it up must wake the shard. Both sides are SeqCst: either the sleeper sees
//! the mail or the sender sees the flag.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::ring::eventfd;

/// Wakes one shard. Shared with its store threads and the control plane; other shards ring its hub instead.
pub struct Waker {
    parked: AtomicBool,
    event: File,
}

impl Waker {
    pub(super) fn new() -> io::Result<Waker> {
        Ok(Waker { parked: AtomicBool::new(false), event: File::from(eventfd()?) })
    }

    /// Wakes the shard if it is parked or about to park. Call it after the work is where the shard will look.
    pub fn wake(&self) {
        if self.claim() {
            self.ring();
        }
    }

    /// Takes the parked flag down. Returns true if it was up: the caller must then wake the shard.
    pub(super) fn claim(&self) -> bool {
        // Orders the push before against the look after: a plain load is enough when the shard is not parked.
        fence(Ordering::SeqCst);
        self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::SeqCst)
    }

    /// Signals the eventfd that the shard awaits.
    pub(super) fn ring(&self) {
        // It neither blocks nor fails: that would take 2^64 signals without a read.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }

    /// The shard is about to sleep; it must look at its lanes once more before it does.
    pub(crate) fn park(&self) {
        self.parked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The shard is awake.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    /// The eventfd that the shard awaits, and its rings signal.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Waits for `ring`, for at most ten seconds.
    #[cfg(test)]
    pub(super) fn wait_for_test(&self) -> bool {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let mut poll = libc::pollfd { fd: self.event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that outlives the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 60_000) };
        let _ = (&self.event).read(&mut [0; 8]);
        ready == 1
    }
}
