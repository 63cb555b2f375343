//! Delivery of stored messages to one session (PROTOCOL.md 1.8): which check runs, which page is next, and up to where
//! storage is settled.
//!
//! A check starts at low_water, skips what is in flight or settled, and ends on a read that returned nothing new and
//! began after the last store completed.

use crate::ids::{Chid, Clock, Origin, Stamp};
use crate::limits::{PAGE_ROWS_MAX, PAGE_ROWS_MIN, READ_AHEAD_BYTES};
use crate::message::Topic;

use super::super::store::Page;
use super::ledger_room::ledger_bytes;

/// Progress of the checks of one session.
#[derive(Default)]
pub(in crate::shard) struct BacklogState {
    /// Sticky: storage may hold something that no read has seen.
    wanted: bool,
    /// A message was stored since the last check began: the next check is worth a read although writes are under way.
    news: bool,
    /// Rows that the next page may have; 0 is not known yet.
    rows: u16,
    at: Option<BacklogCursor>,
    /// A page is at storage.
    reading: bool,
    /// Rows that the running check has sent, for `delivery.msg_limit`.
    sent: u32,
    /// Bound of the running check: rows whose clock lies below this were written before it began.
    horizon: Clock,
    /// Rows that the running check has left where they are, for the next session to decide on.
    passed_by: u32,
    /// The running check has left rows below the minimum urgency where they are, or begins behind such rows.
    held: bool,
    /// A message below the minimum has gone to storage, or out of the window, since the running check began, or another
    /// node may store one yet.
    held_news: bool,
    /// Message rows up to here are in the window, deferred, settled or held: the next check begins behind them. Only if
    /// some are held; low water does the same for the others.
    held_to: Stamp,
    /// All of storage is wanted: the running check must not move `held_to` again.
    all: bool,
    /// Every message row at or below this was read by a check of this session: it is in the window, deferred, settled,
    /// or expired.
    covered: Clock,
    /// The low water that storage was last told.
    low_water: Clock,
}

/// Place of the next page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum BacklogCursor {
    Topics(Option<(Chid, Topic)>),
    Messages(Stamp),
}

/// A page that was read, until what it brought is in the window.
#[derive(Clone, Copy)]
pub(in crate::shard) struct PageRead {
    covered: Option<Clock>,
    passed_by: u32,
}

impl BacklogState {
    /// No direct may overtake what storage holds.
    pub fn clear(&self) -> bool {
        !self.wanted && self.at.is_none()
    }

    /// A check is wanted or runs, or a page of one is at storage.
    pub fn is_looking(&self) -> bool {
        !self.clear() || self.reading
    }

    /// A page is at storage.
    pub fn is_reading(&self) -> bool {
        self.reading
    }

    /// No check has read anything yet.
    pub fn has_covered_nothing(&self) -> bool {
        self.covered == Clock::default()
    }

    /// Storage holds something, or will before it says so.
    pub fn want(&mut self) {
        (self.wanted, self.news) = (true, true);
    }

    /// Storage will hold something; the completion of a store that is about to be submitted starts the check.
    pub fn want_later(&mut self) {
        self.wanted = true;
    }

    /// The running check begins again, from the start.
    pub fn restart(&mut self) {
        self.want();
        self.at = None;
        self.covered = Clock::default();
        self.held_to = Stamp::default();
    }

    /// Storage holds something that may stand among the rows that are held, or rows of those may go out.
    pub fn want_all(&mut self) {
        self.want();
        (self.held_to, self.all) = (Stamp::default(), true);
    }

    /// A message below the minimum goes to storage. No check needs to find it.
    pub fn hold(&mut self) {
        self.held_news = true;
    }

    /// A held row has left the window: no check vouches for it.
    pub fn hold_again(&mut self) {
        (self.held, self.held_news) = (true, true);
        self.covered = Clock::default();
        self.held_to = Stamp::default();
    }

    /// Returns the place where the running check goes on, or begins one that is wanted. `writing`: a write of this user
    /// is under way, which this check does not see; its completion asks for another. `horizon`: what is below was
    /// written. `expects_held`: another node may store a message below the minimum yet.
    pub fn go_on(
        &mut self,
        writing: bool,
        horizon: Clock,
        expects_held: impl FnOnce() -> bool,
    ) -> Option<BacklogCursor> {
        if self.at.is_none() && self.wanted && (self.news || !writing) {
            (self.wanted, self.news) = (writing, false);
            self.horizon = horizon;
            self.passed_by = 0;
            (self.held, self.held_news, self.all) = (self.held_to != Stamp::default(), expects_held(), false);
            self.at = Some(BacklogCursor::Topics(None));
        }
        self.at
    }

