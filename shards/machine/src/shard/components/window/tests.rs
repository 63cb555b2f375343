//! The sums of a window are those of its entries, after any sequence of acts.

use super::*;
use crate::ids::{Clock, LedgerSlot, Origin, Uaid};
use crate::message::Urgency;
use crate::time::{TimeSpan, UnixSeconds};
use proptest::prelude::*;

fn message(clock: u64) -> Arc<Message> {
    Arc::new(Message {
        uaid: Uaid([1; 16]),
        chid: Chid([clock as u8 % 3; 16]),
        stamp: Stamp { clock: Clock(clock), origin: Origin(0) },
        ttl: 1_000,
        accepted: UnixSeconds(1),
        urgency: Urgency::of(clock as u8 % 4).unwrap_or_default(),
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: vec![0; clock as usize % 50].into(),
    })
}

fn at(ms: u64) -> Now {
    Now { mono: Instant(10_000_000_000).after(TimeSpan::from_ms(ms)), unix_us: 2_000_000 }
}

/// Recounts every sum of the window.
fn check(window: &Window) {
    let entries = || window.entries.iter();
    let bytes =
        |direct: bool| entries().filter(|entry| entry.is_direct() == direct).map(WindowEntry::body_bytes).sum::<u32>();
    assert_eq!((window.direct_bytes, window.row_bytes), (bytes(true), bytes(false)));
    assert_eq!(window.ahead_bytes, entries().map(WindowEntry::ahead_bytes).sum::<u32>());
    assert_eq!(usize::from(window.unsent), entries().filter(|entry| entry.waits()).count());
    assert!(entries().all(|entry| !(entry.sent && entry.held)));
    assert_eq!(usize::from(window.pace.out()), entries().filter(|entry| entry.sent).count());
    assert!(entries().take(usize::from(window.sent_below)).all(|entry| !entry.waits() || entry.body.is_none()));
}

#[derive(Clone, Debug)]
enum Act {
    Enter { direct: bool },
    Send,
    Unsend(usize),
    Remove(usize),
    Spill { saved: bool },
    Forget,
    Retry(usize),
    Pass(u64),
    Hold(Urgency),
    Release(Urgency),
    LeaveHeld,
}

fn urgency() -> impl Strategy<Value = Urgency> {
    (0u8..4).prop_map(|number| Urgency::of(number).unwrap_or_default())
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        any::<bool>().prop_map(|direct| Act::Enter { direct }),
        Just(Act::Send),
        (0usize..20).prop_map(Act::Unsend),
        (0usize..20).prop_map(Act::Remove),
        any::<bool>().prop_map(|saved| Act::Spill { saved }),
        Just(Act::Forget),
        (0usize..20).prop_map(Act::Retry),
        (0u64..90_000).prop_map(Act::Pass),
        urgency().prop_map(Act::Hold),
        urgency().prop_map(Act::Release),
        Just(Act::LeaveHeld),
    ]
}

fn stamp_at(window: &Window, place: usize) -> Option<Stamp> {
    window.entries.get(place).map(|entry| entry.row.stamp)
}

fn apply(window: &mut Window, act: &Act, clock: u64, ms: &mut u64) {
    let now = at(*ms);
    match act {
        Act::Enter { direct } => {
            let source = if *direct { CopyLocation::Direct(LedgerSlot(clock as u32)) } else { CopyLocation::Row };
            window.enter(WindowEntry::new(message(clock), source, now.mono));
        }
        Act::Send => _ = window.send_waiting(now, 16, |_, _| {}),
        Act::Unsend(place) => {
            let emission = window.entries.get(*place).map(|entry| entry.emission);
            window.unsend(|ours| Some(ours) == emission);
        }
        Act::Remove(place) => _ = stamp_at(window, *place).and_then(|stamp| window.remove(stamp)),
        Act::Spill { saved } => {
            for message in window.spill(now, TimeSpan::from_secs(10), None).messages {
                assert!(window.contains(message.stamp));
                if *saved {
                    assert!(window.spilled(message.stamp).is_some() && window.spilled(message.stamp).is_none());
                } else {
                    window.not_spilled(message.stamp, now.mono);
                }
            }
        }
        Act::Forget => _ = window.forget_bodies(now.mono, BODY_KEPT),
        Act::Retry(place) => retry(window, stamp_at(window, *place), now),
        Act::Pass(more) => *ms += more,
        Act::Hold(minimum) => {
            window.hold(*minimum);
            assert!(window.entries.iter().all(|entry| !entry.waits() || entry.urgency >= *minimum));
        }
        Act::Release(minimum) => {
            window.release(*minimum);
            assert!(window.entries.iter().all(|entry| !entry.held || entry.urgency < *minimum));
        }
        Act::LeaveHeld => window.held_rows().into_iter().for_each(|stamp| _ = window.remove(stamp)),
    }
}

fn retry(window: &mut Window, stamp: Option<Stamp>, now: Now) {
    let due = window.unacked_for(now.mono, TimeSpan::from_secs(60));
    let Some(stamp) = stamp.filter(|stamp| due.contains(stamp)) else { return };
    match window.retry(stamp, now.mono, 9, true, Urgency::Low) {
        Retry::Resend(_) => _ = window.resend(stamp, now.mono),
        Retry::Read(row) => {
            let read = window.end_read(row.stamp).expect("it is there");
            assert!(read.sent && window.fill(stamp, message(stamp.clock.0)).is_none(), "the socket has its frame");
        }
        Retry::Defer => {
            let entry = window.remove(stamp).expect("it is there");
            assert!(window.defer(&entry) && window.holds(stamp) && !window.contains(stamp));
        }
        Retry::Spent(_) | Retry::Stays => {}
    }
}

proptest! {
    #[test]
    fn the_sums_of_a_window_are_those_of_its_entries(acts in prop::collection::vec(act(), 1..150)) {
        let (mut window, mut ms) = (Window::default(), 0);
        for (clock, act) in acts.iter().enumerate() {
            apply(&mut window, act, clock as u64 + 1, &mut ms);
            check(&window);
        }
        let settled = window.settled_below();
        prop_assert!(window.entries.iter().all(|entry| entry.row.stamp.clock.0 > settled));
    }
}

#[test]
fn a_row_that_the_socket_refused_late_keeps_back_what_is_behind_it() {
    let mut window = Window::default();
    for clock in 1..=2 {
        window.enter(WindowEntry::new(message(clock), CopyLocation::Row, at(0).mono));
    }
    let mut sent = Vec::new();
    window.send_waiting(at(0), 1, |message, emission| sent.push((message.stamp.clock.0, emission)));
    window.forget_bodies(at(5_000).mono, BODY_KEPT);
    assert!(window.unsend(|ours| ours == sent[0].1) && window.gap().is_some_and(|gap| !gap.reading));
    assert_eq!(window.send_waiting(at(5_000), 9, |_, _| {}).count, 0);
    let first = message(1).stamp;
    window.begin_read(first);
    assert!(window.gap().is_some_and(|gap| gap.reading));
    assert!(window.end_read(first).is_some_and(|read| !read.sent) && window.fill(first, message(1)).is_some());
    let mut order = Vec::new();
    window.send_waiting(at(5_000), 9, |message, _| order.push(message.stamp.clock.0));
    assert_eq!(order, [1, 2]);
    check(&window);
}
