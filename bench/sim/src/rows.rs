//! What storage holds, and what each operation does to it: the laws of DESIGN.md 7 in their plainest form.

use std::collections::BTreeMap;
use std::sync::Arc;

use shards::ids::{Chid, Clock, Stamp, Uaid};
use shards::machine::{Page, RowKey, StoreOp, StoreReply, UserRow};
use shards::message::{Message, Topic, Tries};
use shards::simple::Contact;
use shards::time::UnixSeconds;

/// Every user and every message, by UAID.
#[derive(Clone, Default)]
pub(crate) struct Rows {
    users: BTreeMap<Uaid, User>,
}

#[derive(Clone, Default)]
struct User {
    known: bool,
    seen: UnixSeconds,
    low_water: Clock,
    user_clock: Clock,
    contact: Contact,
    channels: BTreeMap<Chid, Clock>,
    topics: BTreeMap<(Chid, Topic), Arc<Message>>,
    messages: BTreeMap<Stamp, Arc<Message>>,
    saved: BTreeMap<Stamp, Arc<Message>>,
}

impl Rows {
    /// Carries out one operation. `page_max` bounds pages further than the operation does.
    pub(crate) fn apply(&mut self, op: &StoreOp, page_max: usize) -> StoreReply {
        let user = self.users.entry(op.uaid()).or_default();
        match op {
            StoreOp::LoadUser { .. } => StoreReply::User(user.row().map(Box::new)),
            StoreOp::Locate { chid, .. } => StoreReply::User(user.row().map(|mut row| {
                row.channels.retain(|one| one == chid);
                Box::new(row)
            })),
            StoreOp::Touch { seen, .. } => user.touch(*seen),
            StoreOp::Register { chid, at, seen, contact, .. } => {
                user.known = true;
                user.channels.entry(*chid).or_insert(*at);
                user.user_clock = user.user_clock.max(*at);
                user.contact = contact.as_deref().unwrap_or(&user.contact).clone();
                user.touch(*seen)
            }
            StoreOp::SetContact { contact, .. } => {
                user.contact = Contact::clone(contact);
                StoreReply::Done
            }
            StoreOp::SetPresence { .. } | StoreOp::ClearPresence { .. } => StoreReply::Done,
            StoreOp::Unregister { chid, at, .. } => user.unregister(*chid, *at),
            StoreOp::DropUser { .. } => {
                *user = User::default();
                StoreReply::Done
            }
            StoreOp::Publish { message, checked: _ } => user.publish(message),
            StoreOp::Save { messages } => {
                messages.iter().for_each(|message| user.save(message));
                StoreReply::Done
            }
            StoreOp::Topics { after, limit, now, .. } => user.topics(*after, page_max.min(usize::from(*limit)), *now),
            StoreOp::Messages { after, limit, now, .. } => {
                user.messages(*after, page_max.min(usize::from(*limit)), *now)
            }
            StoreOp::Read { row, now } => user.read(row, *now),
            StoreOp::Tried { rows } => {
                rows.iter().for_each(|(row, tries)| user.tried(row, *tries));
                StoreReply::Done
            }
            StoreOp::Settle { rows, low_water, .. } => {
                rows.iter().for_each(|row| user.remove(row));
                user.settle_below(low_water.unwrap_or_default());
                StoreReply::Done
            }
        }
    }

    /// A user with one channel.
    pub(crate) fn know(&mut self, uaid: Uaid, chid: Chid) {
        let user = self.users.entry(uaid).or_default();
        user.known = true;
        user.channels.insert(chid, Clock(1));
    }

    /// Whether storage knows this user.
    pub(crate) fn known(&self, uaid: Uaid) -> bool {
        self.users.get(&uaid).is_some_and(|user| user.known)
    }

    /// Whether the topic slot of this message is taken.
    pub(crate) fn has_topic(&self, message: &Message) -> bool {
        let user = self.users.get(&message.uaid);
        message.topic.is_some_and(|topic| user.is_some_and(|user| user.topics.contains_key(&(message.chid, topic))))
    }

