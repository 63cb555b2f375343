//! The laws of storage, written against the port and run against every backend.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use shards::ids::{Chid, Clock, KeyDigest, Origin, Stamp, StoreTicket, Uaid};
use shards::limits;
use shards::machine::{NodeId, Page, Presence, RowKey, StoreError, StoreOp, StoreReply, UserRow};
use shards::message::{Message, Topic, Urgency};
use shards::ports::Store;
use shards::simple::{Contact, Mode, Update, WakeData};
use shards::time::UnixSeconds;

use super::embedded::{Embedded, Options};
use super::model::Model;

/// A fixed time within which nothing of the laws expires unless it should.
pub(crate) const NOW: UnixSeconds = UnixSeconds(1_900_000_000);

/// A port with a thread's patience around it.
pub(crate) struct Hand {
    port: Box<dyn Store>,
    next: u32,
}

pub(crate) type Answer = Result<StoreReply, StoreError>;

impl Hand {
    pub(crate) fn new(port: Box<dyn Store>) -> Hand {
        Hand { port, next: 0 }
    }

    /// Submits without waiting.
    pub(crate) fn submit(&mut self, op: StoreOp) -> StoreTicket {
        let ticket = StoreTicket { index: self.next, generation: 1 };
        self.next += 1;
        self.port.submit(ticket, op);
        ticket
    }

