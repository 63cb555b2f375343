//! The embedded store: one directory, no server (ARCHITECTURE.md 8.7).
//!
//! ```text
//! DIR/FORMAT   one line: the format of the directory
//! DIR/LOCK     held while a process has it open
//! DIR/db/      the fjall database; rows as in `rows`
//! ```
//!
//! One committer thread writes: the operations that wait become one group with one `fdatasync`, and only then are its
//! operations answered. Reader threads read; the keeper watches, measures and reclaims. A shard sees a [`port`]:
//! bounded, never blocking, and keeping the order of each user's operations.
//!
//! Lives on: the starting thread opens and closes it; its own threads do the rest.

mod committer;
mod copy;
mod database;
mod directory;
mod error;
mod group;
mod journal;
mod mail;
mod maintenance;
mod operation;
mod options;
mod pacing;
mod port;
mod query;
mod reader;
mod record;
mod room;
mod rows;
mod salvage;
mod shares;
mod stats;
mod store;
mod store_status;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;

pub use copy::Copied;
pub use error::{StoreOpenError, Unsaved};
pub use options::{Fatal, Options};
pub use salvage::{Progress, salvage};
pub use stats::StoreStats;
pub use store::Embedded;
