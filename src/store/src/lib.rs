//! Storage backends behind one port (`runtime::ports::Store`): plain `StoreOp` in, `StoreReply` out.
//!
//! [`model`] keeps everything in memory: the meaning of `store.kind = memory`, and the executable statement of the
//! laws. [`embedded`] is the default: one directory, no server. Several nodes share [`scylla`], which [`shared`]
//! describes. All of them pass `conformance`. [`nodes`] is the table of nodes beside a shared store, [`latencies`] the
//! times that its statements took.
//!
//! Rules that the vocabulary leaves to storage, the same in every backend:
//! - `Save` keeps what it is given only while the user and the channel exist; the rest ended by rule
//!   (unregistered, reset), and the reply is `Done`.
//! - Message rows at or below `low_water` are settled: no read returns them. Saved rows are not covered by it.
//! - `user_clock` of a user is at least the clock of every `Register`, `Unregister` and `low_water` of it.
//! - `may_have_messages` is set by the write and cleared some time after the last row is gone.

#![forbid(unsafe_code)]

pub mod model;

pub mod embedded;

#[cfg(feature = "scylla")]
pub mod scylla;

#[cfg(not(feature = "scylla"))]
#[path = "absent.rs"]
pub mod scylla;

pub mod shared;

pub mod transfer;

pub mod nodes;

pub mod latencies;

pub mod fault;

mod bridge;

#[cfg(test)]
mod conformance;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use machine::RECORD_VERSION;
use machine::time::UnixSeconds;

pub use machine::model::IDLE_SECONDS_MAX;

/// Returns true if a user last seen then is dropped now.
fn idle(seen: UnixSeconds, now: UnixSeconds) -> bool {
    now.0.saturating_sub(seen.0) >= IDLE_SECONDS_MAX
}