    /// A page goes to storage. Returns the number of rows that it may have, at most `room`.
    pub fn begin_page(&mut self, room: usize) -> u16 {
        self.reading = true;
        self.rows.max(PAGE_ROWS_MIN).min(room as u16)
    }

    /// A page has come, or will not.
    pub fn end_page(&mut self) {
        self.reading = false;
    }

    /// A check is under way: it was not given up while its page was at storage.
    pub fn is_running(&self) -> bool {
        self.at.is_some()
    }

    /// Takes the place where a page of the running check ended.
    ///
    /// # Panics
    /// No check runs.
    pub fn page_read(&mut self, page: &Page) -> PageRead {
        // Invariant: the caller has asked `is_running`.
        let cursor = self.at.expect("a page is of the running check");
        self.at = next_cursor(cursor, page, self.held_to);
        if let Some(largest) = page.messages.iter().map(|message| ledger_bytes(message)).max() {
            self.rows = ((READ_AHEAD_BYTES / largest) as u16).clamp(PAGE_ROWS_MIN, PAGE_ROWS_MAX);
        }
        PageRead { covered: covered_by(cursor, page, self.horizon), passed_by: self.passed_by }
    }

    /// Counts `more` messages, and returns true if the running check has sent more than `limit`; 0 is no limit.
    pub fn sends_too_many(&mut self, more: usize, limit: u32) -> bool {
        self.sent = self.sent.saturating_add(more as u32);
        limit != 0 && self.sent > limit
    }

    /// A row stays where it is: the running check vouches for nothing any more.
    pub fn pass_by(&mut self) {
        self.passed_by += 1;
    }

    /// A row stays where it is because it is below the minimum.
    pub fn pass_held(&mut self) {
        self.held = true;
    }

    /// Returns true if storage has something below the minimum, or may have it soon, as far as the check that has just
    /// ended knows; `None` if it does not know.
    pub fn holds(&self) -> Option<bool> {
        let holds = self.held || self.held_news;
        (self.at.is_none() && (holds || !self.wanted)).then_some(holds)
    }

    /// The rows of a page are in the window: the check vouches for what it read, unless rows were passed by. Returns
    /// true if this page was the one that passed a row by.
    pub fn page_taken(&mut self, page: PageRead) -> bool {
        if let Some(covered) = page.covered
            && self.passed_by == 0
        {
            if self.held && self.all {
                // The next check reads from the beginning.
            } else if self.held {
                self.held_to = self.held_to.max(Stamp { clock: covered, origin: Origin(u32::MAX) });
            } else {
                self.covered = self.covered.max(covered);
            }
        }
        if self.at.is_none() {
            self.sent = 0;
        }
        self.passed_by > page.passed_by
    }

    /// Returns the clock up to which every message row is settled, if storage has not been told so yet: what the checks
    /// have covered, but for what is still unacked.
    pub fn raise_low_water(&mut self, unacked_from: u64) -> Option<Clock> {
        let settled = Clock(self.covered.0.min(unacked_from));
        if settled <= self.low_water {
            return None;
        }
        self.low_water = settled;
        Some(settled)
    }
}

/// Clock up to which a page has seen every message row, as far as a check with this horizon may say so.
fn covered_by(cursor: BacklogCursor, page: &Page, horizon: Clock) -> Option<Clock> {
    match (cursor, page.messages.last()) {
        (BacklogCursor::Topics(_), _) => None,
        (BacklogCursor::Messages(_), _) if page.exhausted => Some(horizon),
        // Others of the same clock may follow on the next page.
        (BacklogCursor::Messages(_), Some(last)) => Some(horizon.min(Clock(last.stamp.clock.0.saturating_sub(1)))),
        (BacklogCursor::Messages(_), None) => None,
    }
}

