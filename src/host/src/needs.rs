//! Needs of a server with one configuration.

use std::net::SocketAddr;

use config::{Config, PlaneChoice, Shards, Steer, StoreKind};

/// Demand for a feature of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// Nothing uses it.
    Off,
    /// A default uses it; the server starts without.
    Default,
    /// A setting of the operator needs it.
    Set,
}

/// Needs of a server: limits by its size, and features by its settings.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub connections: u64,
    /// `shards.backlog`.
    pub backlog: u64,
    /// Number of shards by `shards.count` and `shards.cores`; `None`: one for each CPU of this process.
    pub shards: Option<u64>,
    /// `shards.plane`.
    pub plane: PlaneChoice,
    /// Subject that needs rings, if there is one.
    pub rings: Option<&'static str>,
    /// `shards.steer` is `cpu`.
    pub steer: bool,
    /// Addresses of callers: for `strangers.*` and `proxy.*`.
    pub callers: Demand,
    /// `hibernate.after` is set.
    pub hibernation: bool,
    /// Frozen sessions outlive the process: `hibernate.after` and `hibernate.dir` are set.
    pub takeover: bool,
    /// The first listener of IPv6 that a setting names, with its key. Defaults do without.
    pub ipv6: Option<(&'static str, SocketAddr)>,
    /// The data directory has more than an orderly end saves elsewhere.
    pub keeps_data: bool,
}

impl Needs {
    /// Needs of `murre serve` with this configuration.
    pub fn of(config: &Config) -> Needs {
        let Shards { ref cores, count, backlog, steer, plane } = config.shards;
        let shards = if count == 0 { cores.len() as u64 } else { u64::from(count) };
        let hibernation = config.hibernate.after.is_some();
        Needs {
            connections: u64::from(config.max_connections),
            backlog: u64::from(backlog),
            shards: (shards > 0).then_some(shards),
            plane,
            rings: hibernation.then_some("hibernate.after"),
            steer: steer == Steer::Cpu,
            callers: callers(config),
            hibernation,
            takeover: hibernation && config.hibernate.dir.is_some(),
            ipv6: config.set_listeners().into_iter().find(|(_, address)| address.is_ipv6()),
            keeps_data: match config.store.kind {
                StoreKind::Memory => false,
                StoreKind::Embedded => true,
                // What the shared store lacks is in the ledgers.
                StoreKind::Scylla => config.delivery.durable,
            },
        }
    }
}

impl Needs {
    /// Returns these needs for a data directory where frozen sessions of an earlier process may wait.
    pub fn with_frozen(self, wait: bool) -> Needs {
        let frozen = wait.then_some("the takeover of frozen sessions");
        Needs { rings: self.rings.or(frozen), ..self }
    }
}

fn callers(config: &Config) -> Demand {
    let is_set = config.strangers.are_set() || config.proxy.protocol || config.proxy.header.is_some();
    match (is_set, config.stranger_limits().any()) {
        (true, _) => Demand::Set,
        (false, true) => Demand::Default,
        (false, false) => Demand::Off,
    }
}
