//! A scripted store: an obviously correct model of the laws, whose replies a test can hold back, fail or lose.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::ids::{Chid, Clock, Stamp, StoreTicket, Uaid};
use crate::machine::{Page, Presence, RowKey, StoreError, StoreOp, StoreReply, UserRow};
use crate::message::{Message, Topic, Tries};
use crate::simple::Contact;
use crate::time::UnixSeconds;

/// How the next operations go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Done and answered in order.
    Prompt,
    /// Done when released.
    Held,
    /// Not done; answered with an error.
    Failing,
    /// Messages are refused because there is no room; everything else is done.
    Full,
    /// Done; answered with an error all the same.
    Lossy,
}

type SlotKey = (Uaid, Chid, Topic);

pub struct Script {
    pub mode: Mode,
    pub held: VecDeque<(usize, StoreTicket, StoreOp)>,
    pub replies: VecDeque<(usize, StoreTicket, Result<StoreReply, StoreError>)>,
    /// Every operation ever submitted, by its kind.
    pub seen: Vec<&'static str>,
    /// What the records of users that were there before the test say.
    pub record_version: u8,
    pub low_water: BTreeMap<Uaid, Clock>,
    /// Time at which every user was last seen.
    pub seen_at: UnixSeconds,
    users: BTreeMap<Uaid, BTreeSet<Chid>>,
    pub contacts: BTreeMap<Uaid, Contact>,
    rows: BTreeMap<Uaid, BTreeMap<Stamp, Arc<Message>>>,
    /// Rows that came from a ledger: low water says nothing about them.
    saved: BTreeSet<Stamp>,
    topics: BTreeMap<SlotKey, Arc<Message>>,
    /// What was settled stays dead, also when a copy is written late: deletes are at the clock of the row.
    pub tombstones: Option<BTreeSet<Stamp>>,
    /// Newest first.
    pub presence: BTreeMap<Uaid, Vec<Presence>>,
}

impl Script {
    pub fn new() -> Script {
        Script {
            mode: Mode::Prompt,
            held: VecDeque::new(),
            replies: VecDeque::new(),
            seen: Vec::new(),
            record_version: crate::machine::RECORD_VERSION,
            low_water: BTreeMap::new(),
            seen_at: UnixSeconds(0),
            users: BTreeMap::new(),
            contacts: BTreeMap::new(),
            rows: BTreeMap::new(),
            saved: BTreeSet::new(),
            topics: BTreeMap::new(),
            tombstones: None,
            presence: BTreeMap::new(),
        }
    }

    pub fn add_user(&mut self, uaid: Uaid, channels: &[Chid]) {
        self.users.insert(uaid, channels.iter().copied().collect());
    }

    /// How a user is reached.
    pub fn contact_of(&self, uaid: Uaid) -> Contact {
        self.contacts.get(&uaid).cloned().unwrap_or_default()
    }

    /// Message, saved and topic rows of a user.
    pub fn rows_of(&self, uaid: Uaid) -> Vec<Arc<Message>> {
        let rows = self.rows.get(&uaid).into_iter().flat_map(|rows| rows.values().cloned());
        rows.chain(self.topics.values().filter(|m| m.uaid == uaid).cloned()).collect()
    }

    pub fn submit(&mut self, shard: usize, ticket: StoreTicket, op: StoreOp) {
        self.seen.push(kind(&op));
        match self.mode {
            Mode::Held => self.held.push_back((shard, ticket, op)),
            Mode::Failing => self.replies.push_back((shard, ticket, Err(StoreError::Transient))),
            Mode::Full if matches!(op, StoreOp::Publish { .. } | StoreOp::Save { .. }) => {
                self.replies.push_back((shard, ticket, Err(StoreError::Full)));
            }
            Mode::Prompt | Mode::Full => {
                let reply = self.apply(op);
                self.replies.push_back((shard, ticket, Ok(reply)));
            }
            Mode::Lossy => {
                self.apply(op);
                self.replies.push_back((shard, ticket, Err(StoreError::Transient)));
            }
        }
    }

    /// Carries out what was held.
    pub fn release(&mut self) {
        self.mode = Mode::Prompt;
        while let Some((shard, ticket, op)) = self.held.pop_front() {
            let reply = self.apply(op);
            self.replies.push_back((shard, ticket, Ok(reply)));
        }
    }

