//! Freezing and thawing of one connection with TCP_REPAIR. Nothing leaves the host in either.
//!
//! [Report 0011](../../../docs/reports/0011-hibernation.md) has the cost of each step and the traps.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with};

use crate::queue::Segment;
use crate::sys::{self, get, set};
use crate::tuple::Tuple;

/// Mark of a live socket (SO_MARK): the packet rules let its segments pass. A socket without it is set apart, and its
/// segments wait in the queue. Packets that the socket sends have the mark too, so it has low bits only: the rules of
/// container networks look at higher ones.
pub const LIVE_MARK: u32 = 0x6d;

const TCP: i32 = libc::IPPROTO_TCP;
/// Values of TCP_REPAIR_QUEUE.
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;
/// Values of TCP_REPAIR. The last leaves repair mode without a window probe.
const REPAIR: u32 = 1;
const SILENT: u32 = u32::MAX;

/// Options of the handshake, as TCP_INFO and TCP_REPAIR_OPTIONS name them.
mod option {
    pub const TIMESTAMPS: u8 = 1;
    pub const SACK: u8 = 2;
    pub const WINDOW_SCALE: u8 = 4;
    pub const KIND_WINDOW_SCALE: u32 = 3;
    pub const KIND_SACK: u32 = 4;
    pub const KIND_TIMESTAMPS: u32 = 8;
}

/// A frozen connection: 64 bytes, of which 60 are used.
#[derive(Clone, Copy, Debug)]
pub struct Frozen {
    tuple: Tuple,
    /// Limit of the peer for the size of a segment.
    mss: NonZeroU16,
    /// Bits of [`option`].
    options: u8,
    /// Low half: the peer's window scale. High half: that of this side.
    window_scales: u8,
    /// Distance between the timestamp clock of the connection and the monotonic clock, in milliseconds.
    timestamp_offset: u32,
    /// Next stream position expected from the peer.
    receive_next: u32,
    /// Next stream position to send.
    send_next: u32,
    send_window: u32,
    receive_window: u32,
}

const _: () = assert!(size_of::<Frozen>() <= 60);

/// Sizes that a thawed socket gets, as its listener has them (SO_SNDBUF, SO_RCVBUF).
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    pub send: u32,
    pub receive: u32,
}

/// Numbers of a segment that this side sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Next stream position to send, and next one expected.
    pub position: u32,
    pub acknowledged: u32,
    /// As it goes out: scaled.
    pub window: u16,
    pub timestamp: Option<u32>,
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
    /// The peer takes smaller segments than the kernel lets a new socket send.
    SmallSegments,
    /// The connection is not established any more.
    Ended,
    /// A system call failed with this errno.
    System(i32),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::System(error.raw_os_error().unwrap_or(0))
    }
}

/// A connection that was read out, and whose socket is still there, in repair mode. Dropping it closes the socket in
/// silence.
#[derive(Debug)]
pub struct Checked {
    socket: OwnedFd,
    frozen: Frozen,
}

impl Checked {
    /// Returns the connection as it is kept.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// Takes the connection out of the kernel.
    pub fn close(self) -> Frozen {
        self.frozen
    }

    /// Gives the socket back as it was.
    pub fn abort(self) -> OwnedFd {
        // A socket that stays in repair mode is closed in silence; its peer is reset when it speaks.
        let _ = leave_repair(&self.socket);
        self.socket
    }
}

/// Reads a connection out, or gives the socket back as it was.
///
/// The socket is set apart: it has no [`LIVE_MARK`] since a grace period, and `socket` is its last descriptor.
///
/// # Errors
/// The socket, and the reason why it stays.
pub fn check(socket: OwnedFd, tuple: Tuple) -> Result<Checked, (OwnedFd, Refusal)> {
    match read_out(&socket, tuple) {
        Ok(frozen) => Ok(Checked { socket, frozen }),
        Err(refusal) => Err((socket, refusal)),
    }
}

