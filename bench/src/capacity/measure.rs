//! Runs the scenarios that a prediction needs, each as a process of its own, so that it measures exactly what an
//! operator would: sessions and notifications against the server that runs, pings against one of the same program that
//! this starts and stops.
//!
//! Pings need a server of their own because a ping costs a quarter when many come, and nothing makes a running server
//! send the pings of a million to ten thousand: its interval is part of its configuration. A user agent that asks more
//! often than that is closed (PROTOCOL.md 1.5).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

use super::{Measured, Mix};
use crate::process::{self, Server};
use crate::result::{Outcome, names};

/// Holds, pushes, pings; the results.
pub(super) fn run(measured: &Measured, mix: &Mix) -> io::Result<Vec<Outcome>> {
    let pid = measured.pid.ok_or_else(|| {
        io::Error::other(
            "give results with --from, or the process id of a running server with --pid, so that it can be measured",
        )
    })?;
    if measured.admin.is_none() && mix.shards.is_none() {
        return Err(io::Error::other(
            "say with --admin where the server's metrics are, or with --shards how many shards it has: pings are measured \
             with as many",
        ));
    }
    if measured.measure_sessions == 0 {
        return Err(io::Error::other("--measure-sessions 0 measures nothing"));
    }
    let temporary = tempfile::tempdir()?;
    let directory = measured.keep.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(directory)?;
    let addresses: Vec<SocketAddr> = [measured.ws, measured.endpoint].into_iter().chain(measured.admin).collect();
    await_server(&addresses, pid, START_PATIENCE)?;
    // Pages of the ledgers are the process's own until they are written back, which takes half a minute unless it is
    // told to.
    let _ = Command::new("sync").stdin(Stdio::null()).status();
    let running = Place { ws: measured.ws, endpoint: measured.endpoint, admin: measured.admin, pid };
    let count = measured.measure_sessions;
    let hold = scenario(&running, directory, "hold", 2 * count, &hold_words(measured))?;
    let push = scenario(&running, directory, "push", count, &push_words(measured, mix))?;
    let ping = ping(measured, mix, pid, directory, &hold)?;
    Ok(vec![hold, push, ping])
}

/// Twice the sessions, of which the second half is read: the first warms the server up. Without channels: a session
/// keeps four of them in its slot at no cost, and the store's buffers of two million registrations would hide the
/// memory of sessions. Many readings, because tables grow by chunks of up to 90 KB a shard; as many handshakes at once
/// as a million takes.
fn hold_words(measured: &Measured) -> Vec<String> {
    let count = measured.measure_sessions;
    let step = (count / READINGS).max(1);
    let counts = (0..READINGS).map(|reading| count + reading * step).filter(|at| *at < 2 * count);
    let counts: Vec<String> = counts.map(|at| at.to_string()).collect();
    let quiet = if measured.seconds < SECONDS_PROMISED { "0" } else { "2" };
    words(&["--channels", "0", "--ramp", RAMP, "--quiet", quiet, "--at", &counts.join(",")])
}

/// At the rate that is asked for: a notification that comes alone wakes a shard alone.
fn push_words(measured: &Measured, mix: &Mix) -> Vec<String> {
    let rate = (mix.push_rate * (1.0 - mix.store_share)).clamp(1.0, PUSH_RATE_MAX);
    let seconds = measured.seconds.to_string();
    words(&["--rate", &rate.to_string(), "--warmup", "4", "--seconds", &seconds, "--ramp", RAMP])
}

/// Number of pinged sessions and their interval, so that they are as many pings a second as those of the prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Beat {
    pub sessions: u64,
    pub interval_s: f64,
}

impl Beat {
    /// An interval of [`BEAT_S`] where the sessions are enough for it; else all sessions, more often, to once a second.
    pub fn new(measured: &Measured, mix: &Mix) -> Beat {
        let rate = mix.sessions as f64 / mix.ping_interval;
        let all = measured.measure_sessions as f64;
        let interval_s = (all / rate).clamp(BEAT_MIN_S, BEAT_S);
        Beat { sessions: (rate * interval_s).ceil().clamp(1.0, all) as u64, interval_s }
    }
}

