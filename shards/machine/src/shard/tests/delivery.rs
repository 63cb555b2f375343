//! Direct or stored, order, settling (ARCHITECTURE.md 3).

use super::*;

#[test]
fn a_live_session_gets_it_direct_and_the_ledger_holds_it_until_the_ack() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let socket = mesh.session(1, Some(uaid));
    let operations = mesh.store.seen.len();
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [stamp]);
    assert_eq!(mesh.ledger.len(), 1);
    mesh.ack(socket, stamp);
    assert!(mesh.ledger.is_empty());
    assert_eq!(mesh.store.seen.len(), operations, "a direct costs storage nothing");
    assert_eq!(mesh.machines[1].stats().actives, 0);
    assert_eq!(mesh.machines[1].active_sessions.deadlines(), 0, "nobody is woken for what was acked");
}

#[test]
fn deadlines_of_what_was_acked_go_although_one_in_front_stands() {
    let mut mesh = Mesh::new(1);
    let (slow, quick) = (mesh.known_user(0), mesh.known_user(0));
    let (slow_socket, socket) = (mesh.session(0, Some(slow)), mesh.session(0, Some(quick)));
    let waits = mesh.accept(0, message(slow), Disposition::Direct);
    for _ in 0..5 {
        let stamp = mesh.accept(0, message(quick), Disposition::Direct);
        mesh.ack(socket, stamp);
    }
    assert_eq!((mesh.machines[0].stats().actives, mesh.machines[0].active_sessions.deadlines()), (1, 6));
    mesh.ack(slow_socket, waits);
    assert_eq!((mesh.machines[0].stats().actives, mesh.machines[0].active_sessions.deadlines()), (0, 0));
    let last = mesh.accept(0, message(quick), Disposition::Direct);
    mesh.pass(9);
    assert_eq!(mesh.machines[0].stats().spills, 0);
    mesh.pass(2);
    assert_eq!(mesh.machines[0].stats().spills, 1, "its own deadline stands, whatever went before");
    mesh.ack(socket, last);
}

#[test]
fn an_absent_user_gets_it_stored_and_at_the_next_hello() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let first = mesh.accept(0, message(uaid), Disposition::Stored);
    let second = mesh.accept(1, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [first, second]);
    mesh.ack(socket, first);
    mesh.ack(socket, second);
    assert!(mesh.store.rows_of(uaid).is_empty());
    mesh.accept(0, message(uaid), Disposition::Direct);
}

#[test]
fn unknown_users_and_channels_are_no_subscription() {
    let mut mesh = Mesh::new(2);
    let (stranger, uaid) = (mesh.uaid_of(1), mesh.known_user(1));
    assert_eq!(mesh.post(0, message(stranger)), Published::NoSubscription);
    let unregistered = Message { chid: Chid([7; 16]), ..message(uaid) };
    assert_eq!(mesh.post(0, unregistered.clone()), Published::NoSubscription);
    mesh.session(1, Some(uaid));
    let operations = mesh.store.seen.len();
    assert_eq!(mesh.post(0, unregistered), Published::NoSubscription);
    assert_eq!(mesh.store.seen.len(), operations, "a connected user costs no storage read");
}

#[test]
fn the_owner_says_410_before_the_rule_that_was_broken() {
    let mut mesh = Mesh::new(2);
    let (stranger, uaid) = (mesh.uaid_of(1), mesh.known_user(1));
    let refused = |mesh: &mut Mesh, uaid, chid| {
        let conn = mesh.conn();
        let publish = Publish { uaid, chid, message: Err(Refusal(4)) };
        mesh.step(0, Input::Command { conn, command: SenderCommand::Publish(Box::new(publish)).into() });
        mesh.run();
        mesh.answer_to((0, conn.slot))
    };
    assert_eq!(refused(&mut mesh, stranger, CHANNEL), Some(Published::NoSubscription));
    assert_eq!(refused(&mut mesh, uaid, CHANNEL), Some(Published::Refused(Refusal(4))));
    mesh.session(1, Some(uaid));
    assert_eq!(refused(&mut mesh, uaid, CHANNEL), Some(Published::Refused(Refusal(4))));
    assert_eq!(refused(&mut mesh, uaid, Chid([7; 16])), Some(Published::NoSubscription));
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn no_direct_overtakes_a_write_in_flight() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let direct = mesh.accept(0, message(uaid), Disposition::Direct);
    // The window is full: this one goes to storage, and the ack makes room while it is on its way.
    mesh.store.mode = Mode::Held;
    let written = mesh.start_post(0, message(uaid));
    mesh.ack(socket, direct);
    let behind = mesh.start_post(0, message(uaid));
    assert_eq!(mesh.notifications(socket), [direct], "the room is not given to the message behind");
    mesh.store.release();
    mesh.run();
    let stamps: Vec<Stamp> = [written, behind]
        .into_iter()
        .map(|post| match mesh.answer_to(post) {
            Some(Published::Accepted { stamp, disposition: Disposition::Stored }) => stamp,
            other => panic!("not stored: {other:?}"),
        })
        .collect();
    mesh.ack(socket, stamps[0]);
    assert_eq!(mesh.notifications(socket), [direct, stamps[0], stamps[1]]);
}

