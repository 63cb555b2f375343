//! The settings of the server, section by section: data without rules. Every other file of this folder imports this
//! one, and this one none of them but the form of a secret.
//!
//! The table of keys (`keys.rs`) says what a setting does. A field has a comment only for what its value means beyond
//! that: a unit, `None`, zero, an order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use machine::ids::KeyDigest;
use protocol::webpush::endpoint::TokenForm;
use protocol::wire::forwarded::Kind;
use protocol::wire::url::{BaseUrl, HttpUrl};
use runtime::strangers::Prefix;
use store::shared::options::Options;
use tracing_subscriber::filter::Targets;

use super::parse::{Secret, Written};

/// Maximum of `max_connections`.
pub const MAX_CONNECTIONS_MAX: u32 = 1 << 24;

/// Every setting of the server. Made by [`Config::load`] only, so that a value of it is always valid.
#[derive(Clone, Debug)]
pub struct Config {
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
    pub metrics: Metrics,
    pub broadcast: Broadcast,
    pub store: Store,
    pub delivery: Delivery,
    pub simplepush: SimplePush,
    pub bridge: Bridge,
    pub bridge_calls: BridgeCalls,
    pub fcm: Fcm,
    pub apns: Apns,
    pub hibernate: Hibernate,
    pub hello: Hello,
    pub relay: Relay,
    pub drain: Drain,
    pub log: Log,
    /// The values as they were written, for a comparison at a reload.
    pub(super) written: Written,
}

/// Tiers that this process serves (docs/CLUSTER.md). At least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles {
    /// Holds sessions: the WebSocket and node listeners are open.
    pub connect: bool,
    /// Takes POSTs: the endpoint listener is open.
    pub endpoint: bool,
}

/// `metrics.*`.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Addresses that are only read; empty: none.
    pub listen: Vec<SocketAddr>,
}

/// `shards.*`.
#[derive(Clone, Debug, Default)]
pub struct Shards {
    /// CPU numbers to pin shards to, in this order; empty: every CPU this process may run on.
    pub cores: Vec<u32>,
    /// Number of shards; 0: one per core. More than cores: they share cores in turn.
    pub count: u16,
    /// Connections of each listening socket.
    pub backlog: u16,
    pub steer: Steer,
    pub plane: PlaneChoice,
}

/// `shards.plane`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlaneChoice {
    /// Rings where they work, else epoll. With hibernation only rings.
    #[default]
    Auto,
    IoUring,
    Poll,
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
    pub listen: Vec<SocketAddr>,
    pub tls_listen: Vec<SocketAddr>,
    /// From upgrade to hello.
    pub hello_timeout: Duration,
    /// Between server pings; zero: none.
    pub auto_ping_interval: Duration,
    pub auto_ping_timeout: Duration,
    pub ping_min_interval: Duration,
    /// WebSockets beyond which new ones are sent elsewhere; 0: none are.
    pub welcome: u32,
}

/// `endpoint.*`.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    pub listen: Vec<SocketAddr>,
    pub tls_listen: Vec<SocketAddr>,
    /// Start of endpoint URLs, no slash at the end; `None`: `https://` and the first of `public.domain`, or `https://`,
    /// the first name of the first certificate and the port of `public.listen` or `tls_listen`, or `http://` and the
    /// first listen address.
    pub url: Option<BaseUrl>,
    /// Fernet keys; the first encrypts, all decrypt. Empty: one is made in the data directory.
    pub crypto_keys: Vec<Secret>,
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
    pub request_timeout: Duration,
    pub keep_alive: Duration,
}

/// `node.*`.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub listen: Vec<SocketAddr>,
    /// URL of this node in presence rows; `None`: `https://` and the first address of `tls.listen`, or `http://` and
    /// that of `listen`.
    pub url: Option<String>,
    /// Bearer keys; the first is sent, all are accepted. Empty: one is made in the data directory.
    pub keys: Vec<Secret>,
    pub connections: u16,
    pub connect_timeout: Duration,
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
    pub tls_listen: Vec<SocketAddr>,
    /// Host names of requests that are answered, in lower case, beside `localhost` and IP addresses.
    pub hosts: Vec<String>,
}

