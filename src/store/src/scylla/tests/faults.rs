//! The database silent, gone and slow; many users at once; two nodes whose clocks are apart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::ids::{Clock, Stamp, StoreTicket, Uaid};
use machine::{NodeId, Presence, RowKey, StoreError, StoreOp, StoreReply};
use runtime::ports::Store;
use runtime::process_clock::ProcessClock;

use super::super::Scylla;
use super::super::stats::Statement;
use super::Apart;
use super::proxy::Proxy;
use crate::conformance::{BlockingStore, NOW, chid, message, register, topical, uaid};
use crate::shared::opening::ConnectOptions;
use crate::testing::database::{open, open_alone, open_with, shared};

/// Time limit for things that must happen by themselves.
const PATIENCE: Duration = Duration::from_secs(60);

fn behind_proxy() -> (Proxy, Scylla) {
    behind_proxy_for(Duration::from_secs(3))
}

fn behind_proxy_for(request_timeout: Duration) -> (Proxy, Scylla) {
    let proxy = Proxy::new(shared().nodes[0].parse().expect("an address"));
    let mut config = shared().clone();
    config.nodes = vec![proxy.address.to_string()];
    config.request_timeout = request_timeout;
    config.connect_timeout = Duration::from_secs(20);
    config.in_flight = 32;
    (proxy, open_with(&config))
}

fn load(user: u8) -> StoreOp {
    StoreOp::LoadUser { uaid: uaid(user) }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// User 1 with channel 2, also on a slow host.
fn registered(port: &mut BlockingStore) {
    until("it is registered", || port.ask(register(1, 2, 1)).is_ok());
}

/// Breaks it, sees that operations are refused, and at once in the end; mends it and sees that all is as before.
fn it_comes_back_by_itself(breaks: impl Fn(&Proxy, bool)) {
    let (proxy, store) = behind_proxy();
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    registered(&mut port);
    let publish = || StoreOp::Publish { message: Arc::new(message(1, 2, 10)), checked: false };
    until("it is stored", || port.ask(publish()).is_ok());
    breaks(&proxy, true);
    let ops = (0..200).map(|n| if n % 2 == 0 { load(n) } else { register(n, 2, 1) }).collect();
    let answers = port.ask_all(ops);
    assert!(answers.iter().all(|answer| matches!(answer, Err(StoreError::Transient))));
    until("the circuit is open", || {
        let _ = port.ask(load(1));
        store.client.breaker.is_open()
    });
    let sent = store.client.stats.count(Statement::UserRead);
    assert!(port.ask_all((0..100).map(load).collect()).iter().all(|answer| answer.is_err()));
    assert_eq!(store.client.stats.count(Statement::UserRead), sent, "nothing is sent while it is open");
    breaks(&proxy, false);
    until("the circuit closes by itself", || port.ask(load(1)).is_ok());
    let read = || StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: 10, now: NOW };
    until("what was stored is there", || match port.ask(read()) {
        Ok(StoreReply::Page(page)) => page.messages.iter().map(|message| message.stamp.clock).eq([Clock(10)]),
        _ => false,
    });
    until("it takes more", || port.ask(register(1, 3, 1)).is_ok());
    drop(port);
    store.close();
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_silent_database_is_left_alone_until_it_answers() {
    it_comes_back_by_itself(Proxy::silent);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_database_that_is_gone_is_left_alone_until_it_is_back() {
    it_comes_back_by_itself(Proxy::refuse);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_slow_database_serves_everybody_within_what_may_be_in_flight() {
    let (proxy, store) = behind_proxy_for(Duration::from_secs(30));
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    registered(&mut port);
    proxy.delay(Duration::from_millis(20));
    let answers = port.ask_all((0..250).map(load).collect());
    assert!(answers.iter().all(|answer| matches!(answer, Ok(StoreReply::User(_)))), "{answers:?}");
    let most = store.client.stats.others.in_flight_max.load(std::sync::atomic::Ordering::Relaxed);
    assert!((2..=32).contains(&most), "{most}");
    drop(port);
    store.close();
}

/// The number of operations at the database follows the speed of its answers, and never exceeds the setting.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_database_that_becomes_slow_is_asked_less_until_it_is_fast_again() {
    let (proxy, store) = behind_proxy_for(Duration::from_secs(30));
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    registered(&mut port);
    let asked = |port: &mut BlockingStore| {
        let answers = port.ask_all((0..250).map(load).collect());
        assert!(answers.iter().all(|answer| matches!(answer, Ok(StoreReply::User(_)))), "{answers:?}");
        store.client.limit.get()
    };
    // A window that this host made slow, and not the database, takes a quarter off, and four operations come back with
    // each window behind it.
    const AS_BEFORE: usize = 24;
    until("it may be asked about as much as the setting says", || asked(&mut port) >= AS_BEFORE);
    proxy.delay(Duration::from_millis(150));
    until("it is asked less", || asked(&mut port) <= 8);
    proxy.delay(Duration::ZERO);
    until("it is asked as before", || asked(&mut port) >= AS_BEFORE);
    let most = store.client.stats.others.in_flight_max.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most <= 32, "{most}");
    drop(port);
    store.close();
}

/// Refreshes that wait are overtaken by all other operations, also by those of their own user.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn refreshes_come_last() {
    let (proxy, store) = behind_proxy_for(Duration::from_secs(30));
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    registered(&mut port);
    proxy.silent(true);
    let touches = (0..100).map(|n| port.submit(StoreOp::Touch { uaid: uaid(n), seen: NOW }));
    let touches: Vec<StoreTicket> = touches.collect();
    let _others: Vec<StoreTicket> = (0..250).map(|n| port.submit(load(n))).collect();
    until("the others are at the database", || {
        store.client.stats.others.queue.load(std::sync::atomic::Ordering::Relaxed) <= 350 - 32
    });
    proxy.silent(false);
    let order: Vec<bool> = (0..350)
        .map(|_| port.collect())
        .map(|(ticket, answer)| {
            assert!(answer.is_ok(), "{answer:?}");
            touches.contains(&ticket)
        })
        .collect();
    // The last of the others have no others behind them.
    let before = order[..200].iter().filter(|touch| **touch).count();
    assert!(before <= 4, "{before} refreshes before the 200th answer");
    drop(port);
    store.close();
}

