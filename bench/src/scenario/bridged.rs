//! `bridged`: notifications to phones at a fixed rate, through a bridge whose service is a stand-in (`bench/upstream`).
//! The figures are server CPU time per notification without that of the idle server, latency from when the POST was
//! due, and memory, in up to three stages: the service answers, it is silent, it answers again.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::http::{Client, Request, exchange};
use protocol::webpush::identity::Identity;
use serde_json::{Value, json};

use super::driver::Driver;
use crate::fleet::Plan;
use crate::host::resident;
use crate::latency::Latency;
use crate::post::{PostSpec, PostWriter, Signing};
use crate::report::Report;
use crate::schedule::OpenLoopSchedule;
use crate::target::{Target, value_name};
use crate::usage::{UsageDelta, UsageSample};

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size; `--sessions` is the number of registered phones.
    #[command(flatten)]
    pub target: Target,
    /// Service of the phones.
    #[arg(long, value_enum)]
    pub bridge: Bridge,
    /// Profile of the phones in the configuration of the server.
    #[arg(long, value_name = "NAME", default_value = "firefox")]
    pub app: String,
    /// Control port of the stand-in of the service.
    #[arg(long, value_name = "ADDR")]
    pub upstream: SocketAddr,
    /// Milliseconds after which the stand-in answers.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub delay: u64,
    /// Bytes of bodies.
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    pub body: usize,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub in_flight: usize,
    /// POSTs a second, as an open loop.
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    pub rate: f64,
    /// Register new phones instead of notifying.
    #[arg(long)]
    pub registrations: bool,
    /// The service cannot be called, or calls exceed a limit: other answers than success are no failure.
    #[arg(long)]
    pub failing: bool,
    /// Seconds before the POSTs, in which the CPU time of the idle server is read.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub idle: f64,
    /// Seconds before measuring.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub warmup: f64,
    /// Seconds of measuring while the service answers.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Seconds of measuring while the service reads calls and answers none.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub stall: f64,
    /// Seconds of measuring after that, while it answers again.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub recovery: f64,
    /// Seconds without a POST at the end, before the last reading of memory.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub settle: f64,
}

/// A service of phones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Bridge {
    Fcm,
    Apns,
}

impl Bridge {
    /// A device token in the spelling of the service.
    fn token(self, number: u64) -> String {
        match self {
            Bridge::Fcm => format!("device-token-of-the-bench:{number:0128}"),
            Bridge::Apns => format!("{number:064x}"),
        }
    }
}

/// Longest pause between two looks at a stage.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two readings of memory.
const SECOND: Duration = Duration::from_secs(1);
/// Longest wait for the last answers: more than the deadlines of both services.
const PATIENCE: Duration = Duration::from_secs(30);

/// Notifies and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    if target.sessions == 0 {
        return Err(io::Error::other("at least one phone: --sessions"));
    }
    let mut report = target.report("bridged");
    report.option("bridge", value_name(&options.bridge));
    report.option("rate", options.rate);
    let mut load = Load::new(options)?;
    let before = resident(&target.pids);
    report.add("resident memory before", before, "B");
    let idle = load.rest(options.idle)?;
    load.stage("warm up", options.warmup)?;
    let steady = load.stage("service answers", options.seconds)?;
    let mut stages = vec![steady];
    if options.stall > 0.0 {
        // A POST of the stage before that is still under way would meet the silence.
        load.drain()?;
        load.say("silence")?;
        stages.push(load.stage("service silent", options.stall)?);
        load.say(&load.success())?;
        load.returned = Some(Return::new(load.calls()?));
        stages.push(load.stage("service answers again", options.recovery)?);
    }
    load.drain()?;
    load.rest(options.settle)?;
    for (nth, stage) in stages.into_iter().enumerate() {
        // The first one is before any silence.
        load.show(&mut report, stage, &idle, nth == 0 && !options.failing);
    }
    let most = load.resident_most;
    report.add("resident memory, most", most, "B");
    report.add("resident memory, growth at most", most as f64 - before as f64, "B");
    let after = resident(&target.pids);
    report.add("resident memory after", after, "B");
    report.add("resident memory, growth at the end", after as f64 - before as f64, "B");
    if let Some(returned) = &load.returned {
        returned.show(&mut report, options.rate);
    }
    report.check("POSTs without an answer", load.under_way.len() as u64, 0);
    report.finish(target.json.as_deref())
}

/// POSTs of one stretch of time, by the time at which they were due.
struct Stage {
    name: &'static str,
    /// Number of answers by status.
    statuses: HashMap<u16, u64>,
    /// From due to the answer.
    to_answer: Latency,
    /// From due to sent: the lateness of the generator itself.
    lag: Latency,
    /// POSTs that became due and were not sent before the end.
    unsent: u64,
    spent: Option<UsageDelta>,
}

