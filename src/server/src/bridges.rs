//! Mobile bridges of a node: read from the configuration, handed to the control plane and to the edges, reloaded.

use std::sync::Arc;

use super::error::NodeError;
use config::Config;
use control_plane::{BridgeSettings, ControlPlaneBuilder, UpstreamQueue};
use edge::{BridgeProfiles, EdgeKeys, RegistrationSettings};

/// Reads the profiles and their files. Payloads name a message by its id, which `keys` seal.
pub(super) fn read(config: &Config, keys: &EdgeKeys) -> Result<BridgeSettings, NodeError> {
    BridgeSettings::read(config, &keys.crypto).map_err(NodeError::Bridge)
}

/// Makes the control plane serve the bridges, and returns the settings of the registration API with the queue of the
/// bridges. No queue: no bridge is configured, and nothing runs for them.
pub(super) fn start(
    config: &Config,
    keys: &EdgeKeys,
    builder: &mut ControlPlaneBuilder,
) -> Result<(Arc<RegistrationSettings>, Option<Arc<UpstreamQueue>>), NodeError> {
    let settings = read(config, keys)?;
    let registrations = Arc::new(registrations(config, Some(&settings)));
    if settings.names().is_empty() {
        return Ok((registrations, None));
    }
    let no_bell = |error| NodeError::Host { what: "a pair of sockets", error };
    let queue = Arc::new(UpstreamQueue::new().map_err(no_bell)?);
    builder.call_bridges(Arc::clone(&queue), settings);
    Ok((registrations, Some(queue)))
}

/// Returns the settings of the registration API. `settings`: those of the bridges that are served.
pub(super) fn registrations(config: &Config, settings: Option<&BridgeSettings>) -> RegistrationSettings {
    let mut profiles = BridgeProfiles::default();
    settings.iter().flat_map(|settings| settings.names()).for_each(|name| profiles.add(name.kind, &name.app));
    RegistrationSettings {
        auth_keys: config.bridge.auth_keys.iter().map(|key| key.reveal().to_owned()).collect(),
        profiles,
    }
}
