//! Salvage of a damaged store: every table and every journal is read by itself, and their rows are merged.
//!
//! Nothing is opened as a database, so a damaged block, table, journal or manifest loses only its own rows. A block
//! that cannot be read is passed over, and every file is read once. Of several versions of a row the one that was
//! written last counts, deletes included.
//!
//! Lives on: the thread of a command, which holds the lock of the damaged store.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fjall::Slice;
use lsm_tree::{Cache, Checksum, DescriptorTable, InternalValue, Table};
use machine::ids::{Chid, Clock, Uaid};
use machine::time::UnixSeconds;

use super::copy::{Copied, Target};
use super::database::{Database, KEYSPACES};
use super::directory::{has_format, take_lock};
use super::error::StoreOpenError;
use super::group::Numbers;
use super::record::{self, Record};
use super::rows::{self, ChannelRow};
use super::{journal, query};

/// Places of keyspaces in [`KEYSPACES`].
const META: usize = 3;
const CHANNELS: usize = 4;
/// Cache of blocks while tables are read, bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// Tables of a keyspace that are open at once; the others are opened again when their turn comes. A table whose index
/// is damaged stays open beside them.
pub(super) const OPEN_TABLES_MAX: usize = 64;
/// The smallest block that a table can have, bytes: it bounds how many of its blocks can be unreadable.
const BLOCK_BYTES_MIN: u64 = 64;
/// Rows between two reports of progress.
const ROWS_PER_STEP: u64 = 100_000;

/// Progress of a salvage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub keyspace: &'static str,
    /// Number of tables of the keyspace.
    pub tables: usize,
    /// Rows of the keyspace that were restored so far.
    pub rows: u64,
}

/// Restores the readable part of the store in `dir` to `dest`, a new directory. The files of `dir` are only read.
///
/// # Errors
/// If `dir` is in use or of a format that this version does not know, `dest` is not empty or not writable, or the
/// journals of `dir` cannot be listed. Files that cannot be read are no error: [`Copied`] counts the losses.
pub fn salvage(dir: &Path, dest: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Copied, StoreOpenError> {
    let _lock = take_lock(dir)?;
    if let Err(fault) = has_format(dir)
        && fault.is_other_format()
    {
        return Err(fault);
    }
    let source = dir.join("db");
    let mut copied = Copied::default();
    let journals = journals(&source, &mut copied)?;
    let (target, numbers) = (Target::create(dest)?, Numbers::default());
    let mut restore = Restore { target, numbers, lossy: [false; KEYSPACES.len()], copied: &mut copied };
    for (nth, keyspace) in KEYSPACES.into_iter().enumerate() {
        let before = restore.copied.losses();
        let paths = tables(&source, nth);
        restore.copied.unreadable_tables += u64::from(paths.is_none());
        let paths = paths.unwrap_or_default();
        match missing_tables(&source, nth, &paths) {
            Some(missing) => restore.copied.unreadable_tables += missing,
            None => restore.copied.damaged_manifests += 1,
        }
        let mut sources: Vec<Source> = Vec::new();
        let open = Open::default();
        for path in paths {
            match TableRows::open(&path, sources.len() as u64, &open) {
                Some(table) => sources.push(Source::Table(table)),
                None => restore.copied.unreadable_tables += 1,
            }
        }
        let (tables, mut rows) = (sources.len(), 0);
        sources.push(Source::Journals(journal_rows(&journals, nth).into_iter()));
        progress(Progress { keyspace, tables, rows });
        merge(&mut sources, |key, value| {
            rows += 1;
            if rows.is_multiple_of(ROWS_PER_STEP) {
                progress(Progress { keyspace, tables, rows });
            }
            restore.row(nth, key, value)
        })?;
        progress(Progress { keyspace, tables, rows });
        for table in &sources {
            table.count_lost(restore.copied);
        }
        restore.lossy[nth] = restore.copied.losses() > before;
    }
    restore.finish()?;
    Ok(copied)
}

/// The new store, and facts from its rows.
struct Restore<'a> {
    target: Target,
    /// At least as high as in any row: the row of `meta` with them may be lost.
    numbers: Numbers,
    /// Keyspaces with tables that could not be read in full.
    lossy: [bool; KEYSPACES.len()],
    copied: &'a mut Copied,
}

