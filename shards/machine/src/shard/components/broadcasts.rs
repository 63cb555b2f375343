//! Broadcasts: node-wide values that sessions subscribe to. Each shard has its own copy.
//!
//! A session keeps a [`Subscription`]: a set id and the change it has seen, 6 bytes, however many ids it named. A
//! change is pushed by a sweep over the sessions, paced so that it takes `broadcast.spread`: a million user agents do
//! not answer in the same second. A change that comes during the sweep makes the sweep go round once more from where
//! it is, so no session waits longer for a fast source.

use std::collections::BTreeMap;

use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::command::{BroadcastDelta, BroadcastVersion};

/// The table of one shard, and the push of a change while one runs.
pub(in crate::shard) struct Broadcasts {
    values: Vec<Value>,
    by_id: BTreeMap<Box<str>, u16>,
    /// Places in `values` that are free again.
    free_values: Vec<u16>,
    /// Values without a version that are not expected; at most `BROADCAST_IDS_AWAITED_MAX`.
    awaited: usize,
    /// Values with a version.
    valued: usize,
    /// Grows with every change; a session that has seen it is up to date.
    change: u32,
    /// Set 0 is empty. Each of the others is sorted and lives as long as a session has it.
    sets: Vec<Set>,
    /// Sets that strangers can make without end; at most `BROADCAST_SETS_MAX`.
    counted_sets: usize,
    by_set: BTreeMap<Box<[u16]>, u16>,
    /// Places in `sets` that are free again.
    free_sets: Vec<u16>,
    /// Ids that were answered "not found" because of a bound.
    refused: u64,
    /// The push of a change, while one runs.
    spread: Option<Spread>,
    /// Time that a push over all sessions takes (`broadcast.spread`).
    spread_time: TimeSpan,
}

/// The broadcasts of one session: 6 bytes.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
pub(in crate::shard) struct Subscription {
    /// Interned set of broadcast ids; 0 is none.
    set: u16,
    /// The broadcast change this session has seen up to.
    seen: u32,
}

const _: () = assert!(size_of::<Subscription>() == 6);

/// One beat of a push: the sessions that it visits, as indices of their slab.
pub(in crate::shard) struct Beat {
    cursor: u32,
    end: u32,
    /// Sessions that this beat may still visit.
    sessions: u32,
    /// Sessions that the push may still visit.
    left: u32,
    pause: TimeSpan,
}

impl Beat {
    /// Returns the next index, which may be free.
    pub fn next(&mut self) -> Option<u32> {
        if self.sessions == 0 {
            return None;
        }
        let index = if self.cursor < self.end { self.cursor } else { 0 };
        self.cursor = index + 1;
        self.left -= 1;
        self.sessions -= 1;
        Some(index)
    }
}

struct Value {
    id: Box<str>,
    /// It has its place whether a session names it or not.
    expected: bool,
    /// `None` while only user agents have named it; its sessions are told as soon as it has one.
    version: Option<Box<str>>,
    changed: u32,
    /// Sets that name it.
    sets: u16,
}

impl Value {
    /// Returns true if it has its place whether a session names it or not.
    fn is_known(&self) -> bool {
        self.expected || self.version.is_some()
    }
}

#[derive(Default)]
struct Set {
    ids: Box<[u16]>,
    sessions: u32,
    /// False for a set of one id that is known: it always has a place.
    counted: bool,
}

impl Broadcasts {
    /// An empty table; a push takes `spread_time`.
    pub fn new(spread_time: TimeSpan) -> Broadcasts {
        let mut broadcasts = Broadcasts {
            values: Vec::new(),
            by_id: BTreeMap::new(),
            free_values: Vec::new(),
            awaited: 0,
            valued: 0,
            change: 0,
            sets: vec![Set::default()],
            counted_sets: 0,
            by_set: BTreeMap::new(),
            free_sets: Vec::new(),
            refused: 0,
            spread: None,
            spread_time,
        };
        for id in limits::BROADCAST_IDS_EXPECTED {
            let at = broadcasts.add(id, None, 0);
            broadcasts.values[usize::from(at)].expected = true;
        }
        broadcasts
    }

    /// Number of ids that a bound kept out of the set of a session.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes new values and pushes them to the sessions below index `end`, beginning now. True when anything differs.
    pub fn push(&mut self, now: Instant, values: &[BroadcastVersion], end: u32) -> bool {
        let differs = self.set(values);
        if differs {
            match &mut self.spread {
                Some(spread) => spread.left = end,
                None => self.spread = Some(Spread { cursor: 0, left: end, due: now }),
            }
        }
        differs
    }

