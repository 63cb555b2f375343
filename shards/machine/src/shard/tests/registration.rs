//! The registration API at the owner: what is in storage when each call is answered.

use super::*;
use crate::upstream::BridgeKind;

pub(super) fn device(token: &str) -> Device {
    Device { kind: BridgeKind::Fcm, app: "app".into(), token: token.into(), aps: None }
}

pub(super) fn channel(chid: Chid) -> NewChannel {
    NewChannel { chid, key: None }
}

/// Registers a bridged user with [`CHANNEL`] whose owner is `shard`.
pub(super) fn bridged_user(mesh: &mut Mesh, shard: usize) -> Uaid {
    let uaid = mesh.uaid_of(shard);
    let call = RegistrationCall::Create { device: Some(device("token")), channel: channel(CHANNEL), caller: None };
    let answer = mesh.registration(shard, uaid, call);
    assert_eq!(answer, RegistrationAnswer::Registered { uaid, channel: channel(CHANNEL) });
    uaid
}

/// Gives a bridged user another token a minute later, as a `PUT` at another node does.
pub(super) fn register_elsewhere(mesh: &mut Mesh, uaid: Uaid) {
    let had = mesh.store.contact_of(uaid).bridge.unwrap();
    let registered = Clock(had.registered.0 + 60_000_000);
    let bridge = Box::new(crate::upstream::Bridged { registered, token: "newer".into(), ..*had });
    mesh.store.done(&StoreOp::SetBridge { uaid, bridge });
}

fn token_of(mesh: &Mesh, uaid: Uaid) -> Option<String> {
    mesh.store.contact_of(uaid).bridge.map(|bridge| bridge.token.to_string())
}

#[test]
fn each_call_is_in_storage_before_its_answer() {
    let mut mesh = Mesh::new(2);
    let uaid = bridged_user(&mut mesh, 0);
    for shard in [0, 1] {
        let update = RegistrationCall::Update(Ok(Some(device(&format!("token {shard}")))));
        assert_eq!(mesh.registration(shard, uaid, update), RegistrationAnswer::Done);
        assert_eq!(token_of(&mesh, uaid).unwrap(), format!("token {shard}"));
        let subscribe = || RegistrationCall::Subscribe(Ok(channel(OTHER)));
        let registered = RegistrationAnswer::Registered { uaid, channel: channel(OTHER) };
        assert_eq!(mesh.registration(shard, uaid, subscribe()), registered);
        assert_eq!(mesh.registration(shard, uaid, subscribe()), registered, "again");
        let list = mesh.registration(shard, uaid, RegistrationCall::List);
        assert_eq!(list, RegistrationAnswer::Channels(Box::new([CHANNEL, OTHER])));
        let unsubscribe = || RegistrationCall::Unsubscribe(Some(OTHER));
        assert_eq!(mesh.registration(shard, uaid, unsubscribe()), RegistrationAnswer::Done);
        assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
        assert_eq!(mesh.registration(shard, uaid, unsubscribe()), RegistrationAnswer::NoChannel);
        assert_eq!(mesh.registration(shard, uaid, RegistrationCall::Unsubscribe(None)), RegistrationAnswer::NoChannel);
    }
    assert_eq!(mesh.registration(1, uaid, RegistrationCall::Remove), RegistrationAnswer::Done);
    let removed = |machine: &mut ShardMachine| machine.stats().bridge_users_removed_requested;
    assert_eq!(mesh.machines.iter_mut().map(removed).sum::<u64>(), 1);
    assert_eq!(mesh.store.channels_of(uaid), None);
    for call in [RegistrationCall::Remove, RegistrationCall::List, RegistrationCall::Update(Err(Refusal(3)))] {
        assert_eq!(mesh.registration(0, uaid, call), RegistrationAnswer::NoUser, "410 comes before the broken rule");
    }
}

