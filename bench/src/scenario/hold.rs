//! `hold`: sessions that do nothing, and the cost of each to the server and the kernel. The figure is the slope of
//! `Private_Dirty` (of heap, stacks and anonymous mappings; the ledger's files are lines of their own) between two
//! session counts, so the memory of the process without sessions does not count (docs/CAPACITY.md).

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::ramp::RampResult;
use super::traffic::Traffic;
use crate::fleet::{AgentEvent, Plan};
use crate::memory_sample::{self, MemorySample};
use crate::metrics::{self, Metrics};
use crate::post::Signing;
use crate::report::Report;
use crate::result::names;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;
use crate::usage::{UsageDelta, UsageSample};

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size; `--sessions` is the largest count.
    #[command(flatten)]
    pub target: Target,
    /// Counts at which memory is read, with commas; a quarter and a half of `--sessions` when absent. All of them are
    /// always one. The slope is from the first count to the last; the first few thousand sessions also pay for what a
    /// server makes once.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub at: Vec<usize>,
    /// Channels each session registers.
    #[arg(long, value_name = "K", default_value_t = 2)]
    pub channels: usize,
    /// Sessions do not subscribe to a broadcast.
    #[arg(long)]
    pub no_broadcast: bool,
    /// First all say hello, then all register: each has a figure of its own. No broadcast then.
    #[arg(long)]
    pub split: bool,
    /// Seconds of quiet before each reading; idle CPU is measured over them.
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub quiet: u64,
    /// Seconds to go on holding at the end.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub stay: u64,
    /// At the end every session sends `{}` and must be answered.
    #[arg(long)]
    pub answer: bool,
    /// Those a second, as an open loop.
    #[arg(long, value_name = "N", default_value_t = 20_000.0)]
    pub answer_rate: f64,
    /// At the very end all leave, and memory is read once more.
    #[arg(long)]
    pub release: bool,
    /// Seconds between the leaving and that reading.
    #[arg(long, value_name = "S", default_value_t = 20)]
    pub release_wait: u64,
    /// A list of UAIDs. When the file exists, sessions say hello with them and register nothing, so that the store has
    /// nothing to write: run once to register and make the file, start the server anew, run again to measure.
    #[arg(long, value_name = "FILE")]
    pub uaids: Option<PathBuf>,
}

const BROADCAST: &str = "murre-bench/hold";
/// Longest wait for the last answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// Holds them and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("hold");
    if let Some((admin, token)) = target.admin.zip(target.admin_token.as_deref()).filter(|_| !options.no_broadcast) {
        metrics::set_broadcast(admin, &std::fs::read_to_string(token)?, BROADCAST, "v1")?;
    }
    // Without the token of murre's operator there is none to subscribe to; another server may have it.
    let is_set = target.admin.is_none() || target.admin_token.is_some();
    let broadcast = (is_set && !options.no_broadcast && !options.split).then(|| BROADCAST.to_owned());
    let channels = if options.split { 0 } else { options.channels };
    let plan = Plan { channels, broadcast: broadcast.clone(), ack: true, ..Plan::default() };
    let mut traffic = Traffic::new(target, plan.clone(), Signing::None)?;
    let known = options.uaids.as_deref().map(std::fs::read_to_string).and_then(Result::ok);
    if let Some(known) = &known {
        traffic.driver.agents.set_plan(Plan { channels: 0, ..plan });
        for (agent, uaid) in known.lines().enumerate().take(target.sessions) {
            traffic.driver.agents.set_uaid(agent, uaid);
        }
    }
    report.add("channels of each session", options.channels as u64, "");
    report.add("broadcasts of each session", u64::from(broadcast.is_some()), "");
    report.option(names::OPTION_CHANNELS, options.channels);
    let mut readings = vec![MemorySample::take(target, 0)?];
    let mut from = 0;
    for to in counts(options) {
        readings.push(hold_up_to(&mut traffic, options, from..to, &mut report)?);
        from = to;
    }
    let held = traffic.driver.agents.connected() as u64;
    report.check("sessions held", held, target.sessions as u64);
    memory_sample::show(&mut report, &readings);
    traffic.driver.view.curves(&mut report);
    remember(&mut traffic, options, known.is_some(), &mut report)?;
    if options.stay > 0 {
        stay(&mut traffic, options, &mut report)?;
    }
    if options.answer {
        answer(&mut traffic, options, &mut report)?;
    }
    if options.release {
        release(&mut traffic, options, &readings, &mut report)?;
    }
    report.finish(target.json.as_deref())
}

