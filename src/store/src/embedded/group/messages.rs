//! Operations on messages: storing, replacing and settling.

use std::sync::Arc;

use fjall::Slice;
use machine::ids::{Chid, Clock, Stamp, Uaid};
use machine::message::{Message, Tries};
use machine::{RowKey, StoreError, StoreReply};

use super::{Group, Pending, RowEnd, TopicSlot, WriteError};
use crate::embedded::room::Room;
use crate::embedded::rows;

/// Rows that one settling of a low water removes; reads do not show the others, the keeper removes them.
const LOW_WATER_ROWS_MAX: usize = 1_024;

impl Group<'_> {
    pub(super) fn publish(&mut self, message: &Arc<Message>) -> Result<StoreReply, WriteError> {
        self.stats.store_publishes += 1;
        let Some(record) = self.user(message.uaid)? else { return Ok(StoreReply::NoSubscription) };
        let (mode, low_water, row_count) = (record.mode(), record.low_water(), record.row_count());
        let bridge = record.bridge();
        let registration = self.registration(message.uaid, message.chid)?;
        let Some(registration) = registration else { return Ok(StoreReply::NoSubscription) };
        if message.mode() != mode {
            return Ok(StoreReply::OtherMode);
        }
        if let Some(bridge) = bridge {
            return Ok(StoreReply::Bridged(Box::new(bridge)));
        }
        // A message at or below low water would never be read: such a straggler is kept like a saved row.
        let saved = message.stamp.clock <= low_water;
        if message.ttl == 0 {
            return Ok(StoreReply::Done);
        }
        if self.rooms.room >= Room::NoMessages {
            return self.refuse_full();
        }
        if row_count >= self.rooms.user_rows_max {
            self.stats.store_user_full += 1;
            return Err(WriteError::Refused(StoreError::Full));
        }
        if self.is_beyond_share(message.uaid)? {
            self.stats.store_share_full += 1;
            return Err(WriteError::Refused(StoreError::Full));
        }
        if self.is_newest(message, registration)? {
            self.keep(message, saved, registration)?;
        }
        Ok(self.written())
    }

    /// Stores messages of a ledger while anything can be written: at start they have no other place.
    pub(in crate::embedded) fn save(&mut self, messages: &[Arc<Message>]) -> Result<StoreReply, WriteError> {
        if self.rooms.room == Room::Nothing {
            return self.refuse_full();
        }
        // Every lookup comes before the first change: a batch of one user is whole or not there.
        let mut kept = Vec::with_capacity(messages.len());
        for message in messages {
            let Some(registration) = self.registration(message.uaid, message.chid)? else { continue };
            if self.is_newest(message, registration)? {
                kept.push((message, registration));
            }
        }
        self.stats.store_saves += 1;
        self.stats.store_saved_messages += kept.len() as u64;
        for (message, registration) in kept {
            // Again, from the overlay: two of them may compete for the same topic slot.
            if self.is_newest(message, registration)? {
                self.keep(message, true, registration)?;
            }
        }
        Ok(self.written())
    }

    pub(super) fn settle(&mut self, settled: &[RowKey], low_water: Option<Clock>) -> Result<StoreReply, WriteError> {
        let Some(uaid) = settled.first().map(|row| row.uaid) else { return Ok(StoreReply::Done) };
        self.stats.store_settles += 1;
        self.stats.store_settled_rows += settled.len() as u64;
        let mut exact = Vec::new();
        for row in settled.iter().filter(|row| row.topic.is_some()) {
            let key = rows::row_key(row);
            if self.topic_held(&key)?.is_some_and(|slot| slot.held.stamp == row.stamp) {
                exact.push((key, row.stamp));
            }
        }
        let covered = match low_water {
            Some(clock) if self.user(uaid)?.is_some() => self.covered_rows(uaid, clock)?,
            Some(_) | None => Vec::new(),
        };
        let named = settled.iter().filter(|row| row.topic.is_none());
        for key in named.map(|row| Slice::from(rows::row_key(row))).chain(covered) {
            self.remove_message(uaid, key, RowEnd::Acked)?;
        }
        for (key, stamp) in exact {
            self.remove_topic(key, stamp, RowEnd::Acked)?;
        }
        if let Some(clock) = low_water
            && self.user(uaid)?.is_some()
        {
            self.raise_clock(clock);
            self.change(uaid, |record| record.settled(clock));
        }
        Ok(StoreReply::Done)
    }

    /// Writes the numbers of failed deliveries of rows, also when storage is full: a row keeps its length.
    pub(super) fn tried(&mut self, tried: &[(RowKey, Tries)]) -> Result<StoreReply, WriteError> {
        let Some(uaid) = tried.first().map(|(row, _)| row.uaid) else { return Ok(StoreReply::Done) };
        self.write_out_for(uaid)?;
        for (row, tries) in tried {
            let keyspace = if row.topic.is_some() { &self.db.topics } else { &self.db.messages };
            let key = rows::row_key(row);
            let Some(value) = keyspace.get(&key).map_err(WriteError::Read)? else { continue };
            let (Some(peek), Some(message)) = (rows::peek(&value), rows::message(&value)) else { continue };
            if message.stamp == row.stamp {
                let value = rows::value(&Message { tries: *tries, ..message }, peek.saved, peek.registration);
                self.bytes += (key.len() + value.len()) as u64;
                self.batch.insert(keyspace, key, value);
                self.touched.insert(uaid);
            }
        }
        Ok(StoreReply::Done)
    }

    /// Message rows at or below `clock`, some of them.
    fn covered_rows(&mut self, uaid: Uaid, clock: Clock) -> Result<Vec<Slice>, WriteError> {
        self.write_out_for(uaid)?;
        let above = Clock(clock.0.saturating_add(1));
        let end = rows::message_key(uaid, Stamp { clock: above, ..Stamp::default() }, Chid([0; 16]));
        let mut keys = Vec::new();
        for row in self.db.messages.range(&uaid.0[..]..&end[..]).take(LOW_WATER_ROWS_MAX) {
            let (key, value) = row.into_inner().map_err(WriteError::Read)?;
            if rows::peek(&value).is_some_and(|peek| !peek.saved) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Puts a message into its row. Its user is in the overlay and its channel registered.
    pub(super) fn keep(&mut self, message: &Arc<Message>, saved: bool, registration: u64) -> Result<(), WriteError> {
        let uaid = message.uaid;
        let value = rows::value(message, saved, registration);
        let bytes = rows::MESSAGE_KEY_BYTES + value.len();
        self.bytes += bytes as u64;
        self.raise_clock(message.stamp.clock);
        let mut is_new = true;
        match &message.topic {
            Some(topic) => {
                let key = rows::topic_key(uaid, message.chid, topic);
                if let Some(slot) = self.topic_held(&key)? {
                    self.row_went(uaid, slot.held.stamp, slot.bytes, RowEnd::Gone)?;
                    self.shares.row_went(uaid);
                }
                self.batch.insert(&self.db.topics, &key[..], value);
                self.topics.insert(key, Some(TopicSlot { held: message.held(), registration, bytes }));
            }
            None => {
                let key = rows::message_key(uaid, message.stamp, message.chid);
                // Only one row in 64 is counted, so only these need the lookup.
                is_new = !rows::is_counted(message.stamp) || !self.db.messages.contains_key(key).unwrap_or(false);
                self.batch.insert(&self.db.messages, key, value);
            }
        }
        self.touched.insert(uaid);
        if is_new && rows::is_counted(message.stamp) && self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.row_came(bytes));
        }
        self.shares.row_came(uaid, bytes as u64);
        self.rooms.left.left = self.rooms.left.left.saturating_sub(bytes as u64);
        if let Some(Pending { record: Some(record), changed }) = self.users.get_mut(&uaid)
            && record.mark(true)
        {
            record.advance(message.stamp.clock);
            *changed = true;
        }
        Ok(())
    }

    /// Returns true if this message takes its topic slot from the one in it. A message of an earlier registration of
    /// the channel is dead.
    pub(super) fn is_newest(&mut self, message: &Message, registration: u64) -> Result<bool, WriteError> {
        let Some(topic) = &message.topic else { return Ok(true) };
        let there = self.topic_held(&rows::topic_key(message.uaid, message.chid, topic))?;
        Ok(there.is_none_or(|slot| slot.registration != registration || message.replaces(&slot.held)))
    }

    pub(super) fn topic_held(&mut self, key: &[u8]) -> Result<Option<TopicSlot>, WriteError> {
        if let Some(held) = self.topics.get(key) {
            return Ok(*held);
        }
        let value = self.db.topics.get(key).map_err(WriteError::Read)?;
        let slot = |value: Slice| {
            let (held, registration) = (rows::message(&value)?.held(), rows::peek(&value)?.registration);
            Some(TopicSlot { held, registration, bytes: rows::MESSAGE_KEY_BYTES + value.len() })
        };
        let held = value.and_then(slot);
        self.topics.insert(key.to_vec(), held);
        Ok(held)
    }
}
