//! The orderly stop of a shard: how far it is, and what its next turn does.
//!
//! Ledgers are saved first. Sessions close at the drain rate when that is done and storage has them, or has had its
//! time.

use crate::limits;
use crate::time::{Instant, TimeSpan};

/// The drain of one shard, once it has begun.
#[derive(Default)]
pub(in crate::shard) struct Shutdown {
    drain: Option<Drain>,
}

struct Drain {
    share: Share,
    /// Sessions that may be closed, in parts of [`Share::session`].
    credit: u64,
    /// Time of the last turn.
    last: Instant,
    next: Instant,
    /// Sessions whose ledgers have been sent to storage: all below it.
    saved_below: u32,
    /// The slot of the next connection to close.
    cursor: u32,
    /// Ledgers have had until then to reach storage before their sessions close.
    close_from: Instant,
    said: bool,
}

/// The part of the node's drain rate that one shard has.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Share {
    /// Sessions to close per second on all shards together.
    pub rate: u32,
    pub shard: u16,
    pub shard_count: u16,
}

impl Share {
    /// Credit that one session costs: a node earns `rate` of these parts in a nanosecond for each of its shards.
    fn session(self) -> u64 {
        1_000_000_000 * u64::from(self.shard_count)
    }

    /// Credit of the first turn: shards that close less than one session in a turn take turns with each other.
    fn start(self) -> u64 {
        1_000_000_000 * u64::from(self.shard)
    }

    /// Credit of a turn. A turn that comes late makes up for [`LATE_MAX`] at most: what a shard that stood still did
    /// not close must not close all at once.
    fn earned(self, passed: TimeSpan) -> u64 {
        u64::from(self.rate).saturating_mul(passed.min(LATE_MAX).0)
    }
}

/// One turn of a drain.
pub(in crate::shard) struct DrainTurn {
    next: u32,
    until: u32,
    end: u32,
    credit: u64,
    session: u64,
    in_time: bool,
}

impl DrainTurn {
    /// Index of the next session whose ledger the drain saves.
    pub fn next(&mut self) -> Option<u32> {
        let index = self.next;
        let more = index < self.until;
        self.next += u32::from(more);
        more.then_some(index)
    }

    /// Number of sessions that this turn closes, at least one. `quiet`: storage has nothing to do.
    pub fn closes(&mut self, quiet: bool) -> Option<usize> {
        let waits = self.next < self.end || !quiet && self.in_time;
        // What was not closed while storage had its time is not made up for.
        let credit = if waits { self.credit.min(self.session - 1) } else { self.credit };
        self.credit = credit % self.session;
        usize::try_from(credit / self.session).ok().filter(|share| *share > 0)
    }
}

impl Shutdown {
    /// Returns true if the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.drain.is_some()
    }

    /// Begins the drain. False when it has begun already.
    pub fn begin(&mut self, now: Instant, share: Share) -> bool {
        if self.has_begun() {
            return false;
        }
        let share = Share { rate: share.rate.max(1), ..share };
        let (credit, close_from) = (share.start(), now.after(SAVE_FIRST));
        let (saved_below, cursor, said) = (0, 0, false);
        self.drain = Some(Drain { share, credit, last: now, next: now, saved_below, cursor, close_from, said });
        true
    }

    /// Returns when the next turn is due; `None` before the drain, and when it is over.
    pub fn due(&self) -> Option<Instant> {
        self.drain.as_ref().filter(|drain| !drain.said).map(|drain| drain.next)
    }

    /// Begins a turn that is due. `end`: one more than the greatest index of a session. [`Shutdown::end_turn`] must
    /// follow.
    pub fn begin_turn(&self, now: Instant, end: u32) -> Option<DrainTurn> {
        let drain = self.drain.as_ref().filter(|drain| drain.next <= now && !drain.said)?;
        Some(DrainTurn {
            next: drain.saved_below,
            until: end.min(drain.saved_below.saturating_add(limits::SWEEP_SESSIONS_PER_TURN as u32)),
            end,
            credit: drain.credit + drain.share.earned(now.since(drain.last)),
            session: drain.share.session(),
            in_time: now < drain.close_from,
        })
    }

    /// Ends a turn: the next one goes on behind it.
    pub fn end_turn(&mut self, now: Instant, cx: &DrainTurn) {
        let drain = self.running();
        drain.saved_below = cx.next;
        drain.credit = cx.credit;
        (drain.last, drain.next) = (now, now.after(TURN));
    }

    /// The slot from which connections are closed.
    pub fn cursor(&mut self) -> u32 {
        self.running().cursor
    }

    /// Connections below this slot were closed or left.
    pub fn set_cursor(&mut self, cursor: u32) {
        self.running().cursor = cursor;
    }

    /// Nothing is left on the shard. True the first time.
    pub fn complete(&mut self) -> bool {
        !std::mem::replace(&mut self.running().said, true)
    }

    fn running(&mut self) -> &mut Drain {
        // Invariant: the composer has the turn, or has asked `has_begun`.
        self.drain.as_mut().expect("the drain has begun")
    }
}

