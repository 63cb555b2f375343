//! Forward endpoints: the URL of another push service, sealed in a token of this one (docs/FORWARD.md).
//!
//! A token is Fernet of the URL, the SHA-256 of the sender's public key or 32 zero bytes, and the private scalar that
//! signs outgoing calls or 32 zero bytes. Nothing of it is stored. [`token`] seals and opens them, [`target`] has the
//! rules for URLs, [`creation`] reads the request for a new one, [`fault`] has the refusals, and [`signing`] makes the
//! authorization of a call.

mod creation;
mod fault;
mod signing;
mod target;
mod token;

#[cfg(test)]
mod tests;

pub use creation::{CREATION_BYTES_MAX, CreationError, read_creation};
pub use fault::ForwardFault;
pub use signing::authorization;
pub use target::{TARGET_BYTES_MAX, Targets};
pub use token::{ForwardToken, ForwardTokens};
