//! `bridge.apns.*`: Apple Push Notification service (docs/BRIDGES.md).

use super::parse::{Raw, Secret};

/// Reads `bridge.apns.channels`.
pub(super) fn channels(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| Secret::new(text)))
}
