//! One validated configuration: defaults < TOML file < environment < command line.
//!
//! Everything is driven by one table, [`keys::KEYS`]: names, accepted values, meanings and fields. A name that is not
//! in the table is refused with the nearest one that is; so is a value that its key does not accept
//! (docs/OPERATIONS.md). Past [`Config::load`] nothing is checked again. Read once at start, on the main thread; every
//! shard gets copies of the settings that it needs.

mod access;
mod acme;
mod allowed;
mod apns;
mod bridge;
mod bridge_calls;
mod client_certificates;

mod error;
mod fcm;
mod forward;

mod addresses;

mod key;

pub mod keys;

mod parse;

mod proxy;
mod public;

mod scylla;

mod release;
mod sources;
mod strangers;
mod tls;
mod values;

mod words;

#[cfg(test)]
mod tests;

pub use self::acme::{Acme, Challenge};
pub use self::tls::{MinVersion, NodeTls, Pair, ServerTls, UnknownName};
pub use access::{Access, RegisterMode};
use allowed::ACCESS_LIST_MAX;
pub use apns::Apns;
pub use bridge::Bridge;
pub use bridge_calls::BridgeCalls;
pub use client_certificates::ClientCertificates;
pub use error::{ConfigError, Origin};
pub use fcm::Fcm;
pub use forward::Forward;
pub use parse::Secret;
pub use proxy::Proxy;
pub use public::Public;
pub use scylla::shared_store_faults;
pub use sources::Sources;
pub use strangers::Strangers;
pub(crate) use words::nearest_of;

pub use protocol::webpush::endpoint::TokenForm;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use machine::ids::KeyDigest;
use protocol::wire::url::HttpUrl;
use store::scylla::options::Options;

pub use machine::limits::SHARDS_MAX;

/// Maximum of `max_connections`.
pub const MAX_CONNECTIONS_MAX: u32 = 1 << 24;

/// Every setting of the server. Made by [`Config::load`] only, so that a value of it is always valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of keys, store and ledgers.
    pub data_dir: PathBuf,
    pub roles: Roles,
    /// Maximum number of sockets of this process, on all shards and ports, beside the reserves of the endpoint and node
    /// ports (`machine::limits::endpoint_reserve`). At the bound: 503 and close.
    pub max_connections: u32,
    pub shards: Shards,
    pub websocket: WebSocket,
    pub endpoint: Endpoint,
    pub public: Public,
    pub access: Access,
    pub strangers: Strangers,
    pub proxy: Proxy,
    pub http: Http,
    pub tls: ServerTls,
    pub acme: Acme,
    pub node: Node,
    pub admin: Admin,
    pub broadcast: Broadcast,
    pub store: Store,
    pub delivery: Delivery,
    pub simplepush: SimplePush,
    pub bridge: Bridge,
    pub bridge_calls: BridgeCalls,
    pub fcm: Fcm,
    pub apns: Apns,
    pub forward: Forward,
    pub hello: Hello,
    pub relay: Relay,
    pub drain: Drain,
    pub log: Log,
}

/// Tiers that this process serves (docs/CLUSTER.md). At least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles {
    /// Holds sessions: the WebSocket and node listeners are open.
    pub connect: bool,
    /// Takes POSTs: the endpoint listener is open.
    pub endpoint: bool,
}

/// `shards.*`.
#[derive(Clone, Debug, Default)]
pub struct Shards {
    /// CPU numbers to pin shards to, in this order; empty: every CPU this process may run on.
    pub cores: Vec<u32>,
    /// Number of shards; 0: one per core. More than cores: they share cores in turn.
    pub count: u16,
    /// Connections that wait in each listening socket at most; the kernel's net.core.somaxconn bounds it, too.
    pub backlog: u16,
    /// Choice of the shard for a new connection.
    pub steer: Steer,
}

/// `shards.steer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Steer {
    /// Any shard: the kernel draws one by the addresses and ports of the connection.
    #[default]
    Off,
    /// The shard of the CPU that worked on its first packet, where there is one (SO_INCOMING_CPU).
    Cpu,
}

