//! The shard of murre: the deterministic state machine, and the runtime that pins one to a core.
//!
//! **State lives here; bytes live in the root package.** A shard is one pinned thread that owns a slice of
//! the UAIDs, their sockets, their ledgers and their timers. Nothing mutable is shared between shards: they
//! talk through bounded [`mailbox`] lanes. [`machine`] decides, [`ring`] moves bytes, [`reactor`] drives both,
//! [`ledger`] survives `kill -9`, [`thread`] pins and starts.
//!
//! Read in this order: `limits`, `machine/input`, `machine/mail`, `machine`, `reactor`, `ring`.

pub mod ids;
pub mod limits;
mod lru;
pub mod machine;
pub mod message;
pub mod model;
pub mod place;
pub mod ports;
pub mod quota;
pub mod rates;
pub mod simple;
pub mod stats;
pub mod time;
pub mod wall;

pub mod ledger;

pub mod mailbox;

pub mod ring;

pub mod reactor;

pub mod thread;
