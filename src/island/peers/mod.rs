//! Calls of the other nodes of a cluster (PROTOCOL.md 4.1).
//!
//! [`lane`] carries calls from the shards to the island and replies back; [`caller`] is the one task that makes them,
//! and [`desk`] its actions for each node; [`node`] is the state of one: its connections, its [`circuit`], the calls
//! that wait for it; [`ask`] finds the server that answers at the URL of this one; [`owed`] has the notifications that
//! are called until the node answers; [`wire`] one call as bytes.
//!
//! Every part is bounded and every call gets its reply: what finds no place, no connection or an open circuit is
//! answered `Unreachable` at once, what gets no answer in time `NoAnswer`.

mod ask;

mod lane;

mod calls;

mod caller;

mod desk;

mod node;

mod circuit;

mod owed;

mod wire;

mod numbers;

#[cfg(test)]
mod tests;

pub use ask::{Answering, who_answers};
pub use calls::PeerCalls;
pub use lane::{Peers, Trust};

pub(super) use caller::Caller;
pub use caller::settle;
#[cfg(test)]
pub(super) use numbers::Ends;
pub(super) use numbers::{Showcase, Shown, Standing};
