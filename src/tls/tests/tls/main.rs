//! The crate against rustls as the client: handshakes, records, moves, tickets and bad input.

mod challenges;
mod groups;
mod handshakes;
mod inputs;
mod moves;
mod names;
mod orders;
mod peer;
mod raw;
mod records;
mod tickets;
mod tls12;
