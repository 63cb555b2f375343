//! `storm`: all users come back at once. Each session registers and receives one notification; all leave and return
//! with their UAIDs, together or within T seconds; stored messages wait for some; and then as many strangers with
//! invented UAIDs. Checked: no user lost, no message lost, none twice after its ack. Shown: the duration, and the
//! server's own counters. With `--kill` or `--restart` the server itself goes instead: see `restart`.

use std::io;
use std::time::{Duration, Instant};

use super::ramp::{self, RampResult};
use super::restart;
use super::statements::{COUNTERS_LAG, settled};
use super::traffic::{MessageSpec, ONE_CHANNEL, Stream, Traffic};
use crate::delivery_log::Expect;
use crate::fleet::{Leave, Plan};
use crate::host::{CpuTime, Memory};
use crate::metrics::Metrics;
use crate::post::Signing;
use crate::report::Report;
use crate::result::names::{self, CPU_PER};
use crate::statements::{self, Statements};
use crate::target::Target;
use crate::usage::UsageSample;

/// Size of the storm.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// App server connections.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
    /// Seconds over which all return, evenly, as an open loop; all in the same instant when absent.
    #[arg(long, value_name = "S")]
    pub within: Option<f64>,
    /// Number of a hundred users that find a stored message when they return.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    pub stored: usize,
    /// Leave out the strangers with invented UAIDs.
    #[arg(long)]
    pub no_strangers: bool,
    /// Seconds without progress after which a step is given up.
    #[arg(long, value_name = "S", default_value_t = 120)]
    pub patience: u64,
    /// Statements to the database behind a shared store that each shard may have under way at once: its
    /// `store.scylla.in_flight`.
    #[arg(long, value_name = "N")]
    pub statements_max: Option<u32>,
    /// The server goes and comes again.
    #[command(flatten)]
    pub restart: restart::Restart,
}

/// Longest wait for a counter on a busy host.
const COUNTERS_PATIENCE: Duration = Duration::from_secs(10);

/// A run, step by step.
struct Storm<'a> {
    options: &'a Options,
    /// The server that is read: another process after a kill.
    target: Target,
    traffic: Traffic,
    report: Report,
    before: Option<UsageSample>,
    /// Sockets that arrived on their owner in the last step.
    moved: f64,
    /// The server that took the place of the first; it lives as long as the storm.
    serving: Option<restart::Serving>,
}

/// Runs all steps and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let mut storm = Storm {
        options,
        target: options.target.clone(),
        traffic: Traffic::new(&options.target, ONE_CHANNEL, Signing::None)?,
        report: options.target.report("storm"),
        before: None,
        moved: 0.0,
        serving: None,
    };
    storm.report.option("within", options.within);
    storm.report.option("stored", options.stored);
    storm.first_visit()?;
    if options.restart.wanted() {
        storm.server_goes()?;
    } else {
        storm.everybody_returns()?;
        storm.stored_for_some()?;
    }
    storm.nothing_comes_twice()?;
    if !options.no_strangers && !options.restart.wanted() {
        storm.invented()?;
    }
    storm.statements_at_once()?;
    storm.traffic.driver.view.curves(&mut storm.report);
    storm.report.finish(options.target.json.as_deref())
}

