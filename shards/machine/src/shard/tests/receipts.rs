//! Receipts: every outcome of a message is reported, to requests that wait and to later ones.

use super::*;
use crate::limits::{RECEIPT_WAIT_SECONDS_MAX, RECEIPT_WAITERS_MAX, RECEIPT_WAITERS_OF_USER_MAX, reply_credit};
use ReceiptAnswer::{Ended, Pending, Unavailable, Unknown};

const WAIT: TimeSpan = TimeSpan::from_secs(20);

fn wanted(uaid: Uaid) -> Message {
    Message { receipt: true, ..message(uaid) }
}

fn wanted_topical(uaid: Uaid) -> Message {
    Message { receipt: true, ..topical(uaid, "t") }
}

fn ack_with(mesh: &mut Mesh, socket: Socket, message: &Message, stamp: Stamp, code: u16) {
    let update = AckUpdate { stamp, chid: message.chid, topic: message.topic, code };
    mesh.command(socket, SessionCommand::Ack(vec![update]));
    mesh.run();
}

fn cancel(mesh: &mut Mesh, message: &Message, stamp: Stamp) -> String {
    let Message { uaid, chid, topic, .. } = *message;
    mesh.request(0, SenderCommand::Cancel(Box::new(Cancel { uaid, chid, stamp, topic })))
}

#[test]
fn each_code_of_an_ack_is_told_to_who_waits_and_who_asks_later() {
    let codes = [(100, Outcome::Delivered), (101, Outcome::Undecryptable), (102, Outcome::Undelivered)];
    for (code, outcome) in codes {
        for landing in [0, 1] {
            let mut mesh = Mesh::new(2);
            let uaid = mesh.known_user(0);
            let socket = mesh.session(0, Some(uaid));
            let message = wanted(uaid);
            let stamp = mesh.accept(landing, message.clone(), Disposition::Direct);
            let waits = mesh.start_receipt(landing, (&message, stamp), WAIT);
            assert_eq!(mesh.receipt_said(waits), None);
            assert_eq!(mesh.receipt(landing, (&message, stamp)), Pending);
            ack_with(&mut mesh, socket, &message, stamp, code);
            assert_eq!(mesh.receipt_said(waits), Some(Ended(outcome)));
            assert_eq!(mesh.receipt(1 - landing, (&message, stamp)), Ended(outcome));
            assert_eq!(mesh.machines[0].stats().receipt_waiters, 0);
            assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
        }
    }
}

#[test]
fn a_stored_message_is_pending_until_its_ack() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let message = wanted(uaid);
    let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
    let waits = mesh.start_receipt(0, (&message, stamp), WAIT);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [stamp]);
    assert_eq!(mesh.receipt_said(waits), None);
    mesh.ack(socket, stamp);
    assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Delivered)));
}

#[test]
fn a_wait_is_over_at_its_time_and_leaves_nothing() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(0);
    let message = wanted(uaid);
    let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
    let short = mesh.start_receipt(1, (&message, stamp), TimeSpan::from_secs(2));
    let same = mesh.start_receipt(0, (&message, stamp), TimeSpan::from_secs(2));
    let longest = mesh.start_receipt(0, (&message, stamp), TimeSpan::from_secs(1_000));
    mesh.pass(1);
    assert_eq!((mesh.receipt_said(short), mesh.receipt_said(same)), (None, None));
    mesh.pass(2);
    assert_eq!((mesh.receipt_said(short), mesh.receipt_said(same)), (Some(Pending), Some(Pending)));
    assert_eq!(mesh.receipt_said(longest), None);
    mesh.pass(u64::from(RECEIPT_WAIT_SECONDS_MAX));
    assert_eq!(mesh.receipt_said(longest), Some(Pending));
    assert_eq!(mesh.machines[0].stats().receipt_waiters, 0);
    assert_eq!(mesh.machines[0].next_timeout(), None);
    assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
}

#[test]
fn expiry_is_told_when_it_comes() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let brief = Message { receipt: true, ..lasting(uaid, 5) };
    let stamp = mesh.accept(0, brief.clone(), Disposition::Stored);
    let waits = mesh.start_receipt(0, (&brief, stamp), WAIT);
    mesh.pass(4);
    assert_eq!(mesh.receipt_said(waits), None);
    mesh.pass(2);
    assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Expired)));
    let second = mesh.accept(0, brief.clone(), Disposition::Stored);
    mesh.pass(6);
    assert_eq!(mesh.receipt(0, (&brief, second)), Ended(Outcome::Expired), "nobody had to wait for it");
}

