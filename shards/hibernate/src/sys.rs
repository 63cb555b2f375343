//! System calls that neither the standard library nor rustix has. The only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd};

/// Turns the result of a call into an error when it is negative.
fn check(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets a socket option to a number of 32-bit words.
pub fn set(fd: impl AsFd, level: i32, name: i32, words: &[u32]) -> io::Result<()> {
    let bytes = size_of_val(words) as u32;
    // SAFETY: `words` is readable for exactly `bytes` bytes during the call.
    let result = unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, words.as_ptr().cast(), bytes) };
    check(result.into())
}

/// Reads a socket option of `N` 32-bit words; words that the kernel does not fill are 0.
pub fn get<const N: usize>(fd: impl AsFd, level: i32, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut bytes = size_of_val(&words) as u32;
    let into = words.as_mut_ptr().cast();
    // SAFETY: `into` is writable for `bytes` bytes, and the kernel writes no more than that.
    let result = unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, into, &raw mut bytes) };
    check(result.into()).map(|()| words)
}

/// Returns how many bytes of the stream are unsent or not acknowledged (SIOCOUTQ).
pub fn unsent(fd: impl AsFd) -> io::Result<i32> {
    let mut bytes = 0i32;
    // SAFETY: TIOCOUTQ writes one int to the pointer.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(result.into()).map(|()| bytes)
}

/// Waits until every receive path of the kernel that began before the call has ended:
/// `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is `synchronize_rcu` there. It takes 10 ms and more.
pub fn grace_period() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: i32 = 1;
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) })
}
