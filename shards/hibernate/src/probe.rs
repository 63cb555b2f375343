//! Probes: a frozen connection asks the kernel of its peer for a sign of life, and stays frozen.
//!
//! A probe is what a kernel sends for SO_KEEPALIVE (RFC 9293 section 3.8.4): a segment without bytes, one position
//! before the next. The peer's kernel answers with an acknowledgement, which comes through the packet queue. It shows
//! that path and kernel are there, and keeps NAT entries; it does not show that the application is.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::repair::{Frozen, Header};

const TCP_HEADER: usize = 20;
/// Two no-operations, and timestamps (RFC 7323 section 3.2).
const TIMESTAMPS: usize = 12;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TIME_TO_LIVE: u8 = 64;
const TCP: u8 = 6;

/// Sockets of the probes of a shard. On its thread.
#[derive(Debug)]
pub struct Prober {
    v4: OwnedFd,
    /// `None`: the host has no IPv6.
    v6: Option<OwnedFd>,
}

impl Prober {
    /// Opens the sockets in the network namespace of the calling thread.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; those of the kernel.
    pub fn open() -> io::Result<Prober> {
        // Of this protocol the header of IP comes with each packet.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = |family| socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW));
        Ok(Prober { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })
    }

    /// Sends a probe.
    ///
    /// # Errors
    /// `Unsupported` for IPv6 where the host has none; those of the kernel.
    pub fn send(&self, frozen: &Frozen) -> io::Result<()> {
        let header = frozen.header();
        let (packet, len) = packet(&header);
        let socket = if header.peer.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
        let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
        // The port of a raw address says nothing.
        sendto(socket, &packet[..len], SendFlags::empty(), &SocketAddr::new(header.peer.ip(), 0))?;
        Ok(())
    }
}

/// Returns the packet of a probe, and its length.
fn packet(header: &Header) -> ([u8; IPV6_HEADER + TCP_HEADER + TIMESTAMPS], usize) {
    let mut packet = [0; IPV6_HEADER + TCP_HEADER + TIMESTAMPS];
    let tcp_len = TCP_HEADER + if header.timestamp.is_some() { TIMESTAMPS } else { 0 };
    let ip_len = match (header.local.ip(), header.peer.ip()) {
        (IpAddr::V4(local), IpAddr::V4(peer)) => {
            // The kernel fills length, identification and checksum in.
            packet[0] = 0x45;
            packet[8] = TIME_TO_LIVE;
            packet[9] = TCP;
            packet[12..16].copy_from_slice(&local.octets());
            packet[16..20].copy_from_slice(&peer.octets());
            IPV4_HEADER
        }
        (IpAddr::V6(local), IpAddr::V6(peer)) => {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            packet[6] = TCP;
            packet[7] = TIME_TO_LIVE;
            packet[8..24].copy_from_slice(&local.octets());
            packet[24..40].copy_from_slice(&peer.octets());
            IPV6_HEADER
        }
        // Invariant: both addresses of a tuple are of one family.
        _ => unreachable!("a connection has one family"),
    };
    let addresses = if ip_len == IPV4_HEADER { 12..20 } else { 8..40 };
    let mut sum = u32::from(TCP) + tcp_len as u32 + words(&packet[addresses]);
    let tcp = &mut packet[ip_len..ip_len + tcp_len];
    tcp[..2].copy_from_slice(&header.local.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&header.peer.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&header.position.wrapping_sub(1).to_be_bytes());
    tcp[8..12].copy_from_slice(&header.acknowledged.to_be_bytes());
    const ACK: u8 = 16;
    tcp[12] = (tcp_len as u8 / 4) << 4;
    tcp[13] = ACK;
    tcp[14..16].copy_from_slice(&header.window.to_be_bytes());
    if let Some(timestamp) = header.timestamp {
        tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
        tcp[24..28].copy_from_slice(&timestamp.to_be_bytes());
    }
    sum += words(tcp);
    tcp[16..18].copy_from_slice(&checksum(sum).to_be_bytes());
    (packet, ip_len + tcp_len)
}

/// Sum of the 16-bit words of a text of even length (RFC 1071).
fn words(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

fn checksum(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    !((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(local: &str, peer: &str, timestamp: Option<u32>) -> Header {
        let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
        Header { local, peer, position: 5, acknowledged: 7, window: 9, timestamp }
    }

    #[test]
    fn the_checksum_of_a_probe_is_right_with_all_options_and_families() {
        for (local, peer) in [("10.0.0.1:443", "192.0.2.200:65535"), ("[2001:db8::1]:443", "[2001:db8:ffff::2]:1")] {
            for timestamp in [None, Some(0xffff_fffe)] {
                let (packet, len) = packet(&header(local, peer, timestamp));
                let ip_len = if peer.starts_with('[') { 40 } else { 20 };
                let (addresses, tcp) = (if ip_len == 20 { 12..20 } else { 8..40 }, &packet[ip_len..len]);
                assert_eq!(tcp.len(), if timestamp.is_some() { 32 } else { 20 });
                let sum = u32::from(TCP) + tcp.len() as u32 + words(&packet[addresses]) + words(tcp);
                assert_eq!(checksum(sum), 0, "{peer}");
                assert_eq!(tcp[4..12], [0, 0, 0, 4, 0, 0, 0, 7]);
            }
        }
    }
}
