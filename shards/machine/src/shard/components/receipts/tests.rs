//! Records of receipts, their bounds, and the results of queries.

use super::*;

fn row(n: u64) -> RowKey {
    let stamp = Stamp { clock: crate::ids::Clock(n), ..Stamp::default() };
    RowKey { uaid: Uaid([1; 16]), chid: Chid([2; 16]), stamp, topic: None }
}

#[test]
fn the_bound_holds_and_what_ended_last_stays() {
    let mut receipts = Receipts::new();
    let until = UnixSeconds(1);
    for n in 0..limits::RECEIPTS_MAX as u64 {
        assert!(!receipts.begin(&row(n), until));
    }
    assert!(receipts.end(&row(0), Outcome::Delivered));
    assert!(receipts.begin(&row(1 << 40), until));
    assert!(receipts.find(&row(1)).is_none(), "the oldest is forgotten");
    assert_eq!(receipts.find(&row(0)), Some((Some(Outcome::Delivered), until)), "an outcome is news");
    for n in 0..3 * limits::RECEIPTS_MAX as u64 {
        receipts.begin(&row((2 << 40) + n), until);
        receipts.end(&row((2 << 40) + n), Outcome::Delivered);
        assert!(receipts.len() <= limits::RECEIPTS_MAX);
        assert!(receipts.users[&row(0).uaid].order.len() <= 2 * limits::RECEIPTS_MAX + STALE_MAX);
    }
    assert!(receipts.find(&row(0)).is_none());
}

#[test]
fn a_flood_for_one_user_forgets_no_receipt_of_another() {
    let (mut receipts, mut stats) = (Receipts::new(), MachineStats::default());
    let other = RowKey { uaid: Uaid([7; 16]), ..row(1) };
    receipts.begin(&other, UnixSeconds(200));
    for n in 0..2 * limits::RECEIPTS_MAX as u64 {
        receipts.begin(&row(n), UnixSeconds(200));
    }
    assert_eq!(receipts.find(&other), Some((None, UnixSeconds(200))));
    assert_eq!(receipts.len(), limits::RECEIPTS_MAX);
    // Its waiters leave room, too.
    let last = 2 * limits::RECEIPTS_MAX as u64 - 1;
    let wait = |receipts: &mut Receipts, stats: &mut MachineStats, n: u32, query: &ReceiptQuery| {
        receipts.query(NOW, reply_to(n), query, (ELSEWHERE, true), stats)
    };
    for n in 0..limits::RECEIPT_WAITERS_OF_USER_MAX as u32 {
        assert_eq!(wait(&mut receipts, &mut stats, n, &query(last, 200, 9)), Some(Look::Waits));
    }
    let refused = Some(Look::Answer(ReceiptAnswer::Unavailable));
    assert_eq!(wait(&mut receipts, &mut stats, 1 << 20, &query(last, 200, 9)), refused);
    let of_other = ReceiptQuery { uaid: other.uaid, ..query(1, 200, 9) };
    assert_eq!(wait(&mut receipts, &mut stats, 1 << 21, &of_other), Some(Look::Waits));
    receipts.give_up_all();
    receipts.user_dropped(row(0).uaid, &mut stats);
    for n in 0..2 * limits::RECEIPTS_MAX as u64 {
        receipts.forget(&row(n));
    }
    receipts.forget(&other);
    assert!(receipts.users.is_empty() && receipts.most.is_empty() && receipts.waiters == 0);
}

#[test]
fn the_first_outcome_stays() {
    let mut receipts = Receipts::new();
    assert!(!receipts.end(&row(1), Outcome::Delivered), "nobody asked");
    receipts.begin(&row(1), UnixSeconds(1));
    assert!(receipts.end(&row(1), Outcome::Expired));
    assert!(!receipts.end(&row(1), Outcome::Delivered));
    assert_eq!(receipts.find(&row(1)).unwrap().0, Some(Outcome::Expired));
}

