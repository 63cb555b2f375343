//! Mobile bridges: notifications of users whose user agent holds no WebSocket (docs/BRIDGES.md).
//!
//! [`queue`] carries calls from the shards to the control plane and replies back; [`driver`] is the one task that makes
//! them. Each configured [`profile`] has its own calls, [`connections`], [`breaker`], [`guard`] and [`retry_budget`]: a
//! service that stalls delays no other. Its users share its places ([`waiting`]). A [`bridge`] makes requests and reads
//! answers: [`fcm`] or [`apns`].
//!
//! Every part is bounded and every call gets its reply by its deadline. Device tokens and credentials are never logged.

mod apns;
mod breaker;
mod bridge;
mod certificate_notice;
mod connections;
mod driver;
mod fcm;
mod guard;
mod judgement;
mod name;
mod payload;
mod profile;
mod profiles;
mod queue;
mod recent;
mod request;
mod retry_budget;
mod settings;
mod stats;
mod waiting;

#[cfg(test)]
pub(super) mod tests;

pub(super) use driver::BridgeDriver;
pub use name::BridgeName;
pub use queue::UpstreamQueue;
pub use settings::{BridgeSettings, ProfileReport};
pub(super) use stats::{ProfileSnapshot, ProfileSnapshots, SECONDS};
