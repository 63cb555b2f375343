//! `http.*`: time limits of HTTP on every port.

use std::time::Duration;

use super::allowed::SECONDS;
use super::key::settings;
use super::parse;

settings! {
    /// `http.*`.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Http as HTTP at [http] {
        pub request_timeout: Duration = "http.request_timeout", "30",
            SECONDS,
            "Time limit for a complete HTTP request on any port, and for the upgrade of a WebSocket; later it is answered 408 and the connection ends. Also the time limit for a WebSocket message that was begun; later the close code is 1008.",
            parse::positive_duration;
        pub keep_alive: Duration = "http.keep_alive", "75",
            SECONDS,
            "Time after which an idle connection of an app server or node ends.",
            parse::positive_duration;
    }
}