const NOW: Now = Now { mono: Instant(1_000), unix_us: 100_000_000 };
const ELSEWHERE: Whereabouts = Whereabouts { in_memory: false, reading: false, settling: false };

fn query(n: u64, expires: u64, wait: u64) -> ReceiptQuery {
    let RowKey { uaid, chid, stamp, topic } = row(n);
    ReceiptQuery { uaid, chid, stamp, topic, expires: UnixSeconds(expires), wait: TimeSpan::from_secs(wait) }
}

fn reply_to(n: u32) -> ReplyTo<ReceiptAnswer> {
    ReplyTo::Local(crate::ids::ConnId { slot: n, generation: 0 })
}

#[test]
fn a_query_waits_for_the_end_and_is_told_it() {
    let (mut receipts, mut stats) = (Receipts::new(), MachineStats::default());
    receipts.accepted(&row(1), UnixSeconds(200), &mut stats);
    let look = receipts.query(NOW, reply_to(1), &query(1, 200, 9), (ELSEWHERE, true), &mut stats);
    assert_eq!((look, receipts.waiters()), (Some(Look::Waits), 1));
    let none = receipts.query(NOW, reply_to(2), &query(1, 200, 0), (ELSEWHERE, true), &mut stats);
    assert_eq!(none, Some(Look::Answer(ReceiptAnswer::Pending)));
    receipts.ended(&row(1), Outcome::Delivered, &mut stats);
    assert_eq!(receipts.due(), Some(Instant(0)));
    assert_eq!(receipts.next_ready(), Some((reply_to(1), ReceiptAnswer::Ended(Outcome::Delivered))));
    assert_eq!((receipts.due(), stats.receipts_delivered), (None, 1));
}

#[test]
fn what_is_not_known_is_read_and_never_called_expired() {
    let (mut receipts, mut stats) = (Receipts::new(), MachineStats::default());
    let mut look = |expires| receipts.query(NOW, reply_to(1), &query(1, expires, 9), (ELSEWHERE, true), &mut stats);
    assert_eq!((look(200), look(100)), (None, Some(Look::Answer(ReceiptAnswer::Unknown))));
    let gone = (false, ELSEWHERE, true);
    let unknown = Look::Answer(ReceiptAnswer::Unknown);
    assert_eq!(receipts.read(NOW, reply_to(1), &query(1, 200, 9), gone, &mut stats), unknown);
    let settling = (true, Whereabouts { settling: true, ..ELSEWHERE }, true);
    assert_eq!(receipts.read(NOW, reply_to(1), &query(1, 200, 9), settling, &mut stats), unknown);
    let there = (true, ELSEWHERE, true);
    assert_eq!(receipts.read(NOW, reply_to(1), &query(1, 200, 9), there, &mut stats), Look::Waits);
}

#[test]
fn a_wait_that_is_over_finds_what_expired_unless_it_may_still_be_acked() {
    for in_memory in [false, true] {
        let (mut receipts, mut stats) = (Receipts::new(), MachineStats::default());
        receipts.accepted(&row(1), UnixSeconds(105), &mut stats);
        receipts.query(NOW, reply_to(1), &query(1, 105, 9), (ELSEWHERE, true), &mut stats);
        let later = Now { mono: NOW.mono.after(TimeSpan::from_secs(5)), unix_us: 105_000_000 };
        assert_eq!((receipts.due(), receipts.overdue(NOW.mono)), (Some(later.mono), None));
        assert_eq!(receipts.overdue(later.mono), Some(row(1)));
        receipts.waited(later, &row(1), Whereabouts { in_memory, ..ELSEWHERE }, &mut stats);
        let answer = if in_memory { ReceiptAnswer::Pending } else { ReceiptAnswer::Ended(Outcome::Expired) };
        assert_eq!(receipts.next_ready(), Some((reply_to(1), answer)));
    }
}
