//! The server goes and comes again under all sessions: killed with signal 9, told to stop, or restarted by a command.
//! Every user agent then comes back as Firefox does (PROTOCOL.md 12): after 5 s, and twice as long after each attempt
//! that failed. Figures: the times at which the first and the last were back; checks: no user agent and no message is
//! lost.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

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
/// Longest wait for a process to be gone.
const GONE_PATIENCE: Duration = Duration::from_secs(120);

/// Posts for a moment, so that some messages are half way when the server goes.
pub(super) fn doomed(traffic: &mut Traffic, options: &Restart, sessions: usize) -> io::Result<()> {
    let style = MessageSpec { ttl: 3_600, topic: None, body_bytes: 200, expect: Expect::Once };
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

pub(super) fn replace(options: &Restart) -> io::Result<Option<Serving>> {
    if let Some(command) = &options.restart {
        let status = shell(command).status()?;
        return match status.success() {
            true => Ok(None),
            false => Err(io::Error::other(format!("--restart ended with {status}"))),
        };
    }
    let pid = options.kill.and_then(|pid| Pid::from_raw(pid as i32));
    let (Some(pid), Some(serve)) = (pid, &options.serve) else {
        return Err(io::Error::other("--kill needs a process id and --serve"));
    };
    kill_process(pid, if options.drain { Signal::TERM } else { Signal::KILL })?;
    let deadline = Instant::now() + GONE_PATIENCE;
    while running(pid) {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{pid:?} is still there after {GONE_PATIENCE:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs_f64(options.down.max(0.0)));
    Ok(Some(Serving(shell(&format!("exec {serve}")).spawn()?)))
}

/// Returns true if it still runs; a process that waits for its parent to reap it is gone.
fn running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or("").chars().next();
    test_kill_process(pid).is_ok() && state != Some('Z')
}

/// Times at which the user agents came back.
pub(super) struct Back {
    took: Latency,
    attempts: u64,
    first: Option<Duration>,
    all: Option<Duration>,
}

impl Back {
    pub(super) fn show(&self, report: &mut Report, back_off: f64) {
        let seconds = |span: Option<Duration>| span.map_or(f64::NAN, |span| span.as_secs_f64());
        report.add("restart: until the first was back", seconds(self.first), "s");
        report.add("restart: until all were back", seconds(self.all), "s");
        self.took.show(report, "restart: until back");
        report.add("restart: attempts", self.attempts, "");
        report.add("restart: back-off scaled by", back_off, "");
    }
}

pub(super) fn come_back(
    traffic: &mut Traffic,
    options: &Restart,
    away: &[usize],
    went: Instant,
    patience: Duration,
) -> io::Result<Back> {
    let all = traffic.driver.agents.count();
    let mut arrivals = Arrivals::new(0..all, |agent, ends| Some(wait(agent, ends, options.back_off)));
    for agent in away {
        arrivals.expect(*agent, went + wait(*agent, 0, options.back_off));
    }
    let mut back = Back { took: Latency::default(), attempts: 0, first: None, all: None };
    while back.all.is_none() && !arrivals.has_stalled(patience) {
        arrivals.turn(traffic, None, |_, now| {
            back.took.record(now - went);
            back.first.get_or_insert(now - went);
        })?;
        back.all = (traffic.driver.agents.connected() == all).then(|| went.elapsed());
    }
    back.attempts = arrivals.attempts;
    Ok(back)
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

    #[test]
    fn a_restart_that_fails_is_an_error() {
        let options = |restart: Option<&str>| Restart {
            restart: restart.map(str::to_owned),
            kill: None,
            serve: None,
            drain: false,
            down: 0.0,
            back_off: 1.0,
            at_once: 1,
            doomed_rate: 1.0,
        };
        assert!(replace(&options(Some("true"))).unwrap().is_none());
        assert!(replace(&options(Some("exit 3"))).unwrap_err().to_string().contains('3'));
        assert!(!options(None).wanted());
        assert!(replace(&options(None)).is_err());
    }
}
