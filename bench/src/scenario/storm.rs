//! `storm`: everybody comes back at once. Each session registers and receives one notification; all leave and return
//! with their UAIDs at the same time; stored messages wait for some; and then as many strangers with invented UAIDs.
//! Checked: nobody lost, nothing lost, nothing twice after its ack. Shown: how long, and the server's own counters.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use super::Driver;
use crate::fleet::{Happening, Plan};
use crate::host::CpuTime;
use crate::metrics::Metrics;
use crate::publishers::Template;
use crate::report::Report;
use crate::target::Target;

/// How large a storm.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// App server connections.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
    /// Handshakes under way at once in the storm itself; all of them when absent.
    #[arg(long, value_name = "N")]
    pub ramp: Option<usize>,
    /// Seconds to wait for any step.
    #[arg(long, value_name = "S", default_value_t = 120)]
    pub patience: u64,
}

/// Longer than a counter takes to be seen.
const COUNTERS_LAG: Duration = Duration::from_millis(2_500);

struct Storm<'a> {
    options: &'a Options,
    driver: Driver,
    report: Report,
    /// Hashes of the versions that were received, all of them acked.
    seen: HashSet<u64>,
    /// Versions that came again after their ack.
    twice: u64,
    templates: Vec<Template>,
    before: Option<Metrics>,
    cpu: Option<CpuTime>,
    /// Sockets that arrived on their owner in the last step.
    moved: f64,
}

fn plan(channels: usize) -> Plan {
    Plan { channels, ack: true, ..Plan::default() }
}

/// Runs all steps and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let driver = Driver::new(&options.target, plan(1), 128)?;
    let mut storm = Storm {
        options,
        driver,
        report: Report::new("storm"),
        seen: HashSet::new(),
        twice: 0,
        templates: Vec::new(),
        before: None,
        cpu: None,
        moved: 0.0,
    };
    storm.first_visit()?;
    storm.everybody_returns()?;
    storm.stored_for_everybody()?;
    storm.nothing_comes_twice()?;
    storm.invented()?;
    storm.report.finish(options.target.json.as_deref())
}

