//! The one table of keys: it drives all four sources, every refusal, and the table in docs/OPERATIONS.md.

pub use super::key::{FILE_VARIABLE, Key, VARIABLE_PREFIX};

use super::error::ConfigError;
use super::key::concat;
use super::setting::Origin;
use super::{access, acme, admin, bridge, broadcast, client_certificates, delivery, drain, endpoint, hibernate, http};
use super::{
    log, node, proxy, public, sessions, settings, shards, simplepush, store, strangers, tls, websocket, words,
};

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

const GROUPS: [&[Key]; 32] = [
    settings::PROCESS,
    shards::SHARDS,
    websocket::WEBSOCKET,
    endpoint::ENDPOINT,
    client_certificates::ENDPOINT_CLIENTS,
    public::PUBLIC,
    http::HTTP,
    tls::TLS,
    acme::ACME,
    access::ACCESS,
    strangers::STRANGERS,
    proxy::PROXY,
    node::NODE,
    node::NODE_TLS,
    client_certificates::NODE_CLIENTS,
    admin::ADMIN,
    admin::METRICS,
    store::STORE,
    store::SCYLLA,
    store::SCYLLA_TLS,
    delivery::DELIVERY,
    hibernate::HIBERNATE,
    drain::DRAIN,
    broadcast::BROADCAST,
    sessions::HELLO,
    sessions::RELAY,
    simplepush::SIMPLEPUSH,
    bridge::BRIDGE,
    bridge::BRIDGE_CALLS,
    bridge::FCM,
    bridge::APNS,
    log::LOG,
];
const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};
