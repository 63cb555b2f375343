//! Orders and their state, for metrics, health pages and the operator.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

/// End of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Issued,
    /// The authority says no.
    Refused,
    /// The authority cannot be reached.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// Its answer cannot be used, or a file cannot be written.
    Failed,
}

impl Outcome {
    pub(crate) const ALL: [Outcome; 5] =
        [Outcome::Issued, Outcome::Refused, Outcome::Unreachable, Outcome::Timeout, Outcome::Failed];

    /// The label of the metric.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Issued => "issued",
            Outcome::Refused => "refused",
            Outcome::Unreachable => "unreachable",
            Outcome::Timeout => "timeout",
            Outcome::Failed => "failed",
        }
    }
}

/// State of the orders of this node. The task that orders writes; metrics and health pages read.
#[derive(Default, Debug)]
pub struct OrderBook {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default, Debug)]
struct State {
    orders: [u64; Outcome::ALL.len()],
    next: Option<SystemTime>,
    /// Names without a certificate, with the reason of the last failure.
    missing: BTreeMap<String, Option<String>>,
}

impl OrderBook {
    /// Makes the task look at all names again, those that failed too. From any thread.
    pub fn look_again(&self) {
        self.wake.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.lock().orders[outcome as usize] += 1;
    }

    /// Takes the time of the next order.
    pub(super) fn set_next(&self, at: Option<SystemTime>) {
        self.lock().next = at;
    }

    /// Notes that `name` has no certificate, with the reason if there is one.
    pub(super) fn set_missing(&self, name: &str, reason: Option<String>) {
        self.lock().missing.insert(name.to_owned(), reason);
    }

    pub(super) fn set_issued(&self, name: &str) {
        self.lock().missing.remove(name);
    }

    /// Orders that ended so.
    pub(crate) fn orders(&self, outcome: Outcome) -> u64 {
        self.lock().orders[outcome as usize]
    }

    /// Seconds until the next order; 0 if it is due.
    pub(crate) fn next_seconds(&self, now: SystemTime) -> Option<u64> {
        Some(self.lock().next?.duration_since(now).map_or(0, |left| left.as_secs()))
    }

    /// One sentence on the certificates that are awaited, if any are.
    pub fn waits_for(&self) -> Option<String> {
        let state = self.lock();
        let of = |(name, reason): (&String, &Option<String>)| match reason {
            Some(reason) => format!("{name} (the last order failed: {reason})"),
            None => name.clone(),
        };
        let names: Vec<String> = state.missing.iter().map(of).collect();
        (!names.is_empty()).then(|| format!("the first certificate of {}", names.join(", ")))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_health_page_names_what_is_awaited_and_why() {
        let book = OrderBook::default();
        assert_eq!(book.waits_for(), None);
        book.set_missing("a.example", None);
        book.set_missing("b.example", Some("no".to_owned()));
        let said = book.waits_for().unwrap();
        assert_eq!(said, "the first certificate of a.example, b.example (the last order failed: no)");
        book.set_issued("a.example");
        book.set_issued("b.example");
        assert_eq!(book.waits_for(), None);
    }

    #[test]
    fn outcomes_are_counted_apart() {
        let book = OrderBook::default();
        book.count(Outcome::Refused);
        book.count(Outcome::Refused);
        assert_eq!(Outcome::ALL.map(|outcome| book.orders(outcome)), [0, 2, 0, 0, 0]);
        let now = SystemTime::now();
        assert_eq!(book.next_seconds(now), None);
        book.set_next(Some(now + Duration::from_secs(9)));
        assert_eq!((book.next_seconds(now), book.next_seconds(now + Duration::from_secs(10))), (Some(9), Some(0)));
    }
}
