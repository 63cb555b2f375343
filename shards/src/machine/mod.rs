//! The shard state machine: who is connected, what is unacked, direct or stored, and in which order.
//!
//! Pure: no IO, clock, entropy, threads or `async`. One [`ShardMachine::step`] per input; its effects are
//! carried out, in order, before the next. Lives on its own shard only.

mod command;
mod input;
mod mail;
mod store;

pub use command::{
    AckUpdate, BroadcastDelta, BroadcastVersion, Cancel, CloseReason, Command, Disposition, Event, Hello, NodeAnswer,
    Publish, Published, Refusal,
};
pub use input::{Effect, EffectQueue, Input};
pub use mail::{Arrival, ClaimReply, Mail, Reply, Request};
pub use store::{Page, RowKey, StoreError, StoreOp, StoreReply, UserRow};

use crate::counters;
use crate::ids::{Clock, Origin, ShardId};
use crate::place::Placement;
use crate::time::{Instant, Now, Span};

/// What a machine is told once.
#[derive(Clone, Copy)]
pub struct MachineConfig {
    /// Which shard this is.
    pub shard: ShardId,
    /// Who owns whom.
    pub placement: Placement,
    /// Random per boot and shard.
    pub origin: Origin,
    /// The shard's clock starts above this.
    pub clock_floor: Clock,
    /// `delivery.window`.
    pub window: u16,
    /// `delivery.durable`.
    pub durable: bool,
    /// `delivery.spill_after`.
    pub spill_after: Span,
    /// `delivery.retry_after`.
    pub retry_after: Span,
    /// `websocket.hello_timeout`.
    pub hello_timeout: Span,
    /// `websocket.auto_ping_interval`; zero is off.
    pub ping_interval: Span,
    /// `websocket.auto_ping_timeout`.
    pub pong_timeout: Span,
    /// `websocket.ping_min_interval`.
    pub ping_min_interval: Span,
    /// WebSockets this shard may hold.
    pub sessions_max: u32,
    /// Bytes of live ledger records this shard may hold; at most half its log, so that an append always fits.
    pub ledger_bytes_max: u64,
}

/// One shard's state.
pub struct ShardMachine {
    config: MachineConfig,
    stats: MachineStats,
}

impl ShardMachine {
    /// An empty shard.
    pub fn new(config: MachineConfig) -> ShardMachine {
        ShardMachine { config, stats: MachineStats::default() }
    }

    /// Applies one input at `now`. Appends at most `limits::EFFECTS_PER_INPUT_MAX` effects.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut EffectQueue) {
        let _ = (now, input, effects, &self.config);
    }

    /// The earliest instant at which `Input::Timeout` must be delivered.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// The shard's counters; one writer.
    pub fn stats(&self) -> &MachineStats {
        &self.stats
    }
}

counters! {
    /// What the machine counts. Own shard only.
    pub struct MachineStats {
        counter hellos: "Hellos answered.",
    }
}
