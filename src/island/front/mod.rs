//! TLS for the node API: ends it in front of this process's own `node.listen`, over loopback (ARCHITECTURE.md 8.9,
//! docs/decisions/0018). Bytes go through as they are; keys, bodies and answers are the shards' business.
//!
//! A runtime and a thread of its own, beside the island: strangers' handshakes must not stand in front of our calls of
//! other nodes, the admin page or a signal. Everything is bounded by [`LIMITS`].
//!
//! The front opens the connection to the shard after it receives a ClientHello and before it finishes the handshake. A
//! caller that completes the handshake therefore has a shard.

mod certificate;

#[cfg(test)]
mod tests;

pub use certificate::Certificate;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use machine::counters;
use machine::stats::{Board, Counters as _};
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

counters! {
    /// Numbers of TLS in front of the node API.
    pub struct FrontNumbers {
        counter node_tls_handshakes: "TLS connections that other nodes made to this one.",
        counter node_tls_handshakes_failed: "Connections to node.tls.listen that spoke no TLS, or whose other end did not trust our certificate.",
        counter node_tls_handshakes_timeout: "Connections to node.tls.listen cut because their handshake took too long.",
        counter node_tls_refused: "Connections to node.tls.listen closed at once because there were too many.",
        counter node_tls_accept_errors: "Connections to node.tls.listen that could not be accepted: no descriptor is left, most likely.",
        counter node_tls_unserved: "Connections to node.tls.listen closed because node.listen took no connection.",
        counter node_tls_idle_closed: "TLS connections closed because nothing came or went for too long.",
        gauge node_tls_connections: "Connections to node.tls.listen, handshakes included.",
    }
}

/// TLS in front of the node API, while it is not dropped.
pub(super) struct Front {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Every bound of it.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Connections, handshakes included. Refuse: closed at once.
    pub connections: usize,
    /// Connections that are not through their handshake. Refuse: closed at once.
    pub handshakes: usize,
    /// From accept to the end of the handshake; callers give up after their `node.connect_timeout`. Refuse: closed.
    pub handshake_time: Duration,
    /// Without a byte that comes, or is taken, one way. A caller keeps a connection for 30 s, and a call takes 30 s at
    /// most. Refuse: closed.
    pub idle_time: Duration,
}

/// 256 nodes with 16 connections each, x about 50 KB = 200 MB.
pub(super) const LIMITS: Limits = Limits {
    connections: 4_096,
    handshakes: 512,
    handshake_time: Duration::from_secs(5),
    idle_time: Duration::from_secs(60),
};

/// The share of the process's descriptors, as a divisor, that the number of connections keeps to: each takes two, and
/// the store opens files with the others.
const DESCRIPTORS_PART: u64 = 8;

impl Limits {
    /// These limits for a process that may open this number of descriptors.
    pub fn within(self, descriptors: u64) -> Limits {
        let share = usize::try_from(descriptors / DESCRIPTORS_PART).unwrap_or(usize::MAX).max(1);
        Limits { connections: self.connections.min(share), handshakes: self.handshakes.min(share), ..self }
    }
}

/// State that its tasks share.
struct Shared {
    /// Address of the node API without TLS.
    behind: SocketAddr,
    config: Mutex<Arc<ServerConfig>>,
    limits: Limits,
    connections: Arc<Semaphore>,
    handshakes: Semaphore,
    numbers: Mutex<FrontNumbers>,
    board: Arc<Board>,
    callers: Complaints,
    accepts: Complaints,
}

/// Limits a log line to one a minute, so that callers cannot fill the log.
#[derive(Default)]
pub(super) struct Complaints(Mutex<Option<Instant>>);

impl Complaints {
    /// Returns true if the line is due. The next one is due a minute later.
    pub fn due(&self) -> bool {
        let mut said = lock(&self.0);
        let due = said.is_none_or(|at| at.elapsed() >= QUIET);
        if due {
            *said = Some(Instant::now());
        }
        due
    }
}

impl Front {
    /// Takes connections of `listeners` from now on and carries them to `behind`.
    ///
    /// # Errors
    /// If the operating system refuses the thread, the runtime or a listener.
    pub fn start(
        listeners: Vec<TcpListener>,
        behind: SocketAddr,
        certificate: Certificate,
        limits: Limits,
    ) -> io::Result<Front> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared {
            behind,
            config: Mutex::new(certificate.into_config()),
            connections: Arc::new(Semaphore::new(limits.connections)),
            handshakes: Semaphore::new(limits.handshakes),
            limits,
            numbers: Mutex::default(),
            board: Arc::new(Board::new(&[FrontNumbers::MEANINGS])),
            callers: Complaints::default(),
            accepts: Complaints::default(),
        });
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            runtime.spawn(accept(listener, Arc::clone(&shared)));
        }
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            // An error means that the front was dropped; either way it is over.
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(body)?;
        Ok(Front { shared, stop: Some(stop), thread: Some(thread) })
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.shared.board)
    }

    /// Shows this certificate from the next handshake on. Connections that are there go on. From any thread.
    pub fn renew(&self, certificate: Certificate) {
        *lock(&self.shared.config) = certificate.into_config();
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed by it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Changes a number and writes all of them to the board. Connections come and go rarely.
    fn count(&self, change: impl FnOnce(&mut FrontNumbers)) {
        let mut numbers = lock(&self.numbers);
        change(&mut numbers);
        numbers.node_tls_connections = (self.limits.connections - self.connections.available_permits()) as u64;
        numbers.write_to(&self.board, 0);
    }

    /// Logs the error of a failed handshake, at most once a minute.
    fn complain(&self, peer: SocketAddr, why: &io::Error) {
        if self.callers.due() {
            tracing::warn!(
                %peer,
                %why,
                "a caller of node.tls.listen did not get through: it does not speak TLS, or its node.ca does not trust \
                 our node.tls.cert, or it calls us by a name that is not in it"
            );
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a caller that has gone: neither is helped by asking again at once.
                shared.count(|numbers| numbers.node_tls_accept_errors += 1);
                if shared.accepts.due() {
                    tracing::warn!(
                        %error,
                        "connections to node.tls.listen cannot be accepted; where no descriptor is left, raise LimitNOFILE"
                    );
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&shared.connections).try_acquire_owned() else {
            shared.count(|numbers| numbers.node_tls_refused += 1);
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            serve(&shared, stream, peer).await;
            drop(place);
            shared.count(|_| {});
        });
    }
}

