//! The one async runtime (DESIGN.md 3): admin HTTP, metrics and signals; whatever is not hot.
//!
//! One thread of its own. It sees shards only through their boards of counters and reaches them only through
//! [`Host`]; no shard ever waits for it.

mod admin;

mod metrics;

mod process;

#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use shards::machine::BroadcastVersion;
use shards::stats::Board;
use tokio::sync::watch;

/// What the island may ask of the node it serves.
pub trait Host: Send + Sync + 'static {
    /// Tells every shard these broadcast values. Never blocks.
    fn set_broadcasts(&self, values: Arc<[BroadcastVersion]>);

    /// How the node is.
    fn health(&self) -> Health;

    /// Copies keys and store under this name. Takes its time; called on a thread of its own.
    ///
    /// # Errors
    /// One sentence.
    fn backup(&self, name: &str) -> Result<Backup, String>;
}

/// How a node is, as its health routes say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// Serving.
    Serving,
    /// Serving sessions, and storage takes nothing.
    StoreDown,
    /// Told to stop.
    Draining,
}

/// A finished backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backup {
    /// The new data directory.
    pub path: PathBuf,
    /// Users in it.
    pub users: u64,
    /// Stored messages in it.
    pub messages: u64,
    /// Topic messages in it.
    pub topics: u64,
}

/// What the island shows.
pub struct Exhibits {
    /// One board per shard, in shard order.
    pub shards: Vec<Arc<Board>>,
    /// The board of the store.
    pub store: Option<Arc<Board>>,
}

/// A running island. Ends when it is dropped.
pub struct Island {
    admin: Vec<SocketAddr>,
    signals: mpsc::Receiver<()>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// A runtime that watches signals and does nothing else yet. Made before a node opens its first listener: from then on
/// SIGTERM is an order to drain, however far the start has come.
pub struct Prepared {
    runtime: tokio::runtime::Runtime,
    signals: mpsc::Receiver<()>,
}

impl Prepared {
    /// With `signals`, SIGTERM and SIGINT are taken over and handed out by [`Island::signals`].
    ///
    /// # Errors
    /// When the operating system refuses the runtime or a signal handler.
    pub fn new(signals: bool) -> std::io::Result<Prepared> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (signal_sent, signal_came) = mpsc::channel();
        if signals {
            let _inside = runtime.enter();
            watch_signals(&signal_sent)?;
        }
        Ok(Prepared { runtime, signals: signal_came })
    }
}

impl Island {
    /// Starts the thread. `listeners` are bound already, so that a port in use is known before anything runs.
    ///
    /// # Errors
    /// When the operating system refuses the thread or a listener.
    pub fn start(
        prepared: Prepared,
        listeners: Vec<TcpListener>,
        exhibits: Exhibits,
        host: Arc<dyn Host>,
    ) -> std::io::Result<Island> {
        let Prepared { runtime, signals } = prepared;
        let admin = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        let mut served = Vec::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let _inside = runtime.enter();
            served.push(tokio::net::TcpListener::from_std(listener)?);
        }
        let (stop, stopped) = watch::channel(false);
        let view = Arc::new(admin::View::new(exhibits, host, Instant::now()));
        let body = move || runtime.block_on(run(served, view, stopped));
        let thread = std::thread::Builder::new().name("island".to_owned()).spawn(body)?;
        Ok(Island { admin, signals, stop, thread: Some(thread) })
    }

    /// Where the admin server listens.
    pub fn admin(&self) -> &[SocketAddr] {
        &self.admin
    }

    /// One `()` for every SIGTERM or SIGINT.
    pub fn signals(&self) -> &mpsc::Receiver<()> {
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

/// Serves until told to stop. Connections that are open then are dropped with the runtime.
async fn run(listeners: Vec<tokio::net::TcpListener>, view: Arc<admin::View>, mut stopped: watch::Receiver<bool>) {
    for listener in listeners {
        let service = axum::serve(listener, admin::router(Arc::clone(&view)));
        tokio::spawn(async move {
            if let Err(error) = service.await {
                tracing::error!(%error, "the admin server stopped");
            }
        });
    }
    // An error means that the island was dropped; either way it is over.
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn watch_signals(came: &mpsc::Sender<()>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signal, came) = (signal(kind)?, came.clone());
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                if came.send(()).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}