#[test]
fn a_message_that_comes_while_a_check_runs_is_stored_behind_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let first = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.open(0);
    mesh.say_hello(socket, Some(uaid));
    // The user is loaded; its first page is held.
    mesh.store.mode = Mode::Held;
    mesh.run();
    let second = mesh.start_post(0, message(uaid));
    assert_eq!(mesh.answer_to(second), None);
    mesh.store.release();
    mesh.run();
    let Some(Published::Accepted { stamp: second, disposition }) = mesh.answer_to(second) else { panic!("refused") };
    assert_eq!(disposition, Disposition::Stored);
    assert_eq!(mesh.notifications(socket), [first, second]);
    mesh.ack(socket, first);
    mesh.ack(socket, second);
    mesh.accept(0, message(uaid), Disposition::Direct);
}

#[test]
fn a_message_between_hello_and_the_registry_does_not_fall_through() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.store.mode = Mode::Held;
    let socket = mesh.session(0, Some(uaid));
    let post = mesh.start_post(0, message(uaid));
    mesh.store.release();
    mesh.run();
    let Some(Published::Accepted { stamp, .. }) = mesh.answer_to(post) else { panic!("refused") };
    assert_eq!(mesh.notifications(socket), [stamp]);
}

#[test]
fn a_full_window_stores_and_the_acks_bring_the_rest() {
    let mut mesh = Mesh::with(1, |config| config.window = 4);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let mut stamps: Vec<Stamp> = (0..4).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    for _ in 0..6 {
        stamps.push(mesh.accept(0, message(uaid), Disposition::Stored));
    }
    assert_eq!(mesh.notifications(socket).len(), 4);
    for stamp in stamps.clone() {
        mesh.ack(socket, stamp);
    }
    assert_eq!(mesh.notifications(socket), stamps);
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert!(mesh.ledger.is_empty());
}

#[test]
fn ledger_bytes_are_reserved_and_beyond_them_messages_are_stored() {
    let mut mesh = Mesh::with(1, |config| config.ledger_bytes_max = 300);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let first = mesh.accept(0, message(uaid), Disposition::Direct);
    let second = mesh.accept(0, message(uaid), Disposition::Direct);
    let third = mesh.accept(0, message(uaid), Disposition::Stored);
    for stamp in [first, second, third] {
        mesh.ack(socket, stamp);
    }
    assert_eq!(mesh.machines[0].stats().ledger_bytes, 0);
    mesh.accept(0, message(uaid), Disposition::Direct);
}

#[test]
fn storage_down_refuses_what_needs_it_and_sessions_stay() {
    let mut mesh = Mesh::new(1);
    let (here, away) = (mesh.known_user(0), mesh.known_user(0));
    let socket = mesh.session(0, Some(here));
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.post(0, message(away)), Published::Unavailable);
    mesh.accept(0, message(here), Disposition::Direct);
    assert_eq!(mesh.closed(socket), None);
}

