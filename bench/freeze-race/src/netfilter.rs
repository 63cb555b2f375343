//! The packet rules and the packet queue, by netlink: no program of the host is needed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// Mark of a socket whose segments need no judgement: it is live and stays so.
pub const LIVE_MARK: u32 = 0x6d75;

/// Mark of a segment that a verdict has accepted.
pub const JUDGED_MARK: u32 = 0x6d76;

const TABLE: &str = "murre_freeze";
const CHAIN: &str = "input";
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// Property by which a rule recognizes segments of live sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveBy {
    /// `! --syn -m socket`: the segment has a socket that is not bound to the wildcard address.
    Socket,
    /// The segment has a socket with [`LIVE_MARK`].
    Mark,
}

/// One netlink message or attribute list under construction.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn attribute(&mut self, kind: u16, data: &[u8]) -> &mut Self {
        self.0.extend((4 + data.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        const NLA_F_NESTED: u16 = 0x8000;
        let mut inner = Self::default();
        fill(&mut inner);
        self.attribute(kind | NLA_F_NESTED, &inner.0)
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend((flags | 1).to_ne_bytes());
        self.0.extend([0; 8]);
        self.0.extend([family, 0]);
        self.0.extend(resource.to_be_bytes());
        fill(self);
        let length = (self.0.len() - start) as u32;
        self.0[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }

    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.nested(1, |element| {
            element.text(1, name).nested(2, fill);
        })
    }

    /// Loads `bytes` bytes at `offset` of the TCP header into the register.
    fn tcp_field(&mut self, offset: u32, bytes: u32) -> &mut Self {
        self.expression("payload", |e| {
            e.number(1, 1).number(2, 2).number(3, offset).number(4, bytes);
        })
    }

    fn compare(&mut self, operator: u32, value: &[u8]) -> &mut Self {
        self.expression("cmp", |e| {
            e.number(1, 1).number(2, operator).nested(3, |data| {
                data.attribute(1, value);
            });
        })
    }

    fn port_is(&mut self, port: u16) -> &mut Self {
        const L4PROTO: u32 = 16;
        self.expression("meta", |e| {
            e.number(1, 1).number(2, L4PROTO);
        });
        self.compare(0, &[libc::IPPROTO_TCP as u8]).tcp_field(2, 2).compare(0, &port.to_be_bytes())
    }

    /// Loads a property of the segment's socket; the rule ends here when there is no socket.
    fn socket(&mut self, key: u32) -> &mut Self {
        self.expression("socket", |e| {
            e.number(1, key).number(2, 1);
        })
    }

    fn accept(&mut self) -> &mut Self {
        self.expression("immediate", |e| {
            e.number(1, 0).nested(2, |data| {
                data.nested(2, |verdict| {
                    verdict.number(1, ACCEPT);
                });
            });
        })
    }

    fn queue(&mut self, number: u16) -> &mut Self {
        let mut info = [0u8; 8];
        info[..2].copy_from_slice(&number.to_ne_bytes());
        self.expression("target", |e| {
            e.text(1, "NFQUEUE").number(2, 0).attribute(3, &info);
        })
    }

    /// Continues the rule for every second segment only.
    fn every_second(&mut self) -> &mut Self {
        self.expression("numgen", |e| {
            e.number(1, 1).number(2, 2).number(3, 0).number(4, 0);
        });
        self.compare(0, &0u32.to_ne_bytes())
    }

    fn rule(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self {
        const NEW_RULE: u16 = 0x0a06;
        const ACK_CREATE_APPEND: u16 = 0xc04;
        self.message(NEW_RULE, ACK_CREATE_APPEND, libc::AF_INET as u8, 0, |m| {
            m.text(1, TABLE).text(2, CHAIN).nested(4, fill);
        })
    }
}

/// The rules of one port in the network namespace of the thread that made them.
pub struct Rules {
    netlink: File,
}

impl Rules {
    pub fn open() -> io::Result<Self> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)?;
        sys::set(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[5, 0, 0, 0])?;
        Ok(Self { netlink: File::from(socket) })
    }

    /// Installs the rules: live segments pass, and all others to the port wait in queue `0..queues`.
    pub fn install(&mut self, port: u16, live_by: LiveBy, queues: u16) -> io::Result<()> {
        const NEW_TABLE: u16 = 0x0a00;
        const NEW_CHAIN: u16 = 0x0a03;
        const ACK_CREATE: u16 = 0x404;
        let ip = libc::AF_INET as u8;
        let mut batch = Writer::default();
        batch.message(0x10, 0, 0, 10, |_| ());
        batch.message(NEW_TABLE, ACK_CREATE, ip, 0, |m| {
            m.text(1, TABLE);
        });
        batch.message(NEW_CHAIN, ACK_CREATE, ip, 0, |m| {
            m.text(1, TABLE).text(3, CHAIN).nested(4, |hook| {
                hook.number(1, 1).number(2, 0);
            });
            m.text(7, "filter");
        });
        batch.rule(|r| match live_by {
            LiveBy::Socket => {
                r.port_is(port).tcp_field(13, 1).expression("bitwise", |e| {
                    e.number(1, 1).number(2, 1).number(3, 1);
                    e.nested(4, |mask| {
                        mask.attribute(1, &[0x17]);
                    });
                    e.nested(5, |xor| {
                        xor.attribute(1, &[0]);
                    });
                });
                r.compare(1, &[2]).socket(2).compare(0, &[0]).accept();
            }
            LiveBy::Mark => {
                r.port_is(port).socket(1).compare(0, &LIVE_MARK.to_ne_bytes()).accept();
            }
        });
        if queues == 2 {
            batch.rule(|r| {
                r.port_is(port).every_second().queue(1);
            });
        }
        batch.rule(|r| {
            r.port_is(port).queue(0);
        });
        batch.message(0x11, 0, 0, 10, |_| ());
        self.exchange(&batch.0, 4 + usize::from(queues == 2))
    }

    /// Removes the rules, as a flush by the operator does.
    pub fn flush(&mut self) -> io::Result<()> {
        const DELETE_TABLE: u16 = 0x0a02;
        let mut batch = Writer::default();
        batch.message(0x10, 0, 0, 10, |_| ());
        batch.message(DELETE_TABLE, 4, libc::AF_INET as u8, 0, |m| {
            m.text(1, TABLE);
        });
        batch.message(0x11, 0, 0, 10, |_| ());
        self.exchange(&batch.0, 1)
    }

    /// Sends messages and reads as many acknowledgements.
    fn exchange(&mut self, messages: &[u8], acks: usize) -> io::Result<()> {
        self.netlink.write_all(messages)?;
        let mut reply = vec![0; 1 << 16];
        let mut seen = 0;
        while seen < acks {
            let length = self.netlink.read(&mut reply)?;
            let mut rest = &reply[..length];
            while let Some((head, _)) = rest.split_at_checked(20) {
                let length = u32_at(head, 0) as usize;
                let code = u32_at(head, 16) as i32;
                if code < 0 {
                    return Err(io::Error::from_raw_os_error(-code));
                }
                seen += 1;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A segment that waits for a verdict.
pub struct Waiting {
    pub id: u32,
    pub peer: SocketAddrV4,
}

/// One packet queue (NFQUEUE) without bypass: with no reader the kernel drops, and peers resend.
pub struct Queue {
    netlink: File,
    number: u16,
    buffer: Vec<u8>,
}

impl Queue {
    pub fn open(number: u16) -> io::Result<Self> {
        const COPY_BYTES: u32 = 64;
        const SEGMENTS_MAX: u32 = 65_536;
        let socket: OwnedFd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)?;
        sys::set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &[32 << 20])?;
        sys::set(&socket, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, &[1])?;
        let mut queue = Self { netlink: File::from(socket), number, buffer: vec![0; 1 << 16] };
        queue.send(2, |m| {
            m.attribute(1, &[1, 0, 0, 0]);
        })?;
        queue.send(2, |m| {
            m.attribute(2, &[&COPY_BYTES.to_be_bytes()[..], &[2]].concat()).number(3, SEGMENTS_MAX);
        })?;
        Ok(queue)
    }

    fn send(&mut self, kind: u16, fill: impl FnOnce(&mut Writer)) -> io::Result<()> {
        const SUBSYSTEM: u16 = 0x300;
        let mut message = Writer::default();
        message.message(SUBSYSTEM | kind, 0, 0, self.number, fill);
        self.netlink.write_all(&message.0)
    }

    /// Waits up to `timeout_ms` for one segment.
    pub fn next(&mut self, timeout_ms: i32) -> io::Result<Option<Waiting>> {
        const PACKET: u16 = 0x300;
        if !sys::poll(&[self.netlink.as_raw_fd()], timeout_ms)?[0] {
            return Ok(None);
        }
        let length = self.netlink.read(&mut self.buffer)?;
        if length < 20 || u16::from_ne_bytes([self.buffer[4], self.buffer[5]]) != PACKET {
            return Ok(None);
        }
        let (mut id, mut peer) = (None, None);
        let mut rest = &self.buffer[20..length];
        while rest.len() >= 4 {
            let bytes = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            let kind = u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff;
            let Some(data) = rest.get(4..bytes) else { break };
            match kind {
                1 if data.len() >= 4 => id = Some(u32::from_be_bytes([data[0], data[1], data[2], data[3]])),
                10 => peer = sender(data),
                _ => {}
            }
            rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        }
        let unspecified = SocketAddrV4::new([0, 0, 0, 0].into(), 0);
        Ok(id.map(|id| Waiting { id, peer: peer.unwrap_or(unspecified) }))
    }

    /// Marks a segment and lets it in. The kernel has processed it when the call returns.
    pub fn accept(&mut self, id: u32) -> io::Result<()> {
        self.verdict(id, ACCEPT)
    }

    /// Drops a segment; the peer sends it again.
    pub fn drop(&mut self, id: u32) -> io::Result<()> {
        self.verdict(id, DROP)
    }

    fn verdict(&mut self, id: u32, verdict: u32) -> io::Result<()> {
        self.send(1, |m| {
            m.attribute(2, &[verdict.to_be_bytes(), id.to_be_bytes()].concat()).number(3, JUDGED_MARK);
        })
    }
}

/// Returns the sender of an IPv4 TCP segment.
fn sender(packet: &[u8]) -> Option<SocketAddrV4> {
    let header = usize::from(packet.first()? & 15) * 4;
    let address: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    let port = u16::from_be_bytes([*packet.get(header)?, *packet.get(header + 1)?]);
    Some(SocketAddrV4::new(address.into(), port))
}
