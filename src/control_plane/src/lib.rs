//! The one async runtime (ARCHITECTURE.md 6): admin HTTP, metrics, signals, calls to other servers, and all other work
//! off the hot path.
//!
//! One thread of its own. It sees shards only through their boards of counters and what they push to [`WakeUpQueue`],
//! and reaches them only through [`Host`]; no shard ever waits for it.

#![forbid(unsafe_code)]
// Types of features that were left out have no value, and the compiler sees that what takes one is never reached.
#![cfg_attr(not(feature = "bridges"), expect(unreachable_code))]

mod host;

mod admin;

mod admin_server;

mod metrics;

mod own;

mod process;

mod broadcasts;

mod redirects;

mod broadcast_poller;

mod wake_up;

mod peer_client;

#[cfg(feature = "acme")]
mod acme;
#[cfg(not(feature = "acme"))]
#[path = "acme/absent.rs"]
mod acme;
#[cfg(feature = "bridges")]
mod bridges;
#[cfg(not(feature = "bridges"))]
#[path = "bridges/absent.rs"]
mod bridges;
mod challenges;
mod conditions;
mod http_client;
mod jitter;
#[cfg_attr(not(feature = "bridges"), expect(dead_code, reason = "the replies of one shard at a time"))]
mod lane;
mod memory_trim;
mod expiry;

mod debt_watch;
mod lease;
mod resolver;
mod retry_after;
mod clock_monitor;
mod validity;

#[cfg(test)]
pub mod tests;

pub use acme::Acme;
pub use acme::{Answers, OrderBook};
pub use bridges::{BridgeName, BridgeSettings, ProfileReport, UpstreamQueue};
pub use broadcast_poller::BroadcastSource;
pub use challenges::Challenges;
pub use clock_monitor::{ClockMonitor, TimeSource};
pub use conditions::{Condition, Conditions, Trouble, Turns};
pub use expiry::{CertificatesInUse, InUse};
pub use host::{Backup, BackupFault, Host, Signal};
pub use http_client::client_config;
pub use lease::Lease;
pub use peer_client::{Answering, HAND_OVER_TIME_MAX, PeerCalls, PeerQueue, TrustRoots, settle, who_answers};
pub use redirects::Redirects;
pub use validity::{Validity, is_of_authority};
pub use wake_up::WakeUpQueue;

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use machine::stats::Board;
use tokio::sync::watch;

use ::host::Plane;
use admin_server::{AdminServer, Counted, Handshake, Hosts};
use broadcast_poller::BroadcastPoller;
use broadcasts::Broadcasts;
use config::Secret;
use http_client::HttpClient;
use protocol::wire::url::HttpUrl;
use runtime::ports::Port;
use runtime::strangers::Strangers;
use store::latencies::LatencyHistograms;
use tls::ServerTls;

/// Sources of the metrics and the admin page.
#[derive(Default)]
pub struct MetricSources {
    /// In shard order.
    pub shards: Vec<Arc<Board>>,
    pub store: Option<Arc<Board>>,
    /// Times of the statements of a shared store.
    pub statements: Option<Arc<LatencyHistograms>>,
    /// Certificates of the TLS listeners.
    pub certificates: Arc<CertificatesInUse>,
    /// Limits on callers by their address; `None`: this process has none.
    pub strangers: Option<Arc<Strangers>>,
    /// Conditions of the node, which health pages report too.
    pub conditions: Arc<Conditions>,
    /// Plane of the shards, which health pages report too.
    pub plane: Option<Plane>,
    /// State of the fence of rings: `closed`, or `open` and the reason.
    pub fence: String,
    /// Listeners of the shards, which `/health` lists for `murre probe --quick`.
    pub listeners: Vec<Address>,
}

/// Bound address that the shards serve.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub port: Port,
    pub tls: bool,
    /// Connections begin with a PROXY header.
    pub proxied: bool,
    /// With port 0 configured, the port that the kernel chose.
    pub address: SocketAddr,
}

/// Servers that the control plane calls by itself. By default none.
#[derive(Default)]
pub struct OutgoingCalls {
    pub source: Option<BroadcastSource>,
    /// URL of wake-up calls for SimplePush user agents, and the queue that the shards push them to.
    pub wake: Option<(HttpUrl, Arc<WakeUpQueue>)>,
}