/// Pings at the rate of the prediction, sent by a server of the same program with as many shards.
fn ping(measured: &Measured, mix: &Mix, pid: u32, directory: &Path, hold: &Outcome) -> io::Result<Outcome> {
    let beat = Beat::new(measured, mix);
    let program = measured.program.as_ref().map_or_else(|| format!("/proc/{pid}/exe"), |path| path.clone());
    let mut arguments = words(&["--max-connections", &mix.max_connections().max(2 * beat.sessions).to_string()]);
    // The cost of a ping depends on the number of pings that come to a shard.
    if let Some(shards) = hold.option(names::OPTION_SHARDS).or(mix.shards.map(|shards| shards as f64)) {
        arguments.extend(words(&["--shards", &shards.to_string()]));
    }
    for (key, seconds) in [("interval", beat.interval_s), ("timeout", beat.interval_s * 2.0 / 3.0)] {
        arguments.extend(words(&["--set", &format!("websocket.auto_ping_{key}={seconds:.3}")]));
    }
    // The place for the data of a server: the temporary directory of some hosts is memory.
    let place = tempfile::tempdir_in(directory)?;
    let options = process::Options { command: words(&[&program, "serve"]), arguments, patience: START_PATIENCE };
    println!("measuring: a server of its own pings {} sessions every {:.1} s", beat.sessions, beat.interval_s);
    let server = Server::start(options, &place.path().join("data")).map_err(|error| {
        io::Error::other(format!(
            "the server that is to be pinged, `{program} serve`, does not start: {error}\nRun this as root or as the \
             user of process {pid}, or say with --program where murre is"
        ))
    })?;
    let at =
        Place { ws: server.websocket(), endpoint: server.endpoint(), admin: Some(server.admin()), pid: server.pid() };
    // The first ping of a session comes within one interval.
    let (warmup, seconds) = ((beat.interval_s + 1.0).to_string(), measured.seconds.to_string());
    let more = words(&["--every", "0", "--warmup", &warmup, "--seconds", &seconds, "--ramp", RAMP]);
    scenario(&at, directory, "ping", beat.sessions, &more)
}

/// A server to measure.
struct Place {
    ws: SocketAddr,
    endpoint: SocketAddr,
    admin: Option<SocketAddr>,
    pid: u32,
}

fn scenario(at: &Place, directory: &Path, name: &str, sessions: u64, more: &[String]) -> io::Result<Outcome> {
    let file = directory.join(format!("{name}.json"));
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).args(["--ws", &at.ws.to_string(), "--endpoint", &at.endpoint.to_string()]);
    command.args(["--pid", &at.pid.to_string(), "--sessions", &sessions.to_string()]);
    if let Some(admin) = at.admin {
        command.args(["--admin", &admin.to_string()]);
    }
    command.arg("--json").arg(&file).args(more).stdin(Stdio::null());
    println!("measuring: {name} with {sessions} sessions");
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!(
            "`murre-bench {name}` failed ({status}): what it says above must be mended first"
        )));
    }
    Outcome::read(&file)
}

/// Waits until every one of these addresses takes a connection: a server that was just started opens its data first.
///
/// # Errors
/// The process is gone, or `patience` is over.
pub(super) fn await_server(addresses: &[SocketAddr], pid: u32, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    for address in addresses {
        while let Err(error) = TcpStream::connect_timeout(address, Duration::from_secs(1)) {
            let there = i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| {
                // A process that may not signal it knows at least that it is there.
                test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
            });
            if !there {
                return Err(io::Error::other(format!("there is no process {pid} (--pid): has the server ended?")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!(
                    "nobody listens on {address} after {} s: {error}. Say with --ws, --endpoint and --admin where the \
                     server is",
                    patience.as_secs()
                )));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
    Ok(())
}

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|&word| word.to_owned()).collect()
}

/// For a server to open its data and to listen.
const START_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Seconds between two pings to a session, as its own server of pings is told: much more than a round of the sweep
/// that sends them, much less than the measurement.
const BEAT_S: f64 = 3.0;
const BEAT_MIN_S: f64 = 1.0;
/// Notifications a second to measure with, at most: from some ten thousand on each costs what the next does.
const PUSH_RATE_MAX: f64 = 10_000.0;
/// Readings of memory in the upper half.
const READINGS: u64 = 20;
/// Handshakes under way at once.
const RAMP: &str = "1024";
/// Shorter measurements promise nothing.
const SECONDS_PROMISED: f64 = 10.0;
