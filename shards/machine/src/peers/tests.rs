//! The client of the calls, and the debts that it writes down.

use std::sync::Arc;

use super::debts::DEBT_INTERVAL;
use super::*;
use crate::ids::Uaid;
use crate::time::{Instant, TimeSpan};
use crate::{NodeId, PeerOp, PeerReply};

const ID: u64 = 70;
const NOW: Instant = Instant(1_000_000_000);

/// A client, and what it has decided.
struct Kit {
    client: PeerClient<u32>,
    now: Instant,
    calls: Vec<PeerCall<u32>>,
    replies: Vec<(u32, PeerReply)>,
    /// Writes (`Some`) and deletes of debts that were not answered.
    debts: Vec<(Arc<str>, u64, Option<DebtTime>)>,
    submitted: u32,
}

impl Kit {
    fn new(retry_queue_max: usize) -> Kit {
        let config = PeerConfig {
            id: ID,
            connections_max: 4,
            request_timeout: TimeSpan::from_secs(3),
            gone_time: TimeSpan::from_secs(60),
            retry_queue_max,
        };
        let client = PeerClient::new(config);
        Kit { client, now: NOW, calls: Vec::new(), replies: Vec::new(), debts: Vec::new(), submitted: 0 }
    }

    fn collect(&mut self) {
        while let Some(action) = self.client.next_action() {
            match action {
                PeerAction::Call { call, .. } => self.calls.push(call),
                PeerAction::Reply { call, reply, .. } => self.replies.extend(call.back.map(|back| (back, reply))),
                PeerAction::WriteDebt { url, id, time } => self.debts.push((url, id, Some(time))),
                PeerAction::ClearDebt { url, id } => self.debts.push((url, id, None)),
                PeerAction::Probe { .. }
                | PeerAction::Look { .. }
                | PeerAction::Bury { .. }
                | PeerAction::Note { .. } => {}
            }
        }
    }

    /// Notifies a user of the node at this URL.
    fn notify(&mut self, url: &str, user: u8) -> u32 {
        self.submitted += 1;
        let to = Arc::new(NodeId { url: url.into(), boot: 1 });
        let op = PeerOp::Notify { to, uaid: Uaid([user; 16]), unsure: None };
        let call = PeerCall { op, back: Some(self.submitted), since: self.now, is_retry: false };
        self.client.submit(call, self.now);
        self.collect();
        self.submitted
    }

    /// Ends the oldest call that is under way.
    fn end(&mut self, end: CallEnd) {
        let call = self.calls.remove(0);
        let url = Arc::from(&*call.to().url);
        self.client.called(&url, call, end, self.now);
        self.collect();
    }

    /// Answers the oldest write or delete of a debt.
    fn debt(&mut self, done: bool) -> (u64, Option<DebtTime>) {
        let (url, id, time) = self.debts.remove(0);
        match time {
            Some(time) => self.client.debt_written(&url, id, time, done, self.now),
            None => self.client.debt_cleared(&url, self.now),
        }
        self.collect();
        (id, time)
    }

    fn pass(&mut self, span: TimeSpan) {
        self.now = self.now.after(span);
        self.client.tick(self.now);
        self.collect();
    }
}

#[test]
fn a_notification_without_an_answer_is_answered_when_its_debt_is_written_down() {
    let mut kit = Kit::new(10);
    let first = kit.notify("n", 1);
    kit.end(CallEnd::NoAnswer);
    assert!(kit.replies.is_empty() && kit.client.owed() == 1);
    assert_eq!(kit.debt(true), (ID, Some(DebtTime::Now)));
    assert_eq!(kit.replies, [(first, PeerReply::NoAnswer)]);
    // The row stands for the next ones too, and is written again.
    let second = kit.notify("n", 2);
    kit.end(CallEnd::NotConnected);
    assert_eq!(kit.replies[1..], [(second, PeerReply::Unreachable)]);
    assert!(kit.debts.is_empty());
    kit.pass(DEBT_INTERVAL);
    assert_eq!(kit.debt(true), (ID, Some(DebtTime::Now)));
    // Everything is handed over.
    while !kit.calls.is_empty() {
        kit.end(CallEnd::Answered(Some(PeerReply::Done)));
    }
    assert_eq!((kit.client.owed(), kit.client.counts.answered), (0, 2));
    assert_eq!(kit.debt(true), (ID, None));
    kit.pass(TimeSpan(10 * DEBT_INTERVAL.0));
    assert!(kit.debts.is_empty() && kit.replies.len() == 2);
}

