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
//! Lives on: the control plane.

use std::sync::Arc;
use std::time::Duration;

use machine::counters;
use machine::stats::{Board, Counters as _};
use machine::time::{Instant, TimeSpan};
use runtime::process_clock::ProcessClock;
use store::nodes::NodeTable;
use tokio::time::MissedTickBehavior;

counters! {
    /// Numbers of the steps of the host's clock.
    pub struct ClockStats {
        counter clock_jumps: "Times the system's clock was found to be set by more than 5 s, or a sixth of store.max_skew.",
        counter clock_jumps_taken: "Those of them that were found to be right and taken over.",
        counter clock_stops: "Times the node's time was found further from the database's clocks than store.max_skew.",
        gauge clock_stopped: "1 while that is so: POSTs, hellos, registers and unregisters are refused.",
        gauge clock_database_apart_seconds: "From the node's time to the database's clocks, ahead or behind, as last asked; rounded up.",
        gauge clock_apart_seconds: "Seconds between the system's clock and the time the node keeps, ahead or behind.",
    }
}

/// Reference clocks for when the host's is in doubt.
pub struct TimeSource {
    /// The database.
    pub nodes: Arc<dyn NodeTable>,
    /// `store.max_skew`.
    pub max_skew: Duration,
}

/// Watches the host's clock.
pub struct ClockMonitor {
    process_clock: Arc<ProcessClock>,
    source: Option<TimeSource>,
    /// A step up to this, in microseconds, is taken over without a question.
    step_us_max: u64,
    apart: Option<ClockStep>,
    /// Time of the last answer of the database's clocks.
    asked: Option<Instant>,
    stats: ClockStats,
    board: Arc<Board>,
}

/// A step of the host's clock that has not been taken over.
struct ClockStep {
    host_offset_us: i64,
    since: Instant,
    said: Option<StepVerdict>,
}

/// Verdict on a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StepVerdict {
    /// The host's clock is right.
    Host,
    /// The time of this process is right.
    Ours,
    /// The database is far from both.
    Neither,
}