impl Restore<'_> {
    fn row(&mut self, nth: usize, key: &[u8], value: &[u8]) -> Result<(), StoreOpenError> {
        let (mut clock, mut registration) = (0, 0);
        match nth {
            1 | 2 => {
                registration = rows::peek(value).map_or(0, |peek| peek.registration);
                clock = match nth {
                    1 => rows::parse_message_key(key).map_or(0, |(_, stamp, _)| stamp.clock.0),
                    _ => rows::message(value).map_or(0, |message| message.stamp.clock.0),
                };
            }
            3 if value.len() == 8 && key == rows::CLOCK_KEY => clock = rows::word(value, 0),
            3 if value.len() == 8 && key == rows::REGISTRATION_KEY => registration = rows::word(value, 0),
            4 => {
                let channel = ChannelRow::parse(value);
                (clock, registration) = channel.map_or((0, 0), |row| (row.registered_at.0, row.registration));
            }
            _ => {}
        }
        self.numbers.clock = self.numbers.clock.max(Clock(clock));
        self.numbers.registration = self.numbers.registration.max(registration);
        self.copied.count(nth);
        let mut value = value.to_vec();
        if nth == 0 {
            // The write that set the mark may be lost.
            record::set_mark(&mut value);
        }
        self.target.put(nth, key, &value)
    }

    /// Makes records and channels agree: each was restored by itself. A user of whom only channels are left gets a new
    /// record, so that its subscriptions live on.
    fn finish(mut self) -> Result<(), StoreOpenError> {
        self.target.write()?;
        let db = self.target.db.clone();
        let dest = self.target.dest.clone();
        let unreadable = |error| StoreOpenError::database(&dest, error);
        for row in db.users.iter() {
            let (key, value) = row.into_inner().map_err(unreadable)?;
            let Some(uaid) = rows::uaid_of(&key) else { continue };
            let channels = query::channels(&db, uaid).map_err(unreadable)?;
            let Some(mut record) = Record::parse(&value) else { continue };
            record.set_channels(registrations(&channels));
            if record.as_bytes() != &value[..] {
                self.target.put(0, &key, record.as_bytes())?;
            }
        }
        self.target.write()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut last = None;
        for row in db.channels.iter() {
            let uaid = rows::uaid_of(&row.key().map_err(unreadable)?);
            let Some(uaid) = uaid.filter(|_| uaid != last) else { continue };
            last = Some(uaid);
            if db.users.contains_key(uaid.0).map_err(unreadable)? {
                continue;
            }
            let mut record = Record::new();
            record.saw(UnixSeconds(now));
            record.mark(true);
            record.set_channels(registrations(&query::channels(&db, uaid).map_err(unreadable)?));
            self.copied.users += 1;
            self.target.put(0, &uaid.0, record.as_bytes())?;
        }
        if self.lossy[META] {
            self.remove_dead(&db)?;
        }
        let Numbers { clock, registration } = self.numbers;
        self.target.put(META, rows::CLOCK_KEY, &clock.0.to_be_bytes())?;
        self.target.put(META, rows::REGISTRATION_KEY, &registration.to_be_bytes())?;
        self.target.finish()
    }

    /// Removes the rows of channels and users that are no more. The rows of `meta` that name them may be lost. A row
    /// stays where the row of its channel may be lost, too.
    fn remove_dead(&mut self, db: &Database) -> Result<(), StoreOpenError> {
        let dest = self.target.dest.clone();
        let unreadable = |error| StoreOpenError::database(&dest, error);
        let all_channels = !self.lossy[CHANNELS] && self.copied.damaged_journals == 0;
        for (nth, keyspace) in [(1, &db.messages), (2, &db.topics)] {
            let mut of_user: (Option<Uaid>, HashMap<Chid, u64>) = Default::default();
            for row in keyspace.iter() {
                let (key, value) = row.into_inner().map_err(unreadable)?;
                let chid = match nth {
                    1 => rows::parse_message_key(&key).map(|(_, _, chid)| chid),
                    _ => rows::chid_in(&key),
                };
                let (Some(uaid), Some(chid), Some(peek)) = (rows::uaid_of(&key), chid, rows::peek(&value)) else {
                    continue;
                };
                if of_user.0 != Some(uaid) {
                    of_user = (Some(uaid), registrations(&query::channels(db, uaid).map_err(unreadable)?).collect());
                }
                if of_user.1.get(&chid).map_or(all_channels, |registration| *registration != peek.registration) {
                    self.target.remove(nth, &key)?;
                    self.copied.uncount(nth);
                }
            }
        }
        Ok(())
    }
}

