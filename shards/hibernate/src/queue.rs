//! The packet queue (NFQUEUE) without bypass: while nobody reads it the kernel drops, and peers send again.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::netlink::{ACK, Writer, attributes, exchange, open};
use crate::sys;
use crate::tuple::Tuple;

/// Segments that wait for a verdict, at most. Beyond them the kernel drops.
const SEGMENTS_MAX: u32 = 65_536;

/// Bytes of a segment that are read: both headers of IPv6 and TCP with all options.
const COPY_BYTES: u32 = 128;

/// Bytes of the socket's buffer: it holds the news of [`SEGMENTS_MAX`] segments.
const RECEIVE_BUFFER: u32 = 32 << 20;

/// Number of nfnetlink_queue among the subsystems of netfilter, and its messages.
const QUEUE: u16 = 3 << 8;
const PACKET: u16 = QUEUE;
const VERDICT: u16 = QUEUE | 1;
const CONFIG: u16 = QUEUE | 2;

const ACCEPT: u32 = 1;
const DROP: u32 = 0;

/// Part of a TCP segment that waits for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its name in the queue.
    pub id: u32,
    pub tuple: Tuple,
    /// Stream position of its first byte.
    pub position: u32,
    /// Stream position that the peer expects, if it says so.
    pub acknowledged: Option<u32>,
    pub syn: bool,
    /// True if it acknowledges and does nothing else: no bytes, and no other flag.
    pub is_bare: bool,
}

/// The socket of a queue. One thread reads it; verdicts come from any.
#[derive(Debug)]
pub struct Queue {
    socket: OwnedFd,
    number: u16,
}

/// Result of [`Queue::next`].
pub enum Waiting {
    Segment(Segment),
    /// A packet that is no TCP segment which can be read: its name.
    Unreadable(u32),
    /// Nothing waits.
    Nothing,
}

impl Queue {
    /// Becomes the reader of the queue with this number in the network namespace of the calling thread.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; EBUSY when another process reads that queue; those of the kernel.
    pub fn open(number: u16) -> io::Result<Queue> {
        let socket = open()?;
        // Without CAP_NET_ADMIN in the first user namespace the buffer stays at net.core.rmem_max.
        if sys::set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &[RECEIVE_BUFFER]).is_err() {
            sys::set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &[RECEIVE_BUFFER])?;
        }
        sys::set(&socket, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, &[1])?;
        let queue = Queue { socket, number };
        const BIND: u8 = 1;
        const COPY_PACKET: u8 = 2;
        let bound = queue.configure(|m| {
            m.attribute(1, &[BIND, 0, 0, 0]);
        });
        bound.map_err(|error| match error.raw_os_error() {
            // The kernel says EPERM for both; a caller without the capability is refused before the queue is found.
            Some(libc::EPERM) if may_administer() => io::Error::from_raw_os_error(libc::EBUSY),
            _ => error,
        })?;
        queue.configure(|m| {
            m.attribute(2, &[&COPY_BYTES.to_be_bytes()[..], &[COPY_PACKET]].concat()).number(3, SEGMENTS_MAX);
        })?;
        Ok(queue)
    }

    /// A queue that no kernel fills.
    #[cfg(test)]
    pub fn unbound() -> io::Result<Queue> {
        Ok(Queue { socket: open()?, number: 0 })
    }

    fn configure(&self, fill: impl FnOnce(&mut Writer)) -> io::Result<()> {
        let mut message = Writer::default();
        message.message(CONFIG, ACK, 0, self.number, fill);
        exchange(&self.socket, message.bytes(), 1)
    }

    /// Takes the next segment without waiting. `buffer` holds one message: 4 KiB are plenty.
    pub fn next(&self, buffer: &mut [u8]) -> io::Result<Waiting> {
        loop {
            let length = match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((length, _)) => length,
                Err(rustix::io::Errno::AGAIN) => return Ok(Waiting::Nothing),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            // Others are answers to verdicts on segments that the kernel has dropped meanwhile.
            let Some(message) = attributes(&buffer[..length], PACKET) else { continue };
            let (mut id, mut packet) = (None, &[][..]);
            for (kind, data) in message {
                match kind {
                    1 => id = data.first_chunk().map(|id| u32::from_be_bytes(*id)),
                    10 => packet = data,
                    _ => {}
                }
            }
            let Some(id) = id else { continue };
            return Ok(read(id, packet).map_or(Waiting::Unreadable(id), Waiting::Segment));
        }
    }

    /// Sends verdicts. When it returns, the kernel has processed the accepted segments. On an error they are kept for
    /// the next call: a segment without a verdict would stay in the queue for good.
    ///
    /// # Errors
    /// ENOMEM, ENOBUFS: the kernel has no memory for them.
    pub fn send(&self, verdicts: &mut Verdicts) -> io::Result<()> {
        if verdicts.0.is_empty() {
            return Ok(());
        }
        send(&self.socket, verdicts.0.bytes(), SendFlags::empty())?;
        verdicts.0.clear();
        verdicts.1 = 0;
        Ok(())
    }

    /// Lets a segment in with the next [`Queue::send`].
    pub fn accept(&self, id: u32, verdicts: &mut Verdicts) {
        self.verdict(id, ACCEPT, verdicts);
    }

    /// Drops a segment with the next [`Queue::send`]; the peer sends it again.
    pub fn drop(&self, id: u32, verdicts: &mut Verdicts) {
        self.verdict(id, DROP, verdicts);
    }

    fn verdict(&self, id: u32, verdict: u32, verdicts: &mut Verdicts) {
        verdicts.0.message(VERDICT, 0, 0, self.number, |m| {
            m.attribute(2, &[verdict.to_be_bytes(), id.to_be_bytes()].concat());
        });
        verdicts.1 += 1;
    }

    /// Returns the descriptor that is readable while segments wait.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }
}

