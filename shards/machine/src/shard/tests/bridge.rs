//! Notifications of bridged users: each outcome at the service, and what becomes of the user.

use super::registration::{bridged_user, device, register_elsewhere};
use super::*;
use crate::limits::{BRIDGED_BYTES_MIN, REFUSED_TOKEN_SECONDS, UPSTREAM_CALLS_MAX, UPSTREAM_CALLS_OF_USER_MAX};
use crate::upstream::{BridgeFailure, BridgeOutcome};

fn is_there(mesh: &Mesh, uaid: Uaid) -> bool {
    mesh.store.channels_of(uaid).is_some()
}

fn sent(mesh: &mut Mesh, shard: usize, uaid: Uaid) {
    let published = mesh.post_bridged(shard, message(uaid), BridgeOutcome::Sent);
    assert!(matches!(published, Published::Accepted { disposition: Disposition::Bridged, .. }), "{published:?}");
}

#[test]
fn the_answer_of_the_service_is_the_answer_to_the_sender() {
    let mut mesh = Mesh::new(2);
    let uaid = bridged_user(&mut mesh, 1);
    for shard in [0, 1] {
        let post = mesh.start_post(shard, lasting(uaid, 0));
        mesh.run();
        assert_eq!(mesh.answer_to(post), None, "no answer before that of the service");
        assert_eq!(mesh.upstream_calls[0].0, shard, "the shard of the POST calls");
        mesh.answer_upstream(BridgeOutcome::Sent);
        assert!(matches!(
            mesh.answer_to(post),
            Some(Published::Accepted { disposition: Disposition::Bridged, stamp }) if stamp != Stamp::default()
        ));
        sent(&mut mesh, shard, uaid);
        for failure in [BridgeFailure::NoAnswer, BridgeFailure::Quota { retry_after: 7 }] {
            let published = mesh.post_bridged(shard, message(uaid), BridgeOutcome::Failed(failure));
            assert_eq!(published, Published::NotBridged(failure));
        }
    }
    assert!(mesh.store.rows_of(uaid).is_empty() && mesh.ledger.is_empty() && is_there(&mesh, uaid));
    assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
}

#[test]
fn a_slow_service_holds_no_reply_credit() {
    let mut mesh = Mesh::new(2);
    let (bridged, plain) = (bridged_user(&mut mesh, 1), mesh.known_user(1));
    for _ in 0..2 * crate::limits::reply_credit(2) {
        mesh.start_post(0, message(bridged));
        mesh.run();
    }
    mesh.accept(0, message(plain), Disposition::Stored);
}

#[test]
fn calls_are_bounded_and_the_others_are_answered_503() {
    let mut mesh = Mesh::new(1);
    let users: Vec<Uaid> =
        (0..UPSTREAM_CALLS_MAX / UPSTREAM_CALLS_OF_USER_MAX).map(|_| bridged_user(&mut mesh, 0)).collect();
    for uaid in &users {
        for _ in 0..UPSTREAM_CALLS_OF_USER_MAX {
            mesh.start_post(0, message(*uaid));
            mesh.run();
        }
    }
    let other = bridged_user(&mut mesh, 0);
    assert_eq!(mesh.post(0, message(other)), Published::Unavailable);
    mesh.answer_upstream(BridgeOutcome::Sent);
    mesh.start_post(0, message(other));
    mesh.run();
    assert_eq!(mesh.upstream_calls.len(), UPSTREAM_CALLS_MAX);
}

#[test]
fn calls_for_one_user_leave_room_for_others() {
    let mut mesh = Mesh::new(1);
    let (hot, other) = (bridged_user(&mut mesh, 0), bridged_user(&mut mesh, 0));
    for _ in 0..UPSTREAM_CALLS_OF_USER_MAX {
        mesh.start_post(0, message(hot));
        mesh.run();
    }
    assert_eq!(mesh.post(0, message(hot)), Published::Unavailable);
    let post = mesh.start_post(0, message(other));
    mesh.run();
    assert_eq!((mesh.answer_to(post), mesh.upstream_calls.len()), (None, UPSTREAM_CALLS_OF_USER_MAX + 1));
}

