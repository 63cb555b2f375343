//! `push`: direct notifications to acked clients, as many as the server takes or at a fixed rate. The figure is server
//! CPU time per notification: POST in, WebSocket frame out, ack in (DESIGN.md 9).

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Driver;
use crate::fleet::{Happening, Plan};
use crate::host::CpuTime;
use crate::http::Url;
use crate::metrics::Metrics;
use crate::publishers::Template;
use crate::report::Report;
use crate::target::Target;
use crate::vapid::Identity;

/// What to push.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// Bytes of each body, at least 9.
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    pub body: usize,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
    /// Register with a VAPID key and sign every POST with one token, used again as libraries do.
    #[arg(long)]
    pub vapid: bool,
    /// With a VAPID key, sign every POST anew: no token comes twice.
    #[arg(long)]
    pub fresh_tokens: bool,
    /// POSTs a second; as many as the server takes when absent.
    #[arg(long, value_name = "N")]
    pub rate: Option<u64>,
    /// Seconds before measuring.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub warmup: u64,
    /// Seconds of measuring.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub seconds: u64,
    /// TTL of every POST in seconds.
    #[arg(long, value_name = "S", default_value_t = 3600)]
    pub ttl: u32,
}

/// Start times of the POSTs under way, by sequence number modulo this.
const STARTS: usize = 1 << 20;

struct Load<'a> {
    driver: Driver,
    options: &'a Options,
    templates: Vec<Template>,
    /// Signs each POST, and for which audience.
    signer: Option<(Identity, String)>,
    starts: Vec<Instant>,
    body: Vec<u8>,
    request: Vec<u8>,
    posted: u64,
    statuses: BTreeMap<u16, u64>,
    notified: u64,
    /// `notified` when measuring began.
    measured_from: u64,
    ended: u64,
    to_answer: Histogram<u64>,
    to_frame: Histogram<u64>,
}

/// Pushes and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let identity = (options.vapid || options.fresh_tokens).then(Identity::generate);
    let key = identity.as_ref().map(Identity::public_key);
    let plan = Plan { channels: 1, key, ack: true, ..Plan::default() };
    let mut driver = Driver::new(target, plan, 128)?;
    driver.swarm.launch(0..target.sessions);
    driver.settle(Duration::from_secs(300))?;
    if driver.swarm.connected() < target.sessions {
        return Err(io::Error::other(format!("only {} sessions could connect", driver.swarm.connected())));
    }
    driver.forget();
    let repeated = identity.as_ref().filter(|_| !options.fresh_tokens);
    let templates = templates(&driver, options, repeated)?;
    driver.open_publishers(target, options.in_flight)?;
    let signer = identity.filter(|_| options.fresh_tokens).zip(origin(&driver));
    let mut load = Load::new(driver, options, templates, signer)?;
    load.go(Duration::from_secs(options.warmup))?;
    load.reset();
    let metrics = target.admin.map(Metrics::read).transpose()?;
    let before = (cpu(target.pid)?, CpuTime::read(std::process::id())?);
    let wall = Instant::now();
    load.go(Duration::from_secs(options.seconds))?;
    let wall = wall.elapsed();
    let server = cpu(target.pid)?.zip(before.0).map(|(now, before)| now.since(before));
    let own = CpuTime::read(std::process::id())?.since(before.1);
    let counted = load.notified - load.measured_from;
    load.drain()?;
    let mut report = Report::new("push");
    load.show(&mut report, counted, wall, server, own);
    if let (Some(before), Some(admin)) = (metrics, target.admin) {
        println!("{}", Metrics::read(admin)?.since(&before).json());
    }
    report.finish(target.json.as_deref())
}

fn cpu(pid: Option<u32>) -> io::Result<Option<CpuTime>> {
    pid.map(CpuTime::read).transpose()
}

/// Of the endpoints: what tokens are for.
fn origin(driver: &Driver) -> Option<String> {
    let endpoint = (0..driver.swarm.count()).find_map(|agent| driver.swarm.endpoint(agent, 0))?;
    Some(Url::parse(&endpoint)?.origin)
}

fn templates(driver: &Driver, options: &Options, identity: Option<&Identity>) -> io::Result<Vec<Template>> {
    let mut authorization = None;
    let mut templates = Vec::new();
    for agent in 0..driver.swarm.count() {
        let url = &driver.swarm.endpoint(agent, 0).unwrap_or_default();
        let bad = || io::Error::other(format!("not an endpoint URL: {url}"));
        let origin = Url::parse(url).ok_or_else(bad)?.origin;
        if let (Some(identity), None) = (identity, &authorization) {
            authorization = Some(identity.authorization(&origin));
        }
        templates.push(Template::new(url, options.ttl, authorization.as_deref(), options.body).ok_or_else(bad)?);
    }
    Ok(templates)
}

