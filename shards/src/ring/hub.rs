//! The place where the thread waits (RULES.md).
//!
//! A shard has one eventfd, its waker's: every ring announces its completions there, and lanes, store and
//! control plane write to it; glommio awaits it while the shard is parked. Ring 0 is the hub: the shard's timeout and
//! the bells of other shards come in there.
//!
//! The eventfd is shared on purpose. Polling it in the hub, whose own eventfd is then awaited, loses wakes: a
//! ring cannot signal an eventfd from within another eventfd's wakeup, so the kernel defers that signal, and
//! kernel 6.18 does so only once per ring (found here: the second wake never came).
//!
//! A *warm* shard, one that is woken all the time, blocks in the hub itself: then the hub announces nothing, so it may
//! poll that eventfd. Before the shard goes back to the eventfd the poll is removed.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use glommio::io::BufferedFile;
use io_uring::types::Timespec;

use machine::time::{Instant, TimeSpan};

/// The one armed timeout of a shard.
pub(super) struct Hub {
    /// Length of the timeout that is staged; the kernel reads it at the submission.
    timespec: Box<Timespec>,
    /// Time of the armed timeout, and its number.
    pub armed: Option<(Instant, usize)>,
    next_timeout: usize,
    /// The poll of the eventfd is armed, or its removal is not complete.
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

/// The shard's eventfd as glommio reads it; the thread sleeps there.
pub(crate) struct EventFdWait {
    event: BufferedFile,
}

impl EventFdWait {
    /// Inside the shard's executor. The eventfd must be in blocking mode: glommio's READ waits on it.
    pub(crate) fn new(event: BorrowedFd<'_>) -> io::Result<EventFdWait> {
        let own = event.try_clone_to_owned()?.into_raw_fd();
        // SAFETY: the duplicate was just made and has no other owner.
        Ok(EventFdWait { event: unsafe { BufferedFile::from_raw_fd(own) } })
    }

    /// Sleeps until a ring announces a completion or another thread writes to the eventfd.
    pub(crate) async fn sleep(&self) {
        // An eventfd is read in eights.
        let slept = self.event.read_at(0, 8).await;
        assert!(slept.is_ok(), "an eventfd can always be read: {slept:?}");
    }
}

/// A new eventfd with count 0, in blocking mode.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
