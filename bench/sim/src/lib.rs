//! The deterministic world: the real shard machine on 2 to 8 shards, with clients, app servers, a network and a
//! store that fail in every way they may, driven from one seed.
//!
//! The world plays the loop's side of the contract (effects in order, a command only when the connection is
//! ready) and an oracle watches the promises of ARCHITECTURE.md 5. Equal seeds give equal traces; a failure prints the
//! command that replays it. Read in this order: `plan`, `world`, `effects`, `oracle`, `checks`, `quiesce`.

mod agents;
mod bodies;
mod quiesce;
mod checks;
mod clocks;
mod cluster;
mod crowd;
mod effects;
mod faults;
mod held;
mod frozen;
mod hibernation;
mod hibernation_plan;
mod ledgers;
mod coverage;
mod memory;
mod minimums;
mod nodes;
mod oracle;
mod parts;
mod plan;
mod app_servers;
mod process;
mod receipts;
mod relays;
mod rng;
mod run;
mod sabotage;
mod shard_log;
mod shared;
mod socket;
mod sockets;
mod store;
mod trace;
mod tries;
mod world;

pub use coverage::CoverageMarks;
pub use run::{Failure, Options, Report, run, run_seed};
pub use trace::Trace;
