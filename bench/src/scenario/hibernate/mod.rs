//! `hibernate`: sessions whose server freezes idle connections (`hibernate.after`), and what each costs. The generator
//! freezes its own ends too, so the kernel keeps the sockets of sessions that speak, and no others.
//!
//! Server and generator are in network namespaces of their own, or in one; `bench/measure hibernate` makes them.
//! Notifications to frozen sessions are measured with the end of the user agent thawed before, as a phone's would be.
//!
//! Modules in suggested reading order: what both sides know, sockets, the user agents, CPU time, facts of the host.

mod fleet;
mod socket;
mod clients;
mod cpu_time;
mod readings;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use mio::Events;

use self::clients::Clients;
use self::cpu_time::{CpuTime, Mark};
use self::fleet::{Fleet, Received};
use self::readings::{Reading, dropped_by_queue};
use crate::interrupt;
use crate::latency::Latency;
use crate::metrics::Metrics;
use crate::post::{PostSpec, PostWriter, Signing};
use crate::random::{Random, mixed};
use crate::report::Report;
use crate::result::names;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;
use crate::view::View;

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size. It needs `--admin` and `--pid`, and plain text.
    #[command(flatten)]
    pub target: Target,
    /// First address that user agents come from; each next 60,000 come from the next address.
    #[arg(long, value_name = "IP", default_value = "127.1.0.1")]
    pub first_source: Ipv4Addr,
    /// Number of the packet queue of the generator; not that of the server if both share a network namespace.
    #[arg(long, value_name = "N", default_value_t = 27_974)]
    pub client_queue: u16,
    /// Sessions that are never frozen: each sends a WebSocket ping every 5 s.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub control: u32,
    /// Frozen sessions, chosen at random, that get a notification; as many go to the control group.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub notified: u32,
    /// Those a second, as an open loop.
    #[arg(long, value_name = "N", default_value_t = 200.0)]
    pub rate: f64,
    /// Frozen sessions, chosen at random, that send a ping at the end and must be answered.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub answers: u32,
    /// Those a second, as an open loop.
    #[arg(long, value_name = "N", default_value_t = 1_000.0)]
    pub answer_rate: f64,
    /// Seconds of rest before memory is read; the CPU time of an idle server, which later figures do not contain, is
    /// measured over the second half of them. 0: neither is done.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub quiet: u64,
    /// Seconds of upkeep behind that: pings of the server, and their CPU time.
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub stay: u64,
}

/// Ends of the generator that are live at once while sessions arrive: each is a file descriptor. A busy host freezes
/// them late.
const LIVE_MAX: usize = 12_000;
/// Longest wait for the last session, for the last freeze and for the last answer.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time between two looks at the server's numbers while it freezes.
const LOOK: Duration = Duration::from_secs(4);
/// Time between two pings of a session of the control group.
const CONTROL_PERIOD: Duration = Duration::from_secs(5);
/// Sessions whose own end is thawed before their notification is due.
const AWAKE_AHEAD: usize = 16;
/// App servers.
const APP_SERVERS: usize = 64;

struct Run<'a> {
    options: &'a Options,
    clients: Clients,
    events: Events,
    view: View,
    letters: PostWriter,
    beats: OpenLoopSchedule,
    beaten: u64,
    /// CPU time of the idle server and host in a second.
    idle: CpuTime,
    posted: u64,
}

