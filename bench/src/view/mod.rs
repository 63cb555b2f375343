//! Progress for a person while a scenario runs: a line on standard error every few seconds.
//!
//! The scenario's thread only stores numbers ([`Gauges`], relaxed atomics). A thread of its own reads them four times
//! a second, and reads the server's memory and CPU time once a second.

pub mod history;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::history::Snapshot;
use self::history::{History, Rates};
use crate::report::Report;
use crate::result::names;
use crate::target::Target;

/// Time between two readings of the gauges.
const READING: Duration = Duration::from_millis(250);
/// Time between two lines.
const LINE: Duration = Duration::from_secs(5);
/// Seconds of which rates are kept: a day.
const SECONDS_MAX: usize = 86_400;
/// Numbers that the scenario's thread stores and the view's thread reads.
#[derive(Debug, Default)]
pub struct Gauges {
    stage: Mutex<String>,
    goal: AtomicU64,
    sessions: AtomicU64,
    posted: AtomicU64,
    notified: AtomicU64,
    ended: AtomicU64,
    p50_us: AtomicU64,
    p99_us: AtomicU64,
    stop: AtomicBool,
    /// Processes that took the server's place, until the view has seen them.
    pids: Mutex<Option<Vec<u32>>>,
    /// Rates of every second so far, with the seconds since the beginning: they become curves of the result.
    seconds: Mutex<Vec<(f64, Rates)>>,
}

impl Gauges {
    /// Lets `history` look once more.
    fn look(&self, history: &mut History) {
        if let Some(pids) = lock(&self.pids).take() {
            history.watch(pids);
        }
        if let Some(rates) = history.take(self.snapshot(), Instant::now()) {
            let mut seconds = lock(&self.seconds);
            if seconds.len() < SECONDS_MAX {
                seconds.push((history.elapsed.as_secs_f64(), rates));
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let of = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        Snapshot {
            stage: lock(&self.stage).clone(),
            goal: of(&self.goal),
            sessions: of(&self.sessions),
            posted: of(&self.posted),
            notified: of(&self.notified),
            ended: of(&self.ended),
            p50_us: of(&self.p50_us),
            p99_us: of(&self.p99_us),
        }
    }
}

/// A panic of one thread must not take the output of the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The view of one scenario; ends when dropped.
#[derive(Debug)]
pub struct View {
    gauges: Arc<Gauges>,
    thread: Option<JoinHandle<()>>,
}

impl View {
    /// Begins to read and to print. Without a thread there is no view, which costs a scenario nothing.
    pub fn open(target: &Target) -> View {
        let gauges = Arc::new(Gauges::default());
        let (shared, pids) = (gauges.clone(), target.pids.clone());
        let run = move || run_lines(&shared, History::new(pids));
        View { gauges, thread: std::thread::Builder::new().name("view".into()).spawn(run).ok() }
    }

    /// Sets the current step of the scenario and the number of sessions that it must reach.
    pub fn stage(&self, name: impl Into<String>, goal: usize) {
        *lock(&self.gauges.stage) = name.into();
        self.gauges.goal.store(goal as u64, Ordering::Relaxed);
    }

    /// Replaces the processes of the server.
    pub fn watch(&self, pids: Vec<u32>) {
        *lock(&self.gauges.pids) = Some(pids);
    }

    /// Sets the number of connected sessions.
    pub fn sessions(&self, count: usize) {
        self.gauges.sessions.store(count as u64, Ordering::Relaxed);
    }

    /// Sets the numbers of POSTs, notifications and ended connections so far.
    pub fn traffic(&self, posted: u64, notified: u64, ended: u64) {
        for (gauge, value) in
            [(&self.gauges.posted, posted), (&self.gauges.notified, notified), (&self.gauges.ended, ended)]
        {
            gauge.store(value, Ordering::Relaxed);
        }
    }

    /// Adds the rates of every second so far to the result as curves.
    pub fn curves(&self, report: &mut Report) {
        let seconds = lock(&self.gauges.seconds);
        let mut curve = |name: &str, unit: &str, of: fn(&Rates) -> f64| {
            let points: Vec<[f64; 2]> = seconds.iter().map(|(at, rates)| [*at, of(rates)]).collect();
            if points.iter().any(|point| point[1] != 0.0) {
                report.series(name, "s", unit, points);
            }
        };
        curve(names::CONNECTS, "/s", |rates| rates.sessions.max(0.0));
        curve(names::NOTIFICATIONS, "/s", |rates| rates.notified);
        curve(names::SERVER_CPU, "cores", |rates| rates.cores);
        curve(names::GENERATOR_CPU, "cores", |rates| rates.own);
    }

    /// Latency of the last second in microseconds.
    pub fn latency(&self, p50_us: f64, p99_us: f64) {
        self.gauges.p50_us.store(p50_us as u64, Ordering::Relaxed);
        self.gauges.p99_us.store(p99_us as u64, Ordering::Relaxed);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.gauges.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the view was shown by its hook; the scenario's result stands.
            let _ = thread.join();
        }
    }
}

/// A line on standard error every few seconds, none for a scenario that is shorter than that.
fn run_lines(gauges: &Gauges, mut history: History) {
    let mut last = Instant::now();
    while !gauges.stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(READING);
        gauges.look(&mut history);
        if last.elapsed() >= LINE {
            last = Instant::now();
            // Standard error is closed: the figures still go to standard output and the file.
            let _ = writeln!(io::stderr(), "{}", history.line());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        target: Target,
    }

    #[test]
    fn what_the_scenario_stores_is_what_the_view_reads() {
        let target = Line::parse_from(["x"]).target;
        let view = View::open(&target);
        view.stage("ramp", 10);
        view.sessions(4);
        view.traffic(3, 2, 1);
        view.latency(70.9, 900.0);
        let (stage, posted) = ("ramp".to_owned(), 3);
        let wanted = Snapshot { stage, goal: 10, sessions: 4, posted, notified: 2, ended: 1, p50_us: 70, p99_us: 900 };
        assert_eq!(view.gauges.snapshot(), wanted);
        let gauges = view.gauges.clone();
        drop(view);
        assert_eq!(Arc::strong_count(&gauges), 1, "the thread has ended");
    }
}
