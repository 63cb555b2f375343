//! `phones`: the wake-ups of the radios of phones. The phones are in four groups, with and without pings of their own,
//! and with and without a minimum urgency; each gets the same mix of messages. `delivery.release_on_activity` is a
//! setting of the server, so two runs show what it does. Time may run faster: intervals and rates are those of the
//! phone, and `--speed` scales them all. Checked: every ping is answered, nothing below a minimum comes unless the
//! setting allows it, and all that was held comes once the minimum falls. [`radio`] says what a wake-up is.

mod radio;

use std::io;
use std::time::{Duration, Instant};

use machine::message::Urgency;
use protocol::wire::text::{read_urgency_name, urgency_name};

use self::radio::{CAUSES, Cause, Radios};
use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Traffic};
use crate::delivery_log::Expect;
use crate::fleet::AgentEvent;
use crate::post::Signing;
use crate::random::Random;
use crate::report::Report;
use crate::schedule::OpenLoopSchedule;
use crate::target::Target;

/// Habits of the phones, and their messages. All times are those of the phone.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size; `--sessions` is the number of phones, a quarter of them in each group.
    #[command(flatten)]
    pub target: Target,
    /// Seconds between two WebSocket pings of a phone that pings.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub every: f64,
    /// Minimum urgency of the phones that name one.
    #[arg(long, value_name = "WORD", value_parser = urgency, default_value = "normal")]
    pub min: Urgency,
    /// Messages to each phone in an hour, at random times.
    #[arg(long, value_name = "N", default_value_t = 12.0)]
    pub messages: f64,
    /// Parts of messages of very low, low, normal and high urgency.
    #[arg(long, value_name = "N,N,N,N", value_delimiter = ',', default_values_t = [2, 3, 4, 1])]
    pub mix: Vec<u32>,
    /// Seconds that a radio stays awake behind a frame.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub tail: f64,
    /// Hours of the phone that are measured.
    #[arg(long, value_name = "H", default_value_t = 1.0)]
    pub hours: f64,
    /// Time runs this many times faster. Settings of the server do not follow: a run at 60 stands for an interval of
    /// 300 s of a server whose `websocket.auto_ping_interval` is 5 s.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub speed: f64,
    /// `delivery.release_on_activity` of the server, in seconds of the phone.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub release: f64,
    /// App server connections.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub in_flight: usize,
    /// Seconds without progress after which missing messages are given up.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
}

/// Reads a word of RFC 8030 section 5.3.
fn urgency(word: &str) -> Result<Urgency, &'static str> {
    read_urgency_name(word).ok_or("it is very-low, low, normal or high")
}

/// Phones of one quarter.
#[derive(Clone, Copy, Debug)]
struct Group(usize);

impl Group {
    const ALL: [Group; 4] = [Group(0), Group(1), Group(2), Group(3)];

    fn of(phone: usize) -> Group {
        Group(phone % 4)
    }

    fn pings(self) -> bool {
        self.0 & 1 != 0
    }

    fn has_minimum(self) -> bool {
        self.0 & 2 != 0
    }

    fn name(self) -> &'static str {
        ["no pings, no minimum", "pings, no minimum", "no pings, minimum", "pings, minimum"][self.0]
    }

    /// The phones of this group.
    fn phones(self, all: usize) -> impl Iterator<Item = usize> {
        (self.0..all).step_by(4)
    }
}

/// Urgencies in the order of `--mix`.
const URGENCIES: [Urgency; 4] = [Urgency::VeryLow, Urgency::Low, Urgency::Normal, Urgency::High];
/// Longest wait for the answers to the minima and to the last pings.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time between two looks at the schedules.
const LOOK: Duration = Duration::from_millis(20);

/// One of the messages.
#[derive(Clone, Copy, Debug)]
struct Posted {
    due: Instant,
    urgency: Urgency,
}

/// A run.
struct Phones<'a> {
    options: &'a Options,
    traffic: Traffic,
    radios: Radios,
    /// By number.
    posted: Vec<Posted>,
    /// Number of the first message.
    first: u64,
    asked: u64,
    answered: u64,
    /// Notifications of each group.
    came: [u64; 4],
    /// Notifications below the minimum: their number, and the sum of their delays.
    below: (u64, Duration),
}

