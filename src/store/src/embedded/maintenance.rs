//! The keeper: watches the committer, measures the disk, and walks the database for dead rows.
//!
//! A walk looks at a bounded number of rows per tick and starts again when it reaches the end. The committer judges the
//! dead rows again and removes them. Every row is looked at about once in ten minutes, for any number of rows. Where
//! many are dead, the walk goes on at once.
//!
//! Lives on: its own thread.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender};
use fjall::{Keyspace, Slice};
use machine::ids::{Clock, Uaid};
use machine::time::UnixSeconds;
use runtime::process_clock::ProcessClock;

use super::database::Database;
use super::group::cleanup::CleanupOp;
use super::mail::CommitterMail;
use super::query;
use super::record::Record;
use super::room::{LEVEL_0_TABLES_MAX, Room, Told};
use super::rows;
use super::store_status::StoreStatus;
use crate::idle;

/// Time between two looks of the keeper.
const TICK: Duration = Duration::from_millis(100);
/// Longest wait for a running compaction at the end of the store.
const COMPACTION_END_MAX: Duration = Duration::from_secs(10);
/// Ticks between two measurements of the store.
const TICKS_PER_MEASURE: u64 = 10;
/// Rows of each keyspace that one sweep step looks at: about a millisecond.
const ROWS_PER_STEP: usize = 1_024;
/// Maximum of sweep steps in one tick: 40,960 rows a second, more than the store can take in one.
const STEPS_PER_TICK_MAX: u64 = 4;
/// Dead rows in a sweep step that make the next sweep step follow in the same tick.
const DEAD_ROWS_DENSE: usize = ROWS_PER_STEP / 8;
/// Time in which a walk comes round.
const TICKS_PER_ROUND: u64 = 6_000;
/// A compaction for less than this part of all rows comes only once an hour.
const COMPACT_PART: u64 = 16;
const COMPACT_AT_LEAST_EVERY: Duration = Duration::from_secs(3_600);

/// Passes over dead rows in a tick: 10,240 rows a second.
const PASSES_PER_TICK: usize = 4;

/// Positions of the walks.
#[derive(Default)]
pub(super) struct SweepCursors {
    messages: Vec<u8>,
    topics: Vec<u8>,
    users: Vec<u8>,
    /// The last user with dead rows for whom passes were sent.
    marks: Vec<u8>,
    /// Ticks until a sweep step is due although the last one found little.
    rest: u64,
}

/// Runs until `stop` has a message or its sender is gone.
pub(super) fn run(
    db: &Database,
    stop: &Receiver<()>,
    committer: &Sender<CommitterMail>,
    store_status: &Arc<StoreStatus>,
    sweep: Option<&ProcessClock>,
) {
    let mut cursors = SweepCursors::default();
    let mut compactor = Compactor::default();
    let mut told = Told::default();
    let mut ticks = 0u64;
    while stop.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        ticks += 1;
        store_status.watch();
        if sweep.is_some() {
            remove_dead(db, &mut cursors, committer, store_status);
        }
        if ticks.is_multiple_of(TICKS_PER_MEASURE) {
            store_status.space.measure(db);
            compactor.if_full(db, store_status);
        } else {
            store_status.space.look(db);
        }
        told.tell(&store_status.space);
        if let Some(process_clock) = sweep {
            sweep_steps(db, &mut cursors, process_clock.unix(), committer, store_status);
        }
    }
    compactor.wait();
}

/// Makes deletes give their space back when the store is full: nothing is written then, so nothing would ever
/// be compacted on its own.
#[derive(Default)]
struct Compactor {
    thread: Option<JoinHandle<()>>,
    last: Option<Instant>,
}

impl Compactor {
    /// Starts a compaction when the store is full and enough was deleted, unless one runs or ran lately. On a thread of
    /// its own: it may take long, and the keeper must watch the committer.
    fn if_full(&mut self, db: &Database, store_status: &StoreStatus) {
        let running = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        let since = self.last.map(|last| last.elapsed());
        if running || since.is_some_and(|since| since < store_status.compact_every) {
            return;
        }
        let space = &store_status.space;
        if !matches!(space.room(), Room::NoMessages | Room::NoRegisters | Room::OnlyDeletes) {
            return;
        }
        let part = db.messages.approximate_len() as u64 / COMPACT_PART;
        let enough = part.min(space.deletes_worth_compacting());
        let deleted = space.deleted();
        // Deletes before this process began are not counted, so the first compaction needs none.
        let worth =
            since.is_none_or(|since| deleted >= enough.max(1) || (deleted > 0 && since > COMPACT_AT_LEAST_EVERY));
        if !worth {
            return;
        }
        self.wait();
        space.compacting();
        let (db, space) = (db.clone(), Arc::clone(space));
        let compactor = move || {
            for keyspace in [&db.messages, &db.topics, &db.channels, &db.users, &db.meta] {
                // An error here is one of the database: the committer meets it and reports it. Tables that cannot be
                // compacted do not become more and more.
                if keyspace.l0_table_count() < LEVEL_0_TABLES_MAX {
                    let _ = keyspace.rotate_memtable_and_wait();
                }
                if space.fits_whole(keyspace) {
                    let _ = keyspace.major_compact();
                } else {
                    tracing::warn!(free = space.free(), "tables not compacted, the disk is too full");
                }
            }
        };
        self.thread = std::thread::Builder::new().name("store-compact".into()).spawn(compactor).ok();
        self.last = Some(Instant::now());
    }

