//! `backlog`: one user comes back to very many stored messages while others on the same shard go on being notified.
//! The figure is what the others notice: their latency during the drain beside what it was before.
//!
//! The load is an open loop: each notification has an instant at which it should be sent, and its latency counts from
//! there, whether the generator or the server was late. The draining user agent has a thread of its own, so that what
//! it does is not charged to the others. Run the server with `--shards 1`: others on another shard would notice less.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Driver;
use crate::agent::{Agent, Note, Received, channel_id};
use crate::fleet::{Happening, Plan};
use crate::host::CpuTime;
use crate::metrics::Metrics;
use crate::publishers::Template;
use crate::report::Report;
use crate::target::Target;

/// How long a backlog, and who is beside it.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and how many other sessions.
    #[command(flatten)]
    pub target: Target,
    /// Messages stored for the one user.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub messages: usize,
    /// Messages stored before those that expire before the user comes back.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub expired: usize,
    /// TTL of those in seconds.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub expired_ttl: u32,
    /// Notifications a second to the other sessions together.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub rate: u32,
    /// Seconds of that load before the user comes back.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub baseline: u64,
    /// Seconds of that load before anything is measured.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub warmup: u64,
    /// Notifications that the user acks together.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub page: usize,
    /// Bytes of each body, at least 9.
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    pub body: usize,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub in_flight: usize,
    /// Seconds without progress after which it is given up.
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub patience: u64,
    /// Fail when the p99 of the others during the drain is more than this many times the p99 before.
    #[arg(long, value_name = "X")]
    pub ratio_max: Option<f64>,
}

/// TTL of everything that is not to expire.
const TTL: u32 = 3_600;
/// How long nothing more must come.
const QUIET: Duration = Duration::from_secs(1);
/// How long an incomplete page waits for the rest before it is acked.
const PAGE_WAIT: Duration = Duration::from_millis(20);

/// Stores, measures, drains, reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = Report::new("backlog");
    if let Some(admin) = target.admin {
        let shards = Metrics::read(admin)?.named("murre_sessions").count();
        report.check("shards of the server", shards as u64, 1);
    }
    let plan = Plan { channels: 1, ack: true, ..Plan::default() };
    let mut driver = Driver::new(target, plan, 128)?;
    driver.swarm.launch(0..target.sessions);
    driver.settle(Duration::from_secs(300))?;
    if driver.swarm.connected() < target.sessions {
        return Err(io::Error::other(format!("only {} sessions could connect", driver.swarm.connected())));
    }
    driver.open_publishers(target, options.in_flight)?;
    driver.forget();
    let (uaid, url) = absent_user(target.first_ws())?;
    let stored = store(&mut driver, options, &url, &mut report)?;
    let mut load = Load::new(driver, options)?;
    load.go(Duration::from_secs(options.warmup), || false)?;
    load.go(Duration::from_secs(options.baseline), || false)?;
    let before = target.pid.map(CpuTime::read).transpose()?;
    let drained = load.beside(&uaid, stored.live.len())?;
    let used = target.pid.map(CpuTime::read).transpose()?.zip(before).map(|(now, before)| now.since(before));
    load.finish()?;
    let again = after_the_drain(target.first_ws(), &uaid)?;
    load.show(&mut report);
    drained.show(&mut report, &stored, used);
    report.check("backlog: delivered again after their ack", again, 0);
    report.finish(target.json.as_deref())
}

/// A user with one channel who is not there: UAID and endpoint.
fn absent_user(ws: SocketAddr) -> io::Result<(String, String)> {
    let mut agent = Agent::connect(ws)?;
    let uaid = agent.hello(None)?;
    let url = agent.register(&channel_id(), None)?;
    agent.close()?;
    Ok((uaid, url))
}

/// Ids of what was accepted for the absent user.
struct Stored {
    expired: HashSet<String>,
    live: HashSet<String>,
}