#[test]
fn what_expires_in_the_window_or_with_its_session_is_expired() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let brief = Message { receipt: true, ..lasting(uaid, 5) };
    let socket = mesh.session(0, Some(uaid));
    let first = mesh.accept(0, brief.clone(), Disposition::Direct);
    mesh.pass(7);
    assert_eq!(mesh.receipt(0, (&brief, first)), Pending, "it was sent and may be acked");
    mesh.pass(5);
    assert_eq!(mesh.receipt(0, (&brief, first)), Ended(Outcome::Expired), "it left the window");
    let second = mesh.accept(0, brief.clone(), Disposition::Direct);
    mesh.pass(6);
    let third = mesh.accept(0, brief.clone(), Disposition::Direct);
    mesh.ack(socket, third);
    mesh.close(socket);
    assert_eq!(mesh.receipt(0, (&brief, second)), Ended(Outcome::Expired));
    assert_eq!(mesh.receipt(0, (&brief, third)), Ended(Outcome::Delivered));
}

#[test]
fn ttl_zero_is_expired_unless_it_is_acked() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let fleeting = Message { receipt: true, ..lasting(uaid, 0) };
    let dropped = mesh.accept(0, fleeting.clone(), Disposition::Dropped);
    assert_eq!(mesh.receipt(0, (&fleeting, dropped)), Ended(Outcome::Expired));
    let socket = mesh.session(0, Some(uaid));
    let acked = mesh.accept(0, fleeting.clone(), Disposition::Direct);
    let ignored = mesh.accept(0, fleeting.clone(), Disposition::Direct);
    let waits = mesh.start_receipt(0, (&fleeting, acked), WAIT);
    mesh.ack(socket, acked);
    assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Delivered)));
    assert_eq!(mesh.receipt(0, (&fleeting, ignored)), Pending);
    mesh.pass(61);
    assert_eq!(mesh.receipt(0, (&fleeting, ignored)), Ended(Outcome::Expired));
    mesh.block(socket);
    let blocked = mesh.accept(0, fleeting.clone(), Disposition::Dropped);
    assert_eq!(mesh.receipt(0, (&fleeting, blocked)), Ended(Outcome::Expired));
}

#[test]
fn a_newer_message_of_the_topic_replaces_in_the_window_in_storage_and_on_the_way() {
    for newer_wanted in [false, true] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        let older = wanted_topical(uaid);
        let newer = Message { receipt: newer_wanted, ..wanted_topical(uaid) };
        let stored = mesh.accept(0, older.clone(), Disposition::Stored);
        let waits = mesh.start_receipt(0, (&older, stored), WAIT);
        let next = mesh.accept(0, newer.clone(), Disposition::Stored);
        assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Replaced)));
        let socket = mesh.session(0, Some(uaid));
        ack_with(&mut mesh, socket, &newer, next, 100);
        let direct = mesh.accept(0, older.clone(), Disposition::Direct);
        let direct_newer = mesh.accept(0, newer.clone(), Disposition::Direct);
        assert_eq!(mesh.receipt(0, (&older, direct)), Ended(Outcome::Replaced));
        ack_with(&mut mesh, socket, &newer, direct_newer, 100);
        let departing = mesh.accept(0, older.clone(), Disposition::Direct);
        mesh.store.mode = Mode::Failing;
        mesh.close(socket);
        assert_eq!(mesh.receipt(0, (&older, departing)), Pending);
        mesh.store.mode = Mode::Prompt;
        mesh.start_post(0, newer.clone());
        mesh.pass(3);
        assert_eq!(mesh.receipt(0, (&older, departing)), Ended(Outcome::Replaced));
        if newer_wanted {
            assert_eq!(mesh.receipt(0, (&newer, direct_newer)), Ended(Outcome::Delivered), "an outcome stays");
        }
    }
}