    /// Waits for the compaction that runs, for a bounded time: on a disk that was full, the database can wait for the
    /// flush of a table that it has given up. What is left behind ends with the process, and loses nothing.
    fn wait(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let begin = Instant::now();
        while !thread.is_finished() {
            if begin.elapsed() >= COMPACTION_END_MAX {
                tracing::warn!("compaction not ended in time; it ends with the process");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = thread.join();
    }
}

/// Sends the committer passes over the users with dead rows, in a circle: one with many rows does not delay the others.
/// The next tick makes up for a mail that is dropped.
pub(super) fn remove_dead(
    db: &Database,
    cursors: &mut SweepCursors,
    committer: &Sender<CommitterMail>,
    store_status: &StoreStatus,
) {
    if !db.has_dead_rows() {
        return;
    }
    let mut users = if cursors.marks.is_empty() { Vec::new() } else { marked(db, &cursors.marks) };
    if users.is_empty() {
        users = marked(db, rows::REMOVAL_PREFIX);
    }
    match users.last() {
        Some(last) => cursors.marks = rows::removal_key(*last),
        None => {
            store_status.tell(committer, CleanupOp::NoDeadRows);
        }
    }
    for uaid in users.iter().cycle().take(if users.is_empty() { 0 } else { PASSES_PER_TICK }) {
        store_status.tell(committer, CleanupOp::DeadRows(*uaid));
    }
}

/// The next users with dead rows behind this row of `meta`.
fn marked(db: &Database, after: &[u8]) -> Vec<Uaid> {
    let last = rows::removal_key(Uaid([0xff; 16]));
    let behind = (Bound::Excluded(after), Bound::Included(&last[..]));
    let marks = db.meta.range::<&[u8], _>(behind).take(PASSES_PER_TICK);
    let uaid = |row: fjall::Guard| rows::uaid_of(row.key().ok()?.strip_prefix(rows::REMOVAL_PREFIX)?);
    marks.filter_map(uaid).collect()
}

/// The sweep steps of one tick.
pub(super) fn sweep_steps(
    db: &Database,
    cursors: &mut SweepCursors,
    now: UnixSeconds,
    committer: &Sender<CommitterMail>,
    store_status: &StoreStatus,
) {
    cursors.rest = cursors.rest.saturating_sub(1);
    if cursors.rest > 0 {
        return;
    }
    let rows = db.messages.approximate_len().max(db.users.approximate_len()) as u64;
    let strides_per_round = (rows / ROWS_PER_STEP as u64).max(1);
    let due = strides_per_round.div_ceil(TICKS_PER_ROUND).min(STEPS_PER_TICK_MAX);
    let mut made = 0;
    let mut dense = true;
    while made < STEPS_PER_TICK_MAX && (dense || made < due) {
        made += 1;
        dense = sweep_step(db, cursors, now, committer, store_status);
    }
    // A small store is looked at once a second.
    cursors.rest = if dense { 0 } else { (TICKS_PER_ROUND / strides_per_round).min(TICKS_PER_MEASURE) };
}

/// Makes one sweep step of each walk. Returns true if many rows were dead and the committer takes more of them. A read
/// error ends the sweep step; the next one starts behind it.
fn sweep_step(
    db: &Database,
    cursors: &mut SweepCursors,
    now: UnixSeconds,
    committer: &Sender<CommitterMail>,
    store_status: &StoreStatus,
) -> bool {
    let (mut taken, mut found) = (true, 0);
    let mut low_waters = HashMap::new();
    let dead = collect(&db.messages, &mut cursors.messages, |key, value| {
        let Some(peek) = rows::peek(value) else { return false };
        let mut settled = || {
            let (Some(uaid), false) = (rows::uaid_of(key), peek.saved) else { return false };
            let low_water = low_waters.entry(uaid).or_insert_with(|| low_water(db, uaid));
            rows::parse_message_key(key).is_some_and(|(_, stamp, _)| stamp.clock <= *low_water)
        };
        peek.expires <= now || settled()
    });
    found += dead.len();
    if !dead.is_empty() {
        taken &= store_status.tell(committer, CleanupOp::MessageRows(dead));
    }
    let dead = collect(&db.topics, &mut cursors.topics, |_, value| rows::peek(value).is_some_and(|p| p.expires <= now));
    found += dead.len();
    if !dead.is_empty() {
        taken &= store_status.tell(committer, CleanupOp::TopicRows(dead, now));
    }
    let gone = collect(&db.users, &mut cursors.users, |_, value| {
        Record::parse(value).is_some_and(|record| idle(record.seen(), now))
    });
    let gone: Vec<Uaid> = gone.iter().filter_map(|key| rows::uaid_of(key)).collect();
    if !gone.is_empty() {
        taken &= store_status.tell(committer, CleanupOp::IdleUsers(gone, now));
    }
    taken && found >= DEAD_ROWS_DENSE
}

/// The low water of a user; 0 if it cannot be read.
fn low_water(db: &Database, uaid: Uaid) -> Clock {
    query::record(db, uaid).ok().flatten().map_or(Clock(0), |record| record.low_water())
}

/// Keys of the wanted rows among the next `ROWS_PER_STRIDE` from `cursor`, which moves on.
fn collect(keyspace: &Keyspace, cursor: &mut Vec<u8>, mut wanted: impl FnMut(&[u8], &[u8]) -> bool) -> Vec<Slice> {
    let mut found = Vec::new();
    let mut last = None;
    let mut count = 0;
    for row in keyspace.range(cursor.clone()..).take(ROWS_PER_STEP) {
        let Ok((key, value)) = row.into_inner() else { break };
        count += 1;
        if wanted(&key, &value) {
            found.push(key.clone());
        }
        last = Some(key);
    }
    cursor.clear();
    if count == ROWS_PER_STEP {
        cursor.extend(last.iter().flat_map(|key| key.iter()));
        cursor.push(0);
    }
    found
}
