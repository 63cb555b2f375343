//! The orderly stop of a shard: how far it is, and what its next turn does.
//!
//! Ledgers are saved first. Sessions close at the drain rate when that is done and storage has them, or has had its
//! time.

use crate::limits;
use crate::time::{Instant, Span};

/// The drain of one shard, once it has begun.
#[derive(Default)]
pub(in crate::shard) struct Shutdown {
    drain: Option<Drain>,
}

struct Drain {
    /// Sessions to close per second.
    rate: u32,
    next: Instant,
    /// Sessions whose ledgers have been sent to storage: all below it.
    saved_below: u32,
    /// The slot of the next connection to close.
    cursor: u32,
    /// Ledgers have had until then to reach storage before their sessions close.
    close_from: Instant,
    said: bool,
}

/// One turn of a drain.
pub(in crate::shard) struct DrainTurn {
    next: u32,
    until: u32,
    end: u32,
    share: usize,
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

    /// Number of sessions that this turn closes. `quiet`: storage has nothing to do.
    pub fn closes(&self, quiet: bool) -> Option<usize> {
        (self.next >= self.end && (quiet || !self.in_time)).then_some(self.share)
    }
}

impl Shutdown {
    /// Returns true if the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.drain.is_some()
    }

    /// Begins the drain. False when it has begun already.
    pub fn begin(&mut self, now: Instant, rate: u32) -> bool {
        if self.has_begun() {
            return false;
        }
        let close_from = now.after(SAVE_FIRST);
        self.drain = Some(Drain { rate: rate.max(1), next: now, saved_below: 0, cursor: 0, close_from, said: false });
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
            share: (drain.rate / TURNS_PER_SECOND).max(1) as usize,
            in_time: now < drain.close_from,
        })
    }

    /// Ends a turn: the next one goes on behind it.
    pub fn end_turn(&mut self, now: Instant, turn: &DrainTurn) {
        let drain = self.running();
        drain.saved_below = turn.next;
        drain.next = now.after(Span(1_000_000_000 / u64::from(TURNS_PER_SECOND)));
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

const TURNS_PER_SECOND: u32 = 50;
/// Time for which closing waits for storage to take the ledgers; after that they depart with their sessions.
const SAVE_FIRST: Span = Span::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_are_saved_before_sessions_close() {
        let mut shutdown = Shutdown::default();
        assert!(!shutdown.has_begun() && shutdown.due().is_none() && shutdown.begin_turn(Instant(9), 1).is_none());
        assert!(shutdown.begin(Instant(9), 100) && !shutdown.begin(Instant(9), 7));
        let end = limits::SWEEP_SESSIONS_PER_TURN as u32 + 3;
        let (mut now, mut saved, mut closed) = (Instant(9), Vec::new(), Vec::new());
        for _ in 0..2 {
            let mut turn = shutdown.begin_turn(now, end).expect("it is due");
            saved.extend(std::iter::from_fn(|| turn.next()));
            closed.push((turn.closes(false), turn.closes(true)));
            shutdown.end_turn(now, &turn);
            assert!(shutdown.begin_turn(now, end).is_none());
            now = now.after(Span::from_ms(20));
            assert_eq!(shutdown.due(), Some(now));
        }
        assert_eq!(saved, (0..end).collect::<Vec<_>>());
        assert_eq!(closed, [(None, None), (None, Some(2))]);
        let late = shutdown.begin_turn(Instant(9).after(SAVE_FIRST), end).expect("it is due");
        assert_eq!(late.closes(false), Some(2));
        assert!(shutdown.complete() && !shutdown.complete());
        assert_eq!(shutdown.due(), None);
    }
}
