//! Mobile bridges in a build without the feature `bridges`: no profile, and types that have no value.
//!
//! Its items are those of `mod.rs`. The configuration refuses credentials of a bridge in such a build.

#[path = "breaker.rs"]
#[expect(dead_code, reason = "no service is called")]
mod breaker;
#[path = "judgement.rs"]
#[expect(dead_code, reason = "no service answers")]
mod judgement;
#[path = "name.rs"]
mod name;
#[path = "recent.rs"]
mod recent;
#[path = "request.rs"]
#[expect(dead_code, reason = "no service is asked")]
mod request;
#[path = "stats.rs"]
#[expect(dead_code, reason = "nothing is counted")]
mod stats;

pub use name::BridgeName;
pub(super) use stats::{ProfileSnapshot, ProfileSnapshots, SECONDS};

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use runtime::ports::Upstreams;

use config::Config;

/// Settings of all profiles: there is none.
pub struct BridgeSettings(());

impl BridgeSettings {
    /// # Errors
    /// Never: the configuration names no credentials.
    pub fn read(_: &Config, _: &[String]) -> Result<BridgeSettings, String> {
        Ok(BridgeSettings(()))
    }

    pub async fn report(&self, _: bool) -> Vec<ProfileReport> {
        Vec::new()
    }

    pub fn names(&self) -> BTreeSet<BridgeName> {
        BTreeSet::new()
    }
}

/// State of one profile for an operator.
pub struct ProfileReport {
    pub name: String,
    pub certificate_expires: Option<SystemTime>,
    pub clock_ahead: Option<i64>,
    pub service: Option<Result<(), String>>,
}

/// Queue of calls: there is none.
pub enum UpstreamQueue {}

impl UpstreamQueue {
    /// # Errors
    /// Always.
    pub fn new() -> io::Result<UpstreamQueue> {
        Err(io::Error::other("this build lacks the feature \"bridges\""))
    }

    pub fn port(self: &Arc<UpstreamQueue>, _: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Upstreams> {
        match **self {}
    }

    pub fn reload(&self, _: BridgeSettings) {
        match *self {}
    }
}

/// Task that makes the calls: there is none.
pub(super) enum BridgeDriver {}

impl BridgeDriver {
    pub fn new(queue: Arc<UpstreamQueue>, _: BridgeSettings) -> BridgeDriver {
        match *queue {}
    }

    pub fn snapshots(&self) -> Arc<ProfileSnapshots> {
        match *self {}
    }

    pub async fn run(self) -> io::Result<()> {
        match self {}
    }
}
