//! A running node: its addresses and counters, its reload, and its stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use machine::BroadcastVersion;
use machine::stats::Board;
use shards::ledger;
use shards::reactor::ControlMessage;
use shards::thread::{Shards, ShardsHandle};
use store::embedded::Copied;

use super::access;
use super::backup::backup;
use super::banner::Addresses;
use super::bridges;
use super::certificates::NodeTls;
use super::cluster::{self, Cluster};
use super::data_dir::DataDir;
use super::error::NodeError;
use super::events::EventLog;
use super::hibernation::HibernatingShards;
use super::plan::Plan;
use super::service_manager::ServiceManager;
use super::storage::Storage;
use super::strangers::StrangerWatch;
use crate::config::{Config, Drain, DrainMode};
use crate::control_plane::{Backup, ControlPlane, Health, Host, Signal, UpstreamQueue};
use crate::edge::{AdmissionGate, PushEdge};

/// A node that serves. Dropped without [`RunningNode::stop`] it ends as if killed: the ledgers keep what is unacked.
pub struct RunningNode {
    pub(super) addresses: Addresses,
    pub(super) cores: Vec<u32>,
    pub(super) drain: Drain,
    pub(super) manager: ServiceManager,
    // Fields in the order in which they must be dropped.
    pub(super) control_plane: ControlPlane,
    pub(super) stage: Arc<NodeHandle>,
    pub(super) shards: HibernatingShards,
    pub(super) storage: Arc<Storage>,
    pub(super) data: DataDir,
    pub(super) cluster: Option<Arc<Cluster>>,
    /// The last to end: shards report to it.
    pub(super) log: Option<EventLog>,
}

/// End of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopOutcome {
    /// Every session was closed, and every accepted message is settled or in storage.
    InOrder,
    /// Storage did not take all messages in time: the rest is in the ledger logs, for the next start.
    LedgerLeft {
        /// Number of messages in the ledger logs.
        messages: usize,
    },
}

/// The shards, as the control plane and the thread that stops the node see them.
pub(super) struct NodeHandle {
    shards: ShardsHandle<PushEdge>,
    storage: Arc<Storage>,
    data: PathBuf,
    draining: AtomicBool,
    gate: Arc<AdmissionGate>,
    tls: NodeTls,
    strangers: StrangerWatch,
    upstreams: Option<Arc<UpstreamQueue>>,
}

impl NodeHandle {
    pub(super) fn new(
        plan: &Plan<'_>,
        shards: ShardsHandle<PushEdge>,
        storage: Arc<Storage>,
        data: &Path,
    ) -> NodeHandle {
        NodeHandle {
            shards,
            storage,
            data: data.to_owned(),
            draining: AtomicBool::new(false),
            gate: Arc::clone(&plan.edge.gate),
            tls: plan.tls.clone(),
            strangers: StrangerWatch::new(Arc::clone(&plan.callers.strangers), Arc::clone(&plan.process_clock)),
            upstreams: plan.upstreams.clone(),
        }
    }

    /// Makes health pages say that the node stops, and the gate refuse new WebSockets; all else goes on.
    pub(super) fn announce_stop(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.gate.stop();
    }

    pub(super) fn boards(&self) -> &[Arc<Board>] {
        self.shards.boards()
    }
}

impl Host for NodeHandle {
    fn set_broadcasts(&self, values: Arc<[BroadcastVersion]>) {
        self.shards.control(ControlMessage::Broadcasts(values));
    }

    fn refresh_connection_count(&self) {
        self.gate.set_held(sum(self.boards(), "conns"));
        self.tls.log_failure();
        self.strangers.look();
    }

    fn health(&self) -> Health {
        if self.draining.load(Ordering::Relaxed) {
            return Health::Draining;
        }
        let circuit_open = |board: Arc<Board>| sum(&[board], "store_circuit_open") > 0;
        if self.storage.board().is_some_and(circuit_open) { Health::StoreDown } else { Health::Serving }
    }

    fn renew_certificates(&self) -> Result<(), String> {
        self.tls.read_again().map_err(|fault| fault.to_string())
    }

    fn backup(&self, name: &str) -> Result<Backup, String> {
        let copy = backup(&self.data, &self.storage, name).map_err(|fault| fault.to_string())?;
        let Copied { users, messages, topics, .. } = copy.copied;
        Ok(Backup { path: copy.path, users, messages, topics })
    }
}

/// Returns the sum of one counter over some boards.
pub(super) fn sum(boards: &[Arc<Board>], name: &str) -> u64 {
    let numbers = boards.iter().flat_map(|board| board.read());
    numbers.filter(|(meaning, _)| meaning.name == name).map(|(_, value)| value).sum()
}

impl RunningNode {
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Text for the operator at start.
    pub fn banner(&self) -> String {
        let shard_count = self.stage.boards().len() as u16;
        self.addresses.banner(shard_count, &self.cores, &self.data.path().display().to_string())
    }