/// The counts to stop at, in order, the last of them `--sessions`.
fn counts(options: &Options) -> Vec<usize> {
    let all = options.target.sessions;
    let mut counts = if options.at.is_empty() { vec![all / 4, all / 2] } else { options.at.clone() };
    counts.retain(|count| (1..all).contains(count));
    counts.push(all);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn hold_up_to(
    traffic: &mut Traffic,
    options: &Options,
    agents: std::ops::Range<usize>,
    report: &mut Report,
) -> io::Result<MemorySample> {
    let (target, to, count) = (&options.target, agents.end, agents.len());
    traffic.driver.view.stage(format!("ramp to {to}"), to);
    let before = UsageSample::read(target)?;
    let climb: RampResult = options.target.ramp.climb(traffic, agents)?;
    let spent = before.spent(target)?;
    climb.show(report, &format!("ramp to {to}"), count);
    spent.show(report, &format!("new session, ramp to {to}"), count as u64);
    if let Some(us) = spent.us_each(count as u64).filter(|_| options.split) {
        report.add(names::CPU_HELLO, us, "us");
        register(traffic, options, to - count..to, report)?;
    }
    traffic.driver.view.stage(format!("quiet at {to}"), to);
    // Writes that the ramp left over are not idle work.
    traffic.idle(Duration::from_secs(options.quiet.min(2)))?;
    let (quiet, pings) = (UsageSample::read(target)?, traffic.driver.agents.pings());
    traffic.idle(Duration::from_secs(options.quiet))?;
    let spent = quiet.spent(target)?;
    let pings = traffic.driver.agents.pings() - pings;
    show_idle(report, &spent, pings, &format!("at {to}"));
    if to == target.sessions && spent.cpu.is_some() {
        report.add(names::CPU_IDLE, spent.cores(), "cores");
        report.add(names::PING_RATE, pings as f64 / spent.wall.as_secs_f64(), "/s");
    }
    MemorySample::take(target, traffic.driver.agents.connected())
}

/// Registers the channels of each of `agents`, one after the other.
fn register(
    traffic: &mut Traffic,
    options: &Options,
    agents: std::ops::Range<usize>,
    report: &mut Report,
) -> io::Result<()> {
    let total = (agents.len() * options.channels) as u64;
    let before = UsageSample::read(&options.target)?;
    let mut done = 0;
    for _ in 0..options.channels {
        done += register_once(traffic, options.target.ramp.ramp, agents.clone())?;
    }
    report.check("channels registered", done, total);
    if let Some(us) = before.spent(&options.target)?.us_each(total) {
        report.add(names::CPU_REGISTER, us, "us");
    }
    Ok(())
}

/// Registers one channel of each agent, `at_once` at a time; returns the number of answers with an endpoint.
fn register_once(traffic: &mut Traffic, at_once: usize, mut agents: std::ops::Range<usize>) -> io::Result<u64> {
    let (mut under_way, mut done) = (0usize, 0u64);
    let mut deadline = Instant::now() + ANSWER_PATIENCE;
    while (under_way > 0 || !agents.is_empty()) && Instant::now() < deadline {
        while under_way < at_once
            && let Some(agent) = agents.next()
        {
            under_way += usize::from(traffic.driver.agents.register(agent));
        }
        traffic.turn_by(Instant::now() + Duration::from_millis(5))?;
        for happening in traffic.others.drain(..) {
            if let AgentEvent::Registered { status, .. } = happening {
                under_way = under_way.saturating_sub(1);
                done += u64::from(status == 200);
                deadline = Instant::now() + ANSWER_PATIENCE;
            }
        }
    }
    Ok(done)
}

fn show_idle(report: &mut Report, spent: &UsageDelta, pings: u64, when: &str) {
    if spent.cpu.is_some() {
        report.add(format!("idle {when}: server cores busy"), spent.cores(), "");
    }
    report.add(format!("idle {when}: server pings answered"), pings, "");
}

/// Checks that known UAIDs were kept, or writes the new ones down.
fn remember(traffic: &mut Traffic, options: &Options, known: bool, report: &mut Report) -> io::Result<()> {
    let agents = &traffic.driver.agents;
    if known {
        let renamed = agents.renamed_count();
        report.check("sessions whose UAID was not known", renamed as u64, 0);
    } else if let Some(file) = &options.uaids {
        let uaids = (0..agents.count()).map(|agent| agents.uaid(agent).unwrap_or_default());
        let lines: String = uaids.map(|uaid| uaid + "\n").collect();
        std::fs::write(file, lines)?;
    }
    Ok(())
}

fn stay(traffic: &mut Traffic, options: &Options, report: &mut Report) -> io::Result<()> {
    let all = options.target.sessions;
    traffic.driver.view.stage(format!("stay for {} s", options.stay), all);
    let (before, pings) = (UsageSample::read(&options.target)?, traffic.driver.agents.pings());
    traffic.idle(Duration::from_secs(options.stay))?;
    let spent = before.spent(&options.target)?;
    show_idle(report, &spent, traffic.driver.agents.pings() - pings, &format!("for {} s", options.stay));
    report.check("sessions still held", traffic.driver.agents.connected() as u64, all as u64);
    Ok(())
}

/// Sends `{}` once on every session.
fn answer(traffic: &mut Traffic, options: &Options, report: &mut Report) -> io::Result<()> {
    let all = options.target.sessions;
    traffic.driver.view.stage("every session asks", all);
    let pace = OpenLoopSchedule::new(Instant::now(), options.answer_rate);
    let (mut asked, mut answered, mut absent) = (0, 0, 0);
    let mut deadline = Instant::now() + ANSWER_PATIENCE;
    traffic.others.clear();
    while answered + absent < all as u64 && Instant::now() < deadline {
        while asked < pace.owed(Instant::now()).min(all as u64) {
            absent += u64::from(!traffic.driver.agents.ping(asked as usize));
            asked += 1;
            deadline = Instant::now() + ANSWER_PATIENCE;
        }
        traffic.turn_by(Instant::now() + Duration::from_millis(5))?;
        let is_answer = |one: &AgentEvent| matches!(one, AgentEvent::Pong { .. });
        answered += traffic.others.drain(..).filter(is_answer).count() as u64;
    }
    report.check("sessions that answered at the end", answered, all as u64);
    Ok(())
}

/// Ends all sessions and shows the memory that the server returns.
fn release(traffic: &mut Traffic, options: &Options, readings: &[MemorySample], report: &mut Report) -> io::Result<()> {
    let target = &options.target;
    traffic.driver.view.stage("release", 0);
    let before = UsageSample::read(target)?;
    traffic.driver.agents.disconnect_all();
    traffic.idle(Duration::from_secs(options.release_wait))?;
    before.spent(target)?.show(report, "session that left", target.sessions as u64);
    if let Some(admin) = target.admin {
        let left =
            || -> io::Result<f64> { Ok(Metrics::read(admin)?.named("murre_sessions").map(|(_, value)| value).sum()) };
        // A shard publishes its counters about once per second, and later when its host is busy.
        let deadline = Instant::now() + ANSWER_PATIENCE;
        while left()? > 0.0 && Instant::now() < deadline {
            traffic.idle(Duration::from_millis(200))?;
        }
        let left = left()?;
        report.check("sessions that the server still counts", left as u64, 0);
    }
    memory_sample::show_release(report, readings, &MemorySample::take(target, 0)?);
    Ok(())
}
