//! Laws of users: the content of a record, the number of channels, removal, and order.

use std::sync::Arc;

use machine::ids::{Chid, Clock, Stamp};
use machine::limits;
use machine::message::Urgency;
use machine::simplepush::Contact;
use machine::time::UnixSeconds;
use machine::{NodeId, Presence, RowKey, StoreError, StoreOp, StoreReply};

use super::BlockingStore;
use super::blocking_store::Answer;
use crate::RECORD_VERSION;
use crate::testing::sample::{NOW, chid, message, register, register_bridged, save, settle, subscribe, topical, uaid};

/// An acknowledged record is read back, whole.
pub(super) fn acknowledged_is_read_back(port: &mut BlockingStore) {
    assert_eq!(port.user(uaid(1)), None);
    port.register(1, 2);
    port.done(register(1, 2, 9));
    port.register(1, 3);
    let sent = [message(1, 2, 10), message(1, 3, 11), topical(1, 2, 12, "tide")];
    sent.iter().for_each(|m| port.publish(m.clone()));
    port.done(save(&[message(1, 2, 5)]));
    assert_eq!(port.clocks(uaid(1)), [5, 10, 11]);
    assert_eq!(port.topic_clocks(uaid(1)), [12]);
    for m in &sent {
        let page = port.page(StoreOp::Read { row: RowKey::of(m), now: NOW });
        assert_eq!((page.messages.len(), page.exhausted), (1, true));
        assert_eq!(*page.messages[0], *m);
    }
    let user = port.user(uaid(1)).expect("it is known");
    assert_eq!((user.record_version, user.seen), (RECORD_VERSION, NOW));
    assert_eq!(user.channels, [chid(2), chid(3)]);
    assert!(user.may_have_messages && user.user_clock >= Clock(9));
    port.done(StoreOp::Touch { uaid: uaid(1), seen: UnixSeconds(NOW.0 + 5) });
    assert_eq!(port.user(uaid(1)).expect("it is known").seen, UnixSeconds(NOW.0 + 5));
    port.done(StoreOp::Touch { uaid: uaid(9), seen: NOW });
    assert_eq!(port.user(uaid(9)), None, "a touch makes nobody");
}

/// Unregister and drop take every row with them and nothing else.
pub(super) fn unregister_and_drop_remove_every_row(port: &mut BlockingStore) {
    for (user, channel) in [(1, 2), (1, 3), (2, 2)] {
        port.register(user, channel);
        port.publish(message(user, channel, 10 + u64::from(channel)));
        port.publish(topical(user, channel, 20 + u64::from(channel), "tide"));
        port.done(save(&[message(user, channel, 5)]));
    }
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(50) });
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![5, 13], vec![23]));
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(9), at: Clock(60) });
    port.done(StoreOp::Unregister { uaid: uaid(8), chid: chid(9), at: Clock(60) });
    let user = port.user(uaid(1)).expect("it is known");
    assert_eq!((user.channels.as_slice(), user.user_clock >= Clock(60)), (&[chid(3)][..], true));
    port.register(1, 2);
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![5, 13], vec![23]));
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(port.user(uaid(1)), None);
    port.register(1, 2);
    port.register(1, 3);
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![], vec![]));
    assert_eq!((port.clocks(uaid(2)), port.topic_clocks(uaid(2))), (vec![5, 12], vec![22]));
}

/// A user goes as idle only without a channel, and a register behind that stands, in one batch or in many.
pub(super) fn only_a_user_without_a_channel_is_idle(port: &mut BlockingStore) {
    let idle = |user| StoreOp::DropIdle { uaid: uaid(user) };
    let kept = |port: &mut BlockingStore, user| {
        let answer = port.ask(idle(user));
        assert!(matches!(answer, Ok(StoreReply::Kept)), "{answer:?}");
    };
    let unregister = |user, at| StoreOp::Unregister { uaid: uaid(user), chid: chid(2), at: Clock(at) };
    kept(port, 1);
    port.done(register(1, 2, 10));
    port.publish(message(1, 2, 20));
    port.publish(message(1, 2, 21));
    port.done(settle(&[message(1, 2, 20)], Some(20), true));
    kept(port, 1);
    assert_eq!(port.clocks(uaid(1)), [21]);
    port.done(unregister(1, 30));
    port.done(idle(1));
    assert_eq!(port.user(uaid(1)), None);
    kept(port, 1);
    port.done(unregister(1, 31));
    assert_eq!(port.user(uaid(1)), None);
    port.done(register(1, 2, 1_000));
    let user = port.user(uaid(1)).expect("it is known");
    assert_eq!((user.channels.as_slice(), user.seen, port.clocks(uaid(1))), (&[chid(2)][..], NOW, vec![]));
    port.publish(message(1, 2, 1_100));
    assert_eq!(port.clocks(uaid(1)), [1_100]);
    // Both orders of the drop and the next register, in one batch.
    for (round, register_first) in [(2u64, true), (3, false)] {
        let at = round * 1_000;
        port.done(unregister(1, at));
        let mut two = vec![idle(1), register(1, 2, at + 100)];
        if register_first {
            two.reverse();
        }
        let answers = port.ask_all(two);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(port.user(uaid(1)).expect("it is known").channels, [chid(2)], "register first: {register_first}");
        port.publish(message(1, 2, at + 200));
        assert_eq!(port.clocks(uaid(1)), [at + 200]);
    }
    // What its next hello does not say again stays.
    let minimum = Contact { minimum: Some(Urgency::High), ..Contact::default() };
    port.done(StoreOp::SetContact { uaid: uaid(1), contact: Box::new(minimum), durable: true });
    port.done(unregister(1, 5_000));
    kept(port, 1);
    port.done(register_bridged(2, 2, 6_000));
    port.done(unregister(2, 6_100));
    kept(port, 2);
    assert!(port.user(uaid(1)).is_some() && port.user(uaid(2)).is_some());
}

