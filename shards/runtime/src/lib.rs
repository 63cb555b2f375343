//! The runtime of a shard: one pinned thread that owns a slice of the UAIDs, their sockets, their ledger and their
//! timers. The crate `machine` decides, this crate carries out.
//!
//! Nothing mutable is shared between shards but the counts of [`strangers`]: they talk through bounded [`mailbox`]
//! lanes. [`ring`] moves bytes, or `poll` where there is no io_uring, [`reactor`] drives machine and ring, [`ledger`]
//! survives `kill -9`, [`thread`] pins and starts, [`process_clock`] reads the host's clock. Bytes get their meaning in
//! the crate `edge`, through [`ports`], and cryptography is behind [`tls`].
//!
//! Read in this order: `ports`, `reactor`, `ring`.

// Without the feature no gate has a value, and the compiler sees that what takes one is never reached.
#![cfg_attr(not(feature = "hibernate"), expect(unreachable_code, unused_variables))]

pub mod ledger;
pub mod mailbox;
mod poll;
pub mod ports;
pub mod quota;
pub mod reactor;
pub mod session_record;
pub mod ring;
pub mod strangers;
pub mod thread;
pub mod tls;
pub mod process_clock;
