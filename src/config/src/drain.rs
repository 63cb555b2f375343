//! `drain.*`: the end of the process.

use std::time::Duration;

use super::allowed::SECONDS_OR_ZERO;
use super::key::settings;
use super::parse;

settings! {
    /// `drain.*`.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Drain as DRAIN at [drain] {
        /// From SIGTERM to the first session that is closed: health pages say 503 meanwhile.
        pub delay: Duration = "drain.delay" [live], "5",
            SECONDS_OR_ZERO,
            "Time from SIGTERM to the first closed session; health pages and new WebSockets are answered 503 meanwhile.",
            parse::duration;
        /// Sessions per second, on all shards together.
        pub rate: u32 = "drain.rate" [live], "10000",
            "a number from 1 to 10000000",
            "Sessions closed per second during the drain.",
            parse::number(1, 10_000_000);
        pub mode: DrainMode = "drain.mode", "close",
            "close or hibernate",
            "What SIGTERM does to sessions: close closes them with 1001; hibernate freezes them for the next process on this host, without drain.delay. Needs hibernate.dir.",
            parse::word([("close", DrainMode::Close), ("hibernate", DrainMode::Hibernate)]);
    }
}

/// `drain.mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DrainMode {
    #[default]
    Close,
    Hibernate,
}
