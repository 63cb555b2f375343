//! The packet rules and the packet queue, by netlink: no program of the host is needed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use hibernate::LIVE_MARK;
use hibernate::netlink::{Writer, attributes, exchange, open};
use hibernate::sys::set;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

/// Expressions and rules in the messages of the crate `hibernate`.
trait Expressions {
    fn expression(&mut self, name: &str, fill: impl FnOnce(&mut Self)) -> &mut Self;
    fn tcp_field(&mut self, offset: u32, bytes: u32) -> &mut Self;
    fn compare(&mut self, operator: u32, value: &[u8]) -> &mut Self;
    fn port_is(&mut self, port: u16) -> &mut Self;
    fn socket(&mut self, key: u32) -> &mut Self;
    fn accept(&mut self) -> &mut Self;
    fn queue(&mut self, number: u16) -> &mut Self;
    fn every_second(&mut self) -> &mut Self;
    fn rule(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self;
}

impl Expressions for Writer {
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
    netlink: OwnedFd,
}

impl Rules {
    pub fn open() -> io::Result<Self> {
        Ok(Self { netlink: open()? })
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
        exchange(&self.netlink, batch.bytes(), 4 + usize::from(queues == 2))
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
        exchange(&self.netlink, batch.bytes(), 1)
    }
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
        let socket = open()?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &[32 << 20])?;
        set(&socket, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, &[1])?;
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
        self.netlink.write_all(message.bytes())
    }

    /// Waits up to `timeout_ms` for one segment.
    pub fn next(&mut self, timeout_ms: u32) -> io::Result<Option<Waiting>> {
        const PACKET: u16 = 0x300;
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms) * 1_000_000 };
        if poll(&mut [PollFd::new(&self.netlink, PollFlags::IN)], Some(&timeout))? == 0 {
            return Ok(None);
        }
        let length = self.netlink.read(&mut self.buffer)?;
        let Some(message) = attributes(&self.buffer[..length], PACKET) else { return Ok(None) };
        let (mut id, mut peer) = (None, None);
        for (kind, data) in message {
            match kind {
                1 => id = data.first_chunk().map(|id| u32::from_be_bytes(*id)),
                10 => peer = sender(data),
                _ => {}
            }
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
