//! Random operations, on a backend and on the model: both answer alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use machine::ids::{Chid, Clock, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::model::Model as State;
use machine::simplepush::{Mode, WakeData};
use machine::time::UnixSeconds;
use machine::{RowKey, StoreOp, StoreReply, UserRow};
use proptest::prelude::*;
use runtime::ports::Store;

use super::BlockingStore;
use super::blocking_store::Answer;
use crate::bridge::encode;
use crate::embedded::{Embedded, Options};
use crate::model::Model;
use crate::scylla;
use crate::testing::patient;
use crate::testing::sample::{
    NOW, bridged, chid, contact, message, register, register_bridged, settle, stamp, subscribe, uaid, update,
};

/// An operation on two users with three channels and few stamps, so that they meet often.
fn any_op() -> impl Strategy<Value = StoreOp> {
    let ids = (1u8..3, 1u8..4, 1u64..40);
    let topic = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let version = prop::option::weighted(0.3, 1u64..5);
    let any_message = (ids, topic, 0u32..4, version).prop_map(|((user, channel, clock), topic, ttl, version)| {
        if let Some(version) = version {
            return Message { ttl: [1, 3, 8, 1_000][ttl as usize], ..update(user, channel, clock, version) };
        }
        let base = message(user, channel, clock);
        Message { topic: topic.and_then(|t| Topic::new(t.as_bytes())), ttl: [0, 3, 8, 1_000][ttl as usize], ..base }
    });
    let now = (0u64..6).prop_map(|s| UnixSeconds(NOW.0 + 2 * s));
    prop_oneof![
        1 => (1u8..3).prop_map(|user| StoreOp::LoadUser { uaid: uaid(user) }),
        1 => (1u8..3, 0u64..9).prop_map(|(user, s)| StoreOp::Touch { uaid: uaid(user), seen: UnixSeconds(NOW.0 - s) }),
        4 => (1u8..3, 1u8..4, 1u64..99).prop_map(|(user, channel, at)| register(user, channel, at)),
        2 => (1u8..3, 1u8..4, 0u8..3, 1u64..99).prop_map(|(user, channel, key, at)| subscribe(user, channel, key, at)),
        1 => (1u8..3, 1u8..4, 1u64..99).prop_map(|(user, channel, at)| StoreOp::Unregister {
            uaid: uaid(user),
            chid: chid(channel),
            at: Clock(at)
        }),
        2 => (1u8..3, any::<bool>(), "[a-z]{0,9}").prop_map(|(user, simple, wake)| StoreOp::SetContact {
            uaid: uaid(user),
            contact: contact(if simple { Mode::Simple } else { Mode::WebPush }, &wake),
            durable: wake.is_empty(),
        }),
        1 => (1u8..3).prop_map(|user| StoreOp::DropUser { uaid: uaid(user) }),
        3 => (1u8..3).prop_map(|user| StoreOp::DropIdle { uaid: uaid(user) }),
        1 => (1u8..3, 1u8..4, 1u64..5).prop_map(|(user, channel, at)| register_bridged(user, channel, at)),
        2 => (1u8..3, 1u64..6)
            .prop_map(|(user, at)| StoreOp::SetBridge { uaid: uaid(user), bridge: bridged(at) }),
        2 => (1u8..3, 1u64..6, 1u64..9).prop_map(|(user, at, refused)| StoreOp::MarkRefused {
            uaid: uaid(user),
            registered: Clock(at),
            at: UnixSeconds(refused)
        }),
        1 => (1u8..3, 1u64..6)
            .prop_map(|(user, at)| StoreOp::ClearRefused { uaid: uaid(user), registered: Clock(at) }),
        1 => (1u8..3, 1u64..6)
            .prop_map(|(user, at)| StoreOp::DropBridged { uaid: uaid(user), registered: Clock(at) }),
        6 => any_message.clone().prop_map(|m| StoreOp::Publish { message: Arc::new(m), checked: false }),
        3 => prop::collection::vec(any_message.clone(), 1..4).prop_map(|all| {
            let of = all[0].uaid;
            StoreOp::Save { messages: all.into_iter().map(|m| Arc::new(Message { uaid: of, ..m })).collect() }
        }),
        2 => (1u8..3, prop::option::of((1u8..4, "[ab]")), 1u16..4, now.clone()).prop_map(|(user, after, limit, now)| {
            let after = after.and_then(|(c, t)| Some((chid(c), Topic::new(t.as_bytes())?)));
            StoreOp::Topics { uaid: uaid(user), after, limit, now }
        }),
        3 => (1u8..3, 0u64..40, 1u16..6, now.clone()).prop_map(|(user, after, limit, now)| StoreOp::Messages {
            uaid: uaid(user),
            after: stamp(after),
            limit,
            now
        }),
        2 => (any_message.clone(), now).prop_map(|(m, now)| StoreOp::Read { row: RowKey::of(&m), now }),
        4 => (prop::collection::vec(any_message, 1..4), prop::option::weighted(0.2, 1u64..40), any::<bool>()).prop_map(
            |(all, low_water, durable)| {
                let of = all[0].uaid;
                let all: Vec<_> = all.into_iter().map(|m| Message { uaid: of, ..m }).collect();
                settle(&all, low_water, durable)
            }
        ),
    ]
}

