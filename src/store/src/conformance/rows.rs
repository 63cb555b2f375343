//! Laws of messages: storage, replacement, order of reads, and removal.

use std::sync::Arc;

use machine::ids::{Clock, Stamp};
use machine::message::{Message, Topic, Tries};
use machine::time::UnixSeconds;
use machine::{RowKey, StoreOp, StoreReply};

use super::BlockingStore;
use crate::testing::sample::{NOW, chid, message, save, settle, stamp, topical, uaid};

/// No message is stored for a user or a channel that is not there, and TTL 0 stores nothing.
pub(super) fn publish_checks_user_and_channel(port: &mut BlockingStore) {
    let ask =
        |port: &mut BlockingStore, m: Message| port.ask(StoreOp::Publish { message: Arc::new(m), checked: false });
    assert!(matches!(ask(port, message(1, 2, 1)), Ok(StoreReply::NoSubscription)));
    port.register(1, 2);
    assert!(matches!(ask(port, message(1, 3, 2)), Ok(StoreReply::NoSubscription)));
    let ttl_zero = |channel, clock| Message { ttl: 0, ..message(1, channel, clock) };
    assert!(matches!(ask(port, ttl_zero(2, 3)), Ok(StoreReply::Done)));
    assert!(matches!(ask(port, ttl_zero(3, 4)), Ok(StoreReply::NoSubscription)));
    assert!(port.clocks(uaid(1)).is_empty());
    // A direct whose channel was unregistered meanwhile ended by that.
    port.done(save(&[message(1, 2, 5), message(1, 3, 6)]));
    assert_eq!(port.clocks(uaid(1)), [5]);
    port.done(save(&[message(4, 2, 5)]));
    assert!(port.clocks(uaid(4)).is_empty());
}

/// A topic row is replaced by newer messages only, and a delete removes one version only.
pub(super) fn topics_and_versions(port: &mut BlockingStore) {
    port.register(1, 2);
    port.register(1, 3);
    let (old, new) = (topical(1, 2, 20, "tide"), topical(1, 2, 30, "tide"));
    port.publish(old.clone());
    port.publish(new.clone());
    port.publish(topical(1, 2, 25, "tide"));
    port.done(save(&[topical(1, 2, 26, "tide")]));
    port.publish(topical(1, 3, 21, "tide"));
    port.publish(topical(1, 2, 22, "moon"));
    assert_eq!(port.topic_clocks(uaid(1)), [22, 30, 21]);
    assert!(port.clocks(uaid(1)).is_empty());
    port.done(settle(&[old], None, true));
    assert_eq!(port.topic_clocks(uaid(1)), [22, 30, 21]);
    port.done(settle(std::slice::from_ref(&new), None, false));
    assert_eq!(port.topic_clocks(uaid(1)), [22, 21]);
    assert!(port.page(StoreOp::Read { row: RowKey::of(&new), now: NOW }).messages.is_empty());
    let after = Some((chid(2), Topic::new(b"moon").expect("a topic")));
    let rest = port.page(StoreOp::Topics { uaid: uaid(1), after, limit: 10, now: NOW });
    assert_eq!(rest.messages.iter().map(|m| m.stamp.clock.0).collect::<Vec<_>>(), [21]);
}

/// Pages are in clock order over message and saved rows, and say when there is no more.
pub(super) fn pages_are_merged_in_order(port: &mut BlockingStore) {
    port.register(1, 2);
    port.register(1, 3);
    port.register(2, 2);
    port.publish(message(2, 2, 15));
    for clock in [40, 10, 30] {
        port.publish(message(1, 2, clock));
    }
    port.done(save(&[message(1, 3, 20), message(1, 2, 35)]));
    let page = |port: &mut BlockingStore, after: u64, limit| {
        let after = if after == 0 { Stamp::default() } else { stamp(after) };
        let page = port.page(StoreOp::Messages { uaid: uaid(1), after, limit, now: NOW });
        (page.messages.iter().map(|m| m.stamp.clock.0).collect::<Vec<_>>(), page.exhausted)
    };
    assert_eq!(page(port, 0, 2), (vec![10, 20], false));
    assert_eq!(page(port, 20, 2), (vec![30, 35], false));
    assert_eq!(page(port, 35, 2), (vec![40], true));
    assert_eq!(page(port, 35, 1), (vec![40], true));
    assert_eq!(page(port, 40, 2), (vec![], true));
    assert_eq!(page(port, 0, 5), (vec![10, 20, 30, 35, 40], true));
}