#[test]
fn storage_is_read_ahead_within_its_bytes_and_driven_by_acks() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let large = |n: usize| Message { payload: vec![0; if n < 90 { 40 } else { 8_000 }].into(), ..message(uaid) };
    let stamps: Vec<Stamp> = (0..150).map(|n| mesh.accept(0, large(n), Disposition::Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    let mut acked = 0;
    while acked < stamps.len() {
        let seen = mesh.notifications(socket);
        assert!(seen.len() > acked, "the drain goes on: {acked} of {}", stamps.len());
        mesh.ack(socket, seen[acked]);
        acked += 1;
        let ahead = mesh.machines[0].active_sessions.get(0).map_or(0, |active| active.window.ahead_bytes());
        // Once a page of large ones comes where small ones were expected.
        let most = limits::READ_AHEAD_BYTES + u32::from(limits::PAGE_ROWS_MAX) * 8_200;
        assert!(ahead <= most, "{ahead} bytes are read ahead");
        if acked > 120 {
            assert!(ahead <= 2 * limits::READ_AHEAD_BYTES, "{ahead} bytes are read ahead");
        }
    }
    assert_eq!(mesh.notifications(socket), stamps);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn one_missing_ack_blocks_neither_the_drain_nor_brings_back_what_was_acked() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps: Vec<Stamp> = (0..30).map(|_| mesh.accept(0, message(uaid), Disposition::Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    for n in 1..30 {
        let seen = mesh.notifications(socket);
        assert!(seen.len() > n, "one unacked message holds nothing up");
        mesh.ack(socket, seen[n]);
    }
    mesh.request(0, notify(uaid));
    assert_eq!(mesh.notifications(socket), stamps, "a check re-sends nothing that is in flight or acked");
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [stamps[0]]);
}

#[test]
fn an_ack_whose_delete_fails_is_not_undone_by_the_next_check() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamp = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Failing;
    mesh.ack(socket, stamp);
    mesh.store.mode = Mode::Prompt;
    mesh.request(0, notify(uaid));
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert!(mesh.notifications(again).is_empty());
    mesh.pass(2);
    assert!(mesh.store.rows_of(uaid).is_empty(), "the delete was tried again");
}

#[test]
fn ttl_zero_is_now_or_never() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.accept(0, lasting(uaid, 0), Disposition::Dropped);
    let stranger = mesh.uaid_of(1);
    assert_eq!(mesh.post(0, lasting(stranger, 0)), Published::NoSubscription);
    let socket = mesh.session(1, Some(uaid));
    let stamp = mesh.accept(0, lasting(uaid, 0), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [stamp]);
    mesh.block(socket);
    mesh.accept(0, lasting(uaid, 0), Disposition::Dropped);
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket), [stamp]);
    assert!(mesh.ledger.is_empty());
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn durable_stores_first_and_sends_from_memory_in_order() {
    let mut mesh = Mesh::with(1, |config| config.durable = true);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Held;
    let posts: Vec<_> = (0..3).map(|_| mesh.start_post(0, message(uaid))).collect();
    assert!(mesh.notifications(socket).is_empty(), "nothing is sent before it is stored");
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.notifications(socket).len(), 3);
    assert!(!mesh.store.seen.contains(&"messages"), "no check is needed");
    assert!(mesh.notifications(socket).is_sorted());
    for (post, stamp) in posts.into_iter().zip(mesh.notifications(socket)) {
        assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { stamp: s, .. }) if s == stamp));
        mesh.ack(socket, stamp);
    }
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert!(mesh.ledger.is_empty());
}

#[test]
fn a_node_pushes_only_to_live_sessions_and_a_late_copy_is_known() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let stamp = Stamp { clock: Clock(mesh.now.unix_us), origin: Origin(77) };
    let push = |uaid| {
        let message = Arc::new(Message { stamp, accepted: UnixSeconds(1_700_000_000), ..message(uaid) });
        NodeCommand::Push(Box::new(NodePush { message, stored: false }))
    };
    assert_eq!(mesh.request(0, push(uaid)), "NotHere");
    assert_eq!(mesh.request(0, notify(uaid)), "NotHere");
    let socket = mesh.session(1, Some(uaid));
    assert_eq!(mesh.request(0, push(uaid)), "Done");
    assert_eq!(mesh.request(0, push(uaid)), "Done");
    assert_eq!(mesh.notifications(socket), [stamp]);
    mesh.ack(socket, stamp);
    assert_eq!(mesh.request(0, push(uaid)), "Done");
    assert_eq!(mesh.notifications(socket), [stamp], "settled lately");
    let connected_at = mesh.now.unix_us / 1_000;
    assert_eq!(
        mesh.request(0, NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid, connected_at: connected_at + 1 }))),
        "NotHere"
    );
    assert_eq!(mesh.request(0, NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid, connected_at }))), "Done");
    assert_eq!(mesh.closed(socket), Some(CloseReason::Elsewhere));
}

