//! `hello.*` and `relay.*`: what a hello may ask for.

use machine::limits::RELAY_MEMBERS_MAX;

use super::key::settings;
use super::parse;

settings! {
    /// `hello.*`.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Hello as HELLO at [hello] {
        /// Authoritative channels of a hello (PROTOCOL.md 1.5).
        pub reconcile: bool = "hello.reconcile", "false",
            "true or false",
            "Makes the channelIDs of a hello authoritative: channels that they lack are unregistered, and a user with an unknown channel is reset.",
            parse::flag;
    }
}

settings! {
    /// `relay.*`.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Relay as RELAY at [relay] {
        /// User agents that one connection may speak for; 0: none may.
        pub members: u16 = "relay.members", "0",
            "a number from 0 (off) to 4096",
            "Maximum number of user agents at a time that a connection can represent if its hello says \"relay\":true.",
            parse::number(0, RELAY_MEMBERS_MAX as u64);
    }
}
