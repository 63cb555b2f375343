//! The plan of a node: what its shards are made of, and the addresses that it tells.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use machine::ids::ShardId;
use machine::placement::Placement;
use machine::stats::Board;
use machine::time::TimeSpan;
use machine::{MachineConfig, NodeId};
use protocol::wire::url::{BaseUrl, Origin};
use runtime::ledger;
use runtime::ports::{NoPeers, NoUpstreams, Port};
use runtime::process_clock::ProcessClock;
use runtime::reactor::{CallerRules, PlaneLimits};
use runtime::thread::ShardSetup;

use super::access;
use super::banner::{self, Addresses};
use super::certificates::NodeTls;
use super::cluster::Cluster;
use super::data_dir::Keys;
use super::error::NodeError;
use super::ledgers::ShardLedger;
use super::listeners::Bound;
use super::storage::Storage;
use config::Config;
use control_plane::{Address, Conditions, ControlPlane, MetricSources, UpstreamQueue, WakeUpQueue};
use edge::{
    AdmissionGate, BODY_BYTES_DEFAULT, EdgeConfig, Events, Forwarding, PushEdge, UNFINISHED_BYTES_MAX,
    VAPID_CACHE_DEFAULT, VersionInfo,
};
use host::Plane;

/// Setup that all shards share.
pub(super) struct Plan<'a> {
    pub config: &'a Config,
    pub edge: EdgeConfig,
    pub connections_max: u32,
    /// Identity of this node in a cluster.
    pub node: Option<Arc<NodeId>>,
    pub tls: NodeTls,
    pub process_clock: Arc<ProcessClock>,
    pub callers: CallerRules,
    /// Calls of mobile bridges; `None`: none is configured.
    pub upstreams: Option<Arc<UpstreamQueue>>,
    pub plane: Plane,
}

impl Plan<'_> {
    pub fn shard(
        &self,
        (shard, core): (ShardId, u32),
        ledger: ShardLedger,
        listeners: Bound,
        storage: &Arc<Storage>,
        (wake_ups, cluster): (Option<Arc<WakeUpQueue>>, Option<Arc<Cluster>>),
    ) -> ShardSetup<PushEdge> {
        let edge = EdgeConfig { shard, ..self.edge.clone() };
        let (storage, upstreams) = (Arc::clone(storage), self.upstreams.clone());
        let (machine, log) = (self.machine(shard, &ledger), ledger.log);
        ShardSetup {
            machine,
            core: Some(core as usize),
            clock: Arc::clone(&self.process_clock),
            limits: PlaneLimits {
                request_timeout: span(self.config.http.request_timeout),
                blocked_timeout: span(self.config.websocket.auto_ping_timeout),
                keep_alive_timeout: span(self.config.http.keep_alive),
                handshake_timeout: span(self.config.tls.handshake_timeout),
                backlog: self.config.shards.backlog,
                kind: self.plane.kind,
                ..PlaneLimits::new(self.connections_max)
            },
            callers: self.callers.clone(),
            hibernation: None,
            listeners,
            tls: self.tls.of_shard(),
            // Invariant: `start_with` has made one of the same configuration.
            edge: Box::new(move || PushEdge::new(&edge).expect("an edge of this configuration was made before")),
            store: Box::new(move |waker| storage.port(Arc::new(move || waker.wake()))),
            peers: Box::new(move |waker| match cluster {
                Some(cluster) => cluster.lane(Arc::new(move || waker.wake())),
                None => Box::new(NoPeers),
            }),
            upstreams: Box::new(move |waker| match upstreams {
                Some(queue) => queue.port(Arc::new(move || waker.wake())),
                None => Box::new(NoUpstreams::default()),
            }),
            ledger: Box::new(move || Box::new(log)),
            wake: Box::new(move |data| {
                // Without a wake-up service, stored messages wait for the next hello.
                if let Some(wake_ups) = &wake_ups {
                    wake_ups.push(data.as_str().into());
                }
            }),
        }
    }

    fn machine(&self, shard: ShardId, ledger: &ShardLedger) -> MachineConfig {
        let (delivery, websocket) = (&self.config.delivery, &self.config.websocket);
        MachineConfig {
            origin: ledger.origin,
            clock_floor: ledger.floor,
            window: delivery.window,
            durable: delivery.durable,
            spill_after: span(delivery.spill_after),
            retry_after: span(delivery.retry_after),
            hello_timeout: span(websocket.hello_timeout),
            ping_interval: span(websocket.auto_ping_interval),
            pong_timeout: span(websocket.auto_ping_timeout),
            ping_min_interval: span(websocket.ping_min_interval),
            wake_timeout: span(self.config.simplepush.wake_timeout),
            sessions_max: self.connections_max,
            ledger_bytes_max: ledger::capacity_for(delivery.ledger_bytes),
            token_rate: self.config.endpoint.token_rate,
            user_bytes_per_day: self.config.store.user_bytes_per_day(),
            max_skew: span(self.config.store.max_skew),
            attempts_max: delivery.attempts_max,
            release_on_activity: span(delivery.release_on_activity),
            msg_limit: delivery.msg_limit,
            broadcast_spread: span(self.config.broadcast.spread),
            reconcile: self.config.hello.reconcile,
            relay_members: self.config.relay.members,
            node: self.node.clone(),
            ..MachineConfig::new(shard, self.edge.placement)
        }
    }

    pub fn sources(
        &self,
        (shards, fence, listeners): (&[Arc<Board>], String, &[Address]),
        storage: &Storage,
        conditions: Arc<Conditions>,
    ) -> MetricSources {
        MetricSources {
            shards: shards.to_vec(),
            store: storage.board(),
            statements: storage.latencies(),
            certificates: self.tls.in_use(),
            strangers: Some(Arc::clone(&self.callers.strangers)),
            conditions,
            plane: Some(self.plane.clone()),
            fence,
            listeners: listeners.to_vec(),
        }
    }

    pub fn addresses(&self, bound: &[Address], control_plane: &ControlPlane) -> Addresses {
        Addresses {
            websocket: of(bound, Port::WebSocket, false),
            websocket_tls: of(bound, Port::WebSocket, true),
            endpoint: of(bound, Port::Endpoint, false),
            endpoint_tls: of(bound, Port::Endpoint, true),
            public: of(bound, Port::Public, true),
            public_http: Vec::new(),
            node: of(bound, Port::Node, false),
            node_tls: of(bound, Port::Node, true),
            admin: control_plane.admin().to_vec(),
            admin_tls: control_plane.admin_tls().to_vec(),
            metrics: control_plane.metrics().to_vec(),
            endpoint_url: self.edge.endpoint_url.to_string(),
            agent_url: self.edge.agent_url.to_string(),
        }
    }
}

