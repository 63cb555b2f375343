//! `bridge.*`: mobile bridges (docs/BRIDGES.md), and registration of devices (PROTOCOL.md 3).

use std::path::PathBuf;
use std::time::Duration;

use protocol::wire::url::HttpUrl;

use super::allowed::{CALL_SECONDS, PEM, SECONDS};
use super::key::settings;
use super::parse;
use super::parse::{Raw, Secret};

settings! {
    /// Registration of devices of mobile bridges.
    #[derive(Clone, Debug, Default)]
    pub struct Bridge as BRIDGE at [bridge] {
        /// Keys of the secrets of registered users; the first makes them, all verify. Empty: the API is off.
        pub auth_keys: Vec<Secret> = "bridge.auth_keys" [secret live], "",
            "keys of 16 to 256 visible characters, [k1,k2] or k1,k2",
            "Keys of the secrets that registered devices show: the first key makes them, every key verifies. Without keys there is no registration API. Several nodes need the same keys.",
            parse::bearer_keys;
    }
}

settings! {
    /// Bounds and trust of the calls of mobile bridges.
    #[derive(Clone, Debug, Default)]
    pub struct BridgeCalls as BRIDGE_CALLS at [bridge_calls] {
        /// Calls of each profile.
        pub max_in_flight: u16 = "bridge.max_in_flight" [live_if_on], "256",
            "a number from 1 to 4096",
            "Maximum number of notifications of each bridge profile that its service has not answered; an eighth of it for one user.",
            parse::number(1, 4_096);
        /// Calls of each profile that wait.
        pub queue: u16 = "bridge.queue" [live_if_on], "1024",
            "a number from 0 to 4096",
            "Maximum number of notifications of each bridge profile that wait for bridge.max_in_flight; more are answered 503. An eighth of it is for one user; when all are taken, the user with the most makes room.",
            parse::number(0, 4_096);
        pub queue_bytes: usize = "bridge.queue_bytes" [live_if_on], "8MiB",
            "a number of bytes from 64KiB to 1GiB, as 8388608 or 8MiB",
            "Maximum size of the notifications of all bridge profiles that wait. Half of it is shared, and each profile has its part of the other half; more are answered 503.",
            parse::size(64 << 10, 1 << 30);
        /// PEM certificates of the authorities of the services; `None`: those that this host trusts.
        pub ca_file: Option<PathBuf> = "bridge.ca_file" [live_if_on], "",
            PEM,
            "PEM certificates of the authorities that the services of bridges are verified with; by default those that this host trusts.",
            parse::path;
    }
}

settings! {
    /// `bridge.fcm.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Fcm as FCM at [fcm] {
        /// Profiles as JSON text, or the file that holds it; `None`: there is no such bridge.
        pub credentials: Option<Secret> = "bridge.fcm.credentials" [secret live_if_on], "",
            "a file, or JSON as {\"app\":{\"project_id\":\"..\",\"credential\":\"FILE\"}}, or nothing",
            "Profiles of Firebase Cloud Messaging: the project and the service account of each app, as JSON or as a file with it.",
            credentials;
        /// URL of the service; `None` only before the defaults are set.
        pub base_url: Option<HttpUrl> = "bridge.fcm.base_url" [live_if_on], "https://fcm.googleapis.com",
            "a URL that begins with http:// or https://, without query, user and fragment",
            "URL of Firebase Cloud Messaging.",
            fcm_url;
        pub timeout: Duration = "bridge.fcm.timeout" [live_if_on], "3",
            CALL_SECONDS,
            "Time limit for one notification, with its wait for other notifications and for an access token; later it is answered 502.",
            parse::call_time;
        /// Seconds that FCM keeps a notification at least, and at most.
        pub min_ttl: u32 = "bridge.fcm.min_ttl" [live_if_on], "60",
            "a number of seconds from 0 to 2419200",
            "Minimum time for which FCM keeps a notification. With 0, a notification with TTL 0 is delivered now or never.",
            parse::number(0, 2_419_200);
        pub max_ttl: u32 = "bridge.fcm.max_ttl" [live_if_on], "2419200",
            "a number of seconds from 0 to 2419200",
            "Maximum time for which FCM keeps a notification.",
            parse::number(0, 2_419_200);
        /// Bytes.
        pub max_data: usize = "bridge.fcm.max_data" [live_if_on], "4096",
            "a number of bytes from 512 to 4096",
            "Maximum size of the data of a notification as JSON; more is answered 413.",
            parse::number(512, 4_096);
        pub collapse: bool = "bridge.fcm.collapse" [live_if_on], "true",
            "true or false",
            "Gives notifications with a Topic a collapse key. FCM keeps four keys for a device and drops other notifications without notice.",
            parse::flag;
        pub connections: u8 = "bridge.fcm.connections" [live_if_on], "2",
            "a number from 1 to 20",
            "Maximum number of connections of each profile.",
            parse::number(1, 20);
    }
}

settings! {
    /// `bridge.apns.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Apns as APNS at [apns] {
        /// Channels as JSON text, or the file that holds it; `None`: there is no such bridge.
        pub channels: Option<Secret> = "bridge.apns.channels" [secret live_if_on], "",
            "a file, or JSON as {\"app\":{\"key\":\"FILE\",\"key_id\":\"..\",\"team_id\":\"..\"}}, or nothing",
            "Channels of the Apple Push Notification service: the signing key or the certificate of each app, and its topic, as JSON or as a file with it.",
            credentials;
        pub timeout: Duration = "bridge.apns.timeout" [live_if_on], "5",
            CALL_SECONDS,
            "Time limit for one notification, with its wait for other notifications; later it is answered 502.",
            parse::call_time;
        pub idle_timeout: Duration = "bridge.apns.idle_timeout" [live_if_on], "600",
            SECONDS,
            "Time after which a connection to Apple without notifications is closed.",
            parse::positive_duration;
        /// Bytes.
        pub max_data: usize = "bridge.apns.max_data" [live_if_on], "4096",
            "a number of bytes from 512 to 4096",
            "Maximum size of the payload of a notification; more is answered 413.",
            parse::number(512, 4_096);
        pub connections: u8 = "bridge.apns.connections" [live_if_on], "2",
            "a number from 1 to 20",
            "Maximum number of connections of each channel.",
            parse::number(1, 20);
    }
}

/// Profiles or channels: a file, or JSON.
fn credentials(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| Secret::new(text)))
}

fn fcm_url(raw: &Raw) -> Option<Option<HttpUrl>> {
    let text = raw.text().filter(|text| !text.contains(['?', '#']))?;
    HttpUrl::parse(text).map(Some)
}
