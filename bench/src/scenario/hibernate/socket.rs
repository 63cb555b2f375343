//! The socket of a session, with a source address and port that belong to this session for ever: a frozen tuple looks
//! free to the kernel, which would give it away.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};

use hibernate::{Buffers, set_live};
use socket2::{Domain, Protocol, Socket, Type};

use super::fleet::Fleet;

/// Buffers of the sockets of both lives. A message is far smaller.
pub const BUFFERS: Buffers = Buffers { send: 16 << 10, receive: 16 << 10 };

/// Ports of one source address, from [`FIRST_PORT`] on.
const PORTS: u32 = 60_000;
const FIRST_PORT: u32 = 2_000;

/// Begins the connection of this session, and returns before it is there.
///
/// # Errors
/// The host has no descriptor left, or the address is in use or not one of this host.
pub fn connect(fleet: &Fleet, number: u32) -> io::Result<Socket> {
    let source = u32::from(fleet.first_source) + number / PORTS;
    let port = (FIRST_PORT + number % PORTS) as u16;
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    set_live(&socket, true)?;
    socket.set_send_buffer_size(BUFFERS.send as usize)?;
    socket.set_recv_buffer_size(BUFFERS.receive as usize)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::from(SocketAddrV4::new(source.into(), port)).into())?;
    match socket.connect(&fleet.server.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}
