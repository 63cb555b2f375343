//! `mixed`: the traffic mix of the peer's load tests (bench/README.md). Every user does something every 25 to
//! 30 s: of a hundred such tasks of a connected user 98 are a notification to itself, one subscribes to another
//! channel, one unsubscribes. Some users are not connected: they post to themselves (60 of 100 tasks), come to read
//! (30), come to subscribe (5) or to unsubscribe (5), and leave again. Tasks are due as an open loop over all users.
//!
//! Differences from the peer's tests: every user has a channel from the start, while theirs must subscribe first, so
//! that nine of ten users never send; turns come evenly, 27.5 s apart, and not 25 to 30 s at random; the crowd stays
//! level once it is there; no user unsubscribes at the end, when every message is accounted for; and a message to an
//! absent user lives for a day instead of a minute, so that all of them must come.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use protocol::webpush::identity::Identity;

use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Traffic, spread};
use crate::delivery_log::Expect;
use crate::fleet::{AgentEvent, Leave};
use crate::post::Signing;
use crate::report::Report;
use crate::result::names;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;
use crate::usage::UsageSample;

/// Size of the load.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// Seconds between two tasks of a user, on average.
    #[arg(long, value_name = "S", default_value_t = 27.5)]
    pub wait: f64,
    /// Seconds of it.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Number of a hundred users that are not connected but come now and then.
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub offline: usize,
    /// TTL of a POST to a connected user; to the others it is a day, so that all of them must come.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub ttl: u32,
    /// Sign POSTs with a VAPID token, as theirs does when it is given a key.
    #[arg(long)]
    pub vapid: bool,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
}

/// Action of a user when it is its turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Task {
    Send,
    Read,
    Subscribe,
    Unsubscribe,
}

/// Time that a visitor that came to read stays.
const VISIT: Duration = Duration::from_secs(1);
/// Time without any arrival after which missing messages count as lost.
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

struct Mixed<'a> {
    options: &'a Options,
    traffic: Traffic,
    done: BTreeMap<Task, u64>,
    /// Visitors: the task of each, and the time at which those with a finished task leave.
    visiting: Vec<Option<Task>>,
    leaving: VecDeque<(Instant, usize)>,
    /// POSTs whose time has come and that wait for a connection.
    owed: VecDeque<(Instant, usize)>,
    /// Agents that have subscribed or unsubscribed and have no answer yet.
    waiting: HashSet<usize>,
    asked: u64,
    granted: u64,
    refused: u64,
    failed: u64,
    /// Visitors that were still connected when their next turn came.
    busy: u64,
}

/// Runs the mix and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("mixed");
    let signing = if options.vapid { Signing::Once(Identity::generate()) } else { Signing::None };
    let mut mixed = Mixed {
        options,
        traffic: Traffic::new(target, ONE_CHANNEL, signing)?,
        done: BTreeMap::new(),
        visiting: vec![None; target.sessions],
        leaving: VecDeque::new(),
        owed: VecDeque::new(),
        waiting: HashSet::new(),
        asked: 0,
        granted: 0,
        refused: 0,
        failed: 0,
        busy: 0,
    };
    mixed.traffic.driver.view.stage("ramp", target.sessions);
    let climb = target.ramp.climb(&mut mixed.traffic, 0..target.sessions)?;
    climb.show(&mut report, "ramp", target.sessions);
    mixed.traffic.driver.open_publishers(target, options.in_flight)?;
    let visitors = (0..target.sessions).filter(|agent| mixed.is_visitor(*agent));
    mixed.traffic.driver.agents.disconnect(visitors.collect::<Vec<_>>(), Leave::Fin);
    mixed.traffic.driver.view.stage("mixed", target.sessions);
    let before = UsageSample::read(target)?;
    mixed.traffic.open_window();
    mixed.go()?;
    mixed.traffic.close_window();
    let spent = before.spent(target)?;
    mixed.everybody_comes()?;
    mixed.show(&mut report)?;
    let tasks = mixed.done.values().sum();
    spent.show(&mut report, "task of the mix", tasks);
    report.check("sessions in the end", mixed.traffic.driver.agents.connected() as u64, target.sessions as u64);
    report.check("UAIDs changed", mixed.traffic.driver.agents.renamed_count() as u64, 0);
    mixed.traffic.check(&mut report, "mixed", DuplicatePolicy::Never);
    mixed.traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

