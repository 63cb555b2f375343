//! `bridge.max_in_flight` and the other bounds of calls of mobile bridges (docs/BRIDGES.md).

use std::path::PathBuf;

use super::allowed::PEM;
use super::key::keys;
use super::parse;

/// Bounds and trust of the calls of mobile bridges.
#[derive(Clone, Debug, Default)]
pub struct BridgeCalls {
    /// Calls of each profile that are under way.
    pub max_in_flight: u16,
    /// Calls of each profile that wait.
    pub queue: u16,
    /// Bytes of the bodies that wait, of all profiles.
    pub queue_bytes: usize,
    /// PEM certificates of the authorities of the services; `None`: those that this host trusts.
    pub ca_file: Option<PathBuf>,
    /// The stub answers by itself as the device token says; for tests.
    pub stub: bool,
}

keys! {
    /// Calls of mobile bridges.
    const BRIDGE_CALLS;
    "bridge.max_in_flight" = "256",
        "a number from 1 to 4096",
        "Maximum number of notifications of each bridge profile that its service has not answered.",
        |c, raw| { c.bridge_calls.max_in_flight = parse::number(raw, 1, 4_096)? as u16; Some(()) };
    "bridge.queue" = "1024",
        "a number from 0 to 4096",
        "Maximum number of notifications of each bridge profile that wait for bridge.max_in_flight; more are answered 503.",
        |c, raw| { c.bridge_calls.queue = parse::number(raw, 0, 4_096)? as u16; Some(()) };
    "bridge.queue_bytes" = "8MiB",
        "a number of bytes from 64KiB to 1GiB, as 8388608 or 8MiB",
        "Maximum size of the notifications of all bridge profiles that wait. Half of it is shared, and each profile has its part of the other half; more are answered 503.",
        |c, raw| { c.bridge_calls.queue_bytes = queue_bytes(raw)?; Some(()) };
    "bridge.ca_file" = "",
        PEM,
        "PEM certificates of the authorities that the services of bridges are verified with; by default those that this host trusts. Read again on SIGHUP.",
        |c, raw| { c.bridge_calls.ca_file = parse::path(raw)?; Some(()) };
    "bridge.stub.enabled" = "false",
        "true or false",
        "Gives the bridge stub with the apps success and error, for tests of clients and senders. Never for a server with users.",
        |c, raw| { c.bridge_calls.stub = parse::flag(raw)?; Some(()) };
}

fn queue_bytes(raw: &parse::Raw) -> Option<usize> {
    parse::bytes(raw).filter(|bytes| (64 << 10..=1 << 30).contains(bytes)).map(|bytes| bytes as usize)
}