#[test]
fn broken_rules_write_nothing() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let before = mesh.store.contact_of(uaid);
    let refused = RegistrationAnswer::Refused(Refusal(3));
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Update(Err(Refusal(3)))), refused);
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Subscribe(Err(Refusal(3)))), refused);
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Update(Ok(None))), RegistrationAnswer::Conflict);
    assert_eq!((mesh.store.contact_of(uaid), mesh.store.channels_of(uaid)), (before, Some(vec![CHANNEL])));
}

#[test]
fn channels_are_bounded() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let chid = |n: usize| Chid((n as u128).to_be_bytes());
    for n in 1..crate::limits::CHANNELS_MAX {
        mesh.store.add_user(uaid, &[chid(n)], UnixSeconds(0));
    }
    let subscribe = |chid| RegistrationCall::Subscribe(Ok(channel(chid)));
    assert_eq!(mesh.registration(0, uaid, subscribe(chid(1 << 20))), RegistrationAnswer::Full);
    let again = RegistrationAnswer::Registered { uaid, channel: channel(CHANNEL) };
    assert_eq!(mesh.registration(0, uaid, subscribe(CHANNEL)), again);
}

#[test]
fn storage_that_fails_is_answered_503() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    mesh.store.mode = Mode::Failing;
    for call in [RegistrationCall::List, RegistrationCall::Remove, RegistrationCall::Subscribe(Ok(channel(OTHER)))] {
        assert_eq!(mesh.registration(0, uaid, call), RegistrationAnswer::Unavailable);
    }
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Remove), RegistrationAnswer::Done);
    assert!(mesh.machines[0].is_quiet());
}

#[test]
fn calls_of_one_user_come_one_at_a_time() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    mesh.store.mode = Mode::Held;
    let remove = mesh.start_registration(0, uaid, RegistrationCall::Remove);
    let subscribe = RegistrationCall::Subscribe(Ok(channel(OTHER)));
    assert_eq!(mesh.registration(0, uaid, subscribe), RegistrationAnswer::Unavailable);
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.registration_said(remove), Some(RegistrationAnswer::Done));
    assert_eq!(mesh.store.channels_of(uaid), None);
}

#[test]
fn a_user_without_a_device_says_hello() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.uaid_of(0);
    let call = RegistrationCall::Create { device: None, channel: channel(CHANNEL), caller: None };
    let registered = |chid| RegistrationAnswer::Registered { uaid, channel: channel(chid) };
    assert_eq!(mesh.registration(0, uaid, call), registered(CHANNEL));
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Update(Ok(None))), RegistrationAnswer::Done);
    let update = RegistrationCall::Update(Ok(Some(device("t"))));
    assert_eq!(mesh.registration(0, uaid, update), RegistrationAnswer::Conflict);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid);
    mesh.accept(0, message(uaid), Disposition::Direct);
    // The session learns of the channels that come and go by HTTPS.
    let other = Message { chid: OTHER, ..message(uaid) };
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Subscribe(Ok(channel(OTHER)))), registered(OTHER));
    mesh.accept(0, other.clone(), Disposition::Direct);
    let unsubscribe = RegistrationCall::Unsubscribe(Some(OTHER));
    assert_eq!(mesh.registration(0, uaid, unsubscribe), RegistrationAnswer::Done);
    assert_eq!(mesh.post(0, other), Published::NoSubscription);
    assert_eq!(mesh.registration(0, uaid, RegistrationCall::Remove), RegistrationAnswer::Done);
    assert!(!mesh.machines[0].is_resident(uaid));
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
}

#[test]
fn a_hello_of_a_bridged_user_gets_a_fresh_uaid_and_leaves_the_record_alone() {
    let mut mesh = Mesh::new(2);
    for shard in [0, 1] {
        let uaid = bridged_user(&mut mesh, 1);
        let before = mesh.store.contact_of(uaid);
        let socket = mesh.session(shard, Some(uaid));
        assert_ne!(mesh.uaid_on(socket), uaid);
        assert_eq!((mesh.store.contact_of(uaid), mesh.store.channels_of(uaid)), (before, Some(vec![CHANNEL])));
        assert!(!mesh.machines[1].is_resident(uaid));
    }
}

