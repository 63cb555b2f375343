//! Where the thread waits: ring 0 of the shard (DESIGN.md 4.1).
//!
//! Its completions signal `sleep`, an eventfd that glommio awaits while the shard is parked. The other rings
//! signal `bridge`, which ring 0 polls; lanes, store and island signal the waker's eventfd, which it polls too.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use glommio::io::BufferedFile;
use io_uring::types::Timespec;

use crate::time::{Instant, Span};

/// The eventfds of a shard and its one armed timeout.
pub(super) struct Hub {
    /// Signalled by ring 0. Blocking mode: glommio's READ waits on it.
    sleep: OwnedFd,
    /// Signalled by the other rings. Non-blocking.
    bridge: File,
    /// What the timeout being staged points to; read by the kernel when it is submitted.
    timespec: Box<Timespec>,
    /// When the armed timeout fires, and its number.
    pub armed: Option<(Instant, usize)>,
    next_timeout: usize,
}

impl Hub {
    pub fn new() -> io::Result<Hub> {
        Ok(Hub {
            sleep: eventfd(0)?,
            bridge: File::from(eventfd(libc::EFD_NONBLOCK)?),
            timespec: Box::new(Timespec::new()),
            armed: None,
            next_timeout: 0,
        })
    }

    pub fn sleep_fd(&self) -> RawFd {
        self.sleep.as_raw_fd()
    }

    /// Inside the shard's executor.
    pub fn bed(&self) -> io::Result<Bed> {
        let own = self.sleep.try_clone()?.into_raw_fd();
        // SAFETY: the duplicate was just made and is owned by nobody else.
        Ok(Bed { event: unsafe { BufferedFile::from_raw_fd(own) } })
    }

    pub fn bridge_fd(&self) -> RawFd {
        self.bridge.as_raw_fd()
    }

    /// Empties the bridge. Needed before its poll is armed again: a signal that io_uring itself makes ends a
    /// multishot poll (the kernel breaks the circle), and an unread count would fire the new one at once.
    pub fn empty_bridge(&mut self) {
        let mut count = [0; 8];
        // An error says that it is empty already.
        let _ = self.bridge.read(&mut count);
    }

    /// Notes a timeout of `span` and returns its number and where its length is.
    pub fn set_timeout(&mut self, at: Instant, span: Span) -> (usize, *const Timespec) {
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

/// Where the thread sleeps: `Hub::sleep` as glommio reads it.
pub(crate) struct Bed {
    event: BufferedFile,
}

impl Bed {
    /// Until ring 0 announces a completion.
    pub(crate) async fn sleep(&self) {
        // An eventfd is read in eights.
        let slept = self.event.read_at(0, 8).await;
        assert!(slept.is_ok(), "an eventfd can always be read: {slept:?}");
    }
}

/// A new eventfd with count 0.
pub(crate) fn eventfd(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
