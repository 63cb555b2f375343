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
    /// Places in `values` that are free again.
    free_values: Vec<u16>,
    /// Values without a version; at most `BROADCAST_IDS_AWAITED_MAX`.
    awaited: usize,
    /// Grows with every change; a session that has seen it is up to date.
    change: u32,
    /// Set 0 is empty. Each of the others is sorted and lives as long as a session has it; at most
    /// `BROADCAST_SETS_MAX`.
    sets: Vec<Set>,
    by_set: BTreeMap<Box<[u16]>, u16>,
    /// Places in `sets` that are free again.
    free_sets: Vec<u16>,
    /// Ids that were answered "not found" because of a bound.
    refused: u64,
}

struct Value {
    id: Box<str>,
    /// `None` while only user agents have named it: whoever waits for it is told as soon as it has one.
    version: Option<Box<str>>,
    changed: u32,
    /// Sets that name it.
    sets: u16,
}

#[derive(Default)]
struct Set {
    ids: Box<[u16]>,
    sessions: u32,
}

impl Broadcasts {
    pub fn new() -> Broadcasts {
        Broadcasts {
            values: Vec::new(),
            by_id: BTreeMap::new(),
            free_values: Vec::new(),
            awaited: 0,
            change: 0,
            sets: vec![Set::default()],
            by_set: BTreeMap::new(),
            free_sets: Vec::new(),
            refused: 0,
        }
    }

    pub fn change(&self) -> u32 {
        self.change
    }

