//! `websocket.*`: the port of user agents.

use std::net::SocketAddr;
use std::time::Duration;

use super::allowed::{ADDRESSES, ADDRESSES_OR_NONE, SECONDS, SECONDS_OR_ZERO};
use super::key::settings;
use super::parse;

settings! {
    /// `websocket.*`.
    #[derive(Clone, Debug, Default)]
    pub struct WebSocket as WEBSOCKET at [websocket] {
        pub listen: Vec<SocketAddr> = "websocket.listen" ("websocket" "ADDR"), "127.0.0.1:8080",
            ADDRESSES,
            "Listen addresses for user agents.",
            parse::addresses;
        pub tls_listen: Vec<SocketAddr> = "websocket.tls.listen" ("websocket-tls" "ADDR"), "",
            ADDRESSES_OR_NONE,
            "Listen addresses for user agents over TLS (wss); needs tls.cert and tls.key.",
            parse::addresses;
        /// From upgrade to hello.
        pub hello_timeout: Duration = "websocket.hello_timeout", "5",
            SECONDS,
            "Time limit for the hello of a WebSocket; later it is closed with 1011.",
            parse::positive_duration;
        /// Between server pings; zero: none.
        pub auto_ping_interval: Duration = "websocket.auto_ping_interval", "300",
            SECONDS_OR_ZERO,
            "Time without a frame of the user agent after which the server pings a session.",
            parse::duration;
        pub auto_ping_timeout: Duration = "websocket.auto_ping_timeout", "4",
            SECONDS,
            "Time limit for the answer to a ping. Also the time after which a session is closed whose socket takes no byte while something is owed to it.",
            parse::positive_duration;
        pub ping_min_interval: Duration = "websocket.ping_min_interval", "45",
            SECONDS_OR_ZERO,
            "Minimum time between two {} of a user agent; a user agent that sends one sooner is closed with 4774.",
            parse::duration;
        /// WebSockets beyond which new ones are sent elsewhere; 0: none are.
        pub welcome: u32 = "websocket.welcome" [live], "0",
            "a number from 0 (no limit) to 16777216",
            "Number of WebSockets beyond which a new one is answered 503 with Retry-After, so that a load balancer spreads them.",
            parse::number(0, 1 << 24);
    }
}