/// Listeners for operators and for metrics, and the names by which they may be called.
pub struct Admin {
    /// Bound listeners for operators; none: there is no admin server.
    pub listeners: Vec<TcpListener>,
    /// Bound listeners with TLS.
    pub tls: Option<AdminTls>,
    /// Bound listeners that are only read.
    pub metrics: Vec<TcpListener>,
    /// `admin.hosts`.
    pub hosts: Vec<String>,
    /// Token of operators.
    pub token: Secret,
}

/// Listeners for operators over TLS.
pub struct AdminTls {
    /// Bound listeners.
    pub listeners: Vec<TcpListener>,
    /// Certificates that they show.
    pub tls: ServerTls,
    /// From accept to the end of the handshake.
    pub handshake_timeout: Duration,
}

/// A running control plane. Ends when it is dropped.
pub struct ControlPlane {
    admin: Vec<SocketAddr>,
    admin_tls: Vec<SocketAddr>,
    metrics: Vec<SocketAddr>,
    signals: mpsc::Receiver<Signal>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// A runtime that watches signals and does nothing else by itself yet. Made before a node opens its first listener:
/// from then on SIGTERM is an order to drain, however far the start has come.
pub struct ControlPlaneBuilder {
    runtime: tokio::runtime::Runtime,
    signals: mpsc::Receiver<Signal>,
    lease: Option<Lease>,
    came: mpsc::Sender<Signal>,
    broadcasts: Arc<Broadcasts>,
    poller: Option<BroadcastPoller>,
    caller: Option<wake_up::WakeUpSender>,
    peers: Option<peer_client::PeerDriver>,
    bridges: Option<bridges::BridgeDriver>,
    clock_monitor: Option<ClockMonitor>,
    acme: Option<Acme>,
    redirects: Option<Redirects>,
}

impl ControlPlaneBuilder {
    /// With `signals`, SIGTERM, SIGINT and SIGHUP are taken over and handed out by [`ControlPlane::signals`].
    ///
    /// # Errors
    /// If the operating system refuses the runtime or a signal handler.
    pub fn new(signals: bool, calls: OutgoingCalls) -> std::io::Result<ControlPlaneBuilder> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().on_thread_park(overwrite_stack).build()?;
        let (signal_sent, signal_came) = mpsc::channel();
        if signals {
            let _inside = runtime.enter();
            watch_signals(&signal_sent)?;
        }
        let (client, broadcasts) = (Arc::new(HttpClient::new()), Arc::<Broadcasts>::default());
        let poller = |source| BroadcastPoller::new(source, Arc::clone(&client), Arc::clone(&broadcasts));
        let poller = calls.source.map(poller);
        let caller = calls.wake.map(|(url, wake_ups)| wake_up::WakeUpSender::new(url, wake_ups, Arc::clone(&client)));
        let (signals, came) = (signal_came, signal_sent);
        let (peers, bridges, clock_monitor, lease, redirects, acme) = (None, None, None, None, None, None);
        Ok(ControlPlaneBuilder {
            runtime,
            signals,
            lease,
            came,
            broadcasts,
            poller,
            caller,
            peers,
            bridges,
            clock_monitor,
            redirects,
            acme,
        })
    }

    pub fn call_nodes(&mut self, calls: PeerCalls) {
        self.peers = Some(peer_client::PeerDriver::new(calls));
    }

    /// Makes the control plane hand notifications to mobile bridges.
    pub fn call_bridges(&mut self, queue: Arc<UpstreamQueue>, settings: BridgeSettings) {
        self.bridges = Some(bridges::BridgeDriver::new(queue, settings));
    }

    /// Makes the control plane renew the lease of this node.
    pub fn keep_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Makes the control plane serve `public.http_listen`.
    pub fn redirect(&mut self, redirects: Redirects) {
        self.redirects = Some(redirects);
    }

    /// Makes the control plane watch the host's clock.
    pub fn keep_time(&mut self, clock_monitor: ClockMonitor) {
        self.clock_monitor = Some(clock_monitor);
    }

    /// Makes the control plane order certificates.
    pub fn order_certificates(&mut self, acme: Acme) {
        self.acme = Some(acme);
    }

