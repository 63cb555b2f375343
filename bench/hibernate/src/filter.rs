//! The eBPF socket filters: one for a socket that is set apart, one for the listener.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::sys;

/// One instruction of eBPF (RFC 9669 section 3): operation, registers (source in the high half), offset, constant.
const fn op(code: u8, registers: u8, offset: u16, constant: u32) -> u64 {
    code as u64 | (registers as u64) << 8 | (offset as u64) << 16 | (constant as u64) << 32
}

const EXIT: u64 = op(0x95, 0, 0, 0);

/// Loads the filter that drops every segment.
pub fn load_drop_all() -> io::Result<OwnedFd> {
    sys::load_filter(&[op(0xb7, 0x00, 0, 0), EXIT])
}

/// Loads the filter of a listener: a segment with bytes or FIN, but without SYN, is dropped in silence. The kernel
/// would answer it with a reset, since the listener has no connection for it: it belongs to a frozen one, and passed
/// the packet rules because they are gone. Accepted sockets inherit the filter, in which it drops nothing.
///
/// An acknowledgement without bytes passes: it may be the last segment of a handshake.
pub fn load_listener_guard() -> io::Result<OwnedFd> {
    /// Offsets in `struct __sk_buff` and `struct bpf_sock` of the kernel.
    const LEN: u16 = 0;
    const SK: u16 = 168;
    const STATE: u16 = 72;
    const LISTEN: u32 = 10;
    const FIN: u32 = 1;
    const SYN: u32 = 2;
    sys::load_filter(&[
        op(0xbf, 0x16, 0, 0),        // 0: r6 = segment
        op(0x79, 0x62, SK, 0),       // 1: r2 = its socket
        op(0x15, 0x02, 10, 0),       // 2: none: accept (13)
        op(0x61, 0x22, STATE, 0),    // 3: r2 = state of the socket
        op(0x55, 0x02, 8, LISTEN),   // 4: no listener: accept (13)
        op(0x30, 0x00, 0, 13),       // 5: r0 = flags of the TCP header
        op(0x45, 0x00, 6, SYN),      // 6: SYN: accept (13)
        op(0x45, 0x00, 7, FIN),      // 7: FIN: drop (15)
        op(0x30, 0x00, 0, 12),       // 8: r0 = length of the TCP header, in the high half
        op(0x77, 0x00, 0, 4),        // 9: r0 >>= 4
        op(0x67, 0x00, 0, 2),        // 10: r0 <<= 2: bytes
        op(0x61, 0x61, LEN, 0),      // 11: r1 = length of the segment
        op(0xad, 0x10, 2, 0),        // 12: r0 < r1: it has bytes: drop (15)
        op(0xb7, 0x00, 0, u32::MAX), // 13: accept
        EXIT,                        // 14
        op(0xb7, 0x00, 0, 0),        // 15: drop
        EXIT,                        // 16
    ])
}

/// Attaches a filter to a socket, in the place of the one that it has.
pub fn attach(socket: impl AsFd, filter: &OwnedFd) -> io::Result<()> {
    const SO_ATTACH_BPF: i32 = 50;
    sys::set(socket, libc::SOL_SOCKET, SO_ATTACH_BPF, &[filter.as_raw_fd() as u32])
}

/// Takes the filter from a socket.
pub fn detach(socket: impl AsFd) -> io::Result<()> {
    const SO_DETACH_FILTER: i32 = 27;
    sys::set(socket, libc::SOL_SOCKET, SO_DETACH_FILTER, &[0])
}
