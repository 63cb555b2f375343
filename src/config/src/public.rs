//! `public.*`: the names of this server, and its port for everything public.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use protocol::wire::url::BaseUrl;

use super::allowed::ADDRESSES_BY_DOMAIN;
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::settings::{Config, Roles};

settings! {
    /// `public.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Public as PUBLIC at [public] {
        /// Names of this server, in lower case.
        pub domain: Vec<String> = "public.domain" ("domain" "NAME"), "",
            "host names as push.example.org, each once and up to 250 bytes, without ports, separated by commas, or nothing",
            "Names of this server on the internet; the first makes endpoint.url.",
            parse::domains;
        /// Addresses for user agents and app servers together, over TLS; `None`: as `domain` has it.
        pub(super) listen: Option<Vec<SocketAddr>> = "public.listen" ("public" "ADDR"), "",
            ADDRESSES_BY_DOMAIN,
            "Listen addresses for user agents and application servers together, over TLS; needs tls.cert and tls.key. Nothing is 0.0.0.0:443,[::]:443 with public.domain, without [::] on a host without IPv6, else none.",
            parse::addresses_by_domain;
        /// Addresses without TLS that send browsers to `https://`; `None`: as `domain` has it.
        pub(super) http_listen: Option<Vec<SocketAddr>> = "public.http_listen" ("public-http" "ADDR"), "",
            ADDRESSES_BY_DOMAIN,
            "Listen addresses without TLS that send browsers to https:// and answer challenges of a certificate authority; needs public.domain. Nothing is 0.0.0.0:80,[::]:80 with public.domain, without [::] on a host without IPv6, else none.",
            parse::addresses_by_domain;
    }
}

/// `tls.hsts` with `public.domain`: a year.
const HSTS_SECONDS: u32 = 31_536_000;

impl Public {
    /// Returns the addresses for user agents and app servers together, over TLS.
    pub fn listen(&self) -> Vec<SocketAddr> {
        self.listen.clone().unwrap_or_else(|| self.every_address(443))
    }

    /// Returns the addresses without TLS that send browsers to `https://`.
    pub fn http_listen(&self) -> Vec<SocketAddr> {
        self.http_listen.clone().unwrap_or_else(|| self.every_address(80))
    }

    /// Returns [`Public::listen`] for a host with IPv6 or without: a default leaves out what the host does not have.
    pub fn listen_with(&self, ipv6: bool) -> Vec<SocketAddr> {
        existing(self.listen(), ipv6 || self.listen.is_some())
    }

    /// The same of [`Public::http_listen`].
    pub fn http_listen_with(&self, ipv6: bool) -> Vec<SocketAddr> {
        existing(self.http_listen(), ipv6 || self.http_listen.is_some())
    }

    /// Returns the URL of this server, if it has a name.
    pub fn url(&self) -> Option<BaseUrl> {
        self.domain.first().and_then(|name| BaseUrl::parse(&format!("https://{name}")))
    }

    /// Returns this port of every interface if the server has a name.
    fn every_address(&self, port: u16) -> Vec<SocketAddr> {
        let every = [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()];
        if self.domain.is_empty() { Vec::new() } else { Vec::from(every) }
    }
}

fn existing(mut addresses: Vec<SocketAddr>, with_ipv6: bool) -> Vec<SocketAddr> {
    addresses.retain(|address| with_ipv6 || address.is_ipv4());
    addresses
}

impl Config {
    /// Returns the seconds in `Strict-Transport-Security` of answers over TLS; 0: they have none.
    pub fn hsts(&self) -> u32 {
        let default = if self.public.domain.is_empty() { 0 } else { HSTS_SECONDS };
        self.tls.hsts.unwrap_or(default)
    }

    /// Returns the addresses without TLS that are in both `websocket.listen` and `endpoint.listen`: user agents and app
    /// servers share them.
    pub fn shared_listen(&self) -> Vec<SocketAddr> {
        let shared = |address: &&SocketAddr| address.port() != 0 && self.endpoint.listen.contains(address);
        if self.roles == BOTH { self.websocket.listen.iter().filter(shared).copied().collect() } else { Vec::new() }
    }
}

const BOTH: Roles = Roles { connect: true, endpoint: true };

/// Refuses a port for both roles where one of them is off, and redirects to nowhere.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    if config.roles != BOTH && !config.public.listen().is_empty() {
        return Err(ConfigError::Conflict(
            "public.listen serves user agents and app servers, and one of them is not in roles: give both roles, or set \
             public.listen to none",
        ));
    }
    if config.public.domain.is_empty() && !config.public.http_listen().is_empty() {
        return Err(ConfigError::Conflict(
            "public.http_listen needs public.domain: the name that it sends browsers to",
        ));
    }
    Ok(())
}
