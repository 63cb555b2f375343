//! Room on the disk: the writes that still fit, and a compaction that waits until it fits.
//!
//! An error of a write, a flush or a compaction poisons fjall, and nothing can be promised any more. So the store
//! refuses while there is still room for the cost of all accepted writes: the tables of its write buffers, one
//! compaction, and a reserve. The reserve is used up in steps, so that the most necessary writes come last.
//!
//! ```text
//! free >= 2 x write buffers + largest compaction + reserve        everything
//!                                                + reserve / 2    no messages of POSTs, no transfers
//!                                                + reserve / 4    no registers either
//! free >=     write buffers                      + reserve / 8    only deletes and changes of records
//! less, or many tables in level 0 while a compaction is under way nothing
//! ```
//! `store.max_bytes` bounds the directory in the same steps, with an eighth of it on top for all but messages.
//! Before the first step, shares of the room that is left are given (`left`).
//!
//! Lives on: the keeper measures, the committer asks, threads of fjall wait.

mod left;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::database::{Database, KEYSPACES};
use super::error::StoreOpenError;
use super::journal;
use super::options::Options;

/// Maximum input of one step of a compaction: level 0 at the bound at which fjall halts writes, and level 1.
const COMPACTION_BYTES_MAX: u64 = 2 << 30;
/// Bounds of the room above `store.max_bytes` for registers and saves.
const HEAD_ROOM_BYTES: (u64, u64) = (256 << 20, 1 << 30);
/// Free space without which a store is not opened.
const OPEN_BYTES_MIN: u64 = 16 << 20;
/// Pause of a compaction that does not fit, between two looks.
const COMPACTION_PAUSE: Duration = Duration::from_millis(200);
/// Tables in level 0 from which on nothing is written while a compaction is under way: it copies, or waits for its turn
/// or for room. At 20 fjall slows every write down and at 30 it halts them, until that compaction has come to its end;
/// four write buffers may be on their way.
pub(super) const LEVEL_0_TABLES_MAX: usize = 20;
/// Age at which a look at the disk is repeated before a group. Other writers add little beside the reserve meanwhile,
/// and the committer's own bytes are counted.
const LOOK_AGE_MAX: Duration = Duration::from_millis(10);
/// Silence of the log about room that goes up and down.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Writes that are taken. Each step refuses what the one before refuses, and more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Room {
    /// Everything.
    Plenty,
    /// Everything but messages of POSTs and transfers.
    NoMessages,
    /// Nor registers.
    NoRegisters,
    /// Deletes and changes of records.
    OnlyDeletes,
    /// Nothing: the write buffers could not become tables.
    Nothing,
}

/// State of the disk. Written by the keeper and the committer, read by the committer.
#[derive(Debug)]
pub(super) struct Space {
    dir: PathBuf,
    bytes_max: u64,
    bytes_free_min: u64,
    started: Instant,
    /// Time of the last look, microseconds since `started`.
    looked: AtomicU64,
    used: AtomicU64,
    /// The part of it that is journals.
    journals: AtomicU64,
    /// Bytes in write buffers at the same time: tables of tomorrow.
    unflushed: AtomicU64,
    free: AtomicU64,
    total: AtomicU64,
    /// Bytes in write buffers.
    buffers: AtomicU64,
    /// Bytes in the tables of each keyspace.
    tables: [AtomicU64; KEYSPACES.len()],
    /// Bytes written since `used` was measured, and since `free` was.
    used_since: AtomicU64,
    free_since: AtomicU64,
    /// Bytes that compactions under way have copied: this part of their need is on disk already.
    pub(super) copied: AtomicU64,
    /// Rows deleted since the last compaction.
    deleted: AtomicU64,
    /// Most tables in level 0 of any keyspace.
    level_0: AtomicUsize,
    /// Compactions that wait for room.
    held: AtomicUsize,
    /// Compactions that copy, or wait for their turn or for room.
    under_way: AtomicUsize,
    /// True while a compaction copies; the others wait for their turn. `room` counts on one.
    turn: Mutex<bool>,
    turns: Condvar,
    /// Compactions that wait end with an error instead: the store closes.
    closing: AtomicBool,
}

