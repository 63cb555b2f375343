//! The one async runtime (ARCHITECTURE.md 6): admin HTTP, metrics, signals, calls to other servers, and all other work
//! off the hot path.
//!
//! One thread of its own. It sees shards only through their boards of counters and what they push to [`Wakes`], and
//! reaches them only through [`Host`]; no shard ever waits for it.

mod host;

mod admin;

mod admin_server;

mod metrics;

mod own;

mod process;

mod broadcasts;

mod redirects;

mod megaphone;

mod wakes;

mod peers;

mod acme;
mod challenges;
mod client;
mod ebb;
mod expiry;

mod lease;
mod lookup;
mod timekeeper;
mod validity;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use acme::Acme;
pub use acme::{Answers, OrderBook};
pub use challenges::Challenges;
pub(crate) use client::client_config;
pub use expiry::{CertificatesInUse, InUse};
pub use host::{Backup, Health, Host, Signal};
pub(crate) use lease::Lease;
pub use megaphone::Source;
pub use peers::{Answering, PeerCalls, Peers, Trust, settle, who_answers};
pub use redirects::Redirects;
pub(crate) use timekeeper::{Timekeeper, Witness};
pub use validity::Validity;
pub use wakes::Wakes;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use machine::stats::Board;
use tokio::sync::watch;

use admin_server::{AdminServer, Handshake, Hosts};
use broadcasts::Broadcasts;
use client::Client;
use megaphone::Megaphone;
use protocol::wire::url::HttpUrl;
use shards::strangers::Strangers;
use store::latencies::Latencies;
use tls::ServerTls;

/// Sources of the metrics and the admin page.
#[derive(Default)]
pub struct Exhibits {
    /// In shard order.
    pub shards: Vec<Arc<Board>>,
    pub store: Option<Arc<Board>>,
    /// Times of the statements of a shared store.
    pub statements: Option<Arc<Latencies>>,
    /// Certificates of the TLS listeners.
    pub certificates: Arc<CertificatesInUse>,
    /// Limits on callers by their address; `None`: this process has none.
    pub strangers: Option<Arc<Strangers>>,
}

/// Servers that the island calls by itself. By default none.
#[derive(Default)]
pub struct Calls {
    pub source: Option<Source>,
    /// URL of wake-up calls for SimplePush user agents, and the queue that the shards push them to.
    pub wake: Option<(HttpUrl, Arc<Wakes>)>,
}

/// Listeners for operators, and the names by which they may be called.
#[derive(Default)]
pub struct Admin {
    /// Bound listeners; none: there is no admin server.
    pub listeners: Vec<TcpListener>,
    /// Bound listeners with TLS.
    pub tls: Option<AdminTls>,
    /// `admin.hosts`.
    pub hosts: Vec<String>,
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

/// A running island. Ends when it is dropped.
pub struct Island {
    admin: Vec<SocketAddr>,
    admin_tls: Vec<SocketAddr>,
    signals: mpsc::Receiver<Signal>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// A runtime that watches signals and does nothing else by itself yet. Made before a node opens its first listener:
/// from then on SIGTERM is an order to drain, however far the start has come.
pub struct Prepared {
    runtime: tokio::runtime::Runtime,
    signals: mpsc::Receiver<Signal>,
    lease: Option<Lease>,
    came: mpsc::Sender<Signal>,
    broadcasts: Arc<Broadcasts>,
    megaphone: Option<Megaphone>,
    caller: Option<wakes::Caller>,
    peers: Option<peers::Caller>,
    timekeeper: Option<Timekeeper>,
    acme: Option<Acme>,
    redirects: Option<Redirects>,
}

impl Prepared {
    /// With `signals`, SIGTERM, SIGINT and SIGHUP are taken over and handed out by [`Island::signals`].
    ///
    /// # Errors
    /// If the operating system refuses the runtime or a signal handler.
    pub fn new(signals: bool, calls: Calls) -> std::io::Result<Prepared> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (signal_sent, signal_came) = mpsc::channel();
        if signals {
            let _inside = runtime.enter();
            watch_signals(&signal_sent)?;
        }
        let (client, broadcasts) = (Arc::new(Client::new()), Arc::<Broadcasts>::default());
        let megaphone = |source| Megaphone::new(source, Arc::clone(&client), Arc::clone(&broadcasts));
        let megaphone = calls.source.map(megaphone);
        let caller = calls.wake.map(|(url, wakes)| wakes::Caller::new(url, wakes, Arc::clone(&client)));
        let (signals, came) = (signal_came, signal_sent);
        let (peers, timekeeper, lease, redirects, acme) = (None, None, None, None, None);
        Ok(Prepared {
            runtime,
            signals,
            lease,
            came,
            broadcasts,
            megaphone,
            caller,
            peers,
            timekeeper,
            redirects,
            acme,
        })
    }

    pub fn call_nodes(&mut self, calls: PeerCalls) {
        self.peers = Some(peers::Caller::new(calls));
    }

    /// Makes the island renew the lease of this node.
    pub(crate) fn keep_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Makes the island serve `public.http_listen`.
    pub fn redirect(&mut self, redirects: Redirects) {
        self.redirects = Some(redirects);
    }

    /// Makes the island watch the host's clock.
    pub(crate) fn keep_time(&mut self, timekeeper: Timekeeper) {
        self.timekeeper = Some(timekeeper);
    }

