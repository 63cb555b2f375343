//! A user has two sessions and one of them does not know that it is over; a push was carried out without an answer.

use super::*;

/// Returns a user whose older session, on node 0, is half open, and whose newer one is on node 1.
fn half_open(mesh: &mut Mesh) -> (Uaid, Socket, Socket) {
    let (uaid, stale) = user_on(mesh, 0);
    mesh.lines[0] = Line::Down;
    let live = mesh.session(1, Some(uaid));
    mesh.lines[0] = Line::Up;
    assert_eq!(mesh.closed(stale), None, "the call to leave was lost");
    (uaid, stale, live)
}

/// Carries out a push from node 0 to the session on node 1 and loses its answer; the write that follows is held.
fn pushed_and_not_yet_stored(mesh: &mut Mesh, uaid: Uaid) -> (usize, u32) {
    mesh.lines[1] = Line::Mute;
    let post = mesh.start_post(0, message(uaid));
    answered_and_held(mesh);
    mesh.store.mode = Mode::Held;
    mesh.run();
    assert_eq!(mesh.store.held.len(), 1, "the write");
    mesh.store.mode = Mode::Prompt;
    post
}

#[test]
fn a_half_open_session_ends_nothing_of_a_channel_that_it_never_knew() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let (uaid, stale, live) = half_open(&mut mesh);
    mesh.register(live, THIRD);
    mesh.close(live);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)]);
    let to_other = || Message { chid: THIRD, ..message(uaid) };
    // Landed elsewhere, and landed where the half-open session is: neither is gone.
    let mut stored = [mesh.accept(2, to_other(), Stored), mesh.accept(0, to_other(), Stored)];
    stored.sort();
    mesh.request(0, notify(uaid));
    assert!(mesh.notifications(stale).is_empty());
    assert_eq!(mesh.store.rows_of(uaid).len(), 2);
    let socket = mesh.session(1, Some(uaid));
    assert_eq!(mesh.notifications(socket), stored);
}

#[test]
fn a_row_of_no_channel_finds_a_session_that_is_over() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, stale, live) = half_open(&mut mesh);
    mesh.register(live, THIRD);
    let stored = mesh.accept(0, Message { chid: THIRD, ..message(uaid) }, Direct);
    assert_eq!(mesh.notifications(live), [stored]);
    assert_eq!(mesh.closed(stale), Some(CloseReason::Elsewhere), "the post raised the doubt");
}

#[test]
fn a_row_that_was_there_before_the_session_and_is_for_no_channel_ends() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let stamp = Stamp { clock: Clock(mesh.now.unix_us), origin: Origin(7) };
    mesh.store.put(Arc::new(Message { chid: THIRD, stamp, accepted: mesh.now.unix(), ..message(uaid) }));
    let early = mesh.session(0, Some(uaid));
    assert_eq!(mesh.store.rows_of(uaid).len(), 1, "younger than a write may take");
    mesh.close(early);
    mesh.pass(61);
    mesh.session(0, Some(uaid));
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_session_that_is_stamped_ahead_of_time_ends_no_row_of_a_channel_it_does_not_know() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let stamp = Stamp { clock: Clock(mesh.now.unix_us), origin: Origin(7) };
    mesh.store.put(Arc::new(Message { chid: THIRD, stamp, accepted: mesh.now.unix(), ..message(uaid) }));
    mesh.now.unix_us += 3_600_000_000;
    mesh.session(0, None);
    mesh.now.unix_us -= 3_600_000_000;
    mesh.session(0, Some(uaid));
    assert_eq!(
        mesh.store.rows_of(uaid).len(),
        1,
        "younger than a write may take, whatever the stamp of the session is"
    );
}

/// Clocks of nodes are apart, and hellos overtake each other: the row of a half-open session may be the newer one.
#[test]
fn a_half_open_session_that_looks_newer_tells_the_one_that_is_alive() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, older, newer) = half_open(&mut mesh);
    // The user agent listens to the older one.
    let sent = mesh.accept(1, message(uaid), Direct);
    mesh.pass(12);
    assert_eq!(mesh.closed(newer), None, "its row is the newest");
    assert_eq!(mesh.notifications(older), [sent]);
    mesh.ack(older, sent);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