    /// Returns the sum of one counter over the shards, as of about a second ago.
    pub fn total(&self, name: &str) -> u64 {
        sum(self.stage.boards(), name)
    }

    /// Waits for a signal. Returns [`Signal::Stop`] at once when this node does not watch signals.
    pub fn wait_for_signal(&self) -> Signal {
        // An error means that no signal can ever arrive.
        self.control_plane.signals().recv().unwrap_or(Signal::Stop)
    }

    /// Takes `endpoint.crypto_keys`, `node.keys`, `websocket.welcome`, `endpoint.allowed_keys`, `access.*`,
    /// `bridge.auth_keys` and `bridge.registration_rate` of this configuration on every shard, and `tls.ticket_keys`,
    /// `tls.unknown_name` and `tls.min_version` on every TLS listener. Reads the files of `tls.cert`, `tls.key`,
    /// `node.tls.*`, `node.ca` and `endpoint.tls.client_ca` again, and `store.scylla.user`, `.password` and the files of
    /// `.tls_*` for new connections to the database. Takes `bridge.*` and reads its files again, if a
    /// bridge was configured at the start.
    /// Takes `strangers.exempt`, and the numbers of the limits of `strangers.*` that are on and stay on. Sessions,
    /// requests under way, handshakes and connections go on. With `acme.agree`, orders that failed are tried again.
    /// Ignores the other settings. Returns when every shard has the keys; must not run on a shard or the control plane.
    ///
    /// # Errors
    /// [`NodeError::DataDir`], [`NodeError::Key`], [`NodeError::NoKey`], [`NodeError::Edge`], [`NodeError::Bridge`],
    /// [`NodeError::StoreRefused`]; then all stays what it was. [`NodeError::Shards`] when a shard does not answer.
    pub fn reload(&self, config: &Config) -> Result<(), NodeError> {
        let known = self.data.known_keys(config)?;
        let (keys, rules) = (known.for_edge(), access::rules(config));
        // Invariant: a placement has at most `SHARDS_MAX` shards.
        let shards = u16::try_from(self.stage.boards().len()).expect("shards are counted in 16 bits");
        keys.check().map_err(|error| NodeError::Edge(error.to_string()))?;
        let trust = cluster::trust(config)?;
        let bridges = bridges::read(config, &keys)?;
        let served = self.stage.upstreams.as_ref().map(|_| &bridges);
        let registrations = Arc::new(bridges::registrations(config, served, shards));
        if config.endpoint.clients.ca.is_some() && !self.addresses.public.is_empty() {
            return Err(NodeError::Edge(OPEN_TO_ALL.to_owned()));
        }
        let database = self.storage.read_access(config)?;
        self.stage.tls.reload(config, &known)?;
        self.storage.renew_access(database);
        self.stage.tls.order_again();
        self.stage.gate.set_limit(config.websocket.welcome);
        self.stage.strangers.reload(config);
        if let Some(upstreams) = &self.stage.upstreams {
            upstreams.reload(bridges);
        }
        if let Some((cluster, trust)) = self.cluster.as_ref().zip(trust) {
            cluster.renew(keys.clone(), trust);
        }
        let (took, taken) = mpsc::channel();
        self.stage.shards.control(ControlMessage::Edge(Arc::new(move |edge: &mut PushEdge| {
            // Invariant: these keys were checked above.
            edge.rekey(&keys).expect("keys that were checked are taken");
            edge.set_rules(&rules);
            edge.set_registrations(&registrations);
            // The receiver is gone after `RELOAD_TIME_MAX`.
            let _ = took.send(());
        })));
        for _ in self.stage.boards() {
            taken.recv_timeout(RELOAD_TIME_MAX).map_err(|_| {
                NodeError::Shards("a shard is too busy to take the new keys now; it takes them when it can".to_owned())
            })?;
        }
        Ok(())
    }

