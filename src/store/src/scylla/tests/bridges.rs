//! A registration and a removal of one bridged user on two nodes, at the same time, on a real database.

use machine::StoreOp;
use machine::ids::Clock;

use super::Apart;
use crate::conformance::{BlockingStore, chid, uaid};
use crate::testing::database::open;
use crate::testing::sample::{bridged, register_bridged};

const ROUNDS: u64 = 60;

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_removal_beside_a_registration_never_takes_the_new_token() {
    let store = open();
    let apart = Apart::new(&store);
    let mut other = BlockingStore::new(Box::new(apart.beside(&store)));
    let mut hand = BlockingStore::new(Box::new(apart));
    // Registrations are seconds apart, as their clocks say.
    let at = |round: u64| (1_900_000_000 + round) * 1_000_000;
    let mut survived = 0;
    for round in 0..ROUNDS {
        let first = at(2 * round);
        for channel in [2, 3] {
            hand.done(register_bridged(1, channel, first));
        }
        let set = StoreOp::SetBridge { uaid: uaid(1), bridge: bridged(at(2 * round + 1)) };
        let drop = StoreOp::DropBridged { uaid: uaid(1), registered: Clock(first) };
        if round.is_multiple_of(2) {
            hand.submit(set);
            other.submit(drop);
        } else {
            other.submit(drop);
            hand.submit(set);
        }
        assert!(hand.collect().1.is_ok() && other.collect().1.is_ok());
        // The removal came first and the registration found nobody, or the user is there with everything.
        if let Some(user) = hand.user(uaid(1)) {
            survived += 1;
            assert!(user.contact.bridge == Some(bridged(at(2 * round + 1))), "round {round}: {user:?}");
            assert_eq!(user.channels, [chid(2), chid(3)], "round {round}");
        }
    }
    println!("the user survived {survived} of {ROUNDS} removals");
    drop(hand);
    drop(other);
    store.close();
}
