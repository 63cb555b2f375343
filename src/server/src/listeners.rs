//! Listening sockets: every shard has its own on every public address (SO_REUSEPORT, ARCHITECTURE.md 2).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use runtime::ports::{Listening, Port};
use runtime::ring;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind as bind_to, socket_with};

use super::error::NodeError;
use config::{Config, Steer};
use control_plane::Address;
use host::has_ipv6;

/// Listen setting of a port that the shards serve.
pub(super) struct Setting {
    port: Port,
    tls: bool,
    key: &'static str,
    addresses: Vec<SocketAddr>,
}

/// Returns the listen settings that the shards serve. A role that is off has none.
pub(super) fn public(config: &Config) -> Vec<Setting> {
    let Config { websocket, endpoint, node, roles, .. } = config;
    let shared = config.shared_listen();
    let alone = |addresses: &[SocketAddr]| addresses.iter().copied().filter(|one| !shared.contains(one)).collect();
    let settings = [
        (Port::Public, true, "public.listen", config.public.listen_with(has_ipv6()), true),
        (Port::WebSocket, false, "websocket.listen", alone(&websocket.listen), roles.connect),
        (Port::WebSocket, true, "websocket.tls.listen", websocket.tls_listen.clone(), roles.connect),
        (Port::Node, false, "node.listen", node.listen.clone(), roles.connect),
        (Port::Node, true, "node.tls.listen", node.tls.listen.clone(), roles.connect),
        (Port::Endpoint, false, "endpoint.listen", alone(&endpoint.listen), roles.endpoint),
        (Port::Endpoint, true, "endpoint.tls.listen", endpoint.tls_listen.clone(), roles.endpoint),
        (Port::Public, false, "websocket.listen", shared.clone(), true),
    ];
    let open = settings.into_iter().filter(|(.., is_open)| *is_open);
    open.map(|(port, tls, key, addresses, _)| Setting { port, tls, key, addresses }).collect()
}

/// Returns the TCP ports that the shards of a node with this configuration listen on.
pub fn listen_ports(config: &Config) -> Vec<u16> {
    public(config).iter().flat_map(|setting| &setting.addresses).map(SocketAddr::port).collect()
}

/// Refuses addresses that cannot be bound, before anything else is done. Needed beside [`bind`], because
/// SO_REUSEPORT lets another server of the same user share a port without a word.
///
/// An address in use is tried again for as long as `patience`: the kernel takes the rings of a killed process apart
/// some time after the process is gone, and their listeners last that long.
pub(super) fn check_free(config: &Config, patience: Duration) -> Result<(), NodeError> {
    let until = Instant::now() + patience;
    for Setting { key, addresses, .. } in public(config) {
        for address in addresses {
            while let Err(error) = try_bind(address) {
                if error.kind() != io::ErrorKind::AddrInUse || Instant::now() >= until {
                    return Err(NodeError::Address { key, address, error });
                }
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }
    Ok(())
}

/// Binds and closes a socket. It never listens: a client must not take this for a server.
fn try_bind(address: SocketAddr) -> io::Result<()> {
    let socket = stream_socket(address)?;
    Ok(bind_to(&socket, &address)?)
}

fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Else connections that ended a minute ago would be in the way.
    set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The listeners of one shard.
pub(super) type Bound = Vec<Listening>;

/// Result of [`bind`].
pub(super) struct PublicPort {
    /// Listeners by shard.
    pub shards: Vec<Bound>,
    /// Bound addresses, in the order of the settings.
    pub addresses: Vec<Address>,
}

/// Listens for every shard; `cores` has the CPU of each. With port 0, all shards use the port of the first one.
///
/// # Errors
/// [`NodeError::Address`].
pub(super) fn bind(config: &Config, cores: &[u32]) -> Result<PublicPort, NodeError> {
    let mut shards: Vec<Bound> = cores.iter().map(|_| Vec::new()).collect();
    let mut addresses = Vec::new();
    for Setting { port, tls, key, addresses: wanted } in public(config) {
        for wanted in wanted {
            let fault = |error| NodeError::Address { key, address: wanted, error };
            let (address, sockets) = bind_shards(config, cores, (port, wanted)).map_err(fault)?;
            let proxied = config.proxy.protocol && port != Port::Node;
            addresses.push(Address { port, tls, proxied, address });
            let listening = sockets.into_iter().map(|socket| Listening { port, tls, socket });
            shards.iter_mut().zip(listening).for_each(|(shard, listening)| shard.push(listening));
        }
    }
    Ok(PublicPort { shards, addresses })
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

/// Binds the listeners for operators and for metrics, which only the control plane uses.
///
/// # Errors
/// [`NodeError::Address`].
pub(super) fn bind_admin(config: &Config) -> Result<AdminListeners, NodeError> {
    Ok(AdminListeners {
        plain: bind_plainly("admin.listen", &config.admin.listen)?,
        tls: bind_plainly("admin.tls.listen", &config.admin.tls_listen)?,
        metrics: bind_plainly("metrics.listen", &config.metrics.listen)?,
    })
}

/// Binds `public.http_listen`, which only the control plane uses.
///
/// # Errors
/// [`NodeError::Address`].
pub(super) fn bind_redirects(config: &Config) -> Result<Vec<TcpListener>, NodeError> {
    let addresses = config.public.http_listen_with(has_ipv6());
    let bind = |address: &SocketAddr| {
        // Else [::] takes the connections of IPv4, too, and 0.0.0.0 could not be bound beside it.
        let beside = addresses.iter().any(|other| other.is_ipv4() && other.port() == address.port());
        listen(*address, address.is_ipv6() && beside, config.shards.backlog).map_err(|error| NodeError::Address {
            key: "public.http_listen",
            address: *address,
            error,
        })
    };
    addresses.iter().map(bind).collect()
}

fn listen(address: SocketAddr, only_v6: bool, backlog: u16) -> io::Result<TcpListener> {
    let socket = stream_socket(address)?;
    if only_v6 {
        set_ipv6_v6only(&socket, true)?;
    }
    bind_to(&socket, &address)?;
    rustix::net::listen(&socket, i32::from(backlog))?;
    Ok(socket.into())
}

/// Bound listeners for operators and for metrics.
pub(super) struct AdminListeners {
    pub plain: Vec<TcpListener>,
    pub tls: Vec<TcpListener>,
    pub metrics: Vec<TcpListener>,
}

fn bind_plainly(key: &'static str, addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, NodeError> {
    let fault = |address: &SocketAddr, error| NodeError::Address { key, address: *address, error };
    let bind = |address: &SocketAddr| TcpListener::bind(address).map_err(|error| fault(address, error));
    addresses.iter().map(bind).collect()
}