/// Takes a connection out of the kernel at once: [`check`], then [`Checked::close`].
///
/// # Errors
/// As [`check`].
pub fn freeze(socket: OwnedFd, tuple: Tuple) -> Result<Frozen, (OwnedFd, Refusal)> {
    check(socket, tuple).map(Checked::close)
}

/// Reads the connection and leaves it in repair mode; a refused one leaves repair mode.
fn read_out(socket: &OwnedFd, tuple: Tuple) -> Result<Frozen, Refusal> {
    set(socket, TCP, libc::TCP_REPAIR, &[REPAIR])?;
    let judged = judge(socket, tuple);
    if judged.is_err() {
        leave_repair(socket)?;
    }
    judged
}

/// Ends repair mode, without a window probe. The kernel clears SO_REUSEADDR with it, and a socket without that, or what
/// is left of it for a minute behind its end, refuses the next process its listeners on the port.
fn leave_repair(socket: &OwnedFd) -> io::Result<()> {
    set(socket, TCP, libc::TCP_REPAIR, &[SILENT])?;
    set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &[1])
}

fn judge(socket: &OwnedFd, tuple: Tuple) -> Result<Frozen, Refusal> {
    const ESTABLISHED: u8 = 1;
    const SO_MEMINFO: i32 = 55;
    let [first, second] = get(socket, TCP, libc::TCP_INFO)?;
    let [state, ..] = first.to_ne_bytes();
    let [_, options, window_scales, _] = second.to_ne_bytes();
    if state != ESTABLISHED {
        return Err(Refusal::Ended);
    }
    if sys::unsent(socket)? > 0 {
        return Err(Refusal::Unsent);
    }
    // The memory of received segments counts those beyond a hole too, which FIONREAD does not.
    let [received] = get(socket, libc::SOL_SOCKET, SO_MEMINFO)?;
    if received > 0 {
        return Err(Refusal::Unread);
    }
    set(socket, TCP, libc::TCP_REPAIR_QUEUE, &[SEND_QUEUE])?;
    let [send_next] = get(socket, TCP, libc::TCP_QUEUE_SEQ)?;
    set(socket, TCP, libc::TCP_REPAIR_QUEUE, &[RECEIVE_QUEUE])?;
    let [receive_next] = get(socket, TCP, libc::TCP_QUEUE_SEQ)?;
    let [_, send_window, _, receive_window, acknowledged] = get(socket, TCP, libc::TCP_REPAIR_WINDOW)?;
    if acknowledged != receive_next {
        return Err(Refusal::OwedAck);
    }
    if send_window == 0 {
        return Err(Refusal::ZeroWindow);
    }
    // TCP_MAXSEG is the limit of the peer, rather than the current size, in repair mode only.
    let [mss] = get(socket, TCP, libc::TCP_MAXSEG)?;
    let [timestamp] = get(socket, TCP, libc::TCP_TIMESTAMP)?;
    let timestamp_offset = timestamp.wrapping_sub(monotonic_ms());
    let mss = segment_size(mss).ok_or(Refusal::SmallSegments)?;
    let options = options & (option::TIMESTAMPS | option::SACK | option::WINDOW_SCALE);
    Ok(Frozen {
        tuple,
        mss,
        options,
        window_scales,
        timestamp_offset,
        receive_next,
        send_next,
        send_window,
        receive_window,
    })
}

/// Returns the segment size of a peer as a thawed socket takes it: at most 32,767 bytes. `None` below 88, which the
/// kernel refuses (TCP_MIN_MSS): no segment of such a peer could thaw its connection.
fn segment_size(of_peer: u32) -> Option<NonZeroU16> {
    const MIN: u32 = 88;
    NonZeroU16::new(of_peer.min(32_767) as u16).filter(|_| of_peer >= MIN)
}

impl Frozen {
    /// Bytes of [`Frozen::to_bytes`].
    pub const BYTES: usize = 60;

