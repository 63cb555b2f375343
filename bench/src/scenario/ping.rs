//! `ping`: the cost of upkeep. Every session sends `{}`, or a WebSocket ping, in turn and must be answered. A session
//! whose last ping is unanswered leaves one out: an empty pong does not say which ping it answers. The server's own
//! WebSocket pings are answered and must not come more often than configured. Sessions that ask too often must be
//! closed (PROTOCOL.md 1.5).

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use super::traffic::Traffic;
use crate::fleet::{AgentEvent, End, Plan};
use crate::latency::Latency;
use crate::post::Signing;
use crate::report::Report;
use crate::result::names;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;
use crate::usage::UsageSample;

/// Number and interval of the pings.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// Seconds from one `{}` of a session to its next; murre closes a session that asks within its
    /// `websocket.ping_min_interval`. 0: sessions do not ask, and only the server's own pings are measured: with an
    /// interval of 3 s ten thousand sessions are pinged as often a second as a million are with one of 300 s.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub every: f64,
    /// Sessions send empty WebSocket pings, as OkHttp and Qt do, in place of `{}`. These have no minimum interval.
    #[arg(long)]
    pub frames: bool,
    /// Seconds of it.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Seconds before measuring: the server's first ping to a session comes after half of its interval at the earliest.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub warmup: f64,
    /// The server's own interval (`websocket.auto_ping_interval`): its pings to a session must not be closer.
    #[arg(long, value_name = "S")]
    pub server_interval: Option<f64>,
    /// Number of sessions that ask twice at the end and must be closed for it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub too_soon: usize,
}

/// Timers of a server may be early by this share of the interval: they are kept in coarse steps.
const EARLY: f64 = 0.9;
/// A generator that last looked this long ago does not know the arrival time of the events that it finds.
const STOOD_STILL: Duration = Duration::from_millis(200);
/// Longest wait for the last answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Times of the last events of a session.
#[derive(Clone, Copy, Default)]
struct Beat {
    asked: Option<Instant>,
    pinged: Option<Instant>,
}

#[derive(Default)]
struct Tally {
    asked: u64,
    /// Pings that were due while the one before was unanswered.
    left_out: u64,
    answered: u64,
    pinged: u64,
    early: u64,
    gap_min: Option<Duration>,
    closed: BTreeMap<End, u64>,
    took: Latency,
}

/// Pings and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("ping");
    let plan = Plan { ack: true, ..Plan::default() };
    let mut traffic = Traffic::new(target, plan, Signing::None)?;
    traffic.driver.view.stage("ramp", target.sessions);
    target.ramp.climb(&mut traffic, 0..target.sessions)?.show(&mut report, "ramp", target.sessions);
    traffic.driver.view.stage("ping", target.sessions);
    traffic.idle(Duration::from_secs_f64(options.warmup.max(0.0)))?;
    let mut beats = vec![Beat::default(); target.sessions];
    let mut tally = Tally::default();
    let before = UsageSample::read(target)?;
    upkeep(&mut traffic, options, &mut beats, &mut tally)?;
    let spent = before.spent(target)?;
    show(&mut report, options, &tally);
    spent.show(&mut report, "ping and pong, both directions", tally.answered + tally.pinged);
    let count = tally.answered + tally.pinged;
    report.add(names::PING_RATE, count as f64 / spent.wall.as_secs_f64(), "/s");
    if let Some(us) = spent.us_each(count).filter(|_| count > 0) {
        report.add(names::CPU_PING, us, "us");
        report.add(names::CORES, spent.cores(), "cores");
    }
    report.check("sessions still there", traffic.driver.agents.connected() as u64, target.sessions as u64);
    if options.too_soon > 0 {
        too_soon(&mut traffic, options, &mut report)?;
    }
    traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

fn upkeep(traffic: &mut Traffic, options: &Options, beats: &mut [Beat], tally: &mut Tally) -> io::Result<()> {
    let begin = Instant::now();
    let pace = OpenLoopSchedule::spread(begin, beats.len(), Duration::from_secs_f64(options.every.max(0.001)));
    let end = begin + Duration::from_secs_f64(options.seconds.max(0.0));
    traffic.others.clear();
    let (mut looked, mut turn) = (Instant::now(), 0);
    while Instant::now() < end || tally.answered < tally.asked && Instant::now() < end + PATIENCE {
        let owed = if options.every > 0.0 { pace.owed(Instant::now().min(end)) } else { 0 };
        while turn < owed {
            let agent = (turn % beats.len().max(1) as u64) as usize;
            let agents = &mut traffic.driver.agents;
            let send = || if options.frames { agents.ping_frame(agent) } else { agents.ping(agent) };
            tally.ask(&mut beats[agent], pace.due(turn), send);
            turn += 1;
        }
        let next = pace.due(turn).min(Instant::now() + Duration::from_millis(20));
        traffic.turn_by(next)?;
        let stood_still = looked.elapsed() > STOOD_STILL;
        looked = Instant::now();
        for happening in std::mem::take(&mut traffic.others) {
            tally.enter(&happening, beats, options.server_interval);
            // Its arrival time is unknown: the next one is not measured from here.
            if let (true, AgentEvent::Pinged { agent }) = (stood_still, &happening) {
                beats[*agent].pinged = None;
            }
        }
    }
    Ok(())
}

