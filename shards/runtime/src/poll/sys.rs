//! System calls of the poll plane. Results are those of completions: a negative one is an errno.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Maximum number of events of one wait.
pub(super) const EVENTS_MAX: usize = 1_024;

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
const INTEREST: u32 = READABLE | libc::EPOLLOUT as u32 | libc::EPOLLET as u32;
const BROKEN: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const FLAGS: i32 = libc::MSG_DONTWAIT;

/// An event of a registered descriptor.
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub data: u64,
    /// True for bytes, and for the end of the stream.
    pub readable: bool,
    pub writable: bool,
    /// True for the end of the stream or an error, which stays readable.
    pub is_last: bool,
}

/// An epoll instance, and the events of its last wait.
pub(super) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Registers a descriptor. The kernel then reports each of its changes once.
    pub fn add(&self, fd: RawFd, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: INTEREST, u64: data };
        self.control(libc::EPOLL_CTL_ADD, fd, &raw mut event)
    }

    /// Removes the registration of a descriptor that stays open.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut())
    }

    fn control(&self, operation: i32, fd: RawFd, event: *mut libc::epoll_event) -> io::Result<()> {
        // SAFETY: `event` is null for a removal, which reads none, or an event that outlives the call.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for events at most `millis` (-1: no limit), and returns their number.
    pub fn wait(&mut self, millis: i32) -> usize {
        self.events.clear();
        let target = self.events.as_mut_ptr();
        // SAFETY: the vector has room for that number of events.
        let result = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), target, EVENTS_MAX as i32, millis) };
        let Ok(count) = usize::try_from(result) else {
            let error = io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EINTR), "epoll_wait: {error}");
            return 0;
        };
        // SAFETY: the kernel has written that number of events, which is at most the capacity.
        unsafe { self.events.set_len(count) };
        count
    }

    /// Returns an event of the last wait.
    pub fn event(&self, at: usize) -> Event {
        let libc::epoll_event { events, u64: data } = self.events[at];
        let is_broken = events & BROKEN != 0;
        Event {
            data,
            readable: events & READABLE != 0 || is_broken,
            writable: events & libc::EPOLLOUT as u32 != 0 || is_broken,
            is_last: events & libc::EPOLLRDHUP as u32 != 0 || is_broken,
        }
    }
}

fn result(returned: isize) -> i32 {
    if returned < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { returned as i32 }
}

/// Accepts one connection of a listener that does not block.
pub(super) fn accept(listener: RawFd) -> Result<OwnedFd, i32> {
    // SAFETY: null pointers ask for no address.
    let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
    match result(fd as isize) {
        // SAFETY: the descriptor was just made and has no other owner.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        errno => Err(errno),
    }
}

/// Makes accepts of a listener return when no connection waits.
pub(super) fn set_nonblocking(listener: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::ioctl_fionbio(listener, true).map_err(io::Error::from)
}

/// Receives into `target`.
pub(super) fn recv(fd: RawFd, target: &mut [u8]) -> i32 {
    // SAFETY: `target` has room for that number of bytes and outlives the call.
    result(unsafe { libc::recv(fd, target.as_mut_ptr().cast(), target.len(), FLAGS) })
}

/// Sends as much of `bytes` as the socket takes.
pub(super) fn send(fd: RawFd, bytes: &[u8]) -> i32 {
    let flags = FLAGS | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` outlives the call.
    result(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Shuts down the write side of a socket (SHUT_WR), or both sides.
pub(super) fn shutdown(fd: RawFd, how: i32) -> i32 {
    // SAFETY: no pointers are passed.
    result(unsafe { libc::shutdown(fd, how) } as isize)
}

/// Writes the address of the TCP peer to `target`, whose length must be that of the family.
pub(super) fn peer(fd: RawFd, target: &mut [u8]) -> i32 {
    let mut len = target.len() as libc::socklen_t;
    // SAFETY: `target` has room for `len` bytes, and both outlive the call. The kernel writes no more, also of an
    // address that is longer.
    match result(unsafe { libc::getpeername(fd, target.as_mut_ptr().cast(), &raw mut len) } as isize) {
        0 if len as usize != target.len() => -libc::EINVAL,
        0 => len as i32,
        errno => errno,
    }
}