/// Verdicts that are sent together, and their number.
#[derive(Default)]
pub struct Verdicts(Writer, usize);

impl Verdicts {
    /// Returns true if they should be sent: the kernel refuses a message that is longer than the buffer of its socket,
    /// some 6,600 verdicts.
    pub fn is_full(&self) -> bool {
        self.1 >= VERDICTS_MAX
    }
}

/// Verdicts of one message.
const VERDICTS_MAX: usize = 1_024;

/// Returns true if this process may configure queues. It sends a command that the kernel takes and ignores.
fn may_administer() -> bool {
    const PF_BIND: u8 = 3;
    let mut message = Writer::default();
    message.message(CONFIG, ACK, 0, 0, |m| {
        m.attribute(1, &[PF_BIND, 0, 0, 0]);
    });
    open().and_then(|socket| exchange(&socket, message.bytes(), 1)).is_ok()
}

/// Reads the headers of IP and TCP (RFC 791, RFC 8200, RFC 9293). `None` for anything else, and for IPv6 with extension
/// headers, which no TCP of today sends.
fn read(id: u32, packet: &[u8]) -> Option<Segment> {
    const SYN: u8 = 2;
    const ACKNOWLEDGES: u8 = 16;
    let (source, target, rest, len): (IpAddr, IpAddr, &[u8], usize) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let target: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            let len = usize::from(u16::from_be_bytes([packet[2], packet[3]])).saturating_sub(header);
            (source.into(), target.into(), packet.get(header..)?, len)
        }
        6 if i32::from(*packet.get(6)?) == libc::IPPROTO_TCP => {
            let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let target: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            (Ipv6Addr::from(source).to_canonical(), Ipv6Addr::from(target).to_canonical(), packet.get(40..)?, len)
        }
        _ => return None,
    };
    let tcp: &[u8; 14] = rest.first_chunk()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let flags = tcp[13];
    Some(Segment {
        id,
        tuple: Tuple::new(SocketAddr::new(target, port(2)), SocketAddr::new(source, port(0))),
        position: number(4),
        acknowledged: (flags & ACKNOWLEDGES != 0).then(|| number(8)),
        syn: flags & SYN != 0,
        is_bare: flags == ACKNOWLEDGES && len == usize::from(tcp[12] >> 4) * 4,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(flags: u8) -> Vec<u8> {
        let mut tcp = vec![0x30, 0x39, 0x01, 0xbb, 0, 0, 0, 5, 0, 0, 0, 7, 0x50, flags];
        tcp.resize(20, 0);
        tcp
    }

    fn segment(local: &str, peer: &str, acknowledged: Option<u32>, syn: bool) -> Segment {
        let tuple = Tuple::new(local.parse().unwrap(), peer.parse().unwrap());
        Segment { id: 3, tuple, position: 5, acknowledged, syn, is_bare: !syn }
    }

    #[test]
    fn segments_of_both_families_are_read() {
        let mut v4 = vec![0x45, 0, 0, 40];
        v4.resize(12, 0);
        v4.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        v4.extend(tcp(16));
        assert_eq!(read(3, &v4), Some(segment("10.0.0.2:443", "10.0.0.1:12345", Some(7), false)));
        let mut v6 = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        v6.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend("2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend(tcp(2));
        assert_eq!(read(3, &v6), Some(segment("[2001:db8::2]:443", "[2001:db8::1]:12345", None, true)));
    }

    /// The answer to a probe is a bare acknowledgement: all else says more than that the peer is there.
    #[test]
    fn only_an_acknowledgement_without_bytes_and_other_flags_is_bare() {
        const FIN: u8 = 1;
        const RST: u8 = 4;
        const PSH: u8 = 8;
        const ACK: u8 = 16;
        const URG: u8 = 32;
        let rows = [
            (ACK, 0, true),
            (ACK, 1, false),
            (ACK | FIN, 0, false),
            (ACK | RST, 0, false),
            (ACK | PSH, 0, false),
            (ACK | URG, 0, false),
            (ACK | 2, 0, false),
            (FIN, 0, false),
            (RST, 0, false),
            (0, 0, false),
        ];
        for (flags, bytes, is_bare) in rows {
            let mut v4 = vec![0x45, 0, 0, 40 + bytes as u8];
            v4.resize(20, 0);
            v4.extend(tcp(flags));
            v4.resize(40 + bytes, 0);
            assert_eq!(read(1, &v4).unwrap().is_bare, is_bare, "flags {flags}, {bytes} bytes");
            let mut v6 = vec![0x60, 0, 0, 0, 0, 20 + bytes as u8, 6, 64];
            v6.resize(40, 0);
            v6.extend(tcp(flags));
            v6.resize(60 + bytes, 0);
            assert_eq!(read(1, &v6).unwrap().is_bare, is_bare, "IPv6: flags {flags}, {bytes} bytes");
        }
    }

    #[test]
    fn what_is_no_segment_is_unreadable_wherever_it_is_cut() {
        let mut v4 = vec![0x4f; 60];
        v4.extend(tcp(16));
        assert!(read(1, &v4).is_some());
        for len in 0..74 {
            assert_eq!(read(1, &v4[..len]), None, "{len}");
        }
        let mut extended = vec![0x60, 0, 0, 0, 0, 20, 60, 64];
        extended.resize(100, 0);
        assert_eq!(read(1, &extended), None);
    }
}
