//! Sessions over time: failures of storage, budgets per minute, pings (PROTOCOL.md 1.5 and 1.7).

use super::*;

fn unregister(mesh: &mut Mesh, socket: Socket, chid: Chid, code: u32) {
    mesh.command(socket, SessionCommand::Unregister { chid, code });
    mesh.run();
}

#[test]
fn storage_errors_are_answered_500_and_the_session_goes_on() {
    for shard in [0, 1] {
        let mut mesh = Mesh::new(2);
        let uaid = mesh.known_user(1);
        let socket = mesh.session(shard, Some(uaid));
        mesh.store.mode = Mode::Failing;
        mesh.register(socket, Chid([7; 16]));
        unregister(&mut mesh, socket, OTHER, 200);
        assert_eq!(mesh.said(socket)[1..], [Said::Registered(500), Said::Unregistered(500)]);
        // A message that needs no storage passes all the same.
        mesh.accept(0, message(uaid), Disposition::Direct);
        mesh.command(socket, AgentCommand::Ping);
        mesh.store.mode = Mode::Prompt;
        mesh.register(socket, Chid([7; 16]));
        unregister(&mut mesh, socket, OTHER, 200);
        assert_eq!(mesh.said(socket)[4..], [Said::Pong, Said::Registered(200), Said::Unregistered(200)]);
        assert_eq!(mesh.closed(socket), None);
        assert_eq!(mesh.machines[1].stats().registers_failed, 1);
    }
}

#[test]
fn a_new_user_whose_first_register_fails_keeps_its_uaid_and_may_try_again() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.store.mode = Mode::Failing;
    mesh.register(socket, CHANNEL);
    mesh.store.mode = Mode::Prompt;
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.said(socket)[1..], [Said::Registered(500), Said::Registered(200)]);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(again), uaid);
}

#[test]
fn reasons_of_unregisters_are_told_apart() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    for code in [0, 200, 201, 202, 203, u32::MAX] {
        unregister(&mut mesh, socket, CHANNEL, code);
    }
    assert_eq!(mesh.said(socket)[1..], [const { Said::Unregistered(200) }; 6]);
    let stats = mesh.machines[0].stats();
    assert_eq!((stats.unregisters, stats.unregisters_quota, stats.unregisters_permission), (4, 1, 1));
}

#[test]
fn the_budget_of_registers_begins_anew_with_every_minute() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let socket = mesh.session(0, None);
    for _ in 0..3 {
        for n in 0..limits::REGISTERS_PER_MINUTE_MAX {
            mesh.register(socket, Chid([(n % 7) as u8; 16]));
        }
        assert_eq!(mesh.closed(socket), None);
        mesh.pass(60);
    }
}

#[test]
fn a_new_connection_has_no_new_budget_of_registers() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let first = mesh.session(0, None);
    let uaid = mesh.uaid_on(first);
    for n in 0..limits::REGISTERS_PER_MINUTE_MAX {
        mesh.register(first, Chid([(n % 7) as u8; 16]));
    }
    assert_eq!(mesh.closed(first), None);
    mesh.close(first);
    let second = mesh.session(0, Some(uaid));
    mesh.register(second, CHANNEL);
    assert_eq!(mesh.closed(second), Some(CloseReason::BudgetExhausted));
    let stranger = mesh.session(0, None);
    mesh.register(stranger, CHANNEL);
    assert_eq!(mesh.said(stranger).last(), Some(&Said::Registered(200)), "each user has its own");
    mesh.pass(60);
    let third = mesh.session(0, Some(uaid));
    mesh.register(third, CHANNEL);
    assert_eq!(mesh.said(third).last(), Some(&Said::Registered(200)));
}

#[test]
fn channels_beyond_the_bound_are_answered_500_and_the_session_goes_on() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let socket = mesh.session(0, None);
    let channel = |n: usize| Chid((n as u128 + 1).to_be_bytes());
    for n in 0..limits::CHANNELS_MAX {
        if n % 500 == 0 {
            mesh.pass(60);
        }
        mesh.register(socket, channel(n));
    }
    assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(200)));
    mesh.pass(60);
    mesh.register(socket, channel(limits::CHANNELS_MAX));
    assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(500)));
    unregister(&mut mesh, socket, channel(0), 200);
    mesh.register(socket, channel(limits::CHANNELS_MAX));
    assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(200)));
}

fn pings(mesh: &Mesh, socket: Socket) -> usize {
    mesh.said(socket).iter().filter(|said| **said == Said::Ping).count()
}