    /// The signal that comes within `span`, if one does. Waits; for a start that takes long.
    pub fn signal_within(&mut self, span: Duration) -> Option<Signal> {
        let (runtime, signals) = (&self.runtime, &mut self.signals);
        let look = async move {
            let until = Instant::now() + span;
            loop {
                if let Ok(signal) = signals.try_recv() {
                    return Some(signal);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                tokio::time::sleep(left.min(SIGNAL_LOOK)).await;
            }
        };
        // On a thread of its own, because the caller may be inside a runtime.
        let looked = std::thread::scope(|scope| scope.spawn(move || runtime.block_on(look)).join());
        looked.unwrap_or(None)
    }

    /// Asks the broadcast source once, if there is one, for 5 s at most: a user agent that says hello before the first
    /// answer is told that its broadcasts do not exist, and does not hear of them until it connects again. A source
    /// that fails is logged and asked again later.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    pub fn ask_source(&mut self) -> std::io::Result<()> {
        let Some(poller) = &mut self.poller else { return Ok(()) };
        let runtime = &self.runtime;
        // On a thread of its own, because the caller may be inside a runtime.
        std::thread::scope(|scope| {
            let body = || runtime.block_on(poller.poll());
            std::thread::Builder::new().name("control-plane".to_owned()).spawn_scoped(scope, body).map(drop)
        })
    }
}

impl ControlPlane {
    /// Starts the thread. The listeners of `admin` are bound already, so that a port in use is known before anything
    /// runs.
    ///
    /// # Errors
    /// If the operating system refuses the thread or a listener.
    pub fn start(
        builder: ControlPlaneBuilder,
        admin: Admin,
        sources: MetricSources,
        host: Arc<dyn Host>,
    ) -> std::io::Result<ControlPlane> {
        let ControlPlaneBuilder { runtime, signals, lease, came, broadcasts, poller, caller, .. } = builder;
        let ControlPlaneBuilder { peers, bridges, clock_monitor, redirects, acme, .. } = builder;
        let Admin { listeners, tls, metrics: read_only, hosts, token } = admin;
        let addresses = |listeners: &[TcpListener]| listeners.iter().map(TcpListener::local_addr).collect();
        let admin: std::io::Result<Vec<_>> = addresses(&listeners);
        let admin_tls: std::io::Result<Vec<_>> = tls.as_ref().map_or(Ok(Vec::new()), |tls| addresses(&tls.listeners));
        let metrics: std::io::Result<Vec<_>> = addresses(&read_only);
        let (admin, admin_tls, metrics) = (admin?, admin_tls?, metrics?);
        let (served, read) = {
            let _inside = runtime.enter();
            (attend_all(listeners, tls)?, attend_all(read_only, None)?)
        };
        broadcasts.attach(Arc::clone(&host));
        let counted = Arc::<Counted>::default();
        let boards = [
            poller.as_ref().map(BroadcastPoller::board),
            caller.as_ref().map(wake_up::WakeUpSender::board),
            peers.as_ref().map(peer_client::PeerDriver::board),
            clock_monitor.as_ref().map(ClockMonitor::board),
            lease.as_ref().map(Lease::board),
            redirects.as_ref().map(Redirects::board),
            Some(counted.board()),
        ];
        if let Some(redirects) = redirects {
            let _inside = runtime.enter();
            redirects.spawn()?;
        }
        let source = poller.as_ref().map(BroadcastPoller::state);
        let nodes = peers.as_ref().map(peer_client::PeerDriver::snapshots);
        let boards = boards.into_iter().flatten().collect();
        let profiles = bridges.as_ref().map(bridges::BridgeDriver::snapshots);
        let own = own::Own { broadcasts, source, boards, nodes, profiles, orders: acme.as_ref().map(Acme::book) };
        let (stop, stopped) = watch::channel(false);
        let (crowd, certificates) = (sources.shards.clone(), Arc::clone(&sources.certificates));
        let (looking, leasing, renewing) = (Arc::clone(&host), Arc::clone(&host), Arc::clone(&host));
        let view = Arc::new(admin::AdminState::new(sources, host, own, (&token, Arc::clone(&counted))));
        let limits = admin_server::LIMITS.within(runtime::ring::nofile_limit());
        let hosts = Hosts::new(hosts);
        // Apart, so that strangers at one of them take no place of the other.
        let server = |router| Arc::new(AdminServer::new(router, hosts.clone(), limits, Arc::clone(&counted)));
        let servers = [(served, server(admin::router(Arc::clone(&view)))), (read, server(admin::read_only(view)))];
        let body = move || {
            wipe::this_thread();
            let _inside = runtime.enter();
            tokio::spawn(memory_trim::watch(crowd));
            tokio::spawn(expiry::watch(certificates));
            poller.map(|poller| tokio::spawn(poller.run()));
            if let Some(caller) = caller {
                tokio::spawn(report("the wake-up calls", caller.run()));
            }
            if let Some(peers) = peers {
                tokio::spawn(report("the calls of other nodes", peers.run()));
            }
            bridges.map(|bridges| tokio::spawn(report("the calls of mobile bridges", bridges.run())));
            if let Some(clock_monitor) = clock_monitor {
                tokio::spawn(clock_monitor.run());
            }
            acme.map(|acme| tokio::spawn(acme.run(renewing)));
            match lease {
                Some(lease) => drop(tokio::spawn(lease.run(came, leasing))),
                // A receiver of signals is told at once that there will be none.
                None => drop(came),
            }
            tokio::spawn(refresh(looking));
            runtime.block_on(run(servers, stopped));
        };
        let thread = std::thread::Builder::new().name("control-plane".to_owned()).spawn(body)?;
        Ok(ControlPlane { admin, admin_tls, metrics, signals, stop, thread: Some(thread) })
    }