#[test]
fn a_debt_that_the_database_refuses_keeps_no_caller_waiting_and_is_written_later() {
    let mut kit = Kit::new(10);
    let first = kit.notify("n", 1);
    kit.end(CallEnd::NoAnswer);
    kit.debt(false);
    assert_eq!(kit.replies, [(first, PeerReply::NoAnswer)]);
    assert!(kit.client.is_unwritten("n", kit.now) && kit.client.unwritten(kit.now).eq([&Arc::from("n")]));
    kit.pass(TimeSpan::from_secs(1));
    kit.debt(true);
    assert!(kit.client.unwritten(kit.now).next().is_none() && kit.client.owed() == 1);
    assert_eq!((kit.client.counts.written, kit.client.counts.write_failures), (1, 1));
}

#[test]
fn a_debt_that_comes_while_the_last_one_is_deleted_is_written_again() {
    let mut kit = Kit::new(10);
    kit.notify("n", 1);
    kit.end(CallEnd::NoAnswer);
    kit.debt(true);
    kit.pass(TimeSpan::from_secs(2));
    kit.end(CallEnd::Answered(Some(PeerReply::Done)));
    let next = kit.notify("n", 2);
    kit.end(CallEnd::NoAnswer);
    assert_eq!(kit.replies.len(), 1, "it waits for the delete and the write behind it");
    assert_eq!(kit.debt(true), (ID, None));
    assert_eq!(kit.debt(true), (ID, Some(DebtTime::Now)));
    assert_eq!(kit.replies[1], (next, PeerReply::NoAnswer));
}

#[test]
fn notifications_that_are_forgotten_leave_a_debt_that_is_not_handed_over() {
    let mut kit = Kit::new(2);
    for user in 0..4 {
        kit.notify("n", user);
        kit.end(CallEnd::NotConnected);
        if user == 0 {
            kit.debt(true);
        }
        if user == 2 {
            // Its circuit is open.
            break;
        }
    }
    assert_eq!((kit.client.counts.dropped, kit.client.owed()), (1, 3), "two, and the word that one is lost");
    kit.notify("n", 9);
    assert_eq!(kit.client.counts.dropped, 2);
    kit.pass(TimeSpan::from_ms(100));
    assert_eq!(kit.debt(false), (ID + 1, Some(DebtTime::Ended)), "one row for all of them");
    kit.pass(DEBT_INTERVAL);
    while !kit.debts.is_empty() {
        let (id, time) = kit.debt(true);
        assert!((id, time) == (ID, Some(DebtTime::Now)) || (id, time) == (ID + 1, Some(DebtTime::Ended)));
    }
    assert_eq!(kit.client.owed(), 2);
}

#[test]
fn a_node_that_ends_leaves_what_it_owes_to_the_others() {
    let mut kit = Kit::new(10);
    for url in ["a", "b"] {
        kit.notify(url, 1);
        kit.end(CallEnd::NotConnected);
        kit.debt(true);
    }
    // One is being made once more.
    kit.pass(TimeSpan::from_secs(2));
    assert_eq!(kit.calls.len(), 2);
    kit.end(CallEnd::Answered(Some(PeerReply::Done)));
    kit.debt(true);
    kit.client.end(kit.now);
    kit.collect();
    assert_eq!(kit.debts, [(Arc::from("b"), ID, Some(DebtTime::Ended))]);
    kit.debt(true);
    assert_eq!(kit.client.owed(), 0, "the call is under way, and its node is told");
    kit.end(CallEnd::NotConnected);
    assert_eq!((kit.client.owed(), kit.client.counts.handed_over), (0, 1));
    assert!(kit.debts.is_empty());
}

#[test]
fn what_one_node_is_told_at_an_end_stays_while_another_is_not_told_yet() {
    let mut kit = Kit::new(10);
    for url in ["a", "b"] {
        kit.notify(url, 1);
        kit.end(CallEnd::NotConnected);
        kit.debt(true);
    }
    kit.client.end(kit.now);
    kit.collect();
    assert_eq!(kit.debt(true), (ID, Some(DebtTime::Ended)));
    assert_eq!(kit.debt(false), (ID, Some(DebtTime::Ended)));
    assert_eq!(kit.client.owed(), 1);
    kit.pass(TimeSpan::from_secs(1));
    assert_eq!(kit.debts, [(Arc::from("b"), ID, Some(DebtTime::Ended))]);
    kit.debt(true);
    kit.pass(TimeSpan::from_secs(1));
    assert_eq!((kit.client.owed(), kit.debts.len()), (0, 0));
}