/// Another node removes the user, or registers a newer device, between the read and the write of a call.
#[test]
fn an_update_that_wrote_nothing_is_no_success() {
    for removed in [true, false] {
        let mut mesh = Mesh::new(1);
        let uaid = bridged_user(&mut mesh, 0);
        mesh.store.mode = Mode::Held;
        let asked = mesh.start_registration(0, uaid, RegistrationCall::Update(Ok(Some(device("late")))));
        mesh.store.release_one();
        mesh.run();
        if removed {
            mesh.store.done(&StoreOp::DropUser { uaid });
        } else {
            register_elsewhere(&mut mesh, uaid);
        }
        mesh.store.release();
        mesh.run();
        let expected = if removed { RegistrationAnswer::NoUser } else { RegistrationAnswer::Unavailable };
        assert_eq!(mesh.registration_said(asked), Some(expected));
        assert_eq!(token_of(&mesh, uaid), (!removed).then(|| "newer".to_owned()));
    }
}

/// Two nodes whose clocks are behind that of the user: both read it before either writes, and their records have one
/// version.
#[test]
fn of_two_updates_with_one_version_only_that_in_storage_is_a_success() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = bridged_user(&mut mesh, 0);
    let had = mesh.store.contact_of(uaid).bridge.unwrap();
    let registered = Clock(had.registered.0 + 10_000_000);
    let bridge = Box::new(crate::upstream::Bridged { registered, ..*had });
    mesh.store.done(&StoreOp::SetBridge { uaid, bridge });
    mesh.store.mode = Mode::Held;
    let update = |token| RegistrationCall::Update(Ok(Some(device(token))));
    let asked = [(0, "first"), (1, "second")].map(|(node, token)| mesh.start_registration(node, uaid, update(token)));
    mesh.store.release();
    mesh.run();
    let said = asked.map(|asked| mesh.registration_said(asked));
    assert_eq!(said, [Some(RegistrationAnswer::Done), Some(RegistrationAnswer::Unavailable)]);
    assert_eq!(token_of(&mesh, uaid).unwrap(), "first");
}

#[test]
fn a_channel_of_a_user_that_was_removed_makes_no_user() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    mesh.store.mode = Mode::Held;
    let asked = mesh.start_registration(0, uaid, RegistrationCall::Subscribe(Ok(channel(OTHER))));
    mesh.store.release_one();
    mesh.run();
    mesh.store.done(&StoreOp::DropUser { uaid });
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.registration_said(asked), Some(RegistrationAnswer::NoUser));
    assert_eq!(mesh.store.channels_of(uaid), None);
}

#[test]
fn a_channel_keeps_its_key_and_another_one_is_a_conflict() {
    use crate::ids::KeyDigest;
    let mut mesh = Mesh::new(2);
    let uaid = bridged_user(&mut mesh, 1);
    let (one, two) = (Some(KeyDigest([1; 32])), Some(KeyDigest([2; 32])));
    for shard in [0, 1] {
        for (chid, key, registers) in [
            (OTHER, one, true),
            (OTHER, one, true),
            (OTHER, two, false),
            (OTHER, None, false),
            (CHANNEL, None, true),
            (CHANNEL, one, false),
        ] {
            let channel = NewChannel { chid, key };
            let answer = mesh.registration(shard, uaid, RegistrationCall::Subscribe(Ok(channel)));
            let registered = RegistrationAnswer::Registered { uaid, channel };
            assert_eq!(answer, if registers { registered } else { RegistrationAnswer::Conflict }, "{channel:?}");
        }
    }
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL, OTHER]));
    assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
}
