//! Laws of the modes: the contact of a user, and version updates, of which the highest stays.

use std::sync::Arc;

use machine::ids::Clock;
use machine::message::{Message, Urgency};
use machine::simplepush::{Contact, Mode};
use machine::time::UnixSeconds;
use machine::{StoreOp, StoreReply};

use super::BlockingStore;
use crate::testing::sample::{NOW, chid, contact, message, register, save, settle, uaid, update};

/// The contact of a user is the last one given. A register sets it only if it has one, and a contact makes no user.
pub(super) fn contacts_are_replaced_whole(port: &mut BlockingStore) {
    let said = |mode, wake: &str| StoreOp::SetContact {
        uaid: uaid(1),
        contact: contact(mode, wake),
        durable: wake.is_empty(),
    };
    let registered = |channel, told: Option<Box<Contact>>| match register(1, channel, 1) {
        StoreOp::Register { uaid, chid, key, at, seen, .. } => {
            StoreOp::Register { uaid, chid, key, at, seen, contact: told, presence: None, maker: None }
        }
        other => panic!("{other:?}"),
    };
    let found = |port: &mut BlockingStore| port.user(uaid(1)).map(|user| user.contact);
    port.done(said(Mode::Simple, "somewhere"));
    assert_eq!(found(port), None);
    port.done(registered(2, Some(contact(Mode::Simple, "ip=1&port=2"))));
    assert_eq!(found(port), Some(*contact(Mode::Simple, "ip=1&port=2")));
    port.done(registered(3, None));
    port.done(registered(1, None));
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(9) });
    assert_eq!(found(port), Some(*contact(Mode::Simple, "ip=1&port=2")));
    port.publish(update(1, 3, 10, 1));
    for (mode, wake) in [(Mode::Simple, "longer than before"), (Mode::Simple, ""), (Mode::WebPush, "")] {
        port.done(said(mode, wake));
        let user = port.user(uaid(1)).expect("it is known");
        assert_eq!((user.contact, user.channels), (*contact(mode, wake), vec![chid(1), chid(3)]));
        assert!(user.may_have_messages);
    }
    assert_eq!(port.topic_clocks(uaid(1)), [10], "who is reached otherwise keeps its rows");
}

/// The minimum urgency is a part of the contact: it stands until another contact is given, over registers, refreshes
/// and settled rows, and ends with its user.
pub(super) fn the_minimum_urgency_stands(port: &mut BlockingStore) {
    let minimum = |minimum| Contact { minimum, ..Contact::default() };
    let said = |of: &Contact| StoreOp::SetContact { uaid: uaid(1), contact: Box::new(of.clone()), durable: true };
    let found = |port: &mut BlockingStore| port.user(uaid(1)).map(|user| user.contact);
    port.register(1, 2);
    assert_eq!(found(port), Some(minimum(None)), "no user agent has a minimum that it has not named");
    for urgency in [Urgency::VeryLow, Urgency::Low, Urgency::Normal, Urgency::High] {
        port.done(said(&minimum(Some(urgency))));
        assert_eq!(found(port), Some(minimum(Some(urgency))));
    }
    port.register(1, 3);
    port.publish(message(1, 2, 10));
    port.done(settle(&[message(1, 2, 10)], Some(10), true));
    port.done(StoreOp::Touch { uaid: uaid(1), seen: UnixSeconds(NOW.0 + 1) });
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(3), at: Clock(9) });
    assert_eq!(found(port), Some(minimum(Some(Urgency::High))));
    let located = port.ask(StoreOp::Locate { uaid: uaid(1), chid: chid(2) });
    let Ok(StoreReply::User(Some(located))) = located else { panic!("{located:?}") };
    assert_eq!(located.contact, minimum(Some(Urgency::High)), "a node that routes a POST reads it");
    port.done(said(&contact(Mode::Simple, "ip=1")));
    assert_eq!(found(port), Some(*contact(Mode::Simple, "ip=1")), "updates have no urgency");
    port.done(said(&minimum(Some(Urgency::Low))));
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    port.register(1, 2);
    assert_eq!(found(port), Some(minimum(None)));
}

/// A message is stored only for a user that is reached in its mode; a save skips this check.
pub(super) fn publish_checks_the_mode(port: &mut BlockingStore) {
    port.register(1, 2);
    let ask =
        |port: &mut BlockingStore, m: Message| port.ask(StoreOp::Publish { message: Arc::new(m), checked: false });
    assert!(matches!(ask(port, update(1, 2, 1, 1)), Ok(StoreReply::OtherMode)));
    assert!(matches!(ask(port, update(1, 3, 1, 1)), Ok(StoreReply::NoSubscription)));
    port.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::Simple, ""), durable: true });
    for ttl in [0, 60] {
        assert!(matches!(ask(port, Message { ttl, ..message(1, 2, 2) }), Ok(StoreReply::OtherMode)));
    }
    assert!(port.clocks(uaid(1)).is_empty() && port.topic_clocks(uaid(1)).is_empty());
    port.publish(update(1, 2, 3, 1));
    port.done(save(&[message(1, 2, 4)]));
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![4], vec![3]));
}

/// A row of a version update is overwritten only by a higher version, whichever was written first; not by one of the
/// same version, and by any when it has expired.
pub(super) fn only_a_higher_version_overwrites(port: &mut BlockingStore) {
    port.register(1, 2);
    port.register(1, 3);
    port.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::Simple, ""), durable: true });
    let kept = |port: &mut BlockingStore| {
        let page = port.page(StoreOp::Topics { uaid: uaid(1), after: None, limit: 9, now: NOW });
        page.messages.iter().map(|m| (m.stamp.clock.0, m.simple_version().unwrap_or(0))).collect::<Vec<_>>()
    };
    port.publish(update(1, 2, 10, 5));
    port.publish(update(1, 3, 11, 1));
    for (clock, version) in [(20, 4), (21, 5), (9, 5)] {
        port.publish(update(1, 2, clock, version));
        if clock == 9 {
            assert_eq!(kept(port)[0], (9, 5), "of two of one version the first stamp stays");
        } else {
            assert_eq!(kept(port)[0], (10, 5));
        }
    }
    port.done(save(&[update(1, 2, 30, 4), update(1, 2, 3, 6), update(1, 2, 31, 6)]));
    assert_eq!(kept(port), [(3, 6), (11, 1)], "a higher version with an older stamp");
    // Its delete leaves a newer one alone.
    port.done(settle(&[update(1, 2, 9, 5)], None, true));
    assert_eq!(kept(port), [(3, 6), (11, 1)]);
    port.publish(Message { accepted: UnixSeconds(NOW.0 + 99), ..update(1, 2, 40, 2) });
    assert_eq!(kept(port)[0], (3, 6));
    port.publish(Message { accepted: UnixSeconds(NOW.0 + 100), ..update(1, 2, 41, 2) });
    assert_eq!(kept(port)[0], (41, 2), "an expired version keeps nobody away");
}