    /// The next reply.
    pub(crate) fn collect(&mut self) -> (StoreTicket, Answer) {
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(reply) = self.port.collect() {
                return reply;
            }
            assert!(Instant::now() < patience, "no reply");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Submits and waits.
    pub(crate) fn ask(&mut self, op: StoreOp) -> Answer {
        let ticket = self.submit(op);
        let (got, answer) = self.collect();
        assert_eq!(got, ticket);
        answer
    }

    /// Submits all, then answers in the order of submission.
    pub(crate) fn ask_all(&mut self, ops: Vec<StoreOp>) -> Vec<Answer> {
        let tickets: Vec<_> = ops.into_iter().map(|op| self.submit(op)).collect();
        let mut answers: Vec<_> = tickets.iter().map(|_| self.collect()).collect();
        answers.sort_by_key(|(ticket, _)| ticket.index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    pub(crate) fn done(&mut self, op: StoreOp) {
        let answer = self.ask(op);
        assert!(matches!(answer, Ok(StoreReply::Done)), "{answer:?}");
    }

    pub(crate) fn user(&mut self, uaid: Uaid) -> Option<UserRow> {
        match self.ask(StoreOp::LoadUser { uaid }) {
            Ok(StoreReply::User(row)) => row.map(|row| *row),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn page(&mut self, op: StoreOp) -> Page {
        match self.ask(op) {
            Ok(StoreReply::Page(page)) => *page,
            other => panic!("{other:?}"),
        }
    }

    /// Clocks of every live message row.
    pub(crate) fn clocks(&mut self, uaid: Uaid) -> Vec<u64> {
        let op = StoreOp::Messages { uaid, after: Stamp::default(), limit: u16::MAX, now: NOW };
        self.page(op).messages.iter().map(|m| m.stamp.clock.0).collect()
    }

    /// Clocks of every live topic row.
    pub(crate) fn topic_clocks(&mut self, uaid: Uaid) -> Vec<u64> {
        let op = StoreOp::Topics { uaid, after: None, limit: u16::MAX, now: NOW };
        self.page(op).messages.iter().map(|m| m.stamp.clock.0).collect()
    }

    pub(crate) fn register(&mut self, user: u8, channel: u8) {
        self.done(register(user, channel, 1));
    }

    pub(crate) fn publish(&mut self, message: Message) {
        self.done(StoreOp::Publish { message: Arc::new(message), checked: false });
    }
}

pub(crate) fn uaid(n: u8) -> Uaid {
    Uaid([n; 16])
}

pub(crate) fn chid(n: u8) -> Chid {
    Chid([n; 16])
}

pub(crate) fn stamp(clock: u64) -> Stamp {
    Stamp { clock: Clock(clock), origin: Origin(7) }
}

pub(crate) fn register(user: u8, channel: u8, at: u64) -> StoreOp {
    let key = channel.is_multiple_of(2).then_some(KeyDigest([channel; 32]));
    StoreOp::Register {
        uaid: uaid(user),
        chid: chid(channel),
        key,
        at: Clock(at),
        seen: NOW,
        contact: None,
        presence: None,
    }
}

pub(crate) fn message(user: u8, channel: u8, clock: u64) -> Message {
    Message {
        uaid: uaid(user),
        chid: chid(channel),
        stamp: stamp(clock),
        ttl: 1_000,
        accepted: NOW,
        urgency: Urgency::High,
        topic: None,
        receipt: false,
        payload: clock.to_be_bytes().repeat(8).into(),
    }
}

pub(crate) fn topical(user: u8, channel: u8, clock: u64, topic: &str) -> Message {
    Message { topic: Topic::new(topic.as_bytes()), ..message(user, channel, clock) }
}

fn settle(messages: &[Message], low_water: Option<u64>, durable: bool) -> StoreOp {
    let rows = messages.iter().map(RowKey::of).collect();
    StoreOp::Settle { rows, low_water: low_water.map(Clock), durable }
}

fn save(messages: &[Message]) -> StoreOp {
    StoreOp::Save { messages: messages.iter().cloned().map(Arc::new).collect() }
}

/// What was acknowledged is read back, whole.
fn acknowledged_is_read_back(hand: &mut Hand) {
    assert_eq!(hand.user(uaid(1)), None);
    hand.register(1, 2);
    hand.done(register(1, 2, 9));
    hand.register(1, 3);
    let sent = [message(1, 2, 10), message(1, 3, 11), topical(1, 2, 12, "tide")];
    sent.iter().for_each(|m| hand.publish(m.clone()));
    hand.done(save(&[message(1, 2, 5)]));
    assert_eq!(hand.clocks(uaid(1)), [5, 10, 11]);
    assert_eq!(hand.topic_clocks(uaid(1)), [12]);
    for m in &sent {
        let page = hand.page(StoreOp::Read { row: RowKey::of(m), now: NOW });
        assert_eq!((page.messages.len(), page.exhausted), (1, true));
        assert_eq!(*page.messages[0], *m);
    }
    let user = hand.user(uaid(1)).expect("it is known");
    assert_eq!((user.record_version, user.seen), (super::RECORD_VERSION, NOW));
    assert_eq!(user.channels, [chid(2), chid(3)]);
    assert!(user.may_have_messages && user.user_clock >= Clock(9));
    hand.done(StoreOp::Touch { uaid: uaid(1), seen: UnixSeconds(NOW.0 + 5) });
    assert_eq!(hand.user(uaid(1)).expect("it is known").seen, UnixSeconds(NOW.0 + 5));
    hand.done(StoreOp::Touch { uaid: uaid(9), seen: NOW });
    assert_eq!(hand.user(uaid(9)), None, "a touch makes nobody");
}

/// Nobody stores for a user or a channel that is not there, and TTL 0 stores nothing.
fn publish_checks_user_and_channel(hand: &mut Hand) {
    let ask = |hand: &mut Hand, m: Message| hand.ask(StoreOp::Publish { message: Arc::new(m), checked: false });
    assert!(matches!(ask(hand, message(1, 2, 1)), Ok(StoreReply::NoSubscription)));
    hand.register(1, 2);
    assert!(matches!(ask(hand, message(1, 3, 2)), Ok(StoreReply::NoSubscription)));
    let ttl_zero = |channel, clock| Message { ttl: 0, ..message(1, channel, clock) };
    assert!(matches!(ask(hand, ttl_zero(2, 3)), Ok(StoreReply::Done)));
    assert!(matches!(ask(hand, ttl_zero(3, 4)), Ok(StoreReply::NoSubscription)));
    assert!(hand.clocks(uaid(1)).is_empty());
    // A direct whose channel was unregistered meanwhile ended by that.
    hand.done(save(&[message(1, 2, 5), message(1, 3, 6)]));
    assert_eq!(hand.clocks(uaid(1)), [5]);
    hand.done(save(&[message(4, 2, 5)]));
    assert!(hand.clocks(uaid(4)).is_empty());
}

/// A topic row is replaced by newer messages only, and a delete removes one version only.
fn topics_and_versions(hand: &mut Hand) {
    hand.register(1, 2);
    hand.register(1, 3);
    let (old, new) = (topical(1, 2, 20, "tide"), topical(1, 2, 30, "tide"));
    hand.publish(old.clone());
    hand.publish(new.clone());
    hand.publish(topical(1, 2, 25, "tide"));
    hand.done(save(&[topical(1, 2, 26, "tide")]));
    hand.publish(topical(1, 3, 21, "tide"));
    hand.publish(topical(1, 2, 22, "moon"));
    assert_eq!(hand.topic_clocks(uaid(1)), [22, 30, 21]);
    assert!(hand.clocks(uaid(1)).is_empty());
    hand.done(settle(&[old], None, true));
    assert_eq!(hand.topic_clocks(uaid(1)), [22, 30, 21]);
    hand.done(settle(std::slice::from_ref(&new), None, false));
    assert_eq!(hand.topic_clocks(uaid(1)), [22, 21]);
    assert!(hand.page(StoreOp::Read { row: RowKey::of(&new), now: NOW }).messages.is_empty());
    let after = Some((chid(2), Topic::new(b"moon").expect("a topic")));
    let rest = hand.page(StoreOp::Topics { uaid: uaid(1), after, limit: 10, now: NOW });
    assert_eq!(rest.messages.iter().map(|m| m.stamp.clock.0).collect::<Vec<_>>(), [21]);
}

pub(crate) fn contact(mode: Mode, wake: &str) -> Box<Contact> {
    Box::new(Contact { mode, wake: WakeData::new(wake) })
}

pub(crate) fn update(user: u8, channel: u8, clock: u64, version: u64) -> Message {
    let made = Update { version, data: "data" }.to_message(uaid(user), chid(channel), NOW, 100);
    Message { stamp: stamp(clock), ..made }
}

/// How a user is reached is what was said last; a register says it only when it knows, and nobody is made by it.
fn contacts_are_replaced_whole(hand: &mut Hand) {
    let said = |mode, wake: &str| StoreOp::SetContact { uaid: uaid(1), contact: contact(mode, wake) };
    let registered = |channel, told: Option<Box<Contact>>| match register(1, channel, 1) {
        StoreOp::Register { uaid, chid, key, at, seen, .. } => {
            StoreOp::Register { uaid, chid, key, at, seen, contact: told, presence: None }
        }
        other => panic!("{other:?}"),
    };
    let found = |hand: &mut Hand| hand.user(uaid(1)).map(|user| user.contact);
    hand.done(said(Mode::Simple, "somewhere"));
    assert_eq!(found(hand), None);
    hand.done(registered(2, Some(contact(Mode::Simple, "ip=1&port=2"))));
    assert_eq!(found(hand), Some(*contact(Mode::Simple, "ip=1&port=2")));
    hand.done(registered(3, None));
    hand.done(registered(1, None));
    hand.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(9) });
    assert_eq!(found(hand), Some(*contact(Mode::Simple, "ip=1&port=2")));
    hand.publish(update(1, 3, 10, 1));
    for (mode, wake) in [(Mode::Simple, "longer than before"), (Mode::Simple, ""), (Mode::WebPush, "")] {
        hand.done(said(mode, wake));
        let user = hand.user(uaid(1)).expect("it is known");
        assert_eq!((user.contact, user.channels), (*contact(mode, wake), vec![chid(1), chid(3)]));
        assert!(user.may_have_messages);
    }
    assert_eq!(hand.topic_clocks(uaid(1)), [10], "who is reached otherwise keeps its rows");
}

/// A message is stored only for a user that is reached in its mode; a save is not asked that.
fn publish_checks_the_mode(hand: &mut Hand) {
    hand.register(1, 2);
    let ask = |hand: &mut Hand, m: Message| hand.ask(StoreOp::Publish { message: Arc::new(m), checked: false });
    assert!(matches!(ask(hand, update(1, 2, 1, 1)), Ok(StoreReply::OtherMode)));
    assert!(matches!(ask(hand, update(1, 3, 1, 1)), Ok(StoreReply::NoSubscription)));
    hand.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::Simple, "") });
    for ttl in [0, 60] {
        assert!(matches!(ask(hand, Message { ttl, ..message(1, 2, 2) }), Ok(StoreReply::OtherMode)));
    }
    assert!(hand.clocks(uaid(1)).is_empty() && hand.topic_clocks(uaid(1)).is_empty());
    hand.publish(update(1, 2, 3, 1));
    hand.done(save(&[message(1, 2, 4)]));
    assert_eq!((hand.clocks(uaid(1)), hand.topic_clocks(uaid(1))), (vec![4], vec![3]));
}

