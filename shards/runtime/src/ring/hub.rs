//! The place where the thread waits (RULES.md).
//!
//! A shard has one eventfd, its waker's: every other ring announces its completions there while the shard is parked,
//! and lanes, store and control plane write to it. Ring 0 is the hub: it polls that eventfd, and the shard's timeout
//! and the bells of other shards come in there. The shard blocks in the hub and hears of everything.
//!
//! The hub announces nothing on the eventfd that it polls: it would wake itself.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::types::Timespec;

use machine::time::{Instant, TimeSpan};

/// The one armed timeout of a shard.
pub(super) struct Hub {
    /// Length of the timeout that is staged; the kernel reads it at the submission.
    timespec: Box<Timespec>,
    /// Time of the armed timeout, and its number.
    pub armed: Option<(Instant, usize)>,
    next_timeout: usize,
    /// The poll of the eventfd is armed.
    pub watching: bool,
}

impl Hub {
    pub fn new() -> Hub {
        Hub { timespec: Box::new(Timespec::new()), armed: None, next_timeout: 0, watching: false }
    }

    /// Notes a timeout of `span` and returns its number and where its length is.
    pub fn set_timeout(&mut self, at: Instant, span: TimeSpan) -> (usize, *const Timespec) {
        let (seconds, nanos) = (span.0 / 1_000_000_000, (span.0 % 1_000_000_000) as u32);
        *self.timespec = Timespec::new().sec(seconds).nsec(nanos);
        self.next_timeout = (self.next_timeout + 1) % super::op::AUX_MAX;
        self.armed = Some((at, self.next_timeout));
        (self.next_timeout, &raw const *self.timespec)
    }

    /// A timeout has completed; an older one that was removed changes nothing.
    pub fn fired(&mut self, number: usize) {
        if self.armed.is_some_and(|(_, armed)| armed == number) {
            self.armed = None;
        }
    }
}

/// A new eventfd with count 0.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