    /// Returns the addresses of the admin server.
    pub fn admin(&self) -> &[SocketAddr] {
        &self.admin
    }

    /// Returns the addresses of the admin server over TLS.
    pub fn admin_tls(&self) -> &[SocketAddr] {
        &self.admin_tls
    }

    /// Returns the addresses of the server of metrics.
    pub fn metrics(&self) -> &[SocketAddr] {
        &self.metrics
    }

    /// One for every signal.
    pub fn signals(&self) -> &mpsc::Receiver<Signal> {
        &self.signals
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // A panic on the control plane has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// The listeners of the admin server, those over TLS with their handshake.
fn attend_all(plain: Vec<TcpListener>, tls: Option<AdminTls>) -> std::io::Result<Attended> {
    let plain = plain.into_iter().map(|listener| (listener, None));
    let over_tls = tls.into_iter().flat_map(|AdminTls { listeners, tls, handshake_timeout }| {
        let with = move |listener| (listener, Some(Handshake { tls: tls.clone(), within: handshake_timeout }));
        listeners.into_iter().map(with)
    });
    plain.chain(over_tls).map(|(listener, handshake)| Ok((attend(listener)?, handshake))).collect()
}

/// A listener of the current runtime.
fn attend(listener: TcpListener) -> std::io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// Listeners, those over TLS with their handshake.
type Attended = Vec<(tokio::net::TcpListener, Option<Handshake>)>;

/// Serves until told to stop. Connections that are open then are dropped with the runtime.
async fn run(servers: [(Attended, Arc<AdminServer>); 2], mut stopped: watch::Receiver<bool>) {
    for (listeners, server) in servers {
        for (listener, handshake) in listeners {
            tokio::spawn(Arc::clone(&server).run(listener, handshake));
        }
    }
    // An error means that the control plane was dropped; either way it is over.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Calls [`Host::refresh`] about once a second, for ever, and lets [`overwrite_stack`] do its work as often.
async fn refresh(host: Arc<dyn Host>) {
    let mut tick = tokio::time::interval(LOOK_INTERVAL);
    loop {
        tick.tick().await;
        host.refresh();
        STACK_IS_DUE.set(true);
    }
}

thread_local! {
    /// True once a second, until the stack of the control plane is overwritten.
    static STACK_IS_DUE: Cell<bool> = const { Cell::new(false) };
}

/// Overwrites what connections and calls have left on the stack. The runtime calls it where the thread would sleep,
/// above the frames of every task: a task cannot reach what another one has left in frames as high as its own.
fn overwrite_stack() {
    if STACK_IS_DUE.take() {
        wipe::stack::<{ wipe::RUNTIME_STACK_BYTES }>();
    }
}

/// Interval at which a start that waits looks for a signal.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);
/// As often as the shards write their boards.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Says so if this ends with an error.
async fn report(what: &'static str, task: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = task.await {
        tracing::error!(task = what, %error, "control plane task stopped");
    }
}

fn watch_signals(came: &mpsc::Sender<Signal>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let watched = [
        (SignalKind::terminate(), Signal::Stop),
        (SignalKind::interrupt(), Signal::Stop),
        (SignalKind::hangup(), Signal::Reload),
    ];
    for (kind, meaning) in watched {
        let (mut signal, came) = (signal(kind)?, came.clone());
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                if came.send(meaning).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}