/// A channel id, or a user, that comes again has none of its earlier rows and all of its new ones, however many rows
/// there were: a store may remove them later.
pub(super) fn what_comes_again_begins_empty(port: &mut BlockingStore) {
    port.done(register(1, 2, 1));
    port.done(register(1, 3, 2));
    let publish = |m| StoreOp::Publish { message: Arc::new(m), checked: false };
    let many = |channel, from: u64| (from..from + 600).map(move |clock| publish(message(1, channel, clock)));
    assert!(port.ask_all(many(2, 100).collect()).iter().all(Result::is_ok));
    port.publish(message(1, 3, 800));
    port.publish(topical(1, 2, 810, "tide"));
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(900) });
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![800], vec![]));
    port.done(register(1, 2, 1_000));
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![800], vec![]));
    port.publish(message(1, 2, 1_100));
    port.publish(topical(1, 2, 1_110, "tide"));
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![800, 1_100], vec![1_110]));
    assert!(port.ask_all(many(3, 1_200).collect()).iter().all(Result::is_ok));
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(port.user(uaid(1)), None);
    port.done(register(1, 3, 3_000_000));
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![], vec![]));
    port.publish(message(1, 3, 3_000_100));
    assert_eq!((port.clocks(uaid(1)), port.topic_clocks(uaid(1))), (vec![3_000_100], vec![]));
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, [chid(3)]);
}

/// A subscription makes no user, keeps the key of a channel, and says when it has another.
pub(super) fn a_subscription_makes_no_user_and_replaces_no_key(port: &mut BlockingStore) {
    assert!(matches!(port.ask(subscribe(1, 2, 7, 1)), Ok(StoreReply::NoSubscription)));
    assert_eq!(port.user(uaid(1)), None);
    port.register(1, 3);
    for (channel, key) in [(2, 7), (5, 0)] {
        port.done(subscribe(1, channel, key, 10));
        port.done(subscribe(1, channel, key, 11));
        for other in [0, 7, 8].into_iter().filter(|other| *other != key) {
            let answer = port.ask(subscribe(1, channel, other, 12));
            assert!(matches!(answer, Ok(StoreReply::OtherKey)), "{channel} {other}: {answer:?}");
        }
    }
    // One batch with the registration, and a channel of a register.
    let both = port.ask_all(vec![register(1, 4, 13), subscribe(1, 4, 4, 14), subscribe(1, 4, 7, 15)]);
    assert!(matches!(both[..], [Ok(StoreReply::Done), Ok(StoreReply::Done), Ok(StoreReply::OtherKey)]), "{both:?}");
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, [2, 3, 4, 5].map(chid));
    port.publish(message(1, 2, 20));
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(30) });
    port.done(subscribe(1, 2, 8, 31));
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    let answers = port.ask_all(vec![subscribe(1, 2, 8, 32), subscribe(1, 6, 0, 33)]);
    assert!(answers.iter().all(|answer| matches!(answer, Ok(StoreReply::NoSubscription))), "{answers:?}");
    assert_eq!(port.user(uaid(1)), None);
}

/// A user has at most `CHANNELS_MAX` channels; they all come back.
pub(super) fn channels_are_bounded(port: &mut BlockingStore) {
    let register = |n: usize| StoreOp::Register {
        uaid: uaid(1),
        chid: Chid((n as u128).to_be_bytes()),
        key: None,
        at: Clock(1),
        seen: NOW,
        contact: None,
        presence: None,
        maker: None,
    };
    let registers: Vec<_> = (0..limits::CHANNELS_MAX).rev().map(register).collect();
    // An operation must end 25 s after its submission, and those of one user follow each other.
    for some in registers.chunks(64) {
        let refused = port.ask_all(some.to_vec()).into_iter().find(|answer| !matches!(answer, Ok(StoreReply::Done)));
        assert!(refused.is_none(), "{refused:?}");
    }
    assert!(matches!(port.ask(register(limits::CHANNELS_MAX)), Err(StoreError::Full)));
    assert!(matches!(port.ask(register(3)), Ok(StoreReply::Done)));
    let user = port.user(uaid(1)).expect("it is known");
    let all: Vec<_> = (0..limits::CHANNELS_MAX).map(|n| Chid((n as u128).to_be_bytes())).collect();
    assert_eq!(user.channels, all);
}