#[test]
fn a_window_of_one_gates_as_the_classic_servers_did() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let push = |clock| {
        let stamp = Stamp { clock: Clock(clock), origin: Origin(77) };
        let message = Arc::new(Message { stamp, accepted: UnixSeconds(1_700_000_000), ..message(uaid) });
        NodeCommand::Push(Box::new(NodePush { message, stored: false }))
    };
    let first = mesh.now.unix_us;
    assert_eq!(mesh.request(0, push(first)), "Done");
    assert_eq!(mesh.request(0, push(first + 1)), "Busy");
    // The other node stores the refused one; the flag brings it after the ack.
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    mesh.ack(socket, Stamp { clock: Clock(first), origin: Origin(77) });
    assert_eq!(mesh.notifications(socket).last(), Some(&stored));
}

#[test]
fn a_cancelled_message_of_another_node_is_known_when_its_copy_comes_late() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = Stamp { clock: Clock(mesh.now.unix_us), origin: Origin(77) };
    let push = || {
        let message = Arc::new(Message { stamp, accepted: UnixSeconds(1_700_000_000), ..message(uaid) });
        NodeCommand::Push(Box::new(NodePush { message, stored: false }))
    };
    assert_eq!(mesh.request(0, push()), "Done");
    let cancel = Cancel { uaid, chid: CHANNEL, stamp, topic: None };
    assert_eq!(mesh.request(0, SenderCommand::Cancel(Box::new(cancel))), "cancelled true");
    assert_eq!(mesh.request(0, push()), "Done");
    assert_eq!(mesh.notifications(socket), [stamp]);
}

#[test]
fn rows_of_a_channel_that_may_be_registered_are_not_deleted() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, OTHER);
    mesh.store.mode = Mode::Lossy;
    mesh.register(socket, CHANNEL);
    mesh.store.mode = Mode::Prompt;
    // Another node stores for the channel that storage has and this session does not list, and sends a notification.
    let stamp = Stamp { clock: Clock(mesh.now.unix_us), origin: Origin(77) };
    let message = Arc::new(Message { stamp, accepted: mesh.now.unix(), ..message(uaid) });
    mesh.store.put(message);
    mesh.request(0, notify(uaid));
    assert!(mesh.notifications(socket).is_empty());
    assert_eq!(mesh.store.rows_of(uaid).len(), 1, "not sure is not unregistered");
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.notifications(socket), [stamp]);
}

#[test]
fn what_a_retry_finds_expired_is_deleted_and_a_clock_that_goes_back_revives_nothing() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, lasting(uaid, 30), Disposition::Direct);
    mesh.pass(62);
    assert_eq!(mesh.machines[0].window_len(uaid), 0);
    mesh.ack(socket, stamp);
    mesh.now.unix_us -= 50_000_000;
    mesh.request(0, notify(uaid));
    assert_eq!(mesh.notifications(socket), [stamp]);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn an_ack_of_a_row_that_a_check_passed_by_still_deletes_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamp = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [stamp]);
    // A failed unregister leaves the next session unsure, and its check leaves the messages of the previous session in
    // storage.
    let socket = mesh.open(0);
    mesh.store.mode = Mode::Held;
    mesh.say_hello(socket, Some(uaid));
    mesh.run();
    while !mesh.said(socket).iter().any(|said| matches!(said, Said::Hello(_))) {
        mesh.store.release_one();
        mesh.run();
    }
    mesh.store.mode = Mode::Failing;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    mesh.store.release();
    mesh.run();
    assert!(mesh.notifications(socket).is_empty());
    assert_eq!(mesh.machines[0].window_len(uaid), 0);
    mesh.ack(socket, stamp);
    assert!(mesh.store.rows_of(uaid).is_empty());
}