#[test]
fn a_cancel_is_told_whatever_form_the_message_has() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let message = wanted(uaid);
    let stored = mesh.accept(0, message.clone(), Disposition::Stored);
    let waits = mesh.start_receipt(0, (&message, stored), WAIT);
    assert_eq!(cancel(&mut mesh, &message, stored), "cancelled true");
    assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Cancelled)));
    let socket = mesh.session(0, Some(uaid));
    let direct = mesh.accept(0, message.clone(), Disposition::Direct);
    assert_eq!(cancel(&mut mesh, &message, direct), "cancelled true");
    assert_eq!(mesh.receipt(0, (&message, direct)), Ended(Outcome::Cancelled));
    let spilled = mesh.accept(0, message.clone(), Disposition::Direct);
    mesh.pass(12);
    assert_eq!(cancel(&mut mesh, &message, spilled), "cancelled true");
    assert_eq!(mesh.receipt(0, (&message, spilled)), Ended(Outcome::Cancelled));
    let acked = mesh.accept(0, message.clone(), Disposition::Direct);
    mesh.ack(socket, acked);
    assert_eq!(cancel(&mut mesh, &message, acked), "cancelled true");
    assert_eq!(mesh.receipt(0, (&message, acked)), Ended(Outcome::Delivered), "it was too late");
}

#[test]
fn an_unregister_ends_what_its_channel_had_and_no_other() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let other = Message { chid: OTHER, ..wanted(uaid) };
    let stored = mesh.accept(0, wanted_topical(uaid), Disposition::Stored);
    let kept = mesh.accept(0, other.clone(), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    let sent = mesh.accept(0, wanted(uaid), Disposition::Direct);
    let waits = mesh.start_receipt(0, (&wanted(uaid), sent), WAIT);
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Unregistered)));
    assert_eq!(mesh.receipt(0, (&wanted_topical(uaid), stored)), Ended(Outcome::Unregistered));
    assert_eq!(mesh.receipt(0, (&other, kept)), Pending);
}

#[test]
fn an_unregister_that_is_answered_after_its_session_ended_is_told() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, wanted(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Held;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.close(socket);
    assert_eq!(mesh.receipt(0, (&wanted(uaid), stamp)), Pending);
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.receipt(0, (&wanted(uaid), stamp)), Ended(Outcome::Unregistered));
}

#[test]
fn after_a_restart_what_storage_has_is_pending_and_the_rest_unknown() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(0);
    let message = wanted(uaid);
    let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
    let brief = Message { receipt: true, ..lasting(uaid, 5) };
    let gone = mesh.accept(0, brief.clone(), Disposition::Stored);
    let acked = mesh.accept(0, message.clone(), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.ack(socket, acked);
    mesh.restart();
    assert_eq!(mesh.receipt(1, (&message, acked)), Unknown, "never expired: it was delivered");
    assert_eq!(mesh.receipt(1, (&message, stamp)), Pending);
    let waits = mesh.start_receipt(1, (&message, stamp), WAIT);
    mesh.pass(6);
    assert_eq!(mesh.receipt(1, (&brief, gone)), Unknown);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [stamp]);
    mesh.ack(socket, stamp);
    assert_eq!(mesh.receipt_said(waits), Some(Ended(Outcome::Delivered)));
}

#[test]
fn a_message_that_is_sent_after_a_restart_has_a_receipt_without_anybody_asking() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let message = wanted(uaid);
    let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
    mesh.restart();
    let socket = mesh.session(0, Some(uaid));
    mesh.ack(socket, stamp);
    assert_eq!(mesh.receipt(0, (&message, stamp)), Ended(Outcome::Delivered));
}

#[test]
fn storage_that_cannot_say_is_503_and_an_ack_meanwhile_is_told() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let message = wanted(uaid);
    let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
    mesh.restart();
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.receipt(0, (&message, stamp)), Unavailable);
    mesh.store.mode = Mode::Held;
    let asked = mesh.start_receipt(0, (&message, stamp), WAIT);
    let read = mesh.store.held.pop_front().expect("storage is asked");
    mesh.store.mode = Mode::Prompt;
    let socket = mesh.session(0, Some(uaid));
    mesh.ack(socket, stamp);
    assert_eq!(mesh.receipt_said(asked), None);
    mesh.store.held.push_back(read);
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.receipt_said(asked), Some(Ended(Outcome::Delivered)));
}

#[test]
fn without_a_receipt_nothing_is_remembered() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.ack(socket, mesh.notifications(socket)[0]);
    assert_eq!(mesh.machines[0].stats().receipts, 0);
}

