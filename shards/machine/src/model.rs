//! The store in its plainest form: the executable statement of the laws of [`StoreOp`].
//!
//! The server serves from it when it stores in memory only (`store.kind = memory`). The laws of the root package
//! compare every backend with it, the simulator breaks it in every way a store may fail, and the scenarios of the
//! machine run on it. It is plain data: no clock, no thread, no port.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{Chid, Clock, KeyDigest, Stamp, Uaid};
use crate::limits;
use crate::message::{Message, Topic, Tries};
use crate::shard::{NodeId, Page, Presence, RECORD_VERSION, RowKey, StoreError, StoreOp, StoreReply, UserRow};
use crate::simplepush::Contact;
use crate::time::UnixSeconds;
use crate::upstream::Bridged;

/// Result of one operation.
type Answer = Result<StoreReply, StoreError>;

/// A user not refreshed for this long is dropped: 60 days.
pub const IDLE_SECONDS_MAX: u64 = 60 * 24 * 60 * 60;
const _: () = assert!(8 * limits::REFRESH_INTERVAL_SECONDS < IDLE_SECONDS_MAX, "who is connected is kept");

/// A `Touch` this long after the last sweep starts one, for what had expired this long ago: its time comes from
/// a shard, whose wall clock may be ahead of the one that will read.
const SWEEP_EVERY_SECONDS: u64 = 30;
/// Users looked at for expiry in one sweep.
const SWEEP_USERS_MAX: usize = 1_024;

/// Every user and every message. One call is one operation; nothing waits, fails or is lost by itself.
#[derive(Clone, Default)]
pub struct Model {
    users: BTreeMap<Uaid, User>,
    /// Rows of users who are being transferred and are not there yet.
    coming: BTreeMap<Uaid, User>,
    bytes: u64,
    bytes_max: u64,
    shared: bool,
    swept_to: Option<Uaid>,
    swept_at: UnixSeconds,
}

/// One user with everything that waits for it. A field that [`UserRow`] has too means the same here.
#[derive(Clone, Default)]
pub struct User {
    pub seen: UnixSeconds,
    pub low_water: Clock,
    pub user_clock: Clock,
    pub contact: Contact,
    /// Key and time of registration of each channel.
    pub channels: BTreeMap<Chid, (Option<KeyDigest>, Clock)>,
    /// One per node and boot, newest first.
    presence: Vec<Presence>,
    rows: BTreeMap<(Stamp, Chid), Row>,
    topics: BTreeMap<(Chid, Topic), Arc<Message>>,
    /// Versions that were deleted, on a shared store.
    dead: BTreeSet<(Stamp, Chid)>,
    /// Likewise, the latest presence of each boot of a node that was cleared.
    left: BTreeMap<Arc<NodeId>, u64>,
}

#[derive(Clone)]
struct Row {
    message: Arc<Message>,
    /// Came from a ledger, so `low_water` says nothing about it.
    saved: bool,
}

impl Model {
    /// An empty store that refuses messages beyond `bytes_max` bytes of them.
    pub fn new(bytes_max: u64) -> Model {
        Model { bytes_max, ..Model::default() }
    }

    /// An empty store without a bound that does the least that a shared store may do. Its deletes stand, as where
    /// client timestamps settle conflicts: a version that was deleted stays dead when a copy of it is written later.
    /// It reads nothing for a `Publish` that is `checked`: the row is written, also below low water, where no page
    /// shows it.
    pub fn shared() -> Model {
        Model { shared: true, ..Model::new(u64::MAX) }
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if messages are refused.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    pub fn user(&self, uaid: Uaid) -> Option<&User> {
        self.users.get(&uaid)
    }

    /// Every user behind this one, in order.
    pub fn users_after(&self, after: Option<Uaid>) -> impl Iterator<Item = (&Uaid, &User)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.users.range((after.map_or(Unbounded, Excluded), Unbounded))
    }

