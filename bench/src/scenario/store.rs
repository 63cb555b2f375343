//! `store`: absent users are sent messages, come back and get them. The figures are server CPU per stored message and
//! per drained one; the checks are that nothing is lost, nothing comes twice, and nothing comes that has expired or was
//! replaced.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use super::ramp;
use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Stream, Traffic, spread};
use crate::delivery_log::{DeliveryLog, Expect};
use crate::post::Signing;
use crate::report::Report;
use crate::result::names;
use crate::target::Target;
use crate::usage::UsageSample;

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server, and number of users.
    #[command(flatten)]
    pub target: Target,
    /// Messages stored, all users together.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub messages: u64,
    /// Messages a second as an open loop; as many as the server takes when absent.
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Bytes of bodies; several with commas take turns.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "200")]
    pub body: Vec<usize>,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub in_flight: usize,
    /// Number of a hundred messages that have a topic, one for each user: only the last must come.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    pub topics: u64,
    /// Number of a hundred messages that expire before the users come: none may come.
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    pub expiring: u64,
    /// TTL of those in seconds.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub expiring_ttl: u32,
    /// Seconds over which the users come back, as an open loop; as fast as `--ramp` allows when absent.
    #[arg(long, value_name = "S")]
    pub within: Option<f64>,
    /// Seconds without progress after which it is given up.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
}

/// TTL of messages that must not expire.
const TTL: u32 = 86_400;
/// The writes of the server after its last 201 are not part of the drain.
const SETTLE: Duration = Duration::from_secs(2);

/// Stores, drains and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("store");
    if options.body.iter().any(|bytes| *bytes < crate::post::NUMBERED_BYTES_MIN) {
        return Err(io::Error::other("a stored message is told by its body: --body is 9 or more"));
    }
    let mut traffic = Traffic::new(target, ONE_CHANNEL, Signing::None)?;
    traffic.driver.view.stage("first visit", target.sessions);
    let climb = target.ramp.climb(&mut traffic, 0..target.sessions)?;
    climb.show(&mut report, "first visit", target.sessions);
    leave(&mut traffic)?;
    store(&mut traffic, options, &mut report)?;
    if options.expiring > 0 {
        traffic.idle(Duration::from_secs(u64::from(options.expiring_ttl) + 1))?;
    }
    traffic.idle(SETTLE)?;
    drain(&mut traffic, options, &mut report)?;
    leave(&mut traffic)?;
    traffic.driver.view.stage("last visit", target.sessions);
    let before = traffic.ledger.sums().doubled;
    target.ramp.climb(&mut traffic, 0..target.sessions)?.show(&mut report, "last visit", target.sessions);
    traffic.idle(SETTLE)?;
    report.check("last visit: delivered again after their ack", traffic.ledger.sums().doubled - before, 0);
    let renamed = traffic.driver.agents.renamed_count();
    report.check("UAIDs changed", renamed as u64, 0);
    traffic.check(&mut report, "store", DuplicatePolicy::Always);
    traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

/// Ends all sessions, after the server has surely read their frames.
fn leave(traffic: &mut Traffic) -> io::Result<()> {
    traffic.idle(Duration::from_secs(1))?;
    traffic.driver.agents.disconnect_all();
    traffic.idle(Duration::from_secs(1))
}

