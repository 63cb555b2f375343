//! Tombstones that reads pass and settled rows on disk, on a real Cassandra: what a user agent acks costs its next
//! hello nothing, and nothing that was not acked is hidden or deleted.

use std::sync::Arc;
use std::time::Duration;

use machine::ids::{Chid, Clock, Stamp};
use machine::limits::{RECLAIM_SECONDS, SETTLE_SECONDS};
use machine::message::Message;
use machine::{Page, StoreOp};
use runtime::process_clock::ProcessClock;
use scylla::statement::{Consistency, Statement};

use super::super::Scylla;
use super::super::stats;
use super::Apart;
use super::refresh::{Bare, hexadecimal};
use crate::conformance::{BlockingStore, NOW, chid, message, register, uaid};
use crate::shared::opening::ConnectOptions;
use crate::shared::schema::family::{CHANNEL, MESSAGE, SAVED};
use crate::testing::database::shared;
use crate::testing::sample::{save, settle, stamp, topical};

/// The present of these tests at their begin, in microseconds.
const START: u64 = NOW.0 * 1_000_000;
const SECOND: u64 = 1_000_000;
/// Tenths of a second for which a trace is waited for.
const PATIENCE: usize = 600;
/// Messages that are acked at once.
const ACKS: usize = 100;

/// Nodes with one user, and the clock of all of them.
struct World {
    clock: Arc<ProcessClock>,
    store: Scylla,
    user: String,
    bare: Bare<'static>,
}

impl World {
    /// A store whose user 1 has channel 2, and a node.
    fn new() -> (World, BlockingStore) {
        let clock = Arc::new(ProcessClock::standing(START));
        let store = Scylla::connect(shared(), ConnectOptions { process_clock: Arc::clone(&clock) }).expect("it opens");
        let apart = Apart::new(&store);
        let user = hexadecimal(&apart.uaid(uaid(1)).0);
        let mut port = BlockingStore::new(Box::new(apart));
        port.done(register(1, 2, START));
        (World { clock, store, user, bare: Bare::new(shared()) }, port)
    }

    /// Another node, which knows nothing of the user yet.
    fn node(&self) -> BlockingStore {
        let mut apart = Apart::new(&self.store);
        let bytes: Vec<u8> =
            (2..self.user.len()).step_by(2).map(|at| u8::from_str_radix(&self.user[at..at + 2], 16).unwrap()).collect();
        apart.mask = std::array::from_fn(|n| bytes[n] ^ uaid(1).0[n]);
        BlockingStore::new(Box::new(apart))
    }

    fn pass_seconds(&self, seconds: u64) {
        self.clock.apply_step((seconds * SECOND).cast_signed());
    }

    fn now(&self) -> u64 {
        self.clock.unix_us()
    }

    /// Tombstones that a read of message rows behind low water passes, and those of a read of the user.
    fn tombstones(&self) -> (u64, u64) {
        let of_user = format!("SELECT value FROM KS.user WHERE uaid = {}", self.user);
        let low_water = self.low_water();
        let behind =
            format!("(family, clock) > ({MESSAGE}, {low_water}) AND (family, clock) <= ({MESSAGE}, {})", i64::MAX);
        let messages = format!("SELECT value FROM KS.message WHERE uaid = {} AND {behind}", self.user);
        (self.bare.tombstones(&messages), self.bare.tombstones(&of_user))
    }

    fn low_water(&self) -> u64 {
        self.node().user(uaid(1)).expect("it is known").low_water.0
    }

    /// Rows of this family on disk or in memory that no delete has reached, settled or not.
    fn rows(&self, family: i8) -> usize {
        let query = format!("SELECT value FROM KS.message WHERE uaid = {} AND family = {family}", self.user);
        self.bare.count(&query)
    }

    /// Puts the row of a message there as the database does with a hint.
    fn hint(&self, message: &Message) {
        let (clock, value) = (message.stamp.clock.0, hexadecimal(&super::super::rows::value(message)));
        let place =
            format!("family = {MESSAGE} AND clock = {clock} AND origin = 7 AND key = {}", hexadecimal(&message.chid.0));
        let put = format!("UPDATE KS.message USING TIMESTAMP {clock} AND TTL 9999 SET value = {value}");
        self.bare.send(&format!("{put} WHERE uaid = {} AND {place}", self.user));
    }

    fn end(self, ports: Vec<BlockingStore>) {
        drop(ports);
        self.store.close();
    }
}

/// Clocks of the messages that a hello reads.
fn hello(world: &World, port: &mut BlockingStore) -> Vec<u64> {
    let now = world.clock.unix();
    port.user(uaid(1)).expect("it is known");
    port.page(StoreOp::Topics { uaid: uaid(1), after: None, limit: 50, now });
    let read = StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit: 50, now };
    let Page { messages, .. } = port.page(read);
    messages.iter().map(|message| message.stamp.clock.0).collect()
}