/// Answers after the return of a service.
struct Return {
    at: Instant,
    /// Calls that the service had got before.
    calls: u64,
    first_call: Option<Duration>,
    first_success: Option<Duration>,
    /// Successes by the second after the return in which their POST was due.
    successes: Vec<u64>,
}

impl Return {
    fn new(calls: u64) -> Return {
        Return { at: Instant::now(), calls, first_call: None, first_success: None, successes: Vec::new() }
    }

    fn show(&self, report: &mut Report, rate: f64) {
        let seconds = |after: Option<Duration>| after.map_or(Value::Null, |after| after.as_secs_f64().into());
        report.add("return to the first call of the service", seconds(self.first_call), "s");
        report.add("return to the first success", seconds(self.first_success), "s");
        // The last second may be cut short. A hundredth may fall into a neighbouring second.
        let whole = self.successes.len().saturating_sub(1);
        let short = self.successes[..whole].iter().rposition(|count| (*count as f64) < rate * 0.99);
        report.add("return to the full rate, whole seconds", short.map_or(0, |at| at + 1) as u64, "s");
        report.add("successes by second after the return", format!("{:?}", self.successes), "");
    }
}

/// The phones, the app servers and what is under way.
struct Load<'a> {
    options: &'a Options,
    driver: Driver,
    letters: PostWriter,
    endpoints: Vec<String>,
    /// Time at which each POST under way was due, and the number of its stage.
    under_way: HashMap<u64, (Instant, usize)>,
    stages: Vec<Stage>,
    next: u64,
    resident_at: Instant,
    resident_most: u64,
    returned: Option<Return>,
}