    /// The message that a reader of this row is given, also when it has expired.
    pub fn row(&self, row: &RowKey) -> Option<&Arc<Message>> {
        let user = self.users.get(&row.uaid)?;
        match row.topic {
            Some(topic) => user.topics.get(&(row.chid, topic)).filter(|message| message.stamp == row.stamp),
            None => {
                let kept = user.rows.get(&(row.stamp, row.chid)).filter(|kept| user.unsettled(row.stamp, kept));
                kept.map(|kept| &kept.message)
            }
        }
    }

    /// The user with this UAID, who is made if there is none, with the rows that came ahead of it; true if it was
    /// there.
    pub fn bring(&mut self, uaid: Uaid) -> (&mut User, bool) {
        let coming = self.coming.remove(&uaid);
        let known = self.users.contains_key(&uaid);
        (self.users.entry(uaid).or_insert_with(|| coming.unwrap_or_default()), known)
    }

    /// Writes a row, also of a user that is not there yet: its rows wait for it.
    pub fn put_row(&mut self, message: &Arc<Message>) {
        let known = self.users.contains_key(&message.uaid);
        let users = if known { &mut self.users } else { &mut self.coming };
        let (added, replaced) = users.entry(message.uaid).or_default().keep(message.clone(), true);
        self.bytes = self.bytes + added - replaced;
    }

