//! The embedded store: one directory, no server (ARCHITECTURE.md 8.7).
//!
//! ```text
//! DIR/FORMAT   one line: the format of the directory
//! DIR/LOCK     held while a process has it open
//! DIR/db/      the fjall database; rows as in `rows`
//! ```
//!
//! One committer thread writes: the operations that wait become one group with one `fdatasync`, and only then are its
//! operations answered. Reader threads read; the keeper watches, measures and reclaims. A shard sees a [`port`]:
//! bounded, never blocking, and keeping the order of each user's operations.
//!
//! Lives on: the starting thread opens and closes it; its own threads do the rest.

mod committer;
mod copy;
mod database;
mod directory;
mod error;
mod group;
mod journal;
mod maintenance;
mod migration;
mod pacing;
mod port;
mod query;
mod reader;
mod room;
mod rows;
mod salvage;
mod stats;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, bounded, unbounded};
use machine::ids::Clock;
use machine::message::Message;
use machine::stats::{Board, Counters};
use shards::ports::Store;
use shards::process_clock::ProcessClock;

pub use copy::Copied;
pub use error::StoreOpenError;
pub use salvage::{Progress, salvage};
pub use stats::StoreStats;

use committer::Committer;
use database::Database;
use error::Cause;
use group::{CleanupOp, Numbers};
use port::{CommitterMail, Port, ReaderMail};
use room::Space;
use stats::Tally;

/// End of the process, called when nothing can be written any more.
pub type Fatal = Arc<dyn Fn(&str) + Send + Sync>;

/// Probe of a test in the committer.
#[cfg(test)]
pub(crate) type CommitProbe = Arc<dyn Fn() -> fjall::Result<()> + Send + Sync>;

/// Rows that one user may have, about. More messages are refused until some are acked, expired or dropped.
const USER_ROWS_MAX: u64 = 262_144;
/// Upkeep mails on their way to the committer. Shed: the next walk finds the same rows.
const UPKEEP_MAX: usize = 64;
/// Messages of a ledger replay saved in one group.
const REPLAY_MESSAGES_PER_GROUP: usize = 256;
/// Exit status when storage fails.
const EXIT_STORAGE: i32 = 74;

/// Settings of an embedded store.
#[derive(Clone)]
pub struct Options {
    /// Cache of blocks, bytes (`store.cache`).
    pub cache_bytes: u64,
    /// At this much on disk, bytes (`store.max_bytes`), messages are refused; registers and saves go on for an eighth
    /// more. Journals alone take 64 MiB and up to 320, so anything below 1 GiB is for tests.
    pub bytes_max: u64,
    /// Rows that one user may have, about: one row in 64 is counted.
    pub user_rows_max: u64,
    /// Reserve of the file system, bytes, at most an eighth of it: free beside what the store needs for itself.
    pub bytes_free_min: u64,
    /// Reader threads, at least 1.
    pub readers: usize,
    /// A write under way for longer opens the circuit.
    pub stall_after: Duration,
    /// Minimum time between two compactions of a full store, which give the space of deletes back.
    pub compact_every: Duration,
    /// True if expired rows and idle users are reclaimed in the background.
    pub sweep: bool,
    /// The clock for expiry.
    pub process_clock: Arc<ProcessClock>,
    /// Called once when nothing can be written any more; the default prints the reason on standard error and exits.
    pub fatal: Fatal,
    /// Called before each sync.
    #[cfg(test)]
    pub(crate) before_commit: Option<CommitProbe>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 32 << 20,
            bytes_max: u64::MAX,
            user_rows_max: USER_ROWS_MAX,
            bytes_free_min: 256 << 20,
            readers: 2,
            stall_after: Duration::from_secs(3),
            compact_every: Duration::from_secs(60),
            sweep: true,
            process_clock: Arc::new(ProcessClock::start()),
            fatal: Arc::new(|why| {
                eprintln!("murre: {why}");
                std::process::exit(EXIT_STORAGE);
            }),
            #[cfg(test)]
            before_commit: None,
        }
    }
}

/// State that the threads of a store and its ports share without waiting.
struct StoreStatus {
    started: Instant,
    stall_after: Duration,
    user_rows_max: u64,
    compact_every: Duration,
    sweep: bool,
    space: Arc<Space>,
    /// Milliseconds since `started` of the commit under way; 0 while there is none.
    commit_since: AtomicU64,
    circuit_open: AtomicBool,
    /// Operations waiting for the committer.
    queued: AtomicU64,
    /// Upkeep mails waiting for the committer.
    upkeep: AtomicUsize,
    tally: Tally,
    board: Arc<Board>,
}

impl StoreStatus {
    fn new(dir: &Path, options: &Options) -> StoreStatus {
        StoreStatus {
            started: Instant::now(),
            stall_after: options.stall_after,
            user_rows_max: options.user_rows_max,
            space: Arc::new(Space::new(dir, options)),
            compact_every: options.compact_every,
            sweep: options.sweep,
            commit_since: AtomicU64::new(0),
            circuit_open: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            upkeep: AtomicUsize::new(0),
            tally: Tally::default(),
            board: Arc::new(Board::new(&[StoreStats::MEANINGS])),
        }
    }

