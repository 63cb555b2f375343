//! The store in memory: `store.kind = memory`, and the reference that the laws compare others with.
//!
//! Lives on: every shard; one mutex around all users, held for one operation. Nothing survives the process.

mod transfer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shards::ids::{Chid, Clock, KeyDigest, Stamp, StoreTicket, Uaid};
use shards::limits;
use shards::machine::{Page, Presence, RowKey, StoreError, StoreOp, StoreReply, UserRow};
use shards::message::{Message, Topic, Tries};
use shards::ports::Store;
use shards::simple::Contact;
use shards::time::UnixSeconds;

use super::{RECORD_VERSION, idle};

/// What a port answers.
type Answer = Result<StoreReply, StoreError>;

/// A `Touch` this long after the last sweep starts one, for what had expired this long ago: its time comes from
/// a shard, whose wall clock may be ahead of the one that will read.
const SWEEP_EVERY_SECONDS: u64 = 30;
/// Users looked at for expiry in one sweep.
const SWEEP_USERS_MAX: usize = 1_024;

/// All users of a process. Shared by its ports.
pub struct Model {
    state: Arc<Mutex<State>>,
}

impl Model {
    /// An empty store that refuses messages beyond `bytes_max` bytes of them.
    pub fn new(bytes_max: u64) -> Model {
        Model { state: Arc::new(Mutex::new(State { bytes_max, ..State::default() })) }
    }

    /// A shard's hand into it. `waker` is called after each submission: its reply is there.
    pub fn port(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        Box::new(ModelPort { state: self.state.clone(), waker, replies: VecDeque::new() })
    }

    /// Drops what expired and whom nobody saw for 60 days, among all users at once.
    pub fn sweep(&self, now: UnixSeconds) {
        let mut state = lock(&self.state);
        let count = state.users.len();
        state.sweep(now, count);
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        lock(&self.state).bytes
    }
}

/// One shard's port; its replies are there at once.
struct ModelPort {
    state: Arc<Mutex<State>>,
    waker: Arc<dyn Fn() + Send + Sync>,
    replies: VecDeque<(StoreTicket, Answer)>,
}

impl Store for ModelPort {
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp) {
        let answer = lock(&self.state).apply(op);
        self.replies.push_back((ticket, answer));
        (self.waker)();
    }

    fn collect(&mut self) -> Option<(StoreTicket, Answer)> {
        self.replies.pop_front()
    }
}

/// The state is whole between operations, so a panic elsewhere does not spoil it.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct State {
    users: BTreeMap<Uaid, User>,
    /// Rows of users who are being transferred and are not there yet.
    coming: BTreeMap<Uaid, User>,
    bytes: u64,
    bytes_max: u64,
    swept_to: Option<Uaid>,
    swept_at: UnixSeconds,
}

#[derive(Default)]
struct User {
    seen: UnixSeconds,
    low_water: Clock,
    user_clock: Clock,
    contact: Contact,
    channels: BTreeMap<Chid, (Option<KeyDigest>, Clock)>,
    /// One per node and boot, newest first.
    presence: Vec<Presence>,
    rows: BTreeMap<(Stamp, Chid), Row>,
    topics: BTreeMap<(Chid, Topic), Arc<Message>>,
}

struct Row {
    message: Arc<Message>,
    /// Came from a ledger, so `low_water` says nothing about it.
    saved: bool,
}