fn store(driver: &mut Driver, options: &Options, url: &str, report: &mut Report) -> io::Result<Stored> {
    let patience = Duration::from_secs(options.patience);
    let expired = post_all(driver, options, url, (options.expired, options.expired_ttl), patience)?;
    let last_expires = Instant::now() + Duration::from_secs(u64::from(options.expired_ttl) + 1);
    let begin = Instant::now();
    let live = post_all(driver, options, url, (options.messages, TTL), patience)?;
    report.add("messages stored a second", live.len() as f64 / begin.elapsed().as_secs_f64(), "/s");
    report.check("backlog: POSTs not answered 201", (options.messages - live.len()) as u64, 0);
    report.check("expired: POSTs not answered 201", (options.expired - expired.len()) as u64, 0);
    if options.expired > 0 {
        driver.idle(last_expires.saturating_duration_since(Instant::now()))?;
    }
    // What the store still has to write is not part of the drain.
    driver.idle(Duration::from_secs(2))?;
    Ok(Stored { expired, live })
}

/// POSTs `count` messages, as many at once as there are connections; the ids of those answered 201.
fn post_all(
    driver: &mut Driver,
    options: &Options,
    url: &str,
    (count, ttl): (usize, u32),
    patience: Duration,
) -> io::Result<HashSet<String>> {
    let template = Template::new(url, ttl, None, options.body.max(9));
    let template = template.ok_or_else(|| io::Error::other(format!("not an endpoint URL: {url}")))?;
    let body = vec![0xb0; options.body.max(9)];
    let mut request = Vec::new();
    template.fill(&body, &mut request);
    let mut ids = HashSet::with_capacity(count);
    let (mut posted, mut answered) = (0, 0);
    let mut progress = Instant::now();
    while answered < count && progress.elapsed() < patience {
        if let Some(publishers) = &mut driver.publishers {
            while posted < count && publishers.has_idle() {
                publishers.post(&request, posted as u64)?;
                posted += 1;
            }
        }
        driver.turn(Duration::from_millis(10))?;
        for answer in driver.answers.drain(..) {
            answered += 1;
            progress = Instant::now();
            if answer.status == 201 {
                ids.insert(answer.id);
            }
        }
    }
    Ok(ids)
}

/// A stretch of the load: its first sequence number, when it was due, and what its notifications took.
struct Phase {
    first: u64,
    begin: Instant,
    latency: Histogram<u64>,
}

/// The steady load on the other sessions.
struct Load<'a> {
    driver: Driver,
    options: &'a Options,
    interval: Duration,
    templates: Vec<Template>,
    body: Vec<u8>,
    request: Vec<u8>,
    /// Warm-up, before, during.
    phases: Vec<Phase>,
    posted: u64,
    statuses: BTreeMap<u16, u64>,
    /// By sequence number.
    seen: Vec<bool>,
    twice: u64,
    ended: u64,
}