/// Failure of a handshake.
enum Failed {
    /// Caused by the caller.
    Theirs(io::Error),
    /// The node API takes no connection.
    Unserved(io::Error),
}

async fn serve(shared: &Shared, stream: TcpStream, peer: SocketAddr) {
    let Ok(shaking) = shared.handshakes.try_acquire() else {
        return shared.count(|numbers| numbers.node_tls_refused += 1);
    };
    shared.count(|_| {});
    let made = timeout(shared.limits.handshake_time, shake(shared, stream)).await;
    drop(shaking);
    match made {
        Ok(Ok((caller, behind))) => {
            shared.count(|numbers| numbers.node_tls_handshakes += 1);
            if let End::Idle = carry_both(caller, behind, shared.limits.idle_time).await {
                shared.count(|numbers| numbers.node_tls_idle_closed += 1);
            }
        }
        Ok(Err(Failed::Theirs(error))) => {
            shared.count(|numbers| numbers.node_tls_handshakes_failed += 1);
            shared.complain(peer, &error);
        }
        Ok(Err(Failed::Unserved(error))) => {
            shared.count(|numbers| numbers.node_tls_unserved += 1);
            tracing::debug!(%error, "node.listen takes no connection");
        }
        Err(_) => {
            shared.count(|numbers| numbers.node_tls_handshakes_timeout += 1);
            let spent = format!("no handshake within {} s", shared.limits.handshake_time.as_secs_f64());
            shared.complain(peer, &io::Error::new(io::ErrorKind::TimedOut, spent));
        }
    }
}

/// A TLS connection with its caller, and one with the node behind.
async fn shake(shared: &Shared, stream: TcpStream) -> Result<(TlsStream<TcpStream>, TcpStream), Failed> {
    // Calls are one segment or two, and are waited for.
    stream.set_nodelay(true).map_err(Failed::Theirs)?;
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(Failed::Theirs)?;
    let behind = TcpStream::connect(shared.behind).await.map_err(Failed::Unserved)?;
    behind.set_nodelay(true).map_err(Failed::Unserved)?;
    let config = Arc::clone(&lock(&shared.config));
    let caller = hello.into_stream(config).await.map_err(Failed::Theirs)?;
    Ok((caller, behind))
}

/// Reason for the end of one direction.
enum End {
    /// One end closed, or broke.
    Closed,
    /// Nothing came, or nothing was taken, for [`Limits::idle_time`].
    Idle,
}

/// Carries bytes both ways until the node behind closes, or nothing moves.
async fn carry_both(caller: TlsStream<TcpStream>, mut behind: TcpStream, idle: Duration) -> End {
    let (mut from_caller, mut to_caller) = tokio::io::split(caller);
    let (mut from_node, mut to_node) = behind.split();
    let end = {
        let back = carry(&mut from_node, &mut to_caller, idle);
        tokio::pin!(back);
        tokio::select! {
            end = &mut back => end,
            end = carry(&mut from_caller, &mut to_node, idle) => match end {
                // Earlier requests are still answered; then the node closes too.
                End::Closed => match to_node.shutdown().await {
                    Ok(()) => back.await,
                    Err(_) => End::Closed,
                },
                End::Idle => End::Idle,
            },
        }
    };
    // The caller is told that this is the end and not an attacker's (RFC 8446 section 6.1); it need not listen.
    let _ = timeout(GOODBYE_TIME_MAX, to_caller.shutdown()).await;
    end
}

async fn carry(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin), idle: Duration) -> End {
    let mut piece = vec![0; BUFFER_BYTES];
    loop {
        let count = match timeout(idle, from.read(&mut piece)).await {
            Ok(Ok(count)) if count > 0 => count,
            Ok(_) => return End::Closed,
            Err(_) => return End::Idle,
        };
        let sent = timeout(idle, async {
            to.write_all(&piece[..count]).await?;
            to.flush().await
        });
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return End::Closed,
            Err(_) => return End::Idle,
        }
    }
}

/// Locks, also after a panic elsewhere: the data is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As it is seen in `ps -L`; the kernel keeps 15 bytes.
const THREAD: &str = "node-tls";
/// For the last alert.
const GOODBYE_TIME_MAX: Duration = Duration::from_secs(1);
/// Carried at a time, each way.
const BUFFER_BYTES: usize = 8 * 1024;
/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// After a complaint.
const QUIET: Duration = Duration::from_secs(60);
