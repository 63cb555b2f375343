//! The store in its plainest form: the executable statement of the laws of [`StoreOp`].
//!
//! The server serves from it when it stores in memory only (`store.kind = memory`). The laws of the root package
//! compare every backend with it, the simulator breaks it in every way a store may fail, and the scenarios of the
//! machine run on it. It is plain data: no clock, no thread, no port.

mod user;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{AddressDigest, Chid, Clock, KeyDigest, Stamp, Uaid};
use crate::limits;
use crate::message::{Message, Topic, Tries};
use crate::shard::{Page, RowKey, StoreError, StoreOp, StoreReply};
use crate::share::Room;
use crate::simplepush::Contact;
use crate::time::UnixSeconds;

pub use user::User;

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
    /// Rows of users who are not there yet: of a transfer, or presence rows.
    coming: BTreeMap<Uaid, User>,
    bytes: u64,
    bytes_max: u64,
    /// Bytes of all messages of users who were made from one address, if there are any.
    of_addresses: BTreeMap<AddressDigest, u64>,
    shared: bool,
    swept_to: Option<Uaid>,
    swept_at: UnixSeconds,
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

    /// Replaces the bound on the bytes of messages.
    pub fn bound(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Returns true if messages are refused.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    fn room(&self) -> Room {
        Room { left: self.bytes_max.saturating_sub(self.bytes), whole: self.bytes_max }
    }

    /// Returns the answer to a write of messages.
    fn written(&self) -> StoreReply {
        if self.room().is_scarce() { StoreReply::Scarce } else { StoreReply::Done }
    }

    /// Returns true if a message of this user is beyond its share of the room.
    fn is_beyond_share(&self, user: &User) -> bool {
        let room = self.room();
        // A user without an address is an address of its own.
        let of_address = || match &user.maker {
            Some(maker) => self.of_addresses.get(maker).copied().unwrap_or_default(),
            None => user.bytes(),
        };
        room.is_scarce() && !room.admits_address(of_address()) && user.bytes() >= room.user_share(user.credit)
    }

    /// Counts bytes that came and went, also for the address of their user.
    fn charge(&mut self, maker: Option<AddressDigest>, added: u64, freed: u64) {
        self.bytes = self.bytes + added - freed;
        if let Some(maker) = maker {
            let bytes = self.of_addresses.entry(maker).or_default();
            *bytes = *bytes + added - freed;
            if *bytes == 0 {
                self.of_addresses.remove(&maker);
            }
        }
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
        let user = users.entry(message.uaid).or_default();
        let ((added, replaced), maker) = (user.keep(message.clone(), true), user.maker);
        self.charge(maker, added, replaced);
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
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker } => {
                let is_new = !self.users.contains_key(uaid);
                let done = self.register(*uaid, *chid, (*key, *at), *seen, contact.as_deref());
                if is_new {
                    self.change(*uaid, |user| user.maker = *maker)?;
                }
                if let Some(presence) = presence {
                    self.change(*uaid, |user| user.enter(presence))?;
                }
                done
            }
            StoreOp::Subscribe { uaid, chid, key, at } => self.subscribe(*uaid, *chid, (*key, *at)),
            StoreOp::SetContact { uaid, contact, durable: _ } => {
                self.change(*uaid, |user| user.contact = contact.replacing(&user.contact))
            }
            StoreOp::SetPresence { uaid, presence } => self.change_presence(*uaid, |user| user.enter(presence)),
            StoreOp::ClearPresence { uaid, presence } => {
                let stands = self.shared;
                self.change_presence(*uaid, |user| user.clear(presence, stands))
            }
            StoreOp::Unregister { uaid, chid, at } => {
                let (mut freed, mut maker) = (0, None);
                let done = self.change(*uaid, |user| {
                    user.user_clock = user.user_clock.max(*at);
                    user.channels.remove(chid);
                    (freed, maker) = (user.retain(|message| message.chid != *chid), user.maker);
                });
                self.charge(maker, 0, freed);
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
            StoreOp::DropIdle { uaid } => self.drop_idle(*uaid),
            StoreOp::DropUser { uaid } => {
                if let Some(user) = self.users.remove(uaid) {
                    self.charge(user.maker, 0, user.bytes());
                }
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

    /// Changes the presence rows of a user. A shared store keeps them apart from the record: they may come before it,
    /// as those of a session that read the user just before another node dropped it.
    fn change_presence(&mut self, uaid: Uaid, change: impl FnOnce(&mut User)) -> Answer {
        if self.shared && !self.users.contains_key(&uaid) {
            change(self.coming.entry(uaid).or_default());
            return Ok(StoreReply::Done);
        }
        self.change(uaid, change)
    }

    fn drop_bridged(&mut self, uaid: Uaid, registered: Clock) -> Answer {
        let Some(user) = self.users.get(&uaid) else { return Ok(StoreReply::Done) };
        if user.contact.bridge.as_ref().is_none_or(|bridge| bridge.registered != registered) {
            return Ok(StoreReply::Kept);
        }
        self.apply(&StoreOp::DropUser { uaid })
    }

    fn drop_idle(&mut self, uaid: Uaid) -> Answer {
        let is_idle = |user: &User| user.channels.is_empty() && user.presence.is_empty() && user.contact.is_droppable();
        if !self.users.get(&uaid).is_some_and(is_idle) {
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
        let (user, _) = self.bring(uaid);
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
        let Some(user) = self.users.get(&message.uaid) else {
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
        if full || self.is_beyond_share(user) {
            return Err(StoreError::Full);
        }
        let saved = !unread && message.stamp.clock <= user.low_water;
        self.keep(message, saved);
        Ok(self.written())
    }

    fn save(&mut self, messages: &[Arc<Message>]) -> Answer {
        // Accepted messages may take an eighth more.
        if self.bytes >= self.bytes_max.saturating_add(self.bytes_max / 8) {
            return Err(StoreError::Full);
        }
        for message in messages {
            if self.users.get(&message.uaid).is_some_and(|user| user.channels.contains_key(&message.chid)) {
                self.keep(message, true);
            }
        }
        Ok(self.written())
    }

    /// Stores a message of a user who is there.
    fn keep(&mut self, message: &Arc<Message>, saved: bool) {
        let Some(user) = self.users.get_mut(&message.uaid) else { return };
        let (added, replaced) = user.keep(message.clone(), saved);
        user.credit = user.credit.stored(added);
        let maker = user.maker;
        self.charge(maker, added, replaced);
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
            let (acked, maker) = (removed.map_or(0, |message| message.encoded_len() as u64), user.maker);
            user.credit = user.credit.acked(acked);
            self.charge(maker, 0, acked);
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
            user.credit = user.credit.acked(freed);
            let maker = user.maker;
            self.charge(maker, 0, freed);
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
            let (freed, maker) = (user.retain(|message| !gone && !message.expired(now)), user.maker);
            self.charge(maker, 0, freed);
            if gone {
                self.users.remove(&uaid);
            }
        }
    }
}

/// The first `limit` unexpired rows, with `exhausted` set if there was no other.
fn page<'a>(rows: impl Iterator<Item = &'a Arc<Message>>, limit: u16, now: UnixSeconds) -> StoreReply {
    let mut live = rows.filter(|message| !message.expired(now));
    let messages: Vec<_> = live.by_ref().take(usize::from(limit)).cloned().collect();
    let exhausted = live.next().is_none();
    StoreReply::Page(Box::new(Page { messages, exhausted }))
}