/// Also with TTL 0, and when the service does not take it.
#[test]
fn a_bridged_notification_counts_against_the_budget_of_its_user() {
    let mut mesh = Mesh::with(2, |config| config.user_bytes_per_day = 4 * u64::from(BRIDGED_BYTES_MIN));
    let (uaid, other) = (bridged_user(&mut mesh, 1), bridged_user(&mut mesh, 1));
    sent(&mut mesh, 0, uaid);
    let failed = BridgeOutcome::Failed(BridgeFailure::NoAnswer);
    assert_eq!(mesh.post_bridged(1, message(uaid), failed), Published::NotBridged(BridgeFailure::NoAnswer));
    for _ in 0..2 {
        let published = mesh.post_bridged(0, lasting(uaid, 0), BridgeOutcome::Sent);
        assert!(matches!(published, Published::Accepted { .. }), "{published:?}");
    }
    for ttl in [0, 60] {
        assert!(matches!(mesh.post(0, lasting(uaid, ttl)), Published::OverBudget { .. }), "TTL {ttl}");
    }
    sent(&mut mesh, 0, other);
    assert_eq!(mesh.upstream_calls.len(), 0);
}

#[test]
fn rules_are_checked_before_the_service_is_called() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let broken = Publish { uaid, chid: CHANNEL, message: Err(Refusal(4)) };
    assert_eq!(mesh.publish(0, broken), Published::Refused(Refusal(4)));
    let elsewhere = Message { chid: OTHER, ..message(uaid) };
    assert_eq!(mesh.post(0, elsewhere), Published::NoSubscription);
    let update = crate::simplepush::Update { version: 1, data: "" };
    assert_eq!(mesh.post(0, update.to_message(uaid, CHANNEL, UnixSeconds(0), 60)), Published::OtherMode);
    assert!(mesh.upstream_calls.is_empty());
}

#[test]
fn a_token_that_has_ended_removes_its_user() {
    let mut mesh = Mesh::new(2);
    for shard in [0, 1] {
        let uaid = bridged_user(&mut mesh, 1);
        assert_eq!(mesh.post_bridged(shard, message(uaid), BridgeOutcome::Gone), Published::NoSubscription);
        assert!(!is_there(&mesh, uaid));
        assert_eq!(mesh.post(shard, message(uaid)), Published::NoSubscription);
    }
    assert_eq!(mesh.machines[1].stats().bridge_users_removed_refused, 2);
}

#[test]
fn a_doubted_token_is_believed_the_second_time() {
    let mut mesh = Mesh::new(2);
    let uaid = bridged_user(&mut mesh, 1);
    let first = Published::NotBridged(BridgeFailure::Configuration);
    for pause in [0, REFUSED_TOKEN_SECONDS - 1] {
        mesh.pass(pause);
        assert_eq!(mesh.post_bridged(0, message(uaid), BridgeOutcome::Doubted), first);
        assert!(is_there(&mesh, uaid));
    }
    mesh.pass(1);
    assert_eq!(mesh.post_bridged(0, message(uaid), BridgeOutcome::Doubted), Published::NoSubscription);
    assert!(!is_there(&mesh, uaid));
}

#[test]
fn an_update_clears_the_mark() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let first = Published::NotBridged(BridgeFailure::Configuration);
    assert_eq!(mesh.post_bridged(0, message(uaid), BridgeOutcome::Doubted), first);
    assert!(mesh.store.contact_of(uaid).bridge.unwrap().refused.is_some());
    mesh.pass(REFUSED_TOKEN_SECONDS);
    let update = RegistrationCall::Update(Ok(Some(device("other"))));
    assert_eq!(mesh.registration(0, uaid, update), RegistrationAnswer::Done);
    assert_eq!(mesh.post_bridged(0, message(uaid), BridgeOutcome::Doubted), first);
    assert!(is_there(&mesh, uaid));
}

#[test]
fn the_end_of_an_old_token_never_removes_a_new_one() {
    let mut mesh = Mesh::new(2);
    let uaid = bridged_user(&mut mesh, 1);
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    mesh.pass(1);
    let update = RegistrationCall::Update(Ok(Some(device("new"))));
    assert_eq!(mesh.registration(0, uaid, update), RegistrationAnswer::Done);
    assert_eq!(&*mesh.answer_upstream(BridgeOutcome::Gone).token, "token");
    assert_eq!(mesh.answer_to(post), Some(Published::Unavailable), "a new try reaches the new token");
    assert_eq!(&*mesh.store.contact_of(uaid).bridge.unwrap().token, "new");
    sent(&mut mesh, 0, uaid);
}

/// Another node registers a new token between the read and the write of a removal.
#[test]
fn a_removal_that_a_registration_made_void_is_no_end_of_the_subscription() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    mesh.store.mode = Mode::Held;
    mesh.answer_upstream(BridgeOutcome::Gone);
    mesh.store.release_one();
    mesh.run();
    register_elsewhere(&mut mesh, uaid);
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.answer_to(post), Some(Published::Unavailable));
    assert!(is_there(&mesh, uaid));
    assert_eq!(mesh.machines[0].stats().bridge_users_removed_refused, 0);
    mesh.store.mode = Mode::Prompt;
    sent(&mut mesh, 0, uaid);
    assert!(mesh.machines[0].is_quiet());
}