/// Simulates and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("phones");
    if !(options.speed > 0.0 && options.hours > 0.0 && options.every > 0.0) {
        return Err(io::Error::other("--speed, --hours and --every must be more than 0"));
    }
    if options.mix.len() != URGENCIES.len() || options.mix.iter().sum::<u32>() == 0 {
        return Err(io::Error::other("--mix needs four parts, one of them more than 0"));
    }
    for (name, value) in [
        ("every", options.every),
        ("messages", options.messages),
        ("tail", options.tail),
        ("speed", options.speed),
        ("release", options.release),
    ] {
        report.option(name, value);
    }
    let mut traffic = Traffic::new(target, ONE_CHANNEL, Signing::None)?;
    traffic.driver.view.stage("ramp", target.sessions);
    target.ramp.climb(&mut traffic, 0..target.sessions)?.show(&mut report, "ramp", target.sessions);
    traffic.driver.open_publishers(target, options.in_flight)?;
    name_minima(&mut traffic, target.sessions, options.min, &mut report)?;
    let begin = Instant::now();
    let mut phones = Phones {
        options,
        radios: Radios::new(target.sessions, options.scaled(options.tail), begin),
        first: traffic.ledger.next(),
        traffic,
        posted: Vec::new(),
        asked: 0,
        answered: 0,
        came: [0; 4],
        below: (0, Duration::ZERO),
    };
    phones.traffic.driver.view.stage("phones", target.sessions);
    phones.live(begin)?;
    phones.show(&mut report);
    phones.let_go(&mut report)?;
    phones.traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

/// Lets each phone of the groups with a minimum name this one, and waits for the answers.
fn name_minima(traffic: &mut Traffic, phones: usize, min: Urgency, report: &mut Report) -> io::Result<()> {
    let (mut named, mut taken) = (0, 0);
    for group in Group::ALL.into_iter().filter(|group| group.has_minimum()) {
        for phone in group.phones(phones) {
            named += u64::from(traffic.driver.agents.set_minimum(phone, urgency_name(min)));
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while taken < named && Instant::now() < deadline {
        traffic.turn_by(Instant::now() + LOOK)?;
        let is_taken = |one: &AgentEvent| matches!(one, AgentEvent::MinimumSet { status: 200, .. });
        taken += traffic.others.drain(..).filter(is_taken).count() as u64;
    }
    report.check(format!("phones whose minimum {} was taken", urgency_name(min)), taken, named);
    Ok(())
}

impl Options {
    /// Time on the clock of this host.
    fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds.max(0.0) / self.speed)
    }

    /// A random urgency of the mix.
    fn draw(&self, random: &mut Random) -> Urgency {
        let mut lot = random.below(u64::from(self.mix.iter().sum::<u32>())) as u32;
        for (urgency, part) in URGENCIES.into_iter().zip(&self.mix) {
            if lot < *part {
                return urgency;
            }
            lot -= part;
        }
        Urgency::High
    }
}