/// Holds them, wakes some, and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    if target.admin.is_none() || target.pids.is_empty() || target.ca.is_some() {
        return Err(io::Error::other("cannot measure hibernation: give --admin and --pid, and no --ca"));
    }
    let mut report = target.report("hibernate");
    let sessions = target.sessions as u32;
    let control = options.control.min(sessions / 2);
    let sample = sample(control..sessions, options.notified);
    let fleet = Fleet {
        server: target.first_ws(),
        endpoint: target.endpoint.address,
        first_source: options.first_source,
        queue: options.client_queue,
        sessions,
        control,
        registered: sample.iter().copied().collect::<HashSet<u32>>(),
    };
    let mut run = Run {
        options,
        clients: Clients::new(fleet)?,
        events: Events::with_capacity(1_024),
        view: View::open(target),
        letters: PostWriter::new(Signing::None),
        beats: OpenLoopSchedule::spread(Instant::now(), control as usize, CONTROL_PERIOD),
        beaten: 0,
        idle: CpuTime::default(),
        posted: 0,
    };
    report.option("control", control);
    report.option("notified", options.notified);
    let empty = Reading::take(target)?;
    run.ramp(&mut report)?;
    if options.quiet > 0 {
        run.rest(&empty, &mut report)?;
    }
    if options.stay > 0 {
        run.stay(&mut report)?;
    }
    let live: Vec<u32> = (0..control).cycle().take(if control > 0 { sample.len() } else { 0 }).collect();
    run.notify("frozen", &shuffled(sample), &mut report)?;
    run.notify("live", &live, &mut report)?;
    run.answer(&mut report)?;
    run.check("at the end", &mut report)?;
    run.counters(&mut report)?;
    run.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

/// Chooses one session at random of each stretch of equal length.
fn sample(from: std::ops::Range<u32>, count: u32) -> Vec<u32> {
    let (first, all) = (u64::from(from.start), u64::from(from.end - from.start));
    let count = u64::from(count).min(all);
    let one = |n: u64| {
        let (begin, end) = (n * all / count, (n + 1) * all / count);
        (first + begin + mixed(n) % (end - begin)) as u32
    };
    (0..count).map(one).collect()
}

fn shuffled(mut all: Vec<u32>) -> Vec<u32> {
    let mut random = Random(1);
    for at in (1..all.len()).rev() {
        all.swap(at, random.index(at + 1));
    }
    all
}

