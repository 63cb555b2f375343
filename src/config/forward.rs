//! `forward.*`: endpoints that pass messages on to other push services (docs/FORWARD.md).

use super::allowed::{CALL_SECONDS, RATE};
use super::error::ConfigError;
use super::key::keys;
use super::parse::{self, Raw, Secret};
use super::settings::Config;
use super::values::rate;

keys! {
    /// Forward endpoints.
    const FORWARD;
    "forward.enabled" = "false",
        "true or false",
        "Offers forward endpoints: a relay to push services that strangers name. docs/FORWARD.md has the risks.",
        |c, raw| { c.forward.enabled = parse::flag(raw)?; Some(()) };
    #[secret] #[live] "forward.create_token" = "",
        "a secret of 16 to 256 characters without blanks, or nothing",
        "Secret that a request for a forward endpoint must show in Authorization: Bearer; nothing: anybody may create one.",
        |c, raw| { c.forward.create_token = create_token(raw)?; Some(()) };
    #[live] "forward.create_rate" = "10",
        RATE,
        "Requests for forward endpoints per second and node, with a burst of ten seconds' worth; further ones are answered 429.",
        |c, raw| { c.forward.create_rate = rate(raw)?; Some(()) };
    #[live] "forward.hosts" = "",
        "host names as push.example.org, each once and up to 250 bytes, without ports, separated by commas, or nothing",
        "The only hosts that forward endpoints may lead to; nothing: any public host. Endpoints of other hosts are answered 404.",
        |c, raw| { c.forward.hosts = parse::domains(raw)?; Some(()) };
    "forward.timeout" = "5",
        CALL_SECONDS,
        "Time limit for a call of a target, from the lookup of its name to its answer; later the sender is answered 502.",
        |c, raw| { c.forward.timeout = parse::call_time(raw)?; Some(()) };
    "forward.max_in_flight" = "128",
        "a number from 1 to 4096",
        "Maximum number of calls of targets at a time, and at most 16 of them for one host; a further message is answered 503.",
        |c, raw| { c.forward.max_in_flight = parse::number(raw, 1, 4_096)? as u32; Some(()) };
}

/// Reads `forward.create_token`.
fn create_token(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    let fits = (16..=256).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    (text.is_empty() || fits).then(|| (!text.is_empty()).then(|| Secret::new(text)))
}

/// Checks that forward endpoints can be served.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let serves = !config.endpoint.listen.is_empty()
        || !config.endpoint.tls_listen.is_empty()
        || !config.public.listen().is_empty();
    if config.forward.enabled && !serves {
        return Err(ConfigError::Conflict(
            "forward.enabled needs an address in endpoint.listen, endpoint.tls.listen or public.listen",
        ));
    }
    Ok(())
}
