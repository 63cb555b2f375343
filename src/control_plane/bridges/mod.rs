//! Mobile bridges: notifications of users whose user agent holds no WebSocket (docs/BRIDGES.md).
//!
//! [`queue`] carries calls from the shards to the control plane and replies back; [`driver`] is the one task that makes
//! them. Each configured [`profile`] has its own calls, [`connections`], [`breaker`], [`guard`] and [`retry_budget`],
//! so that a service that stalls delays no other. A [`bridge`] makes requests and reads answers: [`fcm`], [`apns`], or the
//! [`stub`].
//!
//! Every part is bounded and every call gets its reply by its deadline. Device tokens and credentials are never logged.

mod apns;
mod breaker;
mod bridge;
mod connections;
mod driver;
mod fcm;
mod guard;
mod judgement;
mod payload;
mod profile;
mod profiles;
mod queue;
mod recent;
mod retry_after;
mod retry_budget;
mod settings;
mod stats;
mod stub;

#[cfg(test)]
mod tests;

pub(super) use driver::BridgeDriver;
pub use queue::UpstreamQueue;
pub(crate) use settings::ProfileSettings;
pub use settings::{Bounds, BridgeName, BridgeSettings};
pub(super) use stats::{ProfileSnapshot, ProfileSnapshots, SECONDS};

/// Returns a random number from 0 to 1.
fn jitter() -> f64 {
    let mut bytes = [0; 2];
    // Without random numbers there is no jitter; nothing depends on it.
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    f64::from(u16::from_be_bytes(bytes)) / f64::from(u16::MAX)
}