impl Storm<'_> {
    /// Keeps a server running until the storm is over, and reads it instead of the one that was killed.
    fn keep(&mut self, killed: u32, serving: restart::Serving) {
        self.target.pids.iter_mut().filter(|pid| **pid == killed).for_each(|pid| *pid = serving.pid());
        self.traffic.driver.view.watch(self.target.pids.clone());
        self.serving = Some(serving);
    }

    /// The process that took the server's place, when the server is read at all.
    fn replacement(&self) -> Option<u32> {
        self.serving.as_ref().map(restart::Serving::pid).filter(|pid| self.target.pids.contains(pid))
    }

    fn count(&self) -> u64 {
        self.options.target.sessions as u64
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.options.patience)
    }

    fn first_visit(&mut self) -> io::Result<()> {
        self.begin("first visit")?;
        let sessions = self.options.target.sessions;
        let climb = self.options.target.ramp.climb(&mut self.traffic, 0..sessions)?;
        climb.show(&mut self.report, "first visit", sessions);
        self.report.check("sessions that registered", self.traffic.driver.agents.connected() as u64, self.count());
        self.traffic.driver.open_publishers(&self.options.target, self.options.in_flight)?;
        self.post_to_each(100, "first visit")?;
        self.end("first visit")
    }

    fn everybody_returns(&mut self) -> io::Result<()> {
        self.leave()?;
        self.traffic.driver.agents.set_plan(Plan { channels: 0, ..ONE_CHANNEL });
        self.begin("return")?;
        let climb = self.connect_all()?;
        climb.show(&mut self.report, "return", self.options.target.sessions);
        if climb.took.count() > 0 {
            climb.took.show(&mut self.report, names::TO_HELLO);
        }
        let cpu = self.spent_each()?;
        if let Some(us) = cpu {
            self.report.add(names::CPU_RETURN, us, "us");
        }
        self.check_served("return");
        self.end("return")?;
        self.check_moves()?;
        self.post_to_each(100, "return")
    }

    /// The step of the storm in which the server goes.
    fn server_goes(&mut self) -> io::Result<()> {
        let options = &self.options.restart;
        self.traffic.idle(Duration::from_secs(1))?;
        let away = self.chosen(restart::AWAY_PERCENT.min(self.options.stored));
        self.traffic.driver.agents.disconnect(away.iter().copied(), Leave::Fin);
        self.traffic.idle(Duration::from_secs(1))?;
        self.store_for(restart::AWAY_PERCENT.min(self.options.stored))?;
        self.traffic.driver.agents.set_plan(Plan { channels: 0, ..ONE_CHANNEL });
        self.traffic.driver.agents.set_in_flight_max(options.at_once);
        self.traffic.driver.view.stage("the server goes", self.options.target.sessions);
        let (refused, created) = (self.traffic.ledger.sums().refused, self.traffic.ledger.created());
        restart::doomed(&mut self.traffic, options, self.options.target.sessions)?;
        let went = Instant::now();
        let mut place = restart::Place::leave(options)?;
        let patience = self.patience();
        let back = restart::come_back(&mut self.traffic, &mut place, &away, went, patience)?;
        if let Some((killed, serving)) = options.kill.zip(place.serving()) {
            self.keep(killed, serving);
        }
        back.show(&mut self.report, options);
        self.show_used();
        self.traffic.await_all(patience)?;
        let sums = self.traffic.ledger.sums();
        self.report.add("messages accepted while the server went", self.traffic.ledger.created() - created, "");
        self.report.add("POSTs that the server took with it", sums.refused - refused, "");
        self.report.check("restart: accepted and lost", sums.lost, 0);
        self.check_served("restart");
        Ok(())
    }

    /// Shows the resource use of the process that took the server's place since it began, and its memory with all back.
    /// One that is gone again is no error here: the checks report missing messages.
    fn show_used(&mut self) {
        let Some(pid) = self.replacement() else { return };
        let (Ok(cpu), Ok(memory)) = (CpuTime::read(pid), Memory::read(pid)) else { return };
        let sessions = self.traffic.driver.agents.connected().max(1) as f64;
        let each = cpu.run_ns as f64 / 1e3 / sessions;
        self.report.add(format!("restart: {CPU_PER}session, its start counted in"), each, "us");
        self.report.add("restart: user memory with all back", memory.anonymous(), "B");
        self.report.add(
            "restart: user memory per session, the rest counted in",
            memory.anonymous() as f64 / sessions,
            "B",
        );
    }

    fn check_moves(&mut self) -> io::Result<()> {
        let Some(admin) = self.options.target.admin else { return Ok(()) };
        let shards = Metrics::read(admin)?.named("murre_sessions").count().max(1) as f64;
        let expected = self.count() as f64 * (shards - 1.0) / shards;
        let off = |moved: f64| (moved - expected).abs() > expected / 10.0;
        // A busy host makes a shard late with its counters.
        let deadline = Instant::now() + COUNTERS_PATIENCE;
        while off(self.moved) && Instant::now() < deadline {
            self.traffic.idle(Duration::from_millis(500))?;
            let Some(before) = &self.before else { break };
            self.moved = before.spent(&self.target)?.metrics.map_or(self.moved, |change| change.sum("moves_in"));
        }
        self.report.add("return: sockets moved to their owner", self.moved, "");
        let off = off(self.moved);
        self.report.check("return: moves more than 10 % off (shards - 1) / shards", u64::from(off), 0);
        Ok(())
    }

    fn stored_for_some(&mut self) -> io::Result<()> {
        self.leave()?;
        self.begin("store")?;
        self.store_for(self.options.stored)?;
        self.end("store")?;
        self.begin("return to stored messages")?;
        let climb = self.connect_all()?;
        climb.show(&mut self.report, "stored", self.options.target.sessions);
        self.check_served("stored");
        self.traffic.await_all(self.patience())?;
        self.report.check("stored: accepted and lost", self.traffic.ledger.missing(), 0);
        self.end("stored")
    }

    /// Posts one message to each of `percent` in a hundred users, which are away; waits for the answers only.
    fn store_for(&mut self, percent: usize) -> io::Result<()> {
        let begin = Instant::now();
        let chosen = self.chosen(percent);
        let created = self.traffic.ledger.created();
        self.post(&chosen)?;
        self.report.add("one stored message for each of them", begin.elapsed().as_secs_f64(), "s");
        self.report.check("stored: POSTs answered 201", self.traffic.ledger.created() - created, chosen.len() as u64);
        Ok(())
    }

    /// `percent` in a hundred of the users, evenly spread.
    fn chosen(&self, percent: usize) -> Vec<usize> {
        (0..self.options.target.sessions).filter(|agent| agent % 100 < percent).collect()
    }

    fn nothing_comes_twice(&mut self) -> io::Result<()> {
        let known = self.traffic.ledger.delivered_count();
        let doubled = self.traffic.ledger.sums().doubled;
        self.leave()?;
        self.traffic.driver.view.stage("last return", self.options.target.sessions);
        self.options.target.ramp.climb(&mut self.traffic, 0..self.options.target.sessions)?;
        self.check_served("last return");
        self.traffic.idle(Duration::from_secs(2))?;
        self.report.check("last return: new notifications", self.traffic.ledger.delivered_count() - known, 0);
        let sums = self.traffic.ledger.sums();
        self.report.check("last return: duplicated after ack", sums.doubled - doubled, 0);
        self.report.check("all steps: accepted and lost", sums.lost, 0);
        if self.options.restart.wanted() {
            // A kill right after an ack may lose the deletion of a stored copy, never the message: at least once.
            self.report.add("all steps: delivered twice", sums.doubled, "");
        } else {
            self.report.check("all steps: delivered twice", sums.doubled, 0);
        }
        Ok(())
    }

    fn invented(&mut self) -> io::Result<()> {
        self.leave()?;
        for agent in 0..self.options.target.sessions {
            self.traffic.driver.agents.set_uaid(agent, &uuid::Uuid::new_v4().simple().to_string());
        }
        self.begin("invented UAIDs")?;
        let climb = self.connect_all()?;
        climb.show(&mut self.report, "hellos with invented UAIDs", self.options.target.sessions);
        let renamed = self.renamed();
        self.report.check("invented: sessions", self.traffic.driver.agents.connected() as u64, self.count());
        self.report.check("invented: given another UAID", renamed, self.count());
        self.end("invented")?;
        if let Some(admin) = self.options.target.admin {
            let deadline = Instant::now() + COUNTERS_PATIENCE;
            let held =
                |metrics: &Metrics| -> Vec<f64> { metrics.named("murre_sessions").map(|(_, value)| value).collect() };
            let mut metrics = Metrics::read(admin)?;
            while held(&metrics).iter().sum::<f64>() as u64 != self.count() && Instant::now() < deadline {
                self.traffic.idle(Duration::from_millis(500))?;
                metrics = Metrics::read(admin)?;
            }
            self.report.shards(&metrics);
            let held = held(&metrics);
            let mean = held.iter().sum::<f64>() / held.len().max(1) as f64;
            self.report.add("invented: sessions of each shard", format!("{held:?}"), "");
            let uneven = held.iter().filter(|&&sessions| (sessions - mean).abs() > mean / 5.0).count();
            self.report.check("invented: shards more than 20 % off the mean", uneven as u64, 0);
        }
        Ok(())
    }

    fn connect_all(&mut self) -> io::Result<RampResult> {
        let span = Duration::from_secs_f64(self.options.within.unwrap_or(0.0));
        ramp::arrive(&mut self.traffic, 0..self.options.target.sessions, span)
    }

    fn renamed(&self) -> u64 {
        self.traffic.driver.agents.renamed_count() as u64
    }

    fn check_served(&mut self, step: &str) {
        let (connected, renamed) = (self.traffic.driver.agents.connected() as u64, self.renamed());
        self.report.check(format!("{step}: sessions"), connected, self.count());
        self.report.check(format!("{step}: UAIDs lost"), renamed, 0);
    }

    /// POSTs once to each of `percent` in a hundred users, which are connected, and waits for all of it.
    fn post_to_each(&mut self, percent: usize, step: &str) -> io::Result<()> {
        let chosen = self.chosen(percent);
        let (created, delivered) = (self.traffic.ledger.created(), self.traffic.ledger.delivered_count());
        self.post(&chosen)?;
        self.traffic.await_all(self.patience())?;
        let ledger = &self.traffic.ledger;
        let (created, delivered) = (ledger.created() - created, ledger.delivered_count() - delivered);
        self.report.check(format!("{step}: POSTs answered 201"), created, chosen.len() as u64);
        self.report.check(format!("{step}: notifications received"), delivered, chosen.len() as u64);
        Ok(())
    }

    fn post(&mut self, chosen: &[usize]) -> io::Result<()> {
        let style = MessageSpec { ttl: 3_600, topic: None, urgency: None, body_bytes: 200, expect: Expect::Once };
        let mut agents = chosen.iter();
        let stream = Stream::counting(None, chosen.len() as u64);
        self.traffic.run(stream, |_, _| agents.next().map(|agent| (*agent, style)))?;
        self.traffic.await_answers(self.patience())
    }

    /// Ends all sessions, after the server has surely read their frames.
    fn leave(&mut self) -> io::Result<()> {
        self.traffic.idle(Duration::from_secs(1))?;
        self.traffic.driver.agents.disconnect_all();
        self.traffic.idle(Duration::from_secs(1))
    }

    fn begin(&mut self, step: &str) -> io::Result<()> {
        self.traffic.driver.view.stage(step, self.options.target.sessions);
        self.before = Some(UsageSample::read(&self.target)?);
        Ok(())
    }

    /// Server CPU for each session since the step began.
    fn spent_each(&self) -> io::Result<Option<f64>> {
        let Some(before) = &self.before else { return Ok(None) };
        Ok(before.spent(&self.target)?.us_each(self.count()))
    }

    fn end(&mut self, step: &str) -> io::Result<()> {
        if let Some(used) = self.spent_each()? {
            self.report.add(format!("{step}: {}session", CPU_PER), used, "us");
        }
        let Some((admin, before)) = self.options.target.admin.zip(self.before.as_ref()) else { return Ok(()) };
        // The server publishes its counters about once a second.
        self.traffic.idle(COUNTERS_LAG)?;
        if Statements::are_counted(&Metrics::read(admin)?) {
            let patience = Duration::from_secs(self.options.patience);
            let read =
                || Ok(before.spent(&self.target)?.metrics.map_or_else(Statements::default, |m| Statements::of(&m)));
            let sent = settled(&mut self.traffic, patience, |_| true, read)?;
            sent.show(&mut self.report, &format!("session, {step}"), self.options.target.sessions as u64);
        }
        let Some(change) = before.spent(&self.target)?.metrics else { return Ok(()) };
        for (name, value) in change.matching("moves") {
            self.report.add(format!("{step}: {name}"), value, "");
        }
        self.moved = change.sum("moves_in");
        Ok(())
    }

    /// Reports the most statements under way at once, and checks them against the configured maximum if there is one.
    fn statements_at_once(&mut self) -> io::Result<()> {
        let Some(admin) = self.options.target.admin else { return Ok(()) };
        let metrics = Metrics::read(admin)?;
        let Some(most) = statements::most_at_once(&metrics) else { return Ok(()) };
        let what = "statements under way at once, the most";
        match self.options.statements_max {
            Some(each) => {
                let shards = metrics.named("murre_sessions").count() as f64;
                self.report.check_at_most(what, most, f64::from(each) * shards, "");
            }
            None => self.report.add(what, most, ""),
        }
        Ok(())
    }
}
