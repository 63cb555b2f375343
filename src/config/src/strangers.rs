//! `strangers.*`: limits on callers by their address.

use runtime::strangers::StrangerLimits;

use super::allowed::{ACCESS_LIST_MAX, PREFIXES};
use super::key::keys;
use super::parse::{self, Raw};
use super::settings::{Config, Strangers};

/// Limits of a server that the internet reaches without a proxy.
const PUBLIC_CONNECTIONS: u32 = 1_024;
const PUBLIC_HANDSHAKES: u32 = 20;
const PUBLIC_NEW_USERS: u32 = 300;
const PUBLIC_REGISTERS: u32 = 3_000;

impl Strangers {
    /// Returns true if the operator has switched a limit on.
    pub fn are_set(&self) -> bool {
        [self.connections, self.handshakes, self.new_users, self.registers].iter().flatten().any(|number| *number > 0)
    }
}

impl Config {
    /// Returns the limits on each address.
    pub fn stranger_limits(&self) -> StrangerLimits {
        // Without a public port, callers come through a proxy, and one address is all of them.
        let is_public = !self.public.domain.is_empty() && !self.public.listen().is_empty();
        let number = |set: Option<u32>, public: u32| set.unwrap_or(if is_public { public } else { 0 });
        let Strangers { connections, handshakes, new_users, registers, exempt } = &self.strangers;
        StrangerLimits {
            connections: number(*connections, PUBLIC_CONNECTIONS),
            handshakes_per_second: number(*handshakes, PUBLIC_HANDSHAKES),
            new_users_per_hour: number(*new_users, PUBLIC_NEW_USERS),
            registers_per_hour: number(*registers, PUBLIC_REGISTERS),
            exempt: exempt.clone(),
        }
    }
}

keys! {
    /// Limits on callers by their address.
    const STRANGERS;
    #[live_if_on] "strangers.connections" = "",
        "a number from 0 (off) to 1000000; nothing is 1024 with public.domain and an address in public.listen, else 0",
        "Maximum number of connections of one address (IPv4 /32, IPv6 /64); a further one is closed before its handshake, or answered 503 without TLS. A restart switches a limit on or off.",
        |c, raw| { c.strangers.connections = number(raw)?; Some(()) };
    #[live_if_on] "strangers.handshakes" = "",
        "a number from 0 (off) to 1000000; nothing is 20 with public.domain and an address in public.listen, else 0",
        "TLS handshakes of one address in a second; further ones are closed. No address is refused below half of this rate, or served beyond twice of it. Changed as strangers.connections.",
        |c, raw| { c.strangers.handshakes = number(raw)?; Some(()) };
    #[live_if_on] "strangers.new_users" = "",
        "a number from 0 (off) to 1000000; nothing is 300 with public.domain and an address in public.listen, else 0",
        "User agents and devices of one address in an hour that are new to this server; further ones are closed with 1013, or answered 429 by the registration API. Counted as strangers.handshakes.",
        |c, raw| { c.strangers.new_users = number(raw)?; Some(()) };
    #[live_if_on] "strangers.registers" = "",
        "a number from 0 (off) to 1000000; nothing is 3000 with public.domain and an address in public.listen, else 0",
        "Registers of one address in an hour; at a further one the user agent is closed with 1013, or the device answered 429. Counted as strangers.handshakes.",
        |c, raw| { c.strangers.registers = number(raw)?; Some(()) };
    #[live] "strangers.exempt" = "",
        PREFIXES,
        "Networks whose addresses have none of these limits, such as a proxy or a large NAT; for new connections.",
        |c, raw| { c.strangers.exempt = parse::prefixes(raw).filter(|list| list.len() <= ACCESS_LIST_MAX)?; Some(()) };
}

/// Reads the number of a limit; nothing is `None`.
fn number(raw: &Raw) -> Option<Option<u32>> {
    if raw.text()?.is_empty() {
        return Some(None);
    }
    parse::number(raw, 0, u64::from(machine::token_bucket::RATE_MAX)).map(|number| Some(number as u32))
}