fn posts(port: &mut BlockingStore, messages: &[Message]) {
    let posts = messages.iter().map(|one| StoreOp::Publish { message: Arc::new(one.clone()), checked: true });
    assert!(port.ask_all(posts.collect()).iter().all(Result::is_ok));
}

fn acks(port: &mut BlockingStore, messages: &[Message]) {
    messages.chunks(ACKS).for_each(|some| port.done(settle(some, None, false)));
}

fn some(world: &World, count: u64) -> Vec<Message> {
    (1..=count).map(|n| message(1, 2, world.now() + n)).collect()
}

/// 3,000 messages are POSTed and acked at once. The first hello a minute later, on another node, passes their
/// tombstones, and no later one does.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn tombstones_of_young_acks_are_passed_once() {
    let (world, mut port) = World::new();
    let messages = some(&world, 3_000);
    posts(&mut port, &messages);
    acks(&mut port, &messages);
    assert!(world.tombstones().0 >= 3_000, "{:?}", world.tombstones());
    let mut other = world.node();
    assert_eq!(hello(&world, &mut other), [0; 0]);
    assert!(world.low_water() < START, "a message may still be written under it");
    world.pass_seconds(SETTLE_SECONDS + 1);
    let mut third = world.node();
    assert_eq!(hello(&world, &mut third), [0; 0]);
    assert!(world.low_water() >= messages.last().unwrap().stamp.clock.0);
    assert_eq!(world.tombstones().0, 0);
    world.end(vec![port, other, third]);
}

/// A session that lives on and is never read again: its acks themselves raise low water, so that no read ever passes
/// the 100,000 tombstones at which the database refuses it.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_long_session_leaves_few_tombstones() {
    let (world, mut port) = World::new();
    for _ in 0..6 {
        let messages = some(&world, 1_100);
        posts(&mut port, &messages);
        acks(&mut port, &messages);
        world.pass_seconds(SETTLE_SECONDS + 1);
    }
    assert!(world.tombstones().0 <= 2_300, "{:?} of 6,600", world.tombstones());
    world.end(vec![port]);
}

/// Directs that were not acked in time are saved, and acked then: low water covers them as it does what was POSTed, and
/// no read looks for rows that were saved late where there are none.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn tombstones_of_saved_rows_are_passed_once() {
    let (world, mut port) = World::new();
    let messages = some(&world, 300);
    world.pass_seconds(10);
    messages.chunks(ACKS).for_each(|some| port.done(save(some)));
    assert_eq!((world.rows(MESSAGE), world.rows(SAVED)), (300, 0));
    assert_eq!(hello(&world, &mut port).len(), 50);
    acks(&mut port, &messages);
    world.pass_seconds(SETTLE_SECONDS + 1);
    let mut other = world.node();
    assert_eq!(hello(&world, &mut other), [0; 0]);
    assert_eq!(world.tombstones().0, 0);
    let reads = || world.store.client.stats.count(stats::Statement::MessagesRead);
    let before = reads();
    assert_eq!(hello(&world, &mut other), [0; 0]);
    assert_eq!(reads(), before + 1, "no saved row is looked for");
    // A ledger that is read again after all writes none of them back.
    port.done(save(&messages[..50]));
    assert_eq!(hello(&world, &mut other), [0; 0]);
    world.end(vec![port, other]);
}

/// Messages that appear below low water are delivered: that of a node that is behind, and that of a ledger.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn what_appears_below_low_water_is_delivered() {
    let (world, mut port) = World::new();
    let messages = some(&world, 200);
    posts(&mut port, &messages);
    acks(&mut port, &messages);
    world.pass_seconds(SETTLE_SECONDS + 5);
    let mut other = world.node();
    assert_eq!(hello(&world, &mut other), [0; 0]);
    let mark = world.low_water();
    assert!(mark > messages[199].stamp.clock.0);
    // A node that is 2 s behind stamps above it.
    let behind = message(1, 2, world.now() - 2 * SECOND);
    other.publish(behind.clone());
    // One that stood still saves what its ledger had.
    let late = message(1, 2, mark - 1);
    other.done(save(std::slice::from_ref(&late)));
    let found = [mark - 1, behind.stamp.clock.0];
    assert_eq!(hello(&world, &mut world.node()), found);
    assert_eq!(hello(&world, &mut other), found, "also where nothing was late before");
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    world.pass_seconds(RECLAIM_SECONDS + 1);
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    assert_eq!(world.rows(SAVED), 1, "a refresh deletes what was settled, and nothing else");
    world.end(vec![port, other]);
}

/// A message that is held, or that left its window without an ack, is a row that is there: low water stays below it.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn low_water_stays_below_what_is_held_or_deferred() {
    let (world, mut port) = World::new();
    let messages = some(&world, 300);
    posts(&mut port, &messages);
    let held = messages[120].clone();
    let others: Vec<_> = messages.iter().filter(|one| one.stamp != held.stamp).cloned().collect();
    acks(&mut port, &others);
    world.pass_seconds(SETTLE_SECONDS + 1);
    let mut other = world.node();
    for _ in 0..2 {
        assert_eq!(hello(&world, &mut other), [held.stamp.clock.0]);
        assert_eq!(world.low_water(), held.stamp.clock.0 - 1);
        port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    }
    acks(&mut other, std::slice::from_ref(&held));
    assert_eq!(hello(&world, &mut other), [0; 0]);
    assert!(world.low_water() > held.stamp.clock.0);
    world.end(vec![port, other]);
}