/// Operations of 10,000 known users that connect at once, as a shard that bounds its tickets would send them.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn ten_thousand_hellos_at_once_are_all_served() {
    const USERS: u32 = 10_000;
    const AT_ONCE: usize = 4_096;
    let store = open();
    let mut port = Apart::new(&store);
    let node = Arc::new(NodeId { url: "http://127.0.0.1:1".into(), boot: 1 });
    let user = |n: u32| {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&n.to_be_bytes());
        Uaid(id)
    };
    let hello = |n: u32| {
        let presence = Presence { node: Arc::clone(&node), connected_at: u64::from(n) + 1 };
        [
            StoreOp::LoadUser { uaid: user(n) },
            StoreOp::SetPresence { uaid: user(n), presence },
            StoreOp::Topics { uaid: user(n), after: None, limit: 10, now: NOW },
            StoreOp::Messages { uaid: user(n), after: Stamp::default(), limit: 10, now: NOW },
        ]
    };
    let ops = (0..USERS).flat_map(hello);
    let (mut outstanding, mut answered, mut last) = (0, 0u32, Instant::now());
    let mut ops = ops.enumerate().peekable();
    while answered < 4 * USERS {
        while outstanding < AT_ONCE && ops.peek().is_some() {
            let (at, op) = ops.next().expect("one was there");
            port.submit(StoreTicket { index: at as u32, generation: 0 }, op);
            outstanding += 1;
        }
        match port.collect() {
            Some((_, answer)) => {
                assert!(answer.is_ok(), "{answer:?}");
                (outstanding, answered, last) = (outstanding - 1, answered + 1, Instant::now());
            }
            None => {
                assert!(last.elapsed() < PATIENCE, "no reply after {answered}");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
    let most = store.client.stats.others.in_flight_max.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most <= 256, "{most}");
    drop(port);
    store.close();
}

/// The node behind does not write under what the one before wrote, and neither clears the other's session.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn nodes_whose_clocks_are_three_seconds_apart_agree() {
    const NOW_US: u64 = 1_800_000_000_000_000;
    let ahead = Scylla::connect(
        shared(),
        ConnectOptions { process_clock: Arc::new(ProcessClock::standing(NOW_US + 3_000_000)) },
    )
    .expect("a store");
    let behind = Scylla::connect(shared(), ConnectOptions { process_clock: Arc::new(ProcessClock::standing(NOW_US)) })
        .expect("a store");
    let first = Apart::new(&ahead);
    let second = first.beside(&behind);
    let (mut first, mut second) = (BlockingStore::new(Box::new(first)), BlockingStore::new(Box::new(second)));
    let registered = |channel: u8, at: u64| register(1, channel, at);
    first.done(registered(2, NOW_US + 3_000_000));
    second.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(NOW_US) });
    assert_eq!(first.user(uaid(1)).expect("it is known").channels, []);
    second.done(registered(2, NOW_US + 1));
    assert_eq!(first.user(uaid(1)).expect("it is known").channels, [chid(2)]);
    first.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(second.user(uaid(1)), None);
    second.done(registered(3, NOW_US + 2));
    assert_eq!(second.user(uaid(1)), None, "who has not seen the drop writes under it");
    second.done(registered(3, NOW_US + 4_000_000));
    assert_eq!(first.user(uaid(1)).expect("it is known").channels, [chid(3)]);
    // Sessions of another user.
    first.done(register(2, 2, NOW_US));
    let at = |boot, connected_at| Presence {
        node: Arc::new(NodeId { url: "http://n".into(), boot }),
        connected_at: NOW_US + connected_at,
    };
    first.done(StoreOp::SetPresence { uaid: uaid(2), presence: at(1, 3_000_000) });
    second.done(StoreOp::SetPresence { uaid: uaid(2), presence: at(2, 10) });
    first.done(StoreOp::SetPresence { uaid: uaid(2), presence: at(1, 20) });
    let presence = |port: &mut BlockingStore| port.user(uaid(2)).expect("it is known").presence;
    assert_eq!(presence(&mut second), [at(1, 3_000_000), at(2, 10)]);
    second.done(StoreOp::ClearPresence { uaid: uaid(2), presence: at(1, 20) });
    assert_eq!(presence(&mut first), [at(1, 3_000_000), at(2, 10)], "a newer session of the same boot stays");
    second.done(StoreOp::ClearPresence { uaid: uaid(2), presence: at(1, 3_000_000) });
    assert_eq!(presence(&mut first), [at(2, 10)]);
    drop((first, second));
    ahead.close();
    behind.close();
}