impl Load<'_> {
    fn new(options: &Options) -> io::Result<Load<'_>> {
        let identity = Identity::generate();
        let endpoints = register(options, &identity.public_key())?;
        // No user agent connects.
        let target = Target { sessions: 1, ..options.target.clone() };
        let mut driver = Driver::new(&target, Plan::default(), 1)?;
        driver.open_publishers(&target, options.in_flight)?;
        let load = Load {
            options,
            driver,
            letters: PostWriter::new(Signing::Once(identity)),
            next: endpoints.len() as u64,
            endpoints,
            under_way: HashMap::new(),
            stages: Vec::new(),
            resident_at: Instant::now(),
            resident_most: 0,
            returned: None,
        };
        load.say(&load.success())?;
        Ok(load)
    }

    fn success(&self) -> String {
        format!("ok;delay={}", self.options.delay)
    }

    /// Makes the stand-in answer all calls like this.
    fn say(&self, answer: &str) -> io::Result<()> {
        let script = json!({ "always": { value_name(&self.options.bridge): answer } }).to_string();
        let request = Request::new("PUT", "/script").header("Host", "upstream").body(script);
        match exchange(self.options.upstream, &request)?.status {
            200 => Ok(()),
            other => Err(io::Error::other(format!("the stand-in answered {other} to a script"))),
        }
    }

    /// Number of calls that the stand-in has got.
    fn calls(&self) -> io::Result<u64> {
        let request = Request::new("GET", "/state").header("Host", "upstream");
        let state: Value = serde_json::from_slice(&exchange(self.options.upstream, &request)?.body)?;
        Ok(state["counts"][value_name(&self.options.bridge)].as_u64().unwrap_or(0))
    }

    /// Lets time pass without a POST.
    fn rest(&mut self, seconds: f64) -> io::Result<UsageDelta> {
        let usage = UsageSample::read(&self.options.target)?;
        self.driver.idle(Duration::from_secs_f64(seconds))?;
        usage.spent(&self.options.target)
    }

    /// Posts at the rate for this long; returns the number of the stage.
    fn stage(&mut self, name: &'static str, seconds: f64) -> io::Result<usize> {
        self.driver.view.stage(name, self.endpoints.len());
        let number = self.stages.len();
        let (statuses, to_answer, lag) = (HashMap::new(), Latency::default(), Latency::default());
        self.stages.push(Stage { name, statuses, to_answer, lag, unsent: 0, spent: None });
        let usage = UsageSample::read(&self.options.target)?;
        let begin = Instant::now();
        let pace = OpenLoopSchedule::new(begin, self.options.rate);
        let end = begin + Duration::from_secs_f64(seconds);
        let total = pace.owed(end - Duration::from_nanos(1));
        let mut posted = 0;
        while Instant::now() < end {
            while posted < pace.owed(Instant::now()).min(total) && self.post(pace.due(posted), number)? {
                posted += 1;
            }
            // With all connections busy the next answer ends the wait.
            let has_idle = self.driver.publishers.as_ref().is_some_and(|pool| pool.has_idle());
            let due = if has_idle { pace.due(posted).min(end) } else { end };
            self.turn_by(due)?;
        }
        self.stages[number].unsent = total - posted;
        self.stages[number].spent = Some(usage.spent(&self.options.target)?);
        Ok(number)
    }

    /// Waits for all answers.
    fn drain(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.under_way.is_empty() && Instant::now() < deadline {
            self.turn_by(deadline)?;
        }
        Ok(())
    }

    /// Sends one POST that was due then; false when no connection is free.
    fn post(&mut self, due: Instant, stage: usize) -> io::Result<bool> {
        let Some(publishers) = self.driver.publishers.as_mut().filter(|pool| pool.has_idle()) else {
            return Ok(false);
        };
        let number = self.next;
        if self.options.registrations {
            publishers.post(&registration(self.options, number, None).to_bytes(), number)?;
        } else {
            let url = &self.endpoints[number as usize % self.endpoints.len()];
            let letter =
                PostSpec { url, ttl: 3_600, topic: None, urgency: None, body_bytes: self.options.body, number };
            let bad = || io::Error::other(format!("the server answered a registration with no URL: {url:?}"));
            publishers.post(self.letters.write(&letter).ok_or_else(bad)?, number)?;
        }
        self.next += 1;
        self.under_way.insert(number, (due, stage));
        self.stages[stage].lag.record(due.elapsed());
        Ok(true)
    }

    fn turn_by(&mut self, due: Instant) -> io::Result<()> {
        self.driver.turn_by(due.min(Instant::now() + LOOK))?;
        for answer in std::mem::take(&mut self.driver.answers) {
            let Some((due, stage)) = self.under_way.remove(&answer.tag) else { continue };
            let stage = &mut self.stages[stage];
            *stage.statuses.entry(answer.status).or_default() += 1;
            stage.to_answer.record(due.elapsed());
            if let Some(returned) = self.returned.as_mut().filter(|_| answer.status == 201) {
                returned.first_success.get_or_insert(returned.at.elapsed());
                if let Some(after) = due.checked_duration_since(returned.at) {
                    let second = after.as_secs() as usize;
                    returned.successes.resize(returned.successes.len().max(second + 1), 0);
                    returned.successes[second] += 1;
                }
            }
        }
        if self.resident_at.elapsed() >= SECOND {
            self.resident_at = Instant::now();
            self.resident_most = self.resident_most.max(resident(&self.options.target.pids));
        }
        if self.returned.as_ref().is_some_and(|returned| returned.first_call.is_none()) {
            let calls = self.calls()?;
            if let Some(returned) = self.returned.as_mut().filter(|returned| calls > returned.calls) {
                returned.first_call = Some(returned.at.elapsed());
            }
        }
        Ok(())
    }

    fn show(&self, report: &mut Report, stage: usize, idle: &UsageDelta, must_succeed: bool) {
        let stage = &self.stages[stage];
        let name = stage.name;
        let mut statuses: Vec<_> = stage.statuses.iter().collect();
        statuses.sort();
        for (status, count) in &statuses {
            report.add(format!("{name}: answers {status}"), **count, "");
        }
        let wanted = if self.options.registrations { 200 } else { 201 };
        let others: u64 = statuses.iter().filter(|(status, _)| **status != wanted).map(|(_, count)| **count).sum();
        if must_succeed {
            report.check(format!("{name}: other answers than {wanted}"), others, 0);
            report.check(format!("{name}: is without any answer"), u64::from(statuses.is_empty()), 0);
        }
        report.add(format!("{name}: POSTs due and not sent"), stage.unsent, "");
        stage.to_answer.show(report, &format!("{name}: due to answer"));
        let beyond = stage.to_answer.us(0.99) / 1e3 - self.options.delay as f64;
        report.add(format!("{name}: p99 without the delay of the service"), beyond, "ms");
        stage.lag.show(report, &format!("{name}: generator late"));
        let count: u64 = stage.statuses.values().sum();
        let Some(spent) = stage.spent.as_ref().filter(|spent| spent.cpu.is_some()) else { return };
        spent.show(report, &format!("POST, {name}"), count);
        let net = (spent.cores() - idle.cores()) * spent.wall.as_micros() as f64 / count.max(1) as f64;
        report.add(format!("{name}: server CPU per POST without that of the idle server"), net, "us");
    }
}

/// Registers the phones one after the other; returns their endpoints.
fn register(options: &Options, key: &str) -> io::Result<Vec<String>> {
    let mut client = Client::connect(options.target.endpoint.address)?;
    let mut one = |number| {
        let response = client.exchange(&registration(options, number, Some(key)))?;
        let text = || String::from_utf8_lossy(&response.body).into_owned();
        let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let endpoint = body["endpoint"].as_str().filter(|_| response.status == 200);
        let refused = || io::Error::other(format!("a registration was answered {}: {}", response.status, text()));
        endpoint.map(str::to_owned).ok_or_else(refused)
    };
    (0..options.target.sessions as u64).map(&mut one).collect()
}

/// The first POST of a phone.
fn registration(options: &Options, number: u64, key: Option<&str>) -> Request {
    let path = format!("/v1/{}/{}/registration", value_name(&options.bridge), options.app);
    let body = json!({ "token": options.bridge.token(number), "key": key }).to_string();
    Request::new("POST", &path).header("Host", &options.target.endpoint.address.to_string()).body(body)
}