    /// Carries out the first of what was held; the others stay.
    pub fn release_one(&mut self) {
        if let Some((shard, ticket, op)) = self.held.pop_front() {
            let reply = self.apply(op);
            self.replies.push_back((shard, ticket, Ok(reply)));
        }
    }

    fn apply(&mut self, op: StoreOp) -> StoreReply {
        match op {
            StoreOp::LoadUser { uaid } => StoreReply::User(self.user(uaid)),
            StoreOp::Locate { uaid, chid } => StoreReply::User(self.user(uaid).map(|mut user| {
                user.channels.retain(|one| *one == chid);
                user
            })),
            StoreOp::Touch { .. } => StoreReply::Done,
            StoreOp::Register { uaid, chid, contact, presence, .. } => {
                if let Some(presence) = presence {
                    self.enter(uaid, presence);
                }
                self.users.entry(uaid).or_default().insert(chid);
                if let Some(contact) = contact {
                    self.contacts.insert(uaid, *contact);
                }
                StoreReply::Done
            }
            StoreOp::SetContact { uaid, contact } => {
                if self.users.contains_key(&uaid) {
                    self.contacts.insert(uaid, *contact);
                }
                StoreReply::Done
            }
            StoreOp::SetPresence { uaid, presence } => {
                if self.users.contains_key(&uaid) {
                    self.enter(uaid, presence);
                }
                StoreReply::Done
            }
            StoreOp::ClearPresence { uaid, presence } => {
                self.presence.entry(uaid).or_default().retain(|other| *other != presence);
                StoreReply::Done
            }
            StoreOp::Unregister { uaid, chid, .. } => self.unregister(uaid, chid),
            StoreOp::DropUser { uaid } => {
                self.users.remove(&uaid);
                self.contacts.remove(&uaid);
                self.rows.remove(&uaid);
                self.topics.retain(|_, m| m.uaid != uaid);
                StoreReply::Done
            }
            StoreOp::Publish { message, checked: _ } => self.publish(message),
            StoreOp::Save { messages } => {
                for message in messages {
                    if self.is_registered(&message) {
                        self.saved.insert(message.stamp);
                        self.put(message);
                    }
                }
                StoreReply::Done
            }
            StoreOp::Topics { uaid, after, limit, now } => {
                let slots = self.topics.iter().filter(|((u, c, t), m)| {
                    *u == uaid && after.is_none_or(|after| (*c, *t) > after) && !m.expired(now)
                });
                page(slots.map(|(_, m)| m.clone()), limit)
            }
            StoreOp::Messages { uaid, after, limit, now } => self.messages(uaid, after, limit, now),
            StoreOp::Read { row, now } => {
                let found = self.rows_of(row.uaid).into_iter().filter(|m| m.stamp == row.stamp && !m.expired(now));
                page(found, 1)
            }
            StoreOp::Tried { rows } => self.tried(rows),
            StoreOp::Settle { rows, low_water, .. } => {
                self.settle(&rows, low_water);
                StoreReply::Done
            }
        }
    }

    fn tried(&mut self, rows: Vec<(RowKey, Tries)>) -> StoreReply {
        for (row, tries) in rows {
            let of_user = self.rows.get_mut(&row.uaid).into_iter().flat_map(|rows| rows.values_mut());
            let kept = of_user.chain(self.topics.values_mut()).find(|message| RowKey::of(message) == row);
            if let Some(message) = kept {
                Arc::make_mut(message).tries = tries;
            }
        }
        StoreReply::Done
    }

    fn unregister(&mut self, uaid: Uaid, chid: Chid) -> StoreReply {
        self.users.entry(uaid).or_default().remove(&chid);
        if let Some(rows) = self.rows.get_mut(&uaid) {
            rows.retain(|_, m| m.chid != chid);
        }
        self.topics.retain(|_, m| m.uaid != uaid || m.chid != chid);
        StoreReply::Done
    }

    fn user(&self, uaid: Uaid) -> Option<Box<UserRow>> {
        let channels = self.users.get(&uaid)?;
        Some(Box::new(UserRow {
            record_version: self.record_version,
            seen: self.seen_at,
            low_water: self.low_water.get(&uaid).copied().unwrap_or_default(),
            user_clock: Clock(0),
            may_have_messages: !self.rows_of(uaid).is_empty(),
            contact: self.contact_of(uaid),
            channels: channels.iter().copied().collect(),
            presence: self.presence.get(&uaid).cloned().unwrap_or_default(),
        }))
    }

