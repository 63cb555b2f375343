//! System calls that std, rustix and `hibernate::sys` lack. The only file of this crate with `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Turns the result of a call into an error when it is negative.
fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
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
