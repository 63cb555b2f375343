//! The shard state machine: connections, unacked messages, the choice between direct and stored, and the order.
//!
//! Pure: no IO, clock, entropy, threads or `async`. One [`ShardMachine::step`] per input; its effects are
//! carried out, in order, before the next. Lives on its own shard only.
//!
//! This file declares and exports; `step` routes, with `session_commands` for what user agents ask and `sockets` for
//! what their sockets do. State is in `components`, whose fields are private to their files; the files here compose
//! them. `hello`, `pending_hello`, `claim` and `grant` bring a user to its owner, where `session_begin` makes its
//! session. `shard_requests`, `shard_work` and `shard_replies` are the way to another shard, its work and the way back.
//! `publish` decides direct or stored. `acks` and `cancels` end messages, `entries` frees what they hold, and `settles`
//! deletes their rows. `backlog`, `spill` and `session_end` carry unacked messages, and `send` and `pace` limit their
//! rate. `subscribe` registers and unregisters, and `sweep`, `refresh` and
//! `broadcast` visit idle sessions. `simplepush` holds the differences of SimplePush mode, `relay` those of members of
//! a relay, and `cluster` those of nodes that share a store. `receipts` report the outcome of messages to senders,
//! `upstreams` calls the services of bridged users, and `bridge` hands them notifications.
//! `registration` handles the registration API.
//! `dead_endpoints` refuses messages without a user, `idle_user` drops users without a channel, `reset` and `reconcile`
//! let users start over, and `shutdown` ends sessions.

mod acks;
mod entries;
mod settles;
mod cancels;
mod activity;
mod broadcast;
mod claim;
mod grant;
mod clock;
mod cluster;
mod command;
mod components;
mod composer;
mod config;
mod dead_endpoints;
mod deadlines;
mod session_begin;
mod session_end;
mod backlog;
mod bridge;
mod pending_hello;
mod hello;
mod handover;
mod idle_user;
mod input;
mod mail;
mod member;
mod pace;
mod peer;
mod pending_bridge;
mod pending_publish;
mod publish;
mod receipt;
mod receipts;
mod reconcile;
mod registration;
mod refresh;
mod relay;
mod shard_requests;
mod shard_work;
mod shard_replies;
mod reset;
mod row;
mod send;
mod shutdown;
mod simplepush;
mod slab;
mod spill;
mod stats;
mod step;
mod session_commands;
mod sockets;
mod store;
mod subscribe;
mod storage_round;
mod sweep;
mod tickets;
mod ticks;
mod upstreams;
mod urgency;
mod users;
mod pending_op;

#[cfg(test)]
mod tests;

pub use command::{
    AckUpdate, AckVersion, AgentCommand, AgentEvent, BroadcastDelta, BroadcastVersion, Cancel, Cancelled, CloseReason,
    Command, Creates, Device, Disposition, Event, Hello, NewChannel, NodeAnswer, NodeCommand, NodeDisconnect,
    NodeNotify, NodePush, Publish, Published, Refusal, RegistrationAnswer, RegistrationCall, RegistrationCommand,
    RelayCommand, RelayEvent, SenderCommand, SenderEvent, SessionCommand, SessionEvent,
};
pub use composer::ShardMachine;
pub use config::MachineConfig;
pub use handover::{BridgeHandover, DeviceReport, DeviceVerdict};
pub use input::{Effect, EffectQueue, Input};
pub use mail::{Arrival, Carried, ClaimReply, ClaimRequest, Mail, Reply, Request};
pub use member::{MemberEvent, MemberReply, MemberRequest, RelayId, VirtualConnId};
pub use peer::{NodeId, PeerOp, PeerReply, Presence};
pub use receipt::{Outcome, ReceiptAnswer, ReceiptQuery};
pub use row::RowKey;
pub use stats::{DeliveryTimes, MachineStats};
pub use store::{Page, RECORD_VERSION, StoreError, StoreOp, StoreReply, UserRow};
