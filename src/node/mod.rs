//! Assembly: keys, store, ledgers, shards, island; orderly start and stop.
//!
//! Start: probe the kernel -> lock the data directory -> open the store -> keys -> save what earlier ledgers hold
//! -> ask the broadcast source -> listen -> enter the cluster and notify nodes with users of these ledgers -> new logs
//! -> shards -> island -> remove the old logs. Stop is the reverse, after a drain
//! (ARCHITECTURE.md 4).
//! Lives on: the thread that calls [`start`]; it owns every other one.

mod access;
mod backup;

mod advice;

mod banner;

mod certificates;

mod cluster;

mod data_dir;

mod events;

mod fault;

mod host;

mod ledgers;

mod listeners;

mod manager;

mod running;

mod storage;

mod strangers;

mod transfer;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::island::Signal;
pub use backup::{Copy, backup_unused, is_backup_name, salvage};
pub use banner::Addresses;
pub(crate) use certificates::ordered;
pub use data_dir::{DataDir, Keys, Missing, PlacementKey, STRANGERS, warn_of_readers};
pub use fault::Fault;
pub use host::KERNEL_STEERS;
pub use ledgers::replay_ledgers;
pub use running::{Running, Stopped};
pub use shards::wall::HostClock;
pub use transfer::{with_source, with_store, with_stores};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::ids::ShardId;
use machine::place::Placement;
use machine::stats::Board;
use machine::time::Span;
use machine::{MachineConfig, NodeId};
use protocol::webpush::endpoint::split_url;
use shards::ledger;
use shards::ports::{Alone, Port};
use shards::reactor::{CallerRules, PlaneLimits};
use shards::ring::ProbeError;
use shards::thread::ShardSetup;
use shards::wall::Wall;

use crate::config::{self, Config};
use crate::edge::{
    BODY_BYTES_DEFAULT, EdgeConfig, Forwarding, Gate, PushEdge, UNFINISHED_BYTES_MAX, VAPID_CACHE_DEFAULT, VersionInfo,
};
use crate::island::{
    Calls, Exhibits, Host, Island, PeerCalls, Prepared, Redirects, Source, Timekeeper, Wakes, Witness,
};
use certificates::{Certificates, NodeTls};
use cluster::Cluster;
use events::EventLog;
use ledgers::{Earlier, Ledgered, no_ledger};
use listeners::{Address, Bound, Public};
use manager::Manager;
use running::Stage;
use storage::Storage;

/// Settings of a node that come from its process or test, not from its configuration.
#[derive(Clone)]
pub struct Surroundings {
    /// True if the node is the process: it handles SIGTERM, SIGINT and SIGHUP, which [`Running::wait_for_signal`]
    /// returns, and reports to the service manager, if there is one, that it serves and that it stops.
    pub signals: bool,
    /// The clock that the time of the node follows.
    pub host_clock: HostClock,
    /// Check that the kernel has the features that the rings need.
    pub probe: fn() -> Result<(), ProbeError>,
    /// Longest wait for an address in use; the listeners of a process outlive its kill by some milliseconds.
    pub address_patience: Duration,
    /// Longest wait for a database that is away.
    pub store_patience: Duration,
    /// `--new-keys`: a key of endpoint URLs is made where that of a store with users is gone.
    pub new_keys: bool,
}

impl Default for Surroundings {
    fn default() -> Surroundings {
        Surroundings {
            signals: false,
            host_clock: HostClock::default(),
            probe: shards::ring::probe,
            address_patience: Duration::from_secs(3),
            store_patience: Duration::ZERO,
            new_keys: false,
        }
    }
}

/// Starts a node with the default surroundings, for tests and other callers inside a larger process.
///
/// # Errors
/// As [`start_in`].
pub fn start(config: &Config) -> Result<Running, Fault> {
    start_in(config, Surroundings::default())
}