    fn commit_began(&self) {
        self.commit_since.store((self.started.elapsed().as_millis() as u64).max(1), Ordering::Relaxed);
    }

    fn commit_ended(&self) {
        self.commit_since.store(0, Ordering::Relaxed);
        self.circuit_open.store(false, Ordering::Relaxed);
    }

    /// Opens the circuit when the commit under way takes too long; it closes with that commit's end.
    fn watch(&self) {
        let since = self.commit_since.load(Ordering::Relaxed);
        let now = self.started.elapsed().as_millis() as u64;
        if since > 0 && now.saturating_sub(since) > self.stall_after.as_millis() as u64 {
            self.circuit_open.store(true, Ordering::Relaxed);
            if self.commit_since.load(Ordering::Relaxed) != since {
                // It ended between the two looks.
                self.circuit_open.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Sends upkeep to the committer; returns false if it was dropped: the sweep is off, or many mails wait.
    fn tell(&self, committer: &Sender<CommitterMail>, upkeep: CleanupOp) -> bool {
        if !self.sweep && !matches!(upkeep, CleanupOp::ClearMark(_)) {
            return false;
        }
        let fits = self.upkeep.fetch_add(1, Ordering::Relaxed) < UPKEEP_MAX;
        if fits {
            let _ = committer.send(CommitterMail::Upkeep(upkeep));
        } else {
            self.upkeep.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }

    fn upkeep_taken(&self) {
        self.upkeep.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Messages of a ledger that could not be saved, at least one, and the reason of the first.
pub struct Unsaved {
    /// They are in no row; only the ledger logs have them.
    pub messages: Vec<Arc<Message>>,
    /// One clause for the operator.
    pub reason: String,
}

impl Unsaved {
    /// Adds a message to what may be none so far; `why` gives the reason of the first.
    fn add(unsaved: &mut Option<Unsaved>, message: &Arc<Message>, why: impl FnOnce() -> String) {
        let all = unsaved.get_or_insert_with(|| Unsaved { messages: Vec::new(), reason: why() });
        all.messages.push(Arc::clone(message));
    }
}

impl fmt::Debug for Unsaved {
    /// Their number: messages carry UAIDs and bodies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsaved").field("messages", &self.messages.len()).field("reason", &self.reason).finish()
    }
}

/// An open store, with its threads.
pub struct Embedded {
    dir: PathBuf,
    db: Option<Database>,
    numbers: Numbers,
    store_status: Arc<StoreStatus>,
    committer: Sender<CommitterMail>,
    readers: Vec<Sender<ReaderMail>>,
    keeper: Option<Sender<()>>,
    keeper_thread: Option<JoinHandle<()>>,
    committer_thread: Option<JoinHandle<()>>,
    reader_threads: Vec<JoinHandle<()>>,
    ports: AtomicUsize,
    _lock: File,
}

impl Embedded {
    /// Opens the store in `dir`, which is created, and starts its threads.
    ///
    /// # Errors
    /// If the directory is in use, not writable, not a store, of another format, or damaged; see [`StoreOpenError`].
    pub fn open(dir: &Path, options: Options) -> Result<Embedded, StoreOpenError> {
        let lock = directory::prepare(dir)?;
        let path = dir.join("db");
        journal::check(&path)?;
        room::check_open(dir, &path)?;
        let store_status = Arc::new(StoreStatus::new(dir, &options));
        let (space, process_clock) =
            (Arc::clone(&store_status.space), options.sweep.then(|| Arc::clone(&options.process_clock)));
        let filters: database::Filters = Arc::new(move |name| pacing::Pacing::of(name, &space, process_clock.as_ref()));
        let unreadable = |e| StoreOpenError::database(&path, e);
        let db = Database::open_paced(&path, options.cache_bytes, filters).map_err(unreadable)?;
        migration::run(&db, &path)?;
        let number = |key: &[u8]| {
            let bytes = db.meta.get(key).map_err(unreadable)?;
            Ok(bytes.filter(|bytes| bytes.len() == 8).map_or(0, |bytes| rows::word(&bytes, 0)))
        };
        let clock = Clock(number(rows::CLOCK_KEY)?);
        let numbers = Numbers { clock, registration: number(rows::REGISTRATION_KEY)? };
        store_status.space.measure(&db);
        let (committer, inbox) = unbounded();
        let mut store = Embedded {
            dir: dir.into(),
            db: Some(db.clone()),
            numbers,
            store_status,
            committer,
            readers: Vec::new(),
            keeper: None,
            keeper_thread: None,
            committer_thread: None,
            reader_threads: Vec::new(),
            ports: AtomicUsize::new(0),
            _lock: lock,
        };
        store.start(db, inbox, &options).map_err(|e| StoreOpenError::io(dir, "start the threads of the store", e))?;
        Ok(store)
    }

    fn start(
        &mut self,
        db: Database,
        inbox: crossbeam::channel::Receiver<CommitterMail>,
        options: &Options,
    ) -> std::io::Result<()> {
        for n in 0..options.readers.max(1) {
            let (reader, inbox) = unbounded();
            let (db, committer, store_status) = (db.clone(), self.committer.clone(), self.store_status.clone());
            let thread =
                spawn(&format!("store-read-{n}"), move || reader::run(&db, &inbox, &committer, &store_status))?;
            self.readers.push(reader);
            self.reader_threads.push(thread);
        }
        let (keeper, stop) = bounded(1);
        let (kept, mail, store_status) = (db.clone(), self.committer.clone(), self.store_status.clone());
        let sweep = options.sweep.then(|| Arc::clone(&options.process_clock));
        let keep = move || maintenance::run(&kept, &stop, &mail, &store_status, sweep.as_deref());
        self.keeper_thread = Some(spawn("store-keeper", keep)?);
        self.keeper = Some(keeper);
        let committer = Committer {
            db,
            inbox,
            store_status: self.store_status.clone(),
            fatal: options.fatal.clone(),
            numbers: self.numbers,
            stats: StoreStats::default(),
            unsynced: None,
            boarded: Instant::now(),
            failed: false,
            #[cfg(test)]
            before_commit: options.before_commit.clone(),
        };
        self.committer_thread = Some(spawn("store-commit", move || committer.run())?);
        Ok(())
    }

    /// Creates a shard's port. `waker` is called, from any thread, when there are replies to collect.
    pub fn port(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        let nth = self.ports.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        Box::new(Port::new(waker, self.committer.clone(), self.readers[nth].clone(), self.store_status.clone()))
    }

    /// Above every clock in any row: no shard's clock may start at or below it.
    pub fn clock_floor(&self) -> Clock {
        self.numbers.clock
    }

    /// Returns true if there is any user. For the starting thread.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn has_users(&self) -> Result<bool, StoreOpenError> {
        let empty = self.db.as_ref().map_or(Ok(true), |db| db.users.is_empty());
        empty.map(|empty| !empty).map_err(|error| StoreOpenError::database(&self.dir, error))
    }

    /// The store's counters, refreshed about once a second.
    pub fn board(&self) -> Arc<Board> {
        self.store_status.board.clone()
    }

    /// Saves the messages of ledgers, in bounded groups, also beyond the bound on disk use. Returns when the saved ones
    /// are durable. Messages whose user or channel is gone are dropped, as `Save` does. For the starting thread.
    ///
    /// # Errors
    /// The unsaved messages: the logs must stay.
    pub fn save_all(&self, messages: &[Arc<Message>]) -> Result<(), Unsaved> {
        let mut sorted = messages.to_vec();
        sorted.sort_by_key(|m| (m.uaid, m.stamp));
        let mut unsaved: Option<Unsaved> = None;
        for (nth, group) in sorted.chunks(REPLAY_MESSAGES_PER_GROUP).enumerate() {
            let (done, saved) = bounded(1);
            let sent = self.committer.send(CommitterMail::Replay(group.to_vec(), done)).is_ok();
            match saved.recv().ok().filter(|_| sent) {
                Some(Ok(None)) => {}
                Some(Ok(Some(more))) => match &mut unsaved {
                    Some(all) => all.messages.extend(more.messages),
                    None => unsaved = Some(more),
                },
                Some(Err(())) | None => {
                    let closed = || StoreOpenError::new(&self.dir, Cause::Closed).to_string();
                    for message in &sorted[nth * REPLAY_MESSAGES_PER_GROUP..] {
                        Unsaved::add(&mut unsaved, message, closed);
                    }
                    break;
                }
            }
        }
        unsaved.map_or(Ok(()), Err)
    }

    /// Answers every submitted operation, syncs, and ends the threads. Ports refuse from here on.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.keeper = None;
        for reader in self.readers.drain(..) {
            let _ = reader.send(ReaderMail::Stop);
        }
        for thread in self.reader_threads.drain(..) {
            let _ = thread.join();
        }
        let _ = self.committer.send(CommitterMail::Stop);
        if let Some(thread) = self.committer_thread.take() {
            let _ = thread.join();
        }
        // Everything is synced. A compaction that waits for room would wait for ever.
        self.store_status.space.close();
        if let Some(thread) = self.keeper_thread.take() {
            let _ = thread.join();
        }
        // Last: dropping the database ends its own threads.
        self.db = None;
    }
}

#[cfg(any(test, feature = "testing"))]
impl Embedded {
    /// Replaces the record of a user by bytes that no version wrote.
    pub fn damage_record(&self, uaid: machine::ids::Uaid) {
        let db = self.db.as_ref().expect("it is open");
        db.users.insert(uaid.0, b"no record").expect("writable");
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}
