//! Values that the user agents and the scenario exchange: size and addresses, what was received, and counts.

use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

/// Something that a session received.
#[derive(Clone, Copy, Debug)]
pub enum Received {
    /// The notification with this number in its body.
    Notification(u64),
    /// An empty WebSocket pong.
    Pong(u32),
}

/// Counts over all sessions.
#[derive(Default, Clone, Debug)]
pub struct Counts {
    pub arrived: u64,
    /// Pings of the server that were answered.
    pub pings: u64,
    pub freezes: u64,
    pub freezes_refused: u64,
    /// Thaws because the server spoke.
    pub woken: u64,
    pub thaw_failures: u64,
    /// Segments that belong to no frozen session.
    pub wakes_refused: u64,
    /// Sessions that ended, by reason.
    pub ended: BTreeMap<String, u64>,
}

/// Size and addresses of the fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub server: SocketAddr,
    pub endpoint: SocketAddr,
    pub first_source: Ipv4Addr,
    pub queue: u16,
    pub sessions: u32,
    /// The first sessions, which stay live.
    pub control: u32,
    /// Sessions that register a channel, beside those of the control group.
    pub registered: HashSet<u32>,
}
