//! The walk over all sessions in budgeted turns: which of them are visited now, and when the next ones are.

use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::config::MachineConfig;

/// The walk of one shard. It rests while there is no session.
pub(in crate::shard) struct Sweep {
    /// Time of one round over all sessions: a ping is at most this much late.
    round: TimeSpan,
    cursor: u32,
    due: Option<Instant>,
}

/// One turn of the walk: the sessions that it visits, as indices of their slab.
pub(in crate::shard) struct Walk {
    start: u32,
    cursor: u32,
    stop: u32,
    end: u32,
}

impl Walk {
    /// Returns the next index, which may be free.
    pub fn next(&mut self) -> Option<u32> {
        let index = Some(self.cursor).filter(|cursor| *cursor < self.stop)?;
        self.cursor += 1;
        Some(index)
    }
}

impl Sweep {
    /// A walk that rests.
    pub fn new(config: &MachineConfig) -> Sweep {
        let spans = [config.ping_interval, config.wake_timeout];
        let period = spans.into_iter().filter(|span| *span > TimeSpan(0)).fold(PERIOD_MAX, TimeSpan::min);
        Sweep { round: TimeSpan((period.0 / 32).max(TimeSpan::from_ms(20).0)), cursor: 0, due: None }
    }

    /// Starts the walk if it rests: there is a session.
    pub fn arm(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now.after(self.round));
        }
    }

    /// Returns when the next turn is due.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins the turn that is due, over `sessions` sessions below index `end`. [`Sweep::finish`] must follow. Without
    /// sessions the walk rests.
    pub fn begin(&mut self, now: Instant, sessions: usize, end: u32) -> Option<Walk> {
        self.due.filter(|due| *due <= now)?;
        if sessions == 0 {
            (self.cursor, self.due) = (0, None);
            return None;
        }
        let start = if self.cursor < end { self.cursor } else { 0 };
        let stop = end.min(start + limits::SWEEP_SESSIONS_PER_TURN as u32);
        Some(Walk { start, cursor: start, stop, end })
    }

    /// Ends a turn; the next one is due after the share of the round that this one has walked.
    pub fn finish(&mut self, now: Instant, walk: &Walk) {
        self.cursor = walk.cursor;
        let share = self.round.0 as u128 * u128::from(walk.cursor - walk.start) / u128::from(walk.end.max(1));
        self.due = Some(now.after(TimeSpan((share as u64).max(1_000_000))));
    }
}

/// Longest period. Without pings the walk comes by for refreshes only: every two minutes, a 32nd of this.
const PERIOD_MAX: TimeSpan = TimeSpan::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_round_visits_each_session_once_in_its_time(end in 1u32..30_000, most in 1usize..5_000) {
            let round = TimeSpan::from_secs(64);
            let mut sweep = Sweep { round, cursor: 0, due: None };
            sweep.arm(Instant(0));
            let (mut visited, mut now) = (Vec::new(), Instant(0));
            while visited.len() < end as usize {
                now = sweep.due().unwrap();
                let mut walk = sweep.begin(now, 1, end).unwrap();
                visited.extend(std::iter::from_fn(|| walk.next()).take(most));
                sweep.finish(now, &walk);
            }
            prop_assert!(visited.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            let turns = u64::from(end).div_ceil(most.min(limits::SWEEP_SESSIONS_PER_TURN) as u64);
            prop_assert!(now <= Instant(0).after(TimeSpan(2 * round.0 + turns * 1_000_000)));
        }
    }

    #[test]
    fn without_sessions_the_walk_rests() {
        let mut sweep = Sweep { round: TimeSpan::from_secs(1), cursor: 7, due: Some(Instant(5)) };
        assert!(sweep.begin(Instant(4), 0, 9).is_none());
        assert_eq!(sweep.due(), Some(Instant(5)));
        assert!(sweep.begin(Instant(5), 0, 9).is_none());
        assert_eq!((sweep.due(), sweep.cursor), (None, 0));
    }
}
