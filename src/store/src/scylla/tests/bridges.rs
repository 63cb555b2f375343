//! Two nodes that change one bridged user at the same time, on a real database.

use machine::ids::Clock;
use machine::time::UnixSeconds;
use machine::{StoreOp, StoreReply};

use super::Apart;
use super::refresh::{Bare, hexadecimal};
use crate::IDLE_SECONDS_MAX;
use crate::conformance::{BlockingStore, chid, uaid};
use crate::testing::database::{open, shared};
use crate::testing::sample::{bridged, register_bridged, subscribe};

const ROUNDS: u64 = 120;

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_removal_beside_a_registration_never_takes_the_new_token() {
    let store = open();
    let apart = Apart::new(&store);
    let mut other = BlockingStore::new(Box::new(apart.beside(&store)));
    let mut port = BlockingStore::new(Box::new(apart));
    // Registrations are seconds apart, as their clocks say.
    let at = |round: u64| (1_900_000_000 + round) * 1_000_000;
    let mut survived = 0;
    for round in 0..ROUNDS {
        let first = at(2 * round);
        for channel in [2, 3] {
            port.done(register_bridged(1, channel, first));
        }
        let set = StoreOp::SetBridge { uaid: uaid(1), bridge: bridged(at(2 * round + 1)) };
        let drop = StoreOp::DropBridged { uaid: uaid(1), registered: Clock(first) };
        if round.is_multiple_of(2) {
            port.submit(set);
            other.submit(drop);
        } else {
            other.submit(drop);
            port.submit(set);
        }
        let (set, drop) = (port.collect().1, other.collect().1);
        // The removal came first and the registration found nobody, or the user is there with everything.
        let is_removed = match (set, drop) {
            (Ok(StoreReply::Done), Ok(StoreReply::Done)) => true,
            (Ok(StoreReply::Done), Ok(StoreReply::Kept)) => false,
            others => panic!("round {round}: {others:?}"),
        };
        if let Some(user) = port.user(uaid(1)) {
            survived += 1;
            assert!(!is_removed, "round {round}: a user is there that was removed");
            assert!(user.contact.bridge == Some(bridged(at(2 * round + 1))), "round {round}: {user:?}");
            assert_eq!(user.channels, [chid(2), chid(3)], "round {round}");
        }
    }
    println!("the user survived {survived} of {ROUNDS} removals");
    drop(port);
    drop(other);
    store.close();
}

/// A subscription on one node beside a removal on another: no part of the user is left, whichever comes first.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_subscription_beside_a_removal_leaves_no_part_of_the_user() {
    let store = open();
    let apart = Apart::new(&store);
    let (bare, name) = (Bare::new(shared()), hexadecimal(&apart.uaid(uaid(1)).0));
    let mut other = BlockingStore::new(Box::new(apart.beside(&store)));
    let mut port = BlockingStore::new(Box::new(apart));
    let mut refused = 0;
    for round in 0..ROUNDS {
        let at = (1_900_000_000 + 2 * round) * 1_000_000;
        for channel in [2, 3] {
            port.done(register_bridged(1, channel, at));
        }
        // The lane of the subscription has read the user, or not.
        assert!(round % 3 == 0 || other.user(uaid(1)).is_some());
        let subscribe = subscribe(1, 4, 0, at + 500_000);
        let remove = match round % 4 {
            0 | 1 => StoreOp::DropUser { uaid: uaid(1) },
            _ => StoreOp::DropBridged { uaid: uaid(1), registered: Clock(at) },
        };
        if round.is_multiple_of(2) {
            port.submit(remove);
            other.submit(subscribe);
        } else {
            other.submit(subscribe);
            port.submit(remove);
        }
        assert!(matches!(port.collect().1, Ok(StoreReply::Done)), "round {round}");
        match other.collect().1 {
            Ok(StoreReply::Done) => {}
            Ok(StoreReply::NoSubscription) => refused += 1,
            odd => panic!("round {round}: {odd:?}"),
        }
        assert_eq!(bare.ttls(&name), [0; 0], "round {round}: rows are left");
    }
    println!("{refused} of {ROUNDS} subscriptions found no user");
    drop(port);
    drop(other);
    store.close();
}

/// A send does not refresh the expiry of a user, also one that ends the mark of its device.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn the_end_of_a_mark_renews_no_row() {
    let store = open();
    let apart = Apart::new(&store);
    let (bare, name) = (Bare::new(shared()), hexadecimal(&apart.uaid(uaid(1)).0));
    let mut port = BlockingStore::new(Box::new(apart));
    port.done(register_bridged(1, 2, 10));
    std::thread::sleep(std::time::Duration::from_secs(3));
    let registered = Clock(10);
    port.done(StoreOp::MarkRefused { uaid: uaid(1), registered, at: UnixSeconds(70) });
    port.done(StoreOp::ClearRefused { uaid: uaid(1), registered });
    assert_eq!(port.user(uaid(1)).and_then(|user| user.contact.bridge).map(|bridge| bridge.refused), Some(None));
    // The bridge stands first; its time to live is what is left of that of the user.
    let ttls = bare.ttls(&name);
    assert!(ttls.len() == 5 && ttls[1..].iter().all(|ttl| *ttl <= IDLE_SECONDS_MAX as i32 - 3), "{ttls:?}");
    drop(port);
    store.close();
}