/// Start of the next page; `None` when the check is over.
fn next_cursor(cursor: BacklogCursor, page: &Page, first: Stamp) -> Option<BacklogCursor> {
    let last = page.messages.last();
    match (cursor, last) {
        (BacklogCursor::Topics(_), Some(last)) if !page.exhausted => {
            Some(BacklogCursor::Topics(last.topic.map(|topic| (last.chid, topic))))
        }
        (BacklogCursor::Topics(_), _) => Some(BacklogCursor::Messages(first)),
        (BacklogCursor::Messages(_), Some(last)) if !page.exhausted => Some(BacklogCursor::Messages(last.stamp)),
        (BacklogCursor::Messages(_), _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> Page {
        Page { messages: Vec::new(), exhausted: true }
    }

    /// Reads topics and messages to their end; `pass_by` rows of them are left. Returns true if a page said so.
    fn read_all(drain: &mut BacklogState, pass_by: usize) -> bool {
        let mut said = false;
        while let Some(cursor) = drain.go_on(false, Clock(70), || false) {
            assert_eq!(drain.begin_page(3), 3);
            assert!(drain.is_reading() && drain.is_looking());
            drain.end_page();
            let page = drain.page_read(&end());
            let rows = if matches!(cursor, BacklogCursor::Messages(_)) { pass_by } else { 0 };
            (0..rows).for_each(|_| drain.pass_by());
            said |= drain.page_taken(page);
        }
        said
    }

    #[test]
    fn a_check_reads_topics_and_then_messages_and_covers_what_was_written_before_it() {
        let mut drain = BacklogState::default();
        assert!(drain.clear() && drain.has_covered_nothing() && drain.go_on(false, Clock(70), || false).is_none());
        drain.want();
        assert!(!drain.clear() && !read_all(&mut drain, 0) && drain.clear());
        assert_eq!((drain.raise_low_water(50), drain.raise_low_water(50)), (Some(Clock(50)), None));
        assert_eq!(drain.raise_low_water(u64::MAX), Some(Clock(70)));
    }

    #[test]
    fn a_check_that_passes_a_row_by_vouches_for_nothing() {
        let mut drain = BacklogState::default();
        drain.want();
        assert!(read_all(&mut drain, 1) && drain.has_covered_nothing());
        assert_eq!(drain.raise_low_water(u64::MAX), None);
    }

    #[test]
    fn a_check_waits_for_a_write_under_way_unless_there_is_news() {
        let mut drain = BacklogState::default();
        drain.want_later();
        assert_eq!(drain.go_on(true, Clock(70), || false), None);
        drain.want();
        assert!(drain.go_on(true, Clock(70), || false).is_some());
        drain.restart();
        assert!(!drain.is_running(), "its page is of a check that was given up");
    }

    #[test]
    fn what_is_held_is_read_once_and_covered_by_nobody() {
        let mut drain = BacklogState::default();
        drain.want();
        let mut begun = Vec::new();
        for _ in 0..2 {
            while let Some(cursor) = drain.go_on(false, Clock(70), || false) {
                begun.push(cursor);
                let page = drain.page_read(&end());
                drain.pass_held();
                assert!(!drain.page_taken(page), "another node could not help");
            }
            assert!(drain.holds() == Some(true) && drain.has_covered_nothing());
            drain.want();
        }
        let behind = Stamp { clock: Clock(70), origin: Origin(u32::MAX) };
        assert_eq!((begun[1], begun[3]), (BacklogCursor::Messages(Stamp::default()), BacklogCursor::Messages(behind)));
        drain.want_all();
        assert!(!read_all(&mut drain, 0) && drain.holds() == Some(false), "all of it has expired");
        drain.hold();
        assert!(drain.holds() == Some(true) && drain.clear());
    }

    #[test]
    fn a_check_that_finds_nothing_leaves_what_another_node_may_store() {
        let mut drain = BacklogState::default();
        for expects_held in [true, false] {
            drain.want();
            while drain.go_on(false, Clock(70), || expects_held).is_some() {
                let page = drain.page_read(&end());
                drain.page_taken(page);
            }
            assert_eq!(drain.holds(), Some(expects_held));
        }
    }

    #[test]
    fn messages_of_one_check_are_counted() {
        let mut drain = BacklogState::default();
        assert!(!drain.sends_too_many(9, 0) && !drain.sends_too_many(1, 10) && drain.sends_too_many(1, 10));
    }
}
