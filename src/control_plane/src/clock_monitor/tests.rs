//! Clocks that are set, drift and disagree, against a database that is right or does not answer.

use runtime::process_clock::HostClock;
use store::testing::nodes::FakeNodes;

use super::*;

const HOUR_US: i64 = 3_600_000_000;
/// Time that a test may take from one line to the next.
const SLOW_US: u64 = 60_000_000;

/// The answer of a database whose clocks are right: its lead over the time of this process.
fn right(process_clock: &Arc<ProcessClock>) -> Option<Box<dyn Fn() -> i64 + Send>> {
    let (process_clock, right) = (Arc::clone(process_clock), ProcessClock::start());
    Some(Box::new(move || right.unix_us().cast_signed() - process_clock.unix_us().cast_signed()))
}

struct Kit {
    host: HostClock,
    keeper: ClockMonitor,
    database: Arc<FakeNodes>,
    right: ProcessClock,
    now: Instant,
}

impl Kit {
    /// Begins with a host clock that is off by `off_us`.
    fn new(off_us: i64, shared: bool) -> Kit {
        let host = HostClock::default();
        host.set_off(off_us);
        let process_clock = Arc::new(ProcessClock::of(host.clone()));
        let database = Arc::new(FakeNodes::default());
        database.answers().ahead = right(&process_clock);
        let nodes: Arc<dyn NodeTable> = Arc::clone(&database) as Arc<dyn NodeTable>;
        let source = shared.then(|| TimeSource { nodes, max_skew: Duration::from_secs(30) });
        let keeper = ClockMonitor::new(process_clock, source);
        Kit { host, keeper, database, right: ProcessClock::start(), now: Instant(0) }
    }

    /// A second passes and it looks.
    async fn look(&mut self) {
        self.now = self.now.after(TimeSpan::from_secs(1));
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
        self.keeper.process_clock.apply_step(by_us);
    }

    /// Lead of the node's time over the right one, in microseconds.
    fn wrong_by(&self) -> i64 {
        self.keeper.process_clock.unix_us().cast_signed() - self.right.unix_us().cast_signed()
    }

    fn is_right(&self) -> bool {
        self.wrong_by().unsigned_abs() < SLOW_US
    }

    /// Returns true if a message that is stamped now would be taken for one that was written too late.
    fn doubts_what_it_stores(&self) -> bool {
        self.keeper.process_clock.latest_us() > self.keeper.process_clock.unix_us() + HOUR_US.unsigned_abs() / 2
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
    let ahead = kit.database.answers().ahead.take();
    kit.host.set_off(HOUR_US);
    assert!(kit.doubts_what_it_stores());
    kit.look().await;
    assert!(kit.doubts_what_it_stores() && kit.is_right(), "nobody knows");
    kit.database.answers().ahead = ahead;
    kit.look().await;
    assert!(!kit.doubts_what_it_stores());
    // Another step is another doubt.
    kit.host.set_off(2 * HOUR_US);
    kit.database.answers().ahead = None;
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
        assert!(!kit.keeper.process_clock.is_stopped(), "the database is not asked at every look");
        kit.looks(1).await;
        assert!(kit.keeper.process_clock.is_stopped());
        assert_eq!((kit.number("clock_stops"), kit.number("clock_stopped")), (1, 1));
        assert_eq!(kit.number("clock_jumps"), 0);
        // A database that does not answer says nothing else.
        let ahead = kit.database.answers().ahead.take();
        kit.looks(40).await;
        assert!(kit.keeper.process_clock.is_stopped());
        kit.database.answers().ahead = ahead;
        // The host's clock is set right, and that is confirmed.
        kit.host.set_off(0);
        kit.looks(2).await;
        assert!(kit.is_right() && !kit.keeper.process_clock.is_stopped());
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
        assert_eq!(kit.keeper.process_clock.is_stopped(), step > 7, "after {step} steps of 4 s");
    }
    kit.host.set_off(0);
    kit.looks(2).await;
    assert!(!kit.keeper.process_clock.is_stopped());
}

#[tokio::test]
async fn a_node_alone_never_stops() {
    let mut kit = Kit::new(HOUR_US, false);
    kit.looks(40).await;
    assert!(!kit.keeper.process_clock.is_stopped());
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
    assert_eq!(judge_step(HOUR_US, 100, skew), StepVerdict::Ours);
    assert_eq!(judge_step(HOUR_US, HOUR_US - 100, skew), StepVerdict::Host);
    assert_eq!(judge_step(-HOUR_US, -HOUR_US + 20_000_000, skew), StepVerdict::Host);
    assert_eq!(judge_step(20_000_000, 9_000_000, skew), StepVerdict::Ours);
    assert_eq!(judge_step(20_000_000, 11_000_000, skew), StepVerdict::Host);
    assert_eq!(judge_step(HOUR_US, HOUR_US / 2, skew), StepVerdict::Neither);
    assert_eq!(far(-HOUR_US), "3600.0 s back");
}
