//! One group of operations on its way into one write batch.
//!
//! Operations see the ones before them through the overlay below; those that need to scan rows first write the
//! batch out, unsynced, and scan the database. Nothing of a group is answered before the group is synced.
//!
//! Lives on: the committer.

mod load;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fjall::{OwnedWriteBatch, Slice};
use shards::ids::{Chid, Clock, KeyDigest, Stamp, Uaid};
use shards::limits;
use shards::machine::{RowKey, StoreError, StoreOp, StoreReply};
use shards::message::{Held, Message};
use shards::simple::Contact;
use shards::time::UnixSeconds;

use super::database::Database;
use super::query;
use super::rows::{self, Record};
use super::stats::StoreStats;
use crate::store::idle;

pub(super) use load::Load;

/// Rows that one settling of a low water removes; reads do not show the others, the keeper removes them.
const LOW_WATER_ROWS_MAX: usize = 1_024;

/// Why an operation of a group was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// For whoever asked.
    Refused(StoreError),
    /// The database could not read: for whoever asked, and counted.
    Read(fjall::Error),
    /// The database could not write: nobody may be told anything any more.
    Write(fjall::Error),
}

/// Rows that the keeper or a reader found dead.
pub(super) enum Upkeep {
    /// Keys of expired or settled message rows: a key names its version.
    MessageRows(Vec<Slice>),
    /// Keys of expired topic rows, to be judged again at this time.
    TopicRows(Vec<Slice>, UnixSeconds),
    /// Users nobody saw for long, to be judged again at this time.
    IdleUsers(Vec<Uaid>, UnixSeconds),
    /// A user whose mark says that there may be rows when a read found none.
    ClearMark(Uaid),
}

/// Changes that are not written yet, and what they change.
pub(super) struct Group<'a> {
    db: &'a Database,
    stats: &'a mut StoreStats,
    batch: OwnedWriteBatch,
    users: HashMap<Uaid, Pending>,
    topics: HashMap<Vec<u8>, Option<Held>>,
    /// Users with rows in the batch.
    touched: HashSet<Uaid>,
    /// The greatest clock in any row of this boot, and what `meta` has.
    clock: &'a mut Clock,
    clock_written: Clock,
    bytes: u64,
    full: bool,
}

struct Pending {
    record: Option<Record>,
    changed: bool,
}

impl<'a> Group<'a> {
    /// An empty group. `full` says whether new rows are refused.
    pub(super) fn new(db: &'a Database, stats: &'a mut StoreStats, clock: &'a mut Clock, full: bool) -> Group<'a> {
        Group {
            db,
            stats,
            batch: batch(db),
            users: HashMap::new(),
            topics: HashMap::new(),
            touched: HashSet::new(),
            clock_written: *clock,
            clock,
            bytes: 0,
            full,
        }
    }

    /// Applies one operation to the group.
    pub(super) fn apply(&mut self, op: StoreOp) -> Result<StoreReply, Trouble> {
        match op {
            StoreOp::Touch { uaid, seen } => self.touch(uaid, seen),
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence: _ } => {
                self.register(uaid, (chid, key, at), seen, contact.as_deref())
            }
            StoreOp::SetContact { uaid, contact } => self.set_contact(uaid, &contact),
            // Nobody else reads this directory.
            StoreOp::SetPresence { .. } | StoreOp::ClearPresence { .. } => Ok(StoreReply::Done),
            StoreOp::Unregister { uaid, chid, at } => self.unregister(uaid, chid, at),
            StoreOp::DropUser { uaid } => {
                self.stats.store_drops += 1;
                self.drop_user(uaid)
            }
            StoreOp::Publish { message, checked: _ } => self.publish(&message),
            StoreOp::Save { messages } => {
                let full = self.full;
                self.save(&messages, full)
            }
            StoreOp::Settle { rows, low_water, durable: _ } => self.settle(&rows, low_water),
            StoreOp::LoadUser { .. } | StoreOp::Topics { .. } | StoreOp::Messages { .. } | StoreOp::Read { .. } => {
                self.stats.store_reads_behind_writes += 1;
                self.write_out_for(op.uaid())?;
                answer(self.db, &op).map(|found| found.reply).map_err(Trouble::Read)
            }
        }
    }

