//! Whether the host's clock is right when it and the time of this process have come apart (decision 0019).
//!
//! A small step is taken over at once. A large one is noticed, counted and said, and the node keeps its own time until
//! it knows more: on a shared store the clocks of the database say which of the two is right; a node alone takes over
//! what has stood for a while.
//!
//! A clock that drifts takes both with it, and small steps add up. So the clocks of the database are asked twice a
//! minute, whatever the host says. While the time of the process is further from them than `store.max_skew`, the shards
//! stamp nothing.
//! Lives on: the island.

use std::sync::Arc;
use std::time::Duration;

use shards::counters;
use shards::stats::{Board, Counters as _};
use shards::time::{Instant, Span};
use shards::wall::Wall;
use tokio::time::MissedTickBehavior;

use crate::store::nodes::Nodes;

counters! {
    /// What became of steps of the host's clock.
    pub struct TimeNumbers {
        counter clock_jumps: "Times the system's clock was found to be set by more than 5 s, or a sixth of store.max_skew.",
        counter clock_jumps_taken: "Those of them that were found to be right and taken over.",
        counter clock_stops: "Times the node's time was found further from the database's clocks than store.max_skew.",
        gauge clock_stopped: "1 while that is so: POSTs, hellos, registers and unregisters are refused.",
        gauge clock_database_apart_seconds: "From the node's time to the database's clocks, ahead or behind, as last asked; rounded up.",
        gauge clock_apart_seconds: "Seconds between the system's clock and the time the node keeps, ahead or behind.",
    }
}

/// Whose clocks are asked when the host's is in doubt.
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
    /// When the clocks of the database were asked last and answered.
    asked: Option<Instant>,
    numbers: TimeNumbers,
    board: Arc<Board>,
}

/// The host's clock has been set, and nobody knows yet whether it is right.
struct Apart {
    gap_us: i64,
    since: Instant,
    said: Option<Found>,
}

/// What came of asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// The host's clock is right.
    Host,
    /// Ours is.
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

    /// Its numbers.
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
                    self.take_over(gap_us, "it has stood for a while");
                }
                None => {}
            }
        }
        self.numbers.clock_apart_seconds = self.wall.gap_us().unsigned_abs() / 1_000_000;
        self.numbers.write_to(&self.board, 0);
    }

    /// Returns true when the clocks of the database are to be asked although the host's is near: now and then, after a
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

    /// Has the shards stamp nothing while their time is too far from the clocks of the database.
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
            tracing::error!(apart_seconds, "time beyond store.max_skew of the database's clocks: nothing is stamped");
        } else {
            tracing::info!("time within store.max_skew of the database's clocks again");
        }
    }

    /// They agree, but for what a clock may drift or be corrected by.
    fn near(&mut self, gap_us: i64) {
        if gap_us.unsigned_abs() >= GAP_US_MIN {
            self.wall.take_over(gap_us);
        }
        if self.apart.take().is_some() {
            self.wall.trust();
            tracing::info!("the system's clock and the time of this node agree again");
        }
    }

    fn notice(&mut self, gap_us: i64, now: Instant) {
        let known = |apart: &Apart| (gap_us - apart.gap_us).unsigned_abs() <= self.step_us_max;
        if self.apart.as_ref().is_some_and(known) {
            return;
        }
        self.numbers.clock_jumps += 1;
        // Whatever was found out was about another step.
        self.wall.trust();
        self.apart = Some(Apart { gap_us, since: now, said: None });
        let until = if self.witness.is_some() { "the database's clocks confirm it" } else { "it has stood for 30 s" };
        tracing::warn!("the system's clock was set {}; this node keeps its own time until {until}", far(gap_us));
    }

    /// Does what the database's clocks say.
    fn settle(&mut self, found: Found, gap_us: i64, theirs_us: i64) {
        if found == Found::Host {
            return self.take_over(gap_us, "the database's clocks agree with it");
        }
        let late_us = if found == Found::Ours { 0 } else { theirs_us.max(0).unsigned_abs() };
        self.wall.distrust(gap_us, late_us);
        let Some(apart) = self.apart.as_mut().filter(|apart| apart.said != Some(found)) else { return };
        apart.said = Some(found);
        match found {
            Found::Ours => tracing::error!(
                "the system's clock is wrong by the database's clocks: it was set {}; set it right, this node keeps its \
                 own time meanwhile",
                far(gap_us)
            ),
            _ => tracing::error!(
                "the system's clock was set {}, and neither it nor the time of this node is within store.max_skew of the \
                 database's clocks; set all clocks by NTP",
                far(gap_us)
            ),
        }
    }

    fn take_over(&mut self, gap_us: i64, because: &str) {
        self.wall.take_over(gap_us);
        self.wall.trust();
        self.apart = None;
        self.numbers.clock_jumps_taken += 1;
        tracing::warn!("the time of this node was set {}, as the system's clock was: {because}", far(gap_us));
    }
}