impl<'a> Load<'a> {
    fn new(
        driver: Driver,
        options: &'a Options,
        templates: Vec<Template>,
        signer: Option<(Identity, String)>,
    ) -> io::Result<Load<'a>> {
        let histogram = || Histogram::new_with_bounds(100, 60_000_000_000, 3).map_err(io::Error::other);
        Ok(Load {
            driver,
            options,
            templates,
            signer,
            starts: vec![Instant::now(); STARTS],
            body: (0..options.body.max(9)).map(|n| (n * 151) as u8).collect(),
            request: Vec::new(),
            posted: 0,
            statuses: BTreeMap::new(),
            notified: 0,
            measured_from: 0,
            ended: 0,
            to_answer: histogram()?,
            to_frame: histogram()?,
        })
    }

    fn reset(&mut self) {
        self.measured_from = self.notified;
        self.to_answer.clear();
        self.to_frame.clear();
    }

    /// POSTs for this long.
    fn go(&mut self, span: Duration) -> io::Result<()> {
        let (begin, base) = (Instant::now(), self.posted);
        while begin.elapsed() < span {
            let owed = |rate: u64| base + (begin.elapsed().as_secs_f64() * rate as f64) as u64;
            self.post_while_idle(self.options.rate.map_or(u64::MAX, owed))?;
            self.turn(Duration::from_millis(1))?;
        }
        Ok(())
    }

    fn post_while_idle(&mut self, due: u64) -> io::Result<()> {
        let Some(publishers) = &mut self.driver.publishers else { return Ok(()) };
        while self.posted < due && publishers.has_idle() {
            // A large odd step visits all agents and keeps neighbours apart.
            let agent = (self.posted as usize).wrapping_mul(7_919) % self.templates.len();
            self.body[..8].copy_from_slice(&self.posted.to_be_bytes());
            let template = &self.templates[agent];
            match &self.signer {
                None => template.fill(&self.body, &mut self.request),
                Some((identity, origin)) => {
                    template.fill_signed(&identity.authorization(origin), &self.body, &mut self.request);
                }
            }
            self.starts[self.posted as usize % STARTS] = Instant::now();
            publishers.post(&self.request, self.posted)?;
            self.posted += 1;
        }
        Ok(())
    }

    fn turn(&mut self, patience: Duration) -> io::Result<()> {
        self.driver.turn(patience)?;
        let now = Instant::now();
        for answer in self.driver.answers.drain(..) {
            *self.statuses.entry(answer.status).or_default() += 1;
            let start = self.starts[answer.tag as usize % STARTS];
            self.to_answer.saturating_record(now.duration_since(start).as_nanos() as u64);
        }
        for happening in self.driver.happenings.drain(..) {
            match happening {
                Happening::Notified { sequence, at, .. } => {
                    self.notified += 1;
                    if let Some(start) = sequence.map(|n| self.starts[n as usize % STARTS]) {
                        self.to_frame.saturating_record(at.saturating_duration_since(start).as_nanos() as u64);
                    }
                }
                Happening::Ended { .. } => self.ended += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for what is under way.
    fn drain(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline && self.driver.publishers.as_ref().is_some_and(|pool| pool.busy() > 0) {
            self.turn(Duration::from_millis(10))?;
        }
        let quiet = Instant::now() + Duration::from_millis(200);
        while Instant::now() < quiet {
            self.turn(Duration::from_millis(10))?;
        }
        Ok(())
    }

    fn show(&self, report: &mut Report, counted: u64, wall: Duration, server: Option<CpuTime>, own: CpuTime) {
        let count = counted.max(1) as f64;
        report.add("sessions", self.templates.len() as u64, "");
        report.add("body", self.body.len() as u64, "B");
        report.add("VAPID", self.options.vapid, "");
        report.add("POSTs under way at once", self.options.in_flight as u64, "");
        report.add("notifications in the measured time", counted, "");
        report.add("notifications a second", count / wall.as_secs_f64(), "/s");
        if let Some(cpu) = server {
            report.add("server CPU per notification", cpu.run_ns as f64 / 1e3 / count, "us");
            report.add("  user, by ticks", cpu.user_ns as f64 / 1e3 / count, "us");
            report.add("  system, by ticks", cpu.system_ns as f64 / 1e3 / count, "us");
            report.add("server cores busy", cpu.run_ns as f64 / wall.as_nanos() as f64, "");
        }
        report.add("generator CPU per notification", own.run_ns as f64 / 1e3 / count, "us");
        for (what, histogram) in [("POST to 201", &self.to_answer), ("POST to frame", &self.to_frame)] {
            for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
                report.add(format!("{what} {name}"), histogram.value_at_quantile(quantile) as f64 / 1e3, "us");
            }
        }
        let answered: u64 = self.statuses.values().sum();
        let created = self.statuses.get(&201).copied().unwrap_or(0);
        report.add("answers by status", format!("{:?}", self.statuses), "");
        report.check("answers other than 201", answered - created, 0);
        report.check("notifications not received", created.saturating_sub(self.notified), 0);
        report.check("sessions lost", self.ended, 0);
    }
}
