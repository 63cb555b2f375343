//! Assembly: keys, store, ledgers, shards, control plane; orderly start and stop.
//!
//! Start: judge the host -> lock the data directory -> open the store -> keys -> find the frozen sessions of an
//! earlier process -> save what earlier ledgers hold
//! -> ask the broadcast source -> listen -> enter the cluster and notify nodes with users of these ledgers -> new logs
//! -> shards -> control plane -> remove the old logs. Stop is the reverse, after a drain
//! (ARCHITECTURE.md 4).
//! Lives on: the thread that calls [`start`]; it owns every other one.

#![forbid(unsafe_code)]
// Types of features that were left out have no value, and the compiler sees that what takes one is never reached.
#![cfg_attr(not(feature = "bridges"), expect(unreachable_code))]

mod access;
mod backup;

mod advice;

mod banner;
mod bridges;

mod certificates;

mod cluster;

mod conditions;

mod data_dir;

mod events;

mod error;

mod fence;

mod cpus;

mod hibernation;

mod ledgers;

mod listeners;

mod service_manager;

mod plan;

mod running;

mod storage;

pub mod status;

mod strangers;

mod transfer;

#[cfg(test)]
mod tests;

pub use advice::is_loopback;
pub use backup::{BackupCopy, backup_unused, is_backup_name, salvage};
pub use banner::Addresses;
pub use certificates::ordered;
pub use control_plane::Signal;
pub use data_dir::{DataDir, Keys, Missing, PlacementKey, STRANGERS, admin_token, warn_of_readers};
pub use error::NodeError;
pub use hibernation::{
    Note as HibernationNote, tables_in_the_way, try_here as try_hibernation, waits as hibernation_waits,
};
pub use ledgers::replay_ledgers;
pub use listeners::listen_ports;
pub use running::{RunningNode, StopOutcome};
pub use runtime::process_clock::HostClock;
pub use transfer::{with_source, with_store};

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use machine::NodeId;
use machine::ids::ShardId;
use machine::stats::Board;
use runtime::ledger;
use runtime::ports::Port;
use runtime::process_clock::ProcessClock;
use runtime::ring::PlaneKind;

use certificates::{Certificates, NodeTls};
use cluster::Cluster;
use conditions::Signs;
use config::Config;
use control_plane::{
    BroadcastSource, ClockMonitor, ControlPlane, ControlPlaneBuilder, Lease, OutgoingCalls, PeerCalls, Redirects,
    TimeSource, WakeUpQueue,
};
use edge::{EdgeConfig, PushEdge};
use events::EventLog;
use host::{Facts, Needs, Plane, fitting_in_files, share};
use ledgers::{RecoveredLedgers, no_ledger};
use listeners::PublicPort;
use plan::{Plan, of};
use running::NodeHandle;
use service_manager::ServiceManager;
use storage::Storage;

/// Settings of a node that come from its process or test, not from its configuration.
#[derive(Clone)]
pub struct Environment {
    /// True if the node is the process: it handles SIGTERM, SIGINT and SIGHUP, which [`RunningNode::wait_for_signal`]
    /// returns, reports to the service manager, if there is one, that it serves and that it stops, and forbids itself
    /// further rings.
    pub signals: bool,
    /// The clock that the time of the node follows.
    pub host_clock: HostClock,
    /// Looks at the host, with this data directory and this choice of the plane.
    pub look_at_host: fn(&Path, config::PlaneChoice) -> Facts,
    /// Longest wait for an address in use; the listeners of a process outlive its kill by some milliseconds.
    pub address_patience: Duration,
    /// Longest wait for a database that is away.
    pub store_patience: Duration,
    /// `--new-keys`: a key of endpoint URLs is made where that of a store with users is gone.
    pub new_keys: bool,
}

impl Default for Environment {
    fn default() -> Environment {
        Environment {
            signals: false,
            host_clock: HostClock::default(),
            look_at_host: Facts::here,
            address_patience: Duration::from_secs(3),
            store_patience: Duration::ZERO,
            new_keys: false,
        }
    }
}

/// Starts a node with the default surroundings, for tests and other callers inside a larger process.
///
/// # Errors
/// As [`start_with`].
pub fn start(config: &Config) -> Result<RunningNode, NodeError> {
    start_with(config, Environment::default())
}

