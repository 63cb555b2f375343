//! An open store, with its threads.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam::channel::{Sender, bounded, unbounded};
use machine::ids::Clock;
use machine::message::Message;
use machine::stats::Board;
use runtime::ports::Store;

use super::committer::Committer;
use super::database::{self, Database};
use super::directory;
use super::error::{Cause, StoreOpenError, Unsaved};
use super::group::Numbers;
use super::mail::{CommitterMail, ReaderMail};
use super::options::Options;
use super::port::Port;
use super::shares::Shares;
use super::stats::StoreStats;
use super::store_status::StoreStatus;
use super::{journal, maintenance, pacing, reader, room, rows};

/// Messages of a ledger replay saved in one group.
const REPLAY_MESSAGES_PER_GROUP: usize = 256;
/// An open store, with its threads.
pub struct Embedded {
    pub(super) dir: PathBuf,
    pub(super) db: Option<Database>,
    pub(super) numbers: Numbers,
    pub(super) store_status: Arc<StoreStatus>,
    pub(super) committer: Sender<CommitterMail>,
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
            shares: Shares::new(),
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
