//! Watch of the host's clock: finds which one is right when it and the time of this process have come apart (decision
//! 0019).
//!
//! A small step is taken over at once. A large one is noticed, counted and said, and the node keeps its own time until
//! it knows more: on a shared store the clocks of the database say which of the two is right; a node alone takes over
//! what has stood for a while.
//!
//! A clock that drifts takes both with it, and small steps add up. So the clocks of the database are asked twice a
//! minute, also while the host's clock agrees. While the time of the process is further from them than
//! `store.max_skew`, the shards stamp nothing.
//! Lives on: the island.

use std::sync::Arc;
use std::time::Duration;

use machine::counters;
use machine::stats::{Board, Counters as _};
use machine::time::{Instant, Span};
use shards::wall::Wall;
use store::nodes::Nodes;
use tokio::time::MissedTickBehavior;

counters! {
    /// Numbers of the steps of the host's clock.
    pub struct TimeNumbers {
        counter clock_jumps: "Times the system's clock was found to be set by more than 5 s, or a sixth of store.max_skew.",
        counter clock_jumps_taken: "Those of them that were found to be right and taken over.",
        counter clock_stops: "Times the node's time was found further from the database's clocks than store.max_skew.",
        gauge clock_stopped: "1 while that is so: POSTs, hellos, registers and unregisters are refused.",
        gauge clock_database_apart_seconds: "From the node's time to the database's clocks, ahead or behind, as last asked; rounded up.",
        gauge clock_apart_seconds: "Seconds between the system's clock and the time the node keeps, ahead or behind.",
    }
}

/// Reference clocks for when the host's is in doubt.
pub(crate) struct Witness {
    /// The database.
    pub(crate) nodes: Arc<dyn Nodes>,
    /// `store.max_skew`.
    pub(crate) max_skew: Duration,
}

/// Watches the host's clock.
pub(crate) struct Timekeeper {
    wall: Arc<Wall>,
    witness: Option<Witness>,
    /// A step up to this, in microseconds, is taken over without a question.
    step_us_max: u64,
    apart: Option<Apart>,
    /// Time of the last answer of the database's clocks.
    asked: Option<Instant>,
    numbers: TimeNumbers,
    board: Arc<Board>,
}

/// A step of the host's clock that has not been taken over.
struct Apart {
    gap_us: i64,
    since: Instant,
    said: Option<Found>,
}

/// Verdict on a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// The host's clock is right.
    Host,
    /// The time of this process is right.
    Ours,
    /// The database is far from both.
    Neither,
}

impl Timekeeper {
    pub(crate) fn new(wall: Arc<Wall>, witness: Option<Witness>) -> Timekeeper {
        let board = Arc::new(Board::new(&[TimeNumbers::MEANINGS]));
        let skew_us = witness.as_ref().map_or(u64::MAX, |witness| witness.max_skew.as_micros() as u64);
        let step_us_max = STEP_US_MAX.min(skew_us / SKEW_PARTS);
        let numbers = TimeNumbers::default();
        Timekeeper { wall, witness, step_us_max, apart: None, asked: None, numbers, board }
    }