/// Messages that were acked leave the disk at the refresh of their user, and nothing else does.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_refresh_deletes_what_was_settled_a_day_ago() {
    let (world, mut port) = World::new();
    let month = |clock: u64| Message { ttl: 28 * 86_400, ..message(1, 2, clock) };
    let messages: Vec<_> = (1..=200).map(|n| month(START + n)).collect();
    posts(&mut port, &messages);
    port.publish(Message { ttl: 28 * 86_400, ..topical(1, 2, START + 300, "tide") });
    world.pass_seconds(2 * SETTLE_SECONDS);
    port.done(settle(&messages[..1], Some(messages[199].stamp.clock.0), true));
    assert_eq!(world.rows(MESSAGE), 200, "low water covers them, and they are there");
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    assert_eq!(world.rows(MESSAGE), 200, "a write may still be under way");
    world.pass_seconds(RECLAIM_SECONDS - 3_600);
    let young = month(world.now());
    port.publish(young.clone());
    world.pass_seconds(1_800);
    let unread = month(world.now());
    port.publish(unread.clone());
    world.pass_seconds(1_800);
    port.done(settle(std::slice::from_ref(&young), Some(young.stamp.clock.0), true));
    port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW });
    assert_eq!(world.rows(MESSAGE), 2);
    // The hint of a write of an hour ago comes below low water and behind the range: the range does not reach it.
    let hinted = month(young.stamp.clock.0 - SECOND);
    world.hint(&hinted);
    assert_eq!(world.rows(MESSAGE), 3);
    assert_eq!(hello(&world, &mut port), [unread.stamp.clock.0]);
    let topics = StoreOp::Topics { uaid: uaid(1), after: None, limit: 9, now: world.clock.unix() };
    assert_eq!(port.page(topics).messages.len(), 1);
    world.end(vec![port]);
}

/// A user that registers and unregisters all day: every hello and every POST reads its channels.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn tombstones_of_channels_become_one() {
    let (world, mut port) = World::new();
    port.done(register(1, 4, START));
    let gone = |n: u64| Chid([&[9; 8][..], &n.to_be_bytes()].concat().try_into().expect("16 bytes"));
    for round in 0..4 {
        for n in 0..256 {
            let (chid, at) = (gone(round * 256 + n), Clock(world.now() + n));
            port.done(StoreOp::Register {
                uaid: uaid(1),
                chid,
                key: None,
                at,
                seen: NOW,
                contact: None,
                presence: None,
                maker: None,
            });
            port.done(StoreOp::Unregister { uaid: uaid(1), chid, at });
        }
        world.pass_seconds(700);
    }
    let (_, tombstones) = world.tombstones();
    assert!((1..=300).contains(&tombstones), "{tombstones} of 1,024");
    let left = world.node().user(uaid(1)).expect("it is known").channels;
    assert_eq!(left, [chid(2), chid(4)]);
    assert_eq!(
        world.bare.count(&format!("SELECT value FROM KS.user WHERE uaid = {} AND family = {CHANNEL}", world.user)),
        2
    );
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(4), at: Clock(START) });
    assert_eq!(world.node().user(uaid(1)).expect("it is known").channels, [chid(2)]);
    world.end(vec![port]);
}

impl Bare<'_> {
    fn ask(&self, query: &str, traced: bool) -> (usize, u64) {
        let mut query = Statement::new(query.replace("KS", &shared().keyspace));
        query.set_consistency(Consistency::Quorum);
        query.set_tracing(traced);
        self.runtime.block_on(async {
            let found = self.session.query_unpaged(query, ()).await.expect("an answer");
            let mut passed = 0;
            if let Some(id) = found.tracing_id() {
                let mut trace = self.session.get_tracing_info(&id).await;
                // The database writes it behind its answer.
                for _ in 0..PATIENCE {
                    if trace.is_ok() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    trace = self.session.get_tracing_info(&id).await;
                }
                let trace = trace.expect("the trace");
                let activities = trace.events.iter().filter_map(|event| event.activity.as_deref());
                let number = |text: &str| text.split(" and ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
                passed = activities.filter(|text| text.contains("tombstone")).filter_map(number).sum();
            }
            (found.into_rows_result().map_or(0, |rows| rows.rows_num()), passed)
        })
    }

    fn count(&self, query: &str) -> usize {
        self.ask(query, false).0
    }

    pub(super) fn tombstones(&self, query: &str) -> u64 {
        self.ask(query, true).1
    }
}

#[test]
fn a_stamp_of_the_laws_is_of_one_origin() {
    assert_eq!(stamp(1).origin.0, 7, "hints are written with it");
}
