//! Rules about the addresses of callers (`strangers.*`, `proxy.*`).

use std::net::IpAddr;
use std::sync::Arc;

use crate::strangers::{Prefix, StrangerLimits, Strangers};

/// Rules about the addresses of callers. Every shard has the same.
#[derive(Clone)]
pub struct CallerRules {
    pub strangers: Arc<Strangers>,
    pub proxies: Proxies,
}

/// `proxy.*`: programs between this server and its callers.
#[derive(Clone, Default)]
pub struct Proxies {
    /// `proxy.trusted`: addresses whose word about other addresses is believed.
    pub trusted: Arc<[Prefix]>,
    /// `proxy.protocol`: connections begin with a PROXY header.
    pub protocol: bool,
    /// `proxy.header` is set: the head of a request names its caller ([`Edge::forwarded`]).
    pub header: bool,
}

impl Default for CallerRules {
    /// No limits and no proxies.
    fn default() -> CallerRules {
        CallerRules { strangers: Arc::new(Strangers::new(StrangerLimits::default(), 0)), proxies: Proxies::default() }
    }
}

impl CallerRules {
    /// Returns true if a rule needs the addresses of callers. Never changes.
    pub fn need_addresses(&self) -> bool {
        self.strangers.needs_addresses() || self.proxies.protocol || self.proxies.header
    }
}

impl Proxies {
    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|prefix| prefix.contains(address))
    }
}