fn registrations(channels: &[(Chid, ChannelRow)]) -> impl Iterator<Item = (Chid, u64)> {
    channels.iter().map(|(chid, channel)| (*chid, channel.registration))
}

/// One version of a row.
struct Version {
    key: Slice,
    seqno: u64,
    /// `None` is a delete.
    value: Option<Slice>,
}

/// Versions in the order of their keys, of one key the newest first.
enum Source {
    Table(TableRows),
    Journals(std::vec::IntoIter<Version>),
}

impl Source {
    fn next(&mut self) -> Option<Version> {
        match self {
            Source::Table(table) => table.next(),
            Source::Journals(rows) => rows.next(),
        }
    }

    fn count_lost(&self, copied: &mut Copied) {
        if let Source::Table(table) = self {
            copied.unreadable_blocks += table.unreadable;
            copied.lost_rows += table.item_count.saturating_sub(table.read);
        }
    }
}

/// Blocks and files of the tables of one keyspace, shared by all of them.
struct Open {
    cache: Arc<Cache>,
    files: Arc<DescriptorTable>,
}

impl Default for Open {
    fn default() -> Open {
        let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
        Open { cache, files: Arc::new(DescriptorTable::new(OPEN_TABLES_MAX)) }
    }
}

/// A table that is read around its damaged blocks.
struct TableRows {
    rows: Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>>>,
    item_count: u64,
    read: u64,
    unreadable: u64,
    unreadable_max: u64,
}

impl TableRows {
    /// `None` if even the end of the file is unreadable. `number` differs for each table of a keyspace.
    fn open(path: &Path, number: u64, open: &Open) -> Option<TableRows> {
        let bytes = fs::metadata(path).ok()?.len();
        let open = |pin_index| {
            let (cache, open) = (Arc::clone(&open.cache), Arc::clone(&open.files));
            // The checksum of the whole file is not needed: each block has its own.
            Table::recover(path.to_owned(), Checksum::from_raw(0), 0, number, cache, Some(open), false, pin_index)
        };
        let whole = |table: &Table| (table.metadata.item_count, bytes / BLOCK_BYTES_MIN);
        let (rows, (item_count, unreadable_max)): (Box<dyn Iterator<Item = _>>, _) = match open(true) {
            Ok(table) => (Box::new(table.iter()), whole(&table)),
            // Without its index it is read from its beginning to the first damaged block.
            Err(_) => {
                let table = open(false).ok()?;
                (Box::new(table.scan().ok()?), (table.metadata.item_count, 0))
            }
        };
        Some(TableRows { rows, item_count, read: 0, unreadable: 0, unreadable_max })
    }

    /// The next version that can be read. The iterator of a table stands behind a block that it could not read.
    fn next(&mut self) -> Option<Version> {
        loop {
            match self.rows.next()? {
                Ok(row) => {
                    self.read += 1;
                    let value = (!row.is_tombstone()).then_some(row.value);
                    return Some(Version { key: row.key.user_key, seqno: row.key.seqno, value });
                }
                Err(_) => {
                    self.unreadable += 1;
                    if self.unreadable > self.unreadable_max {
                        return None;
                    }
                }
            }
        }
    }
}

/// The first version of a source that was not taken yet.
struct Head {
    version: Version,
    source: usize,
}

