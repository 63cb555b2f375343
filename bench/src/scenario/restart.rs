//! The server goes and comes again under all sessions: killed with signal 9, told to stop, or restarted by a command.
//! Every user agent then comes back as Firefox does (PROTOCOL.md 12): after 5 s, and twice as long after each attempt
//! that failed; or as impatient clients do, after a constant pause. Figures: the times at which the first and the last
//! were back; checks: no user agent and no message is lost.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use procfs::process::Process;
use rustix::process::{Pid, Signal, kill_process};

use super::arrivals::Arrivals;
use super::traffic::{MessageSpec, Stream, Traffic};
use crate::delivery_log::Expect;
use crate::latency::Latency;
use crate::random::mixed;
use crate::report::Report;

/// Options of the restart of the server.
#[derive(clap::Args, Clone, Debug)]
pub struct Restart {
    /// Restart the server with this shell command, which returns when it is under way, and let all user agents come
    /// back.
    #[arg(long, value_name = "COMMAND", conflicts_with = "kill")]
    pub restart: Option<String>,
    /// End this process (with signal 9 unless `--drain`), start `--serve`, and let all user agents come back.
    #[arg(long, value_name = "PID", requires = "serve")]
    pub kill: Option<u32>,
    /// The shell command that serves in its place; it is stopped when the scenario ends.
    #[arg(long, value_name = "COMMAND")]
    pub serve: Option<String>,
    /// Tell the process to stop (SIGTERM) and wait until it has, instead of killing it.
    #[arg(long)]
    pub drain: bool,
    /// Seconds that the place stays empty.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub down: f64,
    /// Firefox waits 5 s before its first attempt; all its waits are multiplied by this.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub back_off: f64,
    /// User agents try again after this many seconds, however often they failed, in place of Firefox's waits; 0 is at
    /// once. Of several values, with commas, each is that of an equal part of them.
    #[arg(long, value_name = "S,...", value_delimiter = ',', conflicts_with = "back_off")]
    pub retry: Vec<f64>,
    /// Seconds from the start of the next server in which all must be back.
    #[arg(long, value_name = "S")]
    pub back_within: Option<f64>,
    /// The server's `drain.rate`: the ends of sessions may never be ahead of it by more than a tenth of a second's.
    #[arg(long, value_name = "N", requires = "drain")]
    pub drain_rate: Option<f64>,
    /// Handshakes that the generator itself has under way at once while all come back.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub at_once: usize,
    /// Messages a second while the server goes: those answered 201 must come.
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    pub doomed_rate: f64,
}

impl Restart {
    /// Returns true if the server goes at all.
    pub fn wanted(&self) -> bool {
        self.restart.is_some() || self.kill.is_some()
    }
}

/// Number of a hundred users that are away with a stored message when the server goes.
pub(super) const AWAY_PERCENT: usize = 10;
/// Share of the ends of a second by which they may be ahead of `drain.rate`: the generator reads the first end late.
const JITTER: f64 = 0.1;
/// Longest wait for a process to be gone.
const GONE_PATIENCE: Duration = Duration::from_secs(120);

/// Posts for a moment, so that some messages are half way when the server goes.
pub(super) fn doomed(traffic: &mut Traffic, options: &Restart, sessions: usize) -> io::Result<()> {
    let style = MessageSpec { ttl: 3_600, topic: None, urgency: None, body_bytes: 200, expect: Expect::Once };
    let there = |number: u64| (number as usize * 101 + AWAY_PERCENT) % sessions.max(1);
    let stream = Stream::lasting(Some(options.doomed_rate), Duration::from_secs(1));
    traffic.run(stream, |_, number| Some((there(number), style)))
}

/// A server that this scenario started; killed when dropped.
#[derive(Debug)]
pub(super) struct Serving(Child);

impl Serving {
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null());
    shell
}

/// The place of the server: first it ends, then the place is empty, and then the next one serves.
#[derive(Debug)]
pub(super) struct Place<'a> {
    options: &'a Restart,
    stage: Stage,
    /// The next server, if this scenario started it.
    serving: Option<Serving>,
    /// Time from which the place is served again.
    served: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Ending { pid: Pid, deadline: Instant },
    Empty { until: Instant },
    Served,
}

