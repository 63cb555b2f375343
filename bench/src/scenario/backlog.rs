//! `backlog`: one user comes back to very many stored messages while others on the same shard go on being notified. The
//! figure is the effect on the others: their latency during the drain beside their latency before.
//!
//! The load is an open loop: each notification has an instant at which it should be sent, and its latency counts from
//! there, whether the generator or the server was late. The draining user agent has a thread of its own, so that its
//! work is not charged to the others, and gives way to theirs. Run the server with `--shards 1`: others on another
//! shard would notice less. On a host of few cores keep the two apart, as in `taskset -c 0 murre serve ..` and
//! `taskset -c 1 murre-bench backlog ..`: the drain of a fast client needs a core of its own.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::agent::{Agent, Note, Received, channel_id};

use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Stream, Traffic, Window, spread};
use crate::delivery_log::Expect;
use crate::host::CpuTime;
use crate::metrics::Metrics;
use crate::post::{PostSpec, PostWriter, Signing};
use crate::report::Report;
use crate::result::names::CPU_PER;
use crate::target::Target;
use crate::usage::UsageSample;

/// Size of the backlog, and load beside it.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and number of other sessions.
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
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
    /// Fail when the p99 of the others during the drain is more than this many times the p99 before.
    #[arg(long, value_name = "X")]
    pub ratio_max: Option<f64>,
}

/// TTL of all messages that must not expire.
const TTL: u32 = 3_600;
/// Nice value of the thread that drains.
const DRAIN_NICE: i32 = 19;
/// Time in which no further notification may come.
const QUIET: Duration = Duration::from_secs(1);
/// Time that an incomplete page waits for the rest before it is acked.
const PAGE_WAIT: Duration = Duration::from_millis(20);

/// Stores, measures, drains, reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("backlog");
    if target.sessions == 0 || options.rate == 0 {
        return Err(io::Error::other("the others must be one session at least, with one notification a second"));
    }
    if let Some(admin) = target.admin {
        let shards = Metrics::read(admin)?.named("murre_sessions").count();
        report.check("shards of the server", shards as u64, 1);
    }
    let mut traffic = Traffic::new(target, ONE_CHANNEL, Signing::None)?;
    traffic.driver.view.stage("ramp", target.sessions);
    let climb = target.ramp.climb(&mut traffic, 0..target.sessions)?;
    climb.show(&mut report, "ramp", target.sessions);
    traffic.driver.open_publishers(target, options.in_flight)?;
    let (uaid, url) = absent_user(target.first_ws())?;
    let stored = store(&mut traffic, options, &url, &mut report)?;
    load(&mut traffic, options, Some(options.warmup), || false)?;
    load(&mut traffic, options, Some(options.baseline), || false)?;
    let before = UsageSample::read(target)?;
    let drained = beside(&mut traffic, options, &uaid, stored.live.len())?;
    let used = before.spent(target)?.cpu;
    traffic.drain(Duration::from_secs(options.patience))?;
    traffic.idle(QUIET)?;
    let again = after_the_drain(target.first_ws(), &uaid)?;
    show_others(&mut report, options, &traffic);
    drained.show(&mut report, &stored, used);
    report.check("backlog: delivered again after their ack", again, 0);
    traffic.check(&mut report, "others", DuplicatePolicy::Always);
    report.check("others: sessions lost", traffic.ended, climb.again);
    report.finish(target.json.as_deref())
}

/// A user with one channel that is not connected: UAID and endpoint.
fn absent_user(ws: SocketAddr) -> io::Result<(String, String)> {
    let mut agent = Agent::connect(ws)?;
    let uaid = agent.hello(None)?;
    let url = agent.register(&channel_id(), None)?;
    agent.close()?;
    Ok((uaid, url))
}

/// Ids of the messages that were accepted for the absent user.
struct Stored {
    expired: HashSet<String>,
    live: HashSet<String>,
}

fn store(traffic: &mut Traffic, options: &Options, url: &str, report: &mut Report) -> io::Result<Stored> {
    let patience = Duration::from_secs(options.patience);
    let expired = post_all(traffic, options, url, (options.expired, options.expired_ttl), patience)?;
    let last_expires = Instant::now() + Duration::from_secs(u64::from(options.expired_ttl) + 1);
    let begin = Instant::now();
    let live = post_all(traffic, options, url, (options.messages, TTL), patience)?;
    report.add("messages stored a second", live.len() as f64 / begin.elapsed().as_secs_f64(), "/s");
    report.check("backlog: POSTs not answered 201", (options.messages - live.len()) as u64, 0);
    report.check("expired: POSTs not answered 201", (options.expired - expired.len()) as u64, 0);
    if options.expired > 0 {
        traffic.idle(last_expires.saturating_duration_since(Instant::now()))?;
    }
    // The pending writes of the store are not part of the drain.
    traffic.idle(Duration::from_secs(2))?;
    Ok(Stored { expired, live })
}