/// A late copy of a settled message stays dead, and the delete of a replaced topic message leaves the newer one.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn deletes_are_exact_whatever_comes_first() {
    let store = open();
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    port.register(1, 2);
    let settle =
        |m: &machine::message::Message| StoreOp::Settle { rows: vec![RowKey::of(m)], low_water: None, durable: true };
    let (old, new) = (topical(1, 2, 20, "tide"), topical(1, 2, 30, "tide"));
    port.done(settle(&old));
    port.publish(new.clone());
    port.publish(old.clone());
    port.done(settle(&old));
    assert_eq!(port.topic_clocks(uaid(1)), [30]);
    port.done(settle(&new));
    port.publish(old);
    assert!(port.topic_clocks(uaid(1)).is_empty());
    port.done(settle(&message(1, 2, 40)));
    port.publish(message(1, 2, 40));
    port.done(StoreOp::Save { messages: vec![Arc::new(message(1, 2, 40))] });
    assert!(port.clocks(uaid(1)).is_empty());
    drop(port);
    store.close();
}

/// A user that is not surely unknown never gets that answer.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_damaged_record_is_an_error_and_no_unknown_user() {
    let store = open();
    let apart = Apart::new(&store);
    let known = apart.uaid(uaid(1));
    let mut port = BlockingStore::new(Box::new(apart));
    port.register(1, 2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let session = super::super::connect::connect(shared()).await.expect("the database answers");
        let damage = format!(
            "UPDATE {}.user USING TIMESTAMP 9000000000000000 SET value = 0xff WHERE uaid = ? AND family = 0 AND key = 0x",
            shared().keyspace
        );
        session.query_unpaged(damage, (&known.0[..],)).await.expect("the record is damaged");
    });
    for op in [
        StoreOp::LoadUser { uaid: uaid(1) },
        StoreOp::Publish { message: Arc::new(message(1, 2, 40)), checked: false },
        StoreOp::Save { messages: vec![Arc::new(message(1, 2, 41))] },
    ] {
        assert!(port.ask(op).is_err());
    }
    drop(port);
    store.close();
}