fn store(traffic: &mut Traffic, options: &Options, report: &mut Report) -> io::Result<()> {
    let target = &options.target;
    traffic.driver.view.stage("store", 0);
    traffic.driver.open_publishers(target, options.in_flight)?;
    let mut topics = Topics::default();
    let before = UsageSample::read(target)?;
    traffic.open_window();
    let stream = Stream::counting(options.rate, options.messages);
    traffic.run(stream, |ledger, number| {
        let agent = spread(number, target.sessions);
        let body_bytes = options.body[number as usize % options.body.len()];
        let plain = MessageSpec { ttl: TTL, topic: None, urgency: None, body_bytes, expect: Expect::Once };
        // Of each hundred the first have a topic, the next expire.
        let style = match number % 100 {
            percent if percent < options.topics => {
                topics.enter(ledger, agent, number)?;
                MessageSpec { topic: Some("bench"), ..plain }
            }
            percent if percent < options.topics + options.expiring => {
                MessageSpec { ttl: options.expiring_ttl, expect: Expect::Never, ..plain }
            }
            _ => plain,
        };
        Some((agent, style))
    })?;
    traffic.await_answers(Duration::from_secs(options.patience))?;
    traffic.close_window();
    let spent = before.spent(target)?;
    topics.settle(&mut traffic.ledger);
    report.add("messages stored", options.messages, "");
    report.add("messages stored a second", options.messages as f64 / spent.wall.as_secs_f64(), "/s");
    spent.show(report, "stored notification", options.messages);
    traffic.window()?.to_answer.show(report, names::TO_ANSWER);
    Ok(())
}

fn drain(traffic: &mut Traffic, options: &Options, report: &mut Report) -> io::Result<()> {
    let target = &options.target;
    traffic.driver.view.stage("drain", target.sessions);
    let before = UsageSample::read(target)?;
    let begin = std::time::Instant::now();
    let climb = match options.within {
        Some(seconds) => ramp::arrive(traffic, 0..target.sessions, Duration::from_secs_f64(seconds))?,
        None => target.ramp.climb(traffic, 0..target.sessions)?,
    };
    traffic.await_all(Duration::from_secs(options.patience))?;
    let (spent, seconds) = (before.spent(target)?, begin.elapsed().as_secs_f64());
    climb.show(report, "return", target.sessions);
    let drained = traffic.ledger.delivered_count();
    report.add("messages drained", drained, "");
    report.add("messages drained a second", drained as f64 / seconds, "/s");
    spent.show(report, "drained notification", drained);
    report.add("  in it: hellos for each message", target.sessions as f64 / drained.max(1) as f64, "");
    traffic.drain(Duration::from_secs(1))
}

/// The messages with a topic, by user. The next to a user waits for the answer to the last, so that it is certain which
/// one replaced the other.
#[derive(Default)]
struct Topics {
    chains: HashMap<usize, Vec<u64>>,
}

impl Topics {
    fn enter(&mut self, ledger: &DeliveryLog, agent: usize, number: u64) -> Option<()> {
        let chain = self.chains.entry(agent).or_default();
        if chain.last().is_some_and(|last| !ledger.is_answered(*last)) {
            return None;
        }
        chain.push(number);
        Some(())
    }

    /// Expects only the last accepted message of each user.
    fn settle(self, ledger: &mut DeliveryLog) {
        for chain in self.chains.into_values() {
            let kept = chain.iter().rposition(|number| ledger.is_created(*number));
            for (at, number) in chain.into_iter().enumerate() {
                ledger.expect(number, if kept == Some(at) { Expect::Once } else { Expect::Never });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn of_a_topic_the_last_that_was_accepted_must_come() {
        let (mut ledger, mut topics) = (DeliveryLog::default(), Topics::default());
        let post = |ledger: &mut DeliveryLog| ledger.posted(Instant::now(), Expect::Once);
        for status in [201, 201, 500] {
            let number = ledger.next();
            assert!(topics.enter(&ledger, 3, number).is_some());
            assert_eq!(post(&mut ledger), number);
            assert!(topics.enter(&ledger, 3, number + 1).is_none(), "the last is not answered");
            ledger.answered(number, status);
        }
        topics.settle(&mut ledger);
        assert_eq!(ledger.sums().lost, 1);
        ledger.delivered(1);
        assert_eq!((ledger.sums().lost, ledger.sums().undue), (0, 0));
        ledger.delivered(0);
        assert_eq!(ledger.sums().undue, 1);
    }
}