/// Starts a node. When it returns, every listener answers.
///
/// # Errors
/// The first thing that is missing, as one sentence; nothing is left running.
pub fn start_with(config: &Config, surroundings: Environment) -> Result<RunningNode, NodeError> {
    runtime::ring::raise_limits();
    let (plane, tells_peers) = look_at_host(config, &surroundings)?;
    let no_control_plane = |error| NodeError::Host { what: "the admin server", error };
    let calls = calls(config)?;
    let wake_ups = calls.wake.as_ref().map(|(_, queue)| Arc::clone(queue));
    let mut builder = ControlPlaneBuilder::new(surroundings.signals, calls).map_err(no_control_plane)?;
    let (cores, pinned) = pin(&config.shards)?;
    let shard_count = pinned.len() as u16;
    let callers = strangers::rules(config, shard_count, tells_peers);
    listeners::check_free(config, surroundings.address_patience)?;
    let (admin, redirects) = (listeners::bind_admin(config)?, listeners::bind_redirects(config)?);
    let public_http = redirects.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let certificates = Certificates::read(config)?;
    let trust = cluster::trust(config)?;
    // Before the first listener: this node must not answer itself.
    cluster::check_url(config, trust.as_ref())?;

    let data = DataDir::open(&config.data_dir)?;
    let process_clock = Arc::new(ProcessClock::of(surroundings.host_clock));
    let storage = open_storage(config, &data, &process_clock, (&mut builder, surroundings.store_patience))?;
    let lost = !surroundings.new_keys && storage.has_users_of_its_own()?;
    let keys = data.keys(config, if lost { Missing::Refuse } else { Missing::Make })?;
    let (registrations, upstreams) = bridges::start(config, &keys.for_edge(), &mut builder)?;
    let tls = NodeTls::new(&certificates, config, &keys)?;
    order_certificates(&mut builder, config, redirects, &tls)?;
    let found = hibernation::look(config, &data, keys.placement, &mut builder)?;
    let mut earlier = RecoveredLedgers::save(&data, &storage)?;

    builder.ask_source().map_err(no_control_plane)?;
    let PublicPort { shards: bound, addresses } = listeners::bind(config, &pinned)?;
    let boot = cluster::random_boot()?;
    let log = EventLog::start().map_err(no_control_plane)?;
    let events = log.as_ref().map(EventLog::events);
    let names = (&addresses[..], certificates.first_name());
    let clock = (Arc::clone(&process_clock), events);
    let edge = EdgeConfig { registrations, ..plan::edge(config, &keys, names, (shard_count, boot), clock)? };
    PushEdge::new(&edge).map_err(|error| NodeError::Edge(error.to_string()))?;
    advice::on_settings(config, &edge.endpoint_url, (shard_count, cores.len()));
    builder.keep_time(ClockMonitor::new(Arc::clone(&process_clock), witness(config, &storage)));
    let (plain, over_tls) = (of(&addresses, Port::Node, false), of(&addresses, Port::Node, true));
    let me = NodeId { url: cluster::url(&config.node, &plain, &over_tls), boot };
    let cluster =
        storage.nodes().map(|nodes| Cluster::new(config, me, keys.for_edge(), nodes)).transpose()?.map(Arc::new);
    let mut signs = Signs::new(&storage, &tls, &process_clock);
    if let Some((cluster, trust)) = cluster.as_ref().zip(trust) {
        signs.lease = join(cluster, &data, &mut builder, cluster.calls(&config.node, trust))?;
        cluster.notify_holders(&storage, earlier.users.clone());
    }
    let logs = earlier.new_logs(config, &data, shard_count)?;
    if cluster.is_none() {
        // There is no node to notify. The logs go now, so that their messages are not saved a second time.
        earlier.discard()?;
    }
    let node = cluster.as_ref().map(|cluster| Arc::clone(cluster.me()));
    let connections_max = share(most_connections(config, plane.kind), shard_count);
    let tls_of_plan = tls.clone();
    let plan = Plan { config, edge, connections_max, node, tls: tls_of_plan, process_clock, callers, upstreams, plane };
    let parts = logs.into_iter().zip(bound).enumerate();
    let setups = parts.map(|(index, (log, bound))| {
        plan.shard((ShardId(index as u16), pinned[index]), log, bound, &storage, (wake_ups.clone(), cluster.clone()))
    });
    let shards = hibernation::start(&plan, &addresses, found, setups.collect(), surroundings.signals)?;

    signs.hibernation_off = shards.gate.off().map(str::to_owned);
    let stage = Arc::new(NodeHandle::new(&plan, shards.handle(), Arc::clone(&storage), (data.path(), signs)));
    let sources = plan.sources((shards.boards(), shards.fence.clone(), &addresses), &storage, stage.conditions());
    let control_plane = ControlPlane::start(builder, tls.admin(config, admin, keys.admin), sources, stage.clone())
        .map_err(no_control_plane)?;
    earlier.discard_told();
    let addresses = Addresses { public_http, ..plan.addresses(&addresses, &control_plane) };
    let manager = if surroundings.signals { ServiceManager::of_process() } else { ServiceManager::default() };
    manager.ready();
    tracing::info!(shards = shard_count, endpoint_url = addresses.endpoint_url, "node ready");
    let (config, log) = (Mutex::new(config.clone()), Mutex::new(log));
    Ok(RunningNode { addresses, cores, config, manager, control_plane, stage, shards, storage, data, cluster, log })
}