    /// Returns the connection as bytes: tuple (36), segment size (2), options (1), window scales (1), and five words:
    /// timestamp offset, both stream positions, both windows. Little endian.
    pub fn to_bytes(&self) -> [u8; Frozen::BYTES] {
        let mut bytes = [0; Frozen::BYTES];
        let (tuple, rest) = bytes.split_at_mut(Tuple::BYTES);
        tuple.copy_from_slice(&self.tuple.to_bytes());
        rest[..2].copy_from_slice(&self.mss.get().to_le_bytes());
        rest[2..4].copy_from_slice(&[self.options, self.window_scales]);
        let words = [self.timestamp_offset, self.receive_next, self.send_next, self.send_window, self.receive_window];
        for (target, word) in rest[4..].chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`Frozen::to_bytes`] wrote. `None` for a segment size of 0.
    pub fn from_bytes(bytes: &[u8; Frozen::BYTES]) -> Option<Frozen> {
        let (tuple, rest) = bytes.split_first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        Some(Frozen {
            tuple: Tuple::from_bytes(tuple),
            mss: NonZeroU16::new(u16::from_le_bytes([rest[0], rest[1]]))?,
            options: rest[2],
            window_scales: rest[3],
            timestamp_offset: word(4),
            receive_next: word(8),
            send_next: word(12),
            send_window: word(16),
            receive_window: word(20),
        })
    }

    /// Returns the addresses of the connection.
    pub fn tuple(&self) -> Tuple {
        self.tuple
    }

    /// Makes the socket again, non-blocking, without [`LIVE_MARK`]: see [`set_live`].
    ///
    /// # Errors
    /// Those of the kernel: no descriptor or no memory is left; EADDRNOTAVAIL while the tuple is live.
    pub fn thaw(&self, buffers: Buffers) -> io::Result<OwnedFd> {
        let (local, peer) = (self.tuple.local(), self.tuple.peer());
        let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        set(&socket, TCP, libc::TCP_REPAIR, &[REPAIR])?;
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &[buffers.send])?;
        // Before the connect, which chooses the window.
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &[buffers.receive])?;
        bind(&socket, &local)?;
        set(&socket, TCP, libc::TCP_REPAIR_QUEUE, &[RECEIVE_QUEUE])?;
        set(&socket, TCP, libc::TCP_QUEUE_SEQ, &[self.receive_next])?;
        set(&socket, TCP, libc::TCP_REPAIR_QUEUE, &[SEND_QUEUE])?;
        set(&socket, TCP, libc::TCP_QUEUE_SEQ, &[self.send_next])?;
        // As a repair option the segment size comes too late: segments stay at 524 bytes.
        set(&socket, TCP, libc::TCP_MAXSEG, &[self.mss.get().into()])?;
        connect(&socket, &peer)?;
        self.restore_options(&socket)?;
        let Frozen { receive_next, send_window, receive_window, .. } = *self;
        let window = [receive_next, send_window, send_window, receive_window, receive_next];
        set(&socket, TCP, libc::TCP_REPAIR_WINDOW, &window)?;
        leave_repair(&socket)?;
        set(&socket, TCP, libc::TCP_NODELAY, &[1])?;
        Ok(socket)
    }

    fn restore_options(&self, socket: &OwnedFd) -> io::Result<()> {
        let mut options = [0u32; 6];
        let mut len = 0;
        let mut put = |kind: u32, value: u32| {
            options[len..len + 2].copy_from_slice(&[kind, value]);
            len += 2;
        };
        if self.options & option::WINDOW_SCALE != 0 {
            let scales = u32::from(self.window_scales);
            put(option::KIND_WINDOW_SCALE, scales & 15 | scales >> 4 << 16);
        }
        if self.options & option::SACK != 0 {
            put(option::KIND_SACK, 0);
        }
        if self.options & option::TIMESTAMPS != 0 {
            put(option::KIND_TIMESTAMPS, 0);
        }
        // The kernel refuses an empty list.
        if len > 0 {
            set(socket, TCP, libc::TCP_REPAIR_OPTIONS, &options[..len])?;
        }
        if self.options & option::TIMESTAMPS != 0 {
            set(socket, TCP, libc::TCP_TIMESTAMP, &[self.timestamp()])?;
        }
        Ok(())
    }

    /// Returns the numbers that a segment of this side has now.
    pub(crate) fn header(&self) -> Header {
        Header {
            local: self.tuple.local(),
            peer: self.tuple.peer(),
            position: self.send_next,
            acknowledged: self.receive_next,
            window: (self.receive_window >> (self.window_scales >> 4)).min(0xffff) as u16,
            timestamp: (self.options & option::TIMESTAMPS != 0).then(|| self.timestamp()),
        }
    }

    /// Timestamp clock of the connection. Its lowest bit is 0, because 1 would switch a socket to microseconds.
    fn timestamp(&self) -> u32 {
        self.timestamp_offset.wrapping_add(monotonic_ms()).wrapping_add(1) & !1
    }

    /// Returns the next stream position expected from the peer.
    pub fn receive_next(&self) -> u32 {
        self.receive_next
    }

    /// Returns true if this segment says only that the peer is there and has everything, as the answer to a probe does.
    pub fn is_sign_of_life(&self, segment: &Segment) -> bool {
        segment.is_bare && segment.position == self.receive_next && segment.acknowledged == Some(self.send_next)
    }

    /// Returns true if the kernel would act on a segment with these numbers, were the connection live: it is near the
    /// window in both directions (RFC 9293 section 3.10.7.4, RFC 5961). A segment of a stranger, who guesses both, is
    /// so once in 2^30 tries.
    ///
    /// A segment without acknowledgement (a SYN, or a reset without one) is judged by its position alone; a SYN by
    /// nothing, because it begins a stream: the kernel answers it with a challenge.
    pub fn takes(&self, position: u32, acknowledged: Option<u32>, syn: bool) -> bool {
        /// Bytes that the peer may send again, or may not have heard of yet: more than a socket's buffer.
        const BEHIND: u32 = 1 << 17;
        let ahead = self.receive_window.max(1);
        let position_fits = position.wrapping_sub(self.receive_next).wrapping_add(BEHIND) <= BEHIND + ahead;
        let answer_fits = acknowledged.is_none_or(|ack| self.send_next.wrapping_sub(ack) <= BEHIND);
        syn || (position_fits && answer_fits)
    }
}

