//! Fate of every posted message: the status of the answer and the number of deliveries. The number of a message is its
//! place here, and its body carries that number.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Required deliveries of a message that was answered 201.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    Once,
    /// Not at all: it has expired before its user came.
    Never,
    /// Once or not at all: another may have replaced it, or it may have expired.
    Perhaps,
}

/// 16 bytes each, so that ten million take 160 MB.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Nanoseconds from the ledger's beginning to when the POST was due.
    due_ns: u64,
    /// 0 while there is no answer; 1 when the connection ended instead.
    status: u16,
    /// Deliveries, 127 at most.
    seen: u8,
    expect: Expect,
}

const _: () = assert!(size_of::<Entry>() == 16, "ten million messages take 160 MB");

/// All messages of a run.
#[derive(Debug)]
pub struct DeliveryLog {
    begin: Instant,
    entries: Vec<Entry>,
    statuses: BTreeMap<u16, u64>,
    delivered: u64,
    created: u64,
    /// Notifications whose body named no message of this run.
    pub strange: u64,
}

/// Totals of a finished run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Messages answered 201.
    pub created: u64,
    /// Answers other than 201, broken connections included, and POSTs never answered.
    pub refused: u64,
    /// Answered 201, expected once, never delivered.
    pub lost: u64,
    /// Deliveries after the first of the same message.
    pub doubled: u64,
    /// Delivered although they had expired.
    pub undue: u64,
}

impl Default for DeliveryLog {
    fn default() -> DeliveryLog {
        let begin = Instant::now();
        DeliveryLog { begin, entries: Vec::new(), statuses: BTreeMap::new(), delivered: 0, created: 0, strange: 0 }
    }
}

impl DeliveryLog {
    /// The number of the next message.
    pub fn next(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Enters a message that was due then.
    pub fn posted(&mut self, due: Instant, expect: Expect) -> u64 {
        let due_ns = due.saturating_duration_since(self.begin).as_nanos() as u64;
        self.entries.push(Entry { due_ns, status: 0, seen: 0, expect });
        self.next() - 1
    }

    /// Enters an answer, status 0 for a connection that ended instead; returns the time at which the POST was due.
    pub fn answered(&mut self, number: u64, status: u16) -> Option<Instant> {
        *self.statuses.entry(status).or_default() += 1;
        let begin = self.begin;
        let entry = self.entries.get_mut(number as usize)?;
        entry.status = status.max(1);
        self.created += u64::from(status == 201);
        Some(begin + Duration::from_nanos(entry.due_ns))
    }

    /// Enters a delivery; returns the time at which the POST was due, for the first delivery only.
    pub fn delivered(&mut self, number: u64) -> Option<Instant> {
        let begin = self.begin;
        let Some(entry) = self.entries.get_mut(number as usize) else {
            self.strange += 1;
            return None;
        };
        entry.seen = entry.seen.saturating_add(1).min(127);
        let due = begin + Duration::from_nanos(entry.due_ns);
        if entry.seen > 1 {
            return None;
        }
        self.delivered += 1;
        Some(due)
    }

    /// Replaces the expectation for this message.
    pub fn expect(&mut self, number: u64, expect: Expect) {
        if let Some(entry) = self.entries.get_mut(number as usize) {
            entry.expect = expect;
        }
    }

    /// Returns true if it was answered.
    pub fn is_answered(&self, number: u64) -> bool {
        self.entries.get(number as usize).is_some_and(|entry| entry.status != 0)
    }

    /// Returns true if it was answered 201.
    pub fn is_created(&self, number: u64) -> bool {
        self.entries.get(number as usize).is_some_and(|entry| entry.status == 201)
    }

    /// Messages delivered, each counted once.
    pub fn delivered_count(&self) -> u64 {
        self.delivered
    }

    /// Messages answered 201.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// Answers by status; 0 stands for connections that ended.
    pub fn statuses(&self) -> &BTreeMap<u16, u64> {
        &self.statuses
    }

    /// Messages that are expected and have not come.
    pub fn missing(&self) -> u64 {
        self.sums().lost
    }

    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for entry in &self.entries {
            let created = entry.status == 201;
            sums.created += u64::from(created);
            sums.refused += u64::from(!created);
            sums.lost += u64::from(created && entry.expect == Expect::Once && entry.seen == 0);
            sums.doubled += u64::from(entry.seen.saturating_sub(1));
            sums.undue += u64::from(entry.expect == Expect::Never && entry.seen > 0);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_go_wrong_is_counted() {
        let mut ledger = DeliveryLog::default();
        let due = Instant::now() + Duration::from_millis(3);
        let expects = [Expect::Once, Expect::Once, Expect::Once, Expect::Never, Expect::Perhaps, Expect::Once];
        let numbers: Vec<u64> = expects.into_iter().map(|expect| ledger.posted(due, expect)).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        assert_eq!(ledger.answered(0, 201), Some(due));
        for number in [1, 2, 3, 4] {
            ledger.answered(number, 201);
        }
        assert!(ledger.is_answered(4) && !ledger.is_answered(5));
        assert_eq!(ledger.missing(), 3);
        assert_eq!((ledger.delivered(0), ledger.delivered(0)), (Some(due), None), "a second delivery has no latency");
        ledger.delivered(3);
        ledger.delivered(99);
        let sums = Sums { created: 5, refused: 1, lost: 2, doubled: 1, undue: 1 };
        assert_eq!((ledger.sums(), ledger.strange, ledger.delivered_count()), (sums, 1, 2));
        ledger.expect(1, Expect::Perhaps);
        assert_eq!(ledger.missing(), 1);
        assert_eq!(ledger.answered(5, 0), Some(due));
        assert_eq!((ledger.statuses()[&0], ledger.sums().refused), (1, 1));
    }
}