    pub fn refused(&self) -> u64 {
        self.refused
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
            let full = self.by_id.len() - self.awaited >= limits::BROADCAST_IDS_MAX;
            if !full {
                self.add(&value.id, Some(value.version.clone()), change);
            }
            return !full;
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

    fn add(&mut self, id: &str, version: Option<Box<str>>, changed: u32) -> u16 {
        let value = Value { id: id.into(), version, changed, sets: 0 };
        let at = self.free_values.pop().unwrap_or(self.values.len() as u16);
        match self.values.get_mut(usize::from(at)) {
            Some(place) => *place = value,
            None => self.values.push(value),
        }
        self.by_id.insert(id.into(), at);
        at
    }

    /// The place of an id that a user agent names. One that nobody has set is kept a place for, while there are few of
    /// these and the session has `awaits` of them.
    fn place(&mut self, id: &str, awaits: usize) -> Option<u16> {
        if let Some(at) = self.by_id.get(id) {
            return Some(*at);
        }
        let fits = (1..=limits::BROADCAST_TEXT_BYTES_MAX).contains(&id.len())
            && awaits < limits::BROADCAST_IDS_AWAITED_OF_SESSION_MAX
            && self.awaited < limits::BROADCAST_IDS_AWAITED_MAX;
        if !fits {
            return None;
        }
        self.awaited += 1;
        Some(self.add(id, None, 0))
    }

    /// Frees the place of an id that nobody has set when no set names it.
    fn forget_value(&mut self, at: u16) {
        let value = &self.values[usize::from(at)];
        if value.sets == 0 && value.version.is_none() && self.by_id.remove(&value.id).is_some() {
            self.awaited -= 1;
            self.free_values.push(at);
        }
    }

    /// Adds what is asked for to the set of a session: the set it has instead, and what the user agent does not have
    /// yet. What a bound keeps out of the set is answered as unknown, so that no user agent waits in vain for it.
    pub fn subscribe(&mut self, set: u16, wanted: &[BroadcastVersion]) -> (u16, BroadcastDelta) {
        let mut delta = BroadcastDelta::default();
        if wanted.is_empty() {
            return (set, delta);
        }
        let mut ids: Vec<u16> = self.sets[usize::from(set)].ids.to_vec();
        let mut awaits = ids.iter().filter(|at| self.values[usize::from(**at)].version.is_none()).count();
        for want in wanted {
            if ids.len() < limits::BROADCAST_SUBSCRIPTIONS_MAX
                && let Some(at) = self.place(&want.id, awaits)
                && !ids.contains(&at)
            {
                awaits += usize::from(self.values[usize::from(at)].version.is_none());
                ids.push(at);
            }
        }
        ids.sort_unstable();
        let set = match self.intern(&ids) {
            Some(next) => {
                self.take(next);
                self.release(set);
                next
            }
            None => set,
        };
        ids.into_iter().for_each(|at| self.forget_value(at));
        for want in wanted {
            let at = self.by_id.get(&want.id).filter(|at| self.sets[usize::from(set)].ids.binary_search(at).is_ok());
            match at.map(|at| &self.values[usize::from(*at)].version) {
                Some(Some(version)) if *version != want.version => {
                    delta.changed.push(BroadcastVersion { id: want.id.clone(), version: version.clone() });
                }
                Some(Some(_)) => {}
                at => {
                    self.refused += u64::from(at.is_none());
                    delta.unknown.push(want.id.clone());
                }
            }
        }
        (set, delta)
    }

    /// The set of these ids; `None` when there are too many others.
    fn intern(&mut self, ids: &[u16]) -> Option<u16> {
        if ids.is_empty() {
            return Some(0);
        }
        if let Some(set) = self.by_set.get(ids) {
            return Some(*set);
        }
        let set = match self.free_sets.pop() {
            Some(set) => set,
            None if self.sets.len() >= limits::BROADCAST_SETS_MAX => return None,
            None => {
                self.sets.push(Set::default());
                (self.sets.len() - 1) as u16
            }
        };
        ids.iter().for_each(|at| self.values[usize::from(*at)].sets += 1);
        self.sets[usize::from(set)].ids = ids.into();
        self.by_set.insert(ids.into(), set);
        Some(set)
    }

    /// A session has this set. Those of the empty one are not counted, since it never goes.
    fn take(&mut self, set: u16) {
        self.sets[usize::from(set)].sessions += u32::from(set != 0);
    }

    /// A session does not have this set any more. With its last session the set goes, and ids that only it named.
    pub fn release(&mut self, set: u16) {
        if set == 0 {
            return;
        }
        let one = &mut self.sets[usize::from(set)];
        one.sessions -= 1;
        if one.sessions == 0 {
            let ids = std::mem::take(&mut one.ids);
            self.by_set.remove(&ids);
            self.free_sets.push(set);
            for at in ids {
                self.values[usize::from(at)].sets -= 1;
                self.forget_value(at);
            }
        }
    }

    /// What changed in a set behind `seen`.
    fn delta(&self, set: u16, seen: u32) -> Option<BroadcastDelta> {
        let set = self.sets.get(usize::from(set))?;
        let changed: Vec<BroadcastVersion> = set
            .ids
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
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn version(id: &str, version: &str) -> BroadcastVersion {
        BroadcastVersion { id: id.into(), version: version.into() }
    }

    #[test]
    fn sessions_of_the_empty_set_are_not_counted() {
        let mut broadcasts = Broadcasts::new();
        for _ in 0..3 {
            let unknown = version(&"x".repeat(limits::BROADCAST_TEXT_BYTES_MAX + 1), "1");
            assert_eq!(broadcasts.subscribe(0, &[unknown]).0, 0);
        }
        assert_eq!(broadcasts.sets[0].sessions, 0);
    }

    #[test]
    fn strangers_cannot_fill_the_table_of_ids() {
        let mut broadcasts = Broadcasts::new();
        for n in 0..2 * limits::BROADCAST_IDS_AWAITED_MAX {
            let (_, delta) = broadcasts.subscribe(0, &[version(&n.to_string(), "1")]);
            assert_eq!(delta.unknown.len(), 1);
        }
        assert_eq!(broadcasts.values.len(), limits::BROADCAST_IDS_AWAITED_MAX);
        assert_eq!(broadcasts.refused(), limits::BROADCAST_IDS_AWAITED_MAX as u64);
        assert!(broadcasts.set(&[version("real", "1"), version("3", "1")]));
        // A place is free again.
        broadcasts.subscribe(0, &[version("another", "1")]);
        assert_eq!(broadcasts.values.len(), limits::BROADCAST_IDS_AWAITED_MAX + 2);
        // The operator's ids have places of their own.
        let real: Vec<_> = (2..limits::BROADCAST_IDS_MAX).map(|n| version(&format!("real{n}"), "1")).collect();
        assert!(broadcasts.set(&real));
        let (_, delta) = broadcasts.subscribe(0, &[version("real9", "0"), version("real1023", "0")]);
        assert_eq!((delta.changed.len(), delta.unknown.len()), (2, 0));
        assert!(!broadcasts.set(&[version("one too many", "1")]));
    }

    #[test]
    fn what_one_client_names_is_bounded_by_number_and_length() {
        let mut broadcasts = Broadcasts::new();
        let real: Vec<_> = (0..limits::BROADCAST_SUBSCRIPTIONS_MAX + 1).map(|n| version(&n.to_string(), "1")).collect();
        broadcasts.set(&real);
        let (mut set, long) = (0, "x".repeat(limits::BROADCAST_TEXT_BYTES_MAX));
        for n in 0..real.len() {
            let (next, delta) = broadcasts.subscribe(set, &real[n..=n]);
            assert_eq!(delta.unknown.len(), usize::from(n == real.len() - 1), "the last of them is refused");
            set = next;
        }
        assert_eq!((broadcasts.sets[usize::from(set)].ids.len(), broadcasts.by_set.len()), (real.len() - 1, 1));
        let strange: Vec<_> = (0..real.len() - 1).map(|n| version(&format!("strange{n}"), "1")).collect();
        let (strangers, delta) = broadcasts.subscribe(0, &strange);
        assert_eq!(delta.unknown.len(), strange.len());
        assert_eq!(broadcasts.awaited, limits::BROADCAST_IDS_AWAITED_OF_SESSION_MAX);
        broadcasts.release(strangers);
        assert_eq!(broadcasts.awaited, 0, "nobody waits for them any more");
        let refused = broadcasts.refused();
        let (_, delta) = broadcasts.subscribe(0, &[version(&long, "1"), version(&(long.clone() + "x"), "1")]);
        assert_eq!((delta.unknown.len(), broadcasts.awaited, broadcasts.refused()), (2, 1, refused + 1));
    }

    proptest! {
        /// Sets and places are counted: what nobody has is gone, and what somebody has is what was asked for.
        #[test]
        fn sets_live_as_long_as_a_session_has_them(
            ops in prop::collection::vec((0usize..5, prop::collection::vec(0usize..12, 0..4), any::<bool>()), 0..60),
        ) {
            let mut broadcasts = Broadcasts::new();
            broadcasts.set(&(0..6).map(|n| version(&n.to_string(), "1")).collect::<Vec<_>>());
            let mut sessions: Vec<(u16, BTreeSet<usize>)> = vec![Default::default(); 5];
            for (which, ids, ends) in ops {
                let (set, model) = &mut sessions[which];
                if ends {
                    broadcasts.release(*set);
                    (*set, *model) = Default::default();
                    continue;
                }
                let wanted: Vec<_> = ids.iter().map(|n| version(&n.to_string(), "1")).collect();
                *set = broadcasts.subscribe(*set, &wanted).0;
                model.extend(ids);
            }
            for (set, model) in &sessions {
                let ids = &broadcasts.sets[usize::from(*set)].ids;
                let named = ids.iter().map(|at| broadcasts.values[usize::from(*at)].id.parse().unwrap());
                prop_assert_eq!(&named.collect::<BTreeSet<usize>>(), model);
            }
            let distinct: BTreeSet<_> = sessions.iter().map(|(_, model)| model).filter(|m| !m.is_empty()).collect();
            prop_assert_eq!(broadcasts.by_set.len(), distinct.len());
            prop_assert_eq!(broadcasts.sets.len() - 1 - broadcasts.free_sets.len(), distinct.len());
            let awaited: BTreeSet<_> = sessions.iter().flat_map(|(_, model)| model).filter(|n| **n >= 6).collect();
            prop_assert_eq!(broadcasts.awaited, awaited.len());
        }
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
