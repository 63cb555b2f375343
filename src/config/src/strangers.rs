//! `strangers.*`: limits on callers by their address.

use runtime::strangers::{Prefix, StrangerLimits};

use super::allowed::PREFIXES;
use super::key::settings;
use super::parse;
use super::settings::Config;

settings! {
    /// `strangers.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Strangers as STRANGERS at [strangers] {
        /// Numbers of the limits; `None`: as `public.domain` and `public.listen` have it.
        pub(super) connections: Option<u32> = "strangers.connections" [live_if_on], "",
            "a number from 0 (off) to 1000000; nothing is 1024 with public.domain and an address in public.listen, else 0",
            "Maximum number of connections of one address (IPv4 /32, IPv6 /64); a further one is closed before its handshake, or answered 503 without TLS. A restart switches a limit on or off.",
            parse::optional(parse::rate);
        pub(super) handshakes: Option<u32> = "strangers.handshakes" [live_if_on], "",
            "a number from 0 (off) to 1000000; nothing is 20 with public.domain and an address in public.listen, else 0",
            "TLS handshakes of one address in a second; further ones are closed. No address is refused below half of this rate, or served beyond twice of it. Changed as strangers.connections.",
            parse::optional(parse::rate);
        pub(super) new_users: Option<u32> = "strangers.new_users" [live_if_on], "",
            "a number from 0 (off) to 1000000; nothing is 300 with public.domain and an address in public.listen, else 0",
            "User agents and devices of one address in an hour that are new to this server; further ones are closed with 1013, or answered 429 by the registration API. Counted as strangers.handshakes.",
            parse::optional(parse::rate);
        pub(super) registers: Option<u32> = "strangers.registers" [live_if_on], "",
            "a number from 0 (off) to 1000000; nothing is 3000 with public.domain and an address in public.listen, else 0",
            "Registers of one address in an hour; at a further one the user agent is closed with 1013, or the device answered 429. Counted as strangers.handshakes.",
            parse::optional(parse::rate);
        pub(super) exempt: Vec<Prefix> = "strangers.exempt" [live], "",
            PREFIXES,
            "Networks whose addresses have none of these limits, such as a proxy or a large NAT; for new connections.",
            parse::prefixes;
    }
}

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