/// A row of a version update is overwritten only by a higher version, whichever was written first; not by one of the
/// same version, and by any when it has expired.
fn only_a_higher_version_overwrites(hand: &mut Hand) {
    hand.register(1, 2);
    hand.register(1, 3);
    hand.done(StoreOp::SetContact { uaid: uaid(1), contact: contact(Mode::Simple, "") });
    let kept = |hand: &mut Hand| {
        let page = hand.page(StoreOp::Topics { uaid: uaid(1), after: None, limit: 9, now: NOW });
        page.messages.iter().map(|m| (m.stamp.clock.0, m.simple_version().unwrap_or(0))).collect::<Vec<_>>()
    };
    hand.publish(update(1, 2, 10, 5));
    hand.publish(update(1, 3, 11, 1));
    for (clock, version) in [(20, 4), (21, 5), (9, 5)] {
        hand.publish(update(1, 2, clock, version));
        if clock == 9 {
            assert_eq!(kept(hand)[0], (9, 5), "of two of one version the first stamp stays");
        } else {
            assert_eq!(kept(hand)[0], (10, 5));
        }
    }
    hand.done(save(&[update(1, 2, 30, 4), update(1, 2, 3, 6), update(1, 2, 31, 6)]));
    assert_eq!(kept(hand), [(3, 6), (11, 1)], "a higher version with an older stamp");
    // Its delete leaves a newer one alone.
    hand.done(settle(&[update(1, 2, 9, 5)], None, true));
    assert_eq!(kept(hand), [(3, 6), (11, 1)]);
    hand.publish(Message { accepted: UnixSeconds(NOW.0 + 99), ..update(1, 2, 40, 2) });
    assert_eq!(kept(hand)[0], (3, 6));
    hand.publish(Message { accepted: UnixSeconds(NOW.0 + 100), ..update(1, 2, 41, 2) });
    assert_eq!(kept(hand)[0], (41, 2), "an expired version keeps nobody away");
}