/// The edge of every shard. `name` is the first name of the first certificate.
///
/// # Errors
/// If no setting says where endpoints are.
pub(super) fn edge(
    config: &Config,
    keys: &Keys,
    (addresses, name): (&[Address], Option<String>),
    (shard_count, boot): (u16, u64),
    (clock, events): (Arc<ProcessClock>, Option<Arc<Events>>),
) -> Result<EdgeConfig, NodeError> {
    let endpoint_url = endpoint_url(config, addresses, name.as_deref());
    let nowhere = "cannot make endpoint URLs: endpoint.url is not set and endpoint.listen is empty; set endpoint.url";
    let endpoint_url = endpoint_url.ok_or_else(|| NodeError::Edge(nowhere.to_owned()))?;
    let agent_url = agent_url(config, addresses, name.as_deref());
    Ok(EdgeConfig {
        // Without a port for user agents there is no page that shows it.
        agent_url: agent_url.unwrap_or_else(|| endpoint_url.origin().clone()),
        endpoint_url,
        clock,
        tokens: config.endpoint.tokens,
        keys: keys.for_edge(),
        rules: access::rules(config),
        registrations: Arc::default(),
        forwarding: Forwarding { field: config.proxy.header, trusted: config.proxy.trusted.clone().into() },
        placement: Placement::new(keys.placement.0, shard_count),
        shard: ShardId(0),
        body_bytes_max: BODY_BYTES_DEFAULT,
        simplepush: config.simplepush.enabled,
        relays: config.relay.members > 0,
        boot,
        hsts: config.hsts(),
        gate: Arc::new(AdmissionGate::new(config.websocket.welcome)),
        receipts: !config.store.kind.is_shared(),
        vapid_cache_max: VAPID_CACHE_DEFAULT,
        origin_rate: config.endpoint.origin_rate,
        unfinished_bytes_max: UNFINISHED_BYTES_MAX,
        reconcile: config.hello.reconcile,
        version: version(),
        events,
    })
}

/// Prefix of endpoint URLs: `endpoint.url`, or one by which clients of this host reach the endpoint, over TLS if it is
/// served over TLS. `name` is the first name of the first certificate. `None`: nothing says where endpoints are.
fn endpoint_url(config: &Config, bound: &[Address], name: Option<&str>) -> Option<BaseUrl> {
    if let Some(url) = config.endpoint.url.clone().or_else(|| config.public.url()) {
        return Some(url);
    }
    // A node without the role endpoint still makes endpoint URLs, for the nodes that have it.
    let reached = |tls, listen: &[SocketAddr]| {
        let bound = of(bound, Port::Endpoint, tls);
        if bound.is_empty() { listen.to_vec() } else { bound }
    };
    let over_tls = [of(bound, Port::Public, true), reached(true, &config.endpoint.tls_listen)].concat();
    let plain = reached(false, &config.endpoint.listen);
    banner::origin(&over_tls, &plain, name).map(BaseUrl::from)
}

/// URL of this server for user agents: the first of `public.domain`, or that of endpoints if app servers share the
/// address (a proxy leads to it), or https if a listener of theirs speaks TLS. `None`: there is no port for them.
fn agent_url(config: &Config, bound: &[Address], name: Option<&str>) -> Option<Origin> {
    let over_tls = [of(bound, Port::Public, true), of(bound, Port::WebSocket, true)].concat();
    let of_endpoints = || {
        let shared = !config.shared_listen().is_empty();
        config.endpoint.url.clone().filter(|url| shared && url.path().is_empty())
    };
    let named = config.public.url().or_else(of_endpoints).map(|url| url.origin().clone());
    named.or_else(|| banner::origin(&over_tls, &of(bound, Port::WebSocket, false), name))
}

/// The addresses of one port, with TLS or without. Addresses without TLS that user agents and app servers share are of
/// both ports.
pub(super) fn of(bound: &[Address], port: Port, tls: bool) -> Vec<SocketAddr> {
    let is_shared = |of: &Address| of.port == Port::Public && !tls && matches!(port, Port::WebSocket | Port::Endpoint);
    bound.iter().filter(|of| of.tls == tls && (of.port == port || is_shared(of))).map(|of| of.address).collect()
}

fn span(duration: Duration) -> TimeSpan {
    TimeSpan(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Content of `/__version__`.
fn version() -> VersionInfo {
    VersionInfo {
        version: version::VERSION.to_owned(),
        commit: version::build().commit.to_owned(),
        tree: version::build().tree.to_owned(),
        source: "murre".to_owned(),
        build: version::build().name.to_owned(),
    }
}