/// The part of an answer on which two backends must agree. The mark and the user clock are bounds (see the crate).
fn comparable(answer: &Answer) -> String {
    match answer {
        Ok(StoreReply::User(Some(row))) => {
            let plain = UserRow { user_clock: Clock(0), may_have_messages: true, ..UserRow::clone(row) };
            // The printed form hides the wake data and the token.
            let bridge = row.contact.bridge.as_ref().map(|bridge| encode(bridge));
            format!("{plain:?} {:?} {bridge:?}", row.contact.wake.as_ref().map(WakeData::as_str))
        }
        Ok(StoreReply::Bridged(bridge)) => format!("{:?}", encode(bridge)),
        Ok(StoreReply::Page(page)) => {
            let rows: Vec<_> = page.messages.iter().map(|m| (m.uaid, m.chid, m.stamp, m.topic, m.ttl)).collect();
            format!("{rows:?} {}", page.exhausted)
        }
        other => format!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn embedded_and_model_agree(ops in prop::collection::vec(any_op(), 1..250), together in any::<bool>()) {
        let ops = published_before_saved(ops);
        let dir = tempfile::tempdir().expect("a directory");
        // Reclaiming would let an older topic message take the slot of an expired newer one.
        let store = Embedded::open(dir.path(), Options { sweep: false, ..patient() }).expect("it opens");
        let mut embedded = BlockingStore::new(store.port(Arc::new(|| {})));
        let mut model = BlockingStore::new(Model::new(u64::MAX).port(Arc::new(|| {})));
        let expected: Vec<_> = ops.iter().map(|op| comparable(&model.ask(op.clone()))).collect();
        let found: Vec<_> = if together {
            embedded.ask_all(ops.clone()).iter().map(comparable).collect()
        } else {
            ops.iter().map(|op| comparable(&embedded.ask(op.clone()))).collect()
        };
        for (at, op) in ops.iter().enumerate() {
            let before = || ops[..at].iter().map(|op| format!("{op:?}")).collect::<Vec<_>>();
            prop_assert_eq!(&found[at], &expected[at], "operation {}: {:?} after {:#?}", at, op, before());
        }
        for user in 1..3 {
            let row = model.user(uaid(user)).map(|row| row.may_have_messages);
            let kept = embedded.user(uaid(user)).map(|row| row.may_have_messages);
            prop_assert_eq!(row.is_some(), kept.is_some());
            prop_assert!(kept >= row, "a mark must not say that there is nothing when there is");
        }
        drop(embedded);
        store.close();
    }
}

/// The operations without publishes of what was saved before. A machine saves a message that it has published, never
/// the other way round, and the stores keep what such a row was saved for in different ways.
fn published_before_saved(mut ops: Vec<StoreOp>) -> Vec<StoreOp> {
    let mut saved = BTreeSet::new();
    let name = |message: &Message| (message.uaid, message.chid, message.stamp);
    ops.retain(|op| match op {
        StoreOp::Save { messages } => {
            saved.extend(messages.iter().map(|message| name(message)));
            true
        }
        StoreOp::Publish { message, .. } => !saved.contains(&name(message)),
        _ => true,
    });
    ops
}

/// The same operations as machines would say them: a stamp names one message and is never given twice, operations after
/// the drop of a user are later than it, only sessions of users that are there raise their low water, and none raises
/// it over a row that a ledger has saved and that is not settled. A store whose conflicts are settled by clocks relies
/// on that.
fn as_machines_say(ops: &[StoreOp]) -> Vec<StoreOp> {
    let mut model = BlockingStore::new(Model::new(u64::MAX).port(Arc::new(|| {})));
    let mut base = 0;
    let mut given: BTreeMap<(Uaid, Chid, Option<Topic>, u64), Clock> = BTreeMap::new();
    let mut newest: BTreeMap<(Uaid, Chid, Topic), Clock> = BTreeMap::new();
    let mut saved: BTreeMap<Uaid, BTreeSet<Clock>> = BTreeMap::new();
    let mut said = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let mut fresh = |message: &Message, n: usize| {
            let mut clock = Clock(base + message.stamp.clock.0 * 1_000 + 4 * at as u64 % 1_000 + n as u64);
            if let Some(topic) = message.topic {
                // A slot is taken in the order of its clocks: an older one that comes behind the end of a newer one
                // stays dead where deletes have a clock, and comes back where they have none.
                let newest = newest.entry((message.uaid, message.chid, topic)).or_default();
                clock = clock.max(Clock(newest.0 + 1));
                *newest = clock;
            }
            given.insert((message.uaid, message.chid, message.topic, message.stamp.clock.0), clock);
            Arc::new(Message { stamp: Stamp { clock, ..message.stamp }, ..message.clone() })
        };
        let op = match op.clone() {
            StoreOp::Publish { message, checked } => StoreOp::Publish { message: fresh(&message, 0), checked },
            StoreOp::Save { messages } => {
                let messages: Vec<_> = messages.iter().enumerate().map(|(n, message)| fresh(message, n)).collect();
                let clocks = messages.iter().map(|message| (message.uaid, message.stamp.clock));
                clocks.for_each(|(uaid, clock)| _ = saved.entry(uaid).or_default().insert(clock));
                StoreOp::Save { messages }
            }
            StoreOp::Read { row, now } => StoreOp::Read { row: renamed(&given, base, row), now },
            StoreOp::Settle { rows, low_water, durable } => {
                let there = model.user(rows[0].uaid).is_some();
                let low_water = low_water.filter(|_| there).map(|clock| Clock(base + clock.0 * 1_000));
                let rows: Vec<_> = rows.into_iter().map(|row| renamed(&given, base, row)).collect();
                let saved = saved.entry(rows[0].uaid).or_default();
                rows.iter().for_each(|row| _ = saved.remove(&row.stamp.clock));
                let below = saved.first().map_or(Clock(u64::MAX), |first| Clock(first.0 - 1));
                let low_water = low_water.map(|clock| clock.min(below));
                StoreOp::Settle { rows, low_water, durable }
            }
            StoreOp::DropUser { uaid } => {
                base += 1_000_000;
                StoreOp::DropUser { uaid }
            }
            StoreOp::DropIdle { uaid } => {
                base += 1_000_000;
                StoreOp::DropIdle { uaid }
            }
            StoreOp::DropBridged { uaid, registered } => {
                let registered = Clock(base + registered.0);
                base += 1_000_000;
                StoreOp::DropBridged { uaid, registered }
            }
            other => based(other, base),
        };
        let dropped = match &op {
            StoreOp::DropUser { uaid } | StoreOp::DropIdle { uaid } | StoreOp::DropBridged { uaid, .. } => Some(*uaid),
            _ => None,
        };
        let _ = model.ask(op.clone());
        if let Some(uaid) = dropped.filter(|uaid| model.user(*uaid).is_none()) {
            // What a ledger saved for a user goes with it.
            saved.remove(&uaid);
        }
        said.push(op);
    }
    said
}

