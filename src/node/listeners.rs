//! Listening sockets: every shard has its own on every public address (SO_REUSEPORT, ARCHITECTURE.md 2).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind as bind_to, socket_with};
use shards::ports::Port;
use shards::ring;

use super::fault::Fault;
use crate::config::{Config, Steer};
use crate::island::Admin;

/// Returns the public ports of this configuration with the names of their settings. A role that is off has none.
pub(super) fn public(config: &Config) -> Vec<(Port, &'static str, &[SocketAddr])> {
    let mut ports = Vec::new();
    if config.roles.connect {
        ports.push((Port::WebSocket, "websocket.listen", &config.websocket.listen[..]));
        ports.push((Port::Node, "node.listen", &config.node.listen[..]));
    }
    if config.roles.endpoint {
        ports.push((Port::Endpoint, "endpoint.listen", &config.endpoint.listen[..]));
    }
    ports
}

/// Refuses addresses that cannot be bound, before anything else is done. Needed beside [`bind`], because
/// SO_REUSEPORT lets another server of the same user share a port without a word.
///
/// An address in use is tried again for as long as `patience`: the kernel takes the rings of a killed process apart
/// some time after the process is gone, and their listeners last that long.
pub(super) fn check_free(config: &Config, patience: Duration) -> Result<(), Fault> {
    let until = Instant::now() + patience;
    for (_, key, addresses) in public(config) {
        for address in addresses {
            while let Err(error) = try_bind(*address) {
                if error.kind() != io::ErrorKind::AddrInUse || Instant::now() >= until {
                    return Err(Fault::Address { key, address: *address, error });
                }
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }
    Ok(())
}

/// Binds and closes a socket. It never listens: a client must not take this for a server.
fn try_bind(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Else connections that ended a minute ago would be in the way.
    set_socket_reuseaddr(&socket, true)?;
    Ok(bind_to(&socket, &address)?)
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The listeners of one shard, and the addresses they are bound to, of one port each.
pub(super) type Bound = Vec<(Port, OwnedFd)>;

/// Result of [`bind`]: the listeners of each shard, and the address of each listen setting.
pub(super) struct Public {
    /// Listeners by shard.
    pub shards: Vec<Bound>,
    /// Bound addresses: with port 0 configured, the port that the kernel chose.
    pub addresses: Vec<(Port, SocketAddr)>,
}

/// Listens for every shard; `cores` has the CPU of each. With port 0, all shards use the port of the first one.
///
/// # Errors
/// [`Fault::Address`].
pub(super) fn bind(config: &Config, cores: &[u32]) -> Result<Public, Fault> {
    let mut shards: Vec<Bound> = cores.iter().map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for (port, key, wanted) in public(config) {
        for wanted in wanted {
            let fault = |error| Fault::Address { key, address: *wanted, error };
            let (address, listeners) = bind_shards(config, cores, (port, *wanted)).map_err(fault)?;
            addresses.push((port, address));
            shards.iter_mut().zip(listeners).for_each(|(shard, listener)| shard.push((port, listener)));
        }
    }
    Ok(Public { shards, addresses })
}

/// Returns a listener for each shard on one address, and the bound address.
fn bind_shards(
    config: &Config,
    cores: &[u32],
    (port, mut address): (Port, SocketAddr),
) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    let mut listeners = Vec::with_capacity(cores.len());
    for cpu in cores {
        let listener = ring::listen(address, port, config.shards.backlog).map_err(io::Error::other)?;
        if config.shards.steer == Steer::Cpu {
            ring::steer(&listener, *cpu)?;
        }
        if listeners.is_empty() {
            address = ring::local_address(&listener)?;
        }
        listeners.push(listener);
    }
    Ok((address, listeners))
}

/// Binds the admin listeners, which only the island uses.
///
/// # Errors
/// [`Fault::Address`].
pub(super) fn bind_admin(config: &Config) -> Result<Admin, Fault> {
    let listeners = bind_plainly("admin.listen", &config.admin.listen)?;
    Ok(Admin { listeners, hosts: config.admin.hosts.clone() })
}

/// Binds the TLS listeners in front of the node API for the island; none without the role connect.
///
/// # Errors
/// [`Fault::Address`].
pub(super) fn bind_tls(config: &Config) -> Result<Vec<TcpListener>, Fault> {
    if config.roles.connect { bind_plainly("node.tls.listen", &config.node.tls.listen) } else { Ok(Vec::new()) }
}

fn bind_plainly(key: &'static str, addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, Fault> {
    let fault = |address: &SocketAddr, error| Fault::Address { key, address: *address, error };
    let bind = |address: &SocketAddr| TcpListener::bind(address).map_err(|error| fault(address, error));
    addresses.iter().map(bind).collect()
}
