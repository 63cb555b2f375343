//! Progress for a person while a scenario runs: on a terminal a live screen, elsewhere a line every few seconds.
//!
//! The scenario's thread only stores numbers ([`Gauges`], relaxed atomics). A thread of its own reads them four times
//! a second, reads the server's memory and CPU time once a second, and draws.

pub mod history;

pub mod screen;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

pub use self::history::Snapshot;
use self::history::{History, Rates};
use crate::report::Report;
use crate::result::names;
use crate::target::Target;

/// Time between two pictures.
const FRAME: Duration = Duration::from_millis(250);
/// Time between two lines without a terminal.
const LINE: Duration = Duration::from_secs(5);
/// Seconds of which rates are kept: a day.
const SECONDS_MAX: usize = 86_400;
/// Exit status after a second `q` or Ctrl-C in the screen, as after a second SIGINT.
const ENDED_BY_KEY: i32 = 130;
/// Findings kept for the screen; all of them are printed when it closes.
const PANE_LINES: usize = 200;

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

/// Lines held back while a screen is open; `None` when none is.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// A panic of one thread must not take the output of the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a line of the result: now, or when the screen closes, which shows it meanwhile.
pub fn say(line: impl Into<String>) {
    let line = line.into();
    match &mut *lock(&HELD) {
        Some(held) => held.push(line),
        None => println!("{line}"),
    }
}

/// The view of one scenario; ends and restores the terminal when dropped.
#[derive(Debug)]
pub struct View {
    gauges: Arc<Gauges>,
    thread: Option<JoinHandle<()>>,
}

impl View {
    /// Opens the screen when standard output and error are a terminal and `--no-view` was not given.
    pub fn open(target: &Target) -> View {
        let gauges = Arc::new(Gauges::default());
        let screen = !target.no_view && io::stdout().is_terminal() && io::stdin().is_terminal();
        if screen {
            // Now, not in the thread: a line before the first picture would be printed under it.
            *lock(&HELD) = Some(Vec::new());
        }
        let (shared, pids) = (gauges.clone(), target.pids.clone());
        let thread = std::thread::Builder::new().name("view".into()).spawn(move || {
            let history = History::new(pids);
            match screen.then(ratatui::try_init) {
                Some(Ok(terminal)) => run_screen(terminal, &shared, history),
                Some(Err(_)) | None => {
                    release();
                    run_lines(&shared, history);
                }
            }
        });
        if thread.is_err() {
            // Without a thread there is no view, which costs a scenario nothing.
            release();
        }
        View { gauges, thread: thread.ok() }
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

/// Draws until told to stop, then restores the terminal and prints the lines that were held back. `ratatui::try_init`
/// has set a hook that restores it when any thread panics.
fn run_screen(mut terminal: ratatui::DefaultTerminal, gauges: &Gauges, mut history: History) {
    while !gauges.stop.load(Ordering::Relaxed) {
        gauges.look(&mut history);
        let lines = lock(&HELD).as_ref().map_or_else(Vec::new, |held| tail(held, PANE_LINES).to_vec());
        if terminal.draw(|frame| screen::draw(frame, &history, &lines)).is_err() {
            break;
        }
        while event::poll(Duration::ZERO).unwrap_or(false) {
            let asked = matches!(event::read(), Ok(Event::Key(key)) if asks_for_the_end(key));
            // The second time as a second signal does: the scenario does not react, or takes too long for the user.
            if asked && crate::interrupt::request() {
                close_screen();
                std::process::exit(ENDED_BY_KEY);
            }
        }
        std::thread::park_timeout(FRAME);
    }
    close_screen();
}

/// In raw mode Ctrl-C is a key.
fn asks_for_the_end(key: KeyEvent) -> bool {
    let ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    ctrl_c || key.code == KeyCode::Char('q')
}

/// Gives the terminal back and prints the lines that were held back.
fn close_screen() {
    ratatui::restore();
    release();
}

/// Prints the lines that were held back; from now on lines are printed at once.
fn release() {
    let held = lock(&HELD).take().unwrap_or_default();
    held.iter().for_each(|line| println!("{line}"));
}

fn tail<T>(items: &[T], most: usize) -> &[T] {
    &items[items.len().saturating_sub(most)..]
}

/// A line on standard error every few seconds, none for a scenario that is shorter than that.
fn run_lines(gauges: &Gauges, mut history: History) {
    let mut last = Instant::now();
    while !gauges.stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(FRAME);
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
        let target = Line::parse_from(["x", "--no-view"]).target;
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

    #[test]
    fn the_pane_shows_the_newest() {
        assert_eq!(tail(&[1, 2, 3], 2), [2, 3]);
        assert_eq!(tail(&[1], 2), [1]);
    }
}
