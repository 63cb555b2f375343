//! Messages of netfilter's netlink: written, sent, and their answers read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send, socket_with,
};

/// Flag of a message (NLM_F_*) that the kernel answers. NLM_F_REQUEST is in each.
pub const ACK: u16 = 0x4;
/// The message makes what it names, if that is not there.
pub const CREATE: u16 = 0x400;
/// The message adds to the end of a list.
pub const APPEND: u16 = 0x800;

/// Flags of a message that asks for everything of a kind (NLM_F_ROOT, NLM_F_MATCH).
const DUMP: u16 = 0x300;

/// Kind of a message that answers another one.
const NLMSG_ERROR: u16 = 2;
/// Kind of the last message of a dump.
const NLMSG_DONE: u16 = 3;

/// Bytes of a message of netfilter before its attributes.
const HEAD: usize = 20;

/// Longest wait for the answer of the kernel, which answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Bits of the largest pid that Linux gives (PID_MAX_LIMIT).
const PID_BITS: u32 = 22;
/// Addresses that are tried before a socket is given up.
const ADDRESS_TRIES: u32 = 64;

/// Number of sockets that were opened.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// Messages, or an attribute list, under construction.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn attribute(&mut self, kind: u16, data: &[u8]) -> &mut Self {
        self.0.extend((4 + data.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        const NLA_F_NESTED: u16 = 0x8000;
        let mut inner = Self::default();
        fill(&mut inner);
        self.attribute(kind | NLA_F_NESTED, &inner.0)
    }

    /// Appends a message. `resource` is the number of a queue, or of a subsystem for the messages around a batch.
    pub fn message(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        fill: impl FnOnce(&mut Self),
    ) -> &mut Self {
        const REQUEST: u16 = 1;
        let start = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend((flags | REQUEST).to_ne_bytes());
        self.0.extend([0; 8]);
        self.0.extend([family, 0]);
        self.0.extend(resource.to_be_bytes());
        fill(self);
        let length = (self.0.len() - start) as u32;
        self.0[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

/// Opens a socket to netfilter, with an address that no other socket of this process had or will have. Needs no
/// privilege by itself.
///
/// The kernel would give the pid to the first socket, and again to the next one when that is closed. It removes the
/// tables of an owner by its address, some time after the address is free: it could take them from the new socket.
pub fn open() -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    for _ in 0..ADDRESS_TRIES {
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        // Only a process of another pid namespace can have it.
        match bind(&socket, &SocketAddrNetlink::new(address(pid, number), 0)) {
            Err(Errno::ADDRINUSE) => {}
            bound => return Ok(bound.map(|()| socket)?),
        }
    }
    Err(Errno::ADDRINUSE.into())
}

/// Address of the socket of this number: the pid itself, 0 in the bits above, is what the kernel gives.
const fn address(pid: u32, number: u32) -> u32 {
    let number = number % ((1 << (32 - PID_BITS)) - 1) + 1;
    number << PID_BITS | pid
}

/// Sends messages, of which `acks` have the flag [`ACK`], and waits for these answers.
pub fn exchange(socket: impl AsFd, messages: &[u8], acks: usize) -> io::Result<()> {
    send(&socket, messages, SendFlags::empty())?;
    let mut reply = vec![0; 1 << 16];
    let mut seen = 0;
    while seen < acks {
        let (length, _) = recv(&socket, reply.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &reply[..length];
        while let Some(head) = rest.get(..HEAD) {
            let length = u32_at(head, 0) as usize;
            if u16::from_ne_bytes([head[4], head[5]]) == NLMSG_ERROR {
                let code = u32_at(head, 16) as i32;
                if code < 0 {
                    return Err(io::Error::from_raw_os_error(-code));
                }
                seen += 1;
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Asks for everything of a kind, and calls `each` for every message of the answer.
pub fn dump(socket: impl AsFd, kind: u16, family: u8, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut question = Writer::default();
    question.message(kind, DUMP, family, 0, |_| ());
    send(&socket, question.bytes(), SendFlags::empty())?;
    let mut reply = vec![0; 1 << 16];
    loop {
        let (length, _) = recv(&socket, reply.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &reply[..length];
        while let Some(head) = rest.get(..HEAD) {
            let length = u32_at(head, 0) as usize;
            match u16::from_ne_bytes([head[4], head[5]]) {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => match u32_at(head, 16) as i32 {
                    0 => {}
                    code => return Err(io::Error::from_raw_os_error(-code)),
                },
                _ => each(rest.get(..length).unwrap_or_default()),
            }
            rest = rest.get(length.next_multiple_of(4).max(HEAD)..).unwrap_or_default();
        }
    }
}

/// Returns the attributes of a message of netfilter with that kind.
pub fn attributes(message: &[u8], kind: u16) -> Option<Attributes<'_>> {
    let head = message.get(..HEAD)?;
    (u16::from_ne_bytes([head[4], head[5]]) == kind).then(|| Attributes(&message[HEAD..]))
}

/// Attributes of a message: their kinds and contents.
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns those in a list: the contents of a nested attribute.
    pub fn of(list: &'a [u8]) -> Attributes<'a> {
        Attributes(list)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.0.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let data = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_back_as_it_was_written() {
        let mut writer = Writer::default();
        writer.message(0x301, ACK, 0, 7, |m| {
            m.attribute(1, b"abc").number(2, 9);
        });
        let bytes = writer.bytes();
        assert_eq!(u32_at(bytes, 0) as usize, bytes.len());
        let read: Vec<_> = attributes(bytes, 0x301).unwrap().collect();
        assert_eq!(read, [(1, &b"abc"[..]), (2, &[0, 0, 0, 9][..])]);
        assert!(attributes(bytes, 0x302).is_none() && attributes(&bytes[..10], 0x301).is_none());
    }

    #[test]
    fn a_message_cut_anywhere_is_read_without_a_panic() {
        let mut writer = Writer::default();
        writer.message(0x301, 0, 0, 0, |m| {
            m.attribute(1, &[1; 9]).attribute(2, &[]).number(3, 3);
        });
        for len in 0..writer.bytes().len() {
            let _ = attributes(&writer.bytes()[..len], 0x301).map(Iterator::count);
        }
    }
}
