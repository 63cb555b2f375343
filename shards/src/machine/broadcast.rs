//! Broadcasts: node-wide values that sessions subscribe to (BEHAVIOUR.md 1.9). Each shard has its own copy.
//!
//! A session keeps a set id and the change it has seen: 8 bytes, however many ids it named. A change is pushed by a
//! sweep over the sessions, paced so that it takes `broadcast.spread`: a million user agents do not answer in the
//! same second. A change that comes during the sweep makes it go round once more from where it is, so nobody waits
//! longer for a fast source.

use std::collections::BTreeMap;

use crate::limits;
use crate::time::{Instant, Span};

use super::command::{BroadcastDelta, BroadcastVersion, Event};
use super::session::BLOCKED;
use super::slab::Ref;
use super::{ShardMachine, Turn};

/// The table of one shard.
pub(super) struct Broadcasts {
    values: Vec<Value>,
    by_id: BTreeMap<Box<str>, u16>,
    /// Values without a version; at most `BROADCAST_IDS_AWAITED_MAX`.
    awaited: usize,
    /// Grows with every change; a session that has seen it is up to date.
    change: u32,
    /// Set 0 is empty. Sets are sorted, never freed; the bound is `BROADCAST_SETS_MAX`.
    sets: Vec<Box<[u16]>>,
    by_set: BTreeMap<Box<[u16]>, u16>,
}

struct Value {
    id: Box<str>,
    /// `None` while only user agents have named it: whoever waits for it is told as soon as it has one.
    version: Option<Box<str>>,
    changed: u32,
}

impl Broadcasts {
    pub fn new() -> Broadcasts {
        Broadcasts {
            values: Vec::new(),
            by_id: BTreeMap::new(),
            awaited: 0,
            change: 0,
            sets: vec![Box::default()],
            by_set: BTreeMap::new(),
        }
    }

    pub fn change(&self) -> u32 {
        self.change
    }

    /// Takes new values; true when anything differs.
    pub fn set(&mut self, values: &[BroadcastVersion]) -> bool {
        let next = self.change + 1;
        for value in values {
            if self.set_one(value, next) {
                self.change = next;
            }
        }
        self.change == next
    }

    /// Takes the value of one id; true when it differs.
    fn set_one(&mut self, value: &BroadcastVersion, change: u32) -> bool {
        let Some(at) = self.by_id.get(&value.id) else {
            return self.add(&value.id, Some(value.version.clone()), change).is_some();
        };
        let known = &mut self.values[usize::from(*at)];
        if known.version.as_ref() == Some(&value.version) {
            return false;
        }
        self.awaited -= usize::from(known.version.is_none());
        known.version = Some(value.version.clone());
        known.changed = change;
        true
    }

    fn add(&mut self, id: &str, version: Option<Box<str>>, changed: u32) -> Option<u16> {
        if self.values.len() >= limits::BROADCAST_IDS_MAX {
            return None;
        }
        let at = self.values.len() as u16;
        self.by_id.insert(id.into(), at);
        self.values.push(Value { id: id.into(), version, changed });
        Some(at)
    }

    /// The place of an id that a user agent names, known or not: one that nobody has set is kept a place for, while
    /// there are few of these.
    fn place(&mut self, id: &str) -> Option<u16> {
        if let Some(at) = self.by_id.get(id) {
            return Some(*at);
        }
        if self.awaited >= limits::BROADCAST_IDS_AWAITED_MAX {
            return None;
        }
        let at = self.add(id, None, 0)?;
        self.awaited += 1;
        Some(at)
    }

    /// Adds what is asked for to a set: the new set, and what the user agent does not have yet.
    pub fn subscribe(&mut self, set: u16, wanted: &[BroadcastVersion]) -> (u16, BroadcastDelta) {
        let mut delta = BroadcastDelta::default();
        if wanted.is_empty() {
            return (set, delta);
        }
        let mut ids: Vec<u16> = self.sets.get(usize::from(set)).map_or(Vec::new(), |ids| ids.to_vec());
        for want in wanted.iter().take(limits::BROADCAST_SUBSCRIPTIONS_MAX) {
            let Some(at) = self.place(&want.id) else {
                delta.unknown.push(want.id.clone());
                continue;
            };
            match &self.values[usize::from(at)].version {
                None => delta.unknown.push(want.id.clone()),
                Some(version) if *version != want.version => {
                    delta.changed.push(BroadcastVersion { id: want.id.clone(), version: version.clone() });
                }
                Some(_) => {}
            }
            if !ids.contains(&at) && ids.len() < limits::BROADCAST_SUBSCRIPTIONS_MAX {
                ids.push(at);
            }
        }
        ids.sort_unstable();
        (self.intern(ids).unwrap_or(set), delta)
    }

    fn intern(&mut self, ids: Vec<u16>) -> Option<u16> {
        if ids.is_empty() {
            return Some(0);
        }
        let ids: Box<[u16]> = ids.into();
        if let Some(set) = self.by_set.get(&ids) {
            return Some(*set);
        }
        if self.sets.len() >= limits::BROADCAST_SETS_MAX {
            return None;
        }
        let set = self.sets.len() as u16;
        self.sets.push(ids.clone());
        self.by_set.insert(ids, set);
        Some(set)
    }

    /// What changed in a set behind `seen`.
    fn delta(&self, set: u16, seen: u32) -> Option<BroadcastDelta> {
        let ids = self.sets.get(usize::from(set))?;
        let changed: Vec<BroadcastVersion> = ids
            .iter()
            .map(|at| &self.values[usize::from(*at)])
            .filter(|value| value.changed > seen)
            .filter_map(|value| Some(BroadcastVersion { id: value.id.clone(), version: value.version.clone()? }))
            .collect();
        if changed.is_empty() { None } else { Some(BroadcastDelta { changed, unknown: Vec::new() }) }
    }
}

