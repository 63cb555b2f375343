//! `delivery.*`: sessions and what they are owed.

use std::time::Duration;

use machine::limits::WINDOW_MAX;
use machine::message::Tries;
use runtime::ledger::{LOG_BYTES_MAX, LOG_BYTES_MIN};

use super::allowed::{SECONDS, SECONDS_OR_ZERO};
use super::key::settings;
use super::parse;
use super::parse::Raw;

settings! {
    /// `delivery.*` (ARCHITECTURE.md 3).
    #[derive(Clone, Debug, Default)]
    pub struct Delivery as DELIVERY at [delivery] {
        /// Notifications of one session.
        pub window: u16 = "delivery.window", "500",
            "a number from 1 to 1024",
            "Maximum number of unacked notifications of one session; further ones wait in the store. They go out 50 at once, and 50 more for each second without an ack.",
            parse::number(1, u64::from(WINDOW_MAX));
        pub durable: bool = "delivery.durable", "false",
            "true or false",
            "Stores every message on disk before it is sent, so that not even a power cut loses one.",
            parse::flag;
        pub spill_after: Duration = "delivery.spill_after", "10",
            SECONDS,
            "Time after which an unacked notification is saved to storage.",
            parse::positive_duration;
        pub retry_after: Duration = "delivery.retry_after", "60",
            SECONDS,
            "Time after which an unacked notification is sent again, at most 3 times.",
            parse::positive_duration;
        /// Deliveries after which a message that is never acked ends; 0: never.
        pub attempts_max: u8 = "delivery.attempts_max", "10",
            "a number from 3 to 31, or 0 (never)",
            "Number of deliveries, over at least three sessions, after which a message without an ack ends.",
            attempts;
        /// Nothing is held for this long after traffic of the user agent; zero: everything below its minimum is.
        pub release_on_activity: Duration = "delivery.release_on_activity", "0",
            SECONDS_OR_ZERO,
            "Time after traffic of a user agent in which messages below its minimum urgency go out too: its radio is awake then.",
            parse::duration;
        /// Stored messages of one drain beyond which the user is reset; 0: never.
        pub msg_limit: u32 = "delivery.msg_limit", "0",
            "a number from 0 (off) to 4294967295",
            "Number of stored messages in one drain beyond which the user is reset: all are discarded, and the user agent subscribes again.",
            parse::number(0, u64::from(u32::MAX));
        pub ledger_bytes: u64 = "delivery.ledger_bytes", "32MiB",
            "a number of bytes from 1MiB to 16GiB, as 33554432 or 32MiB",
            "Size of the ledger log of each shard, in data_dir and in memory. Half of it holds unacked directs.",
            parse::size(LOG_BYTES_MIN, LOG_BYTES_MAX);
    }
}

fn attempts(raw: &Raw) -> Option<u8> {
    parse::number(0, u64::from(Tries::DELIVERIES_MAX))(raw).filter(|number| *number == 0 || *number >= 3)
}