impl Tally {
    /// Sends a ping that is due, unless the session waits for a pong.
    fn ask(&mut self, beat: &mut Beat, due: Instant, send: impl FnOnce() -> bool) {
        if beat.asked.is_some() {
            self.left_out += 1;
            return;
        }
        beat.asked = send().then_some(due);
        self.asked += 1;
    }

    fn enter(&mut self, happening: &AgentEvent, beats: &mut [Beat], interval: Option<f64>) {
        let now = Instant::now();
        match happening {
            AgentEvent::Pong { agent } => {
                if let Some(asked) = beats[*agent].asked.take() {
                    self.answered += 1;
                    self.took.record(now.saturating_duration_since(asked));
                }
            }
            AgentEvent::Pinged { agent } => {
                self.pinged += 1;
                let gap = beats[*agent].pinged.replace(now).map(|last| now - last);
                self.early +=
                    u64::from(gap.zip(interval).is_some_and(|(gap, least)| gap.as_secs_f64() < least * EARLY));
                self.gap_min = self.gap_min.into_iter().chain(gap).min();
            }
            AgentEvent::Ended { reason, .. } => *self.closed.entry(*reason).or_default() += 1,
            _ => {}
        }
    }
}

fn show(report: &mut Report, options: &Options, tally: &Tally) {
    report.add("pings of user agents", tally.asked, "");
    report.check("pings of user agents answered", tally.answered, tally.asked);
    report.add("pings left out, since the one before was unanswered", tally.left_out, "");
    tally.took.show(report, "ping due to its answer");
    report.add("pings of the server, all answered", tally.pinged, "");
    if let Some(gap) = tally.gap_min {
        report.add("shortest gap between two of them to a session", gap.as_secs_f64(), "s");
    }
    if let Some(interval) = options.server_interval {
        report.add("their interval as told", interval, "s");
        report.check("pings of the server that came too early", tally.early, 0);
    }
    report.add("sessions closed, by code", format!("{:?}", tally.closed), "");
}

/// Two questions in a row: the second is always too soon.
fn too_soon(traffic: &mut Traffic, options: &Options, report: &mut Report) -> io::Result<()> {
    let impatient: HashSet<usize> = (0..options.too_soon.min(options.target.sessions)).collect();
    traffic.others.clear();
    for agent in &impatient {
        for _ in 0..2 {
            traffic.driver.agents.ping(*agent);
        }
    }
    let (mut closed, end) = (0, Instant::now() + PATIENCE);
    while closed < impatient.len() as u64 && Instant::now() < end {
        traffic.turn_by(Instant::now() + Duration::from_millis(20))?;
        for happening in traffic.others.drain(..) {
            if let AgentEvent::Ended { agent, reason, .. } = happening {
                closed += u64::from(impatient.contains(&agent) && matches!(reason, End::Closed(4774 | 1011)));
            }
        }
    }
    report.check("sessions closed for asking too soon", closed, impatient.len() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_that_is_due_before_the_pong_of_the_last_one_is_left_out() {
        let (mut tally, mut beats, now) = (Tally::default(), [Beat::default()], Instant::now());
        let pong = AgentEvent::Pong { agent: 0 };
        for sends in [true, true, false] {
            tally.ask(&mut beats[0], now, || sends);
        }
        tally.enter(&pong, &mut beats, None);
        assert_eq!((tally.asked, tally.answered, tally.left_out), (1, 1, 2), "its only ping is answered");
        tally.ask(&mut beats[0], now, || true);
        tally.enter(&pong, &mut beats, None);
        assert_eq!((tally.asked, tally.answered, tally.left_out), (2, 2, 2));
        tally.ask(&mut beats[0], now, || false);
        assert_eq!((tally.asked, tally.answered, tally.left_out), (3, 2, 2), "a session that is gone is missed");
    }
}