    /// Returns when the next beat of a push is due.
    pub fn due(&self) -> Option<Instant> {
        self.spread.as_ref().map(|spread| spread.due)
    }

    /// Begins the beat that is due, over sessions below index `end`. [`Broadcasts::end_beat`] must follow.
    pub fn begin_beat(&mut self, now: Instant, end: u32) -> Option<Beat> {
        let spread = self.spread.take_if(|spread| spread.due <= now)?;
        let (sessions, pause) = self.beat(end);
        Some(Beat { cursor: spread.cursor, end, sessions: spread.left.min(sessions), left: spread.left, pause })
    }

    /// Ends a beat: the next one follows after a pause, if sessions are left.
    pub fn end_beat(&mut self, now: Instant, beat: &Beat) {
        if beat.left > 0 {
            self.spread = Some(Spread { cursor: beat.cursor, left: beat.left, due: now.after(beat.pause) });
        }
    }

    /// Returns the number of sessions that a beat visits and the pause behind it. All sessions take `spread_time`,
    /// those of a small shard less; a shard whose turns are too short for that has more beats.
    fn beat(&self, end: u32) -> (u32, TimeSpan) {
        let beats = (self.spread_time.0 / SPREAD_BEAT.0).max(1);
        let share = u64::from(end).div_ceil(beats);
        let most = limits::SWEEP_SESSIONS_PER_TURN as u64;
        if share <= most {
            return ((share as u32).max(SPREAD_SESSIONS_MIN), SPREAD_BEAT);
        }
        (most as u32, TimeSpan(SPREAD_BEAT.0 * most / share))
    }

    /// Subscribes a new session. Returns its subscription, and the values that its user agent does not have yet.
    pub fn open(&mut self, wanted: &[BroadcastVersion]) -> (Subscription, BroadcastDelta) {
        let (set, delta) = self.subscribe(0, wanted);
        (Subscription { set, seen: self.change }, delta)
    }

    /// Adds ids to a subscription. Returns the values that the user agent does not have yet, if there are any.
    pub fn add_to(&mut self, subscription: &mut Subscription, wanted: &[BroadcastVersion]) -> Option<BroadcastDelta> {
        let before = subscription.set;
        let (set, delta) = self.subscribe(before, wanted);
        if before == 0 {
            subscription.seen = self.change;
        }
        subscription.set = set;
        (delta != BroadcastDelta::default()).then_some(delta)
    }

    /// Returns what has changed since the session was last told, and takes it as told.
    pub fn news(&self, subscription: &mut Subscription) -> Option<BroadcastDelta> {
        let (set, seen) = (subscription.set, subscription.seen);
        if set == 0 || seen == self.change {
            return None;
        }
        subscription.seen = self.change;
        self.delta(set, seen)
    }

    /// Returns what a session has subscribed to, with the versions that it was told; an empty version where it was not
    /// told the last one.
    pub fn told(&self, subscription: Subscription) -> Vec<BroadcastVersion> {
        let (set, seen) = (subscription.set, subscription.seen);
        let values = self.sets[usize::from(set)].ids.iter().map(|at| &self.values[usize::from(*at)]);
        let told = |value: &Value| value.version.clone().filter(|_| value.changed <= seen).unwrap_or_default();
        values.map(|value| BroadcastVersion { id: value.id.clone(), version: told(value) }).collect()
    }

    /// Ends the subscription of a session.
    pub fn close(&mut self, subscription: Subscription) {
        self.release(subscription.set);
    }

