//! Laws of bridged users: nothing of them is stored, the newest token counts, and a removal is of one token.

use std::sync::Arc;

use machine::ids::Clock;
use machine::message::Message;
use machine::simplepush::Mode;
use machine::time::UnixSeconds;
use machine::upstream::Bridged;
use machine::{StoreOp, StoreReply, UserRow};

use super::BlockingStore;
use crate::IDLE_SECONDS_MAX;
use crate::testing::sample::{
    NOW, bridged, chid, contact, message, register, register_bridged, save, topical, uaid, update,
};

fn publish(port: &mut BlockingStore, message: Message) -> StoreReply {
    port.ask(StoreOp::Publish { message: Arc::new(message), checked: false }).expect("it answers")
}

/// The user with number 1.
fn there(port: &mut BlockingStore) -> UserRow {
    port.user(uaid(1)).expect("it is known")
}

fn bridge(port: &mut BlockingStore) -> Bridged {
    *there(port).contact.bridge.expect("it is bridged")
}

fn set(registered: u64) -> StoreOp {
    StoreOp::SetBridge { uaid: uaid(1), bridge: bridged(registered) }
}

fn drop_of(registered: u64) -> StoreOp {
    StoreOp::DropBridged { uaid: uaid(1), registered: Clock(registered) }
}

fn mark(registered: u64, at: u64) -> StoreOp {
    StoreOp::MarkRefused { uaid: uaid(1), registered: Clock(registered), at: UnixSeconds(at) }
}

fn clear(registered: u64) -> StoreOp {
    StoreOp::ClearRefused { uaid: uaid(1), registered: Clock(registered) }
}

/// A publish answers the record, whatever its time to live, and writes nothing; other users are as before.
pub(super) fn a_bridged_user_is_read_back_and_stores_nothing(port: &mut BlockingStore) {
    for channel in [2, 3] {
        port.done(register_bridged(1, channel, 10));
    }
    port.register(2, 2);
    assert_eq!(bridge(port), *bridged(10));
    for sent in [message(1, 2, 20), topical(1, 3, 21, "tide"), Message { ttl: 0, ..message(1, 2, 22) }] {
        let StoreReply::Bridged(found) = publish(port, sent) else { panic!("no bridge") };
        assert_eq!(found, bridged(10));
    }
    assert!(matches!(publish(port, message(1, 4, 23)), StoreReply::NoSubscription));
    assert!(matches!(publish(port, Message { ttl: 0, ..message(1, 4, 23) }), StoreReply::NoSubscription));
    assert!(matches!(publish(port, update(1, 2, 24, 1)), StoreReply::OtherMode));
    assert!(matches!(publish(port, message(2, 2, 25)), StoreReply::Done));
    assert!(port.clocks(uaid(1)).is_empty() && port.topic_clocks(uaid(1)).is_empty());
    let user = there(port);
    assert_eq!((user.seen, &user.channels[..]), (NOW, &[chid(2), chid(3)][..]));
    assert_eq!(port.user(uaid(2)).expect("it is known").contact.bridge, None);
    let StoreReply::User(Some(found)) = port.ask(StoreOp::Locate { uaid: uaid(1), chid: chid(3) }).expect("it answers")
    else {
        panic!("no user")
    };
    assert_eq!((found.contact.bridge, found.channels), (Some(bridged(10)), vec![chid(3)]));
    // Unregister and drop of a user are as of any other.
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(30) });
    assert!(matches!(publish(port, message(1, 2, 31)), StoreReply::NoSubscription));
    assert_eq!(bridge(port), *bridged(10));
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(port.user(uaid(1)), None);
    port.done(register(1, 3, 40));
    assert_eq!(there(port).contact.bridge, None, "the bridge went with the user");
}