/// The same operation with its clocks above `base`.
fn based(op: StoreOp, base: u64) -> StoreOp {
    match op {
        StoreOp::Messages { uaid, after, limit, now } => {
            let clock = Clock(base + after.clock.0 * 1_000);
            StoreOp::Messages { uaid, after: Stamp { clock, ..after }, limit, now }
        }
        StoreOp::Register { uaid, chid, key, at, seen, mut contact, presence, maker } => {
            let bridge = contact.as_mut().and_then(|contact| contact.bridge.as_mut());
            bridge.into_iter().for_each(|bridge| bridge.registered.0 += base);
            StoreOp::Register { uaid, chid, key, at: Clock(base + at.0), seen, contact, presence, maker }
        }
        StoreOp::Subscribe { uaid, chid, key, at } => StoreOp::Subscribe { uaid, chid, key, at: Clock(base + at.0) },
        StoreOp::Unregister { uaid, chid, at } => StoreOp::Unregister { uaid, chid, at: Clock(base + at.0) },
        StoreOp::SetBridge { uaid, mut bridge } => {
            bridge.registered.0 += base;
            StoreOp::SetBridge { uaid, bridge }
        }
        StoreOp::MarkRefused { uaid, registered, at } => {
            StoreOp::MarkRefused { uaid, registered: Clock(base + registered.0), at }
        }
        StoreOp::ClearRefused { uaid, registered } => {
            StoreOp::ClearRefused { uaid, registered: Clock(base + registered.0) }
        }
        other => other,
    }
}

