//! A round over all sessions in which each reads storage: another node that owed this one notifications has ended, or
//! has lost them (decision 0037).
//!
//! A round takes minutes, and a session whose turn has not come may have unread messages: it reads storage before its
//! next direct. Several causes share one round, since sessions that were read already are visited again.

use crate::limits;
use crate::time::{Instant, TimeSpan};

/// The round of one shard. It rests while no session is left.
#[derive(Default)]
pub(in crate::shard) struct StorageRound {
    /// Bit for each index of the slab of sessions: it has not read storage since the last cause. Empty between rounds;
    /// 125 kB for a million sessions.
    unread: Vec<u64>,
    /// Word of the next visit.
    cursor: usize,
    due: Option<Instant>,
}

impl StorageRound {
    /// Begins a round over all sessions below index `end`; one that is under way takes them all once more.
    pub fn begin(&mut self, now: Instant, end: u32) {
        let words = (end as usize).div_ceil(64);
        if words == 0 {
            return;
        }
        self.unread.clear();
        self.unread.resize(words, u64::MAX);
        self.cursor = self.cursor.min(words - 1);
        self.due.get_or_insert(now);
    }

    /// Returns when the next turn is due.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns true if the session at this index has not read storage yet, and notes that it does so now.
    pub fn take(&mut self, index: u32) -> bool {
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        let Some(unread) = self.unread.get_mut(word).filter(|unread| **unread & bit != 0) else { return false };
        *unread &= !bit;
        true
    }

    /// Returns an index whose session has not read storage yet, which may be free, and notes that it does so now.
    pub fn next(&mut self) -> Option<u32> {
        for _ in 0..self.unread.len() {
            let unread = &mut self.unread[self.cursor];
            if *unread != 0 {
                let bit = unread.trailing_zeros();
                *unread &= *unread - 1;
                return Some((self.cursor * 64) as u32 + bit);
            }
            self.cursor = (self.cursor + 1) % self.unread.len();
        }
        None
    }

    /// Ends a turn. Returns true if it was the last one of its round.
    pub fn end_turn(&mut self, now: Instant) -> bool {
        if self.unread.iter().any(|unread| *unread != 0) {
            self.due = Some(now.after(TURN));
            return false;
        }
        *self = StorageRound::default();
        true
    }
}

/// Time between two turns.
const TURN: TimeSpan = TimeSpan::from_ms(1_000 / (limits::STORAGE_READS_PER_SECOND / limits::STORAGE_READS_PER_TURN));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_round_visits_each_session_once_and_again_after_a_new_cause(end in 1u32..1_000, at in 0usize..2_000) {
            let mut round = StorageRound::default();
            round.begin(Instant(5), end);
            prop_assert_eq!(round.due(), Some(Instant(5)));
            let first: Vec<u32> = std::iter::from_fn(|| round.next()).take(at).collect();
            round.begin(Instant(7), end);
            let mut rest: Vec<u32> = std::iter::from_fn(|| round.next()).collect();
            rest.sort_unstable();
            rest.retain(|index| *index < end);
            prop_assert_eq!(rest, (0..end).collect::<Vec<_>>());
            prop_assert!(first.len() <= at);
            prop_assert!(round.end_turn(Instant(9)) && round.due().is_none());
        }
    }

    #[test]
    fn a_session_that_has_read_by_itself_is_not_visited() {
        let mut round = StorageRound::default();
        assert!(!round.take(3), "no round");
        round.begin(Instant(0), 0);
        assert!(round.due().is_none(), "no session");
        round.begin(Instant(0), 5);
        assert!(round.take(3) && !round.take(3) && !round.take(64));
        let visited: Vec<u32> = std::iter::from_fn(|| round.next()).filter(|index| *index < 5).collect();
        assert_eq!(visited, [0, 1, 2, 4]);
        round.begin(Instant(0), 100);
        assert_eq!(round.next(), Some(0));
        assert!(!round.end_turn(Instant(1)));
        assert_eq!(round.due(), Some(Instant(1).after(TURN)));
    }
}
