//! One validated configuration: defaults < TOML file < environment < command line.
//!
//! Everything is driven by one table, [`keys::KEYS`]: names, accepted values, meanings and fields. A name that is not
//! in the table is refused with the nearest one that is; so is a value that its key does not accept
//! (docs/OPERATIONS.md). Past [`Config::load`] nothing is checked again. Read once at start, on the main thread; every
//! shard gets copies of the settings that it needs.

#![forbid(unsafe_code)]

mod access;
mod acme;
mod addresses;
mod admin;
mod allowed;
mod bridge;
mod broadcast;
mod client_certificates;
mod delivery;
mod drain;
mod endpoint;
mod error;
mod features;
mod hibernate;
mod http;
mod key;
pub mod keys;
mod log;
mod node;
mod parse;
mod proxy;
mod public;
mod reload;
mod sessions;
mod setting;
mod settings;
mod shards;
mod simplepush;
mod sources;
mod store;
mod strangers;
mod tls;
mod websocket;
mod words;

#[cfg(test)]
mod tests;

pub use machine::limits::SHARDS_MAX;
pub use protocol::webpush::endpoint::TokenForm;

pub use self::access::{Access, RegisterMode};
pub use self::acme::{Acme, Challenge};
pub use self::admin::{Admin, Metrics};
pub use self::bridge::{Apns, Bridge, BridgeCalls, Fcm};
pub use self::broadcast::Broadcast;
pub use self::client_certificates::ClientCertificates;
pub use self::delivery::Delivery;
pub use self::drain::{Drain, DrainMode};
pub use self::endpoint::Endpoint;
pub use self::error::ConfigError;
pub use self::hibernate::{HIBERNATE_AFTER, Hibernate};
pub use self::http::Http;
pub use self::key::{Key, Live};
pub use self::log::{Log, LogFormat};
pub use self::node::{Node, NodeTls};
pub use self::parse::{Secret, Written};
pub use self::proxy::Proxy;
pub use self::public::Public;
pub use self::reload::Reloaded;
pub use self::sessions::{Hello, Relay};
pub use self::setting::Origin;
pub use self::settings::{Config, MAX_CONNECTIONS_MAX, Roles};
pub use self::shards::{PlaneChoice, Shards, Steer};
pub use self::simplepush::SimplePush;
pub use self::sources::Sources;
pub use self::store::{Store, StoreKind, shared_store_faults};
pub use self::strangers::Strangers;
pub use self::tls::{MinVersion, Pair, ServerTls, UnknownName};
pub use self::websocket::WebSocket;
#[cfg(feature = "bridges")]
pub use words::nearest_of;

impl Config {
    /// Reads every source and validates.
    ///
    /// # Errors
    /// The first thing that is wrong, in one sentence that names the source, the key and what is allowed.
    pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let mut written = Written::default();
        for key in keys::KEYS {
            let default = parse::Raw::one(key.default);
            // Invariant: a test sets every default; none of them is refused.
            (key.set)(&mut config, &default).expect("the default of a key is a value of it");
            written.0.push(default);
        }
        for setting in sources.settings()? {
            let key = keys::find(&setting.name, &setting.origin)?;
            (key.set)(&mut config, &setting.value).ok_or_else(|| ConfigError::bad_value(key, &setting))?;
            if let Some(at) = reload::place(key.name) {
                written.0[at] = setting.value;
            }
        }
        config.written = written;
        config.check()?;
        Ok(config)
    }

    /// Returns true if it holds keys, tokens or passwords from any source.
    pub fn has_secrets(&self) -> bool {
        let is_set = |(key, value): (&Key, &parse::Raw)| key.secret && value.text() != Some(key.default);
        keys::KEYS.iter().zip(&self.written.0).any(is_set)
    }

    /// Checks settings that depend on each other.
    fn check(&self) -> Result<(), ConfigError> {
        let socket = &self.websocket;
        if !socket.auto_ping_interval.is_zero() && socket.auto_ping_timeout >= socket.auto_ping_interval {
            return Err(ConfigError::Conflict(
                "websocket.auto_ping_timeout must be shorter than websocket.auto_ping_interval",
            ));
        }
        let has_public = !self.public.listen().is_empty();
        if self.roles.connect && socket.listen.is_empty() && socket.tls_listen.is_empty() && !has_public {
            return Err(ConfigError::Conflict(
                "the role connect needs an address in websocket.listen, websocket.tls.listen or public.listen",
            ));
        }
        let endpoint = &self.endpoint;
        if self.roles.endpoint && endpoint.listen.is_empty() && endpoint.tls_listen.is_empty() && !has_public {
            return Err(ConfigError::Conflict(
                "the role endpoint needs an address in endpoint.listen, endpoint.tls.listen or public.listen",
            ));
        }
        if self.simplepush.wake_url.is_some() && !self.simplepush.enabled {
            return Err(ConfigError::Conflict("simplepush.wake_url needs simplepush.enabled"));
        }
        if !self.simplepush.wake_timeout.is_zero() && self.simplepush.wake_url.is_none() {
            return Err(ConfigError::Conflict(
                "simplepush.wake_timeout requires simplepush.wake_url, because the server cannot wake a disconnected \
                 user agent without it; set simplepush.wake_url, or set simplepush.wake_timeout to 0",
            ));
        }
        access::check(self)?;
        proxy::check(self)?;
        public::check(self)?;
        addresses::check(self)?;
        acme::check(self)?;
        self::tls::check(self)?;
        client_certificates::check(self)?;
        hibernate::check(self)?;
        let bridged = self.fcm.credentials.is_some() || self.apns.channels.is_some();
        if bridged && self.bridge.auth_keys.is_empty() {
            return Err(ConfigError::Conflict(
                "a bridge needs bridge.auth_keys, the keys of the secrets that devices show; set bridge.auth_keys",
            ));
        }
        if self.max_connections < u32::from(self.shards.count) {
            return Err(ConfigError::Conflict("max_connections must be at least shards.count"));
        }
        features::check(self)?;
        store::check(self)
    }
}
