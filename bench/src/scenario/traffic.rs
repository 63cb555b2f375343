//! Messages posted to agents: at a rate or as fast as the server takes them; and the account of the fate of each.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use super::driver::Driver;
use crate::delivery_log::{DeliveryLog, Expect};
use crate::fleet::{AgentEvent, Plan};
use crate::latency::{Latency, Series};
use crate::post::{Encoding, NUMBERED_BYTES_MIN, PostSpec, PostWriter, Signing, Vapid};
use crate::report::Report;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;

/// One channel, acks, no broadcast: the plan of an agent in most scenarios.
pub const ONE_CHANNEL: Plan = Plan { channels: 1, key: None, broadcast: None, ack: true };

/// Properties of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageSpec<'a> {
    /// `TTL` in seconds.
    pub ttl: u32,
    pub topic: Option<&'a str>,
    /// `Urgency`; `None` sends no header.
    pub urgency: Option<&'a str>,
    /// Bytes of its body; 1 to 8 become 9, which hold its number.
    pub body_bytes: usize,
    /// Number of times it must come.
    pub expect: Expect,
}

/// Function from the number of a message to its recipient and style; `None` when it must wait.
pub trait Pick: FnMut(&DeliveryLog, u64) -> Option<(usize, MessageSpec<'static>)> {}

impl<F: FnMut(&DeliveryLog, u64) -> Option<(usize, MessageSpec<'static>)>> Pick for F {}

/// Messages to post: at a rate, regardless of the server, or as fast as connections become free.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pace: Option<OpenLoopSchedule>,
    end: Instant,
    count: u64,
    posted: u64,
}

impl Stream {
    /// `rate` messages per second for this long, from now on; as many as the server takes without a rate.
    pub fn lasting(rate: Option<f64>, span: Duration) -> Stream {
        let begin = Instant::now();
        Stream {
            pace: rate.map(|rate| OpenLoopSchedule::new(begin, rate)),
            end: begin + span,
            count: u64::MAX,
            posted: 0,
        }
    }

    /// A stream of `count` messages.
    pub fn counting(rate: Option<f64>, count: u64) -> Stream {
        Stream { count, ..Stream::lasting(rate, LONG) }
    }

    /// Posts the messages that are due; returns the time at which more will be, `None` after the end.
    pub fn post_due<P: Pick>(&mut self, traffic: &mut Traffic, pick: &mut P) -> io::Result<Option<Instant>> {
        let now = Instant::now();
        // A message that is due exactly at the end is not part of it.
        let last = now.min(self.end - Duration::from_nanos(1));
        let owed = self.pace.map_or(u64::MAX, |pace| pace.owed(last)).min(self.count);
        let over = now >= self.end && (self.pace.is_none() || self.posted >= owed || now >= self.end + OVERTIME);
        if over || self.posted >= self.count {
            return Ok(None);
        }
        let mut waits = false;
        while self.posted < owed && traffic.can_post() && Instant::now() < self.end + OVERTIME {
            let Some((agent, style)) = pick(&traffic.ledger, traffic.ledger.next()) else {
                waits = true;
                break;
            };
            let due = self.pace.map_or_else(Instant::now, |pace| pace.due(self.posted));
            if traffic.post(agent, due, &style)?.is_none() {
                break;
            }
            self.posted += 1;
        }
        // With all connections busy the next answer ends the wait.
        let later = Instant::now() + LOOK;
        let next = match self.pace {
            Some(pace) if !waits && traffic.can_post() => pace.due(self.posted).min(self.end),
            _ => self.end,
        };
        Ok(Some(next.min(later)))
    }
}

/// Longer than any run.
const LONG: Duration = Duration::from_secs(7 * 86_400);

/// Measurements of the messages of a stretch of time.
#[derive(Debug)]
pub struct Window {
    /// Numbers of its messages.
    first: u64,
    end: u64,
    begin: Instant,
    /// From due to the answer.
    pub to_answer: Latency,
    /// From due to the frame.
    pub to_frame: Latency,
    /// From due to sent: the lateness of the generator itself.
    pub lag: Latency,
    /// `to_frame` by the second in which the POST was due.
    pub series: Series,
}

/// Rule for messages that come twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DuplicatePolicy {
    /// No message may come twice: every session stays until its acks are read.
    Always,
    /// A message may come twice, because sessions leave at any time.
    Never,
}