/// Pages are in clock order over message and saved rows, and say when there is no more.
fn pages_are_merged_in_order(hand: &mut Hand) {
    hand.register(1, 2);
    hand.register(1, 3);
    hand.register(2, 2);
    hand.publish(message(2, 2, 15));
    for clock in [40, 10, 30] {
        hand.publish(message(1, 2, clock));
    }
    hand.done(save(&[message(1, 3, 20), message(1, 2, 35)]));
    let page = |hand: &mut Hand, after: u64, limit| {
        let after = if after == 0 { Stamp::default() } else { stamp(after) };
        let page = hand.page(StoreOp::Messages { uaid: uaid(1), after, limit, now: NOW });
        (page.messages.iter().map(|m| m.stamp.clock.0).collect::<Vec<_>>(), page.exhausted)
    };
    assert_eq!(page(hand, 0, 2), (vec![10, 20], false));
    assert_eq!(page(hand, 20, 2), (vec![30, 35], false));
    assert_eq!(page(hand, 35, 2), (vec![40], true));
    assert_eq!(page(hand, 35, 1), (vec![40], true));
    assert_eq!(page(hand, 40, 2), (vec![], true));
    assert_eq!(page(hand, 0, 5), (vec![10, 20, 30, 35, 40], true));
}

/// Message rows at or below low water are gone, saved rows are not.
fn low_water_covers_message_rows(hand: &mut Hand) {
    hand.register(1, 2);
    (1..=5).for_each(|n| hand.publish(message(1, 2, n * 10)));
    hand.done(save(&[message(1, 2, 15)]));
    hand.done(settle(&[message(1, 2, 40)], Some(30), false));
    assert_eq!(hand.clocks(uaid(1)), [15, 50]);
    hand.done(settle(&[message(1, 2, 99)], Some(20), true));
    assert_eq!(hand.user(uaid(1)).expect("it is known").low_water, Clock(30));
    // A straggler below it is not lost: nobody can have settled what was not there.
    hand.publish(message(1, 2, 25));
    assert_eq!(hand.clocks(uaid(1)), [15, 25, 50]);
    hand.done(settle(&[message(1, 2, 15), message(1, 2, 25), message(1, 2, 50)], None, true));
    assert!(hand.clocks(uaid(1)).is_empty());
}

