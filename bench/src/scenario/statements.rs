//! `statements`: the cost of each operation to a shared store, counted in statements by the running server itself. One
//! kind of operation after the other, with a pause until the counters have been seen; the table at the end is the base
//! on which docs/CLUSTER.md sizes a database. The checks are its rows that are always the same.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::traffic::{MessageSpec, ONE_CHANNEL, Stream, Traffic};
use crate::delivery_log::Expect;
use crate::fleet::{AgentEvent, Plan};
use crate::metrics::Metrics;
use crate::post::Signing;
use crate::report::Report;
use crate::statements::Statements;
use crate::target::Target;

/// Number of operations of each kind.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size; `--admin` is needed.
    #[command(flatten)]
    pub target: Target,
    /// App server connections. With more than one, messages to one user that arrive together share reads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub in_flight: usize,
    /// Messages that wait for each user, a page at most.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10))]
    pub messages: u64,
    /// Seconds that others wait before their users come and ack: low water settles those that wait for more than a
    /// minute. None wait when 0.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub age: u64,
    /// Seconds without progress after which a step is given up.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
}

/// A node remembers users in a fixed number of places for each shard, and of two that share one the other is checked
/// again: of this many operations one may cost a statement more. None of those that cost nothing.
const SHARED_PLACES: u64 = 4;
/// Longer than a counter takes to be seen.
pub(super) const COUNTERS_LAG: Duration = Duration::from_millis(2_500);

/// Runs one step after the other.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let admin =
        target.admin.ok_or_else(|| io::Error::other("statements are read from murre's metrics: --admin ADDR"))?;
    if !Statements::are_counted(&Metrics::read(admin)?) {
        return Err(io::Error::other("the server counts no statements: its store is not a shared one"));
    }
    let mut report = target.report("statements");
    report.option("messages", options.messages);
    report.option("age", options.age);
    let traffic = Traffic::new(target, Plan { channels: 0, ..ONE_CHANNEL }, Signing::None)?;
    let mut count = Count { options, admin, traffic, report, rows: Vec::new() };
    count.traffic.driver.open_publishers(target, options.in_flight)?;
    count.traffic.idle(COUNTERS_LAG)?;
    count.lives()?;
    count.stored()?;
    count.show()
}

/// A run, step by step.
struct Count<'a> {
    options: &'a Options,
    admin: SocketAddr,
    traffic: Traffic,
    report: Report,
    rows: Vec<Row>,
}

/// One line of the table.
struct Row {
    what: &'static str,
    count: u64,
    sent: Statements,
}