/// POSTs `count` messages, as many at once as there are connections; the ids of those answered 201.
fn post_all(
    traffic: &mut Traffic,
    options: &Options,
    url: &str,
    (count, ttl): (usize, u32),
    patience: Duration,
) -> io::Result<HashSet<String>> {
    let driver = &mut traffic.driver;
    let mut letters = PostWriter::new(Signing::None);
    let letter = PostSpec { url, ttl, topic: None, urgency: None, body_bytes: options.body.max(9), number: u64::MAX };
    let request = letters.write(&letter).ok_or_else(|| io::Error::other(format!("not an endpoint URL: {url}")))?;
    let mut ids = HashSet::with_capacity(count);
    let (mut posted, mut answered) = (0, 0);
    let mut progress = Instant::now();
    while answered < count && progress.elapsed() < patience {
        if let Some(publishers) = &mut driver.publishers {
            while posted < count && publishers.has_idle() {
                publishers.post(request, posted as u64)?;
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

/// The steady load on the other sessions: for `seconds`, or until `over`. Each call is a window of its own.
fn load(traffic: &mut Traffic, options: &Options, seconds: Option<u64>, over: impl Fn() -> bool) -> io::Result<()> {
    let (bytes, agents) = (options.body.max(9), options.target.sessions);
    let style = MessageSpec { ttl: TTL, topic: None, urgency: None, body_bytes: bytes, expect: Expect::Once };
    let rate = Some(f64::from(options.rate));
    let mut stream = match seconds {
        Some(seconds) => Stream::lasting(rate, Duration::from_secs(seconds)),
        None => Stream::counting(rate, u64::MAX),
    };
    let mut pick = |_: &crate::delivery_log::DeliveryLog, number: u64| Some((spread(number, agents), style));
    traffic.open_window();
    while !over()
        && let Some(next) = stream.post_due(traffic, &mut pick)?
    {
        traffic.turn_by(next)?;
        traffic.others.clear();
    }
    traffic.close_window();
    Ok(())
}

/// Brings the user back; the load goes on until its last message has come.
fn beside(traffic: &mut Traffic, options: &Options, uaid: &str, expected: usize) -> io::Result<Drained> {
    let done = Arc::new(AtomicBool::new(false));
    let (ws, page, patience) = (options.target.first_ws(), options.page, options.patience);
    let (uaid, flag) = (uaid.to_owned(), done.clone());
    let drain = std::thread::spawn(move || {
        stand_back();
        let drained = drain(ws, &uaid, expected, page, Duration::from_secs(patience), &flag);
        flag.store(true, Ordering::Release);
        drained
    });
    load(traffic, options, None, || done.load(Ordering::Acquire))?;
    drain.join().map_err(|_| io::Error::other("the draining thread ended with a panic"))?
}

/// Lets the kernel prefer the load of the others to the calling thread, where both need one core: else the figure would
/// be the effect of two threads of the generator on each other. A host that refuses it measures without.
fn stand_back() {
    let _ = rustix::process::setpriority_process(None, DRAIN_NICE);
}

fn show_others(report: &mut Report, options: &Options, traffic: &Traffic) {
    report.add("other sessions", options.target.sessions as u64, "");
    report.add("notifications a second to them", u64::from(options.rate), "/s");
    let [_, before, during] = &traffic.windows[..] else { return };
    for (name, window) in [("before", before), ("during", during)] {
        report.add(format!("{name}: notifications measured"), window.to_frame.count(), "");
        window.to_frame.show(report, &format!("{name}: due to frame"));
    }
    for (label, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let of = |window: &Window| window.to_frame.us(quantile).max(0.001);
        let ratio = of(during) / of(before);
        report.add(format!("ratio of {label}, during to before"), ratio, "");
        if label == "p99"
            && let Some(most) = options.ratio_max.filter(|most| ratio > *most)
        {
            report.fail(format!("p99 of the others grew {ratio:.2} times, at most {most} is allowed"));
        }
    }
}

/// Messages that the returning user received.
struct Drained {
    versions: Vec<String>,
    /// From the answer to its hello to its first message, and to its last.
    first: Duration,
    last: Duration,
    /// Reason for an early end.
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
                let Some(note) = Note::read(message) else { continue };
                drained.heard(&note, begin.elapsed());
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

/// Returns the number of notifications that come to the user once everything is acked.
fn after_the_drain(ws: SocketAddr, uaid: &str) -> io::Result<u64> {
    let mut agent = Agent::connect(ws)?;
    agent.hello(Some(uaid))?;
    let mut again = 0;
    while let Received::Message(message) = agent.receive(QUIET)? {
        again += u64::from(Note::read(message).is_some());
    }
    agent.close()?;
    Ok(again)
}

impl Drained {
    fn heard(&mut self, note: &Note, since_hello: Duration) {
        if self.versions.is_empty() {
            self.first = since_hello;
        }
        self.last = since_hello;
        self.versions.push(note.version.clone());
    }

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
            report.add(format!("{CPU_PER}message, the others' included"), each, "us");
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