impl Mixed<'_> {
    fn is_visitor(&self, agent: usize) -> bool {
        agent % 100 < self.options.offline
    }

    fn go(&mut self) -> io::Result<()> {
        let (begin, users) = (Instant::now(), self.options.target.sessions);
        let pace = OpenLoopSchedule::spread(begin, users, Duration::from_secs_f64(self.options.wait.max(0.001)));
        let end = begin + Duration::from_secs_f64(self.options.seconds.max(0.0));
        let mut begun = 0;
        while Instant::now() < end || !self.owed.is_empty() && Instant::now() < end + VISIT * 10 {
            let now = Instant::now();
            while begun < pace.owed(now.min(end)) {
                // Every user once in each stretch of `wait`.
                self.begin_task(spread(begun, users), begun, pace.due(begun));
                begun += 1;
            }
            self.post_owed()?;
            while let Some((_, agent)) = self.leaving.pop_front_if(|(at, _)| *at <= now) {
                // An agent that leaves with a request under way would never receive the answer.
                if self.waiting.contains(&agent) {
                    self.leaving.push_back((now + VISIT, agent));
                    continue;
                }
                self.visiting[agent] = None;
                self.traffic.driver.agents.disconnect([agent], Leave::Fin);
            }
            let next = pace.due(begun).min(now + Duration::from_millis(20));
            self.traffic.turn_by(next)?;
            self.look();
        }
        Ok(())
    }

    fn begin_task(&mut self, agent: usize, number: u64, due: Instant) {
        let visitor = self.is_visitor(agent);
        let task = task_of(number, visitor);
        *self.done.entry(task).or_default() += 1;
        match task {
            Task::Send => self.owed.push_back((due, agent)),
            _ if !visitor => self.ask(agent, task),
            _ if self.visiting[agent].is_some() => self.busy += 1,
            _ => {
                self.visiting[agent] = Some(task);
                self.traffic.driver.agents.launch([agent]);
            }
        }
    }

    /// The first channel is the one that is posted to and stays.
    fn ask(&mut self, agent: usize, task: Task) {
        let agents = &mut self.traffic.driver.agents;
        let asked = match task {
            Task::Subscribe => agents.register(agent),
            Task::Unsubscribe if agents.endpoint(agent, 1).is_some() => agents.unregister(agent, 1),
            _ => false,
        };
        if asked {
            self.asked += 1;
            self.waiting.insert(agent);
        }
    }

    fn post_owed(&mut self) -> io::Result<()> {
        while let Some((due, agent)) = self.owed.front().copied().filter(|_| self.traffic.can_post()) {
            self.owed.pop_front();
            // 1024 to 4094 bytes on the wire of the peer's test; base64url of a body is a third longer in the frame.
            let body_bytes = 1_024 + (self.traffic.ledger.next() as usize * 158) % 3_071;
            let ttl = if self.is_visitor(agent) { 86_400 } else { self.options.ttl };
            self.traffic.post(
                agent,
                due,
                &MessageSpec { ttl, topic: None, urgency: None, body_bytes, expect: Expect::Once },
            )?;
        }
        Ok(())
    }

    fn look(&mut self) {
        for happening in std::mem::take(&mut self.traffic.others) {
            match happening {
                AgentEvent::Ready { agent, .. } => {
                    if let Some(task) = self.visiting[agent] {
                        self.ask(agent, task);
                        self.leaving.push_back((Instant::now() + VISIT, agent));
                    }
                }
                AgentEvent::Registered { agent, status } | AgentEvent::Unregistered { agent, status } => {
                    self.waiting.remove(&agent);
                    self.granted += u64::from(status == 200);
                    self.refused += u64::from(status != 200);
                }
                AgentEvent::Ended { agent, .. } => {
                    self.failed += 1;
                    self.traffic.driver.agents.launch([agent]);
                }
                _ => {}
            }
        }
    }

    /// Connects all users, so that every message can be accounted for.
    fn everybody_comes(&mut self) -> io::Result<()> {
        let all = self.options.target.sessions;
        self.traffic.driver.view.stage("all come", all);
        self.traffic.await_answers(VISIT * 10)?;
        self.leaving.clear();
        self.visiting.fill(None);
        let absent: Vec<usize> = (0..all).filter(|agent| !self.traffic.driver.agents.is_connected(*agent)).collect();
        self.traffic.driver.agents.launch(absent);
        let end = Instant::now() + Duration::from_secs(60);
        let here = |mixed: &Self| mixed.traffic.driver.agents.connected() == all && mixed.waiting.is_empty();
        while !here(self) && Instant::now() < end {
            self.traffic.turn_by(Instant::now() + Duration::from_millis(10))?;
            self.look();
        }
        self.traffic.drain(DRAIN_PATIENCE)
    }

    fn show(&self, report: &mut Report) -> io::Result<()> {
        for (task, count) in &self.done {
            report.add(format!("tasks: {task:?}"), *count, "");
        }
        report.add("turns of visitors who were still there", self.busy, "");
        report.check("subscriptions and unsubscriptions not answered", self.asked - self.granted - self.refused, 0);
        report.check("subscriptions and unsubscriptions refused", self.refused, 0);
        report.check("sessions lost on the way", self.failed, 0);
        let window = self.traffic.window()?;
        window.to_answer.show(report, names::TO_ANSWER);
        window.to_frame.show(report, "POST to frame, stored ones wait for their visit");
        Ok(())
    }
}

/// Selects a task by the weights of the peer's tests.
fn task_of(number: u64, visitor: bool) -> Task {
    // Not in step with the order of users.
    let lot = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    match (visitor, lot % 100) {
        (false, 0) => Task::Subscribe,
        (false, 1) => Task::Unsubscribe,
        (false, _) => Task::Send,
        (true, 0..60) => Task::Send,
        (true, 60..90) => Task::Read,
        (true, 90..95) => Task::Subscribe,
        (true, _) => Task::Unsubscribe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lots_have_the_weights_of_the_mix() {
        let share = |visitor, wanted| {
            let hits = (0..100_000).filter(|number| task_of(*number, visitor) == wanted).count();
            hits as f64 / 1_000.0
        };
        for (visitor, task, percent) in [
            (false, Task::Send, 98.0),
            (false, Task::Subscribe, 1.0),
            (false, Task::Unsubscribe, 1.0),
            (true, Task::Send, 60.0),
            (true, Task::Read, 30.0),
            (true, Task::Subscribe, 5.0),
        ] {
            assert!((share(visitor, task) - percent).abs() < 0.5, "{task:?}: {}", share(visitor, task));
        }
    }
}