impl<'a> Place<'a> {
    /// Ends the server, and returns without waiting for its end. A command that restarts it is waited for.
    pub(super) fn leave(options: &'a Restart) -> io::Result<Place<'a>> {
        let place = |stage| Place { options, stage, serving: None, served: None };
        if let Some(command) = &options.restart {
            let status = shell(command).status()?;
            return match status.success() {
                true => Ok(Place { served: Some(Instant::now()), ..place(Stage::Served) }),
                false => Err(io::Error::other(format!("--restart ended with {status}"))),
            };
        }
        let pid = options.kill.and_then(|pid| Pid::from_raw(pid as i32)).filter(|_| options.serve.is_some());
        let pid = pid.ok_or_else(|| io::Error::other("--kill needs a process id and --serve"))?;
        kill_process(pid, if options.drain { Signal::TERM } else { Signal::KILL })?;
        Ok(place(Stage::Ending { pid, deadline: Instant::now() + GONE_PATIENCE }))
    }

    /// Takes the next step if its time has come.
    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        match self.stage {
            Stage::Ending { pid, deadline } if running(pid) => {
                if now > deadline {
                    return Err(io::Error::other(format!("{pid:?} is still there after {GONE_PATIENCE:?}")));
                }
            }
            Stage::Ending { .. } => {
                let until = now + Duration::from_secs_f64(self.options.down.max(0.0));
                self.stage = Stage::Empty { until };
            }
            Stage::Empty { until } if now >= until => {
                let serve = self.options.serve.as_deref().unwrap_or_default();
                self.serving = Some(Serving(shell(&format!("exec {serve}")).spawn()?));
                (self.stage, self.served) = (Stage::Served, Some(now));
            }
            Stage::Empty { .. } | Stage::Served => {}
        }
        Ok(())
    }

    /// The next server, if this scenario started it.
    pub(super) fn serving(self) -> Option<Serving> {
        self.serving
    }
}

/// Returns true if it still runs; a process that waits for its parent to reap it is gone.
fn running(pid: Pid) -> bool {
    Process::new(pid.as_raw_nonzero().get()).is_ok_and(|process| process.is_alive())
}

/// Times at which the user agents came back.
pub(super) struct Back {
    took: Latency,
    /// From a hello to its answer.
    hello: Latency,
    attempts: u64,
    first: Option<Duration>,
    all: Option<Duration>,
    /// From the start of the next server to the return of the last.
    since_served: Option<Duration>,
    /// Times at which sessions ended, as the generator read it.
    ended: Vec<Instant>,
}

impl Back {
    pub(super) fn show(&self, report: &mut Report, options: &Restart) {
        let seconds = |span: Option<Duration>| span.map_or(f64::NAN, |span| span.as_secs_f64());
        report.add("restart: until the first was back", seconds(self.first), "s");
        report.add("restart: until all were back", seconds(self.all), "s");
        let since = "restart: from the start of the next server until all were back";
        match options.back_within {
            Some(most) => report.check_at_most(since, seconds(self.since_served), most, "s"),
            None => report.add(since, seconds(self.since_served), "s"),
        }
        self.took.show(report, "restart: until back");
        self.hello.show(report, "restart: hello to answer");
        report.add("restart: attempts", self.attempts, "");
        match &options.retry[..] {
            [] => report.add("restart: back-off scaled by", options.back_off, ""),
            pauses => report.add("restart: pauses before each attempt", format!("{pauses:?}"), "s"),
        }
        let ending = self.ended.first().zip(self.ended.last()).map_or(Duration::ZERO, |(first, last)| *last - *first);
        report.add("restart: sessions ended over", ending.as_secs_f64(), "s");
        report.add("restart: sessions that ended in one second, at most", most_in_a_second(&self.ended) as u64, "");
        if let Some(rate) = options.drain_rate {
            let ahead = most_ahead(&self.ended, rate);
            report.check_at_most("restart: ends of sessions ahead of drain.rate, at most", ahead, rate * JITTER, "");
        }
    }
}

/// The most by which the number of these instants, which are in order, is ahead of this rate. An instant that is noted
/// too late adds nothing, but for the first.
fn most_ahead(instants: &[Instant], rate: f64) -> f64 {
    let Some(first) = instants.first() else { return 0.0 };
    let ahead = |(at, instant): (usize, &Instant)| (at + 1) as f64 - (*instant - *first).as_secs_f64() * rate;
    instants.iter().enumerate().map(ahead).fold(0.0, f64::max)
}

/// The most of these instants, which are in order, that lie within one second.
fn most_in_a_second(instants: &[Instant]) -> usize {
    let mut from = 0;
    let within = |(at, instant): (usize, &Instant)| {
        while *instant - instants[from] >= Duration::from_secs(1) {
            from += 1;
        }
        at + 1 - from
    };
    instants.iter().enumerate().map(within).max().unwrap_or(0)
}

