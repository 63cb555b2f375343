//! Readings of the view: rates need two readings.

use std::time::{Duration, Instant};

use crate::host::{self, CpuTime};

/// Shortest time over which rates are computed.
const SECOND: Duration = Duration::from_secs(1);

/// Values of the gauges at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Current step of the scenario.
    pub stage: String,
    /// Number of sessions to reach.
    pub goal: u64,
    /// Number of connected sessions.
    pub sessions: u64,
    /// POSTs so far.
    pub posted: u64,
    /// Notifications so far.
    pub notified: u64,
    /// Connections that ended on the server's side so far.
    pub ended: u64,
    /// Median latency of the notifications of the last second, in microseconds.
    pub p50_us: u64,
    /// 99th percentile of the same, in microseconds.
    pub p99_us: u64,
}

/// Rates over about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Sessions gained a second; negative when they leave.
    pub sessions: f64,
    /// POSTs a second.
    pub posted: f64,
    /// Notifications a second.
    pub notified: f64,
    /// Cores that the server kept busy.
    pub cores: f64,
    /// Cores that the generator kept busy.
    pub own: f64,
}

/// The newest snapshot, and the rates of the last second.
#[derive(Debug)]
pub struct History {
    pids: Vec<u32>,
    begin: Instant,
    at: Instant,
    from: Snapshot,
    cpu: Option<CpuTime>,
    own: Option<CpuTime>,
    first_resident: Option<u64>,
    pub now: Snapshot,
    pub rates: Rates,
    /// Resident memory of the server; `None` when its processes are not known.
    pub resident: Option<u64>,
    /// Time since the beginning.
    pub elapsed: Duration,
}

impl History {
    /// An empty history; `pids` are the server's processes.
    pub fn new(pids: Vec<u32>) -> History {
        let now = Instant::now();
        History {
            cpu: read_cpu(&pids),
            own: CpuTime::own().ok(),
            pids,
            begin: now,
            at: now,
            from: Snapshot::default(),
            first_resident: None,
            now: Snapshot::default(),
            rates: Rates::default(),
            resident: None,
            elapsed: Duration::ZERO,
        }
    }

    /// Replaces the server's processes; its memory is counted anew.
    pub fn watch(&mut self, pids: Vec<u32>) {
        (self.cpu, self.first_resident, self.pids) = (read_cpu(&pids), None, pids);
    }

    /// Takes a snapshot of this instant; once per second computes and returns rates, and reads the server's use.
    pub fn take(&mut self, now: Snapshot, at: Instant) -> Option<Rates> {
        self.now = now;
        self.elapsed = at.saturating_duration_since(self.begin);
        let span = at.saturating_duration_since(self.at);
        if span < SECOND {
            return None;
        }
        let (cpu, own) = (read_cpu(&self.pids), CpuTime::own().ok());
        let each = |new: u64, old: u64| (new as f64 - old as f64) / span.as_secs_f64();
        let cores = |new: Option<CpuTime>, old: Option<CpuTime>| {
            let used = new.zip(old).map_or(0, |(new, old)| new.since(old).run_ns);
            used as f64 / span.as_nanos() as f64
        };
        self.rates = Rates {
            sessions: each(self.now.sessions, self.from.sessions),
            posted: each(self.now.posted, self.from.posted),
            notified: each(self.now.notified, self.from.notified),
            cores: cores(cpu, self.cpu),
            own: cores(own, self.own),
        };
        self.resident = (!self.pids.is_empty()).then(|| host::resident(&self.pids));
        self.first_resident = self.first_resident.or(self.resident);
        (self.cpu, self.own, self.from, self.at) = (cpu, own, self.now.clone(), at);
        Some(self.rates)
    }

    /// Resident bytes of the server for each session, without what it had at the beginning.
    pub fn bytes_per_session(&self) -> Option<f64> {
        let grown = self.resident?.saturating_sub(self.first_resident?);
        (self.now.sessions > 0).then(|| grown as f64 / self.now.sessions as f64)
    }

    /// All of it in one line.
    pub fn line(&self) -> String {
        let now = &self.now;
        let mut line =
            format!("{:>5} s  {}: {}/{} sessions", self.elapsed.as_secs(), now.stage, now.sessions, now.goal);
        if self.rates.sessions.abs() >= 1.0 {
            line += &format!(" ({:+.0}/s)", self.rates.sessions);
        }
        if now.posted > 0 {
            line += &format!(", {:.0} POSTs/s, {:.0} notifications/s", self.rates.posted, self.rates.notified);
        }
        if now.p99_us > 0 {
            line += &format!(", p50 {} us, p99 {} us", now.p50_us, now.p99_us);
        }
        if now.ended > 0 {
            line += &format!(", {} ended", now.ended);
        }
        if let Some(resident) = self.resident {
            line += &format!(", server {:.0} MB, {:.2} cores", resident as f64 / 1e6, self.rates.cores);
        }
        line
    }
}

fn read_cpu(pids: &[u32]) -> Option<CpuTime> {
    (!pids.is_empty()).then(|| CpuTime::of(pids).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_time_that_passed() {
        let mut history = History::new(vec![std::process::id()]);
        let begin = history.at;
        let snapshot =
            |sessions, posted| Snapshot { sessions, posted, stage: "ramp".into(), goal: 9, ..Snapshot::default() };
        assert_eq!(history.take(snapshot(100, 4), begin + Duration::from_millis(900)), None);
        assert_eq!((history.rates, history.now.sessions), (Rates::default(), 100), "no second has passed");
        history.take(snapshot(500, 10), begin + Duration::from_secs(2));
        assert_eq!((history.rates.sessions, history.rates.posted), (250.0, 5.0));
        history.take(snapshot(400, 10), begin + Duration::from_secs(3));
        assert_eq!((history.rates.sessions, history.rates.posted), (-100.0, 0.0));
        assert!(history.resident.unwrap() > 0 && history.bytes_per_session().is_some());
        let line = history.line();
        assert!(line.contains("ramp: 400/9 sessions (-100/s)") && line.contains("server"), "{line}");
    }

    #[test]
    fn an_unknown_server_is_left_out() {
        let mut history = History::new(Vec::new());
        history.take(Snapshot::default(), history.at + SECOND);
        assert_eq!((history.resident, history.bytes_per_session()), (None, None));
        assert!(!history.line().contains("server"));
        history.watch(vec![std::process::id()]);
        history.take(Snapshot::default(), history.at + SECOND);
        assert!(history.resident > Some(0) && history.line().contains("server"), "a server came in its place");
    }
}
