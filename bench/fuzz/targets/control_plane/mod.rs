//! The place of the modules below in the server: their files name each other by it.

pub mod bridges;
#[path = "../../../../src/control_plane/retry_after.rs"]
mod retry_after;