    /// Ends in order. For `drain.delay` the ports stay open: health pages and new WebSockets are answered 503, so that
    /// load balancers look elsewhere, and POSTs and sessions go on as ever. Then directs stop, ledgers are saved, and
    /// sessions close with 1001 at the drain rate, within 30 s + sessions / rate, or longer by as much as
    /// the fullest shard is above the mean. A signal ends the delay. The next one ends the drain at once, and the
    /// ledgers keep what is left.
    ///
    /// # Errors
    /// [`NodeError::Ledger`] when the logs cannot be read afterwards.
    pub fn stop(self) -> Result<StopOutcome, NodeError> {
        let RunningNode { control_plane, stage, shards, storage, data, drain, mut manager, cluster, log, .. } = self;
        let HibernatingShards { shards, gate } = shards;
        stage.announce_stop();
        let hibernates = drain.mode == DrainMode::Hibernate && gate.outlives();
        let sessions = sum(stage.boards(), "conns");
        let shard_count = stage.boards().len() as u32;
        // Frozen sessions are not closed, so no peer notices how many end at once.
        let drain_rate = if hibernates { LEFT_RATE * shard_count } else { drain.rate };
        tracing::info!(sessions, drain_rate, delay_seconds = drain.delay.as_secs_f64(), "drain begun");
        // Each shard closes its part of the rate, so the fullest one ends last.
        let fullest = stage.boards().iter().map(|board| sum(std::slice::from_ref(board), "conns")).max();
        let seconds = fullest.unwrap_or(0) * u64::from(shard_count) / u64::from(drain_rate);
        let within = DRAIN_TIME_MIN + Duration::from_secs(seconds);
        manager.stopping(&format!("closing {sessions} sessions, {drain_rate} a second"));
        if hibernates {
            freeze_all(&shards, &control_plane, &mut manager);
            let left = |name| sum(stage.boards(), name);
            let (frozen, sessions) = (left("frozen_recorded"), left("sessions"));
            tracing::info!(frozen, sessions, "sessions frozen for the next process");
        } else {
            linger(&control_plane, &mut manager, drain.delay);
        }
        shards.drain(drain_rate, within);
        let ending = std::thread::spawn(move || shards.wait());
        while !ending.is_finished() {
            // Shards always end within that time, so the loop ends.
            manager.still_stopping();
            match control_plane.signals().recv_timeout(DRAIN_LOOK) {
                Ok(Signal::Stop) => {
                    tracing::warn!("drain aborted by second signal; unsaved messages stay in the ledger");
                    stage.shards.drain(u32::MAX, Duration::ZERO);
                }
                Ok(Signal::Reload) => tracing::info!("reload ignored during the drain"),
                Ok(Signal::Over) | Err(RecvTimeoutError::Timeout) => {}
                // This node does not watch signals.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(DRAIN_LOOK),
            }
        }
        let reports = ending.join().unwrap_or_default();
        let drained = reports.len() as u32 == shard_count && reports.iter().all(|report| report.drained);
        for report in reports.iter().filter(|report| !report.drained) {
            tracing::warn!(shard = report.shard.0, connections = report.connections, "drain incomplete");
        }
        if !hibernates {
            gate.close();
        }
        // The events in its queue are logged before the end of the node is.
        drop(log);
        manager.ask_for(CLOSE_TIME);
        if let Some(cluster) = cluster {
            cluster.retire_boot();
        }
        drop(control_plane);
        drop(stage);
        // The shards held the other references.
        if let Some(storage) = Arc::into_inner(storage) {
            storage.close();
        }
        if drained {
            return Ok(StopOutcome::InOrder);
        }
        let left = ledger::replay(&data.ledger()).map_err(|error| NodeError::Ledger(error.to_string()))?;
        Ok(match left.messages.len() {
            0 => StopOutcome::InOrder,
            messages => StopOutcome::LedgerLeft { messages },
        })
    }
}

/// Waits for `delay`, or for a signal to stop.
fn linger(control_plane: &ControlPlane, manager: &mut ServiceManager, delay: Duration) {
    let until = Instant::now() + delay;
    while Instant::now() < until {
        manager.still_stopping();
        match control_plane.signals().recv_timeout(DRAIN_LOOK) {
            Ok(Signal::Stop) => return tracing::info!("drain delay cut short by a signal"),
            Ok(Signal::Reload) => tracing::info!("reload ignored during the drain"),
            Ok(Signal::Over) | Err(RecvTimeoutError::Timeout) => {}
            // This node does not watch signals.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(DRAIN_LOOK),
        }
    }
}

/// Freezes every session that can be, for the next process. A signal to stop ends it.
fn freeze_all(shards: &Shards<PushEdge>, control_plane: &ControlPlane, manager: &mut ServiceManager) {
    shards.hibernate();
    let until = Instant::now() + FREEZE_TIME_MAX;
    while !shards.is_hibernated() && Instant::now() < until {
        manager.still_stopping();
        if let Ok(Signal::Stop) = control_plane.signals().recv_timeout(DRAIN_LOOK) {
            return;
        }
    }
}

/// Time for a drain beside the closing of sessions.
const DRAIN_TIME_MIN: Duration = Duration::from_secs(30);
/// Time for freezing every session at the end of a process; most of it is for a million of them.
const FREEZE_TIME_MAX: Duration = Duration::from_secs(60);
/// Sessions that a shard ends in a second of a drain which leaves them frozen: it ends 1,024 in a turn of 20 ms.
const LEFT_RATE: u32 = 50_000;
/// Time to leave the cluster, close storage and read the ledgers without a word to the service manager.
const CLOSE_TIME: Duration = Duration::from_secs(90);
/// Refusal of a reload: senders would get in without a certificate, through the port that the start has opened.
const OPEN_TO_ALL: &str = "cannot take endpoint.tls.client_ca: public.listen stays open until the server ends, and its \
                           clients are asked for no certificate; restart murre";
/// Longest wait for the answer of each shard that it has new keys; a turn takes milliseconds.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval between checks for the end of a drain.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