    pub(super) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Looks for ever.
    pub(super) async fn run(mut self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.look(self.wall.now().mono).await;
        }
    }

    async fn look(&mut self, now: Instant) {
        let gap_us = self.wall.gap_us();
        if gap_us.unsigned_abs() <= self.step_us_max {
            self.near(gap_us);
            if self.is_due(gap_us, now)
                && let Some((theirs_us, max_skew)) = self.ask(now).await
            {
                self.weigh(theirs_us, max_skew);
            }
        } else {
            self.notice(gap_us, now);
            match &self.witness {
                Some(_) => {
                    if let Some((theirs_us, max_skew)) = self.ask(now).await {
                        let found = judge(gap_us, theirs_us, max_skew);
                        self.settle(found, gap_us, theirs_us);
                        let taken_us = if found == Found::Host { gap_us } else { 0 };
                        self.weigh(theirs_us.saturating_sub(taken_us), max_skew);
                    }
                }
                None if self.apart.as_ref().is_some_and(|apart| now.since(apart.since) >= STANDS_FOR) => {
                    self.take_over(gap_us, "30 s without another step");
                }
                None => {}
            }
        }
        self.numbers.clock_apart_seconds = self.wall.gap_us().unsigned_abs() / 1_000_000;
        self.numbers.write_to(&self.board, 0);
    }

    /// Returns true when the clocks of the database must be asked although the host's is near: now and then, after a
    /// step, and at every look while nothing is stamped.
    fn is_due(&self, gap_us: i64, now: Instant) -> bool {
        let stepped = gap_us.unsigned_abs() >= STEP_US_ASKED;
        stepped || self.wall.is_stopped() || self.asked.is_none_or(|asked| now.since(asked) >= ASK_EVERY)
    }

    /// Asks how far the clocks of the database are ahead, in microseconds; `None` on a node alone, or when they do not
    /// answer.
    async fn ask(&mut self, now: Instant) -> Option<(i64, Duration)> {
        let witness = self.witness.as_ref()?;
        let theirs_us = witness.nodes.ahead().await?;
        self.asked = Some(now);
        Some((theirs_us, witness.max_skew))
    }

    /// Stops all stamps while the time is too far from the clocks of the database.
    fn weigh(&mut self, theirs_us: i64, max_skew: Duration) {
        let stopped = theirs_us.unsigned_abs() > max_skew.as_micros() as u64;
        self.numbers.clock_database_apart_seconds = theirs_us.unsigned_abs().div_ceil(1_000_000);
        self.numbers.clock_stopped = u64::from(stopped);
        if stopped == self.wall.is_stopped() {
            return;
        }
        self.wall.stop(stopped);
        if stopped {
            self.numbers.clock_stops += 1;
            let apart_seconds = theirs_us.unsigned_abs() / 1_000_000;
            tracing::error!(apart_seconds, "node clock beyond store.max_skew of the database clocks; messages refused");
        } else {
            tracing::info!("node clock within store.max_skew of the database clocks again");
        }
    }

    /// They agree, but for what a clock may drift or be corrected by.
    fn near(&mut self, gap_us: i64) {
        if gap_us.unsigned_abs() >= GAP_US_MIN {
            self.wall.take_over(gap_us);
        }
        if self.apart.take().is_some() {
            self.wall.trust();
            tracing::info!("host clock and node clock reconciled");
        }
    }

    fn notice(&mut self, gap_us: i64, now: Instant) {
        let known = |apart: &Apart| (gap_us - apart.gap_us).unsigned_abs() <= self.step_us_max;
        if self.apart.as_ref().is_some_and(known) {
            return;
        }
        self.numbers.clock_jumps += 1;
        // Earlier findings are about another step.
        self.wall.trust();
        self.apart = Some(Apart { gap_us, since: now, said: None });
        let awaits = if self.witness.is_some() { "the clocks of the database" } else { "30 s without another step" };
        tracing::warn!(step = far(gap_us), awaits, "host clock step detected; this node keeps its own time");
    }

    /// Does what the database's clocks say.
    fn settle(&mut self, found: Found, gap_us: i64, theirs_us: i64) {
        if found == Found::Host {
            return self.take_over(gap_us, "database clocks");
        }
        let late_us = if found == Found::Ours { 0 } else { theirs_us.max(0).unsigned_abs() };
        self.wall.distrust(gap_us, late_us);
        let Some(apart) = self.apart.as_mut().filter(|apart| apart.said != Some(found)) else { return };
        apart.said = Some(found);
        match found {
            Found::Ours => tracing::error!(
                step = far(gap_us),
                "host clock step rejected by the database clocks; set the host clock by NTP"
            ),
            _ => tracing::error!(
                step = far(gap_us),
                "host clock and node clock both rejected by the database clocks; set all clocks by NTP"
            ),
        }
    }

    fn take_over(&mut self, gap_us: i64, confirmed_by: &str) {
        self.wall.take_over(gap_us);
        self.wall.trust();
        self.apart = None;
        self.numbers.clock_jumps_taken += 1;
        tracing::warn!(step = far(gap_us), confirmed_by, "host clock step applied");
    }
}

/// Finds the right clock when the host's is `gap_us` and the database's `theirs_us` ahead of the process's.
fn judge(gap_us: i64, theirs_us: i64, max_skew: Duration) -> Found {
    let skew_us = max_skew.as_micros() as u64;
    let from_host = (gap_us - theirs_us).unsigned_abs();
    let from_ours = theirs_us.unsigned_abs();
    if from_host.min(from_ours) > skew_us {
        Found::Neither
    } else if from_host < from_ours {
        Found::Host
    } else {
        Found::Ours
    }
}

/// Returns the size of a step as text for operators.
fn far(gap_us: i64) -> String {
    let side = if gap_us < 0 { "back" } else { "forward" };
    format!("{:.1} s {side}", Duration::from_micros(gap_us.unsigned_abs()).as_secs_f64())
}

/// Interval between comparisons of the host's clock with the process's.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time between questions to the clocks of the database.
const ASK_EVERY: Span = Span::from_secs(30);
/// A step of this, in microseconds, is taken over at once and then asked about: many of them add up.
const STEP_US_ASKED: u64 = 100_000;
/// A step up to this, in microseconds, is taken over without a question, if it is at most a sixth of what clocks of
/// nodes may differ by.
const STEP_US_MAX: u64 = 5_000_000;
const SKEW_PARTS: u64 = 6;
/// Less is only what reading two clocks takes.
const GAP_US_MIN: u64 = 1_000;
/// Time after which a step is taken over that cannot be confirmed.
const STANDS_FOR: Span = Span::from_secs(30);

#[cfg(test)]
mod tests;