    /// Stores what a ledger kept; `full` refuses, replay at start never does.
    pub(super) fn save(&mut self, messages: &[Arc<Message>], full: bool) -> Result<StoreReply, Trouble> {
        if full {
            return self.refuse_full();
        }
        // Every lookup comes before the first change: a batch of one user is whole or not there.
        let mut kept = Vec::with_capacity(messages.len());
        for message in messages {
            let known = self.user(message.uaid)?.as_ref().is_some_and(|record| record.has_channel(message.chid));
            if known && self.is_newest(message)? {
                kept.push(message);
            }
        }
        self.stats.store_saves += 1;
        self.stats.store_saved_messages += kept.len() as u64;
        for message in kept {
            // Again, from the overlay: two of them may want the same topic slot.
            if self.is_newest(message)? {
                self.keep(message, true);
            }
        }
        Ok(StoreReply::Done)
    }

    /// Removes what the keeper or a reader found, where that is still so.
    pub(super) fn upkeep(&mut self, upkeep: Upkeep) -> Result<(), Trouble> {
        match upkeep {
            Upkeep::MessageRows(keys) => {
                self.stats.store_expired_reclaimed += keys.len() as u64;
                for key in keys {
                    self.touched.extend(rows::uaid_of(&key));
                    self.bytes += key.len() as u64;
                    self.batch.remove(&self.db.messages, key);
                }
            }
            Upkeep::TopicRows(keys, now) => {
                for key in keys {
                    self.write_out_if(|group| group.topics.contains_key(&key[..]))?;
                    let value = self.db.topics.get(&key).map_err(Trouble::Read)?;
                    if value.and_then(|value| rows::peek(&value)).is_some_and(|peek| peek.expires <= now) {
                        self.stats.store_expired_reclaimed += 1;
                        self.remove_topic(key.to_vec());
                    }
                }
            }
            Upkeep::IdleUsers(uaids, now) => {
                for uaid in uaids {
                    if self.user(uaid)?.as_ref().is_some_and(|record| idle(record.seen(), now)) {
                        self.stats.store_idle_users_reclaimed += 1;
                        self.drop_user(uaid)?;
                    }
                }
            }
            Upkeep::ClearMark(uaid) => self.clear_mark(uaid)?,
        }
        Ok(())
    }

    /// Writes what there is to the journal's buffer and to the tree, unsynced.
    pub(super) fn write_out(&mut self) -> Result<(), Trouble> {
        for (uaid, pending) in self.users.drain().filter(|(_, pending)| pending.changed) {
            match pending.record {
                Some(record) => {
                    self.bytes += record.as_bytes().len() as u64;
                    self.batch.insert(&self.db.users, uaid.0, record.as_bytes());
                }
                None => self.batch.remove(&self.db.users, uaid.0),
            }
        }
        self.topics.clear();
        self.touched.clear();
        if self.batch.is_empty() {
            return Ok(());
        }
        if *self.clock > self.clock_written {
            self.batch.insert(&self.db.meta, rows::CLOCK_KEY, self.clock.0.to_be_bytes());
            self.clock_written = *self.clock;
        }
        self.stats.store_bytes_written += self.bytes;
        self.bytes = 0;
        std::mem::replace(&mut self.batch, batch(self.db)).commit().map_err(Trouble::Write)
    }

    fn write_out_if(&mut self, pending: impl Fn(&Group) -> bool) -> Result<(), Trouble> {
        if pending(self) { self.write_out() } else { Ok(()) }
    }

    fn write_out_for(&mut self, uaid: Uaid) -> Result<(), Trouble> {
        self.write_out_if(|group| {
            group.touched.contains(&uaid) || group.users.get(&uaid).is_some_and(|pending| pending.changed)
        })
    }