    /// Makes the island order certificates.
    pub(crate) fn order_certificates(&mut self, acme: Acme) {
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
        let Some(megaphone) = &mut self.megaphone else { return Ok(()) };
        let runtime = &self.runtime;
        // On a thread of its own, because the caller may be inside a runtime.
        std::thread::scope(|scope| {
            let body = || runtime.block_on(megaphone.poll());
            std::thread::Builder::new().name("island".to_owned()).spawn_scoped(scope, body).map(drop)
        })
    }
}

impl Island {
    /// Starts the thread. The listeners of `admin` are bound already, so that a port in use is known before anything
    /// runs.
    ///
    /// # Errors
    /// If the operating system refuses the thread or a listener.
    pub fn start(prepared: Prepared, admin: Admin, exhibits: Exhibits, host: Arc<dyn Host>) -> std::io::Result<Island> {
        let Prepared { runtime, signals, lease, came, broadcasts, megaphone, caller, .. } = prepared;
        let Prepared { peers, timekeeper, redirects, acme, .. } = prepared;
        let Admin { listeners, tls, hosts } = admin;
        let addresses = |listeners: &[TcpListener]| listeners.iter().map(TcpListener::local_addr).collect();
        let admin: std::io::Result<Vec<_>> = addresses(&listeners);
        let admin_tls: std::io::Result<Vec<_>> = tls.as_ref().map_or(Ok(Vec::new()), |tls| addresses(&tls.listeners));
        let (admin, admin_tls) = (admin?, admin_tls?);
        let served = {
            let _inside = runtime.enter();
            attend_all(listeners, tls)?
        };
        broadcasts.attach(Arc::clone(&host));
        let board = AdminServer::board();
        let boards = [
            megaphone.as_ref().map(Megaphone::board),
            caller.as_ref().map(wakes::Caller::board),
            peers.as_ref().map(peers::Caller::board),
            timekeeper.as_ref().map(Timekeeper::board),
            lease.as_ref().map(Lease::board),
            redirects.as_ref().map(Redirects::board),
            Some(Arc::clone(&board)),
        ];
        if let Some(redirects) = redirects {
            let _inside = runtime.enter();
            redirects.spawn()?;
        }
        let source = megaphone.as_ref().map(Megaphone::state);
        let nodes = peers.as_ref().map(peers::Caller::showcase);
        let boards = boards.into_iter().flatten().collect();
        let own = own::Own { broadcasts, source, boards, nodes, orders: acme.as_ref().map(Acme::book) };
        let (stop, stopped) = watch::channel(false);
        let (crowd, certificates) = (exhibits.shards.clone(), Arc::clone(&exhibits.certificates));
        let (looking, leasing, renewing) = (Arc::clone(&host), Arc::clone(&host), Arc::clone(&host));
        let view = Arc::new(admin::View::new(exhibits, host, own, Instant::now()));
        let limits = admin_server::LIMITS.within(shards::ring::nofile_limit());
        let server = Arc::new(AdminServer::new(admin::router(view), Hosts::new(hosts), limits, board));
        let body = move || {
            let _inside = runtime.enter();
            tokio::spawn(ebb::watch(crowd));
            tokio::spawn(expiry::watch(certificates));
            if let Some(megaphone) = megaphone {
                tokio::spawn(megaphone.run());
            }
            if let Some(caller) = caller {
                tokio::spawn(report("the wake-up calls", caller.run()));
            }
            if let Some(peers) = peers {
                tokio::spawn(report("the calls of other nodes", peers.run()));
            }
            if let Some(timekeeper) = timekeeper {
                tokio::spawn(timekeeper.run());
            }
            if let Some(acme) = acme {
                tokio::spawn(acme.run(renewing));
            }
            match lease {
                Some(lease) => drop(tokio::spawn(lease.run(came, leasing))),
                // A receiver of signals is told at once that there will be none.
                None => drop(came),
            }
            tokio::spawn(look_around(looking));
            runtime.block_on(run(served, server, stopped));
        };
        let thread = std::thread::Builder::new().name("island".to_owned()).spawn(body)?;
        Ok(Island { admin, admin_tls, signals, stop, thread: Some(thread) })
    }

    /// Returns the addresses of the admin server.
    pub fn admin(&self) -> &[SocketAddr] {
        &self.admin
    }

    /// Returns the addresses of the admin server over TLS.
    pub fn admin_tls(&self) -> &[SocketAddr] {
        &self.admin_tls
    }

    /// One for every signal.
    pub fn signals(&self) -> &mpsc::Receiver<Signal> {
        &self.signals
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // A panic on the island has been printed by its thread; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// The listeners of the admin server, those over TLS with their handshake.
fn attend_all(
    plain: Vec<TcpListener>,
    tls: Option<AdminTls>,
) -> std::io::Result<Vec<(tokio::net::TcpListener, Option<Handshake>)>> {
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

/// Serves until told to stop. Connections that are open then are dropped with the runtime.
async fn run(
    listeners: Vec<(tokio::net::TcpListener, Option<Handshake>)>,
    server: Arc<AdminServer>,
    mut stopped: watch::Receiver<bool>,
) {
    for (listener, handshake) in listeners {
        tokio::spawn(Arc::clone(&server).run(listener, handshake));
    }
    // An error means that the island was dropped; either way it is over.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Calls [`Host::look_around`] about once a second, for ever.
async fn look_around(host: Arc<dyn Host>) {
    let mut tick = tokio::time::interval(LOOK_INTERVAL);
    loop {
        tick.tick().await;
        host.look_around();
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
