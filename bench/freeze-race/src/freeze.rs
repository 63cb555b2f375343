//! Freezing and thawing of one connection by TCP_REPAIR. Nothing leaves the host in either.

use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;

use crate::netfilter::LIVE_MARK;
use crate::sys::{self, get, monotonic_ms, set};

const TCP: i32 = libc::IPPROTO_TCP;
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;
/// Leaves repair mode without a window probe.
const SILENT: u32 = u32::MAX;

/// Properties of a connection that never change: read once, after accept.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    pub local: SocketAddrV4,
    pub peer: SocketAddrV4,
    pub mss: u32,
    /// Options of the handshake, as in TCP_INFO: 1 timestamps, 2 SACK, 4 window scales.
    pub options: u8,
    /// Low half: the peer's window scale. High half: that of this side.
    pub window_scales: u8,
    /// Distance between the timestamp clock of the connection and the monotonic clock.
    pub timestamp_offset: u32,
}

/// A frozen connection.
#[derive(Clone, Copy, Debug)]
pub struct Frozen {
    pub fixed: Fixed,
    /// Next stream position expected from the peer.
    pub receive_next: u32,
    /// Next stream position to send.
    pub send_next: u32,
    pub send_window: u32,
    pub receive_window: u32,
}

/// Reason why a connection stays live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Bytes wait to be read, or lie beyond a hole in the stream.
    Unread,
    /// Bytes are unsent, or the peer has not acknowledged them.
    Unsent,
    /// The kernel owes the peer an acknowledgement.
    OwedAck,
    /// The window of the peer is closed.
    ZeroWindow,
    /// The connection is not established any more.
    Ended,
}

/// Protection against bytes that arrive between the check and the close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Not at all: loses bytes, which shows that the race test can fail.
    Naive,
    /// A drop filter on the socket, then a grace period. Dropped segments are sent again by the peer.
    Filter,
    /// The socket loses its mark, then a grace period: from then on its segments pass through the queue, where a lock
    /// holds them while the connection is recorded and closed. Nothing is dropped.
    Mark,
}

/// Reads the properties that never change.
pub fn fixed(stream: &TcpStream, local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Fixed> {
    // TCP_MAXSEG is the limit of the peer, rather than the current size, in repair mode only.
    set(stream, TCP, libc::TCP_REPAIR, &[1])?;
    let [_, second] = get::<2>(stream, TCP, libc::TCP_INFO)?;
    let [_, options, window_scales, _] = second.to_ne_bytes();
    let [mss] = get(stream, TCP, libc::TCP_MAXSEG)?;
    let [timestamp] = get(stream, TCP, libc::TCP_TIMESTAMP)?;
    set(stream, TCP, libc::TCP_REPAIR, &[SILENT])?;
    let timestamp_offset = timestamp.wrapping_sub(monotonic_ms());
    Ok(Fixed { local, peer, mss, options, window_scales, timestamp_offset })
}

/// Reads the connection out and leaves it in repair mode, in which closing it is silent. A refusal leaves it as it was.
pub fn record(stream: &TcpStream, fixed: &Fixed) -> io::Result<Result<Frozen, Refusal>> {
    set(stream, TCP, libc::TCP_REPAIR, &[1])?;
    let judged = judge(stream, fixed);
    if !matches!(judged, Ok(Ok(_))) {
        set(stream, TCP, libc::TCP_REPAIR, &[SILENT])?;
    }
    judged
}

fn judge(stream: &TcpStream, fixed: &Fixed) -> io::Result<Result<Frozen, Refusal>> {
    const ESTABLISHED: u8 = 1;
    const SO_MEMINFO: i32 = 55;
    let [first] = get(stream, TCP, libc::TCP_INFO)?;
    if first.to_ne_bytes()[0] != ESTABLISHED {
        return Ok(Err(Refusal::Ended));
    }
    if sys::unsent(stream)? > 0 {
        return Ok(Err(Refusal::Unsent));
    }
    // The memory of received segments counts those beyond a hole too, which FIONREAD does not.
    let [received] = get(stream, libc::SOL_SOCKET, SO_MEMINFO)?;
    if received > 0 {
        return Ok(Err(Refusal::Unread));
    }
    set(stream, TCP, libc::TCP_REPAIR_QUEUE, &[SEND_QUEUE])?;
    let [send_next] = get(stream, TCP, libc::TCP_QUEUE_SEQ)?;
    set(stream, TCP, libc::TCP_REPAIR_QUEUE, &[RECEIVE_QUEUE])?;
    let [receive_next] = get(stream, TCP, libc::TCP_QUEUE_SEQ)?;
    let [_, send_window, _, receive_window, acknowledged] = get(stream, TCP, libc::TCP_REPAIR_WINDOW)?;
    if acknowledged != receive_next {
        return Ok(Err(Refusal::OwedAck));
    }
    if send_window == 0 {
        return Ok(Err(Refusal::ZeroWindow));
    }
    Ok(Ok(Frozen { fixed: *fixed, receive_next, send_next, send_window, receive_window }))
}

/// Makes the socket again. Fails with EADDRNOTAVAIL while the tuple is live.
pub fn thaw(frozen: &Frozen) -> io::Result<TcpStream> {
    let Frozen { fixed, receive_next, send_next, send_window, receive_window } = *frozen;
    let socket: OwnedFd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)?;
    set(&socket, TCP, libc::TCP_REPAIR, &[1])?;
    sys::bind(&socket, fixed.local)?;
    set(&socket, TCP, libc::TCP_REPAIR_QUEUE, &[RECEIVE_QUEUE])?;
    set(&socket, TCP, libc::TCP_QUEUE_SEQ, &[receive_next])?;
    set(&socket, TCP, libc::TCP_REPAIR_QUEUE, &[SEND_QUEUE])?;
    set(&socket, TCP, libc::TCP_QUEUE_SEQ, &[send_next])?;
    // As a repair option the segment size comes too late: segments stay at 524 bytes. More than 32,767 is refused.
    set(&socket, TCP, libc::TCP_MAXSEG, &[fixed.mss.min(32_767)])?;
    sys::connect(&socket, fixed.peer)?;
    let mut options = Vec::with_capacity(8);
    if fixed.options & 4 != 0 {
        let scales = u32::from(fixed.window_scales);
        options.extend([3, scales & 15 | scales >> 4 << 16]);
    }
    if fixed.options & 2 != 0 {
        options.extend([4, 0]);
    }
    if fixed.options & 1 != 0 {
        options.extend([8, 0]);
    }
    set(&socket, TCP, libc::TCP_REPAIR_OPTIONS, &options)?;
    if fixed.options & 1 != 0 {
        // The lowest bit would switch the socket to microseconds.
        let now = fixed.timestamp_offset.wrapping_add(monotonic_ms()).wrapping_add(1) & !1;
        set(&socket, TCP, libc::TCP_TIMESTAMP, &[now])?;
    }
    let window = [receive_next, send_window, send_window, receive_window, receive_next];
    set(&socket, TCP, libc::TCP_REPAIR_WINDOW, &window)?;
    set(&socket, TCP, libc::TCP_REPAIR, &[SILENT])?;
    Ok(TcpStream::from(socket))
}

/// Lets segments of the connection pass the rules without the queue, or not any more.
pub fn mark(stream: &TcpStream, live: bool) -> io::Result<()> {
    set(stream, libc::SOL_SOCKET, libc::SO_MARK, &[if live { LIVE_MARK } else { 0 }])
}
