//! The drop of a user without a channel beside its return on another node, on a real database.

use machine::ids::Clock;
use machine::{StoreOp, StoreReply};

use super::Apart;
use super::refresh::{Bare, hexadecimal};
use crate::conformance::{BlockingStore, chid, uaid};
use crate::testing::database::{open, shared};
use crate::testing::sample::{register, subscribe};

const ROUNDS: u64 = 120;

/// Runs the drop of an idle user on one node and this operation, with its clock, on another, in both orders. The user
/// and the answers of each round are passed on.
fn beside_the_drop(returns: impl Fn(u64) -> StoreOp, mut check: impl FnMut(u64, Outcome)) {
    let store = open();
    let apart = Apart::new(&store);
    let (bare, name) = (Bare::new(shared()), hexadecimal(&apart.uaid(uaid(1)).0));
    let mut other = BlockingStore::new(Box::new(apart.beside(&store)));
    let mut port = BlockingStore::new(Box::new(apart));
    for round in 0..ROUNDS {
        let at = (1_900_000_000 + 2 * round) * 1_000_000;
        port.done(register(1, 2, at));
        port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(at + 10) });
        // The other node has read the user, as its hello does; its clock may be as late as that row, and no later.
        let user = other.user(uaid(1)).expect("it is known");
        let back = returns(user.user_clock.0 + if round % 3 == 0 { 1 } else { 500_000 });
        let drop = StoreOp::DropIdle { uaid: uaid(1) };
        if round.is_multiple_of(2) {
            port.submit(drop);
            other.submit(back);
        } else {
            other.submit(back);
            port.submit(drop);
        }
        let (dropped, returned) = (port.collect().1, other.collect().1);
        let dropped = match dropped {
            Ok(StoreReply::Done) => true,
            Ok(StoreReply::Kept) => false,
            odd => panic!("round {round}: {odd:?}"),
        };
        let returned = match returned {
            Ok(StoreReply::Done) => true,
            Ok(StoreReply::NoSubscription) => false,
            odd => panic!("round {round}: {odd:?}"),
        };
        let channels = port.user(uaid(1)).map(|user| user.channels);
        let rows = bare.ttls(&name).len();
        check(round, Outcome { dropped, returned, has_channel: channels == Some(vec![chid(4)]), rows });
        port.done(StoreOp::DropUser { uaid: uaid(1) });
        assert!(other.user(uaid(1)).is_none());
    }
    std::mem::drop((port, other));
    store.close();
}

/// Outcome of one round.
struct Outcome {
    dropped: bool,
    returned: bool,
    has_channel: bool,
    rows: usize,
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_register_beside_the_drop_on_another_node_stands() {
    let mut drops = 0;
    beside_the_drop(
        |at| register(1, 4, at),
        |round, outcome| {
            drops += u64::from(outcome.dropped);
            assert!(outcome.returned && outcome.has_channel, "round {round}: the channel is lost");
        },
    );
    println!("{drops} of {ROUNDS} drops came first");
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_subscription_beside_the_drop_stands_or_finds_no_user() {
    let mut refused = 0;
    beside_the_drop(
        |at| subscribe(1, 4, 0, at),
        |round, outcome| {
            refused += u64::from(!outcome.returned);
            assert_eq!(outcome.returned, outcome.has_channel, "round {round}");
            // Each may give way to the other: then the user stays, without a channel.
            let stays = outcome.returned || !outcome.dropped;
            assert!(stays || outcome.rows == 0, "round {round}: {} rows are left", outcome.rows);
        },
    );
    println!("{refused} of {ROUNDS} subscriptions found no user");
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_dropped_user_leaves_no_row() {
    let store = open();
    let apart = Apart::new(&store);
    let (bare, name) = (Bare::new(shared()), hexadecimal(&apart.uaid(uaid(1)).0));
    let mut port = BlockingStore::new(Box::new(apart));
    port.done(register(1, 2, 10));
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(20) });
    assert!(!bare.ttls(&name).is_empty());
    port.done(StoreOp::DropIdle { uaid: uaid(1) });
    assert!(bare.ttls(&name).is_empty());
    std::mem::drop(port);
    store.close();
}
