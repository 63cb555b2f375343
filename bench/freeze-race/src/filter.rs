//! The eBPF socket filters: one for a socket that is set apart, one for the listener.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::netfilter::JUDGED_MARK;
use crate::sys;
use hibernate::sys::set;

/// One instruction of eBPF (RFC 9669 section 3): operation, registers (source in the high half), offset, constant.
const fn op(code: u8, registers: u8, offset: u16, constant: u32) -> u64 {
    code as u64 | (registers as u64) << 8 | (offset as u64) << 16 | (constant as u64) << 32
}

const EXIT: u64 = op(0x95, 0, 0, 0);

/// Loads the filter that drops every segment.
pub fn load_drop_all() -> io::Result<OwnedFd> {
    sys::load_filter(&[op(0xb7, 0x00, 0, 0), EXIT])
}

/// Loads the filter of a listener. It drops a segment that comes to the listener and has no [`JUDGED_MARK`]: the packet
/// rules are gone, and the segment may belong to a frozen connection. Without the filter the kernel would answer with a
/// reset, because the listener knows no such connection.
///
/// While the rules are there, every segment for the listener has passed a verdict, so the filter drops nothing. An
/// accepted socket inherits the filter, and is no listener.
pub fn load_listener_guard() -> io::Result<OwnedFd> {
    /// Offsets in `struct __sk_buff` and `struct bpf_sock` of the kernel.
    const MARK: u16 = 8;
    const SK: u16 = 168;
    const STATE: u16 = 72;
    const LISTEN: u32 = 10;
    sys::load_filter(&[
        op(0x61, 0x12, MARK, 0),        // 0: r2 = mark of the segment
        op(0x15, 0x02, 6, JUDGED_MARK), // 1: judged: accept (8)
        op(0x79, 0x12, SK, 0),          // 2: r2 = socket
        op(0x15, 0x02, 4, 0),           // 3: none: accept (8)
        op(0x61, 0x22, STATE, 0),       // 4: r2 = state of the socket
        op(0x55, 0x02, 2, LISTEN),      // 5: no listener: accept (8)
        op(0xb7, 0x00, 0, 0),           // 6: drop
        EXIT,                           // 7
        op(0xb7, 0x00, 0, u32::MAX),    // 8: accept
        EXIT,                           // 9
    ])
}

/// Attaches a filter to a socket and replaces its present filter.
pub fn attach(socket: impl AsFd, filter: &OwnedFd) -> io::Result<()> {
    const SO_ATTACH_BPF: i32 = 50;
    set(socket, libc::SOL_SOCKET, SO_ATTACH_BPF, &[filter.as_raw_fd() as u32])
}

/// Removes the filter of a socket.
pub fn detach(socket: impl AsFd) -> io::Result<()> {
    const SO_DETACH_FILTER: i32 = 27;
    set(socket, libc::SOL_SOCKET, SO_DETACH_FILTER, &[0])
}
