//! Settings of the mobile bridges, from the configuration to the form of the edge.

use machine::upstream::BridgeKind;

use crate::config::Config;
use crate::edge::{BridgeProfiles, BridgeSettings};

/// Profiles of the stub: every notification of a user of the first one is accepted, the second one answers as the token
/// says.
const STUB_PROFILES: [&str; 2] = ["success", "error"];

/// Returns the settings of one of `shards` shards.
pub(super) fn settings(config: &Config, shards: u16) -> BridgeSettings {
    let mut profiles = BridgeProfiles::default();
    if config.bridge.stub {
        STUB_PROFILES.iter().for_each(|app| profiles.add(BridgeKind::Stub, app));
    }
    BridgeSettings {
        auth_keys: config.bridge.auth_keys.iter().map(|key| key.reveal().to_owned()).collect(),
        profiles,
        registration_rate: config.bridge.registration_rate.div_ceil(u32::from(shards)),
    }
}
