//! Listening sockets: one per shard and public port, all of one port on one address (SO_REUSEPORT).

use std::fmt;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::ports::Port;

/// Bytes of SO_SNDBUF, which the kernel doubles. A peer that never reads pins 3.8 MB by default.
const SEND_BUFFER: i32 = 16 * 1024;

/// Bytes of SO_RCVBUF of a user agent's socket, which the kernel doubles. It bounds what a peer pins that sends while
/// nothing is read from it, because its socket takes no bytes or a command of it is under way: 128 KiB by default, and
/// up to 6 MiB once the kernel has found that the peer sends fast. The window is about these 16 KiB. User agents send
/// messages of some hundred bytes, one after the other's answer; the longest, 64 KiB, takes four round trips.
const WEBSOCKET_RECEIVE_BUFFER: i32 = 16 * 1024;

/// The same for an app server: 128 KiB in the kernel, the size with which it begins by default, without growing to
/// 6 MiB. The window of 64 KiB holds eight requests of the largest body, so that with a round trip of 100 ms one
/// connection can still carry 640 KB a second.
const ENDPOINT_RECEIVE_BUFFER: i32 = 64 * 1024;

/// Sizes that the socket of a user agent has, also when it was frozen.
pub const WEBSOCKET_BUFFERS: hibernate::Buffers =
    hibernate::Buffers { send: SEND_BUFFER as u32, receive: WEBSOCKET_RECEIVE_BUFFER as u32 };

/// Reason for a failure to listen on an address; one sentence that says what to do.
#[derive(Debug)]
pub struct ListenError {
    address: SocketAddr,
    error: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = match self.error.raw_os_error() {
            Some(libc::EADDRINUSE) => "another program listens there: stop it or choose another port",
            Some(libc::EADDRNOTAVAIL) => "no interface of this host has that address: choose one of `ip addr`",
            Some(libc::EACCES) => {
                "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE: grant it or choose a \
                 higher port"
            }
            Some(libc::EMFILE | libc::ENFILE) => "no file descriptor is left: raise LimitNOFILE",
            _ => "check the listen addresses of the configuration",
        };
        write!(f, "cannot listen on {}: {} ({advice})", self.address, self.error)
    }
}

impl std::error::Error for ListenError {}

/// A listening socket on `address`. Sockets accepted from it inherit TCP_NODELAY and, except for those of other nodes,
/// which always read, bounded buffers. `backlog` connections wait in it at most, fewer where
/// net.core.somaxconn is smaller. With port 0 the kernel chooses: see [`local_address`].
pub fn listen(address: SocketAddr, port: Port, backlog: u16) -> Result<OwnedFd, ListenError> {
    try_listen(address, port, backlog).map_err(|error| ListenError { address, error })
}

fn try_listen(address: SocketAddr, port: Port, backlog: u16) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let fd = owned(fd)?;
    // A probe without SO_REUSEPORT would be needed to see that another murre listens; its data directory is
    // locked, which says so first.
    set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    set(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    let receive_buffer = match port {
        // Most connections of a public port are those of user agents.
        Port::WebSocket | Port::Public => Some(WEBSOCKET_RECEIVE_BUFFER),
        Port::Endpoint => Some(ENDPOINT_RECEIVE_BUFFER),
        Port::Node => None,
    };
    if let Some(receive_buffer) = receive_buffer {
        set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
        // Before `listen`: the window scale of a connection is chosen when it is made.
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, receive_buffer)?;
    }
    let (raw, len) = to_raw(address);
    // SAFETY: `raw` holds a socket address of `len` bytes and outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const raw).cast(), len) })?;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::listen(fd.as_raw_fd(), i32::from(backlog)) })?;
    Ok(fd)
}

/// Of the listeners on one address, this one gets the connections whose first packet CPU `cpu` worked on
/// (SO_INCOMING_CPU; kernels before 6.2 ignore it). Which CPU that is, interrupts and RPS decide. A connection of a CPU
/// that no listener is for goes to any. Not a classic BPF program: that would name listeners by their place in the
/// group, and places change when a listener closes.
///
/// # Errors
/// The error of setsockopt.
pub fn steer(fd: &OwnedFd, cpu: u32) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, cpu as i32)
}