/// Unregister and drop take every row with them and nothing else.
fn unregister_and_drop_remove_every_row(hand: &mut Hand) {
    for (user, channel) in [(1, 2), (1, 3), (2, 2)] {
        hand.register(user, channel);
        hand.publish(message(user, channel, 10 + u64::from(channel)));
        hand.publish(topical(user, channel, 20 + u64::from(channel), "tide"));
        hand.done(save(&[message(user, channel, 5)]));
    }
    hand.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(50) });
    assert_eq!((hand.clocks(uaid(1)), hand.topic_clocks(uaid(1))), (vec![5, 13], vec![23]));
    hand.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(9), at: Clock(60) });
    hand.done(StoreOp::Unregister { uaid: uaid(8), chid: chid(9), at: Clock(60) });
    let user = hand.user(uaid(1)).expect("it is known");
    assert_eq!((user.channels.as_slice(), user.user_clock >= Clock(60)), (&[chid(3)][..], true));
    hand.register(1, 2);
    assert_eq!((hand.clocks(uaid(1)), hand.topic_clocks(uaid(1))), (vec![5, 13], vec![23]));
    hand.done(StoreOp::DropUser { uaid: uaid(1) });
    hand.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(hand.user(uaid(1)), None);
    hand.register(1, 2);
    hand.register(1, 3);
    assert_eq!((hand.clocks(uaid(1)), hand.topic_clocks(uaid(1))), (vec![], vec![]));
    assert_eq!((hand.clocks(uaid(2)), hand.topic_clocks(uaid(2))), (vec![5, 12], vec![22]));
}

/// Expired rows are never returned and never stand in front of live ones, however many.
fn expired_rows_do_not_block(hand: &mut Hand) {
    hand.register(1, 2);
    let brief = |clock| Message { ttl: 10, ..message(1, 2, clock) };
    let ops = (1..=10_000).map(|n| StoreOp::Publish { message: Arc::new(brief(n)), checked: false });
    for answer in hand.ask_all(ops.collect()) {
        assert!(matches!(answer, Ok(StoreReply::Done)));
    }
    hand.publish(message(1, 2, 20_000));
    hand.publish(Message { ttl: 10, ..topical(1, 2, 20_001, "tide") });
    hand.publish(topical(1, 2, 20_002, "zeal"));
    let later = UnixSeconds(NOW.0 + 10);
    for limit in [1, 10] {
        let page = hand.page(StoreOp::Messages { uaid: uaid(1), after: Stamp::default(), limit, now: later });
        assert_eq!((page.messages.len(), page.exhausted), (1, true));
        let page = hand.page(StoreOp::Topics { uaid: uaid(1), after: None, limit, now: later });
        assert_eq!((page.messages.len(), page.messages[0].stamp.clock.0), (1, 20_002));
    }
    let read = StoreOp::Read { row: RowKey::of(&brief(7)), now: later };
    assert!(hand.page(read).messages.is_empty());
}

/// Operations of one user take effect in the order of submission, reads among them.
fn one_users_operations_keep_their_order(hand: &mut Hand) {
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
    let answers = hand.ask_all(ops);
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

/// A user has at most `CHANNELS_MAX` channels; they all come back.
fn channels_are_bounded(hand: &mut Hand) {
    let register = |n: usize| StoreOp::Register {
        uaid: uaid(1),
        chid: Chid((n as u128).to_be_bytes()),
        key: None,
        at: Clock(1),
        seen: NOW,
        contact: None,
        presence: None,
    };
    let answers = hand.ask_all((0..limits::CHANNELS_MAX).rev().map(register).collect());
    assert!(answers.iter().all(|a| matches!(a, Ok(StoreReply::Done))));
    assert!(matches!(hand.ask(register(limits::CHANNELS_MAX)), Err(StoreError::Full)));
    assert!(matches!(hand.ask(register(3)), Ok(StoreReply::Done)));
    let user = hand.user(uaid(1)).expect("it is known");
    let all: Vec<_> = (0..limits::CHANNELS_MAX).map(|n| Chid((n as u128).to_be_bytes())).collect();
    assert_eq!(user.channels, all);
}

/// A session stands until exactly it is cleared or a newer one of its node and boot comes; the newest is first. Only on
/// stores that several nodes read.
fn presence_is_cleared_exactly(hand: &mut Hand) {
    let node = |boot| Arc::new(NodeId { url: "http://192.0.2.1:8082".into(), boot });
    let at = |boot, connected_at| Presence { node: node(boot), connected_at };
    let set = |presence| StoreOp::SetPresence { uaid: uaid(1), presence };
    let clear = |presence| StoreOp::ClearPresence { uaid: uaid(1), presence };
    let found = |hand: &mut Hand| hand.user(uaid(1)).expect("it is known").presence;
    hand.done(clear(at(1, 5)));
    assert_eq!(hand.user(uaid(1)), None, "nobody is made by it");
    let registered = match register(1, 2, 1) {
        StoreOp::Register { uaid, chid, key, at: clock, seen, contact, .. } => {
            StoreOp::Register { uaid, chid, key, at: clock, seen, contact, presence: Some(at(1, 10)) }
        }
        other => panic!("{other:?}"),
    };
    hand.done(registered);
    assert_eq!(found(hand), [at(1, 10)]);
    hand.done(set(at(2, 30)));
    hand.done(set(at(3, 20)));
    assert_eq!(found(hand), [at(2, 30), at(3, 20), at(1, 10)]);
    hand.done(set(at(1, 40)));
    hand.done(set(at(2, 25)));
    assert_eq!(found(hand), [at(1, 40), at(2, 30), at(3, 20)], "an older one of the same boot changes nothing");
    hand.done(clear(at(1, 10)));
    assert_eq!(found(hand), [at(1, 40), at(2, 30), at(3, 20)], "a newer one stays");
    hand.done(clear(at(2, 30)));
    hand.done(clear(at(2, 30)));
    assert_eq!(found(hand), [at(1, 40), at(3, 20)]);
    hand.done(StoreOp::Touch { uaid: uaid(1), seen: UnixSeconds(NOW.0 + 1) });
    hand.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(50) });
    assert_eq!(found(hand), [at(1, 40), at(3, 20)]);
    assert_eq!(hand.user(uaid(1)).expect("it is known").seen, UnixSeconds(NOW.0 + 1));
    hand.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(hand.user(uaid(1)), None);
}