impl Ord for Head {
    /// The greatest is next: the first key, and of one key the newest version.
    fn cmp(&self, other: &Head) -> Ordering {
        other.version.key.cmp(&self.version.key).then(self.version.seqno.cmp(&other.version.seqno))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

/// Hands the newest version of every row to `take`, in the order of the keys.
fn merge(
    sources: &mut [Source],
    mut take: impl FnMut(&[u8], &[u8]) -> Result<(), StoreOpenError>,
) -> Result<(), StoreOpenError> {
    let first = |(source, rows): (usize, &mut Source)| rows.next().map(|version| Head { version, source });
    let mut heads: BinaryHeap<Head> = sources.iter_mut().enumerate().filter_map(first).collect();
    let mut taken: Option<Slice> = None;
    while let Some(Head { version, source }) = heads.pop() {
        heads.extend(sources.get_mut(source).and_then(Source::next).map(|version| Head { version, source }));
        if taken.as_ref() == Some(&version.key) {
            continue;
        }
        if let Some(value) = &version.value {
            take(&version.key, value)?;
        }
        taken = Some(version.key);
    }
    Ok(())
}

/// The files of the tables of a keyspace; `None` when their directory cannot be read.
fn tables(source: &Path, nth: usize) -> Option<Vec<PathBuf>> {
    // fjall numbers keyspaces from 1 in the order of their creation.
    let entries = fs::read_dir(source.join(format!("keyspaces/{}/tables", nth + 1))).ok()?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    Some(paths)
}

/// Number of tables of a keyspace that its manifest names and that are not there; `None` when the manifest cannot be
/// read, because the tables are then unknown.
fn missing_tables(source: &Path, nth: usize, there: &[PathBuf]) -> Option<u64> {
    let keyspace = source.join(format!("keyspaces/{}", nth + 1));
    let is_there = |id: &u64| there.contains(&keyspace.join(format!("tables/{id}")));
    Some(table_ids(&keyspace)?.iter().filter(|id| !is_there(id)).count() as u64)
}

/// Numbers of the tables in the manifest of a keyspace, as lsm-tree 3.1 writes it: the file `current` has the number of
/// the manifest and its checksum.
fn table_ids(keyspace: &Path) -> Option<Vec<u64>> {
    let current = fs::read(keyspace.join("current")).ok()?;
    let mut left = &current[..];
    let version = keyspace.join(format!("v{}", u64::from_le_bytes(take(&mut left)?)));
    let checksum = u128::from_le_bytes(take(&mut left)?);
    let bytes = fs::read(&version).ok().filter(|bytes| xxhash_rust::xxh3::xxh3_128(bytes) == checksum)?;
    let archive = sfa::Reader::new(&version).ok()?;
    let section = archive.toc().section(b"tables")?;
    let end = section.pos().checked_add(section.len())?;
    let mut left = bytes.get(usize::try_from(section.pos()).ok()?..usize::try_from(end).ok()?)?;
    let mut ids = Vec::new();
    for _ in 0..take::<1>(&mut left)?[0] {
        for _ in 0..take::<1>(&mut left)?[0] {
            for _ in 0..u32::from_le_bytes(take(&mut left)?) {
                ids.push(u64::from_le_bytes(take(&mut left)?));
                // Kind and value of the checksum, and a sequence number.
                take::<25>(&mut left)?;
            }
        }
    }
    Some(ids)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// The bytes of every journal. The beginning of a batch at the end of the last one is no damage: its writes were never
/// answered.
fn journals(source: &Path, copied: &mut Copied) -> Result<Vec<Vec<u8>>, StoreOpenError> {
    let paths = journal::list(source)?;
    let mut journals = Vec::new();
    for (nth, path) in paths.iter().enumerate() {
        let Ok(bytes) = fs::read(path) else {
            copied.damaged_journals += 1;
            continue;
        };
        let damaged = match journal::ending(&bytes) {
            journal::Ending::Whole => false,
            journal::Ending::Torn(_) => nth + 1 < paths.len(),
            journal::Ending::Damaged(_) => true,
        };
        copied.damaged_journals += u64::from(damaged);
        journals.push(bytes);
    }
    Ok(journals)
}

/// Rows of a keyspace in the journals.
fn journal_rows(journals: &[Vec<u8>], nth: usize) -> Vec<Version> {
    let mut rows = Vec::new();
    for bytes in journals {
        for batch in journal::batches(bytes) {
            let of_keyspace = batch.items.into_iter().filter(|item| item.keyspace == nth as u64 + 1);
            rows.extend(of_keyspace.map(|item| Version {
                key: Slice::from(&bytes[item.key]),
                seqno: batch.seqno,
                value: item.value.map(|value| Slice::from(&bytes[value])),
            }));
        }
    }
    // Of one batch the last item counts.
    rows.reverse();
    rows.sort_by(|a, b| a.key.cmp(&b.key).then(b.seqno.cmp(&a.seqno)));
    rows
}