/// As above: nothing of the half-open session stays unacked, it only lacks the channel.
#[test]
fn a_half_open_session_that_looks_newer_closes_for_a_channel_that_it_never_knew() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let (uaid, older, newer) = half_open(&mut mesh);
    mesh.register(older, THIRD);
    let stored = mesh.accept(2, Message { chid: THIRD, ..message(uaid) }, Stored);
    assert_eq!(mesh.closed(older), None, "its row is not the newest, and its user agent listens to it");
    assert_eq!(mesh.closed(newer), Some(CloseReason::Elsewhere), "it lacks the channel");
    assert_eq!(mesh.notifications(older), [stored]);
}

/// The register of an earlier connection can take effect after the hello of the next one has read the channels.
#[test]
fn a_session_that_lacks_a_registered_channel_closes_when_a_message_waits_for_it() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, _, session) = half_open(&mut mesh);
    let at = Clock(mesh.now.unix_us);
    let seen = mesh.now.unix();
    mesh.store.done(&StoreOp::Register {
        uaid,
        chid: THIRD,
        key: None,
        at,
        seen,
        contact: None,
        presence: None,
        maker: None,
    });
    let waiting = mesh.accept(1, Message { chid: THIRD, ..message(uaid) }, Stored);
    assert_eq!(mesh.closed(session), Some(CloseReason::Elsewhere));
    let next = mesh.session(1, Some(uaid));
    assert_eq!(mesh.notifications(next), [waiting]);
}

/// Storage lists the channel still, and the session knows why.
#[test]
fn a_session_whose_unregister_failed_stays_when_it_doubts() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Failing;
    mesh.command(socket, SessionCommand::Unregister { chid: OTHER, code: 200 });
    mesh.run();
    mesh.store.mode = Mode::Prompt;
    let waiting = mesh.start_post(0, Message { chid: OTHER, ..message(uaid) });
    mesh.run();
    assert!(matches!(mesh.answer_to(waiting), Some(Published::Accepted { .. })), "storage has the channel");
    assert_eq!(mesh.closed(socket), None);
}

/// A copy of a profile goes on acking while its user is away, and does not know a channel that was registered since.
#[test]
fn a_session_that_passed_a_row_by_vouches_for_nothing_behind_it() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let (uaid, copy, live) = half_open(&mut mesh);
    mesh.register(live, THIRD);
    mesh.close(live);
    mesh.lines[0] = Line::Down;
    let waiting = mesh.accept(2, Message { chid: THIRD, ..message(uaid) }, Stored);
    mesh.pass(61);
    let stored = mesh.accept(2, message(uaid), Stored);
    // The copy reads topics and messages. Its doubt fails, so it stays.
    mesh.store.mode = Mode::Held;
    mesh.request(0, notify(uaid));
    mesh.store.release_one();
    mesh.run();
    mesh.store.release_one();
    mesh.store.mode = Mode::Failing;
    mesh.run();
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.notifications(copy), [stored]);
    mesh.ack(copy, stored);
    let socket = mesh.session(1, Some(uaid));
    assert_eq!(mesh.notifications(socket), [waiting]);
}

#[test]
fn a_session_of_months_is_found_when_the_first_copy_of_its_row_expires() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    let first = mesh.store.presence_of(uaid)[0].clone();
    for _ in 0..2 {
        mesh.now.unix_us += limits::REFRESH_INTERVAL_SECONDS * 1_000_000;
        mesh.pass(30);
    }
    // The first copy becomes a tombstone of its version, and a tombstone wins a tie.
    mesh.store.done(&StoreOp::ClearPresence { uaid, presence: first });
    let stamp = mesh.accept(0, message(uaid), Direct);
    assert_eq!(mesh.notifications(socket), [stamp]);
    mesh.ack(socket, stamp);
    // Its end clears the version of now, and a call to leave names it too.
    mesh.close(socket);
    assert!(nodes_of(&mesh, uaid).is_empty());
}