/// The driver with an account of what it posts.
pub struct Traffic {
    pub driver: Driver,
    /// Fate of every message.
    pub ledger: DeliveryLog,
    /// Happenings that are no notification, until taken.
    pub others: Vec<AgentEvent>,
    /// Connections that ended on the server's side or could not be made.
    pub ended: u64,
    /// Stretches that were measured; the last may still be.
    pub windows: Vec<Window>,
    letters: PostWriter,
    /// Messages too short for a number: the one under way to each agent.
    nameless: HashMap<usize, u64>,
    last_second: (Instant, Latency),
}

/// Longest wait for a connection to post what became due before the end of a stretch.
const OVERTIME: Duration = Duration::from_secs(30);
/// Time between two checks for outstanding messages.
const LOOK: Duration = Duration::from_millis(100);

impl Traffic {
    /// Agents of this plan, none connected; POSTs are signed as `signing` says.
    pub fn new(target: &Target, plan: Plan, signing: Signing) -> io::Result<Traffic> {
        Traffic::spelled(target, plan, signing, Vapid::default(), Encoding::default())
    }

    /// As [`Traffic::new`], with POSTs in the spelling of older senders.
    pub fn spelled(
        target: &Target,
        plan: Plan,
        signing: Signing,
        vapid: Vapid,
        encoding: Encoding,
    ) -> io::Result<Traffic> {
        let plan = Plan { key: signing.public_key().or(plan.key), ..plan };
        Ok(Traffic {
            driver: Driver::new(target, plan, 128)?,
            ledger: DeliveryLog::default(),
            others: Vec::new(),
            ended: 0,
            windows: Vec::new(),
            letters: PostWriter::spelled(signing, vapid, encoding),
            nameless: HashMap::new(),
            last_second: (Instant::now(), Latency::default()),
        })
    }

    /// Waits for events until `due` at the latest and enters them.
    pub fn turn_by(&mut self, due: Instant) -> io::Result<()> {
        self.driver.turn_by(due)?;
        self.take_in();
        Ok(())
    }