    /// Takes new values; true when anything differs.
    fn set(&mut self, values: &[BroadcastVersion]) -> bool {
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
            let full = self.valued >= limits::BROADCAST_IDS_MAX;
            if !full {
                self.valued += 1;
                self.add(&value.id, Some(value.version.clone()), change);
            }
            return !full;
        };
        let known = &mut self.values[usize::from(*at)];
        if known.version.as_ref() == Some(&value.version) {
            return false;
        }
        self.awaited -= usize::from(known.version.is_none() && !known.expected);
        self.valued += usize::from(known.version.is_none());
        known.version = Some(value.version.clone());
        known.changed = change;
        true
    }

    fn add(&mut self, id: &str, version: Option<Box<str>>, changed: u32) -> u16 {
        let value = Value { id: id.into(), expected: false, version, changed, sets: 0 };
        let at = self.free_values.pop().unwrap_or(self.values.len() as u16);
        match self.values.get_mut(usize::from(at)) {
            Some(place) => *place = value,
            None => self.values.push(value),
        }
        self.by_id.insert(id.into(), at);
        at
    }

    /// The place of an id that a user agent names. An unknown id gets a place without a value while there are few of
    /// these, and few of the session, which has `awaits` of them. The first one of a session has more room than others.
    fn place(&mut self, id: &str, awaits: usize) -> Option<u16> {
        if let Some(at) = self.by_id.get(id) {
            return Some(*at);
        }
        let more = limits::BROADCAST_IDS_AWAITED_MORE_MAX;
        let fits = (1..=limits::BROADCAST_TEXT_BYTES_MAX).contains(&id.len())
            && awaits < limits::BROADCAST_IDS_AWAITED_OF_SESSION_MAX
            && self.awaited < if awaits == 0 { limits::BROADCAST_IDS_AWAITED_MAX } else { more };
        if !fits {
            return None;
        }
        self.awaited += 1;
        Some(self.add(id, None, 0))
    }

    /// Frees the place of an id without a value when no set names it.
    fn forget_value(&mut self, at: u16) {
        let value = &self.values[usize::from(at)];
        if value.sets == 0 && !value.is_known() && self.by_id.remove(&value.id).is_some() {
            self.awaited -= 1;
            self.free_values.push(at);
        }
    }

    /// Adds the requested ids to the set of a session. Returns the set it has instead, and the values that the user
    /// agent does not have yet. An id that a bound keeps out of the set is answered as unknown, so that no user agent
    /// waits in vain for it.
    fn subscribe(&mut self, set: u16, wanted: &[BroadcastVersion]) -> (u16, BroadcastDelta) {
        let mut delta = BroadcastDelta::default();
        if wanted.is_empty() {
            return (set, delta);
        }
        let mut ids: Vec<u16> = self.sets[usize::from(set)].ids.to_vec();
        let mut awaits = ids.iter().filter(|at| !self.values[usize::from(**at)].is_known()).count();
        for want in wanted {
            if ids.len() < limits::BROADCAST_SUBSCRIPTIONS_MAX
                && let Some(at) = self.place(&want.id, awaits)
                && !ids.contains(&at)
            {
                awaits += usize::from(!self.values[usize::from(at)].is_known());
                ids.push(at);
            }
        }
        ids.sort_unstable();
        let set = match self.intern(&ids).or_else(|| self.intern_known(set, &ids)) {
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
        let counted = !matches!(ids, [at] if self.values[usize::from(*at)].is_known());
        if counted && self.counted_sets >= limits::BROADCAST_SETS_MAX {
            return None;
        }
        self.counted_sets += usize::from(counted);
        let set = match self.free_sets.pop() {
            Some(set) => set,
            None => {
                self.sets.push(Set::default());
                (self.sets.len() - 1) as u16
            }
        };
        ids.iter().for_each(|at| self.values[usize::from(*at)].sets += 1);
        self.sets[usize::from(set)] = Set { ids: ids.into(), sessions: 0, counted };
        self.by_set.insert(ids.into(), set);
        Some(set)
    }

    /// The set of one known id of these, for a session that has none: it always has a place.
    fn intern_known(&mut self, set: u16, ids: &[u16]) -> Option<u16> {
        let known = ids.iter().filter(|at| self.values[usize::from(**at)].is_known());
        // One that has a value first.
        let known = known.max_by_key(|at| self.values[usize::from(**at)].version.is_some()).filter(|_| set == 0)?;
        self.intern(&[*known])
    }

    /// A session has this set. Those of the empty one are not counted, since it never goes.
    fn take(&mut self, set: u16) {
        self.sets[usize::from(set)].sessions += u32::from(set != 0);
    }

    /// A session does not have this set any more. With its last session the set goes, and ids that only it named.
    fn release(&mut self, set: u16) {
        if set == 0 {
            return;
        }
        let one = &mut self.sets[usize::from(set)];
        one.sessions -= 1;
        if one.sessions == 0 {
            self.counted_sets -= usize::from(one.counted);
            let ids = std::mem::take(&mut one.ids);
            self.by_set.remove(&ids);
            self.free_sets.push(set);
            for at in ids {
                self.values[usize::from(at)].sets -= 1;
                self.forget_value(at);
            }
        }
    }

    /// Changes of a set behind `seen`.
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
struct Spread {
    /// The session to look at next.
    cursor: u32,
    /// Number of those that are left to look at.
    left: u32,
    /// Time at which the next ones are looked at.
    due: Instant,
}

/// Between two beats of a push.
const SPREAD_BEAT: TimeSpan = TimeSpan::from_ms(20);
/// A beat tells at least these: 1,600 sessions a second are not worth waiting for.
const SPREAD_SESSIONS_MIN: u32 = 32;

#[cfg(test)]
mod tests;
