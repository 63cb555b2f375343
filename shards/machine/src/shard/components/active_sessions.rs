//! The side table of sessions with something under way, and their deadlines.
//!
//! A session names its entry by an index; an idle session has [`NONE`].

use std::collections::VecDeque;

use crate::time::Instant;

use super::super::deadlines::Deadlines;
use super::super::slab::{Slab, SlabKey, later};
use super::active_session::ActiveSession;
use super::session::NONE;
use super::window::{Window, WindowEntry};

/// The entries of one shard.
pub(in crate::shard) struct ActiveSessions {
    entries: Slab<ActiveSession>,
    /// Buffers of windows that are over, for the next.
    windows: Vec<VecDeque<WindowEntry>>,
    /// First name of the next entry's frames.
    emissions: u32,
    /// Of sessions with an entry; those for which [`ActiveSession::is_armed_at`] is false stand for nothing any more.
    deadlines: Deadlines,
}

impl ActiveSessions {
    pub fn new() -> ActiveSessions {
        ActiveSessions { entries: Slab::new(), windows: Vec::new(), emissions: 0, deadlines: Deadlines::default() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry of a session; `None` of an idle one.
    pub fn get(&self, index: u32) -> Option<&ActiveSession> {
        if index == NONE { None } else { self.entries.at(index).map(|(_, active)| active) }
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut ActiveSession> {
        if index == NONE {
            return None;
        }
        let (at, _) = self.entries.at(index)?;
        self.entries.get_mut(at)
    }

    /// The entry of a session with something under way.
    ///
    /// # Panics
    /// The session is idle.
    pub fn live(&self, index: u32) -> &ActiveSession {
        // Invariant: the caller has begun something that keeps the entry.
        self.get(index).expect("a session with something under way has an entry")
    }

    /// As [`ActiveSessions::live`], to change it.
    ///
    /// # Panics
    /// The session is idle, as above.
    pub fn live_mut(&mut self, index: u32) -> &mut ActiveSession {
        // Invariant: as above.
        self.get_mut(index).expect("a session with something under way has an entry")
    }

    /// The entry that a session names by `index`, made when it has none.
    pub fn entry(&mut self, index: &mut u32) -> &mut ActiveSession {
        if *index == NONE {
            let window = self.windows.pop().unwrap_or_default();
            // A frame of an entry before this one may still come back unsent: it must not be taken for one of these.
            self.emissions = self.emissions.wrapping_add(EMISSIONS_APART);
            *index = self.entries.insert(ActiveSession::new(Window::new(window, self.emissions))).index;
        }
        // Invariant: it names an entry from when it is set until the entry is removed.
        self.get_mut(*index).expect("a session's active index names its entry")
    }

    /// Takes the entry of a session that ends.
    pub fn end(&mut self, index: u32) -> Option<ActiveSession> {
        if index == NONE {
            return None;
        }
        let (at, _) = self.entries.at(index)?;
        self.entries.remove(at)
    }

    /// Gives the entry of a session back when nothing is under way. True if it did.
    pub fn end_if_idle(&mut self, index: &mut u32) -> bool {
        if !self.get(*index).is_some_and(ActiveSession::idle) {
            return false;
        }
        if let Some(active) = self.end(*index) {
            // Its next entry goes on behind them, also when these are more than entries are apart.
            self.emissions = later(self.emissions, active.window.last_emission());
            self.keep_window(active.window.into_entries());
        }
        *index = NONE;
        true
    }

    /// The buffer of a window that was emptied serves the next session that becomes active.
    fn keep_window(&mut self, window: VecDeque<WindowEntry>) {
        if window.capacity() <= WINDOW_ENTRIES_KEPT && self.windows.len() < WINDOWS_KEPT {
            self.windows.push(window);
        }
    }

    // --- deadlines -----------------------------------------------------------------------------------------

    /// Arms the deadline of the session `at`, which names its entry by `index`, unless an earlier one is armed.
    pub fn arm(&mut self, at: SlabKey, index: &mut u32, due: Instant) {
        if self.entry(index).arm(due) {
            self.deadlines.push(due, at);
        }
    }

    /// Returns the earliest deadline; it may stand for nothing any more.
    pub fn due(&self) -> Option<Instant> {
        self.deadlines.first().map(|(due, _)| due)
    }

    /// Takes the next session whose deadline has come. `index_of` gives the index that a session has now, if it is
    /// there.
    pub fn next_due(&mut self, now: Instant, index_of: impl Fn(SlabKey) -> Option<u32>) -> Option<SlabKey> {
        while let Some((due, at)) = self.deadlines.first().filter(|(due, _)| *due <= now) {
            self.deadlines.pop();
            let active = index_of(at).and_then(|index| self.get_mut(index));
            if active.is_some_and(|active| active.disarm(due)) {
                return Some(at);
            }
        }
        None
    }

    /// Drops deadlines that stand for nothing any more. `index_of` as above.
    pub fn forget_stale_deadlines(&mut self, index_of: impl Fn(SlabKey) -> Option<u32>) {
        let mut deadlines = std::mem::take(&mut self.deadlines);
        deadlines.forget_stale(self.entries.len(), |due, at| {
            index_of(at).and_then(|index| self.get(index)).is_some_and(|active| active.is_armed_at(due))
        });
        self.deadlines = deadlines;
    }
}

#[cfg(test)]
impl ActiveSessions {
    /// Counts this number of frames as named.
    pub fn set_emissions(&mut self, emissions: u32) {
        self.emissions = emissions;
    }

    pub fn iter(&self) -> impl Iterator<Item = &ActiveSession> {
        (0..self.entries.end()).filter_map(|index| self.get(index))
    }

    /// Number of deadlines, those that stand for nothing included.
    pub fn deadlines(&self) -> usize {
        self.deadlines.len()
    }
}

/// Names of frames that an entry has before it uses those of the next.
const EMISSIONS_APART: u32 = 1_024;
/// Empty windows that are kept, and the room each may have: 0.3 MB.
const WINDOWS_KEPT: usize = 256;
const WINDOW_ENTRIES_KEPT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u32) -> SlabKey {
        SlabKey { index, generation: 0 }
    }

    #[test]
    fn an_entry_is_made_once_and_goes_when_it_is_idle() {
        let (mut active_sessions, mut index) = (ActiveSessions::new(), NONE);
        assert!(active_sessions.get(index).is_none() && !active_sessions.end_if_idle(&mut index));
        active_sessions.entry(&mut index).command.begin(None);
        let first = index;
        assert!(active_sessions.entry(&mut index).command.waits() && index == first);
        assert!(!active_sessions.end_if_idle(&mut index));
        active_sessions.entry(&mut index).command.end();
        assert!(active_sessions.end_if_idle(&mut index));
        assert_eq!((index, active_sessions.len()), (NONE, 0));
    }

    #[test]
    fn names_of_frames_are_not_used_again_by_the_next_entry() {
        let (mut active_sessions, mut one, mut other) = (ActiveSessions::new(), NONE, NONE);
        let last =
            (0..3 * EMISSIONS_APART).map(|_| active_sessions.entry(&mut one).window.emission().0).last().unwrap();
        assert!(active_sessions.end_if_idle(&mut one));
        assert!(active_sessions.entry(&mut other).window.emission().0 > last);
    }

    #[test]
    fn the_earliest_deadline_stands_and_the_others_are_dropped() {
        let (mut active_sessions, mut index) = (ActiveSessions::new(), NONE);
        active_sessions.arm(at(1), &mut index, Instant(9));
        active_sessions.arm(at(1), &mut index, Instant(5));
        active_sessions.arm(at(1), &mut index, Instant(7));
        let there = |one: SlabKey| (one == at(1)).then_some(index);
        assert_eq!((active_sessions.due(), active_sessions.deadlines()), (Some(Instant(5)), 2));
        assert_eq!(active_sessions.next_due(Instant(4), there), None);
        assert_eq!(active_sessions.next_due(Instant(9), there), Some(at(1)));
        assert_eq!(active_sessions.next_due(Instant(9), there), None);
        active_sessions.arm(at(1), &mut index, Instant(20));
        active_sessions.forget_stale_deadlines(|_| None);
        assert_eq!(active_sessions.due(), None);
    }
}
