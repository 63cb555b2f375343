//! `proxy.*`: proxies in front of this server, and their ways to tell the address of a caller (docs/PROXIES.md).

use protocol::wire::forwarded::Kind;
use runtime::strangers::Prefix;

use super::allowed::PREFIXES;
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::settings::Config;

settings! {
    /// `proxy.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Proxy as PROXY at [proxy] {
        /// Callers that are believed; empty: none, and both ways are off.
        pub trusted: Vec<Prefix> = "proxy.trusted", "",
            PREFIXES,
            "Addresses and prefixes of the proxies in front of this server. proxy.protocol and proxy.header believe these callers and no other.",
            parse::prefixes;
        pub protocol: bool = "proxy.protocol", "off",
            "off, or on",
            "Demands a PROXY header of version 1 or 2 at the start of each connection of the WebSocket, endpoint and public listeners, before TLS. Callers outside of proxy.trusted and connections without a valid header are closed.",
            parse::word([("off", false), ("on", true)]);
        pub header: Option<Kind> = "proxy.header", "none",
            "none, x-forwarded-for or forwarded",
            "Header from which the address of a caller is read, from the right to the first address that is not in proxy.trusted. With proxy.protocol = on, the address of the PROXY header must also be in proxy.trusted.",
            parse::word([
                ("none", None),
                ("x-forwarded-for", Some(Kind::XForwardedFor)),
                ("forwarded", Some(Kind::Forwarded)),
            ]);
    }
}

/// Refuses ways without callers that are believed, and the other way round.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let proxy = &config.proxy;
    let conflict = match (proxy.trusted.is_empty(), proxy.protocol, proxy.header.is_some()) {
        (true, true, _) => "proxy.protocol = on needs proxy.trusted: the addresses of the proxies that are believed",
        (true, false, true) => "proxy.header needs proxy.trusted: the addresses of the proxies that are believed",
        (false, false, false) => {
            "proxy.trusted has no effect without proxy.protocol or proxy.header: set one of them too"
        }
        (true, false, false) | (false, true, _) | (false, _, true) => return Ok(()),
    };
    Err(ConfigError::Conflict(conflict))
}