impl Space {
    pub(super) fn new(dir: &Path, options: &Options) -> Space {
        let zero = || AtomicU64::new(0);
        Space {
            dir: dir.into(),
            bytes_max: options.bytes_max,
            bytes_free_min: options.bytes_free_min,
            started: Instant::now(),
            looked: zero(),
            used: zero(),
            journals: zero(),
            unflushed: zero(),
            free: AtomicU64::new(u64::MAX),
            total: AtomicU64::new(u64::MAX),
            buffers: zero(),
            tables: [const { AtomicU64::new(0) }; KEYSPACES.len()],
            used_since: zero(),
            free_since: zero(),
            copied: zero(),
            deleted: zero(),
            level_0: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            turn: Mutex::new(false),
            turns: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    /// Reads how much there is on disk.
    pub(super) fn measure(&self, db: &Database) {
        // Before the tables: a buffer that becomes one meanwhile counts twice and not never.
        let unflushed = db.buffer_bytes();
        if let Ok(bytes) = db.fjall.disk_space() {
            self.used_since.store(0, Ordering::Relaxed);
            self.used.store(bytes, Ordering::Relaxed);
            self.unflushed.store(unflushed, Ordering::Relaxed);
            let tables: u64 = db.keyspaces().into_iter().map(fjall::Keyspace::disk_space).sum();
            self.journals.store(bytes.saturating_sub(tables), Ordering::Relaxed);
        }
        self.look(db);
    }

    /// Looks again, unless the last look was a moment ago. Before each group: other writers may have filled the disk.
    pub(super) fn look_again(&self, db: &Database) {
        let since = self.now().saturating_sub(self.looked.load(Ordering::Relaxed));
        if since >= LOOK_AGE_MAX.as_micros() as u64 {
            self.look(db);
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Reads how much the file system has left and how large the tables are that will be made or made anew.
    pub(super) fn look(&self, db: &Database) {
        self.looked.store(self.now(), Ordering::Relaxed);
        let buffers = db.buffer_bytes();
        if self.buffers.swap(buffers, Ordering::Relaxed) >= buffers {
            // Tables grow when a buffer has become one.
            for (bytes, keyspace) in self.tables.iter().zip(db.keyspaces()) {
                bytes.store(keyspace.disk_space(), Ordering::Relaxed);
            }
            let level_0 = db.keyspaces().into_iter().map(fjall::Keyspace::l0_table_count).max();
            self.level_0.store(level_0.unwrap_or(0), Ordering::Relaxed);
        }
        if let Ok(stat) = rustix::fs::statvfs(&self.dir) {
            self.free_since.store(0, Ordering::Relaxed);
            self.free.store(stat.f_bavail.saturating_mul(stat.f_frsize), Ordering::Relaxed);
            self.total.store(stat.f_blocks.saturating_mul(stat.f_frsize), Ordering::Relaxed);
        }
    }

    /// Counts bytes and deletes that the committer has written.
    pub(super) fn wrote(&self, bytes: u64, deletes: u64) {
        self.used_since.fetch_add(bytes, Ordering::Relaxed);
        self.free_since.fetch_add(bytes, Ordering::Relaxed);
        self.deleted.fetch_add(deletes, Ordering::Relaxed);
    }

    /// Returns the writes that are taken now.
    pub(super) fn room(&self) -> Room {
        if self.is_behind() {
            return Room::Nothing;
        }
        self.room_below_bound().max(self.room_on_disk())
    }

    fn room_below_bound(&self) -> Room {
        let head_room = (self.bytes_max / 8).clamp(HEAD_ROOM_BYTES.0, HEAD_ROOM_BYTES.1);
        match self.used_of_bound().checked_sub(self.bytes_max) {
            None => Room::Plenty,
            Some(over) if over < head_room / 2 => Room::NoMessages,
            Some(over) if over < head_room => Room::NoRegisters,
            Some(_) => Room::OnlyDeletes,
        }
    }

    fn room_on_disk(&self) -> Room {
        let since = self.free_since.load(Ordering::Relaxed);
        let free = self.free().saturating_sub(since);
        let (buffers, reserve) = (self.buffers() + since, self.reserve());
        let growth = 2 * buffers + self.largest_compaction();
        match free {
            free if free >= growth + reserve => Room::Plenty,
            free if free >= growth + reserve / 2 => Room::NoMessages,
            free if free >= growth + reserve / 4 => Room::NoRegisters,
            free if free >= buffers + reserve / 8 => Room::OnlyDeletes,
            _ => Room::Nothing,
        }
    }

    /// Returns the bytes on disk as of the last look.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the file system had left at the last look.
    pub(super) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// A small file system is not all reserve.
    fn reserve(&self) -> u64 {
        self.bytes_free_min.min(self.total.load(Ordering::Relaxed) / 8)
    }

    fn buffers(&self) -> u64 {
        self.buffers.load(Ordering::Relaxed)
    }

    /// Bytes left to write for the largest compaction that may be under way.
    fn largest_compaction(&self) -> u64 {
        let largest = (0..KEYSPACES.len()).map(|nth| self.compaction(nth)).max().unwrap_or(0);
        largest.saturating_sub(self.copied.load(Ordering::Relaxed))
    }

    /// Most bytes that one compaction of a keyspace writes before it removes its input.
    pub(super) fn compaction(&self, nth: usize) -> u64 {
        self.tables[nth].load(Ordering::Relaxed).min(COMPACTION_BYTES_MAX)
    }

    /// Returns true if this much fits beside the tables of the write buffers.
    fn fits(&self, bytes: u64) -> bool {
        let Ok(stat) = rustix::fs::statvfs(&self.dir) else { return true };
        stat.f_bavail.saturating_mul(stat.f_frsize) >= bytes + self.buffers() + self.reserve() / 8
    }

    pub(super) fn fits_whole(&self, keyspace: &fjall::Keyspace) -> bool {
        self.fits(keyspace.disk_space())
    }

    pub(super) fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }

    /// Number of deletes whose own rows take a part of the reserve worth a compaction, at about 100 bytes each.
    pub(super) fn deletes_worth_compacting(&self) -> u64 {
        self.reserve() / 16 / 100
    }

    /// Notes that a compaction begins: deletes are counted from zero.
    pub(super) fn compacting(&self) {
        self.deleted.store(0, Ordering::Relaxed);
    }

    /// Returns true while fjall may halt writes until a compaction ends. Without one under way the next table of
    /// level 0 begins one, so writes go on.
    fn is_behind(&self) -> bool {
        let level_0 = self.level_0.load(Ordering::Relaxed);
        level_0 >= LEVEL_0_TABLES_MAX && self.under_way.load(Ordering::Relaxed) > 0
    }

    #[cfg(test)]
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Makes compactions that wait give up.
    pub(super) fn close(&self) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.closing.store(true, Ordering::Relaxed);
        drop(turn);
        self.turns.notify_all();
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Waits until no other compaction copies and this many bytes fit. The caller gives the turn back.
    pub(super) fn take_turn(&self, bytes: u64) -> Result<(), fjall::LsmError> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let taken = self.wait_for_turn(bytes);
        if taken.is_err() {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    fn wait_for_turn(&self, bytes: u64) -> Result<(), fjall::LsmError> {
        let mut held = None;
        loop {
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = self.turns.wait_while(turn, |taken| *taken && !self.is_closing());
            let mut turn = turn.unwrap_or_else(PoisonError::into_inner);
            if self.is_closing() {
                return Err(closing());
            }
            if self.fits(bytes) {
                *turn = true;
                return Ok(());
            }
            // A smaller one may have its turn meanwhile.
            drop(turn);
            held.get_or_insert_with(|| Held::new(self, bytes));
            std::thread::sleep(COMPACTION_PAUSE);
        }
    }

    pub(super) fn give_turn(&self) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.turns.notify_all();
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until the write buffers and what is left of the reserve fit, in the middle of a compaction.
    pub(super) fn wait_for_room(&self) -> Result<(), fjall::LsmError> {
        let mut held = None;
        while !self.fits(0) {
            if self.is_closing() {
                return Err(closing());
            }
            held.get_or_insert_with(|| Held::new(self, 0));
            std::thread::sleep(COMPACTION_PAUSE);
        }
        Ok(())
    }
}

/// A compaction that waits for room; it is counted and logged.
struct Held<'a>(&'a Space);

impl Held<'_> {
    fn new(space: &Space, bytes: u64) -> Held<'_> {
        tracing::warn!(bytes, free = space.free(), "compaction held back, the disk is too full");
        space.held.fetch_add(1, Ordering::Relaxed);
        Held(space)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

fn closing() -> fjall::LsmError {
    fjall::LsmError::Io(std::io::Error::new(std::io::ErrorKind::Interrupted, "the store closes"))
}

/// Last state of room that was logged.
pub(super) struct Told {
    room: Room,
    scarce: bool,
    at: Option<Instant>,
}

impl Default for Told {
    fn default() -> Told {
        Told { room: Room::Plenty, scarce: false, at: None }
    }
}

impl Told {
    /// Logs a change of room; not too often when it goes up and down.
    pub(super) fn tell(&mut self, space: &Space) {
        let (room, left) = (space.room(), space.left());
        let lately = self.at.is_some_and(|at| at.elapsed() < TOLD_EVERY);
        let (now, told) = ((room, left.is_scarce()), (self.room, self.scarce));
        if now == told || (lately && now < told) {
            return;
        }
        (self.room, self.scarce, self.at) = (now.0, now.1, Some(Instant::now()));
        let (free, used) = (space.free(), space.used());
        let needed = 2 * space.buffers() + space.largest_compaction() + space.reserve();
        let max = (space.bytes_max != u64::MAX).then_some(space.bytes_max);
        match room {
            Room::Plenty if left.is_scarce() => tracing::warn!(
                left = left.left,
                "storage nearly full: messages refused of users with more than their share"
            ),
            Room::Plenty => tracing::info!(free, used, "storage has room again"),
            Room::NoMessages => tracing::error!(free, needed, used, max, "storage full: messages refused"),
            Room::NoRegisters => tracing::error!(free, needed, used, max, "storage full: registers refused, too"),
            Room::OnlyDeletes => tracing::error!(free, needed, used, max, "storage full: only deletes taken"),
            Room::Nothing if space.is_behind() => {
                tracing::error!(free, used, "compactions behind: every write refused")
            }
            Room::Nothing => tracing::error!(free, needed, used, max, "disk full: every write refused"),
        }
    }
}

/// Checks that the file system has room for the tables of sealed journals, which fjall writes while it opens.
///
/// # Errors
/// If it has not.
pub(super) fn check_open(dir: &Path, db: &Path) -> Result<(), StoreOpenError> {
    let journals = journal::list(db)?;
    let sealed = journals.iter().rev().skip(1).filter_map(|path| path.metadata().ok());
    let needed = OPEN_BYTES_MIN + sealed.map(|journal| journal.len()).sum::<u64>();
    let Ok(stat) = rustix::fs::statvfs(dir) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free >= needed {
        return Ok(());
    }
    let why = format!("the file system has {free} bytes free and opening may take {needed}");
    Err(StoreOpenError::io(db, "open", std::io::Error::new(std::io::ErrorKind::StorageFull, why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(options: &Options, total: u64, buffers: u64, tables: u64) -> Space {
        let space = Space::new(Path::new("/"), options);
        space.total.store(total, Ordering::Relaxed);
        space.buffers.store(buffers, Ordering::Relaxed);
        space.tables[1].store(tables, Ordering::Relaxed);
        space
    }

    #[test]
    fn a_disk_is_refused_in_steps_before_it_is_full() {
        let space = space(&Options::default(), 800 * MIB, 20 * MIB, 100 * MIB);
        let at = |free: u64| {
            space.free.store(free * MIB, Ordering::Relaxed);
            space.room()
        };
        // The reserve is 100 MiB: an eighth of it all.
        assert_eq!((at(240), at(239)), (Room::Plenty, Room::NoMessages));
        assert_eq!((at(190), at(189)), (Room::NoMessages, Room::NoRegisters));
        assert_eq!((at(165), at(164)), (Room::NoRegisters, Room::OnlyDeletes));
        assert_eq!((at(33), at(32)), (Room::OnlyDeletes, Room::Nothing));
        space.wrote(MIB, 0);
        assert_eq!((at(243), at(242)), (Room::Plenty, Room::NoMessages), "a byte written is taken three times");
        space.copied.store(40 * MIB, Ordering::Relaxed);
        assert_eq!(at(203), Room::Plenty, "what a compaction has written is gone from what is free");
    }

    #[test]
    fn a_compaction_of_a_large_store_takes_in_a_part_of_it() {
        let space = space(&Options::default(), 1 << 40, 0, 1 << 39);
        space.free.store((2 << 30) + 256 * MIB, Ordering::Relaxed);
        assert_eq!(space.room(), Room::Plenty);
    }

    #[test]
    fn the_bound_on_bytes_leaves_head_room_for_what_must_happen() {
        let options = Options { bytes_max: 4 << 30, ..Options::default() };
        let space = space(&options, 1 << 40, 0, 0);
        space.journals.store(320 * MIB, Ordering::Relaxed);
        let at = |used: u64| {
            space.used.store(used * MIB, Ordering::Relaxed);
            space.room()
        };
        assert_eq!((at(4_095), at(4_096)), (Room::Plenty, Room::NoMessages));
        assert_eq!((at(4_351), at(4_352)), (Room::NoMessages, Room::NoRegisters));
        assert_eq!((at(4_607), at(4_608)), (Room::NoRegisters, Room::OnlyDeletes));
    }
}