/// Reads of one user that wait together are one; none is shared over a write.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn reads_of_a_hot_user_are_shared() {
    let store = open();
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    let ops = std::iter::once(register(1, 2, 1)).chain((0..50).map(|_| load(1)));
    let ops = ops.chain([register(1, 3, 2)]).chain((0..50).map(|_| load(1)));
    let answers = port.ask_all(ops.collect());
    let channels = |answer: &Result<StoreReply, StoreError>| match answer {
        Ok(StoreReply::User(Some(user))) => user.channels.len(),
        other => panic!("{other:?}"),
    };
    assert!(answers[1..51].iter().all(|answer| channels(answer) == 1));
    assert!(answers[52..].iter().all(|answer| channels(answer) == 2));
    assert!(store.client.stats.others.coalesced.load(std::sync::atomic::Ordering::Relaxed) > 0);
    drop(port);
    store.close();
}

/// Statements of each operation: docs/CLUSTER.md counts with these.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn statements_are_counted() {
    let store = open();
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    port.register(1, 2);
    let (stats, all) = (Arc::clone(&store.client.stats), super::super::stats::STATEMENTS);
    let sent = || all.iter().map(|one| stats.count(*one)).sum::<u64>();
    let costs = |port: &mut BlockingStore, op: StoreOp| {
        let before = sent();
        assert!(port.ask(op).is_ok());
        sent() - before
    };
    let node = Arc::new(NodeId { url: "http://n".into(), boot: 1 });
    let presence = Presence { node, connected_at: 5 };
    let there = presence.clone();
    let publish = |clock, checked| StoreOp::Publish { message: Arc::new(message(1, 2, clock)), checked };
    let settle = |clock, low_water: Option<u64>| StoreOp::Settle {
        rows: vec![RowKey::of(&message(1, 2, clock))],
        low_water: low_water.map(Clock),
        durable: false,
    };
    let messages = || StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: 10, now: NOW };
    assert_eq!(costs(&mut port, load(1)), 1);
    assert_eq!(costs(&mut port, StoreOp::SetPresence { uaid: uaid(1), presence }), 1);
    assert_eq!(costs(&mut port, StoreOp::Topics { uaid: uaid(1), after: None, limit: 10, now: NOW }), 1);
    assert_eq!(costs(&mut port, messages()), 1, "the topics said that there is no saved row");
    let locate = |chid| StoreOp::Locate { uaid: uaid(1), chid };
    assert_eq!(costs(&mut port, locate(chid(2))), 1);
    assert_eq!(costs(&mut port, publish(10, false)), 2);
    assert_eq!(costs(&mut port, publish(11, true)), 1);
    assert_eq!(costs(&mut port, publish(12, true)), 1);
    assert_eq!(costs(&mut port, messages()), 2, "nobody has read the topics before");
    assert_eq!(costs(&mut port, settle(10, Some(10))), 1, "low water, and no tombstone");
    assert_eq!(costs(&mut port, settle(11, None)), 1, "young: one delete");
    assert_eq!(costs(&mut port, settle(13, None)), 1, "of unknown form: both forms in one batch");
    assert_eq!(port.clocks(uaid(1)), [12]);
    assert_eq!(costs(&mut port, register(1, 3, 20)), 2, "a read and a batch");
    assert_eq!(costs(&mut port, StoreOp::ClearPresence { uaid: uaid(1), presence: there }), 1);
    assert_eq!(costs(&mut port, StoreOp::Touch { uaid: uaid(1), seen: NOW }), 2, "a read and a batch");
    let spill = vec![Arc::new(message(1, 2, 30)), Arc::new(message(1, 2, 31))];
    assert_eq!(costs(&mut port, StoreOp::Save { messages: spill }), 2, "a read and a batch, however many");
    assert_eq!(costs(&mut port, StoreOp::Topics { uaid: uaid(1), after: None, limit: 10, now: NOW }), 1);
    assert_eq!(costs(&mut port, messages()), 2, "there are saved rows");
    let unregister = |number| StoreOp::Unregister { uaid: uaid(1), chid: chid(number), at: Clock(40) };
    assert_eq!(costs(&mut port, unregister(3)), 4, "a check, a batch, and the keys of messages in two reads");
    assert_eq!(costs(&mut port, unregister(2)), 5, "and a batch of deletes for what waits for it");
    // The channels of a user are more than a page: they are not all read to find one.
    let others = (0..200).map(|n: u8| register(1, n, 50)).collect();
    assert!(port.ask_all(others).iter().all(Result::is_ok));
    assert_eq!(costs(&mut port, locate(chid(1))), 1, "on the first page");
    assert_eq!(costs(&mut port, locate(chid(199))), 2, "a page, and one channel");
    assert_eq!(costs(&mut port, locate(chid(250))), 2);
    drop(port);
    store.close();
}

