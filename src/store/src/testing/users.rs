//! Whole users, and a store full of them.

use std::sync::Arc;

use machine::ids::{Clock, KeyDigest};
use machine::simplepush::{Contact, Mode};
use machine::{RECORD_VERSION, RowKey, StoreOp, StoreReply};

use super::sample::{NOW, bridged, chid, contact, message, topical, uaid, update};
use crate::transfer::{Channel, Transfer, WholeUser};

pub fn channel(n: u8, at: u64) -> Channel {
    Channel { chid: chid(n), key: n.is_multiple_of(2).then_some(KeyDigest([n; 32])), registered_at: Clock(at) }
}

pub fn user(n: u8, channels: &[Channel]) -> WholeUser {
    WholeUser {
        uaid: uaid(n),
        record_version: RECORD_VERSION,
        seen: NOW,
        low_water: Clock(0),
        user_clock: channels.iter().map(|c| c.registered_at).max().unwrap_or(Clock(1)),
        may_have_messages: false,
        contact: Contact::default(),
        channels: channels.to_vec(),
    }
}

/// Users of all sorts, more than one batch of them.
pub fn fill(store: &mut dyn Transfer) {
    for n in 1..=200u8 {
        let channels: Vec<_> = (1..=n % 4).map(|c| channel(c, u64::from(c) + 3)).collect();
        let simple = n % 4 == 3 && n % 3 == 0;
        let is_bridged = n % 4 > 0 && n % 10 == 9 && !simple;
        let told = match (simple, is_bridged) {
            (true, _) => *contact(Mode::Simple, "somewhere"),
            (_, true) => Contact { bridge: Some(bridged(u64::from(n))), ..Contact::default() },
            _ => Contact::default(),
        };
        let mut whole = WholeUser { contact: told, low_water: Clock(1), ..user(n, &channels) };
        // The clock of a user is never behind what it covers.
        if let Some(bridge) = &whole.contact.bridge {
            whole.user_clock = whole.user_clock.max(bridge.registered);
        }
        store.put_users(&[whole]).unwrap();
        let publish = |message| StoreOp::Publish { message: Arc::new(message), checked: false };
        if n % 4 > 0 && !simple && !is_bridged {
            let count = if n == 5 { 100 } else { u64::from(n) % 5 };
            for at in 0..count {
                done(store, publish(message(n, 1, 100 + at)));
                done(store, publish(topical(n, 1, 300 + at, &format!("t{}", at / 2))));
            }
            done(store, StoreOp::Save { messages: vec![Arc::new(message(n, 1, 1))] });
            let low_water = Some(Clock(100));
            done(store, StoreOp::Settle { rows: vec![RowKey::of(&message(n, 1, 100))], low_water, durable: true });
        } else if simple {
            done(store, publish(update(n, 1, 50, 8)));
        }
    }
}

/// Carries out an operation that the store takes.
pub fn done(store: &mut dyn Transfer, op: StoreOp) {
    let replies = store.ask(vec![op]).unwrap();
    assert!(matches!(replies[..], [StoreReply::Done]), "{replies:?}");
}
