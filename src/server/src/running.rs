//! A running node: its addresses and counters, its reload, and its stop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use machine::BroadcastVersion;
use machine::stats::Board;
use runtime::ledger;
use runtime::reactor::ControlMessage;
use runtime::thread::{Shards, ShardsHandle};
use store::embedded::Copied;

use super::access;
use super::backup::backup;
use super::banner::Addresses;
use super::bridges;
use super::certificates::NodeTls;
use super::cluster::{self, Cluster};
use super::conditions::{self, Signs};
use super::data_dir::DataDir;
use super::error::NodeError;
use super::events::EventLog;
use super::hibernation::HibernatingShards;
use super::plan::Plan;
use super::service_manager::ServiceManager;
use super::storage::Storage;
use super::strangers::StrangerWatch;
use config::{Config, DrainMode, Key, Reloaded};
use control_plane::{Backup, BackupFault, Conditions, ControlPlane, Host, Signal, UpstreamQueue};
use edge::{AdmissionGate, PushEdge};

/// A node that serves. Dropped without [`RunningNode::stop`] it ends as if killed: the ledgers keep what is unacked.
pub struct RunningNode {
    pub(super) addresses: Addresses,
    pub(super) cores: Vec<u32>,
    /// The settings that it runs by: after a reload, with the values that were taken.
    pub(super) config: Mutex<Config>,
    pub(super) manager: ServiceManager,
    // Fields in the order in which they must be dropped.
    pub(super) control_plane: ControlPlane,
    pub(super) stage: Arc<NodeHandle>,
    pub(super) shards: HibernatingShards,
    pub(super) storage: Arc<Storage>,
    pub(super) data: DataDir,
    pub(super) cluster: Option<Arc<Cluster>>,
    /// The last to end: shards report to it.
    pub(super) log: Mutex<Option<EventLog>>,
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
    backups_keep: usize,
    draining: Arc<AtomicBool>,
    conditions: Arc<Conditions>,
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
        (data, signs): (&Path, Signs),
    ) -> NodeHandle {
        NodeHandle {
            shards,
            storage,
            data: data.to_owned(),
            backups_keep: plan.config.store.backups_keep,
            draining: Arc::clone(&signs.draining),
            conditions: Arc::new(conditions::of_node(signs)),
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

    pub(super) fn conditions(&self) -> Arc<Conditions> {
        Arc::clone(&self.conditions)
    }

    /// Makes the health pages of the shards report this health, until the next look.
    #[cfg(test)]
    pub(super) fn set_health(&self, health: edge::Health) {
        self.gate.set_health(health);
    }

    pub(super) fn boards(&self) -> &[Arc<Board>] {
        self.shards.boards()
    }
}

impl Host for NodeHandle {
    fn set_broadcasts(&self, values: Arc<[BroadcastVersion]>) {
        self.shards.control(ControlMessage::Broadcasts(values));
    }

    fn read_storage(&self) {
        self.shards.control(ControlMessage::ReadStorage);
    }

    fn refresh(&self) {
        self.gate.set_held(sum(self.boards(), "conns"));
        self.gate.set_health(self.conditions.health());
        self.tls.log_failure();
        self.strangers.look();
    }

    fn is_stopping(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn renew_certificates(&self) -> Result<(), String> {
        self.tls.read_again().map_err(|fault| fault.to_string())
    }

    fn backup(&self, name: &str) -> Result<Backup, BackupFault> {
        let fault = |fault: NodeError| BackupFault { said: fault.to_string(), kind: fault.kind() };
        let copy = backup(&self.data, &self.storage, name, self.backups_keep).map_err(fault)?;
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

    /// Takes what is live of this configuration (`Key::live`): on every shard and every TLS listener at once. Reads the
    /// files of certificates and bridges again. Sessions, requests under way, handshakes and connections go on. With
    /// `acme.agree`, orders that failed are tried again. Returns the names of the changed keys that wait for a restart,
    /// when every shard has the rest; must not run on a shard or the control plane.
    ///
    /// # Errors
    /// [`NodeError::DataDir`], [`NodeError::Key`], [`NodeError::NoKey`], [`NodeError::Edge`],
    /// [`NodeError::Certificate`], [`NodeError::Bridge`], [`NodeError::StoreRefused`]; then all stays what it was.
    /// [`NodeError::Shards`] when a shard does not answer.
    pub fn reload(&self, config: &Config) -> Result<Vec<&'static str>, NodeError> {
        let mut running = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let has_bridges = self.stage.upstreams.is_some();
        let is_on = |key: &Key| !key.name.starts_with("bridge.") || has_bridges;
        let reloaded = running.reloaded(config, is_on).map_err(|error| NodeError::Edge(error.to_string()))?;
        let Reloaded { config, mut waiting } = reloaded;
        let off = self.take(&config)?;
        *running = config.keeping(&running, &off);
        waiting.extend(off);
        Ok(waiting)
    }

    /// Takes this configuration. Returns the keys of limits that it switches on or off, which stay what they were.
    fn take(&self, config: &Config) -> Result<Vec<&'static str>, NodeError> {
        let known = self.data.known_keys(config)?;
        let (keys, rules) = (known.for_edge(), access::rules(config));
        keys.check().map_err(|error| NodeError::Edge(error.to_string()))?;
        let trust = cluster::trust(config)?;
        let bridges = bridges::read(config, &keys)?;
        let served = self.stage.upstreams.as_ref().map(|_| &bridges);
        let registrations = Arc::new(bridges::registrations(config, served));
        let database = self.storage.read_access(config)?;
        self.stage.tls.reload(config, &known)?;
        self.storage.renew_access(database);
        self.stage.tls.order_again();
        self.stage.gate.set_limit(config.websocket.welcome);
        let off = self.stage.strangers.reload(config);
        if let Some(upstreams) = &self.stage.upstreams {
            upstreams.reload(bridges);
        }
        if let Some((cluster, trust)) = self.cluster.as_ref().zip(trust) {
            cluster.renew(keys.clone(), trust);
        }
        self.on_every_shard(move |edge| {
            // Invariant: these keys were checked above.
            edge.rekey(&keys).expect("keys that were checked are taken");
            edge.set_rules(&rules);
            edge.set_registrations(&registrations);
        })?;
        Ok(off)
    }

    /// Reports the events of clients to the log if it takes them now, and no more if it does not. For a log whose level
    /// has changed.
    ///
    /// # Errors
    /// [`NodeError::Host`] and [`NodeError::Shards`].
    pub fn follow_log(&self) -> Result<(), NodeError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if EventLog::is_wanted() == log.is_some() {
            return Ok(());
        }
        let wanted = EventLog::start().map_err(|error| NodeError::Host { what: "a thread of the log", error })?;
        let events = wanted.as_ref().map(EventLog::events);
        let former = std::mem::replace(&mut *log, wanted);
        let done = self.on_every_shard(move |edge| edge.set_events(events.clone()));
        // What is in its queue is logged before its thread ends.
        drop(former);
        done
    }

    /// Changes the edge of every shard. Returns when all have done it.
    fn on_every_shard(&self, change: impl Fn(&mut PushEdge) + Send + Sync + 'static) -> Result<(), NodeError> {
        let (took, taken) = mpsc::channel();
        self.stage.shards.control(ControlMessage::Edge(Arc::new(move |edge: &mut PushEdge| {
            change(edge);
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
        let RunningNode { control_plane, stage, shards, storage, data, config, mut manager, cluster, log, .. } = self;
        let drain = config.into_inner().unwrap_or_else(PoisonError::into_inner).drain;
        let HibernatingShards { shards, gate, .. } = shards;
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
        let left = ledger::replay(&data.ledger()).map_err(NodeError::Ledger)?;
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
/// Longest wait for the answer of each shard that it has new keys; a turn takes milliseconds.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval between checks for the end of a drain.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