/// Lets segments of a socket pass the rules without the queue, or sets it apart: then they wait for a verdict.
pub fn set_live(socket: impl AsFd, live: bool) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MARK, &[if live { LIVE_MARK } else { 0 }])
}

/// Milliseconds of CLOCK_MONOTONIC, which TCP timestamps count.
fn monotonic_ms() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const FROZEN: fn() -> Frozen = || Frozen {
        tuple: Tuple::new(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], 1).into()),
        mss: NonZeroU16::new(1_460).unwrap(),
        options: 7,
        window_scales: 0x77,
        timestamp_offset: 0,
        // Near the wrap of both streams.
        receive_next: 100,
        send_next: u32::MAX - 5,
        send_window: 60_000,
        receive_window: 30_000,
    };

    #[test]
    fn a_connection_is_read_back_as_it_was_written() {
        let bytes = FROZEN().to_bytes();
        assert_eq!(format!("{:?}", Frozen::from_bytes(&bytes)), format!("{:?}", Some(FROZEN())));
        assert!(Frozen::from_bytes(&[0; Frozen::BYTES]).is_none());
    }

    /// A remnant of such a socket would refuse the next process its listeners.
    #[test]
    #[ignore = "needs CAP_NET_ADMIN: bench/check test"]
    fn a_socket_that_is_not_frozen_or_thawed_lets_others_listen_on_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = OwnedFd::from(listener.accept().unwrap().0);
        let tuple = Tuple::of(&socket).unwrap();
        let reuses = |socket: &OwnedFd| get::<1>(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap() == [1];
        let checked = check(socket, tuple).unwrap();
        let socket = checked.abort();
        assert!(reuses(&socket), "behind an abort");
        client.write_all(b"unread").unwrap();
        let (socket, refusal) = check(socket, tuple).unwrap_err();
        assert_eq!(refusal, Refusal::Unread);
        assert!(reuses(&socket), "behind a refusal");
        let mut stream = TcpStream::from(socket);
        stream.read_exact(&mut [0; 6]).unwrap();
        set(&stream, TCP, libc::TCP_QUICKACK, &[1]).unwrap();
        let frozen = freeze(OwnedFd::from(stream), tuple).unwrap();
        let thawed = frozen.thaw(Buffers { send: 16 << 10, receive: 16 << 10 }).unwrap();
        assert!(reuses(&thawed), "behind a thaw");
        // A peer without any option of TCP, as some middleboxes leave it.
        let mut bare = freeze(thawed, tuple).unwrap();
        bare.options = 0;
        let thaw = |frozen: &Frozen| frozen.thaw(Buffers { send: 16 << 10, receive: 16 << 10 });
        let mut live = thaw(&bare).unwrap();
        // Whichever segment size the check lets pass, a thaw takes it.
        for of_peer in [0, 1, 60, 87, 88, 536, 32_767, 32_768, 65_483] {
            let frozen = freeze(live, tuple).unwrap();
            let of_kernel = Frozen { mss: NonZeroU16::new((of_peer as u16).max(1)).unwrap(), ..frozen };
            live = match segment_size(of_peer) {
                Some(mss) => thaw(&Frozen { mss, ..frozen }).unwrap(),
                None => {
                    assert!(thaw(&of_kernel).is_err(), "{of_peer} is refused though a socket takes it");
                    thaw(&frozen).unwrap()
                }
            };
        }
    }

    #[test]
    fn segments_near_both_windows_are_taken() {
        let (frozen, next) = (FROZEN(), u32::MAX - 5);
        for position in [100, 99, 100 + 30_000, 0, u32::MAX - 1_000] {
            assert!(frozen.takes(position, Some(next), false), "{position}");
        }
        // An answer to bytes whose acknowledgement came later.
        assert!(frozen.takes(100, Some(next.wrapping_sub(500)), false));
        assert!(frozen.takes(100, None, false) && frozen.takes(7_777_777, None, true));
    }

    /// A FIN, a byte or a window probe thaws its connection: taken for a sign of life, it would be lost.
    #[test]
    fn only_a_bare_segment_at_both_positions_is_a_sign_of_life() {
        let (frozen, next) = (FROZEN(), u32::MAX - 5);
        let bare = |position, acknowledged, is_bare| Segment {
            id: 1,
            tuple: frozen.tuple(),
            position,
            acknowledged,
            syn: false,
            is_bare,
        };
        assert!(frozen.is_sign_of_life(&bare(100, Some(next), true)));
        for segment in [
            bare(100, Some(next), false),
            bare(99, Some(next), true),
            bare(101, Some(next), true),
            bare(100, Some(next - 1), true),
            bare(100, Some(next + 1), true),
            bare(100, None, true),
        ] {
            assert!(!frozen.is_sign_of_life(&segment), "{segment:?}");
        }
    }

    #[test]
    fn segments_of_strangers_are_not() {
        let (frozen, next) = (FROZEN(), u32::MAX - 5);
        for (position, answer) in [
            (100 + 30_001, Some(next)),
            (100u32.wrapping_sub(1 << 18), Some(next)),
            (100, Some(next.wrapping_add(1))),
            (100, Some(next.wrapping_sub(1 << 18))),
            (1 << 31, None),
        ] {
            assert!(!frozen.takes(position, answer, false), "{position} {answer:?}");
        }
        let taken = (0..1u32 << 16).filter(|n| frozen.takes(n << 16, Some(n << 16), false)).count();
        assert!(taken <= 6, "{taken} of 65,536 positions");
    }
}