/// Message rows at or below low water are gone, rows that are saved below it are not.
pub(super) fn low_water_covers_message_rows(port: &mut BlockingStore) {
    port.register(1, 2);
    (1..=5).for_each(|n| port.publish(message(1, 2, n * 10)));
    port.done(settle(&[message(1, 2, 40)], Some(30), false));
    port.done(save(&[message(1, 2, 15)]));
    assert_eq!(port.clocks(uaid(1)), [15, 50]);
    port.done(settle(&[message(1, 2, 99)], Some(20), true));
    assert_eq!(port.user(uaid(1)).expect("it is known").low_water, Clock(30));
    // A straggler below it is not lost: no session can have settled it before it was there.
    port.publish(message(1, 2, 25));
    assert_eq!(port.clocks(uaid(1)), [15, 25, 50]);
    port.done(settle(&[message(1, 2, 15), message(1, 2, 25), message(1, 2, 50)], None, true));
    assert!(port.clocks(uaid(1)).is_empty());
}

/// Expired rows are never returned and never stand in front of live ones, however many.
pub(super) fn expired_rows_do_not_block(port: &mut BlockingStore) {
    port.register(1, 2);
    let brief = |clock| Message { ttl: 10, ..message(1, 2, clock) };
    // Some at once: a store that is asked for all of them gives up those that have waited for too long.
    for first in (1..=10_000).step_by(250) {
        let ops = (first..first + 250).map(|n| StoreOp::Publish { message: Arc::new(brief(n)), checked: false });
        for answer in port.ask_all(ops.collect()) {
            assert!(matches!(answer, Ok(StoreReply::Done)), "{answer:?}");
        }
    }
    port.publish(message(1, 2, 20_000));
    port.publish(Message { ttl: 10, ..topical(1, 2, 20_001, "tide") });
    port.publish(topical(1, 2, 20_002, "zeal"));
    let later = UnixSeconds(NOW.0 + 10);
    for limit in [1, 10] {
        let page = port.page(StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit, now: later });
        assert_eq!((page.messages.len(), page.exhausted), (1, true));
        let page = port.page(StoreOp::Topics { uaid: uaid(1), after: None, limit, now: later });
        assert_eq!((page.messages.len(), page.messages[0].stamp.clock.0), (1, 20_002));
    }
    let read = StoreOp::Read { row: RowKey::of(&brief(7)), now: later };
    assert!(port.page(read).messages.is_empty());
}

/// The number of failed deliveries is read back with its row, in every form of row, and brings nothing back.
pub(super) fn tries_stay_with_their_version(port: &mut BlockingStore) {
    port.register(1, 2);
    let (plain, saved) = (message(1, 2, 11), message(1, 2, 12));
    let (old, topic) = (topical(1, 2, 13, "tide"), topical(1, 2, 14, "tide"));
    port.publish(plain.clone());
    port.done(save(std::slice::from_ref(&saved)));
    port.publish(old.clone());
    port.publish(topic.clone());
    let read = |port: &mut BlockingStore| {
        let of_topics = port.page(StoreOp::Topics { uaid: uaid(1), after: None, limit: 9, now: NOW });
        let of_rows = port.page(StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: 9, now: NOW });
        let rows = of_rows.messages.into_iter().chain(of_topics.messages);
        rows.map(|row| (row.stamp.clock.0, row.tries)).collect::<Vec<_>>()
    };
    let tried = |messages: &[&Message], tries| StoreOp::Tried {
        rows: messages.iter().map(|message| (RowKey::of(message), tries)).collect(),
    };
    let (once, twice) = (Tries::default().and(1), Tries::default().and(1).and(4));
    for tries in [once, twice] {
        port.done(tried(&[&plain, &saved, &topic], tries));
        assert_eq!(read(port), [(11, tries), (12, tries), (14, tries)]);
    }
    // A version that was replaced, and rows that are settled.
    port.done(tried(&[&old], once));
    assert_eq!(read(port), [(11, twice), (12, twice), (14, twice)]);
    port.done(settle(&[plain.clone(), saved.clone(), topic.clone()], None, true));
    port.done(tried(&[&plain, &saved, &topic], once));
    assert!(read(port).is_empty());
    // No user has these rows.
    port.done(tried(&[&message(4, 2, 5)], once));
}

/// A message saved behind a page of topics is on the page of messages that follows.
pub(super) fn what_is_saved_between_two_pages_is_seen(port: &mut BlockingStore) {
    port.register(1, 2);
    port.publish(topical(1, 2, 5, "tide"));
    for clock in [10, 11] {
        assert_eq!(port.topic_clocks(uaid(1)), [5]);
        port.done(save(&[message(1, 2, clock)]));
        assert_eq!(port.clocks(uaid(1)).last(), Some(&clock));
    }
    assert_eq!(port.topic_clocks(uaid(1)), [5]);
    assert_eq!(port.clocks(uaid(1)), [10, 11]);
}
