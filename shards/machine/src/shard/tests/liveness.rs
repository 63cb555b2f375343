//! Pings, broadcasts, budgets.

use super::*;

fn value(id: &str, version: &str) -> BroadcastVersion {
    BroadcastVersion { id: id.into(), version: version.into() }
}

#[test]
fn a_ping_goes_out_once_an_interval_and_a_pong_keeps_the_session() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let pings = |mesh: &Mesh| mesh.said(socket).iter().filter(|s| **s == Said::Ping).count();
    while pings(&mesh) == 0 {
        mesh.pass(1);
        assert!(mesh.now.mono.seconds() < 330, "the first ping comes within the interval and a round");
    }
    assert!(mesh.now.mono.seconds() > 140, "the first ping is jittered over the second half");
    mesh.command(socket, AgentCommand::Pong);
    mesh.pass(290);
    assert_eq!(pings(&mesh), 1);
    assert_eq!(mesh.closed(socket), None);
    mesh.pass(30);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}

#[test]
fn the_first_client_ping_is_answered_and_the_next_not_too_soon() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    mesh.command(socket, AgentCommand::Ping);
    mesh.pass(46);
    mesh.command(socket, AgentCommand::Ping);
    assert_eq!(mesh.said(socket)[1..], [Said::Pong, Said::Pong]);
    mesh.pass(44);
    mesh.command(socket, AgentCommand::Ping);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PingTooSoon));
}

#[test]
fn broadcasts_are_pushed_at_once_to_who_subscribed() {
    let mut mesh = Mesh::new(1);
    mesh.step(0, Input::Broadcasts([value("a", "1"), value("b", "1")].into()));
    let (told, silent) = (mesh.session(0, None), mesh.session(0, None));
    mesh.command(told, SessionCommand::BroadcastSubscribe(vec![value("a", "1"), value("x", "1")]));
    assert_eq!(mesh.said(told).last(), Some(&Said::Broadcast(0, 1)));
    mesh.step(0, Input::Broadcasts([value("b", "2")].into()));
    assert_eq!(mesh.said(told).len(), 2);
    mesh.step(0, Input::Broadcasts([value("a", "2")].into()));
    assert_eq!(mesh.said(told).last(), Some(&Said::Broadcast(1, 0)));
    assert_eq!(mesh.said(silent).len(), 1);
}

#[test]
fn a_blocked_socket_is_told_of_broadcasts_when_it_takes_bytes() {
    let mut mesh = Mesh::new(1);
    mesh.step(0, Input::Broadcasts([value("a", "1")].into()));
    let socket = mesh.session(0, None);
    mesh.command(socket, SessionCommand::BroadcastSubscribe(vec![value("a", "1")]));
    mesh.block(socket);
    mesh.step(0, Input::Broadcasts([value("a", "2")].into()));
    assert_eq!(mesh.said(socket).len(), 1);
    mesh.unblock(socket);
    assert_eq!(mesh.said(socket).last(), Some(&Said::Broadcast(1, 0)));
}

#[test]
fn a_change_is_spread_over_its_window_and_reaches_everybody() {
    let mut mesh = Mesh::with(1, |config| config.broadcast_spread = TimeSpan::from_secs(4));
    mesh.step(0, Input::Broadcasts([value("a", "1")].into()));
    let sockets: Vec<Socket> = (0..400).map(|_| mesh.session(0, None)).collect();
    for socket in &sockets {
        mesh.command(*socket, SessionCommand::BroadcastSubscribe(vec![value("a", "1")]));
    }
    let told = |mesh: &Mesh| sockets.iter().filter(|s| mesh.said(**s).contains(&Said::Broadcast(1, 0))).count();
    mesh.step(0, Input::Broadcasts([value("a", "2")].into()));
    assert_eq!(told(&mesh), 32, "the first beat is now");
    // A change during the sweep starts another round and delays no session.
    mesh.step(0, Input::Timeout);
    mesh.step(0, Input::Broadcasts([value("a", "3")].into()));
    mesh.pass(4);
    assert_eq!(told(&mesh), 400);
    let twice = sockets.iter().filter(|s| mesh.said(**s).len() == 3).count();
    assert_eq!(twice, 32, "who was told of the first change is told of the second");
}