#[test]
fn a_row_that_is_not_written_again_is_tried_with_the_next_round_and_ends_no_session() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    let first = mesh.store.presence_of(uaid)[0].clone();
    mesh.store.mode = Mode::Held;
    mesh.now.unix_us += limits::REFRESH_INTERVAL_SECONDS * 1_000_000;
    mesh.pass(30);
    // The user is refreshed, and the row is not written.
    mesh.store.release_one();
    mesh.store.mode = Mode::Failing;
    mesh.run();
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)]);
    assert_eq!(mesh.closed(socket), None);
    assert_eq!(mesh.store.presence_of(uaid), std::slice::from_ref(&first));
    mesh.store.mode = Mode::Prompt;
    mesh.pass(30);
    assert!(mesh.store.presence_of(uaid)[0].connected_at > first.connected_at);
    assert_eq!(mesh.closed(socket), None);
}

#[test]
fn a_session_that_ends_before_it_has_looked_has_the_other_one_look() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, first) = user_on(&mut mesh, 0);
    mesh.lines[0] = Line::Held;
    let second = mesh.session(1, Some(uaid));
    mesh.block(first);
    let stored = mesh.accept(0, message(uaid), Stored);
    assert!(mesh.notifications(second).is_empty());
    mesh.lines[0] = Line::Up;
    mesh.run();
    assert_eq!(mesh.closed(first), Some(CloseReason::Elsewhere));
    assert_eq!(mesh.notifications(second), [stored]);
}

#[test]
fn the_newer_session_is_told_also_when_the_older_one_may_have_the_message() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let (uaid, stale) = user_on(&mut mesh, 1);
    let post = pushed_and_not_yet_stored(&mut mesh, uaid);
    mesh.lines[1] = Line::Down;
    let live = mesh.session(2, Some(uaid));
    mesh.lines[1] = Line::Up;
    mesh.store.release();
    mesh.run();
    let Some(Published::Accepted { stamp, .. }) = mesh.answer_to(post) else { panic!() };
    assert_eq!(mesh.notifications(stale), [stamp]);
    assert_eq!(mesh.notifications(live), [stamp]);
}

#[test]
fn what_was_acked_is_not_sent_from_a_row_that_came_later() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    let post = pushed_and_not_yet_stored(&mut mesh, uaid);
    let sent = mesh.notifications(socket);
    mesh.ack(socket, sent[0]);
    mesh.lines[1] = Line::Down;
    mesh.store.release();
    mesh.run();
    assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { disposition: Stored, .. })));
    assert_eq!(mesh.store.rows_of(uaid).len(), 1);
    assert_eq!((count(&mesh, "save"), count(&mesh, "publish")), (1, 0), "as the other node's ledger would be saved");
    // A look for another reason comes before the call that reports this row.
    mesh.request(1, notify(uaid));
    assert_eq!(mesh.notifications(socket), sent);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_push_that_may_have_arrived_is_known_to_have_a_row_also_when_its_post_was_refused() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.lines[1] = Line::Mute;
    let post = mesh.start_post(0, message(uaid));
    answered_and_held(&mut mesh);
    mesh.store.mode = Mode::Lossy;
    mesh.run();
    assert_eq!(mesh.answer_to(post), Some(Published::Unavailable));
    assert_eq!(mesh.store.rows_of(uaid).len(), 1, "it took effect all the same");
    mesh.store.mode = Mode::Prompt;
    mesh.lines[1] = Line::Up;
    mesh.pass(2);
    let sent = mesh.notifications(socket);
    mesh.ack(socket, sent[0]);
    assert_eq!(sent.len(), 1);
    assert!(mesh.store.rows_of(uaid).is_empty(), "its ack takes the row too");
}

/// Storage answers two hellos at one instant, and neither session is the newer one by its time.
#[test]
fn two_half_open_sessions_of_one_instant_do_not_notify_each_other_for_ever() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let uaid = mesh.known_user(0);
    mesh.store.mode = Mode::Held;
    let sockets = [0, 1, 2].map(|node| {
        let socket = mesh.open(node);
        mesh.say_hello(socket, Some(uaid));
        mesh.run();
        socket
    });
    mesh.store.release();
    mesh.store.mode = Mode::Prompt;
    mesh.run();
    mesh.close(sockets[2]);
    // A message stays unacked on each of the sessions that are left, so both doubt.
    mesh.accept(0, message(uaid), Direct);
    mesh.accept(1, message(uaid), Direct);
    mesh.pass(12);
    let closed = sockets[..2].iter().filter(|socket| mesh.closed(**socket).is_some()).count();
    assert_eq!(closed, 1, "one of the two knows that the other is the newer one");
}