/// Lets user agents come back while the place of the server is left and taken again, until all are back.
pub(super) fn come_back(
    traffic: &mut Traffic,
    place: &mut Place<'_>,
    away: &[usize],
    went: Instant,
    patience: Duration,
) -> io::Result<Back> {
    let (all, options) = (traffic.driver.agents.count(), place.options);
    let mut arrivals = Arrivals::new(0..all, |agent, ends| Some(options.wait(agent, ends)));
    for agent in away {
        arrivals.expect(*agent, went + options.wait(*agent, 0));
    }
    let mut back = Back {
        took: Latency::default(),
        hello: Latency::default(),
        attempts: 0,
        first: None,
        all: None,
        since_served: None,
        ended: Vec::new(),
    };
    while back.all.is_none() && !arrivals.has_stalled(patience) {
        place.turn()?;
        arrivals.turn(traffic, None, |_, now, hello| {
            back.took.record(now - went);
            back.hello.record(hello);
            back.first.get_or_insert(now - went);
        })?;
        if let Some(served) = place.served.filter(|_| traffic.driver.agents.connected() == all) {
            (back.all, back.since_served) = (Some(went.elapsed()), Some(served.elapsed()));
        }
    }
    back.attempts = arrivals.attempts;
    back.ended = arrivals.lost;
    Ok(back)
}

impl Restart {
    /// Pause of an agent before its next attempt after `failures` failed ones.
    fn wait(&self, agent: usize, failures: u8) -> Duration {
        match &self.retry[..] {
            [] => wait(agent, failures, self.back_off),
            pauses => Duration::from_secs_f64(pauses[agent % pauses.len()].max(0.0)),
        }
    }
}

/// Firefox's wait before the next attempt after `failures` failed ones, a quarter more or less.
fn wait(agent: usize, failures: u8, scale: f64) -> Duration {
    // Any even spread will do; this one is the same in every run.
    let lot = mixed(agent as u64 ^ u64::from(failures) << 32);
    let share = (lot >> 11) as f64 / (1u64 << 53) as f64;
    let seconds = 5.0 * 2f64.powi(i32::from(failures.min(16)));
    Duration::from_secs_f64(seconds.min(1_800.0) * (0.75 + share / 2.0) * scale.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_spread_and_are_bounded() {
        for failures in 0..40u8 {
            let base = (5.0 * 2f64.powi(i32::from(failures))).min(1_800.0);
            let waits: Vec<f64> = (0..1_000).map(|agent| wait(agent, failures, 1.0).as_secs_f64()).collect();
            let (least, most) = waits.iter().fold((f64::MAX, 0f64), |(a, b), one| (a.min(*one), b.max(*one)));
            assert!(least >= base * 0.75 && most <= base * 1.25, "{failures}: {least} to {most}");
            assert!(most - least > base * 0.4, "they are spread");
        }
        assert_eq!(wait(5, 3, 0.0), Duration::ZERO);
    }

    fn options(restart: Option<&str>) -> Restart {
        Restart {
            restart: restart.map(str::to_owned),
            kill: None,
            serve: None,
            drain: false,
            down: 0.0,
            back_off: 1.0,
            retry: Vec::new(),
            back_within: None,
            drain_rate: None,
            at_once: 1,
            doomed_rate: 1.0,
        }
    }

    #[test]
    fn a_restart_that_fails_is_an_error() {
        let restarts = options(Some("true"));
        assert!(Place::leave(&restarts).unwrap().served.is_some());
        assert!(Place::leave(&options(Some("exit 3"))).unwrap_err().to_string().contains('3'));
        assert!(!options(None).wanted());
        assert!(Place::leave(&options(None)).is_err());
    }

    #[test]
    fn impatient_agents_wait_as_told_however_often_they_failed() {
        let mut options = options(None);
        assert!(options.wait(0, 3) > Duration::from_secs(20), "as Firefox");
        options.retry = vec![0.0, 1.0];
        for failures in [0, 1, 200] {
            assert_eq!([0, 1, 2].map(|agent| options.wait(agent, failures).as_secs()), [0, 1, 0]);
        }
    }

    #[test]
    fn ends_are_ahead_of_a_rate_when_they_come_too_fast_and_not_when_they_are_read_late() {
        let begin = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| begin + Duration::from_millis(*ms)).collect::<Vec<_>>();
        let ahead = |ms: &[u64]| most_ahead(&at(ms), 10.0).round();
        assert_eq!(ahead(&[]), 0.0);
        assert_eq!(ahead(&[0, 100, 200, 300]), 1.0, "as fast as the rate");
        assert_eq!(ahead(&[0, 1_000, 1_000, 1_000, 1_000]), 1.0, "all but the first are read late");
        assert_eq!(ahead(&[0, 50, 100, 150, 200, 250]), 4.0, "twice as fast");
    }

    #[test]
    fn the_fullest_second_is_found_wherever_it_begins() {
        let begin = Instant::now();
        let at = |ms: &[u64]| ms.iter().map(|ms| begin + Duration::from_millis(*ms)).collect::<Vec<_>>();
        assert_eq!(most_in_a_second(&[]), 0);
        assert_eq!(most_in_a_second(&at(&[0, 500, 1_000, 1_400, 1_499])), 4, "the first and 1,000 are two seconds");
        assert_eq!(most_in_a_second(&at(&[0, 1_000, 2_000])), 1);
    }
}
