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
mod allowed;
mod apns;
mod bridge;
mod bridge_calls;
mod client_certificates;
mod error;
mod features;
mod fcm;
mod hibernate;
mod key;
pub mod keys;
mod listeners;
mod parse;
mod proxy;
mod public;
mod release;
mod reload;
mod scylla;
mod services;
mod setting;
mod settings;
mod sources;
mod strangers;
mod tls;
mod values;
mod words;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use machine::limits::SHARDS_MAX;
pub use protocol::webpush::endpoint::TokenForm;

pub use self::tls::Pair;
pub use error::ConfigError;
pub use hibernate::HIBERNATE_AFTER;
pub use key::{Key, Live};
pub use parse::{Secret, Written};
pub use reload::Reloaded;
pub use scylla::shared_store_faults;
pub use setting::Origin;
pub use settings::{
    Access, Acme, Admin, Apns, Bridge, BridgeCalls, Broadcast, Challenge, ClientCertificates, Config, Delivery, Drain,
    DrainMode, Endpoint, Fcm, Hello, Hibernate, Http, Log, LogFormat, MAX_CONNECTIONS_MAX, Metrics, MinVersion, Node,
    NodeTls, PlaneChoice, Proxy, Public, RegisterMode, Relay, Roles, ServerTls, Shards, SimplePush, Steer, Store,
    StoreKind, Strangers, UnknownName, WebSocket,
};
pub use sources::Sources;
#[cfg(feature = "bridges")]
pub use words::nearest_of;

impl Config {
    /// Reads every source and validates.
    ///
    /// # Errors
    /// The first thing that is wrong, in one sentence that names the source, the key and what is allowed.
    pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
        let mut config = Config::blank();
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
        let lists = [
            &self.endpoint.crypto_keys,
            &self.node.keys,
            &self.tls.ticket_keys,
            &self.access.tokens,
            &self.bridge.auth_keys,
        ];
        let keys = lists.into_iter().any(|keys| !keys.is_empty());
        let bridges = self.fcm.credentials.is_some() || self.apns.channels.is_some();
        keys || bridges || self.broadcast.token.is_some() || self.store.scylla.password.is_some()
    }

    /// Nothing set; every field is then set from the default in the table of keys.
    fn blank() -> Config {
        Config {
            data_dir: PathBuf::new(),
            roles: Roles::default(),
            max_connections: 0,
            shards: Shards::default(),
            websocket: WebSocket::default(),
            endpoint: Endpoint::default(),
            public: Public::default(),
            access: Access::default(),
            strangers: Strangers::default(),
            proxy: Proxy::default(),
            http: Http::default(),
            tls: ServerTls::default(),
            acme: Acme::default(),
            node: Node::default(),
            admin: Admin::default(),
            metrics: Metrics::default(),
            broadcast: Broadcast::default(),
            simplepush: SimplePush::default(),
            bridge: Bridge::default(),
            bridge_calls: BridgeCalls::default(),
            fcm: Fcm::default(),
            apns: Apns::default(),
            hibernate: Hibernate::default(),
            store: Store::default(),
            delivery: Delivery::default(),
            hello: Hello::default(),
            relay: Relay::default(),
            drain: Drain::default(),
            log: Log::default(),
            written: Written::default(),
        }
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
        scylla::check(self)
    }
}