    fn touch(&mut self, uaid: Uaid, seen: UnixSeconds) -> Result<StoreReply, Trouble> {
        self.stats.store_touches += 1;
        if self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.saw(seen));
        }
        Ok(StoreReply::Done)
    }

    fn register(
        &mut self,
        uaid: Uaid,
        channel: (Chid, Option<KeyDigest>, Clock),
        seen: UnixSeconds,
        contact: Option<&Contact>,
    ) -> Result<StoreReply, Trouble> {
        if self.full {
            return self.refuse_full();
        }
        let (chid, key, at) = channel;
        let known = self.user(uaid)?.as_ref().map(|record| (record.channel_count(), record.has_channel(chid)));
        if known.is_some_and(|(count, has)| count >= limits::CHANNELS_MAX && !has) {
            return self.refuse_full();
        }
        self.stats.store_registers += 1;
        self.raise_clock(at);
        self.change(uaid, |record| {
            record.saw(seen);
            record.advance(at);
            record.add_channel(chid, key, at);
            if let Some(contact) = contact {
                record.set_contact(contact);
            }
        });
        Ok(StoreReply::Done)
    }

    fn set_contact(&mut self, uaid: Uaid, contact: &Contact) -> Result<StoreReply, Trouble> {
        self.stats.store_contacts += 1;
        if self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.set_contact(contact));
        }
        Ok(StoreReply::Done)
    }

    fn unregister(&mut self, uaid: Uaid, chid: Chid, at: Clock) -> Result<StoreReply, Trouble> {
        self.stats.store_unregisters += 1;
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Done) };
        let (had, may_have_messages) = (record.has_channel(chid), record.may_have_messages());
        // Without the channel there are no rows of it: they are only written while it is registered.
        if had && may_have_messages {
            self.write_out_for(uaid)?;
            let keys = self.keys_of(uaid, |key| rows::parse_message_key(key).is_some_and(|(_, _, of)| of == chid))?;
            let topics = self.topics_of(uaid, |key| rows::topic_chid(key) == Some(chid))?;
            self.remove_rows(uaid, keys, topics);
        }
        self.raise_clock(at);
        // A scan may have written the overlay out.
        self.user(uaid)?;
        self.change(uaid, |record| {
            record.advance(at);
            record.remove_channel(chid);
        });
        Ok(StoreReply::Done)
    }

    fn drop_user(&mut self, uaid: Uaid) -> Result<StoreReply, Trouble> {
        let may_have_messages = self.user(uaid)?.as_ref().map(Record::may_have_messages);
        if may_have_messages.is_none() {
            return Ok(StoreReply::Done);
        }
        if may_have_messages == Some(true) {
            self.write_out_for(uaid)?;
            let keys = self.keys_of(uaid, |_| true)?;
            let topics = self.topics_of(uaid, |_| true)?;
            self.remove_rows(uaid, keys, topics);
        }
        self.users.insert(uaid, Pending { record: None, changed: true });
        Ok(StoreReply::Done)
    }

    fn publish(&mut self, message: &Arc<Message>) -> Result<StoreReply, Trouble> {
        self.stats.store_publishes += 1;
        let user = self.user(message.uaid)?.as_ref().filter(|record| record.has_channel(message.chid));
        let Some(record) = user else { return Ok(StoreReply::NoSubscription) };
        if message.mode() != record.mode() {
            return Ok(StoreReply::OtherMode);
        }
        // What low water covers already would never be read: such a straggler is kept like a saved row.
        let saved = message.stamp.clock <= record.low_water();
        if message.ttl == 0 {
            return Ok(StoreReply::Done);
        }
        if self.full {
            return self.refuse_full();
        }
        if self.is_newest(message)? {
            self.keep(message, saved);
        }
        Ok(StoreReply::Done)
    }

    fn settle(&mut self, settled: &[RowKey], low_water: Option<Clock>) -> Result<StoreReply, Trouble> {
        let Some(uaid) = settled.first().map(|row| row.uaid) else { return Ok(StoreReply::Done) };
        self.stats.store_settles += 1;
        self.stats.store_settled_rows += settled.len() as u64;
        let mut exact = Vec::new();
        for row in settled.iter().filter(|row| row.topic.is_some()) {
            let key = rows::row_key(row);
            if self.topic_held(&key)?.is_some_and(|held| held.stamp == row.stamp) {
                exact.push(key);
            }
        }
        let covered = match low_water {
            Some(clock) if self.user(uaid)?.is_some() => self.covered_rows(uaid, clock)?,
            Some(_) | None => Vec::new(),
        };
        let named = settled.iter().filter(|row| row.topic.is_none());
        let keys = named.map(|row| Slice::from(rows::row_key(row))).chain(covered).collect();
        self.remove_rows(uaid, keys, exact);
        if let Some(clock) = low_water
            && self.user(uaid)?.is_some()
        {
            self.raise_clock(clock);
            self.change(uaid, |record| record.settled(clock));
        }
        Ok(StoreReply::Done)
    }

    /// Message rows at or below `clock`, some of them.
    fn covered_rows(&mut self, uaid: Uaid, clock: Clock) -> Result<Vec<Slice>, Trouble> {
        self.write_out_for(uaid)?;
        let above = Clock(clock.0.saturating_add(1));
        let end = rows::message_key(uaid, Stamp { clock: above, ..Stamp::default() }, Chid([0; 16]));
        let mut keys = Vec::new();
        for row in self.db.messages.range(&uaid.0[..]..&end[..]).take(LOW_WATER_ROWS_MAX) {
            let (key, value) = row.into_inner().map_err(Trouble::Read)?;
            if rows::peek(&value).is_some_and(|peek| !peek.saved) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    fn clear_mark(&mut self, uaid: Uaid) -> Result<(), Trouble> {
        self.write_out_for(uaid)?;
        let last = query::last_key(uaid);
        let empty = [&self.db.messages, &self.db.topics].into_iter().all(|keyspace| {
            let first = keyspace.range(&uaid.0[..]..=&last[..]).next();
            first.is_none()
        });
        if empty && self.user(uaid)?.as_ref().is_some_and(Record::may_have_messages) {
            self.change(uaid, |record| {
                record.mark(false);
            });
        }
        Ok(())
    }

    /// Puts a message into its row. Its user is in the overlay and its channel registered.
    fn keep(&mut self, message: &Arc<Message>, saved: bool) {
        let value = rows::value(message, saved);
        self.bytes += (rows::MESSAGE_KEY_BYTES + value.len()) as u64;
        self.raise_clock(message.stamp.clock);
        match &message.topic {
            Some(topic) => {
                let key = rows::topic_key(message.uaid, message.chid, topic);
                self.batch.insert(&self.db.topics, &key[..], value);
                self.topics.insert(key, Some(message.held()));
            }
            None => {
                let key = rows::message_key(message.uaid, message.stamp, message.chid);
                self.batch.insert(&self.db.messages, key, value);
            }
        }
        self.touched.insert(message.uaid);
        if let Some(Pending { record: Some(record), changed }) = self.users.get_mut(&message.uaid)
            && record.mark(true)
        {
            record.advance(message.stamp.clock);
            *changed = true;
        }
    }

    /// Whether this message takes its topic slot from what stands there.
    fn is_newest(&mut self, message: &Message) -> Result<bool, Trouble> {
        let Some(topic) = &message.topic else { return Ok(true) };
        let there = self.topic_held(&rows::topic_key(message.uaid, message.chid, topic))?;
        Ok(there.is_none_or(|held| message.replaces(&held)))
    }

    fn topic_held(&mut self, key: &[u8]) -> Result<Option<Held>, Trouble> {
        if let Some(held) = self.topics.get(key) {
            return Ok(*held);
        }
        let value = self.db.topics.get(key).map_err(Trouble::Read)?;
        let held = value.and_then(|value| rows::message(&value)).map(|message| message.held());
        self.topics.insert(key.to_vec(), held);
        Ok(held)
    }

    /// The record of a user as the operations before left it.
    fn user(&mut self, uaid: Uaid) -> Result<&Option<Record>, Trouble> {
        use std::collections::hash_map::Entry;
        Ok(match self.users.entry(uaid) {
            Entry::Occupied(entry) => &entry.into_mut().record,
            Entry::Vacant(entry) => {
                let record = query::record(self.db, uaid).map_err(Trouble::Read)?;
                &entry.insert(Pending { record, changed: false }).record
            }
        })
    }

    /// Changes a record that [`Group::user`] has looked up; makes it when there is none.
    fn change(&mut self, uaid: Uaid, change: impl FnOnce(&mut Record)) {
        let pending = self.users.entry(uaid).or_insert(Pending { record: None, changed: false });
        change(pending.record.get_or_insert_with(Record::new));
        pending.changed = true;
    }

    fn keys_of(&self, uaid: Uaid, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Slice>, Trouble> {
        keys(&self.db.messages, uaid, wanted)
    }

    fn topics_of(&self, uaid: Uaid, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Vec<u8>>, Trouble> {
        keys(&self.db.topics, uaid, wanted).map(|keys| keys.iter().map(|key| key.to_vec()).collect())
    }

    fn remove_rows(&mut self, uaid: Uaid, messages: Vec<Slice>, topics: Vec<Vec<u8>>) {
        self.touched.insert(uaid);
        for key in messages {
            self.bytes += key.len() as u64;
            self.batch.remove(&self.db.messages, key);
        }
        for key in topics {
            self.remove_topic(key);
        }
    }

    fn remove_topic(&mut self, key: Vec<u8>) {
        self.touched.extend(rows::uaid_of(&key));
        self.bytes += key.len() as u64;
        self.batch.remove(&self.db.topics, &key[..]);
        self.topics.insert(key, None);
    }

    fn raise_clock(&mut self, clock: Clock) {
        *self.clock = (*self.clock).max(clock);
    }

    fn refuse_full(&mut self) -> Result<StoreReply, Trouble> {
        self.stats.store_full += 1;
        Err(Trouble::Refused(StoreError::Full))
    }
}

/// Answers a read from the database.
pub(super) fn answer(db: &Database, op: &StoreOp) -> fjall::Result<query::Found> {
    match op {
        StoreOp::Topics { uaid, after, limit, now } => query::topics(db, *uaid, *after, *limit, *now),
        StoreOp::Messages { uaid, after, limit, now } => query::messages(db, *uaid, *after, *limit, *now),
        StoreOp::Read { row, now } => query::read(db, row, *now),
        StoreOp::LoadUser { uaid } => query::user(db, *uaid),
        StoreOp::Touch { .. }
        | StoreOp::Register { .. }
        | StoreOp::SetContact { .. }
        | StoreOp::SetPresence { .. }
        | StoreOp::ClearPresence { .. }
        | StoreOp::Unregister { .. }
        | StoreOp::DropUser { .. }
        | StoreOp::Publish { .. }
        | StoreOp::Save { .. }
        | StoreOp::Settle { .. } => unreachable!("the port sends no write to a reader"),
    }
}

/// A batch that leaves syncing to the committer.
fn batch(db: &Database) -> OwnedWriteBatch {
    db.fjall.batch().durability(None)
}

fn keys(keyspace: &fjall::Keyspace, uaid: Uaid, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Slice>, Trouble> {
    let last = query::last_key(uaid);
    let mut keys = Vec::new();
    for row in keyspace.range(&uaid.0[..]..=&last[..]) {
        let key = row.key().map_err(Trouble::Read)?;
        if wanted(&key) {
            keys.push(key);
        }
    }
    Ok(keys)
}
