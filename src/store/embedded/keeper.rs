//! The keeper: watches the committer, measures the disk, and walks the database for what nobody needs any more.
//!
//! A walk looks at a bounded number of rows per second and comes round when it reaches the end; what it finds is
//! removed by the committer, which judges it again.
//!
//! Lives on: its own thread.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender};
use fjall::{Keyspace, Slice};
use shards::ids::{Clock, Uaid};
use shards::time::UnixSeconds;
use shards::wall::Wall;

use super::Gates;
use super::database::Database;
use super::group::Upkeep;
use super::port::CommitterMail;
use super::query;
use super::rows::{self, Record};
use crate::store::idle;

/// How often the keeper looks.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two looks at the disk and between two strides of a walk.
const TICKS_PER_STRIDE: u64 = 10;
/// Rows of each keyspace that one stride looks at: about 2 ms per second.
const ROWS_PER_STRIDE: usize = 1_024;

/// Passes over dead rows in a tick: 10,240 rows a second.
const PASSES_PER_TICK: usize = 4;

/// Where the walks are.
#[derive(Default)]
pub(super) struct Walk {
    messages: Vec<u8>,
    topics: Vec<u8>,
    users: Vec<u8>,
}

/// Runs until `stop` says so or is gone.
pub(super) fn run(
    db: &Database,
    dir: &Path,
    stop: &Receiver<()>,
    committer: &Sender<CommitterMail>,
    gates: &Arc<Gates>,
    sweep: Option<&Wall>,
) {
    let mut walk = Walk::default();
    let mut squeeze = Squeeze::default();
    let mut ticks = 0u64;
    while stop.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        ticks += 1;
        gates.watch();
        if sweep.is_some() {
            remove_dead(db, committer, gates);
        }
        if ticks.is_multiple_of(TICKS_PER_STRIDE) {
            measure(db, dir, gates);
            squeeze.if_full(db, gates);
            if let Some(wall) = sweep {
                stride(db, &mut walk, wall.unix(), committer, gates);
            }
        }
    }
    squeeze.wait();
}

/// Makes deletes give their space back when the store is full: nothing is written then, so nothing would ever
/// be compacted on its own.
#[derive(Default)]
struct Squeeze {
    thread: Option<JoinHandle<()>>,
    last: Option<Instant>,
}

impl Squeeze {
    /// Starts one when the store is full, unless one runs or ran lately. On a thread of its own: it may take long,
    /// and the keeper has a committer to watch.
    fn if_full(&mut self, db: &Database, gates: &Gates) {
        let running = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        let lately = self.last.is_some_and(|last| last.elapsed() < gates.squeeze_every);
        if running || lately || !gates.full() {
            return;
        }
        self.wait();
        let db = db.clone();
        let squeeze = move || {
            for keyspace in [&db.messages, &db.topics, &db.users, &db.meta] {
                // An error here is one of the database: the committer meets it and says so.
                let _ = keyspace.rotate_memtable_and_wait().and_then(|()| keyspace.major_compact());
            }
        };
        self.thread = std::thread::Builder::new().name("store-squeeze".into()).spawn(squeeze).ok();
        self.last = Some(Instant::now());
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads how much there is on disk and how much could be.
pub(super) fn measure(db: &Database, dir: &Path, gates: &Gates) {
    if let Ok(bytes) = db.fjall.disk_space() {
        gates.disk_bytes_since.store(0, Ordering::Relaxed);
        gates.disk_bytes.store(bytes, Ordering::Relaxed);
    }
    if let Ok(stat) = rustix::fs::statvfs(dir) {
        gates.disk_free.store(stat.f_bavail.saturating_mul(stat.f_frsize), Ordering::Relaxed);
    }
}

/// Has the committer make passes over the users with dead rows. A mail that is dropped is made up for with the next.
pub(super) fn remove_dead(db: &Database, committer: &Sender<CommitterMail>, gates: &Gates) {
    let marks = db.meta.prefix(rows::REMOVAL_PREFIX).take(PASSES_PER_TICK);
    let uaid = |row: fjall::Guard| rows::uaid_of(row.key().ok()?.get(rows::REMOVAL_PREFIX.len()..)?);
    let users: Vec<Uaid> = marks.filter_map(uaid).collect();
    for uaid in users.iter().cycle().take(if users.is_empty() { 0 } else { PASSES_PER_TICK }) {
        gates.tell(committer, Upkeep::DeadRows(*uaid));
    }
}

/// One stride of each walk. A read error ends the stride; the next one starts behind it.
pub(super) fn stride(
    db: &Database,
    walk: &mut Walk,
    now: UnixSeconds,
    committer: &Sender<CommitterMail>,
    gates: &Gates,
) {
    let mut low_waters = HashMap::new();
    let dead = collect(&db.messages, &mut walk.messages, |key, value| {
        let Some(peek) = rows::peek(value) else { return false };
        let mut settled = || {
            let (Some(uaid), false) = (rows::uaid_of(key), peek.saved) else { return false };
            let low_water = low_waters.entry(uaid).or_insert_with(|| low_water(db, uaid));
            rows::parse_message_key(key).is_some_and(|(_, stamp, _)| stamp.clock <= *low_water)
        };
        peek.expires <= now || settled()
    });
    if !dead.is_empty() {
        gates.tell(committer, Upkeep::MessageRows(dead));
    }
    let dead = collect(&db.topics, &mut walk.topics, |_, value| rows::peek(value).is_some_and(|p| p.expires <= now));
    if !dead.is_empty() {
        gates.tell(committer, Upkeep::TopicRows(dead, now));
    }
    let gone = collect(&db.users, &mut walk.users, |_, value| {
        Record::parse(value).is_some_and(|record| idle(record.seen(), now))
    });
    let gone: Vec<Uaid> = gone.iter().filter_map(|key| rows::uaid_of(key)).collect();
    if !gone.is_empty() {
        gates.tell(committer, Upkeep::IdleUsers(gone, now));
    }
}

/// What is certainly settled for a user; nothing when it cannot be read.
fn low_water(db: &Database, uaid: Uaid) -> Clock {
    query::record(db, uaid).ok().flatten().map_or(Clock(0), |record| record.low_water())
}

/// Keys of the wanted rows among the next `ROWS_PER_STRIDE` from `cursor`, which moves on.
fn collect(keyspace: &Keyspace, cursor: &mut Vec<u8>, mut wanted: impl FnMut(&[u8], &[u8]) -> bool) -> Vec<Slice> {
    let mut found = Vec::new();
    let mut last = None;
    let mut count = 0;
    for row in keyspace.range(cursor.clone()..).take(ROWS_PER_STRIDE) {
        let Ok((key, value)) = row.into_inner() else { break };
        count += 1;
        if wanted(&key, &value) {
            found.push(key.clone());
        }
        last = Some(key);
    }
    cursor.clear();
    if count == ROWS_PER_STRIDE {
        cursor.extend(last.iter().flat_map(|key| key.iter()));
        cursor.push(0);
    }
    found
}