impl Storm<'_> {
    fn count(&self) -> u64 {
        self.options.target.sessions as u64
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.options.patience)
    }

    fn first_visit(&mut self) -> io::Result<()> {
        self.begin()?;
        let seconds = self.connect_all(128)?;
        self.report.add("first visit, hello and register", seconds, "s");
        self.report.check("sessions that registered", self.driver.swarm.connected() as u64, self.count());
        for agent in 0..self.driver.swarm.count() {
            let url = self.driver.swarm.endpoint(agent, 0);
            let template = url.and_then(|url| Template::new(&url, 3600, None, 200));
            self.templates.push(template.ok_or_else(|| io::Error::other("a session has no endpoint"))?);
        }
        self.driver.open_publishers(&self.options.target, self.options.in_flight)?;
        let (created, received) = self.post_to_each(true)?;
        self.report.check("first visit: POSTs answered 201", created, self.count());
        self.report.check("first visit: notifications received", received, self.count());
        self.end("first visit")
    }

    fn everybody_returns(&mut self) -> io::Result<()> {
        self.leave()?;
        self.driver.swarm.set_plan(plan(0));
        self.begin()?;
        let seconds = self.connect_all(self.options.ramp.unwrap_or(self.options.target.sessions))?;
        self.report.add("return of all at once", seconds, "s");
        self.check_served("return")?;
        self.end("return")?;
        if let Some(admin) = self.options.target.admin {
            let shards = Metrics::read(admin)?.named("murre_sessions").count().max(1) as f64;
            let expected = self.count() as f64 * (shards - 1.0) / shards;
            self.report.add("return: sockets moved to their owner", self.moved, "");
            let off = (self.moved - expected).abs() > expected / 10.0;
            self.report.check("return: moves more than 10 % off (shards - 1) / shards", u64::from(off), 0);
        }
        let (created, received) = self.post_to_each(true)?;
        self.report.check("return: POSTs answered 201", created, self.count());
        self.report.check("return: notifications received", received, self.count());
        Ok(())
    }

    fn stored_for_everybody(&mut self) -> io::Result<()> {
        self.leave()?;
        self.begin()?;
        let begin = Instant::now();
        let (created, _) = self.post_to_each(false)?;
        self.report.add("one stored message for each", begin.elapsed().as_secs_f64(), "s");
        self.report.check("stored: POSTs answered 201", created, self.count());
        self.end("store")?;
        let known = self.seen.len() as u64;
        self.begin()?;
        let seconds = self.connect_all(self.options.ramp.unwrap_or(self.options.target.sessions))?;
        self.report.add("return with a stored message each", seconds, "s");
        self.check_served("stored")?;
        let deadline = Instant::now() + self.patience();
        while (self.seen.len() as u64) < known + self.count() && Instant::now() < deadline {
            self.turn()?;
        }
        self.report.check("stored: notifications received", self.seen.len() as u64 - known, self.count());
        self.end("stored")
    }

    fn nothing_comes_twice(&mut self) -> io::Result<()> {
        self.leave()?;
        let known = self.seen.len() as u64;
        self.connect_all(128)?;
        self.check_served("last return")?;
        self.quiet(Duration::from_secs(2))?;
        self.report.check("last return: new notifications", self.seen.len() as u64 - known, 0);
        self.report.check("duplicated after ack, all steps", self.twice, 0);
        Ok(())
    }

    fn invented(&mut self) -> io::Result<()> {
        self.leave()?;
        for agent in 0..self.driver.swarm.count() {
            self.driver.swarm.set_uaid(agent, &uuid::Uuid::new_v4().simple().to_string());
        }
        self.begin()?;
        let seconds = self.connect_all(self.options.ramp.unwrap_or(self.options.target.sessions))?;
        self.report.add("hellos with invented UAIDs", seconds, "s");
        let renamed = self.driver.swarm.renamed_count();
        self.report.check("invented: sessions", self.driver.swarm.connected() as u64, self.count());
        self.report.check("invented: given another UAID", renamed as u64, self.count());
        self.end("invented")?;
        if let Some(admin) = self.options.target.admin {
            let metrics = Metrics::read(admin)?;
            let held: Vec<f64> = metrics.named("murre_sessions").map(|(_, value)| value).collect();
            let mean = held.iter().sum::<f64>() / held.len().max(1) as f64;
            self.report.add("invented: sessions of each shard", format!("{held:?}"), "");
            let uneven = held.iter().filter(|&&sessions| (sessions - mean).abs() > mean / 5.0).count();
            self.report.check("invented: shards more than 20 % off the mean", uneven as u64, 0);
        }
        Ok(())
    }

    fn connect_all(&mut self, ramp: usize) -> io::Result<f64> {
        let begin = Instant::now();
        self.driver.swarm.set_in_flight_max(ramp);
        self.driver.swarm.launch(0..self.options.target.sessions);
        let deadline = begin + self.patience();
        while !self.driver.swarm.settled() && Instant::now() < deadline {
            self.turn()?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    fn check_served(&mut self, step: &str) -> io::Result<()> {
        let renamed = self.driver.swarm.renamed_count();
        self.report.check(format!("{step}: sessions"), self.driver.swarm.connected() as u64, self.count());
        self.report.check(format!("{step}: UAIDs lost"), renamed as u64, 0);
        Ok(())
    }

    /// POSTs once to each; returns how many were answered 201 and how many new notifications came.
    fn post_to_each(&mut self, wait: bool) -> io::Result<(u64, u64)> {
        let known = self.seen.len();
        let (mut next, mut answered, mut created) = (0, 0, 0);
        let mut request = Vec::new();
        let deadline = Instant::now() + self.patience();
        let target = self.templates.len();
        while Instant::now() < deadline {
            let received = self.seen.len() - known;
            if answered == target && (!wait || received >= target) {
                break;
            }
            if let Some(publishers) = &mut self.driver.publishers {
                while next < target && publishers.has_idle() {
                    self.templates[next].fill(&[7; 200], &mut request);
                    publishers.post(&request, next as u64)?;
                    next += 1;
                }
            }
            self.turn()?;
            for answer in self.driver.answers.drain(..) {
                answered += 1;
                created += u64::from(answer.status == 201);
            }
        }
        Ok((created, (self.seen.len() - known) as u64))
    }

    fn turn(&mut self) -> io::Result<()> {
        self.driver.turn(Duration::from_millis(10))?;
        for happening in self.driver.happenings.drain(..) {
            if let Happening::Notified { version, .. } = happening
                && !self.seen.insert(version)
            {
                self.twice += 1;
            }
        }
        Ok(())
    }

    fn quiet(&mut self, span: Duration) -> io::Result<()> {
        let deadline = Instant::now() + span;
        while Instant::now() < deadline {
            self.turn()?;
        }
        Ok(())
    }

    /// All hang up, after what they have sent was surely read.
    fn leave(&mut self) -> io::Result<()> {
        self.quiet(Duration::from_secs(1))?;
        self.driver.swarm.disconnect_all();
        self.quiet(Duration::from_secs(1))
    }

    fn begin(&mut self) -> io::Result<()> {
        self.before = self.options.target.admin.map(Metrics::read).transpose()?;
        self.cpu = self.options.target.pid.map(CpuTime::read).transpose()?;
        Ok(())
    }

    fn end(&mut self, step: &str) -> io::Result<()> {
        if let (Some(pid), Some(before)) = (self.options.target.pid, self.cpu) {
            let used = CpuTime::read(pid)?.since(before).run_ns as f64 / 1e3 / self.count() as f64;
            self.report.add(format!("{step}: server CPU per session"), used, "us");
        }
        if let Some(admin) = self.options.target.admin {
            // The server publishes its counters about once a second.
            self.quiet(COUNTERS_LAG)?;
            let Some(before) = &self.before else { return Ok(()) };
            let change = Metrics::read(admin)?.since(before);
            for (name, value) in change.matching("moves") {
                self.report.add(format!("{step}: {name}"), value, "");
            }
            self.moved = change.sum("moves_in");
        }
        Ok(())
    }
}