impl ClockMonitor {
    pub fn new(process_clock: Arc<ProcessClock>, source: Option<TimeSource>) -> ClockMonitor {
        let board = Arc::new(Board::new(&[ClockStats::MEANINGS]));
        let skew_us = source.as_ref().map_or(u64::MAX, |source| source.max_skew.as_micros() as u64);
        let step_us_max = STEP_US_MAX.min(skew_us / SKEW_PARTS);
        let stats = ClockStats::default();
        ClockMonitor { process_clock, source, step_us_max, apart: None, asked: None, stats, board }
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
            self.look(self.process_clock.now().mono).await;
        }
    }

    async fn look(&mut self, now: Instant) {
        let host_offset_us = self.process_clock.host_offset_us();
        if host_offset_us.unsigned_abs() <= self.step_us_max {
            self.near(host_offset_us);
            if self.is_due(host_offset_us, now)
                && let Some((theirs_us, max_skew)) = self.ask(now).await
            {
                self.weigh(theirs_us, max_skew);
            }
        } else {
            self.notice(host_offset_us, now);
            match &self.source {
                Some(_) => {
                    if let Some((theirs_us, max_skew)) = self.ask(now).await {
                        let found = judge_step(host_offset_us, theirs_us, max_skew);
                        self.settle(found, host_offset_us, theirs_us);
                        let taken_us = if found == StepVerdict::Host { host_offset_us } else { 0 };
                        self.weigh(theirs_us.saturating_sub(taken_us), max_skew);
                    }
                }
                None if self.apart.as_ref().is_some_and(|apart| now.since(apart.since) >= STANDS_FOR) => {
                    self.apply_step(host_offset_us, "30 s without another step");
                }
                None => {}
            }
        }
        self.stats.clock_apart_seconds = self.process_clock.host_offset_us().unsigned_abs() / 1_000_000;
        self.stats.write_to(&self.board, 0);
    }

    /// Returns true when the clocks of the database must be asked although the host's is near: now and then, after a
    /// step, and at every look while nothing is stamped.
    fn is_due(&self, host_offset_us: i64, now: Instant) -> bool {
        let stepped = host_offset_us.unsigned_abs() >= STEP_US_ASKED;
        stepped || self.process_clock.is_stopped() || self.asked.is_none_or(|asked| now.since(asked) >= ASK_EVERY)
    }

    /// Asks how far the clocks of the database are ahead, in microseconds; `None` on a node alone, or when they do not
    /// answer.
    async fn ask(&mut self, now: Instant) -> Option<(i64, Duration)> {
        let source = self.source.as_ref()?;
        let theirs_us = source.nodes.clock_offset().await?;
        self.asked = Some(now);
        Some((theirs_us, source.max_skew))
    }

    /// Stops all stamps while the time is too far from the clocks of the database.
    fn weigh(&mut self, theirs_us: i64, max_skew: Duration) {
        let stopped = theirs_us.unsigned_abs() > max_skew.as_micros() as u64;
        self.stats.clock_database_apart_seconds = theirs_us.unsigned_abs().div_ceil(1_000_000);
        self.stats.clock_stopped = u64::from(stopped);
        if stopped == self.process_clock.is_stopped() {
            return;
        }
        self.process_clock.stop(stopped);
        if stopped {
            self.stats.clock_stops += 1;
            let apart_seconds = theirs_us.unsigned_abs() / 1_000_000;
            tracing::error!(apart_seconds, "node clock beyond store.max_skew of the database clocks; messages refused");
        } else {
            tracing::info!("node clock within store.max_skew of the database clocks again");
        }
    }

    /// They agree, but for what a clock may drift or be corrected by.
    fn near(&mut self, host_offset_us: i64) {
        if host_offset_us.unsigned_abs() >= OFFSET_US_MIN {
            self.process_clock.apply_step(host_offset_us);
        }
        if self.apart.take().is_some() {
            self.process_clock.trust();
            tracing::info!("host clock and node clock reconciled");
        }
    }

    fn notice(&mut self, host_offset_us: i64, now: Instant) {
        let known = |apart: &ClockStep| (host_offset_us - apart.host_offset_us).unsigned_abs() <= self.step_us_max;
        if self.apart.as_ref().is_some_and(known) {
            return;
        }
        self.stats.clock_jumps += 1;
        // Earlier findings are about another step.
        self.process_clock.trust();
        self.apart = Some(ClockStep { host_offset_us, since: now, said: None });
        let awaits = if self.source.is_some() { "the clocks of the database" } else { "30 s without another step" };
        tracing::warn!(step = far(host_offset_us), awaits, "host clock step detected; this node keeps its own time");
    }

    /// Does what the database's clocks say.
    fn settle(&mut self, found: StepVerdict, host_offset_us: i64, theirs_us: i64) {
        if found == StepVerdict::Host {
            return self.apply_step(host_offset_us, "database clocks");
        }
        let late_us = if found == StepVerdict::Ours { 0 } else { theirs_us.max(0).unsigned_abs() };
        self.process_clock.mark_host_wrong(host_offset_us, late_us);
        let Some(apart) = self.apart.as_mut().filter(|apart| apart.said != Some(found)) else { return };
        apart.said = Some(found);
        match found {
            StepVerdict::Ours => tracing::error!(
                step = far(host_offset_us),
                "host clock step rejected by the database clocks; set the host clock by NTP"
            ),
            _ => tracing::error!(
                step = far(host_offset_us),
                "host clock and node clock both rejected by the database clocks; set all clocks by NTP"
            ),
        }
    }

    fn apply_step(&mut self, host_offset_us: i64, confirmed_by: &str) {
        self.process_clock.apply_step(host_offset_us);
        self.process_clock.trust();
        self.apart = None;
        self.stats.clock_jumps_taken += 1;
        tracing::warn!(step = far(host_offset_us), confirmed_by, "host clock step applied");
    }
}

/// Finds the right clock when the host's is `host_offset_us` and the database's `theirs_us` ahead of the process's.
fn judge_step(host_offset_us: i64, theirs_us: i64, max_skew: Duration) -> StepVerdict {
    let skew_us = max_skew.as_micros() as u64;
    let from_host = (host_offset_us - theirs_us).unsigned_abs();
    let from_ours = theirs_us.unsigned_abs();
    if from_host.min(from_ours) > skew_us {
        StepVerdict::Neither
    } else if from_host < from_ours {
        StepVerdict::Host
    } else {
        StepVerdict::Ours
    }
}

/// Returns the size of a step as text for operators.
fn far(host_offset_us: i64) -> String {
    let side = if host_offset_us < 0 { "back" } else { "forward" };
    format!("{:.1} s {side}", Duration::from_micros(host_offset_us.unsigned_abs()).as_secs_f64())
}

/// Interval between comparisons of the host's clock with the process's.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time between questions to the clocks of the database.
const ASK_EVERY: TimeSpan = TimeSpan::from_secs(30);
/// A step of this, in microseconds, is taken over at once and then asked about: many of them add up.
const STEP_US_ASKED: u64 = 100_000;
/// A step up to this, in microseconds, is taken over without a question, if it is at most a sixth of what clocks of
/// nodes may differ by.
const STEP_US_MAX: u64 = 5_000_000;
const SKEW_PARTS: u64 = 6;
/// Less is only what reading two clocks takes.
const OFFSET_US_MIN: u64 = 1_000;
/// Time after which a step is taken over that cannot be confirmed.
const STANDS_FOR: TimeSpan = TimeSpan::from_secs(30);

#[cfg(test)]
mod tests;
