//! Arrival of sessions: a number of handshakes under way at once, or a number of arrivals per second regardless of the
//! server.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::arrivals::Arrivals;
use super::traffic::Traffic;
use crate::latency::Latency;
use crate::report::Report;
use crate::schedule::OpenLoopSchedule;
use crate::target::Ramp;

/// Result of an arrival.
#[derive(Debug, Default)]
pub struct RampResult {
    /// From the first connect to the last session's readiness.
    pub seconds: f64,
    /// From the due time of a session to the end of its plan; of open loops only.
    pub took: Latency,
    /// Attempts that failed and were made again.
    pub again: u64,
    /// Sessions that are not connected after all attempts.
    pub failed: u64,
}

/// Attempts of each session.
const ATTEMPTS: u8 = 4;
/// Time without any arrival after which the ramp is given up.
const STALL: Duration = Duration::from_secs(60);
/// Pause before a failed attempt is made again.
const PAUSE: Duration = Duration::from_millis(500);

impl Ramp {
    /// Connects `agents` and waits until each has done its plan or failed.
    pub fn climb(&self, traffic: &mut Traffic, agents: Range<usize>) -> io::Result<RampResult> {
        let begin = Instant::now();
        let pace = self.ramp_rate.map(|rate| OpenLoopSchedule::new(begin, rate));
        climb(traffic, agents, pace, self.ramp)
    }
}

/// Makes all of `agents` arrive within `span`, evenly.
pub fn arrive(traffic: &mut Traffic, agents: Range<usize>, span: Duration) -> io::Result<RampResult> {
    let pace = OpenLoopSchedule::spread(Instant::now(), agents.len(), span);
    climb(traffic, agents, Some(pace), usize::MAX)
}

fn climb(
    traffic: &mut Traffic,
    agents: Range<usize>,
    pace: Option<OpenLoopSchedule>,
    at_once: usize,
) -> io::Result<RampResult> {
    let begin = Instant::now();
    let (first, count) = (agents.start, agents.len() as u64);
    let mut climb = RampResult::default();
    let mut arrivals = Arrivals::new(agents, |_, ends| (ends + 1 < ATTEMPTS).then_some(PAUSE));
    let mut launched = 0;
    traffic.driver.agents.set_in_flight_max(if pace.is_some() { usize::MAX } else { at_once });
    while arrivals.came + arrivals.gave_up < count && !arrivals.has_stalled(STALL) {
        let owed = pace.map_or(count, |pace| pace.owed(Instant::now()).min(count));
        if owed > launched {
            traffic.driver.agents.launch(first + launched as usize..first + owed as usize);
            launched = owed;
        }
        let next = pace.filter(|_| launched < count).map(|pace| pace.due(launched));
        arrivals.turn(traffic, next, |agent, now, _| {
            if let Some(pace) = pace {
                climb.took.record(now.saturating_duration_since(pace.due(agent.saturating_sub(first) as u64)));
            }
        })?;
    }
    climb.again = arrivals.attempts;
    climb.failed = count.saturating_sub(arrivals.came);
    climb.seconds = begin.elapsed().as_secs_f64();
    Ok(climb)
}

impl RampResult {
    /// Shows the duration and the failures.
    pub fn show(&self, report: &mut Report, what: &str, sessions: usize) {
        report.add(format!("{what}: time until all were there"), self.seconds, "s");
        report.add(format!("{what}: sessions a second"), sessions as f64 / self.seconds.max(1e-9), "/s");
        if self.took.count() > 0 {
            self.took.show(report, &format!("{what}: due to ready"));
        }
        report.add(format!("{what}: attempts made again"), self.again, "");
        report.check(format!("{what}: sessions that failed"), self.failed, 0);
    }
}
