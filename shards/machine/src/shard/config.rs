//! Configuration of a machine: plain values, with the defaults of every setting in one place.

use std::sync::Arc;

use crate::ids::{Clock, Origin, ShardId};
use crate::limits;
use crate::placement::Placement;
use crate::time::TimeSpan;

use super::peer::NodeId;

/// Configuration of a machine.
#[derive(Clone)]
pub struct MachineConfig {
    pub shard: ShardId,
    pub placement: Placement,
    /// Random per boot and shard.
    pub origin: Origin,
    /// The shard's clock starts above this value.
    pub clock_floor: Clock,
    /// `delivery.window`.
    pub window: u16,
    /// `delivery.durable`.
    pub durable: bool,
    /// `delivery.spill_after`.
    pub spill_after: TimeSpan,
    /// `delivery.retry_after`.
    pub retry_after: TimeSpan,
    /// `delivery.release_on_activity`: time for which nothing is held after traffic of the user agent; zero disables
    /// it.
    pub release_on_activity: TimeSpan,
    /// `delivery.attempts_max`: deliveries after which a message ends without an ack; 0 disables it, at most
    /// `Tries::DELIVERIES_MAX`.
    pub attempts_max: u8,
    /// `websocket.hello_timeout`.
    pub hello_timeout: TimeSpan,
    /// `websocket.auto_ping_interval`; zero disables pings.
    pub ping_interval: TimeSpan,
    /// `websocket.auto_ping_timeout`.
    pub pong_timeout: TimeSpan,
    /// `websocket.ping_min_interval`.
    pub ping_min_interval: TimeSpan,
    /// `simplepush.wake_timeout`; zero disables it.
    pub wake_timeout: TimeSpan,
    /// `relay.members`: maximum number of user agents of one connection; 0 disables relays, at most
    /// `limits::RELAY_MEMBERS_MAX`.
    pub relay_members: u16,
    /// Maximum number of WebSockets on this shard.
    pub sessions_max: u32,
    /// Maximum bytes of live ledger records on this shard; at most half its log, so that an append always fits.
    pub ledger_bytes_max: u64,
    /// `endpoint.token_rate`: messages per second of one endpoint; 0 disables it.
    pub token_rate: u32,
    /// `store.user_bytes_per_day`: bytes stored for one user in a UTC day; 0 disables it.
    pub user_bytes_per_day: u64,
    /// `delivery.msg_limit`: stored messages of one drain beyond which the user is reset; 0 disables it.
    pub msg_limit: u32,
    /// `broadcast.spread`: time in which a shard notifies all its sessions of a change.
    pub broadcast_spread: TimeSpan,
    /// `hello.reconcile`: the list of channels in a hello replaces the stored one.
    pub reconcile: bool,
    /// `store.max_skew`: maximum difference between the time of a node and the clocks of the database.
    pub max_skew: TimeSpan,
    /// Boot of this node, when other nodes share its storage; `None` when it is alone.
    pub node: Option<Arc<NodeId>>,
}

impl MachineConfig {
    /// Returns the defaults of every setting, for one shard.
    pub fn new(shard: ShardId, placement: Placement) -> MachineConfig {
        MachineConfig {
            shard,
            placement,
            origin: Origin(0),
            clock_floor: Clock(0),
            window: limits::WINDOW_DEFAULT,
            durable: false,
            spill_after: TimeSpan::from_secs(10),
            retry_after: TimeSpan::from_secs(60),
            release_on_activity: TimeSpan(0),
            attempts_max: limits::ATTEMPTS_DEFAULT,
            hello_timeout: TimeSpan::from_secs(5),
            ping_interval: TimeSpan::from_secs(300),
            pong_timeout: TimeSpan::from_secs(4),
            ping_min_interval: TimeSpan::from_secs(45),
            relay_members: 0,
            wake_timeout: TimeSpan(0),
            sessions_max: 1_000,
            ledger_bytes_max: 1 << 20,
            token_rate: 0,
            user_bytes_per_day: 0,
            msg_limit: 0,
            broadcast_spread: TimeSpan::from_secs(10),
            reconcile: false,
            max_skew: TimeSpan::from_secs(15),
            node: None,
        }
    }

    /// Returns the maximum difference between two nodes: each is within `max_skew` of the database.
    pub(super) fn apart_max(&self) -> TimeSpan {
        TimeSpan(self.max_skew.0.saturating_mul(2))
    }

    /// Returns the time from a stamp until its message is certainly written, or refused by the clock of every node.
    pub(super) fn settle_lag(&self) -> TimeSpan {
        TimeSpan(TimeSpan::from_secs(limits::WRITE_SECONDS_MAX).0.saturating_add(self.apart_max().0))
    }
}