/// The address a socket is bound to: with port 0 in the configuration, the real port.
pub fn local_address(fd: &impl AsFd) -> io::Result<SocketAddr> {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut raw: libc::sockaddr_storage = unsafe { zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `raw` has room for `len` bytes and both outlive the call.
    check(unsafe { libc::getsockname(fd.as_fd().as_raw_fd(), (&raw mut raw).cast(), &raw mut len) })?;
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in, which fits and is aligned in the storage.
            let v4 = unsafe { *(&raw const raw).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let v6 = unsafe { *(&raw const raw).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddr::from((ip, u16::from_be(v6.sin6_port))))
        }
        _ => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

fn to_raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut raw: libc::sockaddr_storage = unsafe { zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: a sockaddr_in fits and is aligned in the storage.
            let out = unsafe { &mut *(&raw mut raw).cast::<libc::sockaddr_in>() };
            out.sin_family = libc::AF_INET as libc::sa_family_t;
            out.sin_port = v4.port().to_be();
            out.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: a sockaddr_in6 fits and is aligned in the storage.
            let out = unsafe { &mut *(&raw mut raw).cast::<libc::sockaddr_in6>() };
            out.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            out.sin6_port = v6.port().to_be();
            out.sin6_addr.s6_addr = v6.ip().octets();
            out.sin6_scope_id = v6.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (raw, len as libc::socklen_t)
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is an int and outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::limits::BACKLOG_DEFAULT;

    /// A listening socket of which nothing but its address matters.
    fn listen(address: SocketAddr, port: Port) -> Result<OwnedFd, ListenError> {
        super::listen(address, port, BACKLOG_DEFAULT)
    }

    #[test]
    fn every_shard_listens_on_the_same_port() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().unwrap();
            let first = listen(any, Port::WebSocket).unwrap();
            let address = local_address(&first).unwrap();
            assert_eq!(address.ip(), any.ip());
            assert_ne!(address.port(), 0);
            let second = listen(address, Port::Endpoint).unwrap();
            assert_eq!(local_address(&second).unwrap(), address);
        }
    }

    /// The kernel completes one more than asked for; the next SYN is not answered.
    #[test]
    fn the_kernel_completes_as_many_connections_as_were_asked_for() {
        let listener = super::listen("127.0.0.1:0".parse().unwrap(), Port::WebSocket, 4).unwrap();
        let address = local_address(&listener).unwrap();
        let connect = |ms| std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(ms));
        let clients: Vec<_> = (0..5).map(|_| connect(60_000).unwrap()).collect();
        let refused = connect(300).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        let listener = std::net::TcpListener::from(listener);
        clients.iter().for_each(|_| drop(listener.accept().unwrap()));
    }

    /// On loopback the CPU that connects works on the packet.
    #[test]
    fn a_steered_listener_gets_the_connections_of_its_cpu() {
        // SAFETY: an all-zero set is a valid one, and the calls get its size.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0);
            (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect::<Vec<_>>()
        };
        let first = listen("127.0.0.1:0".parse().unwrap(), Port::WebSocket).unwrap();
        let address = local_address(&first).unwrap();
        let mut listeners = vec![first];
        listeners.extend(allowed.iter().skip(1).map(|_| listen(address, Port::WebSocket).unwrap()));
        for (listener, cpu) in listeners.iter().zip(&allowed) {
            steer(listener, *cpu as u32).unwrap();
        }
        let listeners: Vec<std::net::TcpListener> = listeners.into_iter().map(Into::into).collect();
        for (listener, cpu) in listeners.iter().zip(&allowed) {
            // SAFETY: as above.
            unsafe {
                let mut set: libc::cpu_set_t = zeroed();
                libc::CPU_SET(*cpu, &mut set);
                assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
            }
            listener.set_nonblocking(true).unwrap();
            for _ in 0..50 {
                let _peer = std::net::TcpStream::connect(address).unwrap();
                // The last segment of its handshake may still be on its way.
                let accepted = (0..10_000).any(|_| {
                    listener.accept().is_ok() || {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        false
                    }
                });
                assert!(accepted, "a connection of CPU {cpu} went elsewhere");
            }
        }
    }

    #[test]
    fn a_port_in_use_is_named_with_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = listen(address, Port::Endpoint).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("choose another port"), "{error}");
    }
}
