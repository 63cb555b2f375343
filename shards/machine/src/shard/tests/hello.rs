//! Hello, claim, grant and the move (ARCHITECTURE.md 4).

use super::*;

#[test]
fn a_new_user_agent_is_minted_where_it_is_and_nothing_is_written() {
    let mut mesh = Mesh::new(3);
    let socket = mesh.session(1, None);
    let uaid = mesh.uaid_on(socket);
    assert_eq!(mesh.placement.owner(uaid), ShardId(1));
    assert!(mesh.store.seen.is_empty(), "deferred add: {:?}", mesh.store.seen);
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(200)));
    assert_eq!(mesh.store.seen, ["register"]);
}

#[test]
fn a_known_user_of_this_shard_keeps_its_uaid() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.said(socket), [Said::Hello(uaid)]);
}

#[test]
fn an_unknown_uaid_of_another_shard_is_refused_and_minted_where_it_is() {
    let mut mesh = Mesh::new(2);
    let stranger = mesh.uaid_of(1);
    let socket = mesh.session(0, Some(stranger));
    assert_ne!(mesh.uaid_on(socket), stranger);
    assert_eq!(mesh.shard_of(socket), 0);
    assert_eq!(mesh.machines[1].stats().claims_refused, 1);
    assert_eq!(mesh.machines[0].stats().hellos_reassigned, 1);
}

#[test]
fn invented_uaids_leave_the_shards_balanced() {
    let mut mesh = Mesh::new(3);
    // All of them aim at shard 2 and arrive evenly.
    for n in 0..300 {
        let stranger = mesh.uaid_of(2);
        mesh.session(n % 3, Some(stranger));
    }
    for machine in &mut mesh.machines {
        assert_eq!(machine.stats().sessions, 100);
    }
}

#[test]
fn a_known_user_moves_to_its_owner_with_its_early_bytes_descriptor_first() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.said(socket), [Said::Hello(uaid)]);
    assert_eq!(mesh.shard_of(socket), 1);
    assert_eq!(mesh.fed(socket), b"early");
    assert_eq!((mesh.machines[0].stats().moves_out, mesh.machines[1].stats().moves_in), (1, 1));
    assert_eq!(mesh.machines[0].stats().conns, 0, "the source has forgotten it");
}

#[test]
fn the_mail_may_come_before_the_descriptor() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.hold_moves = true;
    let socket = mesh.session(0, Some(uaid));
    mesh.deliver_arrival();
    assert!(mesh.said(socket).is_empty());
    mesh.deliver_descriptor();
    assert_eq!(mesh.said(socket), [Said::Hello(uaid)]);
}

#[test]
fn a_claim_superseded_while_granted_is_closed_on_arrival() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.hold_moves = true;
    let older = mesh.session(0, Some(uaid));
    let newer = mesh.session(1, Some(uaid));
    assert_eq!(mesh.said(newer), [Said::Hello(uaid)]);
    mesh.hold_moves = false;
    mesh.run();
    assert_eq!(mesh.said(older), [Said::Closed(CloseReason::Superseded)]);
    assert_eq!(mesh.said(newer), [Said::Hello(uaid)], "the newer session is untouched");
    assert!(mesh.machines[1].is_quiet());
}

#[test]
fn a_claim_superseded_while_storage_is_read_is_told_so() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.store.mode = Mode::Held;
    let older = mesh.session(0, Some(uaid));
    let newer = mesh.session(1, Some(uaid));
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.said(older), [Said::Closed(CloseReason::Superseded)]);
    assert_eq!(mesh.said(newer), [Said::Hello(uaid)]);
}

#[test]
fn half_a_pair_times_out() {
    for descriptor_comes in [true, false] {
        let mut mesh = Mesh::new(2);
        let uaid = mesh.known_user(1);
        mesh.hold_moves = true;
        let socket = mesh.session(0, Some(uaid));
        if descriptor_comes {
            mesh.deliver_descriptor();
        } else {
            mesh.deliver_arrival();
        }
        mesh.pass(11);
        assert_eq!(mesh.machines[1].stats().half_pairs, 1);
        assert!(mesh.machines[1].is_quiet());
        let expected = descriptor_comes.then_some(CloseReason::MoveFailed);
        assert_eq!(mesh.closed(socket), expected);
    }
}

#[test]
fn a_descriptor_that_goes_before_its_mail_leaves_no_ghost() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.hold_moves = true;
    let socket = mesh.session(0, Some(uaid));
    mesh.deliver_descriptor();
    mesh.close(socket);
    mesh.deliver_arrival();
    assert!(mesh.said(socket).is_empty());
    assert!(!mesh.machines[1].is_resident(uaid));
    assert_eq!(mesh.machines[1].stats().conns, 0);
    assert_eq!(mesh.machines[1].stats().arrivals_stale, 1);
}

#[test]
fn a_socket_that_cannot_be_moved_is_closed_and_counted() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.hold_moves = true;
    let socket = mesh.session(0, Some(uaid));
    let (_, _, claim) = mesh.descriptors.pop_front().expect("a move began");
    let conn = mesh.sockets[socket.0].conn;
    mesh.step(0, Input::MoveFailed { conn, to: ShardId(1), claim });
    assert_eq!(mesh.closed(socket), Some(CloseReason::MoveFailed));
    assert_eq!(mesh.machines[0].stats().moves_failed, 1);
    mesh.run();
    assert_eq!(mesh.machines[1].stats().grants_unused, 1);
    assert!(
        mesh.machines[1].is_quiet() && mesh.machines[1].pending_hellos.has_no_grant(),
        "the owner does not wait for it"
    );
}

