//! The open store: one session with the database for the whole process, on a runtime of its own.
//!
//! Lives on: made and closed by the thread that starts the node; its work is done on its own threads, and every shard
//! has a port into it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::StoreOp;
use machine::ids::Uaid;
use machine::message::Message;
use machine::stats::Board;
use runtime::ports::Store;
use scylla::client::session::Session;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::access::Access;
use super::blocking::{block_on, runtime};
use super::client::Client;
use super::connect::connect_with;
use super::nodes::Table;
use super::port::{Port, ReplyQueue};
use super::preflight;
use super::scheduler::{OpScheduler, Shared};
use super::stats::SharedStoreStats;
use super::user_cache::UserCache;
use crate::latencies::LatencyHistograms;
use crate::nodes::NodeTable;
use crate::shared::error::DatabaseError;
use crate::shared::opening::{ConnectOptions, OpenError};
use crate::shared::options::Options;
use crate::transfer::BlockingPort;

/// Time limit for operations under way at the end.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for the messages of ledgers at start, and the pause after a refusal.
const SAVE_WITHIN: Duration = Duration::from_secs(120);
const SAVE_PAUSE: Duration = Duration::from_millis(500);
/// Users whose messages are saved beside each other.
const SAVES_MAX: usize = 64;

/// The shared store, open.
pub struct Scylla {
    pub(super) runtime: Runtime,
    pub(super) client: Arc<Client>,
    access: Access,
    board: Arc<Board>,
    lanes: std::sync::Mutex<Vec<JoinHandle<()>>>,
    in_flight: usize,
}

impl Scylla {
    /// Checks everything (`preflight`), connects and prepares. `faults` are those that the caller has found; all are
    /// reported together.
    ///
    /// # Errors
    /// Every fault.
    pub fn open(
        config: &Options,
        max_skew: Duration,
        mut faults: Vec<DatabaseError>,
        surroundings: ConnectOptions,
    ) -> Result<Scylla, OpenError> {
        let passing = |said| OpenError { said, passes: true };
        let runtime = runtime().map_err(passing)?;
        let (session, of_database) = block_on(runtime.handle(), preflight::examine(config, max_skew));
        faults.extend(of_database);
        match session {
            // Tables and permissions were found good, so a failed prepare passes.
            Some(session) if faults.is_empty() => Scylla::with(runtime, session, config, surroundings).map_err(passing),
            _ => {
                let passes = faults.iter().all(DatabaseError::passes);
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                Err(OpenError { said: faults.join("\n"), passes })
            }
        }
    }

    /// Connects and prepares without a preflight: for commands, and for tests with an environment of their own.
    ///
    /// # Errors
    /// One sentence: no node answers or accepts the login, or the tables are not there (`murre schema create`).
    pub fn connect(config: &Options, surroundings: ConnectOptions) -> Result<Scylla, String> {
        let runtime = runtime()?;
        let access = Access::read(config).map_err(|fault| fault.to_string())?;
        let session = block_on(runtime.handle(), connect_with(config, &access)).map_err(|fault| fault.to_string())?;
        Scylla::with(runtime, (session, access), config, surroundings)
    }

    fn with(
        runtime: Runtime,
        (session, access): (Session, Access),
        config: &Options,
        surroundings: ConnectOptions,
    ) -> Result<Scylla, String> {
        let client =
            Arc::new(block_on(runtime.handle(), Client::prepare(session, config, surroundings.process_clock))?);
        let board = Arc::new(SharedStoreStats::board());
        let (watched, copied, shown) = (Arc::clone(&client), Arc::clone(&client), Arc::clone(&board));
        runtime.spawn(async move { watched.watch().await });
        runtime.spawn(async move {
            let mut second = tokio::time::interval(Duration::from_secs(1));
            loop {
                second.tick().await;
                copied.note_limit();
                copied.stats.write_to(&shown);
            }
        });
        let in_flight = usize::from(config.in_flight.max(1));
        Ok(Scylla { runtime, client, access, board, lanes: std::sync::Mutex::default(), in_flight })
    }

    /// Takes this login and these certificates for new connections; those that are there go on.
    pub fn renew_access(&self, new: &Access) {
        self.access.renew(new);
    }

    /// Creates a shard's port. `waker` is called when there are replies to collect.
    pub fn port(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        let (lane, inbox) = mpsc::unbounded_channel();
        let reply_queue = Arc::new(ReplyQueue::new(waker));
        let shared = Shared {
            client: Arc::clone(&self.client),
            permits: Semaphore::new(self.in_flight),
            known: UserCache::default(),
            reply_queue: Arc::clone(&reply_queue),
        };
        let task = OpScheduler::new(Arc::new(shared), inbox);
        let task = self.runtime.spawn(task.run());
        self.lanes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(task);
        let (breaker, stats) = (Arc::clone(&self.client.breaker), Arc::clone(&self.client.stats));
        Box::new(Port::new(reply_queue, lane, breaker, stats))
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    pub fn latencies(&self) -> Arc<LatencyHistograms> {
        Arc::clone(&self.client.stats.latencies)
    }

    pub fn nodes(&self) -> Arc<dyn NodeTable> {
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
        let (until, mut context) = (Instant::now() + SAVE_WITHIN, BlockingPort::new(|waker| self.port(waker)));
        loop {
            let mut refused = Vec::new();
            for some in left.chunks(SAVES_MAX) {
                let ops = some.iter().map(|messages| StoreOp::Save { messages: messages.clone() });
                // Without an answer none of them counts as saved.
                let answers = context.ask_each(ops.collect()).unwrap_or_default();
                let is_saved = |at: usize| answers.get(at).is_some_and(Result::is_ok);
                let unsaved = some.iter().enumerate().filter(|(at, _)| !is_saved(*at));
                refused.extend(unsaved.map(|(_, messages)| messages.clone()));
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