/// A newer token replaces the older one with its refusal and refreshes the user; nothing else touches it.
pub(super) fn a_bridge_is_replaced_by_a_newer_one_only(port: &mut BlockingStore) {
    port.done(set(9));
    assert_eq!(port.user(uaid(1)), None, "no user is made");
    port.register(1, 2);
    port.done(set(9));
    assert_eq!(there(port).contact.bridge, None, "the user is not bridged");
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    port.done(register_bridged(1, 2, 10));
    port.done(mark(10, 77));
    port.done(set(9));
    port.done(register_bridged(1, 3, 9));
    assert_eq!(bridge(port), Bridged { refused: Some(UnixSeconds(77)), ..*bridged(10) });
    port.done(set(11));
    assert_eq!(bridge(port), *bridged(11));
    // A register without a contact, another contact, and an unregister leave it.
    port.done(register(1, 4, 12));
    port.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::WebPush, ""), durable: true });
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(13) });
    assert_eq!((bridge(port), there(port).channels), (*bridged(11), vec![chid(3), chid(4)]));
    assert_eq!(there(port).seen, NOW, "a registration never sets the time back");
    let later = UnixSeconds(NOW.0 + IDLE_SECONDS_MAX / 2);
    let before = there(port).user_clock;
    port.done(set(later.0 * 1_000_000 + 5));
    let user = there(port);
    assert_eq!(user.seen, later);
    // A port in moving time returns clocks that count from its start, so the law compares two of them.
    assert!(user.user_clock.0 - before.0 > IDLE_SECONDS_MAX / 4 * 1_000_000, "{before:?} {:?}", user.user_clock);
    // A publish does not refresh the user.
    assert!(matches!(publish(port, message(1, 4, 20)), StoreReply::Bridged(_)));
    assert_eq!(there(port).seen, later);
}

/// A refusal is noted for the token that was refused, and the first of them stays.
pub(super) fn a_refusal_is_noted_once_for_its_token(port: &mut BlockingStore) {
    port.done(mark(10, 70));
    assert_eq!(port.user(uaid(1)), None);
    port.done(register_bridged(1, 2, 10));
    port.done(mark(9, 70));
    port.done(mark(11, 70));
    assert_eq!(bridge(port).refused, None);
    port.done(mark(10, 71));
    port.done(mark(10, 72));
    let marked = Bridged { refused: Some(UnixSeconds(71)), ..*bridged(10) };
    assert_eq!(bridge(port), marked);
    let StoreReply::Bridged(found) = publish(port, message(1, 2, 20)) else { panic!("no bridge") };
    assert_eq!(*found, marked);
    assert_eq!(there(port).seen, NOW, "a refusal is no registration");
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    assert_eq!(bridge(port), marked, "a refresh is none either");
    port.done(clear(9));
    assert_eq!(bridge(port), marked, "another token was taken");
    port.done(clear(10));
    assert_eq!((bridge(port), there(port).seen), (Bridged { registered: Clock(11), ..*bridged(10) }, NOW));
    port.done(clear(10));
    port.done(clear(11));
    assert_eq!(bridge(port).registered, Clock(11), "nothing is noted");
    assert!(matches!(port.ask(drop_of(10)), Ok(StoreReply::Kept)), "the removal of the refused one comes late");
    port.done(set(12));
    port.done(mark(10, 73));
    assert_eq!(bridge(port), *bridged(12), "the refusal of the old token comes late");
}

/// A removal takes the user with the token that was refused, and no user with a newer one, in both orders.
pub(super) fn only_the_user_of_this_token_is_dropped(port: &mut BlockingStore) {
    port.done(drop_of(10));
    for channel in [2, 3] {
        port.done(register_bridged(1, channel, 10));
    }
    port.done(mark(10, 70));
    // The registration comes first, with the removal right behind it.
    let both = port.ask_all(vec![set(11), drop_of(10)]);
    assert!(matches!(both[..], [Ok(StoreReply::Done), Ok(StoreReply::Kept)]), "{both:?}");
    assert_eq!((bridge(port), there(port).channels), (*bridged(11), vec![chid(2), chid(3)]));
    assert!(matches!(port.ask(drop_of(12)), Ok(StoreReply::Kept)));
    assert!(matches!(publish(port, message(1, 2, 20)), StoreReply::Bridged(_)));
    // A user of WebSocket is no bridged user.
    port.register(2, 2);
    let kept = port.ask(StoreOp::DropBridged { uaid: uaid(2), registered: Clock(0) });
    assert!(matches!(kept, Ok(StoreReply::Kept)), "{kept:?}");
    assert!(port.user(uaid(2)).is_some());
    // The removal comes first: the registration finds nobody, and makes nobody.
    port.done(save(&[message(1, 2, 5)]));
    let both = port.ask_all(vec![drop_of(11), set(13)]);
    assert!(both.iter().all(|answer| matches!(answer, Ok(StoreReply::Done))));
    assert_eq!(port.user(uaid(1)), None);
    assert!(matches!(publish(port, message(1, 2, 21)), StoreReply::NoSubscription));
    port.done(register_bridged(1, 2, 1_000));
    assert_eq!((bridge(port), there(port).channels), (*bridged(1_000), vec![chid(2)]));
    assert!(port.clocks(uaid(1)).is_empty(), "its rows went with it");
}
