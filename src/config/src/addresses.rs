//! Listen addresses that exclude each other.

use std::net::SocketAddr;

use super::error::ConfigError;
use super::settings::Config;

/// Refuses two listeners on one address: the kernel would give each some of the connections (SO_REUSEPORT), or refuse
/// the second. One address in `websocket.listen` and in `endpoint.listen` is one listener for both.
///
/// # Errors
/// [`ConfigError::OneAddress`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let listeners = listeners(config);
    for (at, one) in listeners.iter().enumerate() {
        for other in &listeners[at + 1..] {
            let same_key = one.0 == other.0;
            // 0.0.0.0 and [::] of one key are both listened on; either takes what is for the key.
            if if same_key { one.1 == other.1 && one.1.port() != 0 } else { overlap(one.1, other.1) } {
                return Err(ConfigError::OneAddress { one: *one, other: *other });
            }
        }
    }
    Ok(())
}

impl Config {
    /// Returns the listeners that this configuration opens, with their keys, without those that `public.domain` alone
    /// opens.
    pub fn set_listeners(&self) -> Vec<(&'static str, SocketAddr)> {
        let by_domain = [("public.listen", &self.public.listen), ("public.http_listen", &self.public.http_listen)];
        let is_default = |key: &str| by_domain.iter().any(|(name, set)| *name == key && set.is_none());
        listeners(self).into_iter().filter(|(key, _)| !is_default(key)).collect()
    }
}

/// Every listener that this configuration opens, with its key.
fn listeners(config: &Config) -> Vec<(&'static str, SocketAddr)> {
    let Config { websocket, endpoint, public, node, admin, metrics, roles, .. } = config;
    let (shared, public, public_http) = (config.shared_listen(), public.listen(), public.http_listen());
    // One listener serves both of their ports.
    let endpoint_listen: Vec<_> = endpoint.listen.iter().copied().filter(|one| !shared.contains(one)).collect();
    let settings = [
        ("websocket.listen", &websocket.listen, roles.connect),
        ("websocket.tls.listen", &websocket.tls_listen, roles.connect),
        ("endpoint.listen", &endpoint_listen, roles.endpoint),
        ("endpoint.tls.listen", &endpoint.tls_listen, roles.endpoint),
        ("public.listen", &public, true),
        ("public.http_listen", &public_http, true),
        ("node.listen", &node.listen, roles.connect),
        ("node.tls.listen", &node.tls.listen, roles.connect),
        ("admin.listen", &admin.listen, true),
        ("admin.tls.listen", &admin.tls_listen, true),
        ("metrics.listen", &metrics.listen, true),
    ];
    let open = settings.into_iter().filter(|(_, _, is_open)| *is_open);
    open.flat_map(|(key, addresses, _)| addresses.iter().map(move |address| (key, *address))).collect()
}

/// Returns true if a connection to one of them may be meant for the other. `[::]` takes connections over IPv4, too,
/// unless the host's settings forbid it; port 0 is a port of its own.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let takes = |wide: SocketAddr, narrow: SocketAddr| {
        wide.ip() == narrow.ip() || (wide.ip().is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4()))
    };
    one.port() == other.port() && one.port() != 0 && (takes(one, other) || takes(other, one))
}