impl State {
    fn apply(&mut self, op: StoreOp) -> Answer {
        match op {
            StoreOp::LoadUser { uaid } => Ok(StoreReply::User(self.users.get(&uaid).map(|user| Box::new(user.row())))),
            StoreOp::Touch { uaid, seen } => {
                let done = self.change(uaid, |user| user.seen = user.seen.max(seen));
                self.sweep_when_due(seen);
                done
            }
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence } => {
                let done = self.register(uaid, chid, (key, at), seen, contact);
                if let Some(presence) = presence {
                    self.change(uaid, |user| user.enter(presence))?;
                }
                done
            }
            StoreOp::SetContact { uaid, contact } => self.change(uaid, |user| user.contact = *contact),
            StoreOp::SetPresence { uaid, presence } => self.change(uaid, |user| user.enter(presence)),
            StoreOp::ClearPresence { uaid, presence } => {
                self.change(uaid, |user| user.presence.retain(|other| *other != presence))
            }
            StoreOp::Unregister { uaid, chid, at } => {
                let mut freed = 0;
                let done = self.change(uaid, |user| {
                    user.user_clock = user.user_clock.max(at);
                    user.channels.remove(&chid);
                    freed = user.retain(|message| message.chid != chid);
                });
                self.bytes -= freed;
                done
            }
            StoreOp::DropUser { uaid } => {
                let freed = self.users.remove(&uaid).map_or(0, |mut user| user.retain(|_| false));
                self.bytes -= freed;
                Ok(StoreReply::Done)
            }
            StoreOp::Publish { message, checked: _ } => self.publish(message),
            StoreOp::Save { messages } => self.save(&messages),
            StoreOp::Topics { uaid, after, limit, now } => Ok(self.topics(uaid, after, limit, now)),
            StoreOp::Messages { uaid, after, limit, now } => Ok(self.messages(uaid, after, limit, now)),
            StoreOp::Read { row, now } => Ok(self.read(row, now)),
            StoreOp::Settle { rows, low_water, durable: _ } => Ok(self.settle(&rows, low_water)),
            StoreOp::Tried { rows } => {
                rows.iter().for_each(|(row, tries)| self.tried(row, *tries));
                Ok(StoreReply::Done)
            }
        }
    }

    /// Changes a user who is there; nobody is made by it.
    fn change(&mut self, uaid: Uaid, change: impl FnOnce(&mut User)) -> Answer {
        if let Some(user) = self.users.get_mut(&uaid) {
            change(user);
        }
        Ok(StoreReply::Done)
    }

    fn register(
        &mut self,
        uaid: Uaid,
        chid: Chid,
        channel: (Option<KeyDigest>, Clock),
        seen: UnixSeconds,
        contact: Option<Box<Contact>>,
    ) -> Answer {
        let user = self.users.entry(uaid).or_default();
        if user.channels.len() >= limits::CHANNELS_MAX && !user.channels.contains_key(&chid) {
            return Err(StoreError::Full);
        }
        user.seen = user.seen.max(seen);
        user.user_clock = user.user_clock.max(channel.1);
        user.channels.entry(chid).or_insert(channel);
        if let Some(contact) = contact {
            user.contact = *contact;
        }
        Ok(StoreReply::Done)
    }

    fn publish(&mut self, message: Arc<Message>) -> Answer {
        let full = self.bytes >= self.bytes_max;
        let user = self.users.get_mut(&message.uaid).filter(|user| user.channels.contains_key(&message.chid));
        let Some(user) = user else { return Ok(StoreReply::NoSubscription) };
        if message.mode() != user.contact.mode {
            return Ok(StoreReply::OtherMode);
        }
        if message.ttl == 0 {
            return Ok(StoreReply::Done);
        }
        if full {
            return Err(StoreError::Full);
        }
        let saved = message.stamp.clock <= user.low_water;
        let (added, replaced) = user.keep(message, saved);
        self.bytes = self.bytes + added - replaced;
        Ok(StoreReply::Done)
    }

    fn save(&mut self, messages: &[Arc<Message>]) -> Answer {
        // What was accepted may take an eighth more.
        if self.bytes >= self.bytes_max.saturating_add(self.bytes_max / 8) {
            return Err(StoreError::Full);
        }
        for message in messages {
            let Some(user) = self.users.get_mut(&message.uaid) else { continue };
            if user.channels.contains_key(&message.chid) {
                let (added, replaced) = user.keep(message.clone(), true);
                self.bytes = self.bytes + added - replaced;
            }
        }
        Ok(StoreReply::Done)
    }

    fn topics(&self, uaid: Uaid, after: Option<(Chid, Topic)>, limit: u16, now: UnixSeconds) -> StoreReply {
        let rows = self.users.get(&uaid).into_iter().flat_map(|user| user.topics.iter());
        let behind = rows.filter(|(key, _)| after.is_none_or(|after| **key > after));
        page(behind.map(|(_, message)| message), limit, now)
    }

    fn messages(&self, uaid: Uaid, after: Stamp, limit: u16, now: UnixSeconds) -> StoreReply {
        let users = self.users.get(&uaid).into_iter();
        let rows = users.flat_map(|user| user.rows.iter().filter(|(key, row)| user.unsettled(key.0, row)));
        page(rows.filter(|(key, _)| key.0 > after).map(|(_, row)| &row.message), limit, now)
    }

    fn read(&self, row: RowKey, now: UnixSeconds) -> StoreReply {
        let user = self.users.get(&row.uaid);
        let found = user.and_then(|user| match row.topic {
            Some(topic) => user.topics.get(&(row.chid, topic)).filter(|message| message.stamp == row.stamp),
            None => user
                .rows
                .get(&(row.stamp, row.chid))
                .filter(|kept| user.unsettled(row.stamp, kept))
                .map(|kept| &kept.message),
        });
        page(found.into_iter(), 1, now)
    }

    fn tried(&mut self, row: &RowKey, tries: Tries) {
        let Some(user) = self.users.get_mut(&row.uaid) else { return };
        let kept = match row.topic {
            Some(topic) => user.topics.get_mut(&(row.chid, topic)).filter(|message| message.stamp == row.stamp),
            None => user.rows.get_mut(&(row.stamp, row.chid)).map(|row| &mut row.message),
        };
        if let Some(message) = kept {
            Arc::make_mut(message).tries = tries;
        }
    }

    fn settle(&mut self, rows: &[RowKey], low_water: Option<Clock>) -> StoreReply {
        for row in rows {
            let Some(user) = self.users.get_mut(&row.uaid) else { continue };
            let removed = match row.topic {
                Some(topic) => {
                    let key = (row.chid, topic);
                    let same = user.topics.get(&key).is_some_and(|message| message.stamp == row.stamp);
                    if same { user.topics.remove(&key) } else { None }
                }
                None => user.rows.remove(&(row.stamp, row.chid)).map(|row| row.message),
            };
            self.bytes -= removed.map_or(0, |message| message.encoded_len() as u64);
        }
        let user = rows.first().and_then(|row| self.users.get_mut(&row.uaid));
        if let (Some(user), Some(low_water)) = (user, low_water) {
            user.low_water = user.low_water.max(low_water);
            user.user_clock = user.user_clock.max(low_water);
            let settled = user.low_water;
            let mut freed = 0;
            user.rows.retain(|key, row| {
                let keep = row.saved || key.0.clock > settled;
                freed += if keep { 0 } else { row.message.encoded_len() as u64 };
                keep
            });
            self.bytes -= freed;
        }
        StoreReply::Done
    }

    /// A touch is the clock of this store: it sweeps when the last sweep was a while before it.
    fn sweep_when_due(&mut self, now: UnixSeconds) {
        if now.0 >= self.swept_at.0.saturating_add(SWEEP_EVERY_SECONDS) {
            self.swept_at = now;
            self.sweep(UnixSeconds(now.0 - SWEEP_EVERY_SECONDS), SWEEP_USERS_MAX);
        }
    }

    /// Looks at the next `count` users, in a circle.
    fn sweep(&mut self, now: UnixSeconds, count: usize) {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.swept_to.map_or(Unbounded, Excluded);
        let next: Vec<Uaid> = self.users.range((from, Unbounded)).take(count).map(|(uaid, _)| *uaid).collect();
        self.swept_to = if next.len() < count { None } else { next.last().copied() };
        for uaid in next {
            let Some(user) = self.users.get_mut(&uaid) else { continue };
            let gone = idle(user.seen, now);
            self.bytes -= user.retain(|message| !gone && !message.expired(now));
            if gone {
                self.users.remove(&uaid);
            }
        }
    }
}

