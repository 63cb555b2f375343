//! `churn`: sessions leave and return while the others go on being notified. Some never return; as many newcomers take
//! their place. In the end all users come once more, so that every message can be accounted for.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Stream, Traffic, spread};
use crate::delivery_log::Expect;
use crate::fleet::{AgentEvent, Leave};
use crate::latency::Latency;
use crate::memory_sample::{self, MemorySample};
use crate::post::Signing;
use crate::result::names;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;
use crate::usage::UsageSample;

/// Rate of departures and arrivals.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// Number of a hundred sessions that leave in a minute.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    pub percent: f64,
    /// Number of a hundred departures that stay away for good, and a new user comes instead.
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    pub new: u64,
    /// Seconds that the others are away.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub away: f64,
    /// Seconds of it.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub seconds: f64,
    /// Notifications per second meanwhile, to present and absent users.
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    pub rate: f64,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
    /// Seconds without any arrival after which missing messages count as lost.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
}

struct Churn {
    /// Agents in the order in which they leave; those that have just arrived are last.
    present: VecDeque<usize>,
    away: VecDeque<(Instant, usize)>,
    gone: Vec<usize>,
    newcomer: usize,
    left: u64,
    launched: Vec<Option<Instant>>,
    took: Latency,
    failed: u64,
}

/// Churns and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let known = options.target.sessions;
    let leaves = known as f64 * options.percent / 100.0 / 60.0;
    let expected = (leaves * options.seconds).ceil() as usize;
    let newcomers = expected * options.new.min(100) as usize / 100 + 1;
    // Newcomers are agents that have not come yet.
    let target = Target { sessions: known + newcomers, ..options.target.clone() };
    let mut report = options.target.report("churn");
    let mut traffic = Traffic::new(&target, ONE_CHANNEL, Signing::None)?;
    traffic.driver.view.stage("ramp", known);
    options.target.ramp.climb(&mut traffic, 0..known)?.show(&mut report, "ramp", known);
    traffic.driver.open_publishers(&target, options.in_flight)?;
    traffic.driver.view.stage("churn", known);
    let mut readings = vec![MemorySample::take(&target, known)?];
    let mut churn = Churn::new(known, known + newcomers);
    let before = UsageSample::read(&target)?;
    traffic.open_window();
    churn.go(&mut traffic, options, leaves)?;
    traffic.close_window();
    let spent = before.spent(&target)?;
    report.add("sessions that left", churn.left, "");
    report.add("of them for good", churn.gone.len() as u64, "");
    spent.show(&mut report, "leave and return, notifications in it", churn.left);
    churn.took.show(&mut report, "return due to ready");
    traffic.window()?.to_frame.show(&mut report, names::TO_FRAME);
    churn.everybody(&mut traffic, Duration::from_secs(options.patience))?;
    readings.push(MemorySample::take(&target, known)?);
    memory_sample::show_growth(&mut report, &readings[0], &readings[1]);
    let there = churn.newcomer as u64;
    report.check("sessions in the end", traffic.driver.agents.connected() as u64, there);
    report.check("returns that failed", churn.failed, 0);
    let renamed = traffic.driver.agents.renamed_count();
    report.check("UAIDs changed", renamed as u64, 0);
    traffic.check(&mut report, "churn", DuplicatePolicy::Never);
    traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

impl Churn {
    fn new(known: usize, agents: usize) -> Churn {
        Churn {
            // Not in the order in which they came.
            present: (0..known as u64).map(|number| spread(number, known)).collect(),
            away: VecDeque::new(),
            gone: Vec::new(),
            newcomer: known,
            left: 0,
            launched: vec![None; agents],
            took: Latency::default(),
            failed: 0,
        }
    }

    fn go(&mut self, traffic: &mut Traffic, options: &Options, leaves: f64) -> io::Result<()> {
        let (begin, known) = (Instant::now(), options.target.sessions);
        let pace = OpenLoopSchedule::new(begin, leaves);
        let style = MessageSpec { ttl: 86_400, topic: None, urgency: None, body_bytes: 200, expect: Expect::Once };
        let mut stream = Stream::lasting(Some(options.rate), Duration::from_secs_f64(options.seconds));
        let mut pick = |_: &crate::delivery_log::DeliveryLog, number: u64| Some((spread(number, known), style));
        // A departure that is due exactly at the end is not part of it.
        let last = begin + Duration::from_secs_f64(options.seconds) - Duration::from_nanos(1);
        while let Some(next) = stream.post_due(traffic, &mut pick)? {
            let now = Instant::now();
            while self.left < pace.owed(now.min(last)) && self.someone_leaves(traffic, options, pace.due(self.left)) {}
            while let Some((due, agent)) = self.away.pop_front_if(|(due, _)| *due <= now) {
                self.comes(traffic, agent, due);
            }
            let next = self.away.front().map_or(next, |(due, _)| next.min(*due)).min(pace.due(self.left).max(now));
            traffic.turn_by(next)?;
            self.look(traffic);
        }
        // As with messages: all departures that were due, even if late.
        while self.left < pace.owed(last) && self.someone_leaves(traffic, options, pace.due(self.left)) {}
        Ok(())
    }

    /// Returns false when no agent is connected.
    fn someone_leaves(&mut self, traffic: &mut Traffic, options: &Options, due: Instant) -> bool {
        let Some(agent) = self.present.pop_front() else { return false };
        traffic.driver.agents.disconnect([agent], Leave::Fin);
        self.left += 1;
        let for_good = self.left % 100 < options.new && self.newcomer < self.launched.len();
        let agent = if for_good {
            self.gone.push(agent);
            self.newcomer += 1;
            self.newcomer - 1
        } else {
            agent
        };
        self.away.push_back((due + Duration::from_secs_f64(options.away.max(0.0)), agent));
        true
    }

    fn comes(&mut self, traffic: &mut Traffic, agent: usize, due: Instant) {
        self.launched[agent] = Some(due);
        traffic.driver.agents.launch([agent]);
    }

    fn look(&mut self, traffic: &mut Traffic) {
        for happening in std::mem::take(&mut traffic.others) {
            match happening {
                AgentEvent::Ready { agent, .. } => {
                    if let Some(due) = self.launched[agent].take() {
                        self.took.record(Instant::now().saturating_duration_since(due));
                    }
                    self.present.push_back(agent);
                }
                AgentEvent::Ended { agent, .. } => {
                    self.failed += 1;
                    self.launched[agent] = None;
                    self.away.push_back((Instant::now(), agent));
                }
                _ => {}
            }
        }
    }

    /// Connects all absent agents, those that stayed away for good too; they take their stored messages.
    fn everybody(&mut self, traffic: &mut Traffic, patience: Duration) -> io::Result<()> {
        traffic.driver.view.stage("all come back", self.newcomer);
        let back: Vec<usize> = self.away.drain(..).map(|(_, agent)| agent).chain(self.gone.drain(..)).collect();
        traffic.driver.agents.launch(back);
        let end = Instant::now() + Duration::from_secs(60);
        while traffic.driver.agents.connected() < self.newcomer && Instant::now() < end {
            traffic.turn_by(Instant::now() + Duration::from_millis(10))?;
            self.look(traffic);
            let again: Vec<usize> = self.away.drain(..).map(|(_, agent)| agent).collect();
            traffic.driver.agents.launch(again);
        }
        traffic.drain(patience)
    }
}