/// Judges the host, and chooses the plane. The flag is true if the plane knows the addresses of callers.
///
/// # Errors
/// [`NodeError::Unfit`].
fn look_at_host(config: &Config, surroundings: &Environment) -> Result<(Plane, bool), NodeError> {
    let facts = (surroundings.look_at_host)(&config.data_dir, config.shards.plane);
    let needs = Needs::of(config).with_frozen(hibernation::waits(&config.data_dir));
    advice::on_host(&facts, needs)?;
    let plane = host::plane(&facts, needs);
    tracing::info!(plane = plane.kind.word(), reason = plane.why, "plane chosen");
    let tells_peers = plane.kind == PlaneKind::Poll || facts.tells_peers != Some(false);
    Ok((plane, tells_peers))
}

/// Returns `max_connections`. On the poll plane the limit on descriptors can lower it; [`host::judge`] warns of that.
fn most_connections(config: &Config, plane: PlaneKind) -> u32 {
    match plane {
        PlaneKind::Rings => config.max_connections,
        PlaneKind::Poll => {
            let fitting = fitting_in_files(runtime::ring::nofile_limit());
            u32::try_from(fitting).map_or(config.max_connections, |fitting| config.max_connections.min(fitting).max(1))
        }
    }
}

/// Serves redirects and challenges on the listeners without TLS, and orders certificates if the configuration says so.
fn order_certificates(
    builder: &mut ControlPlaneBuilder,
    config: &Config,
    redirects: Vec<std::net::TcpListener>,
    tls: &NodeTls,
) -> Result<(), NodeError> {
    if !redirects.is_empty() {
        builder.redirect(Redirects::new(redirects, config.public.domain.clone(), tls.http_challenges()));
    }
    if let Some(acme) = tls.orders(config)? {
        builder.order_certificates(acme);
    }
    Ok(())
}

/// Enters the cluster: from now on the control plane calls the other nodes, and they can know of this node. Returns the
/// board of the lease of this node, if it has one.
fn join(
    cluster: &Cluster,
    data: &DataDir,
    builder: &mut ControlPlaneBuilder,
    calls: PeerCalls,
) -> Result<Option<Arc<Board>>, NodeError> {
    builder.call_nodes(calls);
    cluster.register_boot(data.last_boot().as_ref())?;
    let lease = cluster.lease();
    let board = lease.as_ref().map(Lease::board);
    if let Some(lease) = lease {
        builder.keep_lease(lease);
    }
    data.set_boot(cluster.me())?;
    tracing::info!(node = ?cluster.me(), "cluster joined");
    Ok(board)
}

/// The CPUs that shards may be pinned to, and that of each shard.
fn pin(shards: &config::Shards) -> Result<(Vec<u32>, Vec<u32>), NodeError> {
    let cores = cpus::cores(&shards.cores)?;
    let count = if shards.count == 0 { cores.len() as u16 } else { shards.count };
    cpus::check_steering(shards, count, &cores)?;
    let pinned = cores.iter().copied().cycle().take(usize::from(count)).collect();
    Ok((cores, pinned))
}

/// Opens the storage, and makes the process follow the host's clock once more: an operator can have set that clock
/// since the start, and the database has just confirmed it. Retries a database that is away for `patience`, unless a
/// signal ends the wait.
fn open_storage(
    config: &Config,
    data: &DataDir,
    process_clock: &Arc<ProcessClock>,
    (builder, patience): (&mut ControlPlaneBuilder, Duration),
) -> Result<Arc<Storage>, NodeError> {
    // A first try can take as long as a connection attempt: the wait begins after it.
    let mut began = None;
    let mut pause = STORE_PAUSE_MIN;
    loop {
        match Storage::open(config, &data.store(), process_clock) {
            Ok(storage) => {
                process_clock.apply_step(process_clock.host_offset_us());
                return Ok(Arc::new(storage));
            }
            Err(NodeError::StoreAway(reason)) if began.get_or_insert_with(Instant::now).elapsed() < patience => {
                tracing::warn!(reason, retry_seconds = pause.as_secs(), "database not reached; the start waits for it");
                if builder.signal_within(pause) == Some(Signal::Stop) {
                    let left = ledger::replay(&data.ledger()).map_err(no_ledger)?;
                    return Err(NodeError::Stopped { messages: left.messages.len() });
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
fn witness(config: &Config, storage: &Storage) -> Option<TimeSource> {
    storage.nodes().map(|nodes| TimeSource { nodes, max_skew: config.store.max_skew })
}

/// Services that the control plane calls.
fn calls(config: &Config) -> Result<OutgoingCalls, NodeError> {
    let config::Broadcast { url, token, interval, spread: _ } = config.broadcast.clone();
    let source = url.map(|url| BroadcastSource { url, token, interval });
    let no_bell = |error| NodeError::Host { what: "a pair of sockets", error };
    let wake = config.simplepush.wake_url.clone();
    let wake = wake.map(|url| Ok((url, Arc::new(WakeUpQueue::new().map_err(no_bell)?)))).transpose()?;
    Ok(OutgoingCalls { source, wake })
}