    /// Carries out one operation.
    ///
    /// # Errors
    /// [`StoreError::Full`] at a bound.
    pub fn apply(&mut self, op: &StoreOp) -> Answer {
        match op {
            StoreOp::LoadUser { uaid } => Ok(StoreReply::User(self.users.get(uaid).map(|user| Box::new(user.row())))),
            StoreOp::Locate { uaid, chid } => Ok(StoreReply::User(self.users.get(uaid).map(|user| {
                let mut row = user.row();
                row.channels.retain(|one| one == chid);
                Box::new(row)
            }))),
            StoreOp::Touch { uaid, seen } => {
                let done = self.change(*uaid, |user| user.seen = user.seen.max(*seen));
                self.sweep_when_due(*seen);
                done
            }
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence } => {
                let done = self.register(*uaid, *chid, (*key, *at), *seen, contact.as_deref());
                if let Some(presence) = presence {
                    self.change(*uaid, |user| user.enter(presence))?;
                }
                done
            }
            StoreOp::Subscribe { uaid, chid, key, at } => self.subscribe(*uaid, *chid, (*key, *at)),
            StoreOp::SetContact { uaid, contact, durable: _ } => {
                self.change(*uaid, |user| user.contact = contact.replacing(&user.contact))
            }
            StoreOp::SetPresence { uaid, presence } => self.change(*uaid, |user| user.enter(presence)),
            StoreOp::ClearPresence { uaid, presence } => {
                let stands = self.shared;
                self.change(*uaid, |user| user.clear(presence, stands))
            }
            StoreOp::Unregister { uaid, chid, at } => {
                let mut freed = 0;
                let done = self.change(*uaid, |user| {
                    user.user_clock = user.user_clock.max(*at);
                    user.channels.remove(chid);
                    freed = user.retain(|message| message.chid != *chid);
                });
                self.bytes -= freed;
                done
            }
            StoreOp::SetBridge { uaid, bridge } => self.change(*uaid, |user| user.set_bridge(bridge)),
            StoreOp::MarkRefused { uaid, registered, at } => self.change(*uaid, |user| {
                if let Some(bridge) = user.contact.bridge.as_mut().filter(|bridge| bridge.registered == *registered) {
                    bridge.refused = bridge.refused.or(Some(*at));
                }
            }),
            StoreOp::ClearRefused { uaid, registered } => self.change(*uaid, |user| user.clear_refused(*registered)),
            StoreOp::DropBridged { uaid, registered } => self.drop_bridged(*uaid, *registered),
            StoreOp::DropUser { uaid } => {
                let freed = self.users.remove(uaid).map_or(0, |mut user| user.retain(|_| false));
                self.bytes -= freed;
                Ok(StoreReply::Done)
            }
            StoreOp::Publish { message, checked } => self.publish(message, *checked && self.shared),
            StoreOp::Save { messages } => self.save(messages),
            StoreOp::Topics { uaid, after, limit, now } => Ok(self.topics(*uaid, *after, *limit, *now)),
            StoreOp::Messages { uaid, after, limit, now } => Ok(self.messages(*uaid, *after, *limit, *now)),
            StoreOp::Read { row, now } => Ok(self.read(row, *now)),
            StoreOp::Settle { rows, low_water, durable: _ } => Ok(self.settle(rows, *low_water)),
            StoreOp::Tried { rows } => {
                rows.iter().for_each(|(row, tries)| self.tried(row, *tries));
                Ok(StoreReply::Done)
            }
        }
    }

    /// Changes a user who is there; it creates none.
    fn change(&mut self, uaid: Uaid, change: impl FnOnce(&mut User)) -> Answer {
        if let Some(user) = self.users.get_mut(&uaid) {
            change(user);
        }
        Ok(StoreReply::Done)
    }

    fn drop_bridged(&mut self, uaid: Uaid, registered: Clock) -> Answer {
        let Some(user) = self.users.get(&uaid) else { return Ok(StoreReply::Done) };
        if user.contact.bridge.as_ref().is_none_or(|bridge| bridge.registered != registered) {
            return Ok(StoreReply::Kept);
        }
        self.apply(&StoreOp::DropUser { uaid })
    }

    fn subscribe(&mut self, uaid: Uaid, chid: Chid, channel: (Option<KeyDigest>, Clock)) -> Answer {
        let Some(user) = self.users.get(&uaid) else { return Ok(StoreReply::NoSubscription) };
        match user.channels.get(&chid) {
            Some((key, _)) if *key != channel.0 => Ok(StoreReply::OtherKey),
            _ => self.register(uaid, chid, channel, user.seen, None),
        }
    }

    fn register(
        &mut self,
        uaid: Uaid,
        chid: Chid,
        channel: (Option<KeyDigest>, Clock),
        seen: UnixSeconds,
        contact: Option<&Contact>,
    ) -> Answer {
        let user = self.users.entry(uaid).or_default();
        if user.channels.len() >= limits::CHANNELS_MAX && !user.channels.contains_key(&chid) {
            return Err(StoreError::Full);
        }
        user.seen = user.seen.max(seen);
        user.user_clock = user.user_clock.max(channel.1);
        user.channels.entry(chid).or_insert(channel);
        if let Some(contact) = contact {
            user.contact = contact.replacing(&user.contact);
        }
        Ok(StoreReply::Done)
    }

    /// Stores a POSTed message; where `unread`, without a look at its user.
    fn publish(&mut self, message: &Arc<Message>, unread: bool) -> Answer {
        let full = self.is_full();
        let Some(user) = self.users.get_mut(&message.uaid) else {
            return Ok(if unread { StoreReply::Done } else { StoreReply::NoSubscription });
        };
        if !unread && !user.channels.contains_key(&message.chid) {
            return Ok(StoreReply::NoSubscription);
        }
        if !unread && message.mode() != user.contact.mode {
            return Ok(StoreReply::OtherMode);
        }
        if let Some(bridge) = user.contact.bridge.as_ref().filter(|_| !unread) {
            return Ok(StoreReply::Bridged(bridge.clone()));
        }
        if message.ttl == 0 {
            return Ok(StoreReply::Done);
        }
        if full {
            return Err(StoreError::Full);
        }
        let saved = !unread && message.stamp.clock <= user.low_water;
        let (added, replaced) = user.keep(message.clone(), saved);
        self.bytes = self.bytes + added - replaced;
        Ok(StoreReply::Done)
    }

    fn save(&mut self, messages: &[Arc<Message>]) -> Answer {
        // Accepted messages may take an eighth more.
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

    fn read(&self, row: &RowKey, now: UnixSeconds) -> StoreReply {
        page(self.row(row).into_iter(), 1, now)
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
            if self.shared {
                user.dead.insert((row.stamp, row.chid));
            }
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

    /// Drops expired messages, and users that were not seen for 60 days, among the next `count` users in a circle.
    pub fn sweep(&mut self, now: UnixSeconds, count: usize) {
        let next: Vec<Uaid> = self.users_after(self.swept_to).take(count).map(|(uaid, _)| *uaid).collect();
        self.swept_to = if next.len() < count { None } else { next.last().copied() };
        for uaid in next {
            let Some(user) = self.users.get_mut(&uaid) else { continue };
            let gone = now.0.saturating_sub(user.seen.0) >= IDLE_SECONDS_MAX;
            self.bytes -= user.retain(|message| !gone && !message.expired(now));
            if gone {
                self.users.remove(&uaid);
            }
        }
    }
}

impl User {
    /// Replaces the record of a bridged user by a newer one.
    fn set_bridge(&mut self, bridge: &Bridged) {
        if self.contact.bridge.as_ref().is_some_and(|had| bridge.is_newer_than(had)) {
            self.contact.bridge = Some(Box::new(bridge.clone()));
            self.user_clock = self.user_clock.max(bridge.registered);
            self.seen = self.seen.max(bridge.seen());
        }
    }

    /// Ends the note of a refusal of the token that was registered then.
    fn clear_refused(&mut self, registered: Clock) {
        let marked = |bridge: &&mut Box<Bridged>| bridge.registered == registered && bridge.refused.is_some();
        if let Some(bridge) = self.contact.bridge.as_mut().filter(marked) {
            **bridge = bridge.taken();
        }
    }

    /// The row that a reader gets.
    pub fn row(&self) -> UserRow {
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
    fn enter(&mut self, presence: &Presence) {
        let newer = |other: &Presence| other.node == presence.node && other.connected_at > presence.connected_at;
        let cleared = self.left.get(&presence.node).is_some_and(|left| *left >= presence.connected_at);
        if !cleared && !self.presence.iter().any(newer) {
            self.presence.retain(|other| other.node != presence.node);
            self.presence.push(presence.clone());
            self.presence.sort_by_key(|one| std::cmp::Reverse(one.connected_at));
        }
    }

    /// Exactly that session is no more.
    fn clear(&mut self, presence: &Presence, stands: bool) {
        self.presence.retain(|other| other != presence);
        if stands {
            let left = self.left.entry(presence.node.clone()).or_default();
            *left = presence.connected_at.max(*left);
        }
    }

    /// Every message that a reader is given, in any form, also when it has expired.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        let rows = self.rows.iter().filter(|(key, row)| self.unsettled(key.0, row));
        self.topics.values().chain(rows.map(|(_, row)| &row.message))
    }

    fn unsettled(&self, stamp: Stamp, row: &Row) -> bool {
        row.saved || stamp.clock > self.low_water
    }

    /// Stores a message; returns the bytes that came and the bytes that went.
    fn keep(&mut self, message: Arc<Message>, saved: bool) -> (u64, u64) {
        let bytes = message.encoded_len() as u64;
        if self.dead.contains(&(message.stamp, message.chid)) {
            return (0, 0);
        }
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
                let saved = saved || self.rows.get(&key).is_some_and(|row| row.saved);
                self.rows.insert(key, Row { message, saved }).map(|row| row.message)
            }
        };
        (bytes, replaced.map_or(0, |message| message.encoded_len() as u64))
    }

    /// Keeps the messages for which `keep` is true; returns the bytes of the others.
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

/// The first `limit` unexpired rows, with `exhausted` set if there was no other.
fn page<'a>(rows: impl Iterator<Item = &'a Arc<Message>>, limit: u16, now: UnixSeconds) -> StoreReply {
    let mut live = rows.filter(|message| !message.expired(now));
    let messages: Vec<_> = live.by_ref().take(usize::from(limit)).cloned().collect();
    let exhausted = live.next().is_none();
    StoreReply::Page(Box::new(Page { messages, exhausted }))
}
