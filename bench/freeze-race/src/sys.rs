//! System calls that neither the standard library nor `hibernate::sys` has. The only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Turns the result of a call into an error when it is negative.
fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Lengthens the accept queue of a listener.
pub fn listen(fd: impl AsFd, backlog: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::listen(fd.as_fd().as_raw_fd(), backlog) }.into()).map(drop)
}

/// Loads an eBPF socket filter.
pub fn load_filter(code: &[u64]) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: i32 = 5;
    const SOCKET_FILTER: u64 = 1;
    let license = c"GPL";
    let mut attributes = [0u64; 16];
    attributes[0] = SOCKET_FILTER | (code.len() as u64) << 32;
    attributes[1] = code.as_ptr() as u64;
    attributes[2] = license.as_ptr() as u64;
    // SAFETY: program, license and attributes outlive the call, and the size is the size of the attributes.
    let fd =
        check(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, attributes.as_ptr(), size_of_val(&attributes)) })?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Moves the calling thread into a new network namespace.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: the call changes the network namespace of the calling thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Moves the calling thread into the network namespace of the descriptor.
pub fn enter_network(namespace: impl AsFd) -> io::Result<()> {
    // SAFETY: the call changes the network namespace of the calling thread only.
    check(unsafe { libc::setns(namespace.as_fd().as_raw_fd(), libc::CLONE_NEWNET) }.into()).map(drop)
}

/// Turns an open `/dev/net/tun` into the TUN device `name`, without packet information.
pub fn tun_device(tun: impl AsFd, name: &str) -> io::Result<()> {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    const IFF_TUN_NO_PI: u16 = 0x1001;
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&IFF_TUN_NO_PI.to_ne_bytes());
    // SAFETY: `request` has the size of a struct ifreq, its name ends with a zero byte.
    check(unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) }.into()).map(drop)
}

/// Waits until one of at most four descriptors is readable; tells which.
pub fn poll(fds: &[i32], timeout_ms: i32) -> io::Result<[bool; 4]> {
    let mut raw = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 4];
    for (slot, fd) in raw.iter_mut().zip(fds) {
        slot.fd = *fd;
    }
    // SAFETY: `raw` has four entries; the kernel ignores those with descriptor -1.
    check(unsafe { libc::poll(raw.as_mut_ptr(), 4, timeout_ms) }.into())?;
    Ok(raw.map(|slot| slot.revents != 0))
}

/// Sets the soft limit of descriptors of this process; returns the limit before.
pub fn limit_descriptors(soft: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a whole rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }.into())?;
    let before = limit.rlim_cur;
    limit.rlim_cur = soft.min(limit.rlim_max);
    // SAFETY: the pointer is to a whole rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }.into())?;
    Ok(before)
}

/// An epoll instance, level-triggered and for reading.
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Descriptors that one call returns at most.
    pub const EVENTS_MAX: usize = 256;

    pub fn new() -> io::Result<Self> {
        // SAFETY: the call takes numbers only.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into())?;
        // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    pub fn add(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: key };
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: `event` is a whole epoll_event.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) }.into()).map(drop)
    }

    /// Returns the keys of up to `EVENTS_MAX` readable descriptors.
    pub fn wait(&self, keys: &mut Vec<u64>, timeout_ms: i32) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; Self::EVENTS_MAX];
        keys.clear();
        let into = events.as_mut_ptr();
        // SAFETY: `events` has room for `EVENTS_MAX` events.
        let count =
            check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), into, Self::EVENTS_MAX as i32, timeout_ms) }.into())?;
        keys.extend(events[..count as usize].iter().map(|event| event.u64));
        Ok(())
    }
}