#[test]
fn a_full_owner_grants_nothing() {
    let mut mesh = Mesh::with(2, |config| config.sessions_max = 1);
    mesh.session(1, None);
    let uaid = mesh.known_user(1);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.said(socket), [Said::Closed(CloseReason::Overloaded)]);
}

#[test]
fn a_reserved_place_counts_as_taken() {
    let mut mesh = Mesh::with(2, |config| config.sessions_max = 1);
    let (first, second) = (mesh.known_user(1), mesh.known_user(1));
    mesh.hold_moves = true;
    let granted = mesh.session(0, Some(first));
    let refused = mesh.session(0, Some(second));
    assert_eq!(mesh.closed(refused), Some(CloseReason::Overloaded));
    mesh.hold_moves = false;
    mesh.run();
    assert_eq!(mesh.said(granted), [Said::Hello(first)]);
}

#[test]
fn a_socket_gone_while_it_is_claimed_leaves_nothing_behind() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.hold_mail = true;
    let socket = mesh.session(0, Some(uaid));
    mesh.close(socket);
    mesh.hold_mail = false;
    mesh.run();
    assert_eq!(mesh.machines[0].stats().claims_abandoned, 1);
    mesh.pass(11);
    assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.said(again), [Said::Hello(uaid)]);
}

#[test]
fn storage_that_cannot_say_closes_and_never_mints() {
    for shard in [0, 1] {
        let mut mesh = Mesh::new(2);
        let uaid = mesh.known_user(1);
        mesh.store.mode = Mode::Failing;
        let socket = mesh.session(shard, Some(uaid));
        assert_eq!(mesh.said(socket), [Said::Closed(CloseReason::StorageDown)]);
    }
}

#[test]
fn storage_that_never_answers_closes_too() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.store.mode = Mode::Held;
    let socket = mesh.session(0, Some(uaid));
    mesh.pass(11);
    assert_eq!(mesh.closed(socket), Some(CloseReason::StorageDown));
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.machines[1].stats().store_replies_stale, 1);
}

#[test]
fn hellos_beyond_the_gate_wait_and_are_admitted() {
    let mut mesh = Mesh::with(1, |config| config.sessions_max = 5_000);
    let users: Vec<Uaid> = (0..limits::HELLOS_IN_FLIGHT_MAX + 50).map(|_| mesh.known_user(0)).collect();
    mesh.store.mode = Mode::Held;
    let sockets: Vec<Socket> = users.iter().map(|uaid| mesh.session(0, Some(*uaid))).collect();
    assert_eq!(mesh.store.held.len(), limits::HELLOS_IN_FLIGHT_MAX);
    mesh.store.release();
    mesh.run();
    for (socket, uaid) in sockets.iter().zip(&users) {
        assert_eq!(mesh.said(*socket), [Said::Hello(*uaid)]);
    }
}

#[test]
fn requests_wait_for_reply_credit_and_all_are_answered() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    mesh.hold_mail = true;
    let posts: Vec<_> = (0..limits::reply_credit(2) + 30).map(|_| mesh.start_post(0, message(uaid))).collect();
    assert_eq!(mesh.mail.len(), limits::reply_credit(2), "no more mails than the lanes hold");
    mesh.hold_mail = false;
    mesh.run();
    for post in posts {
        assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { .. })));
    }
}

#[test]
fn hello_twice_and_anything_before_hello_close() {
    let mut mesh = Mesh::new(1);
    let twice = mesh.session(0, None);
    mesh.say_hello(twice, None);
    assert_eq!(mesh.closed(twice), Some(CloseReason::WrongState));
    let early = mesh.open(0);
    mesh.command(early, AgentCommand::Ping);
    assert_eq!(mesh.said(early), [Said::Closed(CloseReason::WrongState)]);
}

#[test]
fn no_hello_in_time_closes() {
    let mut mesh = Mesh::new(1);
    let silent = mesh.open(0);
    let prompt = mesh.session(0, None);
    mesh.pass(6);
    assert_eq!(mesh.said(silent), [Said::Closed(CloseReason::HandshakeTimeout)]);
    assert_eq!(mesh.closed(prompt), None);
}

/// Moves are delayed: the granted sockets have not arrived, and a user of one of them claims again meanwhile.
#[test]
fn arrivals_under_way_fit_into_their_lane() {
    for one_user in [false, true] {
        let mut mesh = Mesh::with(2, |config| config.sessions_max = 10_000);
        mesh.hold_moves = true;
        let only = mesh.known_user(1);
        let mut sockets = Vec::new();
        for _ in 0..limits::GRANTS_MAX + 100 {
            let uaid = if one_user { only } else { mesh.known_user(1) };
            sockets.push((uaid, mesh.session(0, Some(uaid))));
        }
        let under_way = mesh.arrivals.len();
        assert!(under_way <= limits::GRANTS_MAX, "{under_way} arrivals for a lane of {}", limits::GRANTS_MAX);
        assert_eq!(mesh.closed(sockets[sockets.len() - 1].1), Some(CloseReason::Overloaded));
        mesh.hold_moves = false;
        mesh.run();
        let served = sockets.iter().filter(|(_, socket)| mesh.closed(*socket).is_none()).count();
        // The last hello of the one user superseded the earlier ones and was refused.
        assert_eq!(served, if one_user { 0 } else { limits::GRANTS_MAX });
        // There is room again.
        let uaid = mesh.known_user(1);
        let socket = mesh.session(0, Some(uaid));
        assert_eq!(mesh.said(socket), [Said::Hello(uaid)]);
    }
}