fn on_model(law: fn(&mut Hand)) {
    law(&mut Hand::new(Model::new(u64::MAX).port(Arc::new(|| {}))));
}

fn on_embedded(law: fn(&mut Hand)) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), Options::default()).expect("it opens");
    law(&mut Hand::new(store.port(Arc::new(|| {}))));
    store.close();
}

fn on_scylla(law: fn(&mut Hand)) {
    let store = super::scylla::tests::open();
    let mut hand = Hand::new(Box::new(super::scylla::tests::Apart::new(&store)));
    law(&mut hand);
    drop(hand);
    store.close();
}

/// Each law as a test of every backend; `on_model`, `on_embedded` and `on_scylla` stand beside the laws.
macro_rules! laws {
    ($($law:ident),+ $(,)?) => {
        mod model { $(#[test] fn $law() { super::on_model(super::$law); })+ }
        mod embedded { $(#[test] fn $law() { super::on_embedded(super::$law); })+ }
        mod scylla { $(#[test] fn $law() { super::on_scylla(super::$law); })+ }
    };
}

pub(crate) use laws;

laws! {
    acknowledged_is_read_back,
    publish_checks_user_and_channel,
    topics_and_versions,
    contacts_are_replaced_whole,
    publish_checks_the_mode,
    only_a_higher_version_overwrites,
    pages_are_merged_in_order,
    low_water_covers_message_rows,
    unregister_and_drop_remove_every_row,
    expired_rows_do_not_block,
    one_users_operations_keep_their_order,
    channels_are_bounded,
}

#[test]
fn the_model_clears_presence_exactly() {
    on_model(presence_is_cleared_exactly);
}

#[test]
fn scylla_clears_presence_exactly() {
    on_scylla(presence_is_cleared_exactly);
}

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
        1 => (1u8..3, 1u8..4, 1u64..99).prop_map(|(user, channel, at)| StoreOp::Unregister {
            uaid: uaid(user),
            chid: chid(channel),
            at: Clock(at)
        }),
        2 => (1u8..3, any::<bool>(), "[a-z]{0,9}").prop_map(|(user, simple, wake)| StoreOp::SetContact {
            uaid: uaid(user),
            contact: contact(if simple { Mode::Simple } else { Mode::WebPush }, &wake)
        }),
        1 => (1u8..3).prop_map(|user| StoreOp::DropUser { uaid: uaid(user) }),
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

/// What two backends must agree on. The mark and the user clock are bounds (see `super`).
fn comparable(answer: &Answer) -> String {
    match answer {
        Ok(StoreReply::User(Some(row))) => {
            let plain = UserRow { user_clock: Clock(0), may_have_messages: true, ..UserRow::clone(row) };
            // What it prints hides how the user is woken.
            format!("{plain:?} {:?}", row.contact.wake.as_ref().map(WakeData::as_str))
        }
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
        let dir = tempfile::tempdir().expect("a directory");
        // Reclaiming would let an older topic message take the slot of an expired newer one.
        let store = Embedded::open(dir.path(), Options { sweep: false, ..Options::default() }).expect("it opens");
        let mut embedded = Hand::new(store.port(Arc::new(|| {})));
        let mut model = Hand::new(Model::new(u64::MAX).port(Arc::new(|| {})));
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

/// The same operations as machines would say them: a stamp names one message and is never given twice, what comes after
/// the drop of a user is later than it, and only sessions of users that are there raise their low water. A store whose
/// conflicts are settled by clocks relies on that.
fn as_machines_say(ops: &[StoreOp]) -> Vec<StoreOp> {
    let mut model = Hand::new(Model::new(u64::MAX).port(Arc::new(|| {})));
    let mut base = 0;
    let mut given: BTreeMap<(Uaid, Chid, Option<Topic>, u64), Clock> = BTreeMap::new();
    let mut newest: BTreeMap<(Uaid, Chid, Topic), Clock> = BTreeMap::new();
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
                StoreOp::Save { messages: messages.iter().enumerate().map(|(n, message)| fresh(message, n)).collect() }
            }
            StoreOp::Read { row, now } => StoreOp::Read { row: renamed(&given, base, row), now },
            StoreOp::Settle { rows, low_water, durable } => {
                let there = model.user(rows[0].uaid).is_some();
                let low_water = low_water.filter(|_| there).map(|clock| Clock(base + clock.0 * 1_000));
                let rows = rows.into_iter().map(|row| renamed(&given, base, row)).collect();
                StoreOp::Settle { rows, low_water, durable }
            }
            StoreOp::Messages { uaid, after, limit, now } => {
                let clock = Clock(base + after.clock.0 * 1_000);
                StoreOp::Messages { uaid, after: Stamp { clock, ..after }, limit, now }
            }
            StoreOp::Register { uaid, chid, key, at, seen, contact, presence } => {
                StoreOp::Register { uaid, chid, key, at: Clock(base + at.0), seen, contact, presence }
            }
            StoreOp::Unregister { uaid, chid, at } => StoreOp::Unregister { uaid, chid, at: Clock(base + at.0) },
            StoreOp::DropUser { uaid } => {
                base += 1_000_000;
                StoreOp::DropUser { uaid }
            }
            other => other,
        };
        let _ = model.ask(op.clone());
        said.push(op);
    }
    said
}

fn renamed(given: &BTreeMap<(Uaid, Chid, Option<Topic>, u64), Clock>, base: u64, row: RowKey) -> RowKey {
    let name = (row.uaid, row.chid, row.topic, row.stamp.clock.0);
    match given.get(&name).copied() {
        Some(clock) => RowKey { stamp: Stamp { clock, ..row.stamp }, ..row },
        // Nobody settles a version of a topic that never was: to a clock it would be the newest.
        None => {
            let clock = Clock(base + row.stamp.clock.0 * 1_000 + 999);
            RowKey { stamp: Stamp { clock, ..row.stamp }, topic: None, ..row }
        }
    }
}

proptest! {
    // Each case is some thousand requests to a database.
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn scylla_and_model_agree(ops in prop::collection::vec(any_op(), 1..150), together in any::<bool>()) {
        let ops = as_machines_say(&ops);
        let store = super::scylla::tests::open();
        let mut shared = Hand::new(Box::new(super::scylla::tests::Apart::new(&store)));
        let mut model = Hand::new(Model::new(u64::MAX).port(Arc::new(|| {})));
        let expected: Vec<_> = ops.iter().map(|op| comparable(&model.ask(op.clone()))).collect();
        let found: Vec<_> = if together {
            shared.ask_all(ops.clone()).iter().map(comparable).collect()
        } else {
            ops.iter().map(|op| comparable(&shared.ask(op.clone()))).collect()
        };
        drop(shared);
        store.close();
        for (at, op) in ops.iter().enumerate() {
            let before = || ops[..at].iter().map(|op| format!("{op:?}")).collect::<Vec<_>>();
            prop_assert_eq!(&found[at], &expected[at], "operation {}: {:?} after {:#?}", at, op, before());
        }
    }
}