fn number(number: &std::sync::atomic::AtomicU64) -> u64 {
    number.load(std::sync::atomic::Ordering::Relaxed)
}

/// One attempt is not answered: the next one is.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_statement_without_an_answer_is_sent_again() {
    let (proxy, store) = behind_proxy_for(Duration::from_secs(16));
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    registered(&mut port);
    let others = &store.client.stats.others;
    let (timeouts, retries) = (number(&others.timeouts), number(&others.retries));
    proxy.silent(true);
    port.submit(load(1));
    until("an attempt has ended without an answer", || number(&others.timeouts) > timeouts);
    proxy.silent(false);
    assert!(matches!(port.collect().1, Ok(StoreReply::User(Some(_)))));
    // Once; or more often when the host is so busy that the next answer is late too.
    let late = number(&others.timeouts) - timeouts;
    assert_eq!((number(&others.retries) - retries, number(&others.retries_refused)), (late, 0));
    assert!(!store.client.breaker.is_open());
    drop(port);
    store.close();
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn without_a_budget_nothing_is_sent_again() {
    let (proxy, store) = behind_proxy_for(Duration::from_secs(2));
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    registered(&mut port);
    while store.client.budget.spend() {}
    proxy.silent(true);
    let sent = store.client.stats.count(Statement::UserRead);
    let retries = number(&store.client.stats.others.retries);
    assert!(matches!(port.ask(load(1)), Err(StoreError::Transient)));
    let others = &store.client.stats.others;
    assert_eq!(store.client.stats.count(Statement::UserRead), sent + 1);
    assert_eq!((number(&others.retries) - retries, number(&others.retries_refused)), (0, 1));
    proxy.silent(false);
    until("it is read again", || port.ask(load(1)).is_ok());
    drop(port);
    store.close();
}

/// A boot that begins or ends is seen by others, and an earlier boot cannot say that this one has left.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn nodes_come_and_go_by_rows() {
    use crate::nodes::{NodeRow, Renewed};
    let (store, _keyspace) = open_alone();
    let nodes = store.nodes();
    let run = |boot| NodeId { url: "http://192.0.2.1:8082".into(), boot };
    let look = || store.runtime.block_on(nodes.read("http://192.0.2.1:8082"));
    assert_eq!(look(), None);
    // The clock of these tests stands still.
    let silent = Some(Duration::ZERO);
    nodes.enter(&run(u64::MAX)).expect("it is written");
    assert_eq!(look(), Some(NodeRow { boot: u64::MAX, left: false, silent }));
    nodes.leave(&run(u64::MAX)).expect("it is written");
    assert_eq!(look(), Some(NodeRow { boot: u64::MAX, left: true, silent }));
    // The new row is later than the one that is there.
    nodes.enter(&run(7)).expect("it is written");
    assert_eq!(look(), Some(NodeRow { boot: 7, left: false, silent }));
    nodes.leave(&run(u64::MAX)).expect("nothing is written");
    assert_eq!(look(), Some(NodeRow { boot: 7, left: false, silent }));
    // Each boot learns from its renewal what the others believe.
    let renew = |boot| store.runtime.block_on(nodes.renew(&run(boot)));
    assert_eq!((renew(7), renew(8)), (Renewed::Kept, Renewed::Taken));
    assert!(store.runtime.block_on(nodes.bury(&run(8))) && renew(7) == Renewed::Kept, "the row is of another run");
    assert!(store.runtime.block_on(nodes.bury(&run(7))) && renew(7) == Renewed::Buried);
    assert_eq!(look(), Some(NodeRow { boot: 7, left: true, silent }));
    store.close();
}