#[test]
fn registers_beyond_the_budget_close() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let mut registered = 0u16;
    while mesh.closed(socket).is_none() {
        registered += 1;
        assert!(registered < 1_000, "the budget ends");
        let mut chid = [1; 16];
        chid[..2].copy_from_slice(&(registered % 8).to_be_bytes());
        mesh.register(socket, Chid(chid));
    }
    assert!(registered > 300, "at least 300 a minute: {registered}");
    assert_eq!(mesh.closed(socket), Some(CloseReason::BudgetExhausted));
}

#[test]
fn a_session_that_lives_for_weeks_keeps_its_user_from_expiring() {
    let mut mesh = Mesh::new(1);
    let before = UnixSeconds(mesh.now.unix().0 - limits::REFRESH_INTERVAL_SECONDS);
    let uaid = mesh.user_seen(0, before);
    mesh.session(0, Some(uaid));
    mesh.run();
    let touches = |mesh: &Mesh| mesh.store.seen.iter().filter(|op| **op == "touch").count();
    assert_eq!(touches(&mesh), 1, "last seen long ago");
    mesh.now.unix_us += limits::REFRESH_INTERVAL_SECONDS * 1_000_000;
    mesh.pass(30);
    assert_eq!(touches(&mesh), 2);
    let seen = mesh.store.model.user(uaid).map(|user| mesh.now.unix().0 - user.seen.0);
    assert!(seen.is_some_and(|ago| ago <= 30), "{seen:?} s ago");
}

/// Strangers name every combination of a few ids, one connection each, and go.
#[test]
fn broadcast_sets_that_no_session_has_make_room_for_others() {
    let mut mesh = Mesh::with(1, |config| config.sessions_max = 10_000);
    let ids: Vec<BroadcastVersion> = (0..14).map(|n| value(&format!("id{n}"), "1")).collect();
    mesh.step(0, Input::Broadcasts(ids.clone().into()));
    let combination = |n: usize| {
        let named = ids.iter().enumerate().filter(move |(at, _)| n >> at & 1 == 1);
        named.map(|(_, id)| id.clone())
    };
    let mut strangers = Vec::new();
    // A set of one known id always has a place.
    for n in (1..1_usize << 13).filter(|n| n.count_ones() > 1).take(limits::BROADCAST_SETS_MAX) {
        let socket = mesh.session(0, None);
        mesh.command(socket, SessionCommand::BroadcastSubscribe(combination(n).collect()));
        strangers.push(socket);
    }
    assert!(strangers.iter().all(|socket| mesh.said(*socket).len() == 1), "all of them have what they asked for");
    // At the bound, the refusal is answered and not only applied.
    let refused = mesh.session(0, None);
    mesh.command(refused, SessionCommand::BroadcastSubscribe(combination(1 << 13 | 1).collect()));
    assert_eq!(mesh.said(refused).last(), Some(&Said::Broadcast(0, 1)), "the other one is not found");
    for socket in strangers {
        mesh.close(socket);
    }
    let welcome = mesh.session(0, None);
    mesh.command(welcome, SessionCommand::BroadcastSubscribe(combination(1 << 13 | 1).collect()));
    mesh.step(0, Input::Broadcasts([value("id13", "2")].into()));
    assert_eq!(mesh.said(welcome).last(), Some(&Said::Broadcast(1, 0)), "it hears of changes");
}

/// A shard that could not run writes the next Ping while the clock of the last one is overdue.
#[test]
fn a_pong_in_time_is_not_judged_by_the_next_ping() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    while !mesh.said(socket).contains(&Said::Ping) {
        mesh.pass(1);
    }
    mesh.command(socket, AgentCommand::Pong);
    mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(1_000));
    mesh.step(0, Input::Timeout);
    assert_eq!(mesh.closed(socket), None, "its Pong came in time");
    mesh.pass(1);
    assert_eq!(mesh.said(socket).iter().filter(|said| **said == Said::Ping).count(), 2);
    mesh.pass(5);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}
