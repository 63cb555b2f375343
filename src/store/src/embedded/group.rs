//! One group of operations on its way into one write batch.
//!
//! Operations see the ones before them through the overlay below; those that need to scan rows first write the
//! batch out, unsynced, and scan the database. Nothing of a group is answered before the group is synced.
//!
//! Lives on: the committer.

pub(super) mod load;
mod messages;
pub(super) mod removal;
pub(super) mod cleanup;
mod share;
mod users;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use fjall::{OwnedWriteBatch, Slice};
use machine::ids::{Chid, Clock, KeyDigest, Stamp, Uaid};
use machine::message::TopicHolder;
use machine::{StoreError, StoreOp, StoreReply};

use super::database::Database;
use super::query;
use super::record::Record;
use super::room::Room;
use super::rows::{self, ChannelRow};
use super::shares::Shares;
use super::stats::StoreStats;

/// Reason for which an operation of a group was not done.
#[derive(Debug)]
pub(super) enum WriteError {
    /// An answer to the operation.
    Refused(StoreError),
    /// The database could not read: the operation is answered, and the fault is counted.
    Read(fjall::Error),
    /// The database could not write: nothing may be promised any more.
    Write(fjall::Error),
}

/// Numbers that only rise. The committer's; in `meta` with every group that raises them.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    /// The greatest clock in any row.
    pub(super) clock: Clock,
    /// The last registration of a channel.
    pub(super) registration: u64,
}

/// Reason for which a row is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowEnd {
    /// The user has it, or its sender took it back.
    Acked,
    /// It expired, was replaced, or its channel is no more.
    Gone,
}

/// Unwritten changes, on top of the database.
pub(super) struct Group<'a> {
    db: &'a Database,
    stats: &'a mut StoreStats,
    batch: OwnedWriteBatch,
    users: HashMap<Uaid, Pending>,
    /// Registrations of channels that were looked up or changed, for records that do not name them.
    channels: HashMap<(Uaid, Chid), Option<u64>>,
    /// Messages in topic slots.
    topics: HashMap<Vec<u8>, Option<TopicSlot>>,
    /// Users with rows in the batch.
    touched: HashSet<Uaid>,
    numbers: &'a mut Numbers,
    /// Their values in `meta`.
    numbers_written: Numbers,
    bytes: u64,
    shares: &'a mut Shares,
    rooms: Rooms,
    wrote: bool,
}

/// Room for the rows of a group.
pub(super) struct Rooms {
    /// Decides which operations are refused.
    pub(super) room: Room,
    /// Room for messages, which those of the group lower.
    pub(super) left: machine::share::Room,
    /// Bound on the rows of a user.
    pub(super) user_rows_max: u64,
}

/// A row of a topic.
#[derive(Clone, Copy)]
struct TopicSlot {
    held: TopicHolder,
    registration: u64,
    /// Bytes of key and value.
    bytes: usize,
}

struct Pending {
    record: Option<Record>,
    changed: bool,
}