/// `broadcast.*`.
#[derive(Clone, Debug, Default)]
pub struct Broadcast {
    /// The broadcast source; `None`: only the operator sets broadcasts.
    pub url: Option<HttpUrl>,
    pub token: Option<Secret>,
    pub interval: Duration,
    pub spread: Duration,
}

/// `store.*`.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub kind: StoreKind,
    /// Bytes.
    pub cache: u64,
    /// Bytes on disk at which messages are refused with 503; 0: no bound but the disk.
    pub max_bytes: u64,
    /// Bytes stored for one user in a UTC day beyond which messages are refused with 429; 0: no bound; `None`: as the
    /// kind of store has it.
    pub user_bytes_per_day: Option<u64>,
    /// Backups without a name that stay when another is made; 0: all.
    pub backups_keep: usize,
    pub max_skew: Duration,
    pub scylla: Options,
}

/// `store.kind`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    #[default]
    Embedded,
    Memory,
    Scylla,
}

/// `delivery.*` (ARCHITECTURE.md 3).
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// Notifications of one session.
    pub window: u16,
    pub durable: bool,
    pub spill_after: Duration,
    pub retry_after: Duration,
    /// Deliveries after which a message that is never acked ends; 0: never.
    pub attempts_max: u8,
    /// Nothing is held for this long after traffic of the user agent; zero: everything below its minimum is.
    pub release_on_activity: Duration,
    /// Stored messages of one drain beyond which the user is reset; 0: never.
    pub msg_limit: u32,
    pub ledger_bytes: u64,
}

/// `simplepush.*` (PROTOCOL.md 1.12).
#[derive(Clone, Debug, Default)]
pub struct SimplePush {
    /// Target of wake-up calls; `None`: there are none.
    pub wake_url: Option<HttpUrl>,
    pub enabled: bool,
    /// An idle session of a user agent that can be woken is closed with 4774 after this; zero: never.
    pub wake_timeout: Duration,
}

/// `hello.*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hello {
    /// Authoritative channels of a hello (PROTOCOL.md 1.5).
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
    /// Sessions per second, on all shards together.
    pub rate: u32,
    pub mode: DrainMode,
}

/// `drain.mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DrainMode {
    #[default]
    Close,
    Hibernate,
}

/// `log.*`.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub level: Targets,
    pub format: LogFormat,
    pub color: bool,
}

/// `log.format`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// `public.*`.
#[derive(Clone, Debug, Default)]
pub struct Public {
    /// Names of this server, in lower case.
    pub domain: Vec<String>,
    /// Addresses for user agents and app servers together, over TLS; `None`: as `domain` has it.
    pub(super) listen: Option<Vec<SocketAddr>>,
    /// Addresses without TLS that send browsers to `https://`; `None`: as `domain` has it.
    pub(super) http_listen: Option<Vec<SocketAddr>>,
}

/// `access.*`.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub register: RegisterMode,
    /// Tokens of 16 to 128 visible characters that need no escape in a path.
    pub tokens: Vec<Secret>,
    /// Digests of VAPID public keys.
    pub vapid_keys: Vec<KeyDigest>,
}

/// `access.register`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RegisterMode {
    #[default]
    Open,
    Token,
    Vapid,
}

/// `strangers.*`.
#[derive(Clone, Debug, Default)]
pub struct Strangers {
    /// Numbers of the limits; `None`: as `public.domain` and `public.listen` have it.
    pub(super) connections: Option<u32>,
    pub(super) handshakes: Option<u32>,
    pub(super) new_users: Option<u32>,
    pub(super) registers: Option<u32>,
    pub(super) exempt: Vec<Prefix>,
}

/// `proxy.*`.
#[derive(Clone, Debug, Default)]
pub struct Proxy {
    /// Callers that are believed; empty: none, and both ways are off.
    pub trusted: Vec<Prefix>,
    pub protocol: bool,
    pub header: Option<Kind>,
}

/// `tls.*`.
#[derive(Clone, Debug, Default)]
pub struct ServerTls {
    /// PEM files, each with a certificate and its intermediate certificates.
    pub cert: Vec<PathBuf>,
    /// The key of each certificate, in the same order.
    pub key: Vec<PathBuf>,
    pub unknown_name: UnknownName,
    pub min_version: MinVersion,
    pub handshake_timeout: Duration,
    /// Seconds in `Strict-Transport-Security` of answers over TLS; `None`: as `public.domain` has it.
    pub(super) hsts: Option<u32>,
    /// Secrets of 32 bytes in base64; the first seals tickets, all open them. Empty: one is made in the data directory.
    pub ticket_keys: Vec<Secret>,
}