/// Starts a node. When it returns, every listener answers.
///
/// # Errors
/// The first thing that is missing, as one sentence; nothing is left running.
pub fn start_in(config: &Config, surroundings: Surroundings) -> Result<Running, Fault> {
    shards::ring::raise_limits();
    (surroundings.probe)().map_err(|error| Fault::Kernel(error.to_string()))?;
    let no_island = |error| Fault::Host { what: "the admin server", error };
    let calls = calls(config)?;
    let wakes = calls.wake.as_ref().map(|(_, wakes)| Arc::clone(wakes));
    let mut prepared = Prepared::new(surroundings.signals, calls).map_err(no_island)?;
    let (cores, pinned) = pin(&config.shards)?;
    let shard_count = pinned.len() as u16;
    let callers = strangers::rules(config, shard_count, shards::ring::tells_peers)?;
    listeners::check_free(config, surroundings.address_patience)?;
    let admin = listeners::bind_admin(config)?;
    let redirects = listeners::bind_redirects(config)?;
    let public_http = redirects.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let certificates = Certificates::read(config)?;
    let trust = cluster::trust(config)?;
    // Before the first listener: this node must not answer itself.
    cluster::check_url(config, trust.as_ref())?;

    let data = DataDir::open(&config.data_dir)?;
    let wall = Arc::new(Wall::of(surroundings.host_clock));
    let storage = open_storage(config, &data, &wall, (&mut prepared, surroundings.store_patience))?;
    let lost = !surroundings.new_keys && storage.has_users_of_its_own()?;
    let keys = data.keys(config, if lost { Missing::Refuse } else { Missing::Make })?;
    let tls = NodeTls::new(&certificates, config, &keys)?;
    if !redirects.is_empty() {
        prepared.redirect(Redirects::new(redirects, config.public.domain.clone(), tls.http_challenges()));
    }
    if let Some(acme) = tls.orders(config)? {
        prepared.order_certificates(acme);
    }
    let mut earlier = Earlier::save(&data, &storage)?;

    prepared.ask_source().map_err(no_island)?;
    let Public { shards: bound, addresses } = listeners::bind(config, &pinned)?;
    let boot = cluster::random_boot()?;
    let log = EventLog::start().map_err(no_island)?;
    let mut plan = Plan::new(config, &keys, (&addresses, certificates.first_name()), shard_count, boot);
    plan.tls = tls.clone();
    plan.callers = callers;
    plan.edge.events = log.as_ref().map(EventLog::events);
    advice::on_settings(config, &plan.edge.endpoint_url, (shard_count, cores.len()));
    plan.wall = Arc::clone(&wall);
    prepared.keep_time(Timekeeper::new(wall, witness(config, &storage)));
    PushEdge::new(&plan.edge).map_err(|error| Fault::Edge(error.to_string()))?;
    let (plain, over_tls) = (of(&addresses, Port::Node, false), of(&addresses, Port::Node, true));
    let me = NodeId { url: cluster::url(&config.node, &plain, &over_tls), boot };
    let cluster =
        storage.nodes().map(|nodes| Cluster::new(config, me, keys.for_edge(), nodes)).transpose()?.map(Arc::new);
    if let Some((cluster, trust)) = cluster.as_ref().zip(trust) {
        join(cluster, &data, &mut prepared, cluster.calls(&config.node, trust))?;
        plan.node = Some(Arc::clone(cluster.me()));
        cluster.tell(&storage, earlier.users.clone());
    }
    let logs = earlier.new_logs(config, &data, shard_count)?;
    if cluster.is_none() {
        // There is no node to notify. The logs go now, so that their messages are not saved a second time.
        earlier.discard()?;
    }
    let parts = logs.into_iter().zip(bound).enumerate();
    let setups = parts.map(|(index, (log, bound))| {
        plan.shard((ShardId(index as u16), pinned[index]), log, bound, &storage, (wakes.clone(), cluster.clone()))
    });
    let shards = shards::thread::start(setups.collect()).map_err(|error| Fault::Shards(error.to_string()))?;

    let stage = Arc::new(Stage::new(&plan, shards.handle(), Arc::clone(&storage), data.path()));
    let exhibits = plan.exhibits(shards.boards(), &storage);
    let admin = tls.admin(config, admin);
    let island = Island::start(prepared, admin, exhibits, Arc::clone(&stage) as Arc<dyn Host>).map_err(no_island)?;
    earlier.discard_told();
    let addresses = Addresses { public_http, ..plan.addresses(&addresses, &island) };
    let manager = if surroundings.signals { Manager::of_process() } else { Manager::default() };
    manager.ready();
    tracing::info!(shards = shard_count, endpoint_url = addresses.endpoint_url, "node ready");
    Ok(Running { addresses, cores, drain: config.drain, manager, island, stage, shards, storage, data, cluster, log })
}

