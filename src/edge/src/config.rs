//! Configuration of an edge.

use std::sync::Arc;

use machine::ids::ShardId;
use machine::placement::Placement;

use super::access::AccessRules;
use super::admission::AdmissionGate;
use super::callers::Forwarding;
use super::events::Events;
use super::registering::RegistrationSettings;
use super::response::VersionInfo;
use protocol::webpush::endpoint::{BadKey, TokenForm};
use protocol::webpush::message_id::MessageIds;
use protocol::wire::url::{BaseUrl, Origin};
use runtime::process_clock::ProcessClock;

/// Configuration of an edge. Plain values: other code reads and checks the settings.
#[derive(Clone)]
pub struct EdgeConfig {
    /// `endpoint.url`: base of the URLs given to user agents. VAPID's `aud` must be its origin.
    pub endpoint_url: BaseUrl,
    /// URL of this server for user agents; the page of `/` shows it.
    pub agent_url: Origin,
    /// `endpoint.tokens`: form of new endpoint tokens.
    pub tokens: TokenForm,
    /// Keys at start; [`super::PushEdge::rekey`] replaces them.
    pub keys: EdgeKeys,
    /// Rules at start; [`super::PushEdge::set_rules`] replaces them.
    pub rules: AccessRules,
    /// `proxy.header`.
    pub forwarding: Forwarding,
    pub placement: Placement,
    pub shard: ShardId,
    /// Maximum length of the body of a POST, in bytes: [`BODY_BYTES_DEFAULT`].
    pub body_bytes_max: usize,
    /// `simplepush.enabled`: user agents that do not ask for WebPush are in SimplePush mode.
    pub simplepush: bool,
    /// Maximum number of verified VAPID tokens in the cache: [`VAPID_CACHE_DEFAULT`].
    pub vapid_cache_max: usize,
    /// Maximum memory of all half messages and half bodies, in bytes: [`UNFINISHED_BYTES_MAX`].
    pub unfinished_bytes_max: usize,
    /// True if `relay.members` is not 0: a hello can make its connection a relay.
    pub relays: bool,
    /// Settings of the registration API at start; [`super::PushEdge::set_registrations`] replaces them.
    pub registrations: Arc<RegistrationSettings>,
    /// `hello.reconcile`: the edge passes the channels of a hello to the machine.
    pub reconcile: bool,
    /// Boot of this node. Other nodes name it in their calls (ARCHITECTURE.md 8.9).
    pub boot: u64,
    /// Limit on new WebSockets, shared by all shards.
    pub gate: Arc<AdmissionGate>,
    /// True if the edge obeys `Prefer: respond-async`. Only one node knows the outcome of a message, so several nodes
    /// behind one name must not promise a receipt.
    pub receipts: bool,
    /// `tls.hsts`: seconds in `Strict-Transport-Security` of answers over TLS; 0: they have none.
    pub hsts: u32,
    /// `endpoint.origin_rate`: messages per second of one application server; 0 means no limit.
    pub origin_rate: u32,
    /// Content of `/__version__`.
    pub version: VersionInfo,
    /// Clock of the process. Times that the clocks of peers made are judged by the host's too, while it is not known
    /// which of the two is right (decision 0019).
    pub clock: Arc<ProcessClock>,
    /// Queue of client events; `None` when the log has no lines for them.
    pub events: Option<Arc<Events>>,
}

/// Secrets of an edge: the part of its configuration that can change while it runs. Must not be logged.
#[derive(Clone, Default)]
pub struct EdgeKeys {
    /// `endpoint.crypto_keys`: Fernet keys; the first seals, all open.
    pub crypto: Vec<String>,
    /// `node.keys`: any of them admits a node; without keys no node is admitted.
    pub node: Vec<String>,
}

impl EdgeKeys {
    /// Checks that an edge can use the keys.
    pub fn check(&self) -> Result<(), BadKey> {
        MessageIds::new(&self.crypto).map(|_| ())
    }
}

/// Maximum body of a POST: 4,096 bytes of plain text fit after encryption and base64 (PROTOCOL.md 2.6).
pub const BODY_BYTES_DEFAULT: usize = 5_630;
/// Number of cached VAPID tokens, at about 120 bytes each.
pub const VAPID_CACHE_DEFAULT: usize = 8_192;
/// Memory that fragments of messages and requests without the end of their body hold, for all connections of a shard.
/// 64 MiB are 1,024 messages of the largest size, or some 10,000 incoming notifications. A million connections could
/// have 64 GiB of them. Each port has its own part (`PortQuotas` in `runtime::quota`), and half of each part is for
/// connections that hold little (`LITTLE_BYTES` there). At the bound the connection that takes more is closed 1013, or
/// answered 503.
pub const UNFINISHED_BYTES_MAX: usize = 64 << 20;
