//! One user of the model, with the rows that wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{AddressDigest, Chid, Clock, KeyDigest, Stamp};
use crate::message::{Message, Topic};
use crate::shard::{NodeId, Presence, RECORD_VERSION, UserRow};
use crate::share::Credit;
use crate::simplepush::Contact;
use crate::time::UnixSeconds;
use crate::upstream::Bridged;

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
    pub(super) presence: Vec<Presence>,
    /// Address from which the user was made.
    pub(super) maker: Option<AddressDigest>,
    pub(super) credit: Credit,
    pub(super) rows: BTreeMap<(Stamp, Chid), Row>,
    pub(super) topics: BTreeMap<(Chid, Topic), Arc<Message>>,
    /// Versions that were deleted, on a shared store.
    pub(super) dead: BTreeSet<(Stamp, Chid)>,
    /// Likewise, the latest presence of each boot of a node that was cleared.
    pub(super) left: BTreeMap<Arc<NodeId>, u64>,
}

#[derive(Clone)]
pub(super) struct Row {
    pub(super) message: Arc<Message>,
    /// Came from a ledger, so `low_water` says nothing about it.
    pub(super) saved: bool,
}

impl User {
    /// Replaces the record of a bridged user by a newer one.
    pub(super) fn set_bridge(&mut self, bridge: &Bridged) {
        if self.contact.bridge.as_ref().is_some_and(|had| bridge.is_newer_than(had)) {
            self.contact.bridge = Some(Box::new(bridge.clone()));
            self.user_clock = self.user_clock.max(bridge.registered);
            self.seen = self.seen.max(bridge.seen());
        }
    }

    /// Ends the note of a refusal of the token that was registered then.
    pub(super) fn clear_refused(&mut self, registered: Clock) {
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
    pub(super) fn enter(&mut self, presence: &Presence) {
        let newer = |other: &Presence| other.node == presence.node && other.connected_at > presence.connected_at;
        let cleared = self.left.get(&presence.node).is_some_and(|left| *left >= presence.connected_at);
        if !cleared && !self.presence.iter().any(newer) {
            self.presence.retain(|other| other.node != presence.node);
            self.presence.push(presence.clone());
            self.presence.sort_by_key(|one| std::cmp::Reverse(one.connected_at));
        }
    }

    /// Exactly that session is no more.
    pub(super) fn clear(&mut self, presence: &Presence, stands: bool) {
        self.presence.retain(|other| other != presence);
        if stands {
            let left = self.left.entry(presence.node.clone()).or_default();
            *left = presence.connected_at.max(*left);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let rows = self.rows.values().map(|row| &row.message);
        self.topics.values().chain(rows).map(|message| message.encoded_len() as u64).sum()
    }

    /// Every message that a reader is given, in any form, also when it has expired.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        let rows = self.rows.iter().filter(|(key, row)| self.unsettled(key.0, row));
        self.topics.values().chain(rows.map(|(_, row)| &row.message))
    }

    pub(super) fn unsettled(&self, stamp: Stamp, row: &Row) -> bool {
        row.saved || stamp.clock > self.low_water
    }

    /// Stores a message; returns the bytes that came and the bytes that went.
    pub(super) fn keep(&mut self, message: Arc<Message>, saved: bool) -> (u64, u64) {
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
    pub(super) fn retain(&mut self, keep: impl Fn(&Message) -> bool) -> u64 {
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
