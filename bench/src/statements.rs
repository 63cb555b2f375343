//! Statements that a server has sent to the database behind its shared store, by kind, from its own counters
//! (`store_*_statements`). A server whose store is not shared has none.

use std::collections::BTreeMap;

use crate::metrics::Metrics;
use crate::report::Report;

/// Kinds that a node sends for its lease, every 30 s, and to learn what other nodes owe it, every 10 s.
const OF_NODES: [&str; 4] = ["node_read", "lease_read", "lease_renew", "debts_read"];

/// Statements sent between two readings of the counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statements {
    /// Number by kind (`user_read`, `message_put`, ...); kinds of which none was sent are left out.
    kinds: BTreeMap<String, u64>,
    retries: u64,
}

impl Statements {
    /// Returns true if the server counts statements at all.
    pub fn are_counted(reading: &Metrics) -> bool {
        reading.matching(SUFFIX).next().is_some()
    }

    /// Statements of the difference of two readings. Statements between nodes are left out: they belong to no
    /// operation.
    pub fn of(change: &Metrics) -> Statements {
        let kind = |(name, count): (&str, f64)| {
            let kind = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
            Some((kind.to_owned(), count as u64))
        };
        Statements {
            kinds: change
                .matching(SUFFIX)
                .filter_map(kind)
                .filter(|(kind, count)| *count > 0 && !OF_NODES.contains(&&**kind))
                .collect(),
            retries: change.named(RETRIES).map(|(_, count)| count as u64).sum(),
        }
    }

    /// Number of all kinds, without those that were sent again because the first was not answered.
    pub fn sum(&self) -> u64 {
        self.kinds.values().sum::<u64>().saturating_sub(self.retries)
    }

    /// Number of statements that were sent again.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Reads among them, sent again or not.
    pub fn reads(&self) -> u64 {
        self.kinds.iter().filter(|(kind, _)| reads(kind)).map(|(_, count)| count).sum()
    }

    /// Writes among them, sent again or not; a batch is one.
    pub fn writes(&self) -> u64 {
        self.kinds.values().sum::<u64>() - self.reads()
    }

    /// Kinds and the number of each for one of `count` operations: `user_read 1, topics_read 1`.
    pub fn each(&self, count: u64) -> String {
        let each = |(kind, sent): (&String, &u64)| format!("{kind} {}", short(*sent as f64 / count.max(1) as f64));
        if self.kinds.is_empty() { "none".into() } else { self.kinds.iter().map(each).collect::<Vec<_>>().join(", ") }
    }

    /// Adds the statements for each of `count` things called `what` to a result.
    pub fn show(&self, report: &mut Report, what: &str, count: u64) {
        let each = count.max(1) as f64;
        report.add(format!("statements per {what}"), self.sum() as f64 / each, "");
        for (kind, sent) in &self.kinds {
            report.add(format!("  {kind} per {what}"), *sent as f64 / each, "");
        }
    }
}

/// The most statements that a server ever had under way at once, if it counts them.
pub fn most_at_once(reading: &Metrics) -> Option<f64> {
    reading.named(MOST_AT_ONCE).next().map(|(_, most)| most)
}

const PREFIX: &str = "murre_store_";
const SUFFIX: &str = "_statements_total";
const RETRIES: &str = "murre_store_retries_total";
const MOST_AT_ONCE: &str = "murre_store_in_flight_max";

fn reads(kind: &str) -> bool {
    ["_read", "_check", "_times", "_first", "_behind"].iter().any(|end| kind.ends_with(end))
}

/// Whole numbers without decimals.
fn short(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_told_by_kind_and_repeats_are_left_out() {
        let before = Metrics::parse("murre_store_user_read_statements_total 10\nmurre_store_retries_total 1\n");
        let text = "murre_store_user_read_statements_total 31\nmurre_store_message_put_statements_total 5\n\
                    murre_store_retries_total 2\nmurre_store_in_flight_max 77\n";
        let after = Metrics::parse(text);
        let sent = Statements::of(&after.since(&before));
        assert_eq!((sent.sum(), sent.retries(), sent.reads(), sent.writes()), (25, 1, 21, 5));
        assert_eq!(sent.each(10), "message_put 0.50, user_read 2.10");
        assert_eq!(Statements::of(&after.since(&after)).each(10), "none");
        assert_eq!(most_at_once(&after), Some(77.0));
        assert!(Statements::are_counted(&after));
        let embedded = Metrics::parse("murre_store_touches_total 4\n");
        assert!(!Statements::are_counted(&embedded) && most_at_once(&embedded).is_none());
    }
}