#[test]
fn those_who_wait_are_bounded_and_hold_half_the_credit_at_most() {
    let mut mesh = Mesh::new(2);
    // Each of these users has as many that wait as it may.
    let messages: Vec<(Message, Stamp)> = (0..RECEIPT_WAITERS_MAX / RECEIPT_WAITERS_OF_USER_MAX)
        .map(|_| {
            let message = wanted(mesh.known_user(0));
            let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
            (message, stamp)
        })
        .collect();
    let of = |n: usize| {
        let (message, stamp) = &messages[n / RECEIPT_WAITERS_OF_USER_MAX];
        (message, *stamp)
    };
    let away: Vec<_> = (0..=reply_credit(2) / 2).map(|n| mesh.start_receipt(1, of(n), WAIT)).collect();
    let (last, others) = away.split_last().unwrap();
    assert_eq!(mesh.receipt_said(*last), Some(Unavailable));
    assert!(others.iter().all(|asked| mesh.receipt_said(*asked).is_none()));
    mesh.accept(1, Message { chid: OTHER, ..messages[0].0.clone() }, Disposition::Stored);
    for n in others.len()..RECEIPT_WAITERS_MAX {
        mesh.start_receipt(0, of(n), WAIT);
    }
    assert_eq!(mesh.machines[0].stats().receipt_waiters, RECEIPT_WAITERS_MAX as u64);
    let refused = mesh.start_receipt(0, of(0), WAIT);
    assert_eq!(mesh.receipt_said(refused), Some(Unavailable));
    assert_eq!(mesh.receipt(0, of(0)), Pending, "who does not wait is answered");
    for (message, stamp) in &messages {
        let socket = mesh.session(0, Some(message.uaid));
        mesh.ack(socket, *stamp);
    }
    mesh.pass(1);
    assert!(others.iter().all(|asked| mesh.receipt_said(*asked) == Some(Ended(Outcome::Delivered))));
    assert_eq!(mesh.machines[0].stats().receipt_waiters, 0);
    let again = mesh.start_receipt(1, of(0), WAIT);
    assert_eq!(mesh.receipt_said(again), Some(Ended(Outcome::Delivered)), "the credit came back");
}

#[test]
fn a_drain_keeps_nobody_waiting() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(0);
    let message = wanted(uaid);
    let stamp = mesh.accept(0, message.clone(), Disposition::Stored);
    let waits = mesh.start_receipt(1, (&message, stamp), WAIT);
    for shard in 0..2 {
        mesh.step(shard, Input::Drain { rate: 1_000 });
    }
    mesh.run();
    assert_eq!(mesh.receipt_said(waits), Some(Pending));
    let during = mesh.start_receipt(1, (&message, stamp), WAIT);
    assert_eq!(mesh.receipt_said(during), Some(Pending));
    mesh.pass(3);
    assert_eq!(mesh.drained.len(), 2);
}

#[test]
fn what_an_unregister_without_an_answer_removed_is_not_expired() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.known_user(0);
    let lasting = Message { ttl: 1 << 20, ..wanted(uaid) };
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, lasting.clone(), Disposition::Direct);
    mesh.pass(12);
    mesh.store.mode = Mode::Lossy;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.receipt(0, (&lasting, stamp)), Pending);
    mesh.pass(60);
    assert_eq!(mesh.receipt(0, (&lasting, stamp)), Ended(Outcome::Unregistered));
}

#[test]
fn what_a_newer_message_without_an_answer_replaced_is_unknown() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.known_user(0);
    let older = Message { ttl: 1 << 20, ..wanted_topical(uaid) };
    let stamp = mesh.accept(0, older.clone(), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.block(socket);
    mesh.store.mode = Mode::Lossy;
    assert_eq!(mesh.post(0, older.clone()), Published::Unavailable);
    mesh.store.mode = Mode::Prompt;
    mesh.unblock(socket);
    mesh.pass(45);
    let waits = mesh.start_receipt(0, (&older, stamp), WAIT);
    assert_eq!(mesh.receipt_said(waits), None, "it was sent and may be acked");
    mesh.pass(16);
    assert_eq!(mesh.receipt_said(waits), Some(Unknown), "its TTL is not over");
    assert_eq!(mesh.receipt(0, (&older, stamp)), Unknown);
    assert_eq!(mesh.machines[0].stats().receipt_waiters, 0);
}