/// `tls.unknown_name`: certificate for a name that none of them has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnknownName {
    #[default]
    Refuse,
    Default,
}

/// `tls.min_version`: oldest version of TLS that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MinVersion {
    #[default]
    Tls13,
    Tls12,
}

/// Certificates that clients of one listener show.
#[derive(Clone, Debug, Default)]
pub struct ClientCertificates {
    /// PEM certificates of the authorities; `None`: clients are asked for no certificate.
    pub ca: Option<PathBuf>,
    pub required: bool,
}

/// `node.tls.*`.
#[derive(Clone, Debug, Default)]
pub struct NodeTls {
    /// Addresses for calls of other nodes over TLS; empty: none.
    pub listen: Vec<SocketAddr>,
    /// Certificate of this node and those that lead to its authority, PEM; `None`: those of `tls.cert`.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// `node.tls.client_ca` and `node.tls.client_required`.
    pub clients: ClientCertificates,
}

/// `acme.*`.
#[derive(Clone, Debug, Default)]
pub struct Acme {
    pub agree: bool,
    pub email: Option<String>,
    /// URL of the directory of the authority; `None` only before the defaults are set.
    pub directory: Option<HttpUrl>,
    /// PEM certificates that the directory is verified with; `None`: those that this host trusts.
    pub ca: Option<PathBuf>,
    pub challenge: Challenge,
    /// Profile of the certificates; `None`: the default of the authority.
    pub profile: Option<String>,
}

/// `acme.challenge`: proof of control over a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Challenge {
    /// A handshake on port 443 (RFC 8737).
    #[default]
    TlsAlpn01,
    /// A request on port 80 (RFC 8555 section 8.3).
    Http01,
}

/// Registration of devices of mobile bridges.
#[derive(Clone, Debug, Default)]
pub struct Bridge {
    /// Keys of the secrets of registered users; the first makes them, all verify. Empty: the API is off.
    pub auth_keys: Vec<Secret>,
}

/// Bounds and trust of the calls of mobile bridges.
#[derive(Clone, Debug, Default)]
pub struct BridgeCalls {
    /// Calls of each profile.
    pub max_in_flight: u16,
    /// Calls of each profile that wait.
    pub queue: u16,
    pub queue_bytes: usize,
    /// PEM certificates of the authorities of the services; `None`: those that this host trusts.
    pub ca_file: Option<PathBuf>,
}

/// `bridge.fcm.*`.
#[derive(Clone, Debug, Default)]
pub struct Fcm {
    /// Profiles as JSON text, or the file that holds it; `None`: there is no such bridge.
    pub credentials: Option<Secret>,
    /// URL of the service; `None` only before the defaults are set.
    pub base_url: Option<HttpUrl>,
    pub timeout: Duration,
    /// Seconds that FCM keeps a notification at least, and at most.
    pub min_ttl: u32,
    pub max_ttl: u32,
    /// Bytes.
    pub max_data: usize,
    pub collapse: bool,
    pub connections: u8,
}

/// `bridge.apns.*`.
#[derive(Clone, Debug, Default)]
pub struct Apns {
    /// Channels as JSON text, or the file that holds it; `None`: there is no such bridge.
    pub channels: Option<Secret>,
    pub timeout: Duration,
    pub idle_timeout: Duration,
    /// Bytes.
    pub max_data: usize,
    pub connections: u8,
}

/// `hibernate.*`.
#[derive(Clone, Debug, Default)]
pub struct Hibernate {
    /// Silence in both directions after which the connection of a user agent is frozen, from 30 s; `None`: none is.
    pub after: Option<Duration>,
    pub queue: u16,
    /// Directory of a tmpfs for records of frozen connections, which then outlive the process.
    pub dir: Option<PathBuf>,
    /// Silence after which a Ping thaws a frozen connection; before it, each Ping is a probe. Zero: no probes.
    pub ping_interval: Duration,
}