    /// True if this message is here, and a session would be given it.
    pub(crate) fn holds(&self, uaid: Uaid, chid: Chid, topic: Option<Topic>, stamp: Stamp) -> bool {
        let Some(user) = self.users.get(&uaid) else { return false };
        let topic = topic.and_then(|topic| user.topics.get(&(chid, topic)));
        topic.is_some_and(|row| row.stamp == stamp)
            || user.saved.contains_key(&stamp)
            || (stamp.clock > user.low_water && user.messages.contains_key(&stamp))
    }

    /// Every message of every user, whatever its form.
    pub(crate) fn all_messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.users
            .values()
            .flat_map(|user| user.topics.values().chain(user.messages.values()).chain(user.saved.values()))
    }
}

impl User {
    fn row(&self) -> Option<UserRow> {
        self.known.then(|| UserRow {
            record_version: 1,
            seen: self.seen,
            low_water: self.low_water,
            user_clock: self.user_clock,
            may_have_messages: !(self.topics.is_empty() && self.messages.is_empty() && self.saved.is_empty()),
            contact: self.contact.clone(),
            channels: self.channels.keys().copied().collect(),
            presence: Vec::new(),
        })
    }

    fn touch(&mut self, seen: UnixSeconds) -> StoreReply {
        self.seen = self.seen.max(seen);
        StoreReply::Done
    }

    fn unregister(&mut self, chid: Chid, at: Clock) -> StoreReply {
        self.channels.remove(&chid);
        self.user_clock = self.user_clock.max(at);
        self.topics.retain(|(of, _), _| *of != chid);
        self.messages.retain(|_, message| message.chid != chid);
        self.saved.retain(|_, message| message.chid != chid);
        StoreReply::Done
    }

    fn publish(&mut self, message: &Arc<Message>) -> StoreReply {
        if !self.known || !self.channels.contains_key(&message.chid) {
            return StoreReply::NoSubscription;
        }
        if message.mode() != self.contact.mode {
            return StoreReply::OtherMode;
        }
        if message.ttl > 0 {
            self.user_clock = self.user_clock.max(message.stamp.clock);
            if message.topic.is_some() {
                self.put_topic(message);
            } else if message.stamp.clock <= self.low_water {
                // Low water settles what was there. A message that another node's slower clock stamped comes late, and
                // every store keeps it like one from a ledger.
                self.saved.insert(message.stamp, copy(message));
            } else {
                self.messages.insert(message.stamp, copy(message));
            }
        }
        StoreReply::Done
    }

    fn save(&mut self, message: &Arc<Message>) {
        self.user_clock = self.user_clock.max(message.stamp.clock);
        if message.topic.is_some() {
            self.put_topic(message);
        } else {
            self.saved.insert(message.stamp, copy(message));
        }
    }

    fn put_topic(&mut self, message: &Arc<Message>) {
        let Some(topic) = message.topic else { return };
        let there = self.topics.get(&(message.chid, topic)).map(|row| row.held());
        if there.is_none_or(|held| message.replaces(&held)) {
            self.topics.insert((message.chid, topic), copy(message));
        }
    }

    fn topics(&self, after: Option<(Chid, Topic)>, limit: usize, now: UnixSeconds) -> StoreReply {
        let live = |message: &Arc<Message>| !message.expired(now);
        let rows = self.topics.iter().filter(|(key, row)| after.is_none_or(|after| **key > after) && live(row));
        page(rows.map(|(_, row)| row.clone()), limit)
    }

    /// A message row at or below low water is settled, also one that was written late; a saved row is not.
    fn messages(&self, after: Stamp, limit: usize, now: UnixSeconds) -> StoreReply {
        let mut merged: BTreeMap<Stamp, &Arc<Message>> = BTreeMap::new();
        merged.extend(self.messages.iter().filter(|(stamp, _)| stamp.clock > self.low_water).map(|(s, m)| (*s, m)));
        merged.extend(self.saved.iter().map(|(stamp, message)| (*stamp, message)));
        let rows = merged.into_iter().filter(|(stamp, row)| *stamp > after && !row.expired(now));
        page(rows.map(|(_, row)| row.clone()), limit)
    }

