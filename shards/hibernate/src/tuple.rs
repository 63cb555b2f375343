//! Both addresses of a connection, in the form in which they are compared and kept.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

/// Addresses and ports of a connection. IPv4 addresses are mapped into IPv6 (RFC 4291 section 2.5.5.2), so that a
/// connection has the same tuple whether its listener speaks IPv4 only or both.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    local: [u8; 16],
    peer: [u8; 16],
    local_port: u16,
    peer_port: u16,
}

impl Tuple {
    /// Makes a tuple of the addresses of this host and of the peer.
    pub fn new(local: SocketAddr, peer: SocketAddr) -> Tuple {
        Tuple { local: mapped(local.ip()), peer: mapped(peer.ip()), local_port: local.port(), peer_port: peer.port() }
    }

    pub(crate) const BYTES: usize = 36;

    /// Returns both addresses (16 each) and both ports (2 each, little endian), those of this host first.
    pub(crate) fn to_bytes(self) -> [u8; Tuple::BYTES] {
        let mut bytes = [0; Tuple::BYTES];
        bytes[..16].copy_from_slice(&self.local);
        bytes[16..32].copy_from_slice(&self.peer);
        bytes[32..34].copy_from_slice(&self.local_port.to_le_bytes());
        bytes[34..].copy_from_slice(&self.peer_port.to_le_bytes());
        bytes
    }

    /// Reads what [`Tuple::to_bytes`] wrote.
    pub(crate) fn from_bytes(bytes: &[u8; Tuple::BYTES]) -> Tuple {
        let (mut local, mut peer) = ([0; 16], [0; 16]);
        local.copy_from_slice(&bytes[..16]);
        peer.copy_from_slice(&bytes[16..32]);
        let port = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Tuple { local, peer, local_port: port(32), peer_port: port(34) }
    }

    /// Asks a connected socket for its tuple. Fails for an address that is valid on one link only (`fe80::/10`),
    /// because it needs the number of the link too.
    pub fn of(socket: impl AsFd) -> io::Result<Tuple> {
        let local = address(rustix::net::getsockname(&socket)?)?;
        let peer = match rustix::net::getpeername(&socket)? {
            Some(peer) => address(peer)?,
            None => return Err(io::ErrorKind::NotConnected.into()),
        };
        let one_link = |address: SocketAddr| matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local());
        if one_link(local) || one_link(peer) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Tuple::new(local, peer))
    }

    /// Returns the address of this host.
    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.local).to_canonical(), self.local_port)
    }

    /// Returns the address of the peer.
    pub(crate) fn peer(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.peer).to_canonical(), self.peer_port)
    }
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(any: rustix::net::SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(any).map_err(|_| io::ErrorKind::Unsupported.into())
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.local(), self.peer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_listener_for_both_families_gives_the_tuple_of_an_ipv4_listener() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        let tuple = Tuple::of(&server).unwrap();
        assert_eq!(tuple.local(), client.peer_addr().unwrap());
        assert_eq!(tuple.peer(), client.local_addr().unwrap());
        assert!(tuple.local().is_ipv4());
    }
}
