//! The one table of keys: it drives all four sources, every refusal, and the table in docs/OPERATIONS.md.

use super::bridge::BRIDGE;
use super::bridge_calls::BRIDGE_CALLS;
use super::client_certificates::CLIENT_CERTIFICATES;
use super::error::ConfigError;
use super::hibernate::HIBERNATE;
use super::key::concat;
pub use super::key::{FILE_VARIABLE, Key, VARIABLE_PREFIX};
use super::listeners::LISTENERS;
use super::proxy::PROXY;
use super::release::RELEASE;
use super::services::SERVICES;
use super::setting::Origin;
use super::strangers::STRANGERS;
use super::words;

/// Returns true if keys begin with this name and a dot.
pub fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The key of this name.
///
/// # Errors
/// [`ConfigError::UnknownKey`] with the nearest name.
pub fn find(name: &str, origin: &Origin) -> Result<&'static Key, ConfigError> {
    KEYS.iter().find(|key| key.name == name).ok_or_else(|| ConfigError::UnknownKey {
        origin: origin.clone(),
        name: name.to_owned(),
        nearest: words::nearest_key(KEYS, name),
    })
}

/// Every key there is, in the order of the documentation.
pub const KEYS: &[Key] = &concat::<{ COUNT }>(&GROUPS);

const GROUPS: [&[Key]; 9] =
    [LISTENERS, CLIENT_CERTIFICATES, PROXY, STRANGERS, SERVICES, BRIDGE, BRIDGE_CALLS, RELEASE, HIBERNATE];
const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};