impl Count<'_> {
    /// Operations that cost the same each time.
    fn lives(&mut self) -> io::Result<()> {
        let users = self.users();
        self.step("connect of a new user agent", users, Some(0), Count::connect)?;
        self.step("register", users, Some(2), Count::register)?;
        self.step("direct to a session of the node itself", self.messages(), Some(0), Count::post_to_those_there)?;
        self.step("end of a session", users, Some(1), Count::leave)?;
        self.step("connect of a known user", users, Some(4), Count::connect)?;
        self.leave_for_good()
    }

    /// Operations on messages that wait. A connect without acks and one with them differ by the acks.
    fn stored(&mut self) -> io::Result<()> {
        let (users, messages) = (self.users(), self.messages());
        self.step("POST to an absent user", messages, Some(3), Count::post)?;
        self.acks(false);
        let unacked = self.step("connect to messages that wait", users, None, Count::connect_and_receive)?;
        self.leave_for_good()?;
        self.acks(true);
        let acked = self.step("connect to them, and their acks", users, None, Count::connect_and_receive)?;
        let each = acked.saturating_sub(unacked) as f64 / messages as f64;
        self.report.add("statements per ack of a message", each, "");
        self.step("end of a session after acks", users, Some(1), Count::leave)?;
        if self.options.age > 0 {
            self.post()?;
            self.traffic.idle(Duration::from_secs(self.options.age))?;
            let acked = self.step("connect to old messages, and acks", users, None, Count::connect_and_receive)?;
            let each = acked.saturating_sub(unacked) as f64 / messages as f64;
            self.report.add("statements per ack of an old message", each, "");
            self.leave_for_good()?;
        }
        self.step("connect of a known user, all acked", users, Some(4), Count::connect).map(drop)
    }

    /// Does something `count` times and counts its statements until they are over and seen; each must have cost
    /// `wanted` when that is known. Returns the total number.
    fn step(
        &mut self,
        what: &'static str,
        count: u64,
        wanted: Option<u64>,
        act: fn(&mut Self) -> io::Result<()>,
    ) -> io::Result<u64> {
        self.traffic.driver.view.stage(what, self.options.target.sessions);
        let before = Metrics::read(self.admin)?;
        act(self)?;
        let sent = self.settled(&before, wanted.map(|each| each * count))?;
        let sum = sent.sum();
        sent.show(&mut self.report, what, count);
        if let Some(each) = wanted {
            let (least, most) = (each * count, each * count + each.min(1) * count / SHARED_PLACES);
            self.report.check(format!("{what}: statements of {count}"), sum, sum.clamp(least, most));
        }
        self.rows.push(Row { what, count, sent });
        Ok(sum)
    }

    /// Statements sent since `before`, at least `least` where that is known.
    fn settled(&mut self, before: &Metrics, least: Option<u64>) -> io::Result<Statements> {
        let (patience, admin) = (self.patience(), self.admin);
        let enough = |sent: &Statements| least.is_none_or(|least| sent.sum() >= least);
        settled(&mut self.traffic, patience, enough, || Ok(Statements::of(&Metrics::read(admin)?.since(before))))
    }

    /// Ends all sessions; the cost of that is not part of the next step.
    fn leave_for_good(&mut self) -> io::Result<()> {
        let before = Metrics::read(self.admin)?;
        self.leave()?;
        self.settled(&before, None).map(drop)
    }

    fn users(&self) -> u64 {
        self.options.target.sessions as u64
    }

    fn messages(&self) -> u64 {
        self.users() * self.options.messages
    }

    /// Sets whether agents that connect from now on ack.
    fn acks(&mut self, ack: bool) {
        self.traffic.driver.agents.set_plan(Plan { channels: 0, ack, ..ONE_CHANNEL });
    }

    fn connect(&mut self) -> io::Result<()> {
        let sessions = self.options.target.sessions;
        let climb = self.options.target.ramp.climb(&mut self.traffic, 0..sessions)?;
        self.must(climb.failed == 0, || format!("{} sessions could not connect", climb.failed))
    }

    fn leave(&mut self) -> io::Result<()> {
        self.traffic.driver.agents.disconnect_all();
        Ok(())
    }

    /// Registers one channel of each, one after the other.
    fn register(&mut self) -> io::Result<()> {
        let (end, sessions) = (Instant::now() + self.patience(), self.options.target.sessions);
        for agent in 0..sessions {
            self.traffic.driver.agents.register(agent);
            let mut done = false;
            while !done && Instant::now() < end {
                self.traffic.turn_by(Instant::now() + Duration::from_millis(5))?;
                let registered = |one: AgentEvent| matches!(one, AgentEvent::Registered { status: 200, .. });
                done = self.traffic.others.drain(..).any(registered);
            }
            self.must(done, || format!("user {agent} could not register"))?;
        }
        Ok(())
    }

    fn post_to_those_there(&mut self) -> io::Result<()> {
        self.post()?;
        self.receive()
    }

    /// Posts the configured number of messages to each user; those to one user one after the other.
    fn post(&mut self) -> io::Result<()> {
        let (users, messages) = (self.users(), self.messages());
        let style = MessageSpec { ttl: 3_600, topic: None, urgency: None, body_bytes: 200, expect: Expect::Once };
        let (first, created) = (self.traffic.ledger.next(), self.traffic.ledger.created());
        let stream = Stream::counting(None, messages);
        self.traffic.run(stream, |_, number| Some((((number - first) % users) as usize, style)))?;
        self.traffic.await_answers(self.patience())?;
        let accepted = self.traffic.ledger.created() - created;
        self.must(accepted == messages, || format!("only {accepted} POSTs were accepted"))
    }

    fn connect_and_receive(&mut self) -> io::Result<()> {
        self.connect()?;
        self.receive()
    }

    fn receive(&mut self) -> io::Result<()> {
        self.traffic.await_all(self.patience())?;
        let missing = self.traffic.ledger.missing();
        self.must(missing == 0, || format!("{missing} accepted messages have not come"))
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.options.patience)
    }

    /// An operation that failed has other statements than one that was done: no later figure would be right.
    fn must(&self, held: bool, what: impl FnOnce() -> String) -> io::Result<()> {
        if held { Ok(()) } else { Err(io::Error::other(what())) }
    }

    fn show(mut self) -> io::Result<bool> {
        let retries: u64 = self.rows.iter().map(|row| row.sent.retries()).sum();
        self.report.add("statements sent again, in no figure above", retries, "");
        println!("{:<42} {:>7} {:>7}  which", "statements per operation", "reads", "writes");
        for Row { what, count, sent } in &self.rows {
            let each = |sent: u64| sent as f64 / *count as f64;
            let (reads, writes) = (each(sent.reads()), each(sent.writes()));
            println!("{what:<42} {reads:>7.2} {writes:>7.2}  {}", sent.each(*count));
        }
        self.report.finish(self.options.target.json.as_deref())
    }
}

/// Reads statements until there are `enough` and no more come, at most for `patience`. A session is ready before its
/// last statement, and a busy host makes both later.
pub(super) fn settled(
    traffic: &mut Traffic,
    patience: Duration,
    enough: impl Fn(&Statements) -> bool,
    read: impl Fn() -> io::Result<Statements>,
) -> io::Result<Statements> {
    let deadline = Instant::now() + patience;
    let mut last = None;
    loop {
        traffic.idle(COUNTERS_LAG)?;
        let sent = read()?;
        if last.as_ref() == Some(&sent) && enough(&sent) || Instant::now() > deadline {
            return Ok(sent);
        }
        last = Some(sent);
    }
}
