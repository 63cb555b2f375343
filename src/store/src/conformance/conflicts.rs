//! Laws of a store that several nodes share, where client timestamps settle conflicts. They do not hold on a store of
//! one node: there a version that is written again behind its delete is there again, and every publish is checked.

use std::sync::Arc;

use machine::ids::{Clock, Stamp};
use machine::{NodeId, Presence, RowKey, StoreOp, StoreReply};

use super::BlockingStore;
use crate::testing::sample::{NOW, chid, message, save, settle, stamp, topical, uaid};

/// A version that was deleted stays dead when a copy of it is written later, in any form; other versions live.
pub(super) fn what_was_deleted_stays_dead(port: &mut BlockingStore) {
    port.register(1, 2);
    port.register(2, 2);
    let (plain, topic) = (message(1, 2, 10), topical(1, 2, 20, "tide"));
    port.publish(plain.clone());
    port.publish(topic.clone());
    // The last of them was never there: its delete came first.
    port.done(settle(&[plain.clone(), topic.clone(), message(1, 2, 30)], None, true));
    port.publish(plain.clone());
    port.publish(topic.clone());
    port.done(save(&[plain.clone(), topic, message(1, 2, 30)]));
    assert!(port.clocks(uaid(1)).is_empty() && port.topic_clocks(uaid(1)).is_empty());
    assert!(port.page(StoreOp::Read { row: RowKey::of(&plain), now: NOW }).messages.is_empty());
    port.publish(message(1, 2, 31));
    port.publish(topical(1, 2, 32, "tide"));
    port.publish(message(2, 2, 10));
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![31], vec![32]));
    assert_eq!(port.clocks(uaid(2)), [10]);
}

/// A presence row that was cleared does not come back in that version or an earlier one, and does in a later one.
pub(super) fn a_cleared_presence_stays_cleared(port: &mut BlockingStore) {
    let node = Arc::new(NodeId { url: "http://192.0.2.1:8082".into(), boot: 1 });
    let at = |connected_at| Presence { node: node.clone(), connected_at };
    let set = |presence| StoreOp::SetPresence { uaid: uaid(1), presence };
    let found = |port: &mut BlockingStore| port.user(uaid(1)).expect("it is known").presence;
    port.register(1, 2);
    port.done(set(at(10)));
    port.done(StoreOp::ClearPresence { uaid: uaid(1), presence: at(10) });
    for earlier in [9, 10] {
        port.done(set(at(earlier)));
        assert!(found(port).is_empty());
    }
    port.done(set(at(11)));
    assert_eq!(found(port), [at(11)]);
}

/// A presence row that is written behind the drop of its user stands with the register that follows.
pub(super) fn a_presence_row_waits_for_its_user(port: &mut BlockingStore) {
    let node = Arc::new(NodeId { url: "http://192.0.2.1:8082".into(), boot: 1 });
    let at = |connected_at| Presence { node: node.clone(), connected_at };
    port.register(1, 2);
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(30) });
    port.done(StoreOp::DropIdle { uaid: uaid(1) });
    for presence in [at(10), at(11)] {
        port.done(StoreOp::SetPresence { uaid: uaid(1), presence });
    }
    port.done(StoreOp::ClearPresence { uaid: uaid(1), presence: at(10) });
    assert_eq!(port.user(uaid(1)), None);
    port.register(1, 3);
    assert_eq!(port.user(uaid(1)).expect("it is known").presence, [at(11)]);
}

/// A checked publish is written without a read of low water: no page shows it there until it is saved.
pub(super) fn a_checked_publish_reads_nothing(port: &mut BlockingStore) {
    port.register(1, 2);
    port.done(settle(&[message(1, 2, 40)], Some(30), true));
    let late = message(1, 2, 25);
    for clock in [25, 35] {
        port.done(StoreOp::Publish { message: Arc::new(message(1, 2, clock)), checked: true });
    }
    assert_eq!(port.clocks(uaid(1)), [35]);
    assert_eq!(port.user(uaid(1)).expect("it is known").low_water, Clock(30));
    port.done(save(&[late]));
    assert_eq!(port.clocks(uaid(1)), [25, 35]);
    let rest = StoreOp::Messages { uaid: uaid(1), after: stamp(25), limit: 9, now: NOW };
    assert_eq!(port.page(rest).messages.len(), 1);
    // It makes no user.
    let publish = StoreOp::Publish { message: Arc::new(message(9, 2, 50)), checked: true };
    assert!(matches!(port.ask(publish), Ok(StoreReply::Done | StoreReply::NoSubscription)));
    assert_eq!(port.user(uaid(9)), None);
    let all = StoreOp::Messages { uaid: uaid(9), after: Stamp::default(), limit: 9, now: NOW };
    assert!(port.page(all).messages.is_empty());
}
