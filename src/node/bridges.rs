//! Mobile bridges of a node: read from the configuration, handed to the control plane, reloaded.

use std::sync::Arc;

use super::error::NodeError;
use crate::config::Config;
use crate::control_plane::{BridgeSettings, ControlPlaneBuilder, UpstreamQueue};
use crate::edge::EdgeKeys;

/// Reads the profiles and their files. Payloads name a message by its id, which `keys` seal.
pub(super) fn read(config: &Config, keys: &EdgeKeys) -> Result<BridgeSettings, NodeError> {
    BridgeSettings::read(config, &keys.crypto).map_err(NodeError::Bridge)
}

/// Makes the control plane serve the bridges. `None`: none is configured, and nothing runs for them.
pub(super) fn start(
    settings: BridgeSettings,
    builder: &mut ControlPlaneBuilder,
) -> Result<Option<Arc<UpstreamQueue>>, NodeError> {
    if settings.names().is_empty() {
        return Ok(None);
    }
    let no_bell = |error| NodeError::Host { what: "a pair of sockets", error };
    let queue = Arc::new(UpstreamQueue::new().map_err(no_bell)?);
    builder.call_bridges(Arc::clone(&queue), settings);
    Ok(Some(queue))
}