/// The network brings a push twice. One copy is refused, and the node that made it stamps the message again; its write
/// fails. The other copy comes behind that.
#[test]
fn a_late_copy_of_a_refused_push_replaces_no_accepted_message() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    let older = mesh.accept(0, topical(uaid, "topic"), Direct);
    mesh.block(socket);
    mesh.lines[1] = Line::Held;
    let post = mesh.start_post(0, topical(uaid, "topic"));
    mesh.run();
    let Some((_, _, PeerOp::Push { message, .. })) = mesh.calls.front().cloned() else { panic!("no push") };
    mesh.lines[1] = Line::Up;
    mesh.store.mode = Mode::Failing;
    mesh.run();
    assert_eq!(mesh.answer_to(post), Some(Published::Unavailable));
    mesh.store.mode = Mode::Prompt;
    mesh.unblock(socket);
    let copy = NodePush { message, stored: false };
    assert_eq!(mesh.request(1, Command::Node(NodeCommand::Push(Box::new(copy)))), "Busy");
    assert_eq!(mesh.notifications(socket), [older]);
    assert!(mesh.ledger.values().any(|held| held.stamp == older), "it was accepted and is not acked");
}

/// The network brings a push twice, and its node hears the second answer.
#[test]
fn a_late_copy_of_a_push_that_was_taken_is_taken_when_its_session_has_ended() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.lines[1] = Line::Held;
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    let Some((_, _, PeerOp::Push { message, .. })) = mesh.calls.front().cloned() else { panic!("no push") };
    mesh.lines[1] = Line::Up;
    mesh.run();
    assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { disposition: Direct, .. })));
    let copy = || Command::Node(NodeCommand::Push(Box::new(NodePush { message: message.clone(), stored: false })));
    mesh.store.mode = Mode::Held;
    mesh.close(socket);
    assert_eq!(mesh.request(1, copy()), "Done", "its session has ended, and it is being saved");
    mesh.store.mode = Mode::Prompt;
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.request(1, copy()), "Done", "it is saved");
    let next = mesh.session(1, Some(uaid));
    assert_eq!(mesh.request(1, copy()), "Done", "the next session reads it");
    assert_eq!(mesh.notifications(next), [message.stamp]);
    mesh.ack(next, message.stamp);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_durable_copy_that_is_not_taken_is_found_in_storage() {
    let mut mesh = Mesh::nodes(2, |config| config.durable = true);
    let (uaid, socket) = user_on(&mut mesh, 1);
    // The clock of node 0 is led ahead, within what is allowed at each step, until node 1 refuses it.
    let leader = mesh.known_user(0);
    for ahead in [25_000_000, 50_000_000] {
        let row = Presence { node: Arc::new(node_id(1, 9)), connected_at: mesh.now.unix_us + ahead };
        mesh.store.done(&StoreOp::SetPresence { uaid: leader, presence: row });
        mesh.accept(0, message(leader), Stored);
    }
    let stored = mesh.accept(0, message(uaid), Stored);
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn a_crowd_that_leaves_at_once_leaves_rows_behind_and_no_queue() {
    let mut mesh = Mesh::nodes(2, |config| config.sessions_max = 20_000);
    let room = limits::STORE_TICKETS_MAX / 4 * 3;
    let crowd: Vec<_> = (0..room + 10).map(|_| user_on(&mut mesh, 0)).collect();
    mesh.store.seen.clear();
    mesh.store.mode = Mode::Held;
    for (_, socket) in &crowd {
        mesh.close(*socket);
    }
    assert_eq!(count(&mesh, "clear"), room);
    mesh.store.release();
    mesh.run();
    // A row that stayed leads to a call, and goes.
    let (uaid, _) = crowd[room];
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)]);
    mesh.accept(1, message(uaid), Stored);
    assert!(nodes_of(&mesh, uaid).is_empty());
}