#[test]
fn a_removal_that_fails_is_tried_again_with_the_next_message() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    mesh.store.mode = Mode::Failing;
    mesh.answer_upstream(BridgeOutcome::Gone);
    assert_eq!(mesh.answer_to(post), Some(Published::Unavailable));
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.post_bridged(0, message(uaid), BridgeOutcome::Gone), Published::NoSubscription);
    assert!(!is_there(&mesh, uaid));
}

#[test]
fn a_drain_waits_for_calls_under_way_and_makes_no_new_one() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    mesh.step(0, Input::Drain { rate: 1_000 });
    for _ in 0..5 {
        mesh.pass(1);
    }
    assert!(mesh.drained.is_empty());
    assert_eq!(mesh.post(0, message(uaid)), Published::Unavailable);
    mesh.answer_upstream(BridgeOutcome::Sent);
    assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { .. })));
    mesh.pass(1);
    assert_eq!(mesh.drained, [0]);
}

#[test]
fn a_reply_that_nobody_waits_for_is_counted() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    mesh.start_post(0, message(uaid));
    mesh.run();
    let (shard, ticket, op) = mesh.upstream_calls[0].clone();
    mesh.answer_upstream(BridgeOutcome::Sent);
    mesh.upstream_calls.push_back((shard, ticket, op));
    mesh.answer_upstream(BridgeOutcome::Gone);
    assert!(is_there(&mesh, uaid));
    assert_eq!(mesh.machines[0].stats().upstream_replies_stale, 1);
}

#[test]
fn each_node_calls_the_service_itself() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = bridged_user(&mut mesh, 0);
    for node in [0, 1] {
        sent(&mut mesh, node, uaid);
        let broken = Publish { uaid, chid: CHANNEL, message: Err(Refusal(4)) };
        assert_eq!(mesh.publish(node, broken), Published::Refused(Refusal(4)));
    }
    let update = RegistrationCall::Update(Ok(Some(device("new"))));
    assert_eq!(mesh.registration(1, uaid, update), RegistrationAnswer::Done);
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    assert_eq!(&*mesh.answer_upstream(BridgeOutcome::Gone).token, "new");
    assert_eq!(mesh.answer_to(post), Some(Published::NoSubscription));
    assert_eq!(mesh.post(1, message(uaid)), Published::NoSubscription);
    assert!(!is_there(&mesh, uaid) && mesh.calls.is_empty());
    let other = bridged_user(&mut mesh, 0);
    let socket = mesh.session(0, Some(other));
    assert_eq!(mesh.store.contact_of(mesh.uaid_on(socket)).bridge, None);
}

#[test]
fn a_notification_that_is_taken_clears_the_mark() {
    let mut mesh = Mesh::new(2);
    for shard in [0, 1] {
        let uaid = bridged_user(&mut mesh, 1);
        let first = Published::NotBridged(BridgeFailure::Configuration);
        assert_eq!(mesh.post_bridged(shard, message(uaid), BridgeOutcome::Doubted), first);
        let before = mesh.store.contact_of(uaid).bridge.unwrap();
        assert!(before.refused.is_some());
        sent(&mut mesh, shard, uaid);
        let after = mesh.store.contact_of(uaid).bridge.unwrap();
        assert_eq!((after.refused, &after.token), (None, &before.token));
        mesh.pass(REFUSED_TOKEN_SECONDS);
        assert_eq!(mesh.post_bridged(shard, message(uaid), BridgeOutcome::Doubted), first);
        assert!(is_there(&mesh, uaid), "a refusal long after is the first one");
    }
}

/// The service takes a notification for the old token while the device registers a new one.
#[test]
fn a_mark_that_is_cleared_never_replaces_a_new_token() {
    let mut mesh = Mesh::new(1);
    let uaid = bridged_user(&mut mesh, 0);
    mesh.post_bridged(0, message(uaid), BridgeOutcome::Doubted);
    mesh.start_post(0, message(uaid));
    mesh.run();
    let update = RegistrationCall::Update(Ok(Some(device("new"))));
    assert_eq!(mesh.registration(0, uaid, update), RegistrationAnswer::Done);
    assert_eq!(&*mesh.answer_upstream(BridgeOutcome::Sent).token, "token");
    assert_eq!(&*mesh.store.contact_of(uaid).bridge.unwrap().token, "new");
}
