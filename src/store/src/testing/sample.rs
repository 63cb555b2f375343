//! Sample data: users, channels, messages and operations, each named by a small number.

use std::sync::Arc;

use machine::ids::{Chid, Clock, KeyDigest, Origin, Stamp, Uaid};
use machine::message::{Message, Topic, Urgency};
use machine::simplepush::{Contact, Mode, Update, WakeData};
use machine::time::UnixSeconds;
use machine::upstream::{BridgeKind, Bridged};
use machine::{RowKey, StoreOp};

/// A fixed time within which nothing of the laws expires unless it should.
pub const NOW: UnixSeconds = UnixSeconds(1_900_000_000);

pub fn uaid(n: u8) -> Uaid {
    Uaid([n; 16])
}

pub fn chid(n: u8) -> Chid {
    Chid([n; 16])
}

pub fn stamp(clock: u64) -> Stamp {
    Stamp { clock: Clock(clock), origin: Origin(7) }
}

pub fn register(user: u8, channel: u8, at: u64) -> StoreOp {
    let key = channel.is_multiple_of(2).then_some(KeyDigest([channel; 32]));
    StoreOp::Register {
        uaid: uaid(user),
        chid: chid(channel),
        key,
        at: Clock(at),
        seen: NOW,
        contact: None,
        presence: None,
        maker: None,
    }
}

/// A channel of a user that is there, with the key of this number; 0: none.
pub fn subscribe(user: u8, channel: u8, key: u8, at: u64) -> StoreOp {
    let key = (key > 0).then_some(KeyDigest([key; 32]));
    StoreOp::Subscribe { uaid: uaid(user), chid: chid(channel), key, at: Clock(at) }
}

pub fn message(user: u8, channel: u8, clock: u64) -> Message {
    Message {
        uaid: uaid(user),
        chid: chid(channel),
        stamp: stamp(clock),
        ttl: 1_000,
        accepted: NOW,
        urgency: Urgency::High,
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: clock.to_be_bytes().repeat(8).into(),
    }
}

pub fn topical(user: u8, channel: u8, clock: u64, topic: &str) -> Message {
    Message { topic: Topic::new(topic.as_bytes()), ..message(user, channel, clock) }
}

pub fn contact(mode: Mode, wake: &str) -> Box<Contact> {
    Box::new(Contact { mode, wake: WakeData::new(wake), ..Contact::default() })
}

/// The record of a bridged user whose token was registered then.
pub fn bridged(registered: u64) -> Box<Bridged> {
    let token = format!("token {registered}").into();
    let aps = registered.is_multiple_of(2).then(|| r#"{"mutable-content":1}"#.into());
    let kind = if aps.is_some() { BridgeKind::Apns } else { BridgeKind::Fcm };
    Box::new(Bridged { kind, app: "app".into(), token, aps, registered: Clock(registered), refused: None })
}

/// A first registration of a bridged user.
pub fn register_bridged(user: u8, channel: u8, registered: u64) -> StoreOp {
    let StoreOp::Register { uaid, chid, key, seen, presence, .. } = register(user, channel, 0) else { unreachable!() };
    let contact = Some(Box::new(Contact { bridge: Some(bridged(registered)), ..Contact::default() }));
    StoreOp::Register { uaid, chid, key, at: Clock(registered), seen, contact, presence, maker: None }
}

pub fn update(user: u8, channel: u8, clock: u64, version: u64) -> Message {
    let made = Update { version, data: "data" }.to_message(uaid(user), chid(channel), NOW, 100);
    Message { stamp: stamp(clock), ..made }
}

pub fn settle(messages: &[Message], low_water: Option<u64>, durable: bool) -> StoreOp {
    let rows = messages.iter().map(RowKey::of).collect();
    StoreOp::Settle { rows, low_water: low_water.map(Clock), durable }
}

pub fn save(messages: &[Message]) -> StoreOp {
    StoreOp::Save { messages: messages.iter().cloned().map(Arc::new).collect() }
}
