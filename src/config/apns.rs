//! `bridge.apns.*`: Apple Push Notification service (docs/BRIDGES.md).

use std::time::Duration;

use super::parse::{Raw, Secret};

/// `bridge.apns.*`.
#[derive(Clone, Debug, Default)]
pub struct Apns {
    /// Channels as JSON text, or the file that holds it; `None`: there is no such bridge.
    pub channels: Option<Secret>,
    /// For one notification.
    pub timeout: Duration,
    /// After which a connection without notifications is closed.
    pub idle_timeout: Duration,
    /// Bytes of one payload.
    pub max_data: usize,
    /// Connections of each channel.
    pub connections: u8,
}

/// Reads `bridge.apns.channels`.
pub(super) fn channels(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| Secret::new(text)))
}
