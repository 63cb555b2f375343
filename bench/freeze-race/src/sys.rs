//! System calls that std, rustix and `hibernate::sys` lack. The only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Turns the result of a call into an error when it is negative.
fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves the calling thread into a new network namespace.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: the call changes the network namespace of the calling thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Turns an open `/dev/net/tun` into the TUN device `name`, without packet information.
pub fn tun_device(tun: impl AsFd, name: &str) -> io::Result<()> {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    const IFF_TUN_NO_PI: u16 = 0x1001;
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&IFF_TUN_NO_PI.to_ne_bytes());
    // SAFETY: `request` has the size of a struct ifreq, its name ends with a zero byte.
    check(unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) })
}