impl<'a> Load<'a> {
    fn new(driver: Driver, options: &'a Options) -> io::Result<Load<'a>> {
        let bytes = options.body.max(9);
        let urls = (0..driver.swarm.count()).filter_map(|agent| driver.swarm.endpoint(agent, 0));
        let templates: Vec<Template> = urls.filter_map(|url| Template::new(&url, TTL, None, bytes)).collect();
        if templates.is_empty() || options.rate == 0 {
            return Err(io::Error::other("the others must be one session at least, with one notification a second"));
        }
        Ok(Load {
            driver,
            options,
            interval: Duration::from_secs(1) / options.rate,
            templates,
            body: vec![0x5a; bytes],
            request: Vec::new(),
            phases: Vec::new(),
            posted: 0,
            statuses: BTreeMap::new(),
            seen: Vec::new(),
            twice: 0,
            ended: 0,
        })
    }

    /// A phase of the load: for this long, or until `over`.
    fn go(&mut self, span: Duration, over: impl Fn() -> bool) -> io::Result<()> {
        let latency = Histogram::new_with_bounds(1_000, 60_000_000_000, 3).map_err(io::Error::other)?;
        let (first, begin) = (self.posted, Instant::now());
        self.phases.push(Phase { first, begin, latency });
        while begin.elapsed() < span && !over() {
            let due = self.post_what_is_due(first, begin)?;
            self.driver.turn_by(due)?;
            self.take_in();
        }
        Ok(())
    }

    /// When the next one is due. With all connections busy what is due waits, and its latency grows.
    fn post_what_is_due(&mut self, first: u64, begin: Instant) -> io::Result<Instant> {
        loop {
            let due = begin + self.interval * (self.posted - first) as u32;
            let now = Instant::now();
            if due > now {
                return Ok(due);
            }
            let Some(publishers) = self.driver.publishers.as_mut().filter(|pool| pool.has_idle()) else {
                return Ok(now + Duration::from_millis(1));
            };
            // A large odd step visits all agents and keeps neighbours apart.
            let agent = (self.posted as usize).wrapping_mul(7_919) % self.templates.len();
            self.body[..8].copy_from_slice(&self.posted.to_be_bytes());
            self.templates[agent].fill(&self.body, &mut self.request);
            publishers.post(&self.request, self.posted)?;
            self.posted += 1;
        }
    }

    fn take_in(&mut self) {
        for answer in self.driver.answers.drain(..) {
            *self.statuses.entry(answer.status).or_default() += 1;
        }
        for happening in std::mem::take(&mut self.driver.happenings) {
            match happening {
                Happening::Notified { sequence, at, .. } => self.notified(sequence, at),
                Happening::Ended { .. } => self.ended += 1,
                _ => {}
            }
        }
    }

    fn notified(&mut self, sequence: Option<u64>, at: Instant) {
        let Some(number) = sequence.filter(|number| *number < self.posted) else { return };
        self.seen.resize(self.posted as usize, false);
        let seen = &mut self.seen[number as usize];
        if std::mem::replace(seen, true) {
            self.twice += 1;
            return;
        }
        if let Some(phase) = self.phases.iter_mut().rev().find(|phase| phase.first <= number) {
            let due = phase.begin + self.interval * (number - phase.first) as u32;
            phase.latency.saturating_record(at.saturating_duration_since(due).as_nanos() as u64);
        }
    }

    /// The last phase: the user is back, and until its last message has come the load goes on.
    fn beside(&mut self, uaid: &str, expected: usize) -> io::Result<Drained> {
        let done = Arc::new(AtomicBool::new(false));
        let (ws, page, patience) = (self.options.target.first_ws(), self.options.page, self.options.patience);
        let (uaid, flag) = (uaid.to_owned(), done.clone());
        let drain = std::thread::spawn(move || {
            let drained = drain(ws, &uaid, expected, page, Duration::from_secs(patience), &flag);
            flag.store(true, Ordering::Release);
            drained
        });
        self.go(Duration::MAX, || done.load(Ordering::Acquire))?;
        drain.join().map_err(|_| io::Error::other("the draining thread ended with a panic"))?
    }

    /// Waits for what is under way.
    fn finish(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(self.options.patience);
        let missing = |load: &Load<'_>| load.seen.iter().filter(|seen| **seen).count() < load.posted as usize;
        while missing(self) && Instant::now() < deadline {
            self.driver.turn(Duration::from_millis(10))?;
            self.take_in();
        }
        self.driver.idle(QUIET)?;
        self.take_in();
        Ok(())
    }

    fn show(&self, report: &mut Report) {
        report.add("other sessions", self.templates.len() as u64, "");
        report.add("notifications a second to them", u64::from(self.options.rate), "/s");
        let [_, before, during] = &self.phases[..] else { return };
        for (name, phase) in [("before", before), ("during", during)] {
            report.add(format!("{name}: notifications measured"), phase.latency.len(), "");
            for (label, quantile) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
                let value = phase.latency.value_at_quantile(quantile);
                report.add(format!("{name}: due to frame {label}"), value as f64 / 1e3, "us");
            }
        }
        for (label, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let of = |phase: &Phase| phase.latency.value_at_quantile(quantile).max(1) as f64;
            let ratio = of(during) / of(before);
            report.add(format!("ratio of {label}, during to before"), ratio, "");
            if label == "p99"
                && let Some(most) = self.options.ratio_max.filter(|most| ratio > *most)
            {
                report.fail(format!("p99 of the others grew {ratio:.2} times, at most {most} is allowed"));
            }
        }
        let created = self.statuses.get(&201).copied().unwrap_or(0);
        let seen = self.seen.iter().filter(|seen| **seen).count() as u64;
        report.check("others: POSTs not answered 201", self.posted - created, 0);
        report.check("others: notifications lost", self.posted - seen, 0);
        report.check("others: notifications twice", self.twice, 0);
        report.check("others: sessions lost", self.ended, 0);
    }
}