/// A session that sends anything is alive: a Ping would only wake its user agent up.
#[test]
fn any_frame_of_a_client_postpones_the_ping() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let sockets: Vec<Socket> = (0..5).map(|_| mesh.session(0, None)).collect();
    let acks = mesh.session(0, Some(uaid));
    let silent = mesh.session(0, None);
    for minute in 0..20 {
        mesh.command(sockets[0], AgentCommand::Ping);
        mesh.command(sockets[1], SessionCommand::Nack { code: 301 });
        mesh.command(sockets[2], AgentCommand::Pong);
        mesh.command(sockets[3], SessionCommand::BroadcastSubscribe(Vec::new()));
        let conn = mesh.sockets[sockets[4].0].conn;
        mesh.step(0, Input::Frame { conn });
        let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
        mesh.ack(acks, stamp);
        mesh.pass(60);
        for socket in sockets.iter().chain([&acks]) {
            assert_eq!((pings(&mesh, *socket), mesh.closed(*socket)), (0, None), "minute {minute}");
        }
    }
    assert_eq!(mesh.closed(silent), Some(CloseReason::PongTimeout), "one that says nothing was pinged");
    // Silent sessions are pinged, an interval after their last message and a round of the sweep later.
    mesh.pass(230);
    assert!(sockets.iter().all(|socket| pings(&mesh, *socket) == 0));
    mesh.pass(22);
    assert!(sockets.iter().all(|socket| pings(&mesh, *socket) == 1));
}

#[test]
fn what_a_client_says_does_not_stand_for_the_pong() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    while pings(&mesh, socket) == 0 {
        mesh.pass(1);
    }
    for _ in 0..5 {
        if mesh.closed(socket).is_none() {
            mesh.command(socket, SessionCommand::Nack { code: 301 });
        }
        mesh.pass(1);
    }
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}

#[test]
fn a_pong_that_nobody_asked_for_is_a_frame_as_any_other() {
    let mut mesh = Mesh::new(1);
    let early = mesh.open(0);
    mesh.command(early, AgentCommand::Pong);
    mesh.say_hello(early, None);
    mesh.run();
    assert_eq!(mesh.said(early).len(), 1);
    for _ in 0..335 {
        mesh.command(early, AgentCommand::Pong);
        mesh.pass(1);
    }
    assert_eq!((pings(&mesh, early), mesh.closed(early)), (0, None));
}

#[test]
fn without_an_interval_nobody_is_pinged() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let socket = mesh.session(0, None);
    mesh.pass(3_600);
    assert_eq!(mesh.said(socket).len(), 1);
}

#[test]
fn what_was_unknown_when_it_was_named_is_told_when_it_is_set() {
    let mut mesh = Mesh::new(1);
    let value = |id: &str, version: &str| BroadcastVersion { id: id.into(), version: version.into() };
    let socket = mesh.session(0, None);
    mesh.command(socket, SessionCommand::BroadcastSubscribe(vec![value("late", "1")]));
    assert_eq!(mesh.said(socket).last(), Some(&Said::Broadcast(0, 1)));
    mesh.step(0, Input::Broadcasts([value("other", "1")].into()));
    assert_eq!(mesh.said(socket).len(), 2);
    mesh.step(0, Input::Broadcasts([value("late", "2")].into()));
    assert_eq!(mesh.said(socket)[2..], [Said::Broadcast(1, 0)]);
    mesh.command(socket, SessionCommand::BroadcastSubscribe(vec![value("late", "1")]));
    mesh.step(0, Input::Broadcasts([value("late", "3")].into()));
    assert_eq!(mesh.said(socket)[3..], [Said::Broadcast(1, 0), Said::Broadcast(1, 0)]);
}

#[test]
fn a_message_of_ttl_zero_is_not_awaited() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, lasting(uaid, 0), Disposition::Direct);
    assert_eq!(mesh.machines[0].window_len(uaid), 0);
    mesh.ack(socket, stamp);
    mesh.pass(200);
    assert_eq!(mesh.notifications(socket), [stamp], "sent once, also without an ack");
    assert!(mesh.ledger.is_empty() && mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn what_is_urgent_goes_first_within_a_page_and_not_within_a_channel() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let urgent = |urgency, chid| Message { urgency, chid, ..message(uaid) };
    let first = mesh.accept(0, urgent(Urgency::Normal, CHANNEL), Disposition::Stored);
    let second = mesh.accept(0, urgent(Urgency::VeryLow, OTHER), Disposition::Stored);
    let third = mesh.accept(0, urgent(Urgency::High, OTHER), Disposition::Stored);
    let fourth = mesh.accept(0, urgent(Urgency::Low, CHANNEL), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [second, third, first, fourth]);
}
