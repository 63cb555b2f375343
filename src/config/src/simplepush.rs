//! `simplepush.*`: user agents of the older protocol.

use std::time::Duration;

use protocol::wire::url::HttpUrl;

use super::allowed::{CALL_URL, SECONDS_OR_ZERO};
use super::key::settings;
use super::parse;

settings! {
    /// `simplepush.*` (PROTOCOL.md 1.12).
    #[derive(Clone, Debug, Default)]
    pub struct SimplePush as SIMPLEPUSH at [simplepush] {
        /// Target of wake-up calls; `None`: there are none.
        pub wake_url: Option<HttpUrl> = "simplepush.wake_url" [secret], "",
            CALL_URL,
            "URL that gets a POST when a message is stored for a SimplePush user agent that can be woken; by default none.",
            parse::call_url;
        pub enabled: bool = "simplepush.enabled", "false",
            "true or false",
            "Gives SimplePush to user agents whose hello does not say use_webpush: version updates, of which the newest counts, and PUT /spush.",
            parse::flag;
        /// An idle session of a user agent that can be woken is closed with 4774 after this; zero: never.
        pub wake_timeout: Duration = "simplepush.wake_timeout", "0",
            SECONDS_OR_ZERO,
            "Time of silence after which a SimplePush session of a user agent that can be woken is closed with 4774.",
            parse::duration;
    }
}
