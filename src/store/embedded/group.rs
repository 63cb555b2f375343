//! One group of operations on its way into one write batch.
//!
//! Operations see the ones before them through the overlay below; those that need to scan rows first write the
//! batch out, unsynced, and scan the database. Nothing of a group is answered before the group is synced.
//!
//! Lives on: the committer.

mod load;
mod messages;
mod upkeep;
mod users;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use fjall::{OwnedWriteBatch, Slice};
use shards::ids::{Clock, Uaid};
use shards::machine::{StoreError, StoreOp, StoreReply};
use shards::message::Held;

use super::database::Database;
use super::query;
use super::rows::{self, Record};
use super::stats::StoreStats;

pub(super) use load::Load;
pub(super) use upkeep::Upkeep;

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
            StoreOp::Save { .. } if self.full => self.refuse_full(),
            StoreOp::Save { messages } => self.save(&messages),
            StoreOp::Settle { rows, low_water, durable: _ } => self.settle(&rows, low_water),
            StoreOp::LoadUser { .. } | StoreOp::Topics { .. } | StoreOp::Messages { .. } | StoreOp::Read { .. } => {
                self.stats.store_reads_behind_writes += 1;
                self.write_out_for(op.uaid())?;
                query::answer(self.db, &op).map(|found| found.reply).map_err(Trouble::Read)
            }
        }
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

    /// The record of a user as the operations before left it.
    fn user(&mut self, uaid: Uaid) -> Result<&Option<Record>, Trouble> {
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
