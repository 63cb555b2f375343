//! The process, and all sections together. Each section has a file: its keys, its types, and what must hold between
//! its settings.
//!
//! A field has a comment only for what its value means beyond its setting: a unit, `None`, zero, an order.

use std::path::PathBuf;

use super::access::Access;
use super::acme::Acme;
use super::admin::{Admin, Metrics};
use super::bridge::{Apns, Bridge, BridgeCalls, Fcm};
use super::broadcast::Broadcast;
use super::delivery::Delivery;
use super::drain::Drain;
use super::endpoint::Endpoint;
use super::hibernate::Hibernate;
use super::http::Http;
use super::key::settings;
use super::log::Log;
use super::node::Node;
use super::parse;
use super::parse::{Raw, Written};
use super::proxy::Proxy;
use super::public::Public;
use super::sessions::{Hello, Relay};
use super::shards::Shards;
use super::simplepush::SimplePush;
use super::store::Store;
use super::strangers::Strangers;
use super::tls::ServerTls;
use super::websocket::WebSocket;

settings! {
    /// Every setting of the server. Made by [`Config::load`] only, so that a value of it is always valid.
    #[derive(Clone, Debug, Default)]
    pub struct Config as PROCESS at [] {
        pub data_dir: PathBuf = "data_dir" ("data-dir" "DIR"), "murre-data",
            "a directory",
            "Directory of the keys, the store and the ledgers. The server creates it with mode 0700; one process at a time can use it.",
            |raw| raw.text().filter(|text| !text.is_empty()).map(PathBuf::from);
        pub roles: Roles = "roles" ("roles" "LIST"), "connect,endpoint",
            "connect, endpoint or both, separated by a comma",
            "connect holds WebSocket sessions and takes calls of other nodes; endpoint takes POSTs.",
            roles;
        /// Maximum number of sockets of this process, on all shards and ports, beside the reserves of the endpoint and
        /// node ports (`machine::limits::endpoint_reserve`). At the bound: 503 and close.
        pub max_connections: u32 = "max_connections" ("max-connections" "N"), "100000",
            "a number from 1 to 16777216",
            "Maximum number of WebSockets and other connections together; a further connection is answered 503 and closed. Half of it is for WebSockets alone. In addition, a sixteenth is reserved for app servers and a 64th for nodes.",
            parse::number(1, u64::from(MAX_CONNECTIONS_MAX));
    } with {
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
}

/// Tiers that this process serves (docs/CLUSTER.md). At least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles {
    /// Holds sessions: the WebSocket and node listeners are open.
    pub connect: bool,
    /// Takes POSTs: the endpoint listener is open.
    pub endpoint: bool,
}

/// Maximum of `max_connections`.
pub const MAX_CONNECTIONS_MAX: u32 = 1 << 24;

/// Reads `roles`: one of them at least.
fn roles(raw: &Raw) -> Option<Roles> {
    let mut roles = Roles::default();
    for item in raw.items() {
        match item {
            "connect" => roles.connect = true,
            "endpoint" => roles.endpoint = true,
            _ => return None,
        }
    }
    (roles != Roles::default()).then_some(roles)
}
