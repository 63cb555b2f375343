//! Addresses that connections go to and come from, as the kernel reads them.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::SockAddr;

use crate::frame::upgrade_request;

/// An address at a place of its own.
pub(super) struct Address(SockAddr);

impl Address {
    fn new(address: SocketAddr) -> Address {
        Address(address.into())
    }

    pub fn pointer(&self) -> *const libc::sockaddr {
        self.0.as_ptr().cast()
    }

    pub fn len(&self) -> libc::socklen_t {
        self.0.len()
    }
}

/// A listener, and what is sent to it first.
pub(super) struct Target {
    pub address: Address,
    pub upgrade: Box<[u8]>,
}

impl Target {
    pub fn domain(&self) -> i32 {
        i32::from(self.address.0.family())
    }
}

/// Place of one agent: numbers of a target and of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fleet) struct Place {
    target: usize,
    source: usize,
}

/// All places. Never changed: the kernel looks into it at any time while a ring lives.
pub(in crate::fleet) struct Wire {
    targets: Vec<Target>,
    /// Source addresses beside the first, which the kernel chooses.
    sources: Vec<Address>,
    /// Neighbours on a target that share a source.
    run: usize,
    /// The upgrade request is the first thing that is sent; over TLS it is not.
    pub upgrades_first: bool,
}

/// Connections from one source to one target at most, where the kernel hands out this number of ports. It tries every
/// second port first, all of them before it takes another, so that beyond half of them a connect costs a millisecond
/// (measured: 50 us, then 2 ms). Six sevenths of that half are found quickly.
fn of_one_source(ports: usize) -> usize {
    (ports * 3 / 7).max(1)
}

/// Number of ports that the kernel hands out to sockets that do not ask for one.
fn local_ports() -> usize {
    const DEFAULT: usize = 28_232;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = range.split_whitespace().map_while(|bound| bound.parse::<usize>().ok());
    match (bounds.next(), bounds.next()) {
        (Some(low), Some(high)) if low <= high => high - low + 1,
        _ => DEFAULT,
    }
}

/// Source addresses at most: 127.1.0.1 to 127.1.255.255, two billion connections.
const SOURCES_MAX: usize = 65_535;

impl Wire {
    /// For `count` agents that go to these servers from `sources` addresses; as many as are needed when absent. Only
    /// loopback has more than one.
    pub fn new(servers: &[SocketAddr], sources: Option<usize>, count: usize, upgrades_first: bool) -> Wire {
        let targets = servers.iter().map(|server| Target {
            address: Address::new(*server),
            upgrade: upgrade_request(&server.to_string()).into_boxed_slice(),
        });
        let targets: Vec<Target> = targets.collect();
        let of_target = count.div_ceil(targets.len().max(1)).max(1);
        let many = servers.iter().all(|server| server.is_ipv4() && server.ip().is_loopback());
        let sources = if many { sources.unwrap_or(of_target.div_ceil(of_one_source(local_ports()))) } else { 1 };
        let sources = sources.clamp(1, SOURCES_MAX);
        let address = |number: usize| {
            let [.., high, low] = (number as u32).to_be_bytes();
            Address::new(SocketAddr::from((Ipv4Addr::new(127, 1, high, low), 0)))
        };
        Wire { targets, sources: (1..sources).map(address).collect(), run: of_target.div_ceil(sources), upgrades_first }
    }

    /// Place of an agent, always the same.
    pub fn place(&self, agent: usize) -> Place {
        Place { target: agent % self.targets.len(), source: agent / self.targets.len() / self.run }
    }

    pub(super) fn target(&self, place: Place) -> &Target {
        &self.targets[place.target]
    }

    pub(super) fn source(&self, place: Place) -> Option<&Address> {
        self.sources.get(place.source.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn server(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    #[test]
    fn no_source_has_more_connections_to_a_target_than_ports() {
        for (servers, sources, count) in [(1, None, 50_001), (3, None, 1_000_000), (2, Some(7), 100), (1, Some(1), 10)]
        {
            let servers: Vec<SocketAddr> = (1..=servers).map(server).collect();
            let wire = Wire::new(&servers, sources, count, true);
            let mut held: HashMap<(usize, usize), usize> = HashMap::new();
            for place in (0..count).map(|agent| wire.place(agent)) {
                *held.entry((place.target, place.source)).or_default() += 1;
                assert!(place.source <= wire.sources.len());
            }
            assert!(held.values().all(|&held| held <= of_one_source(local_ports())));
            assert_eq!(held.len(), servers.len() * (wire.sources.len() + 1), "all are used");
        }
    }

    #[test]
    fn a_source_is_given_less_than_every_second_port() {
        assert_eq!((of_one_source(28_232), of_one_source(64_512), of_one_source(1)), (12_099, 27_648, 1));
        assert!(local_ports() > 0);
    }

    #[test]
    fn hosts_elsewhere_are_reached_from_wherever_the_kernel_says() {
        let far: SocketAddr = "192.0.2.1:8080".parse().unwrap();
        let wire = Wire::new(&[far, server(1)], Some(9), 100_000, true);
        assert!((0..100_000).all(|agent| wire.source(wire.place(agent)).is_none()));
    }
}