    fn read(&self, key: &RowKey, now: UnixSeconds) -> StoreReply {
        let topic = key.topic.and_then(|topic| self.topics.get(&(key.chid, topic)));
        let rows = topic.into_iter().chain(self.saved.get(&key.stamp)).chain(self.messages.get(&key.stamp));
        let mut rows = rows.filter(|row| row.stamp == key.stamp && row.chid == key.chid && !row.expired(now));
        StoreReply::Page(Box::new(Page { messages: rows.next().map(copy).into_iter().collect(), exhausted: true }))
    }

    /// Writes down how often this version was delivered, in each form that it has here.
    fn tried(&mut self, key: &RowKey, tries: Tries) {
        let topic = key.topic.and_then(|topic| self.topics.get_mut(&(key.chid, topic)));
        let rows = topic.into_iter().chain(self.messages.get_mut(&key.stamp)).chain(self.saved.get_mut(&key.stamp));
        rows.filter(|row| RowKey::of(row) == *key).for_each(|row| Arc::make_mut(row).tries = tries);
    }

    fn remove(&mut self, key: &RowKey) {
        let same = |row: &Arc<Message>| row.stamp == key.stamp && row.chid == key.chid;
        if let Some(topic) = key.topic
            && self.topics.get(&(key.chid, topic)).is_some_and(same)
        {
            self.topics.remove(&(key.chid, topic));
        }
        if self.messages.get(&key.stamp).is_some_and(same) {
            self.messages.remove(&key.stamp);
        }
        if self.saved.get(&key.stamp).is_some_and(same) {
            self.saved.remove(&key.stamp);
        }
    }

    fn settle_below(&mut self, low_water: Clock) {
        self.low_water = self.low_water.max(low_water);
        self.user_clock = self.user_clock.max(low_water);
        let mark = self.low_water;
        self.messages.retain(|stamp, _| stamp.clock > mark);
    }
}

fn page(rows: impl Iterator<Item = Arc<Message>>, limit: usize) -> StoreReply {
    let mut rows = rows.peekable();
    let messages: Vec<_> = rows.by_ref().take(limit).map(|row| copy(&row)).collect();
    StoreReply::Page(Box::new(Page { messages, exhausted: rows.peek().is_none() }))
}

/// Storage keeps bytes of its own.
fn copy(message: &Arc<Message>) -> Arc<Message> {
    Arc::new(Message::clone(message))
}

#[cfg(test)]
mod tests {
    use shards::message::Urgency;

    use super::*;

    #[test]
    fn a_message_that_comes_below_low_water_is_kept() {
        let (uaid, chid) = (Uaid([1; 16]), Chid([2; 16]));
        let message = |clock| Message {
            uaid,
            chid,
            stamp: Stamp { clock: Clock(clock), origin: shards::ids::Origin(1) },
            ttl: 60,
            accepted: UnixSeconds(0),
            urgency: Urgency::Normal,
            topic: None,
            receipt: false,
            tries: Default::default(),
            payload: [0; 8].into(),
        };
        let mut rows = Rows::default();
        rows.know(uaid, chid);
        let settle = |rows: &mut Rows, of: &Message, low_water| {
            let row = RowKey { uaid, chid, stamp: of.stamp, topic: None };
            rows.apply(&StoreOp::Settle { rows: vec![row], low_water: Some(low_water), durable: false }, 1);
        };
        settle(&mut rows, &message(5), Clock(10));
        let late = message(9);
        rows.apply(&StoreOp::Publish { message: Arc::new(late.clone()), checked: false }, 1);
        settle(&mut rows, &message(15), Clock(20));
        assert!(rows.holds(uaid, chid, None, late.stamp));
        settle(&mut rows, &late, Clock(20));
        assert!(!rows.holds(uaid, chid, None, late.stamp));
    }
}
