//! A scripted store: an obviously correct model of the laws, whose replies a test can hold back, fail or lose.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::ids::{Chid, Clock, StoreTicket, Uaid};
use crate::machine::{Page, RowKey, StoreError, StoreOp, StoreReply, UserRow};
use crate::message::{Message, Topic};
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
    users: BTreeMap<Uaid, BTreeSet<Chid>>,
    pub contacts: BTreeMap<Uaid, Contact>,
    rows: BTreeMap<Uaid, BTreeMap<crate::ids::Stamp, Arc<Message>>>,
    topics: BTreeMap<SlotKey, Arc<Message>>,
}

impl Script {
    pub fn new() -> Script {
        Script {
            mode: Mode::Prompt,
            held: VecDeque::new(),
            replies: VecDeque::new(),
            seen: Vec::new(),
            users: BTreeMap::new(),
            contacts: BTreeMap::new(),
            rows: BTreeMap::new(),
            topics: BTreeMap::new(),
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
            Mode::Prompt => {
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

    fn apply(&mut self, op: StoreOp) -> StoreReply {
        match op {
            StoreOp::LoadUser { uaid } => StoreReply::User(self.users.get(&uaid).map(|channels| {
                Box::new(UserRow {
                    record_version: 1,
                    seen: UnixSeconds(0),
                    low_water: Clock(0),
                    user_clock: Clock(0),
                    may_have_messages: !self.rows_of(uaid).is_empty(),
                    contact: self.contact_of(uaid),
                    channels: channels.iter().copied().collect(),
                })
            })),
            StoreOp::Touch { .. } => StoreReply::Done,
            StoreOp::Register { uaid, chid, contact, .. } => {
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
            StoreOp::Unregister { uaid, chid, .. } => {
                self.users.entry(uaid).or_default().remove(&chid);
                if let Some(rows) = self.rows.get_mut(&uaid) {
                    rows.retain(|_, m| m.chid != chid);
                }
                self.topics.retain(|_, m| m.uaid != uaid || m.chid != chid);
                StoreReply::Done
            }
            StoreOp::DropUser { uaid } => {
                self.users.remove(&uaid);
                StoreReply::Done
            }
            StoreOp::Publish { message } => {
                if !self.users.get(&message.uaid).is_some_and(|channels| channels.contains(&message.chid)) {
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
            StoreOp::Save { messages } => {
                messages.into_iter().for_each(|m| self.put(m));
                StoreReply::Done
            }
            StoreOp::Topics { uaid, after, limit, now } => {
                let slots = self.topics.iter().filter(|((u, c, t), m)| {
                    *u == uaid && after.is_none_or(|after| (*c, *t) > after) && !m.expired(now)
                });
                page(slots.map(|(_, m)| m.clone()), limit)
            }
            StoreOp::Messages { uaid, after, limit, now } => {
                let rows = self.rows.get(&uaid).into_iter().flatten();
                page(rows.filter(|(s, m)| **s > after && !m.expired(now)).map(|(_, m)| m.clone()), limit)
            }
            StoreOp::Read { row, now } => {
                let found = self.rows_of(row.uaid).into_iter().filter(|m| m.stamp == row.stamp && !m.expired(now));
                page(found, 1)
            }
            StoreOp::Settle { rows, .. } => {
                rows.iter().for_each(|row| self.delete(row));
                StoreReply::Done
            }
        }
    }

    pub fn put(&mut self, message: Arc<Message>) {
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
        StoreOp::LoadUser { .. } => "load",
        StoreOp::Touch { .. } => "touch",
        StoreOp::Register { .. } => "register",
        StoreOp::SetContact { .. } => "contact",
        StoreOp::Unregister { .. } => "unregister",
        StoreOp::DropUser { .. } => "drop",
        StoreOp::Publish { .. } => "publish",
        StoreOp::Save { .. } => "save",
        StoreOp::Topics { .. } => "topics",
        StoreOp::Messages { .. } => "messages",
        StoreOp::Read { .. } => "read",
        StoreOp::Settle { .. } => "settle",
    }
}