/// `websocket.*`.
#[derive(Clone, Debug, Default)]
pub struct WebSocket {
    /// Addresses for user agents.
    pub listen: Vec<SocketAddr>,
    /// Addresses for user agents over TLS.
    pub tls_listen: Vec<SocketAddr>,
    /// From upgrade to hello.
    pub hello_timeout: Duration,
    /// Between server pings; zero: none.
    pub auto_ping_interval: Duration,
    /// From a server ping to its pong.
    pub auto_ping_timeout: Duration,
    /// `{}` more often than this closes with 4774.
    pub ping_min_interval: Duration,
    /// WebSockets beyond which new ones are sent elsewhere; 0: none are.
    pub welcome: u32,
}

/// `endpoint.*`.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    /// Addresses for the POSTs of app servers.
    pub listen: Vec<SocketAddr>,
    /// Addresses for the POSTs of app servers over TLS.
    pub tls_listen: Vec<SocketAddr>,
    /// Start of endpoint URLs, no slash at the end; `None`: `https://` and the first of `public.domain`, or `https://`,
    /// the first name of the first certificate and the port of `public.listen` or `tls_listen`, or `http://` and the
    /// first listen address.
    pub url: Option<String>,
    /// Fernet keys; the first encrypts, all decrypt. Empty: one is made in the data directory.
    pub crypto_keys: Vec<Secret>,
    /// Form of new endpoint tokens.
    pub tokens: TokenForm,
    /// POSTs per second to one endpoint; 0: no limit.
    pub token_rate: u32,
    /// POSTs per second of one VAPID key on one shard; 0: no limit.
    pub origin_rate: u32,
    /// Digests of the VAPID public keys whose POSTs are taken; empty: any.
    pub allowed_keys: Vec<KeyDigest>,
    /// `endpoint.tls.client_ca` and `endpoint.tls.client_required`.
    pub clients: ClientCertificates,
}

/// `http.*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Http {
    /// From the first byte of a request to its last.
    pub request_timeout: Duration,
    /// From an answer to the next request.
    pub keep_alive: Duration,
}

/// `node.*`.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Addresses for calls of other nodes.
    pub listen: Vec<SocketAddr>,
    /// URL of this node in presence rows; `None`: `https://` and the first address of `tls.listen`, or `http://` and
    /// that of `listen`.
    pub url: Option<String>,
    /// Bearer keys; the first is sent, all are accepted. Empty: one is made in the data directory.
    pub keys: Vec<Secret>,
    /// Maximum number of connections to each other node.
    pub connections: u16,
    /// For a connection to another node.
    pub connect_timeout: Duration,
    /// For a call of another node.
    pub request_timeout: Duration,
    /// PEM certificates of the authorities of other nodes; `None`: those that this host trusts.
    pub ca: Option<PathBuf>,
    pub tls: NodeTls,
}

/// `admin.*`.
#[derive(Clone, Debug, Default)]
pub struct Admin {
    /// Addresses for operators; empty: none.
    pub listen: Vec<SocketAddr>,
    /// Addresses for operators over TLS.
    pub tls_listen: Vec<SocketAddr>,
    /// Host names of requests that are answered, in lower case, beside `localhost` and IP addresses.
    pub hosts: Vec<String>,
}

/// `broadcast.*`.
#[derive(Clone, Debug, Default)]
pub struct Broadcast {
    /// The broadcast source; `None`: only the operator sets broadcasts.
    pub url: Option<HttpUrl>,
    /// Sent to the source as `Authorization: Bearer`.
    pub token: Option<Secret>,
    /// Between two polls of the source.
    pub interval: Duration,
    /// Time within which every session is told of a change.
    pub spread: Duration,
}

/// `store.*`.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub kind: StoreKind,
    /// Bytes of the block cache.
    pub cache: u64,
    /// Bytes on disk at which messages are refused with 503; 0: no bound but the disk.
    pub max_bytes: u64,
    /// Bytes stored for one user in a UTC day beyond which messages are refused with 429; 0: no bound; `None`: as the
    /// kind of store has it.
    pub user_bytes_per_day: Option<u64>,
    /// Maximum difference between the time of a node and the clocks of the database.
    pub max_skew: Duration,
    pub scylla: Options,
}

impl Store {
    /// Bytes stored for one user in a UTC day, as one node counts them; 0: no bound. On a shared store every node
    /// counts by itself, so the default is less there.
    pub fn user_bytes_per_day(&self) -> u64 {
        let default = if self.kind.is_shared() { SHARED_USER_BYTES_PER_DAY } else { USER_BYTES_PER_DAY };
        self.user_bytes_per_day.unwrap_or(default)
    }
}