impl Phones<'_> {
    /// The measured hours: pings and messages when they are due, and the frames that come.
    fn live(&mut self, begin: Instant) -> io::Result<()> {
        let options = self.options;
        let all = options.target.sessions;
        let end = begin + options.scaled(options.hours * 3_600.0);
        let pingers: Vec<usize> = (0..all).filter(|phone| Group::of(*phone).pings()).collect();
        let pings = OpenLoopSchedule::spread(begin, pingers.len(), options.scaled(options.every));
        let messages = OpenLoopSchedule::new(begin, all as f64 * options.messages * options.speed / 3_600.0);
        let mut random = Random(1);
        while Instant::now() < end || self.answered < self.asked && Instant::now() < end + PATIENCE {
            let now = Instant::now().min(end);
            while !pingers.is_empty() && self.asked < pings.owed(now) {
                let phone = pingers[(self.asked % pingers.len() as u64) as usize];
                self.radios.frame(phone, pings.due(self.asked), Cause::ClientPing);
                self.asked += 1;
                self.traffic.driver.agents.ping_frame(phone);
            }
            while options.messages > 0.0 && (self.posted.len() as u64) < messages.owed(now) && self.traffic.can_post() {
                let (phone, urgency) = (random.index(all), options.draw(&mut random));
                let due = messages.due(self.posted.len() as u64);
                let word = Some(urgency_name(urgency));
                let spec =
                    MessageSpec { ttl: 86_400, topic: None, urgency: word, body_bytes: 200, expect: Expect::Once };
                self.traffic.post(phone, due, &spec)?;
                self.posted.push(Posted { due, urgency });
            }
            let ping = (!pingers.is_empty()).then(|| pings.due(self.asked));
            let posts = options.messages > 0.0 && self.traffic.can_post();
            let message = posts.then(|| messages.due(self.posted.len() as u64));
            let next = [ping, message].into_iter().flatten().fold(Instant::now() + LOOK, Instant::min);
            self.traffic.driver.turn_by(next)?;
            self.hear(end);
            self.traffic.take_in();
            self.traffic.others.clear();
        }
        Ok(())
    }

    /// Counts the frames that came, those behind the end left out.
    fn hear(&mut self, end: Instant) {
        let now = Instant::now();
        for happening in &self.traffic.driver.happenings {
            let (phone, at, cause) = match happening {
                AgentEvent::Pong { agent } => {
                    self.answered += 1;
                    (*agent, now, Cause::ClientPing)
                }
                AgentEvent::Pinged { agent } => (*agent, now, Cause::ServerPing),
                AgentEvent::Notified { agent, at, .. } => (*agent, *at, Cause::Notification),
                _ => continue,
            };
            if at > end {
                continue;
            }
            self.radios.frame(phone, at, cause);
            if let AgentEvent::Notified { sequence, .. } = happening {
                let group = Group::of(phone);
                self.came[group.0] += 1;
                let posted = sequence.and_then(|number| self.posted.get(number.checked_sub(self.first)? as usize));
                if let Some(posted) = posted.filter(|one| group.has_minimum() && one.urgency < self.options.min) {
                    self.below.0 += 1;
                    self.below.1 += at.saturating_duration_since(posted.due);
                }
            }
        }
    }

    fn show(&self, report: &mut Report) {
        let options = self.options;
        report.add("radio: seconds awake behind a frame", options.tail, "s");
        report.add("delivery.release_on_activity, as told", options.release, "s");
        report.add("messages", self.posted.len() as u64, "");
        report.check("pings of phones answered", self.answered, self.asked);
        for group in Group::ALL {
            let phones = group.phones(options.target.sessions).count().max(1) as f64;
            let each = |count: u64| count as f64 / phones / options.hours;
            let wakeups = self.radios.sum(|phone| Group::of(phone).0 == group.0);
            let name = group.name();
            report.add(format!("{name}: wake-ups per phone and hour"), each(wakeups.sum()), "");
            for (cause, by) in CAUSES {
                report.add(format!("{name}: of them {by}"), each(wakeups.of(cause)), "");
            }
            report.add(format!("{name}: notifications per phone and hour"), each(self.came[group.0]), "");
        }
        let (below, delay) = self.below;
        if options.release > 0.0 {
            report.add("notifications below a minimum, released", below, "");
            let mean = delay.as_secs_f64() * options.speed / below.max(1) as f64;
            report.add("notifications below a minimum: mean delay, seconds of the phone", mean, "s");
        } else {
            report.check("notifications below a minimum", below, 0);
        }
    }

    /// Lowers the minima: everything that was held must come.
    fn let_go(&mut self, report: &mut Report) -> io::Result<()> {
        let held = self.traffic.ledger.missing();
        report.add("messages held at the end", held, "");
        name_minima(&mut self.traffic, self.options.target.sessions, Urgency::VeryLow, report)?;
        self.traffic.await_all(Duration::from_secs(self.options.patience))?;
        let connected = self.traffic.driver.agents.connected() as u64;
        report.check("phones still connected", connected, self.options.target.sessions as u64);
        self.traffic.check(report, "phones", DuplicatePolicy::Always);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_quarters_with_each_pair_of_habits() {
        let habits: Vec<(bool, bool)> = (0..8).map(Group::of).map(|one| (one.pings(), one.has_minimum())).collect();
        assert_eq!(habits[..4], [(false, false), (true, false), (false, true), (true, true)]);
        assert_eq!(habits[..4], habits[4..]);
        assert_eq!(Group(3).phones(9).collect::<Vec<_>>(), [3, 7]);
        for group in Group::ALL {
            assert_eq!(group.name().starts_with("pings"), group.pings());
            assert_eq!(group.name().ends_with(", minimum"), group.has_minimum());
        }
    }
}
