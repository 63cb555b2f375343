//! Many user agents on one thread: each connects, says hello, registers, subscribes to a broadcast, and then acks all
//! that comes. Two million in one process, at some 150 bytes of it each.
//!
//! Modules in suggested reading order: plans of agents and their events, the state of one, the wire, the rings, the
//! swarm. Only `ring` knows io_uring and has `unsafe` code.

mod event;

mod agent;

mod endpoints;

pub(crate) mod codec;

mod user_data;

mod ring;

mod agents;

mod receive;

mod actions;

pub use agents::{Agents, Options};
pub use event::{AgentEvent, End, Leave, Plan};
