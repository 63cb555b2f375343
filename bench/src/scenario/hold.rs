//! `hold`: sessions that do nothing, and what each costs the server. The figure is the slope of `Private_Dirty`
//! between two session counts, so what the process needs without sessions does not count (DESIGN.md 9).

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Driver;
use crate::fleet::Plan;
use crate::host::{CpuTime, Memory};
use crate::metrics::{self, Metrics};
use crate::report::Report;
use crate::target::Target;

/// What to hold.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size; `--sessions` is the larger of the two counts.
    #[command(flatten)]
    pub target: Target,
    /// The smaller of the two counts; a third of the larger when absent.
    #[arg(long, value_name = "N")]
    pub from: Option<usize>,
    /// Channels each session registers.
    #[arg(long, value_name = "K", default_value_t = 2)]
    pub channels: usize,
    /// Sessions do not subscribe to a broadcast.
    #[arg(long)]
    pub no_broadcast: bool,
    /// Handshakes under way at once.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub ramp: usize,
    /// Seconds of quiet before memory is read.
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub quiet: u64,
    /// Seconds to go on holding at the end.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub stay: u64,
    /// A list of UAIDs. When the file exists, sessions say hello with them and register nothing, so that the store has
    /// nothing to write: run once to register and make the file, start the server anew, run again to measure.
    #[arg(long, value_name = "FILE")]
    pub uaids: Option<PathBuf>,
}

const BROADCAST: &str = "murre-bench/hold";

/// One reading at a session count.
struct Reading {
    sessions: usize,
    memory: Option<Memory>,
    metrics: Option<Metrics>,
    cpu: Option<CpuTime>,
    wall: Instant,
}

/// Holds them and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = Report::new("hold");
    if let Some(admin) = target.admin.filter(|_| !options.no_broadcast) {
        metrics::set_broadcast(admin, BROADCAST, "v1")?;
    }
    let broadcast = (!options.no_broadcast).then(|| BROADCAST.to_owned());
    let plan = Plan { channels: options.channels, broadcast, ack: true, ..Plan::default() };
    let mut driver = Driver::new(target, plan.clone(), options.ramp)?;
    let known = options.uaids.as_deref().map(std::fs::read_to_string).and_then(Result::ok);
    if let Some(known) = &known {
        driver.swarm.set_plan(Plan { channels: 0, ..plan });
        for (agent, uaid) in (0..driver.swarm.count()).zip(known.lines()) {
            driver.swarm.set_uaid(agent, uaid);
        }
    }
    let from = options.from.unwrap_or(target.sessions / 3).min(target.sessions);
    let none = read(target, &driver)?;
    let low = hold_up_to(&mut driver, options, 0, from)?;
    let high = hold_up_to(&mut driver, options, from, target.sessions)?;
    report.add("channels of each session", options.channels as u64, "");
    report.add("broadcasts of each session", u64::from(!options.no_broadcast), "");
    report.check("sessions held", high.sessions as u64, target.sessions as u64);
    show_slope(&mut report, &none, &low, &high);
    if known.is_some() {
        let renamed = driver.swarm.renamed_count();
        report.check("sessions whose UAID was not known", renamed as u64, 0);
    } else if let Some(file) = &options.uaids {
        let uaid = |agent| driver.swarm.uaid(agent).unwrap_or_default() + "\n";
        let lines: String = (0..driver.swarm.count()).map(uaid).collect();
        std::fs::write(file, lines)?;
    }
    if options.stay > 0 {
        driver.idle(Duration::from_secs(options.stay))?;
        report.check("sessions still held", driver.swarm.connected() as u64, target.sessions as u64);
    }
    report.finish(target.json.as_deref())
}

fn hold_up_to(driver: &mut Driver, options: &Options, from: usize, to: usize) -> io::Result<Reading> {
    driver.swarm.launch(from..to);
    driver.settle(Duration::from_secs(600))?;
    let wall = Instant::now();
    driver.idle(Duration::from_secs(options.quiet))?;
    driver.forget();
    Ok(Reading { wall, ..read(&options.target, driver)? })
}

fn read(target: &Target, driver: &Driver) -> io::Result<Reading> {
    Ok(Reading {
        sessions: driver.swarm.connected(),
        memory: target.pid.map(Memory::read).transpose()?,
        metrics: target.admin.map(Metrics::read).transpose()?,
        cpu: target.pid.map(CpuTime::read).transpose()?,
        wall: Instant::now(),
    })
}

fn show_slope(report: &mut Report, none: &Reading, low: &Reading, high: &Reading) {
    let sessions = (high.sessions - low.sessions.min(high.sessions)).max(1) as f64;
    let slope = |low: u64, high: u64| (high as f64 - low as f64) / sessions;
    if let (Some(at_none), Some(at_low), Some(at_high)) = (&none.memory, &low.memory, &high.memory) {
        for (reading, memory) in [(none, at_none), (low, at_low), (high, at_high)] {
            report.add(format!("Private_Dirty at {} sessions", reading.sessions), memory.private_dirty, "B");
        }
        report.add("user memory per session (slope)", slope(at_low.private_dirty, at_high.private_dirty), "B");
        let names: BTreeSet<&String> = at_low.by_mapping.keys().chain(at_high.by_mapping.keys()).collect();
        for name in names {
            let bytes = |memory: &Memory| memory.by_mapping.get(name).copied().unwrap_or(0);
            if bytes(at_low) != bytes(at_high) {
                report.add(format!("  of it {name}"), slope(bytes(at_low), bytes(at_high)), "B");
            }
        }
        report.add("  (not in it) Shared_Dirty", slope(at_low.shared_dirty, at_high.shared_dirty), "B");
        report.add("host Slab per session, both ends", slope(at_low.host_slab, at_high.host_slab), "B");
        let buffers = slope(at_low.host_socket_buffers, at_high.host_socket_buffers);
        report.add("host socket buffers per session, both ends", buffers, "B");
        report.add("huge pages of the server at the end", at_high.huge, "B");
    }
    if let (Some(before), Some(after)) = (low.cpu, high.cpu) {
        let cpu = after.since(before);
        report.add("server CPU per session, whole plan", cpu.run_ns as f64 / 1e3 / sessions, "us");
        let ticks = (cpu.user_ns + cpu.system_ns) as f64 / 1e3 / sessions;
        report.add("server CPU per session, user + system ticks", ticks, "us");
    }
    let seconds = high.wall.duration_since(low.wall).as_secs_f64();
    report.add("seconds between the readings, quiet included", seconds, "s");
    if let (Some(before), Some(after)) = (&low.metrics, &high.metrics) {
        for (name, change) in after.since(before).matching("bytes") {
            report.add(format!("  {name}, per session"), change / sessions, "B");
        }
    }
}