/// Operations of one user take effect in the order of submission, reads among them.
pub(super) fn one_users_operations_keep_their_order(port: &mut BlockingStore) {
    let mut ops = vec![register(1, 2, 1)];
    let all = |limit| StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit, now: NOW };
    for round in 0..200u64 {
        let m = message(1, 2, 100 + round);
        ops.push(all(9));
        ops.push(StoreOp::Publish { message: Arc::new(m.clone()), checked: false });
        ops.push(all(9));
        ops.push(StoreOp::Read { row: RowKey::of(&m), now: NOW });
        ops.push(settle(&[m], None, round.is_multiple_of(2)));
        ops.push(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(round) });
        ops.push(StoreOp::LoadUser { uaid: uaid(1) });
        ops.push(register(1, 2, 1_000 + round));
    }
    let answers = port.ask_all(ops);
    let rows = |answer: &Answer| match answer {
        Ok(StoreReply::Page(page)) => page.messages.len(),
        other => panic!("{other:?}"),
    };
    for (round, chunk) in answers[1..].chunks(8).enumerate() {
        assert_eq!((rows(&chunk[0]), rows(&chunk[2]), rows(&chunk[3])), (0, 1, 1), "round {round}");
        let Ok(StoreReply::User(Some(user))) = &chunk[6] else { panic!("{:?}", chunk[6]) };
        assert!(user.channels.is_empty(), "round {round}");
    }
}

/// A session stands until exactly it is cleared or a newer one of its node and boot comes; the newest is first. Only on
/// stores that several nodes read.
pub(super) fn presence_is_cleared_exactly(port: &mut BlockingStore) {
    let node = |boot| Arc::new(NodeId { url: "http://192.0.2.1:8082".into(), boot });
    let at = |boot, connected_at| Presence { node: node(boot), connected_at };
    let set = |presence| StoreOp::SetPresence { uaid: uaid(1), presence };
    let clear = |presence| StoreOp::ClearPresence { uaid: uaid(1), presence };
    let found = |port: &mut BlockingStore| port.user(uaid(1)).expect("it is known").presence;
    port.done(clear(at(1, 5)));
    assert_eq!(port.user(uaid(1)), None, "nobody is made by it");
    let registered = match register(1, 2, 1) {
        StoreOp::Register { uaid, chid, key, at: clock, seen, contact, .. } => {
            StoreOp::Register { uaid, chid, key, at: clock, seen, contact, presence: Some(at(1, 10)), maker: None }
        }
        other => panic!("{other:?}"),
    };
    port.done(registered);
    assert_eq!(found(port), [at(1, 10)]);
    port.done(set(at(2, 30)));
    port.done(set(at(3, 20)));
    assert_eq!(found(port), [at(2, 30), at(3, 20), at(1, 10)]);
    port.done(set(at(1, 40)));
    port.done(set(at(2, 25)));
    assert_eq!(found(port), [at(1, 40), at(2, 30), at(3, 20)], "an older one of the same boot changes nothing");
    port.done(clear(at(1, 10)));
    assert_eq!(found(port), [at(1, 40), at(2, 30), at(3, 20)], "a newer one stays");
    port.done(clear(at(2, 30)));
    port.done(clear(at(2, 30)));
    assert_eq!(found(port), [at(1, 40), at(3, 20)]);
    port.done(StoreOp::Touch { uaid: uaid(1), seen: UnixSeconds(NOW.0 + 1) });
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(50) });
    assert_eq!(found(port), [at(1, 40), at(3, 20)]);
    let idle = port.ask(StoreOp::DropIdle { uaid: uaid(1) });
    assert!(matches!(idle, Ok(StoreReply::Kept)), "a session elsewhere has the user: {idle:?}");
    assert_eq!(port.user(uaid(1)).expect("it is known").seen, UnixSeconds(NOW.0 + 1));
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(port.user(uaid(1)), None);
}

/// A look for one channel returns the user without the other channels, for any number of them.
pub(super) fn a_user_is_located_with_one_channel(port: &mut BlockingStore) {
    let locate =
        |port: &mut BlockingStore, channel| match port.ask(StoreOp::Locate { uaid: uaid(1), chid: chid(channel) }) {
            Ok(StoreReply::User(row)) => row.map(|row| *row),
            other => panic!("{other:?}"),
        };
    assert_eq!(locate(port, 2), None);
    for channels in [2..4, 4..120] {
        assert!(port.ask_all(channels.map(|n| register(1, n, 1)).collect()).iter().all(Result::is_ok));
        let user = port.user(uaid(1)).expect("it is known");
        for channel in [2, 60, 119, 200] {
            let there = user.channels.contains(&chid(channel)).then_some(chid(channel));
            let found = locate(port, channel).expect("it is known");
            assert_eq!(found.channels, Vec::from_iter(there));
            assert_eq!(
                (found.presence, found.low_water, found.contact),
                (user.presence.clone(), user.low_water, user.contact.clone())
            );
            assert!(found.user_clock >= Clock(1));
        }
    }
}
