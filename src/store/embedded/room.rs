//! Room on the disk: which writes still fit, and a compaction that waits until it does.
//!
//! An error of a write, a flush or a compaction poisons fjall, and nothing can be promised any more. So the store
//! refuses while there is still room for everything that what it has taken will cost: the tables of its write
//! buffers, one compaction, and a reserve that is used up in steps, so that what must happen comes last.
//!
//! ```text
//! free >= 2 x write buffers + largest compaction + reserve        everything
//!                                                + reserve / 2    no messages of POSTs, no transfers
//!                                                + reserve / 4    no registers either
//! free >=     write buffers                      + reserve / 8    only deletes and changes of records
//! less                                                            nothing
//! ```
//! `store.max_bytes` bounds the directory in the same steps, with an eighth of it on top for all but messages.
//!
//! Lives on: the keeper measures, the committer asks, threads of fjall wait.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use shards::wall::Wall;

use super::database::{Database, KEYSPACES};
use super::fault::StoreFault;
use super::{Options, journal, rows};

/// More than this no step of a compaction takes in: level 0 at the bound at which fjall halts writes, and level 1.
const COMPACTION_BYTES_MAX: u64 = 2 << 30;
/// Bounds of what `store.max_bytes` leaves on top for registers and saves.
const HEAD_ROOM_BYTES: (u64, u64) = (256 << 20, 1 << 30);
/// Free space without which a store is not opened.
const OPEN_BYTES_MIN: u64 = 16 << 20;
/// Rows that a compaction copies between two looks at the disk: a megabyte or two.
const ROWS_PER_LOOK: u32 = 256;
/// Pause of a compaction that does not fit, between two looks.
const COMPACTION_PAUSE: Duration = Duration::from_millis(200);
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
    /// Nothing: what is in the write buffers could not become tables.
    Nothing,
}