/// What the returning user got.
struct Drained {
    versions: Vec<String>,
    /// From the answer to its hello to its first message, and to its last.
    first: Duration,
    last: Duration,
    /// Why it ended early.
    ended: Option<String>,
}

/// Comes back, acks in pages, and listens on for a moment when everything has come. `done` is set with the last
/// message.
fn drain(
    ws: SocketAddr,
    uaid: &str,
    expected: usize,
    page: usize,
    patience: Duration,
    done: &AtomicBool,
) -> io::Result<Drained> {
    let mut agent = Agent::connect(ws)?;
    if agent.hello(Some(uaid))? != uaid {
        return Err(io::Error::other("the server does not know the user any more"));
    }
    let begin = Instant::now();
    let mut drained = Drained { versions: Vec::new(), first: patience, last: patience, ended: None };
    let mut unacked: Vec<Note> = Vec::with_capacity(page);
    loop {
        let complete = drained.versions.len() >= expected;
        if complete {
            done.store(true, Ordering::Release);
        }
        let wait = match (unacked.is_empty(), complete) {
            (false, _) => PAGE_WAIT,
            (true, true) => QUIET,
            (true, false) => patience,
        };
        match agent.receive(wait)? {
            Received::Message(message) => {
                let Some(note) = Note::read(&message) else { continue };
                drained.last = begin.elapsed();
                if drained.versions.is_empty() {
                    drained.first = drained.last;
                }
                drained.versions.push(note.version.clone());
                unacked.push(note);
                if unacked.len() < page.max(1) {
                    continue;
                }
            }
            Received::Nothing if unacked.is_empty() => break,
            Received::Nothing => {}
            end @ (Received::Close(_) | Received::End) => {
                drained.ended = Some(format!("{end:?}"));
                return Ok(drained);
            }
        }
        agent.ack(&unacked)?;
        unacked.clear();
    }
    agent.close()?;
    Ok(drained)
}

/// How many notifications come to the user once everything is acked.
fn after_the_drain(ws: SocketAddr, uaid: &str) -> io::Result<u64> {
    let mut agent = Agent::connect(ws)?;
    agent.hello(Some(uaid))?;
    let mut again = 0;
    while let Received::Message(message) = agent.receive(QUIET)? {
        again += u64::from(Note::read(&message).is_some());
    }
    agent.close()?;
    Ok(again)
}

impl Drained {
    fn show(&self, report: &mut Report, stored: &Stored, used: Option<CpuTime>) {
        let count = self.versions.len();
        let unique: HashSet<&String> = self.versions.iter().collect();
        report.add("backlog: messages", stored.live.len() as u64, "");
        report.add("backlog: expired in front of them", stored.expired.len() as u64, "");
        report.add("hello to first message", self.first.as_secs_f64() * 1e3, "ms");
        report.add("hello to last message", self.last.as_secs_f64(), "s");
        report.add("messages a second", count as f64 / self.last.as_secs_f64().max(1e-9), "/s");
        if let Some(used) = used {
            let each = used.run_ns as f64 / 1e3 / count.max(1) as f64;
            report.add("server CPU per message, the others' included", each, "us");
        }
        let lost = stored.live.iter().filter(|id| !unique.contains(id)).count();
        let expired = self.versions.iter().filter(|id| stored.expired.contains(*id)).count();
        let strange = self.versions.iter().filter(|id| !stored.live.contains(*id)).count() - expired;
        report.check("backlog: lost", lost as u64, 0);
        report.check("backlog: twice", (count - unique.len()) as u64, 0);
        report.check("backlog: expired and delivered", expired as u64, 0);
        report.check("backlog: under an id that no POST was given", strange as u64, 0);
        if let Some(end) = &self.ended {
            report.fail(format!("the draining session was ended: {end}"));
        }
    }
}
