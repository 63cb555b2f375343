//! TLS of the shards: implements [`runtime::tls::Tls`].
//!
//! rustls makes handshakes and ends with them. After the client's Finished a connection is two traffic secrets with
//! their keys and sequence numbers in a table of its shard; records are sealed and opened here by *ring*. This crate
//! owns no socket, and the crate `runtime` knows no key.
//!
//! Read in this order: `shard` (states of a connection), `handshake`, `record`, `keys`; then `server` with
//! `certificate`, `authorities`, `challenges` and `tickets` (settings), `key_exchange` (ML-KEM beside X25519), `first`
//! (bytes that are no TLS), `counted` (metrics), `table` (memory), `client` (load generators).

#![forbid(unsafe_code)]

mod authorities;
mod certificate;
mod challenges;
mod client;
mod counted;
mod first;
mod handshake;
mod key_exchange;
mod keys;
mod record;
mod server;
mod shard;
mod table;
mod tickets;

pub use authorities::Authorities;
pub use certificate::{Certificate, MARKED_AS_AUTHORITY, Setting, Unusable, distrust};
pub use challenges::{ACME_TLS, AlpnChallenges};
pub use client::{Clients, Heard, classical_client_config, client_config};
pub use first::First;
pub use key_exchange::{X25519MLKEM768, provider};
pub use server::{MinVersion, ServerTls, Settings, UnknownName};
pub use shard::ShardTls;
pub use tickets::TicketKey;