/// Time between two turns.
const TURN: TimeSpan = TimeSpan::from_ms(20);
/// Time for which a late turn makes up. A busy shard keeps its rate so, and a drain its time.
const LATE_MAX: TimeSpan = TimeSpan::from_secs(1);
/// Time for which closing waits for storage to take the ledgers; after that they depart with their sessions.
const SAVE_FIRST: TimeSpan = TimeSpan::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_are_saved_before_sessions_close() {
        let mut shutdown = Shutdown::default();
        assert!(!shutdown.has_begun() && shutdown.due().is_none() && shutdown.begin_turn(Instant(9), 1).is_none());
        let share = |rate| Share { rate, shard: 0, shard_count: 1 };
        assert!(shutdown.begin(Instant(9), share(100)) && !shutdown.begin(Instant(9), share(7)));
        let end = limits::SWEEP_SESSIONS_PER_TURN as u32 + 3;
        let (mut now, mut saved, mut closed) = (Instant(9), Vec::new(), Vec::new());
        for quiet in [true, false, true] {
            let mut cx = shutdown.begin_turn(now, end).expect("it is due");
            saved.extend(std::iter::from_fn(|| cx.next()));
            closed.push(cx.closes(quiet));
            shutdown.end_turn(now, &cx);
            assert!(shutdown.begin_turn(now, end).is_none());
            now = now.after(TURN);
            assert_eq!(shutdown.due(), Some(now));
        }
        assert_eq!(saved, (0..end).collect::<Vec<_>>());
        assert_eq!(closed, [None, None, Some(2)], "what was held up is not made up for");
        let mut late = shutdown.begin_turn(Instant(9).after(SAVE_FIRST), end).expect("it is due");
        assert_eq!(late.closes(false), Some(100), "a second at most");
        assert!(shutdown.complete() && !shutdown.complete());
        assert_eq!(shutdown.due(), None);
    }

    /// Closed sessions of a node of `shard_count` shards in each 20 ms.
    fn closed(rate: u32, shard_count: u16, turns: usize) -> Vec<usize> {
        let mut shards: Vec<Shutdown> = (0..shard_count).map(|_| Shutdown::default()).collect();
        for (shard, shutdown) in (0..).zip(&mut shards) {
            shutdown.begin(Instant(0), Share { rate, shard, shard_count });
        }
        let cx = |cx: u64| {
            let now = Instant(0).after(TimeSpan(TURN.0 * cx));
            let closes = shards.iter_mut().map(|shutdown| {
                let mut cx = shutdown.begin_turn(now, 0).expect("it is due");
                let closes = cx.closes(true).unwrap_or(0);
                shutdown.end_turn(now, &cx);
                closes
            });
            closes.sum()
        };
        (0..turns as u64).map(cx).collect()
    }

    #[test]
    fn no_second_of_a_drain_has_more_closes_than_its_rate() {
        for (rate, shard_count) in [(1, 64), (7, 2), (49, 1), (51, 1), (99, 3), (1_000, 64), (10_000, 8)] {
            let turns = closed(rate, shard_count, 500);
            let seconds: Vec<usize> = turns.windows(50).map(|second| second.iter().sum()).collect();
            let most = seconds.iter().max().expect("there are seconds");
            assert_eq!((*most, turns.iter().sum()), (rate as usize, rate as usize * 499 / 50), "{rate} {shard_count}");
        }
    }
}