/// Enters the cluster: from now on the island calls the other nodes, and they can know of this node.
fn join(cluster: &Cluster, data: &DataDir, prepared: &mut Prepared, calls: PeerCalls) -> Result<(), Fault> {
    prepared.call_nodes(calls);
    cluster.enter(data.last_run().as_ref())?;
    if let Some(lease) = cluster.lease() {
        prepared.keep_lease(lease);
    }
    data.set_run(cluster.me())?;
    tracing::info!(node = ?cluster.me(), "in a cluster");
    Ok(())
}

/// The CPUs that shards may be pinned to, and that of each shard.
fn pin(shards: &config::Shards) -> Result<(Vec<u32>, Vec<u32>), Fault> {
    let cores = host::cores(&shards.cores)?;
    let count = if shards.count == 0 { cores.len() as u16 } else { shards.count };
    host::check_steering(shards, count, &cores)?;
    let pinned = cores.iter().copied().cycle().take(usize::from(count)).collect();
    Ok((cores, pinned))
}

/// Opens the storage, and makes the process follow the host's clock once more: an operator can have set that clock
/// since the start, and the database has just confirmed it. Retries a database that is away for `patience`, unless a
/// signal ends the wait.
fn open_storage(
    config: &Config,
    data: &DataDir,
    wall: &Arc<Wall>,
    (prepared, patience): (&mut Prepared, Duration),
) -> Result<Arc<Storage>, Fault> {
    // A first try can take as long as a connection attempt: the wait begins after it.
    let mut began = None;
    let mut pause = STORE_PAUSE_MIN;
    loop {
        match Storage::open(config, &data.store(), wall) {
            Ok(storage) => {
                wall.take_over(wall.gap_us());
                return Ok(Arc::new(storage));
            }
            Err(Fault::StoreAway(reason)) if began.get_or_insert_with(Instant::now).elapsed() < patience => {
                tracing::warn!(reason, retry_seconds = pause.as_secs(), "database not reached; the start waits for it");
                if prepared.signal_within(pause) == Some(Signal::Stop) {
                    let left = ledger::replay(&data.ledger()).map_err(no_ledger)?;
                    return Err(Fault::Stopped { messages: left.messages.len() });
                }
                pause = (pause * 2).min(STORE_PAUSE_MAX);
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// Pauses between two tries to reach a database that is away: the first, and the longest.
const STORE_PAUSE_MIN: Duration = Duration::from_secs(1);
const STORE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Reference clocks for a step of the host clock: on a shared store those of the database.
fn witness(config: &Config, storage: &Storage) -> Option<Witness> {
    storage.nodes().map(|nodes| Witness { nodes, max_skew: config.store.max_skew })
}

/// Services that the island calls.
fn calls(config: &Config) -> Result<Calls, Fault> {
    let config::Broadcast { url, token, interval, spread: _ } = config.broadcast.clone();
    let source = url.map(|url| Source { url, token, interval });
    let no_bell = |error| Fault::Host { what: "a pair of sockets", error };
    let wake = config.simplepush.wake_url.clone();
    let wake = wake.map(|url| Ok((url, Arc::new(Wakes::new().map_err(no_bell)?)))).transpose()?;
    Ok(Calls { source, wake })
}

/// Setup that all shards share.
struct Plan<'a> {
    config: &'a Config,
    placement: Placement,
    edge: EdgeConfig,
    connections_max: u32,
    /// Identity of this node in a cluster.
    node: Option<Arc<NodeId>>,
    tls: NodeTls,
    wall: Arc<Wall>,
    callers: CallerRules,
}

impl<'a> Plan<'a> {
    fn new(
        config: &'a Config,
        keys: &Keys,
        (addresses, name): (&[Address], Option<String>),
        shard_count: u16,
        boot: u64,
    ) -> Plan<'a> {
        let placement = Placement::new(keys.placement.0, shard_count);
        let edge = EdgeConfig {
            endpoint_url: endpoint_url(config, addresses, name.as_deref()),
            agent_url: agent_url(config, addresses, name.as_deref()),
            tokens: config.endpoint.tokens,
            keys: keys.for_edge(),
            rules: access::rules(config),
            forwarding: Forwarding { field: config.proxy.header, trusted: config.proxy.trusted.clone().into() },
            placement,
            shard: ShardId(0),
            body_bytes_max: BODY_BYTES_DEFAULT,
            simplepush: config.simplepush.enabled,
            relays: config.relay.members > 0,
            boot,
            hsts: config.hsts(),
            gate: Arc::new(Gate::new(config.websocket.welcome)),
            receipts: !config.store.kind.is_shared(),
            vapid_cache_max: VAPID_CACHE_DEFAULT,
            origin_rate: config.endpoint.origin_rate,
            unfinished_bytes_max: UNFINISHED_BYTES_MAX,
            reconcile: config.hello.reconcile,
            version: version(),
            events: None,
        };
        Plan {
            config,
            placement,
            edge,
            connections_max: share(config.max_connections, shard_count),
            wall: Arc::new(Wall::start()),
            callers: CallerRules::default(),
            node: None,
            tls: NodeTls::default(),
        }
    }

    fn shard(
        &self,
        (shard, core): (ShardId, u32),
        ledger: Ledgered,
        listeners: Bound,
        storage: &Arc<Storage>,
        (wakes, cluster): (Option<Arc<Wakes>>, Option<Arc<Cluster>>),
    ) -> ShardSetup<PushEdge> {
        let edge = EdgeConfig { shard, ..self.edge.clone() };
        let storage = Arc::clone(storage);
        let (machine, log) = (self.machine(shard, &ledger), ledger.log);
        ShardSetup {
            machine,
            core: Some(core as usize),
            clock: Arc::clone(&self.wall),
            limits: PlaneLimits {
                request_timeout: span(self.config.http.request_timeout),
                blocked_timeout: span(self.config.websocket.auto_ping_timeout),
                keep_alive_timeout: span(self.config.http.keep_alive),
                handshake_timeout: span(self.config.tls.handshake_timeout),
                backlog: self.config.shards.backlog,
                ..PlaneLimits::new(self.connections_max)
            },
            callers: self.callers.clone(),
            listeners,
            tls: self.tls.of_shard(),
            // Invariant: `start_in` has made one of the same configuration.
            edge: Box::new(move || PushEdge::new(&edge).expect("an edge of this configuration was made before")),
            store: Box::new(move |waker| storage.port(Arc::new(move || waker.wake()))),
            peers: Box::new(move |waker| match cluster {
                Some(cluster) => cluster.lane(Arc::new(move || waker.wake())),
                None => Box::new(Alone),
            }),
            ledger: Box::new(move || Box::new(log)),
            wake: Box::new(move |data| {
                // Without a wake-up service, stored messages wait for the next hello.
                if let Some(wakes) = &wakes {
                    wakes.push(data.as_str().into());
                }
            }),
        }
    }

    fn machine(&self, shard: ShardId, ledger: &Ledgered) -> MachineConfig {
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
            ..MachineConfig::new(shard, self.placement)
        }
    }

    fn exhibits(&self, shards: &[Arc<Board>], storage: &Storage) -> Exhibits {
        Exhibits {
            shards: shards.to_vec(),
            store: storage.board(),
            statements: storage.latencies(),
            certificates: self.tls.in_use(),
            strangers: Some(Arc::clone(&self.callers.strangers)),
        }
    }

    fn addresses(&self, bound: &[Address], island: &Island) -> Addresses {
        Addresses {
            websocket: of(bound, Port::WebSocket, false),
            websocket_tls: of(bound, Port::WebSocket, true),
            endpoint: of(bound, Port::Endpoint, false),
            endpoint_tls: of(bound, Port::Endpoint, true),
            public: of(bound, Port::Public, true),
            public_http: Vec::new(),
            node: of(bound, Port::Node, false),
            node_tls: of(bound, Port::Node, true),
            admin: island.admin().to_vec(),
            admin_tls: island.admin_tls().to_vec(),
            endpoint_url: self.edge.endpoint_url.clone(),
            agent_url: self.edge.agent_url.clone(),
        }
    }
}

/// Prefix of endpoint URLs: `endpoint.url`, or one by which clients of this host reach the endpoint, over TLS if it is
/// served over TLS. `name` is the first name of the first certificate.
fn endpoint_url(config: &Config, bound: &[Address], name: Option<&str>) -> String {
    if let Some(url) = config.endpoint.url.clone().or_else(|| config.public.url()) {
        return url;
    }
    // A node without the role endpoint still makes endpoint URLs, for the nodes that have it.
    let reached = |tls, listen: &[SocketAddr]| {
        let bound = of(bound, Port::Endpoint, tls);
        if bound.is_empty() { listen.to_vec() } else { bound }
    };
    let over_tls = [of(bound, Port::Public, true), reached(true, &config.endpoint.tls_listen)].concat();
    match over_tls.first() {
        Some(address) => banner::https_url(*address, name),
        None => banner::default_url(&reached(false, &config.endpoint.listen)),
    }
}

/// URL of this server for user agents: the first of `public.domain`, or that of endpoints if app servers share the
/// address (a proxy leads to it), or https if a listener of theirs speaks TLS.
fn agent_url(config: &Config, bound: &[Address], name: Option<&str>) -> String {
    let over_tls = [of(bound, Port::Public, true), of(bound, Port::WebSocket, true)].concat();
    let reached = || match over_tls.first() {
        Some(address) => banner::https_url(*address, name),
        None => banner::default_url(&of(bound, Port::WebSocket, false)),
    };
    let of_endpoints = config.endpoint.url.clone().filter(|url| {
        let has_path = split_url(url).is_none_or(|(base, origin)| !base.eq_ignore_ascii_case(&origin));
        !config.shared_listen().is_empty() && !has_path
    });
    config.public.url().or(of_endpoints).unwrap_or_else(reached)
}

/// Connections of one shard. Users fall on shards by chance, so each may hold a little more than its share.
pub(crate) fn share(max_connections: u32, shard_count: u16) -> u32 {
    let share = max_connections.div_ceil(u32::from(shard_count));
    if shard_count == 1 { share } else { share + share / 50 }
}

/// The addresses of one port, with TLS or without. Addresses without TLS that user agents and app servers share are of
/// both ports.
fn of(bound: &[Address], port: Port, tls: bool) -> Vec<SocketAddr> {
    let is_shared = |of: &Address| of.port == Port::Public && !tls && matches!(port, Port::WebSocket | Port::Endpoint);
    bound.iter().filter(|of| of.tls == tls && (of.port == port || is_shared(of))).map(|of| of.address).collect()
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Content of `/__version__`; commit and build are known when the build sets `GIT_COMMIT` and `GIT_BUILD`.
fn version() -> VersionInfo {
    VersionInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("GIT_COMMIT").unwrap_or("unknown").to_owned(),
        source: env!("CARGO_PKG_NAME").to_owned(),
        build: option_env!("GIT_BUILD").unwrap_or("unknown").to_owned(),
    }
}
