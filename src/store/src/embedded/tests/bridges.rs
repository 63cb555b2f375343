//! Bridged users in a directory: their records outlive restarts and copies, and expire as others do.

use super::*;
use crate::IDLE_SECONDS_MAX;
use crate::testing::sample::{bridged, register_bridged};
use machine::simplepush::{Contact, WakeData};
use machine::upstream::Bridged;

/// Three bridged users: with two channels and a refusal, with more channels than a record names, and with wake data.
fn fill(port: &mut BlockingStore) {
    for channel in [2, 3] {
        port.done(register_bridged(1, channel, 10));
    }
    port.done(StoreOp::MarkRefused { uaid: uaid(1), registered: Clock(10), at: UnixSeconds(77) });
    for channel in 1..=20 {
        port.done(register_bridged(2, channel, 11));
    }
    port.done(register_bridged(3, 2, 12));
    let contact = Contact { wake: WakeData::new("over there"), ..Contact::default() };
    port.done(StoreOp::SetContact { uaid: uaid(3), contact: Box::new(contact), durable: true });
}

fn check(port: &mut BlockingStore) {
    let marked = Box::new(Bridged { refused: Some(UnixSeconds(77)), ..*bridged(10) });
    for (user, bridge, channels) in [(1, marked, 2), (2, bridged(11), 20), (3, bridged(12), 1)] {
        let row = port.user(uaid(user)).expect("it is known");
        assert!(row.contact.bridge == Some(bridge) && row.channels.len() == channels, "{user}: {row:?}");
        assert_eq!(row.contact.wake.map(|wake| wake.as_str().to_owned()), (user == 3).then(|| "over there".into()));
    }
}

#[test]
fn bridged_users_survive_a_restart_and_a_salvage() {
    let (dir, dest) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let store = Embedded::open(dir.path(), patient()).expect("it opens");
    fill(&mut port(&store));
    store.close();
    let store = Embedded::open(dir.path(), patient()).expect("it opens");
    check(&mut port(&store));
    store.close();
    let copied = salvage(dir.path(), &dest.path().join("new"), &mut |_| ()).expect("it salvages");
    assert!(copied.is_whole() && copied.users == 3, "{copied:?}");
    let store = Embedded::open(&dest.path().join("new"), patient()).expect("it opens");
    check(&mut port(&store));
    store.close();
}

#[test]
fn a_record_whose_bridge_cannot_be_read_is_no_record() {
    let mut record = record::Record::new();
    record.set_bridge(&bridged(10));
    assert!(record::Record::parse(record.as_bytes()).is_some());
    let mut bytes = record.as_bytes().to_vec();
    let kind = 52 + 16;
    bytes[kind] = 9;
    assert!(record::Record::parse(&bytes).is_none(), "a service of a later version");
    for length in 0..record.as_bytes().len() {
        assert!(record::Record::parse(&record.as_bytes()[..length]).is_none(), "{length} bytes");
    }
}

#[test]
fn a_bridged_user_expires_without_a_registration_call() {
    let mut state = machine::model::Model::new(u64::MAX);
    let first = register_bridged(1, 2, (NOW.0 + 5) * 1_000_000);
    let publish = |at| StoreOp::Publish { message: Arc::new(message(1, 2, at)), checked: false };
    for op in [first, publish(100), publish(101)] {
        state.apply(&op).expect("it is done");
    }
    state.sweep(UnixSeconds(NOW.0 + IDLE_SECONDS_MAX - 1), usize::MAX);
    assert!(state.user(uaid(1)).is_some());
    let mut refreshed = state.clone();
    let bridge = bridged((NOW.0 + 9) * 1_000_000);
    refreshed.apply(&StoreOp::SetBridge { uaid: uaid(1), bridge }).expect("it is done");
    for state in [&mut state, &mut refreshed] {
        state.sweep(UnixSeconds(NOW.0 + IDLE_SECONDS_MAX), usize::MAX);
    }
    assert!(state.user(uaid(1)).is_none() && refreshed.user(uaid(1)).is_some());
}
