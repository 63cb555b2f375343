//! The open store: one session with the database for the whole process, on a runtime of its own.
//!
//! Lives on: made and closed by the thread that starts the node; its work is done on its own threads, and every shard
//! has a port into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use machine::StoreOp;
use machine::ids::{StoreTicket, Uaid};
use machine::message::Message;
use machine::stats::Board;
use scylla::client::session::Session;
use shards::ports::Store;
use shards::wall::Wall;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::config::{self, Config};

use super::client::Client;
use super::connect::connect;
use super::known::Known;
use super::lane::{Lane, Shared};
use super::nodes::Table;
use super::port::{Outbox, Port};
use super::preflight;
use super::stats::Numbers;
use crate::store::latencies::Latencies;
use crate::store::nodes::Nodes;

/// Threads of the runtime: the driver and all lanes share them, and one encodes and decodes for several shards.
const THREADS_MAX: usize = 4;
/// Shards that one thread serves.
const SHARDS_PER_THREAD: usize = 4;
/// Time limit for operations under way at the end.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for the messages of ledgers at start, and the pause after a refusal.
const SAVE_WITHIN: Duration = Duration::from_secs(120);
const SAVE_PAUSE: Duration = Duration::from_millis(500);
/// Users whose messages are saved beside each other.
const SAVES_MAX: usize = 64;

/// Cause for which the shared store is not open.
#[derive(Debug)]
pub struct OpenFault {
    /// Every fault, a line each.
    pub said: String,
    /// A later try may succeed: the database is away, and none of its answers shows a wrong configuration.
    pub passes: bool,
}

/// The shared store, open.
pub struct Scylla {
    pub(super) runtime: Runtime,
    pub(super) client: Arc<Client>,
    board: Arc<Board>,
    lanes: std::sync::Mutex<Vec<JoinHandle<()>>>,
    in_flight: usize,
}

/// Environment of the store. Only tests do not take the default.
#[derive(Clone)]
pub struct Surroundings {
    pub wall: Arc<Wall>,
}

impl Default for Surroundings {
    fn default() -> Surroundings {
        Surroundings { wall: Arc::new(Wall::start()) }
    }
}

impl Scylla {
    /// Checks everything (`preflight`), connects and prepares.
    ///
    /// # Errors
    /// Every fault.
    pub fn open(config: &Config, surroundings: Surroundings) -> Result<Scylla, OpenFault> {
        let passing = |said| OpenFault { said, passes: true };
        let runtime = runtime().map_err(passing)?;
        let session = match block_on(runtime.handle(), preflight::examine(config)) {
            (Some(session), faults) if faults.is_empty() => session,
            (_, faults) => {
                let passes = faults.iter().all(preflight::Fault::passes);
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                return Err(OpenFault { said: faults.join("\n"), passes });
            }
        };
        // Tables and permissions were found good, so a failed prepare passes.
        Scylla::with(runtime, session, &config.store.scylla, surroundings).map_err(passing)
    }

    /// Connects and prepares without a preflight: for commands, and for tests with an environment of their own.
    ///
    /// # Errors
    /// One sentence: no node answers or accepts the login, or the tables are not there (`murre schema create`).
    pub fn connect(config: &config::Scylla, surroundings: Surroundings) -> Result<Scylla, String> {
        let runtime = runtime()?;
        let session = block_on(runtime.handle(), connect(config)).map_err(|fault| fault.to_string())?;
        Scylla::with(runtime, session, config, surroundings)
    }

    fn with(
        runtime: Runtime,
        session: Session,
        config: &config::Scylla,
        surroundings: Surroundings,
    ) -> Result<Scylla, String> {
        let client = Arc::new(block_on(runtime.handle(), Client::prepare(session, config, surroundings.wall))?);
        let board = Arc::new(Numbers::board());
        let (watched, copied, shown) = (Arc::clone(&client), Arc::clone(&client), Arc::clone(&board));
        runtime.spawn(async move { watched.watch().await });
        runtime.spawn(async move {
            let mut second = tokio::time::interval(Duration::from_secs(1));
            for look in 1.. {
                second.tick().await;
                copied.note_limit();
                copied.numbers.write_to(&shown, look);
            }
        });
        let in_flight = usize::from(config.in_flight.max(1));
        Ok(Scylla { runtime, client, board, lanes: std::sync::Mutex::default(), in_flight })
    }