/// Which clock is right when the host's is `gap_us` and the database's `theirs_us` ahead of ours.
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

/// How far, for people.
fn far(gap_us: i64) -> String {
    let side = if gap_us < 0 { "back" } else { "forward" };
    format!("{:.1} s {side}", Duration::from_micros(gap_us.unsigned_abs()).as_secs_f64())
}

/// How often the two are compared.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the clocks of the database are asked at least.
const ASK_EVERY: Span = Span::from_secs(30);
/// A step of this, in microseconds, is taken over at once and then asked about: many of them add up.
const STEP_US_ASKED: u64 = 100_000;
/// A step up to this, in microseconds, is taken over without a question, if it is at most a sixth of what clocks of
/// nodes may differ by.
const STEP_US_MAX: u64 = 5_000_000;
const SKEW_PARTS: u64 = 6;
/// Less is only what reading two clocks takes.
const GAP_US_MIN: u64 = 1_000;
/// A step that nobody can confirm is taken over when it has stood for so long.
const STANDS_FOR: Span = Span::from_secs(30);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use shards::machine::NodeId;
    use shards::wall::HostClock;

    use super::*;
    use crate::store::nodes::{Ahead, Burial, Look, Renewal, Renewed};

    const HOUR_US: i64 = 3_600_000_000;
    /// What a test may take from one line to the next.
    const SLOW_US: u64 = 60_000_000;

    /// A database whose clocks are right, or that does not answer.
    struct Database {
        wall: Mutex<Option<Arc<Wall>>>,
        right: Wall,
    }

    impl Nodes for Database {
        fn enter(&self, _: &NodeId) -> Result<(), String> {
            Ok(())
        }

        fn leave(&self, _: &NodeId) -> Result<(), String> {
            Ok(())
        }

        fn renew(&self, _: &NodeId) -> Renewal {
            Box::pin(async { Renewed::Kept })
        }

        fn bury(&self, _: &NodeId) -> Burial {
            Box::pin(async { false })
        }

        fn look(&self, _: &str) -> Look {
            Box::pin(async { None })
        }

        fn ahead(&self) -> Ahead {
            let wall = self.wall.lock().unwrap().clone();
            let ahead = wall.map(|wall| self.right.unix_us().cast_signed() - wall.unix_us().cast_signed());
            Box::pin(async move { ahead })
        }
    }

    struct Kit {
        host: HostClock,
        keeper: Timekeeper,
        database: Arc<Database>,
        right: Wall,
        now: Instant,
    }

    impl Kit {
        /// Begins with a host clock that is off by so much.
        fn new(off_us: i64, shared: bool) -> Kit {
            let host = HostClock::default();
            host.set_off(off_us);
            let wall = Arc::new(Wall::of(host.clone()));
            let database = Arc::new(Database { wall: Mutex::new(Some(Arc::clone(&wall))), right: Wall::start() });
            let nodes: Arc<dyn Nodes> = Arc::clone(&database) as Arc<dyn Nodes>;
            let witness = shared.then(|| Witness { nodes, max_skew: Duration::from_secs(30) });
            let keeper = Timekeeper::new(wall, witness);
            Kit { host, keeper, database, right: Wall::start(), now: Instant(0) }
        }

        /// A second passes and it looks.
        async fn look(&mut self) {
            self.now = self.now.after(Span::from_secs(1));
            self.keeper.look(self.now).await;
        }

        async fn looks(&mut self, seconds: u32) {
            for _ in 0..seconds {
                self.look().await;
            }
        }

        /// The host's clock and the node's time run away together.
        fn drift(&self, by_us: i64) {
            self.host.set_off(by_us);
            self.keeper.wall.take_over(by_us);
        }

        /// How far the node's time is ahead of the right one, in microseconds.
        fn wrong_by(&self) -> i64 {
            self.keeper.wall.unix_us().cast_signed() - self.right.unix_us().cast_signed()
        }

        fn is_right(&self) -> bool {
            self.wrong_by().unsigned_abs() < SLOW_US
        }

        /// Whether a message that is stamped now would be taken for one that was written too late.
        fn doubts_what_it_stores(&self) -> bool {
            self.keeper.wall.latest_us() > self.keeper.wall.unix_us() + HOUR_US.unsigned_abs() / 2
        }

        fn number(&self, name: &str) -> u64 {
            self.keeper.board.read().find(|(meaning, _)| meaning.name == name).unwrap().1
        }
    }

    #[tokio::test]
    async fn a_clock_that_goes_an_hour_forward_and_comes_back_changes_nothing() {
        for (off, shared) in [(HOUR_US, true), (-HOUR_US, true), (HOUR_US, false), (-HOUR_US, false)] {
            let mut kit = Kit::new(0, shared);
            kit.look().await;
            kit.host.set_off(off);
            for _ in 0..20 {
                kit.look().await;
                assert!(kit.is_right());
            }
            assert_eq!((kit.number("clock_jumps"), kit.number("clock_jumps_taken")), (1, 0));
            assert!((3_590..3_610).contains(&kit.number("clock_apart_seconds")));
            kit.host.set_off(0);
            kit.look().await;
            assert!(kit.is_right() && !kit.doubts_what_it_stores());
            assert_eq!(kit.number("clock_apart_seconds"), 0);
        }
    }

    #[tokio::test]
    async fn what_is_stored_is_in_doubt_until_the_database_has_said_that_the_host_is_wrong() {
        let mut kit = Kit::new(0, true);
        let wall = kit.database.wall.lock().unwrap().take();
        kit.host.set_off(HOUR_US);
        assert!(kit.doubts_what_it_stores());
        kit.look().await;
        assert!(kit.doubts_what_it_stores() && kit.is_right(), "nobody knows");
        *kit.database.wall.lock().unwrap() = wall;
        kit.look().await;
        assert!(!kit.doubts_what_it_stores());
        // Another step is another doubt.
        kit.host.set_off(2 * HOUR_US);
        kit.database.wall.lock().unwrap().take();
        kit.look().await;
        assert!(kit.doubts_what_it_stores());
        assert_eq!(kit.number("clock_jumps"), 2);
    }

    #[tokio::test]
    async fn a_clock_that_is_set_right_is_taken_over_once_it_is_confirmed() {
        for off in [-HOUR_US, HOUR_US] {
            let mut kit = Kit::new(off, true);
            kit.look().await;
            assert_eq!(kit.number("clock_jumps"), 0, "how it begins is the preflight's");
            kit.host.set_off(0);
            kit.look().await;
            assert!(kit.is_right() && !kit.doubts_what_it_stores());
            assert_eq!((kit.number("clock_jumps"), kit.number("clock_jumps_taken")), (1, 1));
        }
    }

    #[tokio::test]
    async fn a_node_alone_takes_over_what_has_stood_for_a_while() {
        for off in [-HOUR_US, HOUR_US] {
            let mut kit = Kit::new(off, false);
            kit.host.set_off(0);
            for _ in 0..STANDS_FOR.seconds_ceil() {
                kit.look().await;
                assert!(!kit.is_right());
            }
            kit.look().await;
            assert!(kit.is_right());
            assert_eq!((kit.number("clock_jumps"), kit.number("clock_jumps_taken")), (1, 1));
        }
    }

    #[tokio::test]
    async fn a_clock_that_does_not_rest_is_never_taken_over_by_a_node_alone() {
        let mut kit = Kit::new(0, false);
        for second in 0..100 {
            kit.host.set_off(HOUR_US + second % 2 * 60_000_000);
            kit.look().await;
            assert!(kit.is_right());
        }
        assert_eq!(kit.number("clock_jumps"), 100);
    }

    /// The host's clock and the time of the node drift together, so neither sees it in the other.
    #[tokio::test]
    async fn a_time_that_drifts_beyond_the_skew_is_found_out_within_half_a_minute_and_stops_the_stamps() {
        for drift_us in [-40_000_000, 40_000_000] {
            let mut kit = Kit::new(0, true);
            kit.look().await;
            kit.drift(drift_us);
            kit.looks(29).await;
            assert!(!kit.keeper.wall.is_stopped(), "the database is not asked at every look");
            kit.looks(1).await;
            assert!(kit.keeper.wall.is_stopped());
            assert_eq!((kit.number("clock_stops"), kit.number("clock_stopped")), (1, 1));
            assert_eq!(kit.number("clock_jumps"), 0);
            // A database that does not answer says nothing else.
            let wall = kit.database.wall.lock().unwrap().take();
            kit.looks(40).await;
            assert!(kit.keeper.wall.is_stopped());
            *kit.database.wall.lock().unwrap() = wall;
            // The host's clock is set right, and that is confirmed.
            kit.host.set_off(0);
            kit.looks(2).await;
            assert!(kit.is_right() && !kit.keeper.wall.is_stopped());
            assert_eq!((kit.number("clock_stops"), kit.number("clock_stopped")), (1, 0));
        }
    }

    /// Each step is small enough to be taken over at once, and together they are not.
    #[tokio::test]
    async fn small_steps_that_add_up_are_found_out() {
        let mut kit = Kit::new(0, true);
        for step in 1..=10 {
            kit.host.set_off(step * 4_000_000);
            kit.look().await;
            assert_eq!(kit.keeper.wall.is_stopped(), step > 7, "after {step} steps of 4 s");
        }
        kit.host.set_off(0);
        kit.looks(2).await;
        assert!(!kit.keeper.wall.is_stopped());
    }

    #[tokio::test]
    async fn a_node_alone_never_stops() {
        let mut kit = Kit::new(HOUR_US, false);
        kit.looks(40).await;
        assert!(!kit.keeper.wall.is_stopped());
    }

    #[tokio::test]
    async fn a_small_step_is_followed_at_once() {
        let mut kit = Kit::new(0, true);
        kit.host.set_off(3_000_000);
        kit.look().await;
        assert!(kit.wrong_by() >= 2_000_000);
        assert_eq!(kit.number("clock_jumps"), 0);
    }

    #[test]
    fn the_nearer_one_is_right_if_it_is_near_at_all() {
        let skew = Duration::from_secs(30);
        assert_eq!(judge(HOUR_US, 100, skew), Found::Ours);
        assert_eq!(judge(HOUR_US, HOUR_US - 100, skew), Found::Host);
        assert_eq!(judge(-HOUR_US, -HOUR_US + 20_000_000, skew), Found::Host);
        assert_eq!(judge(20_000_000, 9_000_000, skew), Found::Ours);
        assert_eq!(judge(20_000_000, 11_000_000, skew), Found::Host);
        assert_eq!(judge(HOUR_US, HOUR_US / 2, skew), Found::Neither);
        assert_eq!(far(-HOUR_US), "3600.0 s back");
    }
}
