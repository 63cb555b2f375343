//! `bridge.fcm.*`: Firebase Cloud Messaging (docs/BRIDGES.md).

use protocol::wire::url::HttpUrl;

use super::parse::{Raw, Secret};

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
