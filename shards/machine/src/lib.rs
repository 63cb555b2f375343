//! The state machine of a shard, and the words it speaks in: ids, messages, limits, time.
//!
//! **No IO.** This crate reads no clock, opens no file, makes no thread and depends on nothing that could; the compiler
//! refuses `unsafe`. [`ShardMachine::step`] takes one input and returns effects, which `shards` carries out.
//!
//! Read in this order: `limits`, `shard/input`, `shard/mail`, `shard`.

#![forbid(unsafe_code)]

pub mod ids;
pub mod limits;
pub mod lru;
pub mod message;
pub mod model;
pub mod peers;
pub mod placement;
pub mod token_bucket;
pub mod share;
mod shard;
pub mod simplepush;
pub mod stats;
pub mod time;
pub mod upstream;

pub use shard::*;
