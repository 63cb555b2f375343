//! Debts that are written down: what one node owes another is in the database too, so that it outlives the node that
//! owes (decision 0037).
//!
//! The row of a debt names the node that is owed, in whose part of the table it stands, and the boot that owes. It does
//! not name users: a node that takes a debt over reads storage for all of its sessions. The boot that owes says so
//! again every [`DEBT_INTERVAL`]. A row that was not said again for [`DEBT_STALE_US`] is of a boot that has died, and a
//! boot that ends in order says so itself ([`DebtTime::Ended`]).

use crate::time::{Instant, TimeSpan};

use super::call::PeerCall;
use crate::PeerReply;

/// Row of the table of debts, as the node reads it that is owed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DebtRow {
    /// Boot that owes, or a number of its own for words that are lost.
    pub id: u64,
    /// Time at which the boot last said so, in microseconds since the epoch; 0: it will not hand the debt over.
    pub said_us: u64,
    /// Version of the row.
    pub version: i64,
}

impl DebtRow {
    /// Returns true if the boot that owes will not hand the debt over: the node must read storage for its sessions.
    pub fn is_left(&self, now_us: u64) -> bool {
        self.said_us == 0 || now_us.saturating_sub(self.said_us) >= DEBT_STALE_US
    }
}

/// Time that a debt is written with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DebtTime {
    /// The boot goes on and will hand it over.
    Now,
    /// It will not: the words are lost, or the boot ends.
    Ended,
}

/// Debts to one node that are written down.
pub(super) struct Debt<T> {
    /// Time of the last write that took effect, and what it says.
    row: Option<(Instant, DebtTime)>,
    /// The boot ends: the row must say that.
    ends: bool,
    /// A write or a delete is under way.
    pub busy: bool,
    retry_at: Instant,
    /// Calls that are answered when the debt that they leave is written down, their replies, and true for
    /// those that were made.
    pub held: Vec<(PeerCall<T>, PeerReply, bool)>,
}

impl<T> Debt<T> {
    pub fn new(now: Instant) -> Debt<T> {
        Debt { row: None, ends: false, busy: false, retry_at: now, held: Vec::new() }
    }

    /// Returns true if the row stands for everything that is owed now.
    pub fn stands(&self, now: Instant) -> bool {
        match self.row {
            Some((at, DebtTime::Now)) => now.since(at) < TimeSpan(2 * DEBT_INTERVAL.0),
            Some((_, DebtTime::Ended)) => true,
            None => false,
        }
    }

    /// Returns true if the row says that this boot ends: it stays, and the node reads storage.
    pub fn is_left(&self) -> bool {
        matches!(self.row, Some((_, DebtTime::Ended)))
    }

    /// Returns when the row must be written or deleted; `owes` says which of them.
    pub fn due(&self, owes: bool) -> Option<Instant> {
        match (owes, self.row) {
            _ if self.busy || self.is_left() => None,
            (false, None) => None,
            (true, Some((at, _))) if !self.ends => Some(self.retry_at.max(at.after(DEBT_INTERVAL))),
            _ => Some(self.retry_at),
        }
    }

    /// Returns what must be written now, and notes the write.
    pub fn begin_write(&mut self, now: Instant) -> Option<DebtTime> {
        self.due(true).filter(|due| *due <= now)?;
        self.busy = true;
        Some(if self.ends { DebtTime::Ended } else { DebtTime::Now })
    }

    /// Returns true if the row must be deleted now, and notes the delete. A row that stays leads to one needless round
    /// of reads.
    pub fn begin_clear(&mut self, now: Instant) -> bool {
        let due = self.due(false).is_some_and(|due| due <= now);
        if due {
            (self.busy, self.row) = (true, None);
        }
        due
    }

    /// Puts the delete off: the row stands for words that are lost, until they have a row of their own.
    pub fn put_off(&mut self, now: Instant) {
        self.retry_at = self.retry_at.max(now.after(RETRY_PAUSE));
    }

    /// The boot ends: the row must be written once more, with that.
    pub fn ends(&mut self, now: Instant) {
        (self.ends, self.retry_at) = (true, now);
    }

    /// Notes the end of a write.
    pub fn wrote(&mut self, now: Instant, time: DebtTime, done: bool) {
        self.busy = false;
        if done {
            self.row = Some((now, time));
        } else {
            self.retry_at = now.after(RETRY_PAUSE);
        }
    }

    /// Notes the end of a delete.
    pub fn cleared(&mut self) {
        self.busy = false;
    }
}

/// Notifications of a node that are lost: a row of their own says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lost {
    /// The row must be written.
    Due,
    /// It is being written.
    Writing,
    /// It is being written, and others were lost since: it must be written once more.
    WritingOld,
}

/// Time between two writes of the same debt, and between two looks of a node at what it is owed.
pub const DEBT_INTERVAL: TimeSpan = TimeSpan::from_secs(10);
/// Seconds that the row of a debt is kept: one interval of refreshes, after which each session has read storage.
pub const DEBT_SECONDS: u32 = 7 * 86_400;
/// Age at which a boot that owes counts as dead, in microseconds: four writes that did not come. Clocks that are
/// further apart cost needless reads.
const DEBT_STALE_US: u64 = 45_000_000;
/// Pause after a write that failed.
const RETRY_PAUSE: TimeSpan = TimeSpan::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_left_when_its_boot_says_so_or_says_nothing_more() {
        let row = |said_us| DebtRow { id: 1, said_us, version: 1 };
        let now = 1_700_000_000_000_000;
        assert!(row(0).is_left(now) && row(0).is_left(0) && row(now - DEBT_STALE_US).is_left(now));
        assert!(!row(now - DEBT_STALE_US + 1).is_left(now) && !row(now + 1).is_left(now), "a clock may be ahead");
    }

    #[test]
    fn a_debt_is_written_again_while_it_is_owed_and_deleted_once() {
        let mut debt = Debt::<()>::new(Instant(0));
        assert!(!debt.begin_clear(Instant(0)), "there is no row");
        assert_eq!(debt.begin_write(Instant(0)), Some(DebtTime::Now));
        assert!(debt.begin_write(Instant(0)).is_none(), "one write at a time");
        debt.wrote(Instant(5), DebtTime::Now, false);
        assert!(!debt.stands(Instant(5)) && debt.begin_write(Instant(5)).is_none());
        let again = Instant(5).after(RETRY_PAUSE);
        assert!(debt.begin_write(again).is_some());
        debt.wrote(again, DebtTime::Now, true);
        assert!(debt.stands(again) && debt.begin_write(again).is_none());
        assert_eq!(debt.due(true), Some(again.after(DEBT_INTERVAL)));
        assert!(!debt.stands(again.after(TimeSpan(2 * DEBT_INTERVAL.0))));
        assert!(debt.begin_clear(again));
        debt.cleared();
        assert_eq!((debt.due(false), debt.stands(again)), (None, false));
    }

    #[test]
    fn a_row_that_says_the_end_stays() {
        let mut debt = Debt::<()>::new(Instant(0));
        debt.begin_write(Instant(0));
        debt.ends(Instant(1));
        debt.wrote(Instant(2), DebtTime::Now, true);
        assert!(debt.stands(Instant(2)) && !debt.is_left(), "the write of before does not say it");
        assert_eq!(debt.begin_write(Instant(2)), Some(DebtTime::Ended));
        debt.wrote(Instant(3), DebtTime::Ended, true);
        assert!(debt.is_left() && debt.stands(Instant(u64::MAX)));
        assert_eq!((debt.due(true), debt.due(false)), (None, None));
    }
}