impl User {
    fn row(&self) -> UserRow {
        UserRow {
            record_version: RECORD_VERSION,
            seen: self.seen,
            low_water: self.low_water,
            user_clock: self.user_clock,
            may_have_messages: !self.rows.is_empty() || !self.topics.is_empty(),
            contact: self.contact.clone(),
            channels: self.channels.keys().copied().collect(),
            presence: self.presence.clone(),
        }
    }

    /// Connected to a node; what an earlier session of the same boot said is replaced, never the other way round.
    fn enter(&mut self, presence: Presence) {
        let newer = |other: &Presence| other.node == presence.node && other.connected_at > presence.connected_at;
        if !self.presence.iter().any(newer) {
            self.presence.retain(|other| other.node != presence.node);
            self.presence.push(presence);
            self.presence.sort_by_key(|one| std::cmp::Reverse(one.connected_at));
        }
    }

    fn unsettled(&self, stamp: Stamp, row: &Row) -> bool {
        row.saved || stamp.clock > self.low_water
    }

    /// Stores a message; returns the bytes that came and the bytes that went.
    fn keep(&mut self, message: Arc<Message>, saved: bool) -> (u64, u64) {
        let bytes = message.encoded_len() as u64;
        let replaced = match message.topic {
            Some(topic) => {
                let key = (message.chid, topic);
                if self.topics.get(&key).is_some_and(|row| !message.replaces(&row.held())) {
                    return (0, 0);
                }
                self.topics.insert(key, message)
            }
            None => {
                let key = (message.stamp, message.chid);
                self.rows.insert(key, Row { message, saved }).map(|row| row.message)
            }
        };
        (bytes, replaced.map_or(0, |message| message.encoded_len() as u64))
    }

    /// Keeps what `keep` says; returns the bytes that went.
    fn retain(&mut self, keep: impl Fn(&Message) -> bool) -> u64 {
        let mut freed = 0;
        let mut stays = |message: &Message| {
            let stays = keep(message);
            freed += if stays { 0 } else { message.encoded_len() as u64 };
            stays
        };
        self.rows.retain(|_, row| stays(&row.message));
        self.topics.retain(|_, message| stays(message));
        freed
    }
}

/// The first `limit` unexpired rows, and whether there was another.
fn page<'a>(rows: impl Iterator<Item = &'a Arc<Message>>, limit: u16, now: UnixSeconds) -> StoreReply {
    let mut live = rows.filter(|message| !message.expired(now));
    let messages: Vec<_> = live.by_ref().take(usize::from(limit)).cloned().collect();
    let exhausted = live.next().is_none();
    StoreReply::Page(Box::new(Page { messages, exhausted }))
}