    /// Turns for this long; happenings that are not notifications are discarded.
    pub fn idle(&mut self, span: Duration) -> io::Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.turn_by(end.min(Instant::now() + LOOK))?;
            self.others.clear();
        }
        Ok(())
    }

    /// Returns true if an app server connection is free.
    pub fn can_post(&self) -> bool {
        self.driver.publishers.as_ref().is_some_and(|pool| pool.has_idle())
    }

    /// Posts one message to the first channel of `agent`; `None` when no connection is free.
    pub fn post(&mut self, agent: usize, due: Instant, style: &MessageSpec<'_>) -> io::Result<Option<u64>> {
        let Some(publishers) = self.driver.publishers.as_mut().filter(|pool| pool.has_idle()) else {
            return Ok(None);
        };
        let mut body_bytes = style.body_bytes;
        if (1..NUMBERED_BYTES_MIN).contains(&body_bytes) || body_bytes == 0 && self.nameless.contains_key(&agent) {
            body_bytes = NUMBERED_BYTES_MIN;
        }
        let url = self.driver.agents.endpoint(agent, 0).unwrap_or_default();
        let number = self.ledger.next();
        let letter =
            PostSpec { url: &url, ttl: style.ttl, topic: style.topic, urgency: style.urgency, body_bytes, number };
        match self.letters.write(&letter) {
            Some(request) => {
                publishers.post(request, number)?;
                self.ledger.posted(due, style.expect);
            }
            // A user that the server forgot: its message counts as refused.
            None => {
                self.ledger.posted(due, style.expect);
                self.ledger.answered(number, 0);
                return Ok(Some(number));
            }
        }
        if body_bytes == 0 {
            self.nameless.insert(agent, number);
        }
        if let Some(window) = self.windows.last_mut().filter(|window| window.holds(number)) {
            window.lag.record(Instant::now().saturating_duration_since(due));
        }
        Ok(Some(number))
    }

    /// Posts until the stream ends: all messages that are due in it, even if late.
    pub fn run<P: Pick>(&mut self, mut stream: Stream, mut pick: P) -> io::Result<()> {
        while let Some(next) = stream.post_due(self, &mut pick)? {
            self.turn_by(next)?;
            self.others.clear();
        }
        Ok(())
    }

    /// Waits until all POSTs are answered and all expected messages have arrived, or nothing came for `patience`.
    pub fn await_all(&mut self, patience: Duration) -> io::Result<()> {
        let mut progress = (Instant::now(), self.ledger.delivered_count());
        loop {
            let busy = self.driver.publishers.as_ref().is_some_and(|pool| pool.busy() > 0);
            if !busy && self.ledger.missing() == 0 || progress.0.elapsed() > patience {
                return Ok(());
            }
            let delivered = self.ledger.delivered_count();
            if delivered != progress.1 {
                progress = (Instant::now(), delivered);
            }
            self.idle(LOOK)?;
        }
    }

    /// Waits until all POSTs are answered, or for `patience`.
    pub fn await_answers(&mut self, patience: Duration) -> io::Result<()> {
        let end = Instant::now() + patience;
        while self.driver.publishers.as_ref().is_some_and(|pool| pool.busy() > 0) && Instant::now() < end {
            self.turn_by(Instant::now() + Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// As [`Traffic::await_all`], then a little longer for those that must not come.
    pub fn drain(&mut self, patience: Duration) -> io::Result<()> {
        self.await_all(patience)?;
        self.idle(Duration::from_millis(300))
    }

    /// Measures from the next message on.
    pub fn open_window(&mut self) {
        let first = self.ledger.next();
        let (to_answer, to_frame, lag) = (Latency::default(), Latency::default(), Latency::default());
        let begin = Instant::now();
        let window = Window { first, end: u64::MAX, begin, to_answer, to_frame, lag, series: Series::default() };
        self.windows.push(window);
    }

    /// Later messages do not count; those under way still do when they come.
    pub fn close_window(&mut self) {
        if let Some(window) = self.windows.last_mut() {
            window.end = self.ledger.next();
        }
    }

    /// Enters the events that the driver collected.
    pub fn take_in(&mut self) {
        let now = Instant::now();
        for answer in self.driver.answers.drain(..) {
            let due = self.ledger.answered(answer.tag, answer.status);
            let window = self.windows.iter_mut().rev().find(|window| window.holds(answer.tag));
            if let Some((due, window)) = due.zip(window) {
                window.to_answer.record(now.saturating_duration_since(due));
            }
        }
        for happening in std::mem::take(&mut self.driver.happenings) {
            match happening {
                AgentEvent::Notified { agent, sequence, at, .. } => self.delivered(agent, sequence, at),
                AgentEvent::Ended { .. } => {
                    self.ended += 1;
                    self.others.push(happening);
                }
                other => self.others.push(other),
            }
        }
        let view = &self.driver.view;
        view.traffic(self.ledger.next(), self.ledger.delivered_count(), self.ended);
        let (since, latency) = &mut self.last_second;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            view.latency(latency.us(0.5), latency.us(0.99));
            latency.clear();
            *since = now;
        }
    }

    fn delivered(&mut self, agent: usize, sequence: Option<u64>, at: Instant) {
        let Some(number) = sequence.or_else(|| self.nameless.remove(&agent)) else {
            self.ledger.strange += 1;
            return;
        };
        let Some(due) = self.ledger.delivered(number) else { return };
        let took = at.saturating_duration_since(due);
        self.last_second.1.record(took);
        if let Some(window) = self.windows.iter_mut().rev().find(|window| window.holds(number)) {
            window.to_frame.record(took);
            window.series.record(due.saturating_duration_since(window.begin), took);
        }
    }

    /// The last stretch that was measured.
    pub fn window(&self) -> io::Result<&Window> {
        self.windows.last().ok_or_else(|| io::Error::other("nothing was measured"))
    }

    /// Adds the checks of every load: all answered 201, nothing lost, nothing twice, nothing that had expired.
    pub fn check(&self, report: &mut Report, what: &str, once: DuplicatePolicy) {
        let sums = self.ledger.sums();
        report.add(format!("{what}: answers by status"), format!("{:?}", self.ledger.statuses()), "");
        report.check(format!("{what}: POSTs not answered 201"), sums.refused, 0);
        report.check(format!("{what}: accepted and lost"), sums.lost, 0);
        if once == DuplicatePolicy::Never {
            // An agent that leaves with an ack under way gets its message again: at least once.
            report.add(format!("{what}: delivered twice"), sums.doubled, "");
        } else {
            report.check(format!("{what}: delivered twice"), sums.doubled, 0);
        }
        report.check(format!("{what}: delivered though expired or replaced"), sums.undue, 0);
        report.check(format!("{what}: notifications that nobody posted"), self.ledger.strange, 0);
    }
}

impl Window {
    fn holds(&self, number: u64) -> bool {
        (self.first..self.end).contains(&number)
    }
}

/// Visits all agents and keeps neighbours apart: a large prime step.
pub fn spread(number: u64, agents: usize) -> usize {
    (number.wrapping_mul(7_919) % agents.max(1) as u64) as usize
}
