//! Mobile bridges of a node: read from the configuration, handed to the control plane, reloaded.

use std::sync::Arc;

use super::error::NodeError;
use crate::config::Config;
use crate::control_plane::{BridgeSettings, ControlPlaneBuilder, UpstreamQueue};

/// Reads the profiles and their files.
pub(super) fn read(config: &Config) -> Result<BridgeSettings, NodeError> {
    BridgeSettings::read(config).map_err(NodeError::Bridge)
}

/// Makes the control plane serve the bridges. `None`: none is configured, and nothing runs for them.
pub(super) fn start(
    config: &Config,
    builder: &mut ControlPlaneBuilder,
) -> Result<Option<Arc<UpstreamQueue>>, NodeError> {
    let settings = read(config)?;
    if settings.names().is_empty() {
        return Ok(None);
    }
    let no_bell = |error| NodeError::Host { what: "a pair of sockets", error };
    let queue = Arc::new(UpstreamQueue::new().map_err(no_bell)?);
    builder.call_bridges(Arc::clone(&queue), settings);
    Ok(Some(queue))
}
