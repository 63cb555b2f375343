//! System calls that the standard library does not have. The only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Turns the result of a call into an error when it is negative.
fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Sets a socket option to a number of 32-bit words.
pub fn set(fd: impl AsFd, level: i32, name: i32, words: &[u32]) -> io::Result<()> {
    let bytes = size_of_val(words) as u32;
    // SAFETY: `words` is readable for exactly `bytes` bytes during the call.
    let result = unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, words.as_ptr().cast(), bytes) };
    check(result.into()).map(drop)
}

/// Reads a socket option of `N` 32-bit words; words that the kernel does not fill are 0.
pub fn get<const N: usize>(fd: impl AsFd, level: i32, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut bytes = size_of_val(&words) as u32;
    let into = words.as_mut_ptr().cast();
    // SAFETY: `into` is writable for `bytes` bytes, and the kernel writes no more than that.
    let result = unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, into, &raw mut bytes) };
    check(result.into()).map(|_| words)
}

/// Returns how many bytes of the stream are unsent or not acknowledged (SIOCOUTQ).
pub fn unsent(fd: impl AsFd) -> io::Result<i32> {
    let mut bytes = 0i32;
    // SAFETY: TIOCOUTQ writes one int to the pointer.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(result.into()).map(|_| bytes)
}

/// Creates a socket that is closed on exec.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) }.into())?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn raw_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}

/// Binds a socket to an IPv4 address.
pub fn bind(fd: impl AsFd, address: SocketAddrV4) -> io::Result<()> {
    let raw = raw_address(address);
    let bytes = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: `raw` is a whole sockaddr_in.
    check(unsafe { libc::bind(fd.as_fd().as_raw_fd(), (&raw const raw).cast(), bytes) }.into()).map(drop)
}

/// Connects a socket to an IPv4 address. In repair mode the kernel sends nothing.
pub fn connect(fd: impl AsFd, address: SocketAddrV4) -> io::Result<()> {
    let raw = raw_address(address);
    let bytes = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: `raw` is a whole sockaddr_in.
    check(unsafe { libc::connect(fd.as_fd().as_raw_fd(), (&raw const raw).cast(), bytes) }.into()).map(drop)
}

/// Lengthens the accept queue of a listener.
pub fn listen(fd: impl AsFd, backlog: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::listen(fd.as_fd().as_raw_fd(), backlog) }.into()).map(drop)
}

/// Waits until every receive path that began before the call has ended: `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is
/// `synchronize_rcu` in the kernel.
pub fn grace_period() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: i32 = 1;
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) }).map(drop)
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

/// Milliseconds of CLOCK_MONOTONIC, which TCP timestamps count.
pub fn monotonic_ms() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a whole timespec. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000) as u32
}
