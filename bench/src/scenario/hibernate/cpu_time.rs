//! CPU time of a stretch, by the threads of the server and in the softirqs of the host.

use std::collections::BTreeMap;
use std::io;

use procfs::process::Process;
use procfs::{CurrentSI as _, KernelStats};

use crate::host::of_process;
use crate::report::Report;
use crate::result::names;
use crate::target::Target;
use crate::usage::UsageSample;

/// CPU time in seconds: of the server, by its threads, and of the softirqs of the host.
#[derive(Clone, Default)]
pub struct CpuTime {
    pub server: f64,
    pub threads: BTreeMap<String, f64>,
    pub softirq: f64,
}

/// Beginning of a measured stretch.
pub struct Mark {
    usage: UsageSample,
    threads: BTreeMap<String, u64>,
    host: (f64, f64),
}

impl Mark {
    /// Reads the CPU time of the processes of this target.
    pub fn now(target: &Target) -> io::Result<Mark> {
        Ok(Mark { usage: UsageSample::read(target)?, threads: by_thread(&target.pids), host: host_cpu()? })
    }

    /// Adds the cost of each of these sessions, which arrived since this mark.
    pub fn show_ramp(&self, target: &Target, sessions: u32, seconds: f64, report: &mut Report) -> io::Result<()> {
        self.usage.spent(target)?.show(report, "new session", u64::from(sessions));
        let (busy, softirq) = host_cpu()?;
        report.add("ramp: cores of the host that were busy", (busy - self.host.0) / seconds, "");
        report.add("ramp: of them softirqs", (softirq - self.host.1) / seconds, "");
        Ok(())
    }

    /// Returns the CPU time since this mark beyond that of the idle server and host, and the seconds since this mark.
    pub fn used(&self, target: &Target, idle: &CpuTime) -> io::Result<(CpuTime, f64)> {
        let spent = self.usage.spent(target)?;
        let wall = spent.wall.as_secs_f64();
        let mut threads = BTreeMap::new();
        for (thread, now) in by_thread(&target.pids) {
            let before = self.threads.get(&thread).copied().unwrap_or(0);
            let idle = idle.threads.get(&thread).copied().unwrap_or(0.0);
            threads.insert(thread, now.saturating_sub(before) as f64 / 1e9 - idle * wall);
        }
        let server = spent.cpu.map_or(0.0, |cpu| cpu.run_ns as f64 / 1e9) - idle.server * wall;
        Ok((CpuTime { server, threads, softirq: host_cpu()?.1 - self.host.1 - idle.softirq * wall }, wall))
    }
}

impl CpuTime {
    /// Returns the share of one of `count`.
    pub fn each(&self, count: f64) -> CpuTime {
        let threads = self.threads.iter().map(|(thread, seconds)| (thread.clone(), seconds / count)).collect();
        CpuTime { server: self.server / count, threads, softirq: self.softirq / count }
    }

    /// Adds the share of one of `count` to the report.
    pub fn show(&self, what: &str, count: u64, report: &mut Report) {
        let each = self.each(count.max(1) as f64);
        report.add(format!("{}{what}", names::CPU_PER), each.server * 1e6, "us");
        for (thread, seconds) in each.threads.iter().filter(|(_, seconds)| **seconds >= 1e-7) {
            report.add(format!("  of it {thread}"), seconds * 1e6, "us");
        }
        report.add(format!("  softirqs of the host per {what}"), each.softirq * 1e6, "us");
    }
}

/// CPU time of the whole host in seconds: all that was not idle, and the part in softirqs.
fn host_cpu() -> io::Result<(f64, f64)> {
    let ticks = KernelStats::current().map_err(io::Error::other)?.total;
    let softirq = ticks.softirq.unwrap_or(0);
    let busy = ticks.user + ticks.nice + ticks.system + ticks.irq.unwrap_or(0) + softirq;
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    Ok((seconds(busy), seconds(softirq)))
}

/// CPU time of each kind of thread of these processes, in nanoseconds: names without the numbers at their ends.
fn by_thread(pids: &[u32]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for task in pids.iter().filter_map(|pid| of_process(*pid, Process::tasks).ok()).flatten().flatten() {
        // A thread may end meanwhile.
        let (Ok(stat), Ok(time)) = (task.stat(), task.schedstat()) else { continue };
        let name = stat.comm.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
        *sums.entry(name).or_default() += time.sum_exec_runtime;
    }
    sums
}
