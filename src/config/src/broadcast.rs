//! `broadcast.*`: the source of broadcasts.

use std::time::Duration;

use protocol::wire::url::HttpUrl;

use super::allowed::{CALL_URL, SECONDS, SECONDS_OR_ZERO};
use super::key::settings;
use super::parse;
use super::parse::Secret;

settings! {
    /// `broadcast.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Broadcast as BROADCAST at [broadcast] {
        /// The broadcast source; `None`: only the operator sets broadcasts.
        pub url: Option<HttpUrl> = "broadcast.url" [secret], "",
            CALL_URL,
            "URL from which the versions of broadcasts are polled; by default only PUT /broadcasts sets them.",
            parse::call_url;
        pub token: Option<Secret> = "broadcast.token" [secret], "",
            "up to 4096 visible characters",
            "Token that is sent as Authorization: Bearer to the host of broadcast.url, never to a host that it redirects to.",
            parse::token;
        pub interval: Duration = "broadcast.interval", "30",
            SECONDS,
            "Time between two polls of broadcast.url.",
            parse::positive_duration;
        pub spread: Duration = "broadcast.spread", "10",
            SECONDS_OR_ZERO,
            "Time within which a changed broadcast reaches all sessions, so that they do not all answer in the same second.",
            parse::duration;
    }
}