/// The default of `store.user_bytes_per_day`, and that of a store that several nodes share.
const USER_BYTES_PER_DAY: u64 = 16 << 20;
const SHARED_USER_BYTES_PER_DAY: u64 = 4 << 20;

/// `store.kind`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    /// In the data directory.
    #[default]
    Embedded,
    /// In memory: for tests and trials, gone when the process ends.
    Memory,
    /// In ScyllaDB or Cassandra, shared by the nodes of a cluster.
    Scylla,
}

impl StoreKind {
    /// Returns true if several nodes share it: then each must be found by the others.
    pub fn is_shared(self) -> bool {
        match self {
            StoreKind::Embedded | StoreKind::Memory => false,
            StoreKind::Scylla => true,
        }
    }
}

/// `delivery.*` (ARCHITECTURE.md 3).
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// Unacked notifications of one session.
    pub window: u16,
    /// Store before sending.
    pub durable: bool,
    /// A direct unacked for this long is saved to storage.
    pub spill_after: Duration,
    /// A notification unacked for this long is sent again.
    pub retry_after: Duration,
    /// Deliveries after which a message that is never acked ends; 0: never.
    pub attempts_max: u8,
    /// Nothing is held for this long after traffic of the user agent; zero: everything below its minimum is.
    pub release_on_activity: Duration,
    /// Stored messages of one drain beyond which the user is reset; 0: never.
    pub msg_limit: u32,
    /// Bytes of the ledger log of one shard.
    pub ledger_bytes: u64,
}

/// `simplepush.*` (PROTOCOL.md 1.12).
#[derive(Clone, Debug, Default)]
pub struct SimplePush {
    /// Target of wake-up calls; `None`: there are none.
    pub wake_url: Option<HttpUrl>,
    /// User agents that do not request WebPush are in SimplePush mode.
    pub enabled: bool,
    /// An idle session of a user agent that can be woken is closed with 4774 after this; zero: never.
    pub wake_timeout: Duration,
}

/// `hello.*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hello {
    /// The channels of a hello are the truth (PROTOCOL.md 1.5).
    pub reconcile: bool,
}

/// `relay.*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relay {
    /// User agents that one connection may speak for; 0: none may.
    pub members: u16,
}

/// `drain.*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drain {
    /// From SIGTERM to the first session that is closed: health pages say 503 meanwhile.
    pub delay: Duration,
    /// Sessions closed per second on SIGTERM, on all shards together.
    pub rate: u32,
}

/// `log.*`.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// A level, or directives as of the crate `tracing-subscriber`.
    pub level: String,
    pub format: LogFormat,
    pub color: bool,
}

/// `log.format`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads every source and validates.
    ///
    /// # Errors
    /// The first thing that is wrong, in one sentence that names the source, the key and what is allowed.
    pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
        let mut config = Config::blank();
        for key in keys::KEYS {
            // Invariant: a test sets every default; none of them is refused.
            (key.set)(&mut config, &parse::Raw::one(key.default)).expect("the default of a key is a value of it");
        }
        for setting in sources.settings()? {
            let key = keys::find(&setting.name, &setting.origin)?;
            (key.set)(&mut config, &setting.value).ok_or_else(|| ConfigError::bad_value(key, &setting))?;
        }
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
        keys || bridges
            || self.forward.create_token.is_some()
            || self.broadcast.token.is_some()
            || self.store.scylla.password.is_some()
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
            broadcast: Broadcast::default(),
            simplepush: SimplePush::default(),
            bridge: Bridge::default(),
            bridge_calls: BridgeCalls::default(),
            fcm: Fcm::default(),
            apns: Apns::default(),
            forward: Forward::default(),
            store: Store::default(),
            delivery: Delivery::default(),
            hello: Hello::default(),
            relay: Relay::default(),
            drain: Drain::default(),
            log: Log::default(),
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
        forward::check(self)?;
        let bridged = self.bridge.stub || self.fcm.credentials.is_some() || self.apns.channels.is_some();
        if bridged && self.bridge.auth_keys.is_empty() {
            return Err(ConfigError::Conflict(
                "a bridge needs bridge.auth_keys, the keys of the secrets that devices show; set bridge.auth_keys",
            ));
        }
        if self.max_connections < u32::from(self.shards.count) {
            return Err(ConfigError::Conflict("max_connections must be at least shards.count"));
        }
        scylla::check(self)
    }
}