#[test]
fn a_write_that_was_under_way_at_the_end_does_not_stand_for_the_end() {
    let mut kit = Kit::new(10);
    kit.notify("a", 1);
    kit.end(CallEnd::NotConnected);
    kit.client.end(kit.now);
    kit.collect();
    assert_eq!(kit.debt(true), (ID, Some(DebtTime::Now)));
    assert_eq!((kit.client.owed(), kit.debt(true)), (1, (ID, Some(DebtTime::Ended))));
    assert_eq!(kit.client.owed(), 0);
}

#[test]
fn calls_that_are_under_way_at_the_end_leave_a_debt_before_they_fail() {
    let mut kit = Kit::new(10);
    for user in 0..6 {
        kit.notify("a", user);
    }
    assert_eq!((kit.calls.len(), kit.client.owed()), (4, 0));
    kit.client.end(kit.now);
    kit.collect();
    assert_eq!(kit.client.owed(), 1);
    assert_eq!(kit.debt(true), (ID, Some(DebtTime::Ended)));
    assert_eq!(kit.client.owed(), 0);
    while !kit.calls.is_empty() {
        kit.end(CallEnd::NoAnswer);
    }
    kit.pass(TimeSpan::from_secs(10));
    assert_eq!((kit.client.owed(), kit.debts.len(), kit.replies.len()), (0, 0, 6));
}

#[test]
fn notifications_that_are_lost_while_that_is_written_are_written_again() {
    let mut kit = Kit::new(10);
    kit.client.lose("n");
    kit.pass(TimeSpan::from_ms(100));
    kit.client.lose("n");
    // The node may have read it, and its storage, before the second loss.
    assert_eq!(kit.debt(true), (ID + 1, Some(DebtTime::Ended)));
    assert_eq!(kit.client.owed(), 1);
    kit.pass(DEBT_INTERVAL);
    assert_eq!(kit.debt(true), (ID + 1, Some(DebtTime::Ended)));
    kit.pass(DEBT_INTERVAL);
    assert_eq!((kit.client.owed(), kit.debts.len()), (0, 0));
}

#[test]
fn a_debt_stays_until_words_that_are_lost_have_a_row_of_their_own() {
    let mut kit = Kit::new(1);
    for user in 0..2 {
        kit.notify("n", user);
        kit.end(CallEnd::NotConnected);
        while !kit.debts.is_empty() {
            kit.debt(true);
        }
    }
    kit.pass(TimeSpan::from_secs(2));
    assert_eq!(kit.debt(false), (ID + 1, Some(DebtTime::Ended)));
    kit.end(CallEnd::Answered(Some(PeerReply::Done)));
    kit.pass(TimeSpan::from_secs(5));
    assert!(kit.debts.is_empty(), "{:?}", kit.debts);
    kit.pass(DEBT_INTERVAL);
    assert_eq!(kit.debt(true), (ID + 1, Some(DebtTime::Ended)));
    kit.pass(TimeSpan::from_secs(2));
    assert_eq!(kit.debt(true), (ID, None));
}

#[test]
fn nodes_that_never_answer_make_room_and_are_told_what_they_were_owed() {
    let mut kit = Kit::new(10);
    for n in 0..NODES_MAX {
        for user in 0..3 {
            kit.notify(&n.to_string(), user);
            kit.end(CallEnd::NotConnected);
            while !kit.debts.is_empty() {
                kit.debt(true);
            }
        }
    }
    assert_eq!(kit.client.owed(), 3 * NODES_MAX);
    kit.notify("news", 1);
    assert_eq!((kit.client.counts.dropped, kit.client.owed()), (3, 3 * NODES_MAX - 2));
    kit.pass(TimeSpan::from_ms(100));
    let lost = |(_, id, time): &&(Arc<str>, u64, Option<DebtTime>)| (*id, *time) == (ID + 1, Some(DebtTime::Ended));
    assert_eq!(kit.debts.iter().filter(lost).count(), 1);
}
