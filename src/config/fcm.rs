//! `bridge.fcm.*`: Firebase Cloud Messaging (docs/BRIDGES.md).

use std::time::Duration;

use protocol::wire::url::HttpUrl;

use super::parse::{Raw, Secret};

/// `bridge.fcm.*`.
#[derive(Clone, Debug, Default)]
pub struct Fcm {
    /// Profiles as JSON text, or the file that holds it; `None`: there is no such bridge.
    pub credentials: Option<Secret>,
    /// URL of the service; `None` only before the defaults are set.
    pub base_url: Option<HttpUrl>,
    /// For one notification.
    pub timeout: Duration,
    /// Seconds that FCM keeps a notification at least, and at most.
    pub min_ttl: u32,
    pub max_ttl: u32,
    /// Bytes of the data of one notification.
    pub max_data: usize,
    /// Notifications of one topic replace each other at FCM.
    pub collapse: bool,
    /// Connections of each profile.
    pub connections: u8,
}

/// Reads `bridge.fcm.credentials`.
pub(super) fn credentials(raw: &Raw) -> Option<Option<Secret>> {
    let text = raw.text()?;
    Some((!text.is_empty()).then(|| Secret::new(text)))
}

/// Reads `bridge.fcm.base_url`.
pub(super) fn base_url(raw: &Raw) -> Option<Option<HttpUrl>> {
    let text = raw.text().filter(|text| !text.contains(['?', '#']))?;
    HttpUrl::parse(text).map(Some)
}