impl Run<'_> {
    fn sessions(&self) -> u32 {
        self.options.target.sessions as u32
    }

    fn metrics(&self) -> io::Result<Metrics> {
        self.options.target.admin.map_or_else(|| Ok(Metrics::default()), Metrics::read)
    }

    fn gauge(&self, name: &str) -> io::Result<u64> {
        Ok(self.metrics()?.named(name).map(|(_, value)| value).sum::<f64>() as u64)
    }

    /// Frozen sessions that the server must have when nobody speaks.
    fn frozen_wanted(&self) -> u64 {
        let control = self.options.control.min(self.sessions() / 2);
        (self.clients.counts.arrived - self.clients.ended()).saturating_sub(u64::from(control))
    }

    /// One turn, until `until` at most. The control group speaks meanwhile.
    fn turn(&mut self, until: Instant) -> io::Result<()> {
        interrupt::check()?;
        let control = u64::from(self.options.control.min(self.sessions() / 2));
        let mut until = until.min(Instant::now() + Duration::from_millis(20));
        if control > 0 && self.clients.counts.arrived > control {
            let owed = self.beats.owed(Instant::now());
            // Those of the time before are not made up for.
            self.beaten = self.beaten.max(owed.saturating_sub(control));
            while self.beaten < owed {
                self.clients.ping((self.beaten % control) as u32)?;
                self.beaten += 1;
            }
            until = until.min(self.beats.due(self.beaten));
        }
        self.clients.turn(&mut self.events, until)?;
        let (arrived, ended) = (self.clients.counts.arrived, self.clients.ended());
        self.view.sessions((arrived - ended.min(arrived)) as usize);
        Ok(())
    }

    fn idle(&mut self, span: Duration) -> io::Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.turn(end)?;
            self.clients.received.clear();
            self.clients.answers.clear();
        }
        Ok(())
    }

    fn ramp(&mut self, report: &mut Report) -> io::Result<()> {
        let (sessions, at_once) = (self.sessions(), self.options.target.ramp.ramp);
        self.view.stage("ramp", sessions as usize);
        let before = Mark::now(&self.options.target)?;
        let begin = Instant::now();
        let pace = self.options.target.ramp.ramp_rate.map(|rate| OpenLoopSchedule::new(begin, rate));
        let (mut next, mut last, mut moved) = (0, 0, Instant::now());
        while next < sessions || self.clients.arriving() > 0 {
            let owed = pace.map_or(u64::from(sessions), |pace| pace.owed(Instant::now()));
            let owed = owed.min(sessions.into());
            while u64::from(next) < owed && self.clients.arriving() < at_once && self.clients.live() < LIVE_MAX {
                self.clients.connect(next)?;
                next += 1;
            }
            let due = pace.filter(|_| next < sessions).map(|pace| pace.due(next.into()));
            self.turn(due.unwrap_or_else(|| Instant::now() + Duration::from_millis(5)))?;
            let seen = self.clients.counts.arrived + self.clients.ended();
            if seen > last {
                (last, moved) = (seen, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                report.fail(format!("{} sessions did not arrive", self.clients.arriving()));
                break;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        report.add("ramp: time until all were there", seconds, "s");
        report.add("ramp: sessions a second", f64::from(sessions) / seconds, "/s");
        before.show_ramp(&self.options.target, sessions, seconds, report)?;
        let begin = Instant::now();
        if pace.is_some() {
            // Pings of the first may have begun: all are frozen at no time.
            self.idle(PATIENCE / 2)?;
            return self.check("after the ramp", report);
        }
        if self.wait_until_frozen(report)? {
            report.add("ramp: time from the last session to the last freeze", begin.elapsed().as_secs_f64(), "s");
        }
        self.check("after the ramp", report)
    }

    /// Waits until both sides have frozen all but the control group. Returns false if the server has pinged meanwhile:
    /// then there is no rest, and CPU time is not that of the frames of the scenario.
    fn wait_until_frozen(&mut self, report: &mut Report) -> io::Result<bool> {
        let (deadline, pings) = (Instant::now() + PATIENCE, self.clients.counts.pings);
        loop {
            // Each look costs the server some of the CPU time that is measured.
            self.idle(LOOK)?;
            let (wanted, server) = (self.frozen_wanted(), self.gauge("murre_frozen")?);
            if self.clients.counts.pings > pings {
                return Ok(false);
            }
            if server >= wanted && self.clients.frozen() >= wanted {
                return Ok(true);
            }
            if Instant::now() > deadline {
                let client = self.clients.frozen();
                report.fail(format!("of {wanted} sessions the server has frozen {server}, the generator {client}"));
                return Ok(false);
            }
        }
    }

    fn check(&mut self, when: &str, report: &mut Report) -> io::Result<()> {
        let sessions = u64::from(self.sessions());
        report.check(format!("sessions that the server counts, {when}"), self.gauge("murre_sessions")?, sessions);
        report.add(format!("connections, {when}"), self.gauge("murre_connections")?, "");
        report.add(format!("frozen, {when}"), self.gauge("murre_frozen")?, "");
        report.add(format!("ends of the generator: frozen, {when}"), self.clients.frozen(), "");
        report.add(format!("ends of the generator: live, {when}"), self.clients.live() as u64, "");
        report.check(format!("sessions that ended, {when}"), self.clients.ended(), 0);
        Ok(())
    }

    /// Lets the caches settle, and reads memory.
    fn rest(&mut self, empty: &Reading, report: &mut Report) -> io::Result<()> {
        let half = Duration::from_secs(self.options.quiet) / 2;
        self.view.stage("quiet", self.sessions() as usize);
        self.idle(half)?;
        let begin = Mark::now(&self.options.target)?;
        self.idle(half)?;
        self.idle = CpuTime::default();
        let (used, wall) = begin.used(&self.options.target, &self.idle)?;
        self.idle = used.each(wall);
        report.add(names::CPU_IDLE, self.idle.server, "cores");
        for (thread, cores) in self.idle.threads.iter().filter(|(_, cores)| **cores >= 1e-5) {
            report.add(format!("  idle: {thread}"), cores * 1e3, "ms/s");
        }
        report.add("softirqs of the idle host", self.idle.softirq * 1e3, "ms/s");
        let settled = Reading::take(&self.options.target)?;
        settled.show(empty, self.sessions(), report);
        let metrics = self.metrics()?;
        let mut tables = metrics.tables();
        tables.retain(|_, bytes| *bytes > 0.0);
        for name in ["murre_store_cache_bytes", "murre_store_buffer_bytes"] {
            tables.insert(name.to_owned(), metrics.named(name).map(|(_, bytes)| bytes).sum());
        }
        for (table, bytes) in tables {
            report.add(format!("  {table} per session"), bytes / f64::from(self.sessions()), "B");
        }
        Ok(())
    }

    /// The server pings, and the frozen answer.
    fn stay(&mut self, report: &mut Report) -> io::Result<()> {
        self.view.stage("upkeep", self.sessions() as usize);
        let (pings, freezes) = (self.clients.counts.pings, self.gauge("murre_freezes_total")?);
        let begin = Mark::now(&self.options.target)?;
        self.idle(Duration::from_secs(self.options.stay))?;
        let (used, wall) = begin.used(&self.options.target, &self.idle)?;
        let pings = self.clients.counts.pings - pings;
        report.add("upkeep: server CPU beyond the idle server's", used.server / wall, "cores");
        report.add("upkeep: pings of the server that were answered", pings, "");
        report.add("upkeep: freezes", self.gauge("murre_freezes_total")? - freezes, "");
        report.add(names::PING_RATE, pings as f64 / wall, "/s");
        if pings > 0 {
            used.show("ping and pong of a frozen session, thaw and freeze included", pings, report);
            for interval in [300.0, 1_800.0] {
                let us = used.server * 1e6 / pings as f64 / interval;
                report.add(format!("upkeep of a session with pings each {interval} s, by that"), us, "us/s");
            }
        }
        self.check("after the upkeep", report)
    }

    /// Notifies these sessions one after the other.
    fn notify(&mut self, what: &str, numbers: &[u32], report: &mut Report) -> io::Result<()> {
        self.view.stage(format!("notify {what}"), self.sessions() as usize);
        if numbers.is_empty() {
            return Ok(());
        }
        self.clients.open_app_servers(APP_SERVERS)?;
        self.idle(Duration::from_secs(1))?;
        let begin = Mark::now(&self.options.target)?;
        let pace = OpenLoopSchedule::new(Instant::now() + Duration::from_millis(50), self.options.rate);
        let (first, count) = (self.posted, numbers.len() as u64);
        let (mut awake, mut next) = (0, 0);
        let mut refused: BTreeMap<u16, u64> = BTreeMap::new();
        let mut waiting: HashMap<u64, Instant> = HashMap::new();
        let mut took = Latency::default();
        let mut deadline = Instant::now() + PATIENCE;
        while (next < count || !waiting.is_empty()) && Instant::now() < deadline {
            let owed = pace.owed(Instant::now()).min(count);
            while awake < numbers.len().min(owed as usize + AWAKE_AHEAD) {
                // A session that has ended is counted when its POST is answered.
                let _ = self.clients.awaken(numbers[awake]);
                awake += 1;
            }
            while next < owed && self.clients.can_post() {
                let tag = first + next;
                let Some(url) = self.clients.endpoint(numbers[next as usize]).map(str::to_owned) else {
                    return Err(io::Error::other(format!("session {} has no endpoint", numbers[next as usize])));
                };
                let letter = PostSpec { url: &url, ttl: 60, topic: None, urgency: None, body_bytes: 200, number: tag };
                let request = self.letters.write(&letter).ok_or_else(|| io::Error::other("no endpoint URL"))?;
                self.clients.post(request, tag)?;
                waiting.insert(tag, pace.due(next));
                next += 1;
                deadline = Instant::now() + PATIENCE;
            }
            self.turn(pace.due(next))?;
            for received in self.clients.received.drain(..) {
                if let Received::Notification(tag) = received
                    && let Some(due) = waiting.remove(&tag)
                {
                    took.record(due.elapsed());
                }
            }
            for answer in self.clients.answers.drain(..).filter(|answer| answer.status != 201) {
                *refused.entry(answer.status).or_default() += 1;
            }
        }
        self.posted += count;
        self.clients.close_app_servers();
        report.check(format!("{what}: notifications that came"), took.count(), count);
        for (status, count) in refused {
            report.fail(format!("{what}: {count} POSTs were answered {status}"));
        }
        took.show(report, &format!("{what}: {}", names::TO_FRAME));
        if self.wait_until_frozen(report)? {
            begin.used(&self.options.target, &self.idle)?.0.show(&format!("notification, {what}"), count, report);
        }
        Ok(())
    }

    /// Frozen sessions speak.
    fn answer(&mut self, report: &mut Report) -> io::Result<()> {
        let control = self.options.control.min(self.sessions() / 2);
        let numbers = shuffled(sample(control..self.sessions(), self.options.answers));
        if numbers.is_empty() {
            return Ok(());
        }
        self.view.stage("frozen sessions speak", self.sessions() as usize);
        let begin = Mark::now(&self.options.target)?;
        let pace = OpenLoopSchedule::new(Instant::now(), self.options.answer_rate);
        let (mut next, count) = (0, numbers.len() as u64);
        let mut waiting: HashMap<u32, Instant> = HashMap::new();
        let mut took = Latency::default();
        let mut deadline = Instant::now() + PATIENCE;
        while (next < count || !waiting.is_empty()) && Instant::now() < deadline {
            while next < pace.owed(Instant::now()).min(count) {
                let number = numbers[next as usize];
                if self.clients.ping(number).is_ok() {
                    waiting.insert(number, Instant::now());
                }
                next += 1;
                deadline = Instant::now() + PATIENCE;
            }
            self.turn(pace.due(next))?;
            for received in self.clients.received.drain(..) {
                if let Received::Pong(number) = received
                    && let Some(sent) = waiting.remove(&number)
                {
                    took.record(sent.elapsed());
                }
            }
        }
        report.check("frozen sessions that spoke and were answered", took.count(), count);
        took.show(report, "ping of a frozen session to its pong");
        if self.wait_until_frozen(report)? {
            begin.used(&self.options.target, &self.idle)?.0.show(
                "ping of a frozen user agent, thaw and freeze included",
                count,
                report,
            );
        }
        Ok(())
    }

    fn counters(&mut self, report: &mut Report) -> io::Result<()> {
        let metrics = self.metrics()?;
        for name in
            ["freezes", "freezes_refused", "thaws_by_segment", "thaws_by_frame", "thaw_failures", "wakes_refused"]
        {
            report.add(format!("server: {name}"), metrics.sum(&format!("murre_{name}_total")), "");
        }
        // Of all shards together, and each shard says the sum.
        for name in ["segments_judged", "segments_unknown", "segments_dropped"] {
            let most = metrics.matching(&format!("murre_{name}")).map(|(_, value)| value).fold(0.0, f64::max);
            report.add(format!("server: {name}"), most, "");
        }
        let servers: u64 = self.options.target.pids.iter().map(|pid| dropped_by_queue(*pid)).sum();
        report.add("server: segments that a full queue dropped", servers, "");
        report.add("generator: segments that a full queue dropped", dropped_by_queue(std::process::id()), "");
        let counts = self.clients.counts.clone();
        report.add("generator: freezes", counts.freezes, "");
        report.add("generator: freezes refused", counts.freezes_refused, "");
        report.add("generator: thaws by segment", counts.woken, "");
        report.add("generator: thaws that failed", counts.thaw_failures, "");
        report.add("generator: wakes refused", counts.wakes_refused, "");
        for (why, count) in &counts.ended {
            report.fail(format!("{count} sessions ended: {why}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_no_session_twice_and_none_of_the_control_group() {
        let chosen = sample(200..20_000, 10_000);
        let different: HashSet<u32> = chosen.iter().copied().collect();
        assert_eq!((chosen.len(), different.len()), (10_000, 10_000));
        assert!(chosen.iter().all(|number| (200..20_000).contains(number)));
        assert_eq!(sample(3..5, 100), [3, 4]);
        assert_eq!(shuffled(chosen.clone()).into_iter().collect::<HashSet<u32>>(), different);
    }
}
