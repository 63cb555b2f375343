//! `bridge.fcm.*`: Firebase Cloud Messaging (docs/BRIDGES.md).

use std::time::Duration;

use protocol::wire::url::HttpUrl;

use super::allowed::SECONDS;
use super::key::keys;
use super::parse::{self, Raw, Secret};

/// `bridge.fcm.*`.
#[derive(Clone, Debug, Default)]
pub struct Fcm {
    /// Profiles as JSON text, or the file that holds it; `None`: there is no such bridge.
    pub credentials: Option<Secret>,
    /// URL of the service; `None` only before the defaults are set.
    pub base_url: Option<HttpUrl>,
    /// For one notification.
    pub timeout: Duration,
    /// Seconds that FCM keeps a notification at least, and at most.
    pub min_ttl: u32,
    pub max_ttl: u32,
    /// Bytes of the data of one notification.
    pub max_data: usize,
    /// Notifications of one topic replace each other at FCM.
    pub collapse: bool,
    /// Connections of each profile.
    pub connections: u8,
}

keys! {
    /// Firebase Cloud Messaging.
    const FCM;
    #[secret] "bridge.fcm.credentials" = "",
        "a file, or JSON as {\"app\":{\"project_id\":\"..\",\"credential\":\"FILE\"}}, or nothing",
        "Profiles of Firebase Cloud Messaging: the project and the service account of each app, as JSON or as a file with it. Read again on SIGHUP.",
        |c, raw| { c.fcm.credentials = credentials(raw)?; Some(()) };
    "bridge.fcm.base_url" = "https://fcm.googleapis.com",
        "a URL that begins with http:// or https://, without query, user and fragment",
        "URL of Firebase Cloud Messaging.",
        |c, raw| { c.fcm.base_url = base_url(raw)?; Some(()) };
    "bridge.fcm.timeout" = "3",
        SECONDS,
        "Time limit for one notification, with its wait for other notifications and for an access token; later it is answered 502.",
        |c, raw| { c.fcm.timeout = parse::positive_duration(raw)?; Some(()) };
    "bridge.fcm.min_ttl" = "60",
        "a number of seconds from 0 to 2419200",
        "Minimum time for which FCM keeps a notification. With 0, a notification with TTL 0 is delivered now or never.",
        |c, raw| { c.fcm.min_ttl = parse::number(raw, 0, 2_419_200)? as u32; Some(()) };
    "bridge.fcm.max_ttl" = "2419200",
        "a number of seconds from 0 to 2419200",
        "Maximum time for which FCM keeps a notification.",
        |c, raw| { c.fcm.max_ttl = parse::number(raw, 0, 2_419_200)? as u32; Some(()) };
    "bridge.fcm.max_data" = "4096",
        "a number of bytes from 512 to 4096",
        "Maximum size of the data of a notification as JSON; more is answered 413.",
        |c, raw| { c.fcm.max_data = parse::number(raw, 512, 4_096)? as usize; Some(()) };
    "bridge.fcm.collapse" = "true",
        "true or false",
        "Gives notifications with a Topic a collapse key. FCM keeps four keys for a device and drops other notifications without notice.",
        |c, raw| { c.fcm.collapse = parse::flag(raw)?; Some(()) };
    "bridge.fcm.connections" = "2",
        "a number from 1 to 20",
        "Maximum number of connections of each profile.",
        |c, raw| { c.fcm.connections = parse::number(raw, 1, 20)? as u8; Some(()) };
}

fn credentials(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| Secret::new(text)))
}

fn base_url(raw: &Raw) -> Option<Option<HttpUrl>> {
    let text = raw.text().filter(|text| !text.contains(['?', '#']))?;
    HttpUrl::parse(text).map(Some)
}
