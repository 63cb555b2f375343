//! `bridge.max_in_flight` and the other bounds of calls of mobile bridges (docs/BRIDGES.md).

use super::allowed::{CALL_SECONDS, PEM, SECONDS};
use super::key::keys;
use super::{apns, fcm, parse};

keys! {
    /// Mobile bridges.
    const BRIDGE_CALLS;
    #[live_if_on] "bridge.max_in_flight" = "256",
        "a number from 1 to 4096",
        "Maximum number of notifications of each bridge profile that its service has not answered; an eighth of it for one user.",
        |c, raw| { c.bridge_calls.max_in_flight = parse::number(raw, 1, 4_096)? as u16; Some(()) };
    #[live_if_on] "bridge.queue" = "1024",
        "a number from 0 to 4096",
        "Maximum number of notifications of each bridge profile that wait for bridge.max_in_flight; more are answered 503. An eighth of it is for one user; when all are taken, the user with the most makes room.",
        |c, raw| { c.bridge_calls.queue = parse::number(raw, 0, 4_096)? as u16; Some(()) };
    #[live_if_on] "bridge.queue_bytes" = "8MiB",
        "a number of bytes from 64KiB to 1GiB, as 8388608 or 8MiB",
        "Maximum size of the notifications of all bridge profiles that wait. Half of it is shared, and each profile has its part of the other half; more are answered 503.",
        |c, raw| { c.bridge_calls.queue_bytes = queue_bytes(raw)?; Some(()) };
    #[live_if_on] "bridge.ca_file" = "",
        PEM,
        "PEM certificates of the authorities that the services of bridges are verified with; by default those that this host trusts.",
        |c, raw| { c.bridge_calls.ca_file = parse::path(raw)?; Some(()) };

    #[secret] #[live_if_on] "bridge.fcm.credentials" = "",
        "a file, or JSON as {\"app\":{\"project_id\":\"..\",\"credential\":\"FILE\"}}, or nothing",
        "Profiles of Firebase Cloud Messaging: the project and the service account of each app, as JSON or as a file with it.",
        |c, raw| { c.fcm.credentials = fcm::credentials(raw)?; Some(()) };
    #[live_if_on] "bridge.fcm.base_url" = "https://fcm.googleapis.com",
        "a URL that begins with http:// or https://, without query, user and fragment",
        "URL of Firebase Cloud Messaging.",
        |c, raw| { c.fcm.base_url = fcm::base_url(raw)?; Some(()) };
    #[live_if_on] "bridge.fcm.timeout" = "3",
        CALL_SECONDS,
        "Time limit for one notification, with its wait for other notifications and for an access token; later it is answered 502.",
        |c, raw| { c.fcm.timeout = parse::call_time(raw)?; Some(()) };
    #[live_if_on] "bridge.fcm.min_ttl" = "60",
        "a number of seconds from 0 to 2419200",
        "Minimum time for which FCM keeps a notification. With 0, a notification with TTL 0 is delivered now or never.",
        |c, raw| { c.fcm.min_ttl = parse::number(raw, 0, 2_419_200)? as u32; Some(()) };
    #[live_if_on] "bridge.fcm.max_ttl" = "2419200",
        "a number of seconds from 0 to 2419200",
        "Maximum time for which FCM keeps a notification.",
        |c, raw| { c.fcm.max_ttl = parse::number(raw, 0, 2_419_200)? as u32; Some(()) };
    #[live_if_on] "bridge.fcm.max_data" = "4096",
        "a number of bytes from 512 to 4096",
        "Maximum size of the data of a notification as JSON; more is answered 413.",
        |c, raw| { c.fcm.max_data = parse::number(raw, 512, 4_096)? as usize; Some(()) };
    #[live_if_on] "bridge.fcm.collapse" = "true",
        "true or false",
        "Gives notifications with a Topic a collapse key. FCM keeps four keys for a device and drops other notifications without notice.",
        |c, raw| { c.fcm.collapse = parse::flag(raw)?; Some(()) };
    #[live_if_on] "bridge.fcm.connections" = "2",
        "a number from 1 to 20",
        "Maximum number of connections of each profile.",
        |c, raw| { c.fcm.connections = parse::number(raw, 1, 20)? as u8; Some(()) };
    #[secret] #[live_if_on] "bridge.apns.channels" = "",
        "a file, or JSON as {\"app\":{\"key\":\"FILE\",\"key_id\":\"..\",\"team_id\":\"..\"}}, or nothing",
        "Channels of the Apple Push Notification service: the signing key or the certificate of each app, and its topic, as JSON or as a file with it.",
        |c, raw| { c.apns.channels = apns::channels(raw)?; Some(()) };
    #[live_if_on] "bridge.apns.timeout" = "5",
        CALL_SECONDS,
        "Time limit for one notification, with its wait for other notifications; later it is answered 502.",
        |c, raw| { c.apns.timeout = parse::call_time(raw)?; Some(()) };
    #[live_if_on] "bridge.apns.idle_timeout" = "600",
        SECONDS,
        "Time after which a connection to Apple without notifications is closed.",
        |c, raw| { c.apns.idle_timeout = parse::positive_duration(raw)?; Some(()) };
    #[live_if_on] "bridge.apns.max_data" = "4096",
        "a number of bytes from 512 to 4096",
        "Maximum size of the payload of a notification; more is answered 413.",
        |c, raw| { c.apns.max_data = parse::number(raw, 512, 4_096)? as usize; Some(()) };
    #[live_if_on] "bridge.apns.connections" = "2",
        "a number from 1 to 20",
        "Maximum number of connections of each channel.",
        |c, raw| { c.apns.connections = parse::number(raw, 1, 20)? as u8; Some(()) };
}

fn queue_bytes(raw: &parse::Raw) -> Option<usize> {
    parse::bytes(raw).filter(|bytes| (64 << 10..=1 << 30).contains(bytes)).map(|bytes| bytes as usize)
}
