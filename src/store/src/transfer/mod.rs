//! Whole users in and out of a store: what `murre import` and `murre export` need beyond the port of a shard.
//!
//! A shard asks for one user at a time and never for a channel's key, so the port can neither list users nor carry
//! one over as it is. [`Transfer`] can; every backend implements it beside its port, and decisions about users are made
//! here, once for all backends.
//!
//! Order makes a transfer restartable: the rows of a user are written before the user, and no read sees rows without a
//! user. A kill in between leaves a user that is not there, with rows that the next run writes again under the same
//! stamps or that expire.
//!
//! Lives on: the thread of a command; nothing here belongs to a shard.

mod import;
mod blocking_port;
mod port;
mod rows;
#[cfg(test)]
pub(crate) mod tests;
mod walk;

pub use blocking_port::{BlockingPort, refused};
pub use import::{ImportCounts, IncomingUser, import_users};
pub use port::{Channel, Listed, Transfer, TransferFault, WholeUser};
pub use rows::{USERS_AT_ONCE_MAX, each_row};
pub use walk::{LeftOut, walk};