    fn enter(&mut self, uaid: Uaid, presence: Presence) {
        let rows = self.presence.entry(uaid).or_default();
        rows.retain(|other| other.node != presence.node || other.connected_at > presence.connected_at);
        rows.push(presence);
        rows.sort_by_key(|one| std::cmp::Reverse(one.connected_at));
    }

    fn publish(&mut self, message: Arc<Message>) -> StoreReply {
        if !self.is_registered(&message) {
            return StoreReply::NoSubscription;
        }
        if message.mode() != self.contact_of(message.uaid).mode {
            return StoreReply::OtherMode;
        }
        if message.ttl > 0 {
            self.put(message);
        }
        StoreReply::Done
    }

    fn messages(&self, uaid: Uaid, after: Stamp, limit: u16, now: UnixSeconds) -> StoreReply {
        let low = self.low_water.get(&uaid).copied().unwrap_or_default();
        let rows = self.rows.get(&uaid).into_iter().flatten();
        let unsettled = rows.filter(|(stamp, _)| stamp.clock > low || self.saved.contains(stamp));
        page(unsettled.filter(|(stamp, m)| **stamp > after && !m.expired(now)).map(|(_, m)| m.clone()), limit)
    }

    fn settle(&mut self, rows: &[RowKey], low_water: Option<Clock>) {
        if let (Some(row), Some(clock)) = (rows.first(), low_water) {
            let low = self.low_water.entry(row.uaid).or_default();
            *low = clock.max(*low);
        }
        if let Some(dead) = &mut self.tombstones {
            dead.extend(rows.iter().map(|row| row.stamp));
        }
        rows.iter().for_each(|row| self.delete(row));
    }

    fn is_registered(&self, message: &Message) -> bool {
        self.users.get(&message.uaid).is_some_and(|channels| channels.contains(&message.chid))
    }

    pub fn channels_of(&self, uaid: Uaid) -> Option<Vec<Chid>> {
        self.users.get(&uaid).map(|channels| channels.iter().copied().collect())
    }

    pub fn put(&mut self, message: Arc<Message>) {
        if self.tombstones.as_ref().is_some_and(|dead| dead.contains(&message.stamp)) {
            return;
        }
        match message.topic {
            None => {
                self.rows.entry(message.uaid).or_default().insert(message.stamp, message);
            }
            Some(topic) => {
                let slot = self.topics.entry((message.uaid, message.chid, topic)).or_insert(message.clone());
                if message.replaces(&slot.held()) {
                    *slot = message;
                }
            }
        }
    }

    fn delete(&mut self, row: &RowKey) {
        if let Some(rows) = self.rows.get_mut(&row.uaid) {
            rows.remove(&row.stamp);
        }
        self.topics.retain(|_, m| m.uaid != row.uaid || m.stamp != row.stamp);
    }
}

fn page(rows: impl Iterator<Item = Arc<Message>>, limit: u16) -> StoreReply {
    let mut messages: Vec<_> = rows.take(usize::from(limit) + 1).collect();
    let exhausted = messages.len() <= usize::from(limit);
    messages.truncate(usize::from(limit));
    StoreReply::Page(Box::new(Page { messages, exhausted }))
}

fn kind(op: &StoreOp) -> &'static str {
    match op {
        StoreOp::LoadUser { .. } | StoreOp::Locate { .. } => "load",
        StoreOp::Touch { .. } => "touch",
        StoreOp::Register { .. } => "register",
        StoreOp::SetPresence { .. } => "enter",
        StoreOp::ClearPresence { .. } => "clear",
        StoreOp::SetContact { .. } => "contact",
        StoreOp::Unregister { .. } => "unregister",
        StoreOp::DropUser { .. } => "drop",
        StoreOp::Publish { .. } => "publish",
        StoreOp::Save { .. } => "save",
        StoreOp::Topics { .. } => "topics",
        StoreOp::Messages { .. } => "messages",
        StoreOp::Read { .. } => "read",
        StoreOp::Settle { .. } => "settle",
        StoreOp::Tried { .. } => "tried",
    }
}
