//! `bridge.apns.*`: Apple Push Notification service (docs/BRIDGES.md).

use std::time::Duration;

use super::allowed::SECONDS;
use super::key::keys;
use super::parse::{self, Raw, Secret};

/// `bridge.apns.*`.
#[derive(Clone, Debug, Default)]
pub struct Apns {
    /// Channels as JSON text, or the file that holds it; `None`: there is no such bridge.
    pub channels: Option<Secret>,
    /// For one notification.
    pub timeout: Duration,
    /// After which a connection without notifications is closed.
    pub idle_timeout: Duration,
    /// Bytes of one payload.
    pub max_data: usize,
    /// Connections of each channel.
    pub connections: u8,
}

keys! {
    /// Apple Push Notification service.
    const APNS;
    #[secret] "bridge.apns.channels" = "",
        "a file, or JSON as {\"app\":{\"key\":\"FILE\",\"key_id\":\"..\",\"team_id\":\"..\"}}, or nothing",
        "Channels of the Apple Push Notification service: the signing key or the certificate of each app, and its topic, as JSON or as a file with it. Read again on SIGHUP.",
        |c, raw| { c.apns.channels = channels(raw)?; Some(()) };
    "bridge.apns.timeout" = "5",
        SECONDS,
        "Time limit for one notification, with its wait for other notifications; later it is answered 502.",
        |c, raw| { c.apns.timeout = parse::positive_duration(raw)?; Some(()) };
    "bridge.apns.idle_timeout" = "600",
        SECONDS,
        "Time after which a connection to Apple without notifications is closed.",
        |c, raw| { c.apns.idle_timeout = parse::positive_duration(raw)?; Some(()) };
    "bridge.apns.max_data" = "4096",
        "a number of bytes from 512 to 4096",
        "Maximum size of the payload of a notification; more is answered 413.",
        |c, raw| { c.apns.max_data = parse::number(raw, 512, 4_096)? as usize; Some(()) };
    "bridge.apns.connections" = "2",
        "a number from 1 to 20",
        "Maximum number of connections of each channel.",
        |c, raw| { c.apns.connections = parse::number(raw, 1, 20)? as u8; Some(()) };
}

fn channels(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| Secret::new(text)))
}