/// The push of a change over all sessions.
pub(super) struct Spread {
    /// The session to look at next.
    cursor: u32,
    /// How many are left to look at.
    left: u32,
    /// When the next ones are looked at.
    pub due: Instant,
}

impl ShardMachine {
    pub(super) fn set_broadcasts(&mut self, turn: &mut Turn<'_>, values: &[BroadcastVersion]) {
        if !self.broadcasts.set(values) {
            return;
        }
        self.stats.broadcast_changes += 1;
        let left = self.sessions.end();
        match &mut self.spread {
            Some(spread) => spread.left = left,
            None => self.spread = Some(Spread { cursor: 0, left, due: turn.now.mono }),
        }
        self.spread_broadcasts(turn);
    }

    pub(super) fn broadcast_subscribe(&mut self, turn: &mut Turn<'_>, at: Ref, wanted: &[BroadcastVersion]) {
        let Some(session) = self.sessions.get_mut(at) else { return };
        let (set, delta) = self.broadcasts.subscribe(session.broadcast_set, wanted);
        if session.broadcast_set == 0 {
            session.broadcast_seen = self.broadcasts.change();
        }
        session.broadcast_set = set;
        if delta != BroadcastDelta::default() {
            self.say(turn, at, Event::Broadcast(Box::new(delta)));
        }
    }

    /// Tells the sessions of this beat what changed.
    pub(super) fn spread_broadcasts(&mut self, turn: &mut Turn<'_>) {
        let Some(mut spread) = self.spread.take_if(|spread| spread.due <= turn.now.mono) else { return };
        let end = self.sessions.end();
        let (sessions, pause) = self.beat(end);
        let mut beat = spread.left.min(sessions);
        while beat > 0 && turn.has_room() {
            let cursor = if spread.cursor < end { spread.cursor } else { 0 };
            if let Some((at, _)) = self.sessions.at(cursor) {
                self.tell_broadcasts(turn, at);
            }
            spread.cursor = cursor + 1;
            spread.left -= 1;
            beat -= 1;
        }
        if spread.left > 0 {
            spread.due = turn.now.mono.after(pause);
            self.spread = Some(spread);
        }
    }

    /// How many sessions a beat tells, and when the next one is: all of them take `broadcast.spread`, a small shard
    /// less, and one whose turns are too short for that more beats.
    fn beat(&self, end: u32) -> (u32, Span) {
        let beats = (self.config.broadcast_spread.0 / SPREAD_BEAT.0).max(1);
        let share = u64::from(end).div_ceil(beats);
        let most = limits::SWEEP_SESSIONS_PER_TURN as u64;
        if share <= most {
            return ((share as u32).max(SPREAD_SESSIONS_MIN), SPREAD_BEAT);
        }
        (most as u32, Span(SPREAD_BEAT.0 * most / share))
    }

    /// Tells one session, unless its socket is blocked: then when it takes bytes again.
    pub(super) fn tell_broadcasts(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let Some(session) = self.sessions.get_mut(at) else { return };
        if session.broadcast_set == 0 || session.broadcast_seen == self.broadcasts.change() || session.has(BLOCKED) {
            return;
        }
        let delta = self.broadcasts.delta(session.broadcast_set, session.broadcast_seen);
        session.broadcast_seen = self.broadcasts.change();
        if let Some(delta) = delta {
            self.stats.broadcasts_sent += 1;
            self.say(turn, at, Event::Broadcast(Box::new(delta)));
        }
    }
}

/// Between two beats of a push.
const SPREAD_BEAT: Span = Span::from_ms(20);
/// A beat tells at least these: 1,600 sessions a second are not worth waiting for.
const SPREAD_SESSIONS_MIN: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn version(id: &str, version: &str) -> BroadcastVersion {
        BroadcastVersion { id: id.into(), version: version.into() }
    }

    #[test]
    fn strangers_cannot_fill_the_table_of_ids() {
        let mut broadcasts = Broadcasts::new();
        for n in 0..2 * limits::BROADCAST_IDS_AWAITED_MAX {
            let (_, delta) = broadcasts.subscribe(0, &[version(&n.to_string(), "1")]);
            assert_eq!(delta.unknown.len(), 1);
        }
        assert_eq!(broadcasts.values.len(), limits::BROADCAST_IDS_AWAITED_MAX);
        assert!(broadcasts.set(&[version("real", "1"), version("3", "1")]));
        // A place is free again.
        broadcasts.subscribe(0, &[version("another", "1")]);
        assert_eq!(broadcasts.values.len(), limits::BROADCAST_IDS_AWAITED_MAX + 2);
    }

    #[test]
    fn a_set_is_told_what_changed_since_it_looked() {
        let mut broadcasts = Broadcasts::new();
        assert!(broadcasts.set(&[version("a", "1"), version("b", "1")]));
        assert!(!broadcasts.set(&[version("a", "1")]));
        let (set, delta) = broadcasts.subscribe(0, &[version("a", "0"), version("b", "1")]);
        assert_eq!((delta.changed, delta.unknown), (vec![version("a", "1")], vec![]));
        let seen = broadcasts.change();
        assert_eq!(broadcasts.delta(set, seen), None);
        broadcasts.set(&[version("b", "2")]);
        assert_eq!(broadcasts.delta(set, seen).map(|d| d.changed), Some(vec![version("b", "2")]));
        assert_eq!(broadcasts.subscribe(0, &[version("b", "2"), version("a", "1")]).0, set, "sets are interned");
    }
}