/// State of the disk. Written by the keeper and the committer, read by the committer.
#[derive(Debug)]
pub(super) struct Space {
    dir: PathBuf,
    bytes_max: u64,
    bytes_free_min: u64,
    used: AtomicU64,
    free: AtomicU64,
    total: AtomicU64,
    /// Bytes in write buffers.
    buffers: AtomicU64,
    /// Bytes in the tables of each keyspace.
    tables: [AtomicU64; KEYSPACES.len()],
    /// Written since `used` was measured, and since `free` was.
    used_since: AtomicU64,
    free_since: AtomicU64,
    /// Bytes that compactions under way have copied: of what they need it is there already.
    copied: AtomicU64,
    /// Rows deleted since the last squeeze.
    deleted: AtomicU64,
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
            used: zero(),
            free: AtomicU64::new(u64::MAX),
            total: AtomicU64::new(u64::MAX),
            buffers: zero(),
            tables: [const { AtomicU64::new(0) }; KEYSPACES.len()],
            used_since: zero(),
            free_since: zero(),
            copied: zero(),
            deleted: zero(),
            closing: AtomicBool::new(false),
        }
    }

    /// Reads how much there is on disk.
    pub(super) fn measure(&self, db: &Database) {
        if let Ok(bytes) = db.fjall.disk_space() {
            self.used_since.store(0, Ordering::Relaxed);
            self.used.store(bytes, Ordering::Relaxed);
        }
        self.look(db);
    }

    /// Reads how much the file system has left and how large the tables are that will be made or made anew. Before
    /// each group, too: others may have filled the disk meanwhile.
    pub(super) fn look(&self, db: &Database) {
        let buffers = db.buffer_bytes();
        if self.buffers.swap(buffers, Ordering::Relaxed) >= buffers {
            // Tables grow when a buffer has become one.
            for (bytes, keyspace) in self.tables.iter().zip(db.keyspaces()) {
                bytes.store(keyspace.disk_space(), Ordering::Relaxed);
            }
        }
        if let Ok(stat) = rustix::fs::statvfs(&self.dir) {
            self.free_since.store(0, Ordering::Relaxed);
            self.free.store(stat.f_bavail.saturating_mul(stat.f_frsize), Ordering::Relaxed);
            self.total.store(stat.f_blocks.saturating_mul(stat.f_frsize), Ordering::Relaxed);
        }
    }

    /// The committer has written this much, and so many deletes.
    pub(super) fn wrote(&self, bytes: u64, deletes: u64) {
        self.used_since.fetch_add(bytes, Ordering::Relaxed);
        self.free_since.fetch_add(bytes, Ordering::Relaxed);
        self.deleted.fetch_add(deletes, Ordering::Relaxed);
    }

    /// Returns the writes that are taken now.
    pub(super) fn room(&self) -> Room {
        self.room_below_bound().max(self.room_on_disk())
    }

    fn room_below_bound(&self) -> Room {
        let used = self.used().saturating_add(self.used_since.load(Ordering::Relaxed));
        let head_room = (self.bytes_max / 8).clamp(HEAD_ROOM_BYTES.0, HEAD_ROOM_BYTES.1);
        match used.checked_sub(self.bytes_max) {
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

    /// Bytes on disk as of the last look.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that the file system had left at the last look.
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
    fn compaction(&self, nth: usize) -> u64 {
        self.tables[nth].load(Ordering::Relaxed).min(COMPACTION_BYTES_MAX)
    }

    /// True if this much fits beside what the write buffers become.
    fn fits(&self, bytes: u64) -> bool {
        let Ok(stat) = rustix::fs::statvfs(&self.dir) else { return true };
        stat.f_bavail.saturating_mul(stat.f_frsize) >= bytes + self.buffers() + self.reserve() / 8
    }

    /// True if all of a keyspace can be written anew.
    pub(super) fn fits_whole(&self, keyspace: &fjall::Keyspace) -> bool {
        self.fits(keyspace.disk_space())
    }

    /// Rows deleted since the last squeeze.
    pub(super) fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }

    /// So many deletes that their own rows take a part of the reserve worth a squeeze, at about 100 bytes each.
    pub(super) fn deletes_worth_a_squeeze(&self) -> u64 {
        self.reserve() / 16 / 100
    }

    /// A squeeze begins.
    pub(super) fn squeezing(&self) {
        self.deleted.store(0, Ordering::Relaxed);
    }

    /// The store closes: compactions that wait give up.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Returns when so many bytes fit.
    fn wait_for(&self, bytes: u64) -> Result<(), fjall::LsmError> {
        let mut told = false;
        while !self.fits(bytes) {
            if self.closing.load(Ordering::Relaxed) {
                let closing = std::io::Error::new(std::io::ErrorKind::Interrupted, "the store closes");
                return Err(fjall::LsmError::Io(closing));
            }
            if !told {
                told = true;
                tracing::warn!(bytes, free = self.free(), "compaction held back: the disk is too full for it");
            }
            std::thread::sleep(COMPACTION_PAUSE);
        }
        Ok(())
    }
}

/// Last state of room that was logged.
pub(super) struct Told {
    room: Room,
    at: Option<Instant>,
}

impl Default for Told {
    fn default() -> Told {
        Told { room: Room::Plenty, at: None }
    }
}

impl Told {
    /// Tells the log when room has changed; not too often when it goes up and down.
    pub(super) fn tell(&mut self, space: &Space) {
        let room = space.room();
        let lately = self.at.is_some_and(|at| at.elapsed() < TOLD_EVERY);
        if room == self.room || (lately && room < self.room) {
            return;
        }
        (self.room, self.at) = (room, Some(Instant::now()));
        let (free, used) = (space.free(), space.used());
        let needed = 2 * space.buffers() + space.largest_compaction() + space.reserve();
        let max = (space.bytes_max != u64::MAX).then_some(space.bytes_max);
        match room {
            Room::Plenty => tracing::info!(free, used, "storage has room again"),
            Room::NoMessages => tracing::error!(free, needed, used, max, "storage full: messages refused"),
            Room::NoRegisters => tracing::error!(free, needed, used, max, "storage full: registers refused, too"),
            Room::OnlyDeletes => tracing::error!(free, needed, used, max, "storage full: only deletes taken"),
            Room::Nothing => tracing::error!(free, needed, used, max, "disk full: every write refused"),
        }
    }
}