fn renamed(given: &BTreeMap<(Uaid, Chid, Option<Topic>, u64), Clock>, base: u64, row: RowKey) -> RowKey {
    let name = (row.uaid, row.chid, row.topic, row.stamp.clock.0);
    match given.get(&name).copied() {
        Some(clock) => RowKey { stamp: Stamp { clock, ..row.stamp }, ..row },
        // No machine settles a version of a topic that never was: to a clock it would be the newest.
        None => {
            let clock = Clock(base + row.stamp.clock.0 * 1_000 + 999);
            RowKey { stamp: Stamp { clock, ..row.stamp }, topic: None, ..row }
        }
    }
}

/// Compares a database behind this port with the model.
fn database_and_model_agree(ops: &[StoreOp], together: bool, port: Box<dyn Store>) {
    let ops = as_machines_say(ops);
    let mut shared = BlockingStore::new(port);
    let mut model = BlockingStore::new(Model::new(u64::MAX).port(Arc::new(|| {})));
    let expected: Vec<_> = ops.iter().map(|op| comparable(&model.ask(op.clone()))).collect();
    let found: Vec<_> = if together {
        shared.ask_all(ops.clone()).iter().map(comparable).collect()
    } else {
        ops.iter().map(|op| comparable(&shared.ask(op.clone()))).collect()
    };
    for (at, op) in ops.iter().enumerate() {
        let before = || ops[..at].iter().map(|op| format!("{op:?}")).collect::<Vec<_>>();
        assert_eq!(found[at], expected[at], "operation {at}: {op:?} after {:#?}", before());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The model answers alike alone and shared, as long as no write is repeated behind its delete.
    #[test]
    fn shared_and_model_agree(ops in prop::collection::vec(any_op(), 1..150)) {
        let ops = as_machines_say(&ops);
        let mut shared = BlockingStore::new(Model::of(State::shared()).port(Arc::new(|| {})));
        let mut model = BlockingStore::new(Model::new(u64::MAX).port(Arc::new(|| {})));
        for (at, op) in ops.iter().enumerate() {
            let (found, expected) = (comparable(&shared.ask(op.clone())), comparable(&model.ask(op.clone())));
            prop_assert_eq!(found, expected, "operation {}: {:?} after {:#?}", at, op, &ops[..at]);
        }
    }
}

proptest! {
    // Each case is some thousand requests to a database.
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    #[ignore = "needs Cassandra: bench/check test"]
    fn scylla_and_model_agree(ops in prop::collection::vec(any_op(), 1..150), together in any::<bool>()) {
        let store = crate::testing::database::open();
        database_and_model_agree(&ops, together, Box::new(scylla::tests::Apart::new(&store)));
        store.close();
    }

    #[test]
    #[ignore = "needs Cassandra: bench/check test"]
    fn replicas_and_model_agree(ops in prop::collection::vec(any_op(), 1..150), together in any::<bool>()) {
        scylla::tests::replicas::with_port(|port| database_and_model_agree(&ops, together, port));
    }
}
