//! Calls of the targets of forward endpoints (docs/FORWARD.md): push services that strangers name.
//!
//! Every call looks its host up, refuses it unless all of its addresses are public, and connects to one of these.
//! Redirects are not followed, answers are not read beyond their head, and the environment names no proxy. URLs of
//! targets are secrets, and nothing here is logged. What does not fit the bounds is answered at once, so that a slow
//! target delays no other. [`queue`] brings the calls of the shards, and [`call`] makes each of them.

mod call;
mod queue;

#[cfg(test)]
mod tests;

pub use call::ForwardLimits;
pub(super) use queue::ForwardDriver;
pub use queue::ForwardQueue;