/// Makes the filters of one keyspace's compactions.
pub(super) struct Pacing {
    space: AssertUnwindSafe<Arc<Space>>,
    /// The time by which message rows are expired; none for other keyspaces, and where nothing is swept.
    wall: Option<AssertUnwindSafe<Arc<Wall>>>,
    nth: usize,
}

impl Pacing {
    /// The factory of the keyspace of this name.
    pub(super) fn of(name: &str, space: &Arc<Space>, wall: Option<&Arc<Wall>>) -> Option<Arc<dyn Factory>> {
        let nth = KEYSPACES.iter().position(|known| *known == name)?;
        let wall = wall.filter(|_| name == "messages");
        let wall = wall.map(|wall| AssertUnwindSafe(Arc::clone(wall)));
        Some(Arc::new(Pacing { space: AssertUnwindSafe(Arc::clone(space)), wall, nth }))
    }
}

impl Factory for Pacing {
    fn name(&self) -> &str {
        "murre"
    }

    // fjall holds locks here; the first row is looked at without them.
    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        let wall = self.wall.as_ref().map(|wall| Arc::clone(wall));
        Box::new(Pace { space: Arc::clone(&self.space), wall, nth: self.nth, begun: false, rows: 0, copied: (0, 0) })
    }
}

/// One compaction: waits until it fits, waits again when others take its room, and leaves expired rows behind.
struct Pace {
    space: Arc<Space>,
    wall: Option<Arc<Wall>>,
    nth: usize,
    begun: bool,
    rows: u32,
    /// Bytes copied, and as many of them as the store was told.
    copied: (u64, u64),
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.space.copied.fetch_sub(self.copied.1, Ordering::Relaxed);
    }
}

impl CompactionFilter for Pace {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        if self.rows == 0 {
            self.rows = ROWS_PER_LOOK;
            let whole = if self.begun { 0 } else { self.space.compaction(self.nth) };
            self.begun = true;
            self.space.wait_for(whole)?;
            self.space.copied.fetch_add(self.copied.0 - self.copied.1, Ordering::Relaxed);
            self.copied.1 = self.copied.0;
        }
        self.rows -= 1;
        let value = item.value()?;
        let expired = |wall: &Arc<Wall>| rows::peek(&value).is_some_and(|peek| peek.expires <= wall.unix());
        // A row that its user's record counts goes through the committer.
        let counted = || rows::parse_message_key(item.key()).is_none_or(|(_, stamp, _)| rows::is_counted(stamp));
        if self.wall.as_ref().is_some_and(expired) && !counted() {
            return Ok(Verdict::Remove);
        }
        self.copied.0 += (item.key().len() + value.len()) as u64;
        Ok(Verdict::Keep)
    }
}

/// Looks whether the file system has room for what fjall writes while it opens: the tables of sealed journals.
///
/// # Errors
/// When it has not.
pub(super) fn check_open(dir: &Path, db: &Path) -> Result<(), StoreFault> {
    let journals = journal::list(db)?;
    let sealed = journals.iter().rev().skip(1).filter_map(|path| path.metadata().ok());
    let needed = OPEN_BYTES_MIN + sealed.map(|journal| journal.len()).sum::<u64>();
    let Ok(stat) = rustix::fs::statvfs(dir) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free >= needed {
        return Ok(());
    }
    let why = format!("the file system has {free} bytes free and opening may take {needed}");
    Err(StoreFault::io(db, "open", std::io::Error::new(std::io::ErrorKind::StorageFull, why)))
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
        let at = |used: u64| {
            space.used.store(used * MIB, Ordering::Relaxed);
            space.room()
        };
        assert_eq!((at(4_095), at(4_096)), (Room::Plenty, Room::NoMessages));
        assert_eq!((at(4_351), at(4_352)), (Room::NoMessages, Room::NoRegisters));
        assert_eq!((at(4_607), at(4_608)), (Room::NoRegisters, Room::OnlyDeletes));
    }
}
