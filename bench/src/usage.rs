//! Resource use of the server, read from outside: CPU time and memory of its processes, its own counters, the kernel's.

use std::io;
use std::time::{Duration, Instant};

use crate::host::CpuTime;
use crate::metrics::Metrics;
use crate::report::Report;
use crate::result::names::CPU_PER;
use crate::target::Target;

/// One reading of time and counters.
#[derive(Clone, Debug)]
pub struct UsageSample {
    at: Instant,
    own: CpuTime,
    cpu: Option<CpuTime>,
    metrics: Option<Metrics>,
}

/// Difference between two readings.
#[derive(Clone, Debug)]
pub struct UsageDelta {
    /// Elapsed time.
    pub wall: Duration,
    pub own: CpuTime,
    /// CPU time of the server, where its processes are known.
    pub cpu: Option<CpuTime>,
    /// Growth of its counters, where they can be read.
    pub metrics: Option<Metrics>,
}

impl UsageSample {
    /// Reads the processes and counters that the target names.
    pub fn read(target: &Target) -> io::Result<UsageSample> {
        Ok(UsageSample {
            at: Instant::now(),
            own: CpuTime::own()?,
            cpu: cpu(target)?,
            metrics: target.admin.map(Metrics::read).transpose()?,
        })
    }

    /// Reads again and takes the difference.
    pub fn spent(&self, target: &Target) -> io::Result<UsageDelta> {
        let wall = self.at.elapsed();
        Ok(UsageDelta {
            wall,
            own: CpuTime::own()?.since(self.own),
            cpu: cpu(target)?.zip(self.cpu).map(|(now, before)| now.since(before)),
            metrics: match (target.admin, &self.metrics) {
                (Some(admin), Some(before)) => Some(Metrics::read(admin)?.since(before)),
                _ => None,
            },
        })
    }
}

fn cpu(target: &Target) -> io::Result<Option<CpuTime>> {
    (!target.pids.is_empty()).then(|| CpuTime::of(&target.pids)).transpose()
}

impl UsageDelta {
    /// Server CPU time for each of `count` operations in microseconds, where it is known.
    pub fn us_each(&self, count: u64) -> Option<f64> {
        self.cpu.map(|cpu| cpu.run_ns as f64 / 1e3 / count.max(1) as f64)
    }

    /// Shows the use of the server and the generator for each of `count` things called `what`.
    pub fn show(&self, report: &mut Report, what: &str, count: u64) {
        let each = count.max(1) as f64;
        if let Some(cpu) = self.cpu {
            report.add(format!("{CPU_PER}{what}"), cpu.run_ns as f64 / 1e3 / each, "us");
            report.add(format!("  user, by ticks, per {what}"), cpu.user_ns as f64 / 1e3 / each, "us");
            report.add(format!("  system, by ticks, per {what}"), cpu.system_ns as f64 / 1e3 / each, "us");
            report.add(format!("server cores busy, {what}"), self.cores(), "");
        }
        report.add(format!("generator CPU per {what}"), self.own.run_ns as f64 / 1e3 / each, "us");
    }

    /// Cores that the server kept busy on average.
    pub fn cores(&self) -> f64 {
        let run = self.cpu.map_or(0, |cpu| cpu.run_ns);
        run as f64 / self.wall.as_nanos().max(1) as f64
    }
}