impl<'a> Group<'a> {
    /// Creates an empty group.
    pub(super) fn new(
        db: &'a Database,
        stats: &'a mut StoreStats,
        numbers: &'a mut Numbers,
        shares: &'a mut Shares,
        rooms: Rooms,
    ) -> Group<'a> {
        Group {
            db,
            stats,
            batch: batch(db),
            users: HashMap::new(),
            channels: HashMap::new(),
            topics: HashMap::new(),
            touched: HashSet::new(),
            numbers_written: *numbers,
            numbers,
            bytes: 0,
            shares,
            rooms,
            wrote: false,
        }
    }

    pub(super) fn apply(&mut self, op: StoreOp) -> Result<StoreReply, WriteError> {
        if self.rooms.room == Room::Nothing && !op.is_read() {
            return self.refuse_full();
        }
        match op {
            StoreOp::Touch { uaid, seen } => self.touch(uaid, seen),
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence: _, maker } => {
                self.register(uaid, (chid, key, at), seen, contact.as_deref(), maker)
            }
            StoreOp::Subscribe { uaid, chid, key, at } => self.subscribe(uaid, (chid, key, at)),
            StoreOp::SetContact { uaid, contact, durable: _ } => self.set_contact(uaid, &contact),
            // No other node reads this directory.
            StoreOp::SetPresence { .. } | StoreOp::ClearPresence { .. } => Ok(StoreReply::Done),
            StoreOp::Unregister { uaid, chid, at } => self.unregister(uaid, chid, at),
            StoreOp::DropUser { uaid } => {
                self.stats.store_drops += 1;
                self.drop_user(uaid)
            }
            StoreOp::DropIdle { uaid } => self.drop_idle(uaid),
            StoreOp::SetBridge { uaid, bridge } => self.set_bridge(uaid, &bridge),
            StoreOp::MarkRefused { uaid, registered, at } => self.mark_refused(uaid, registered, at),
            StoreOp::ClearRefused { uaid, registered } => self.clear_refused(uaid, registered),
            StoreOp::DropBridged { uaid, registered } => self.drop_bridged(uaid, registered),
            StoreOp::Publish { message, checked: _ } => self.publish(&message),
            StoreOp::Save { .. } if self.rooms.room >= Room::OnlyDeletes => self.refuse_full(),
            StoreOp::Save { messages } => self.save(&messages),
            StoreOp::Settle { rows, low_water, durable: _ } => self.settle(&rows, low_water),
            StoreOp::Tried { rows } => self.tried(&rows),
            StoreOp::LoadUser { .. }
            | StoreOp::Locate { .. }
            | StoreOp::Topics { .. }
            | StoreOp::Messages { .. }
            | StoreOp::Read { .. } => {
                self.stats.store_reads_behind_writes += 1;
                self.write_out_for(op.uaid())?;
                query::answer(self.db, &op).map(|found| found.reply).map_err(WriteError::Read)
            }
        }
    }

    /// Writes the pending changes to the journal's buffer and to the tree, unsynced.
    pub(super) fn write_out(&mut self) -> Result<(), WriteError> {
        for (uaid, pending) in self.users.drain().filter(|(_, pending)| pending.changed) {
            match pending.record {
                Some(record) => {
                    self.bytes += record.as_bytes().len() as u64;
                    self.batch.insert(&self.db.users, uaid.0, record.as_bytes());
                }
                None => self.batch.remove(&self.db.users, uaid.0),
            }
        }
        self.channels.clear();
        self.topics.clear();
        self.touched.clear();
        if self.batch.is_empty() {
            return Ok(());
        }
        let (numbers, written) = (*self.numbers, self.numbers_written);
        if numbers.clock > written.clock {
            self.batch.insert(&self.db.meta, rows::CLOCK_KEY, numbers.clock.0.to_be_bytes());
        }
        if numbers.registration > written.registration {
            self.batch.insert(&self.db.meta, rows::REGISTRATION_KEY, numbers.registration.to_be_bytes());
        }
        self.numbers_written = numbers;
        self.wrote = true;
        self.stats.store_bytes_written += self.bytes;
        self.bytes = 0;
        std::mem::replace(&mut self.batch, batch(self.db)).commit().map_err(WriteError::Write)
    }

    fn write_out_if(&mut self, pending: impl Fn(&Group) -> bool) -> Result<(), WriteError> {
        if pending(self) { self.write_out() } else { Ok(()) }
    }

    fn write_out_for(&mut self, uaid: Uaid) -> Result<(), WriteError> {
        self.write_out_if(|group| {
            group.touched.contains(&uaid) || group.users.get(&uaid).is_some_and(|pending| pending.changed)
        })
    }

    /// The record of a user after the operations before.
    fn user(&mut self, uaid: Uaid) -> Result<&Option<Record>, WriteError> {
        Ok(match self.users.entry(uaid) {
            Entry::Occupied(entry) => &entry.into_mut().record,
            Entry::Vacant(entry) => {
                let record = query::record(self.db, uaid).map_err(WriteError::Read)?;
                &entry.insert(Pending { record, changed: false }).record
            }
        })
    }

    /// Changes a record that [`Group::user`] has looked up; creates it if there is none.
    fn change(&mut self, uaid: Uaid, change: impl FnOnce(&mut Record)) {
        let pending = self.users.entry(uaid).or_insert(Pending { record: None, changed: false });
        let record = pending.record.get_or_insert_with(Record::new);
        let before = record.charge();
        change(record);
        pending.changed = true;
        self.shares.charge(uaid, before, record.charge());
    }

    /// The registration of a channel after the operations before; `None` if it is not registered.
    fn registration(&mut self, uaid: Uaid, chid: Chid) -> Result<Option<u64>, WriteError> {
        // No channel is there without its user: they are dropped in one batch.
        let Some(record) = self.user(uaid)? else { return Ok(None) };
        if let Some(mut names) = record.names() {
            return Ok(names.find(|(named, _)| *named == chid).map(|(_, registration)| registration));
        }
        if let Some(registration) = self.channels.get(&(uaid, chid)) {
            return Ok(*registration);
        }
        let row = self.db.channels.get(rows::channel_key(uaid, chid)).map_err(WriteError::Read)?;
        // As with records: a row of an unknown version is not "none".
        let parse = |row: Slice| ChannelRow::parse(&row).ok_or(WriteError::Read(fjall::Error::Unrecoverable));
        let registration = row.map(parse).transpose()?.map(|row| row.registration);
        self.channels.insert((uaid, chid), registration);
        Ok(registration)
    }

    /// The key of a channel that is registered, after the operations before.
    fn channel_key(&mut self, uaid: Uaid, chid: Chid) -> Result<Option<KeyDigest>, WriteError> {
        self.write_out_for(uaid)?;
        let row = self.db.channels.get(rows::channel_key(uaid, chid)).map_err(WriteError::Read)?;
        let row = row.and_then(|row| ChannelRow::parse(&row)).ok_or(WriteError::Read(fjall::Error::Unrecoverable))?;
        Ok(row.key)
    }

    /// Registers a channel that is not there; makes its user when there is none.
    fn add_channel(&mut self, uaid: Uaid, chid: Chid, row: ChannelRow) {
        let (key, value) = (rows::channel_key(uaid, chid), row.value());
        self.touched.insert(uaid);
        self.bytes += (key.len() + value.len()) as u64;
        self.batch.insert(&self.db.channels, key, value);
        self.channels.insert((uaid, chid), Some(row.registration));
        self.change(uaid, |record| record.add_channel(chid, row.registration));
    }

    /// Removes the row of a channel. Its user's record goes, too, or loses the channel.
    fn remove_channel_row(&mut self, uaid: Uaid, chid: Chid) {
        let key = rows::channel_key(uaid, chid);
        self.touched.insert(uaid);
        self.bytes += key.len() as u64;
        self.batch.remove(&self.db.channels, key);
        self.channels.insert((uaid, chid), None);
    }

    /// Removes a message row, which may not be there.
    fn remove_message(&mut self, uaid: Uaid, key: Slice, end: RowEnd) -> Result<(), WriteError> {
        if let Some((_, stamp, _)) = rows::parse_message_key(&key).filter(|(_, stamp, _)| rows::is_counted(*stamp)) {
            self.write_out_for(uaid)?;
            if let Some(value) = self.db.messages.get(&key).map_err(WriteError::Read)? {
                self.row_went(uaid, stamp, key.len() + value.len(), end)?;
            }
        }
        self.shares.row_went(uaid);
        self.touched.insert(uaid);
        self.stats.store_rows_deleted += 1;
        self.bytes += key.len() as u64;
        self.batch.remove(&self.db.messages, key);
        Ok(())
    }

    /// Counts the removal of a row, if rows of this stamp are counted.
    fn row_went(&mut self, uaid: Uaid, stamp: Stamp, bytes: usize, end: RowEnd) -> Result<(), WriteError> {
        if rows::is_counted(stamp) && self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.row_went(bytes, end == RowEnd::Acked));
        }
        Ok(())
    }

    /// Removes the topic row of this stamp, which is there.
    fn remove_topic(&mut self, key: Vec<u8>, stamp: Stamp, end: RowEnd) -> Result<(), WriteError> {
        if let Some(uaid) = rows::uaid_of(&key) {
            if let Some(slot) = self.topic_held(&key)? {
                self.row_went(uaid, stamp, slot.bytes, end)?;
            }
            self.shares.row_went(uaid);
            self.touched.insert(uaid);
        }
        self.stats.store_rows_deleted += 1;
        self.bytes += key.len() as u64;
        self.batch.remove(&self.db.topics, &key[..]);
        self.topics.insert(key, None);
        Ok(())
    }

    pub(super) fn wrote(&self) -> bool {
        self.wrote
    }

    fn raise_clock(&mut self, clock: Clock) {
        self.numbers.clock = self.numbers.clock.max(clock);
    }

    fn refuse_full(&mut self) -> Result<StoreReply, WriteError> {
        self.stats.store_full += 1;
        Err(WriteError::Refused(StoreError::Full))
    }
}

/// A batch that leaves syncing to the committer.
fn batch(db: &Database) -> OwnedWriteBatch {
    db.fjall.batch().durability(None)
}