    /// Creates a shard's port. `waker` is called when there are replies to collect.
    pub fn port(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        let (lane, inbox) = mpsc::unbounded_channel();
        let outbox = Arc::new(Outbox::new(waker));
        let shared = Shared {
            client: Arc::clone(&self.client),
            permits: Semaphore::new(self.in_flight),
            known: Known::default(),
            outbox: Arc::clone(&outbox),
        };
        let task = Lane::new(Arc::new(shared), inbox);
        let task = self.runtime.spawn(task.run());
        self.lanes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(task);
        let (breaker, numbers) = (Arc::clone(&self.client.breaker), Arc::clone(&self.client.numbers));
        Box::new(Port::new(outbox, lane, breaker, numbers))
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    pub fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.client.numbers.all_latencies)
    }

    pub fn nodes(&self) -> Arc<dyn Nodes> {
        Arc::new(Table::new(self.runtime.handle().clone(), Arc::clone(&self.client)))
    }

    /// Saves the messages of ledgers; they are durable when it returns. Tries for two minutes.
    ///
    /// # Errors
    /// Number of messages that could not be saved, and the cause; the logs must stay.
    pub fn save_all(&self, messages: &[Arc<Message>]) -> Result<(), (usize, String)> {
        let mut users: std::collections::BTreeMap<Uaid, Vec<Arc<Message>>> = std::collections::BTreeMap::new();
        for message in messages {
            users.entry(message.uaid).or_default().push(Arc::clone(message));
        }
        let mut left: Vec<Vec<Arc<Message>>> = users.into_values().collect();
        let (until, mut hand) = (Instant::now() + SAVE_WITHIN, Asker::new(self));
        loop {
            let mut refused = Vec::new();
            for some in left.chunks(SAVES_MAX) {
                let ops = some.iter().map(|messages| StoreOp::Save { messages: messages.clone() });
                let done = hand.ask(ops.collect());
                refused.extend(some.iter().zip(done).filter(|(_, done)| !done).map(|(messages, _)| messages.clone()));
            }
            if refused.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                let unsaved = refused.iter().map(Vec::len).sum();
                return Err((unsaved, format!("the database has not taken messages of {} users", refused.len())));
            }
            left = refused;
            std::thread::sleep(SAVE_PAUSE);
        }
    }

    /// Answers every submitted operation, then ends its threads. Ports must be gone.
    pub fn close(self) {
        let lanes = std::mem::take(&mut *self.lanes.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let all = async {
            for lane in lanes {
                // A lane ends when its port is gone and every operation is answered.
                let _ = lane.await;
            }
        };
        let ended = block_on(self.runtime.handle(), async { tokio::time::timeout(CLOSE_WITHIN, all).await });
        if ended.is_err() {
            tracing::warn!("store closed with operations in flight");
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

fn runtime() -> Result<Runtime, String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(SHARDS_PER_THREAD).min(THREADS_MAX))
        .thread_name("store")
        .enable_all()
        .build()
        .map_err(|error| format!("the system refuses a runtime for the store: {error}"))
}

/// Waits on a thread of its own, because the caller may be inside a runtime.
pub(super) fn block_on<T: Send>(runtime: &Handle, future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| runtime.block_on(future));
        match waiting.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Sends operations and waits for replies, before there are shards.
struct Asker {
    port: Box<dyn Store>,
    woken: std::sync::mpsc::Receiver<()>,
    next: AtomicU32,
}

impl Asker {
    fn new(store: &Scylla) -> Asker {
        let (wake, woken) = std::sync::mpsc::channel();
        let waker = move || {
            // The receiver lives as long as the port.
            let _ = wake.send(());
        };
        Asker { port: store.port(Arc::new(waker)), woken, next: AtomicU32::new(0) }
    }

    /// Returns for each operation, in this order, true if it was done.
    fn ask(&mut self, ops: Vec<StoreOp>) -> Vec<bool> {
        let first = self.next.load(Ordering::Relaxed);
        let mut done = vec![false; ops.len()];
        for op in ops {
            let ticket = StoreTicket { index: self.next.fetch_add(1, Ordering::Relaxed), generation: 0 };
            self.port.submit(ticket, op);
        }
        for _ in 0..done.len() {
            loop {
                if let Some((ticket, answer)) = self.port.collect() {
                    done[ticket.index.wrapping_sub(first) as usize] = answer.is_ok();
                    break;
                }
                // Every operation is answered within its time.
                if let Err(RecvTimeoutError::Disconnected) = self.woken.recv_timeout(Duration::from_secs(1)) {
                    return done;
                }
            }
        }
        done
    }
}
