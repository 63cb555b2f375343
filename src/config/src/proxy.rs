//! `proxy.*`: proxies in front of this server, and their ways to tell the address of a caller (docs/PROXIES.md).

use protocol::wire::forwarded::Kind;

use super::allowed::{ACCESS_LIST_MAX, PREFIXES};
use super::error::ConfigError;
use super::key::keys;
use super::parse;
use super::settings::Config;

keys! {
    /// Proxies in front of this server.
    const PROXY;
    "proxy.trusted" = "",
        PREFIXES,
        "Addresses and prefixes of the proxies in front of this server. proxy.protocol and proxy.header believe these callers and no other.",
        |c, raw| { c.proxy.trusted = parse::prefixes(raw).filter(|list| list.len() <= ACCESS_LIST_MAX)?; Some(()) };
    "proxy.protocol" = "off",
        "off, or on",
        "Demands a PROXY header of version 1 or 2 at the start of each connection of the WebSocket, endpoint and public listeners, before TLS. Callers outside of proxy.trusted and connections without a valid header are closed.",
        |c, raw| { c.proxy.protocol = parse::word(raw, &[("off", false), ("on", true)])?; Some(()) };
    "proxy.header" = "none",
        "none, x-forwarded-for or forwarded",
        "Header from which the address of a caller is read, from the right to the first address that is not in proxy.trusted. With proxy.protocol = on, the address of the PROXY header must also be in proxy.trusted.",
        |c, raw| {
            let (usual, standard) = (Some(Kind::XForwardedFor), Some(Kind::Forwarded));
            let words = [("none", None), ("x-forwarded-for", usual), ("forwarded", standard)];
            c.proxy.header = parse::word(raw, &words)?;
            Some(())
        };
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
