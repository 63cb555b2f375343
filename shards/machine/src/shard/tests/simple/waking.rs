//! Wake-ups of absent user agents, and idle ones that are disconnected for a later wake-up (PROTOCOL.md 1.12).

use super::*;

#[test]
fn an_update_for_who_is_away_wakes_it_once_in_a_while() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.simple_user(1, Some("ip=203.0.113.7&port=1"));
    mesh.accept(0, update(uaid, 1), Disposition::Stored);
    assert_eq!(mesh.woken, [WakeData::new("ip=203.0.113.7&port=1").expect("it fits")]);
    mesh.accept(0, update(uaid, 2), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 1, "not at once again");
    mesh.pass(limits::WAKE_PAUSE_SECONDS);
    mesh.accept(0, update(uaid, 3), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 2);
    // Refused, here, or without an address: there is no call.
    mesh.pass(limits::WAKE_PAUSE_SECONDS);
    assert_eq!(mesh.post(0, message(uaid)), Published::OtherMode);
    let socket = mesh.simple_with(0, Some(uaid), Some("ip=203.0.113.7&port=1"));
    mesh.accept(0, update(uaid, 4), Disposition::Direct);
    mesh.ack_version(socket, 4);
    mesh.close(socket);
    let nowhere = mesh.simple_user(1, None);
    mesh.accept(0, update(nowhere, 1), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 2);
}

#[test]
fn who_came_back_is_woken_for_the_next_absence_at_once() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, Some("a"));
    mesh.accept(0, update(uaid, 1), Disposition::Stored);
    mesh.pass(2);
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.ack_version(socket, 1);
    mesh.close(socket);
    mesh.accept(0, update(uaid, 2), Disposition::Stored);
    assert_eq!(mesh.woken.len(), 2);
}

#[test]
fn who_leaves_an_update_unacked_is_woken_for_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, Some("a"));
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.accept(0, update(uaid, 1), Disposition::Direct);
    mesh.close(socket);
    mesh.pass(20);
    assert_eq!((mesh.store.rows_of(uaid).len(), mesh.woken.len()), (1, 1));
}

#[test]
fn each_hello_says_how_to_wake() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.simple_with(0, None, Some("first"));
    let uaid = mesh.uaid_on(socket);
    assert_eq!(mesh.store.seen, Vec::<&str>::new(), "nothing is written before the first register");
    mesh.register(socket, CHANNEL);
    mesh.close(socket);
    let wake = |mesh: &Mesh| mesh.store.contact_of(uaid).wake;
    assert_eq!(wake(&mesh), WakeData::new("first"));
    for (said, written) in [(Some("first"), false), (Some("second"), true), (None, true), (None, false)] {
        mesh.store.seen.clear();
        let socket = mesh.simple_with(0, Some(uaid), said);
        assert_eq!(wake(&mesh), said.and_then(WakeData::new));
        assert_eq!(mesh.store.seen.contains(&"contact"), written, "only what changes is written");
        mesh.close(socket);
    }
}

#[test]
fn a_hello_whose_address_is_not_taken_is_closed() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.open(0);
    mesh.say_hello_as(socket, Some(uaid), Reach::Simple, Some("new"));
    mesh.store.mode = Mode::Failing;
    mesh.run();
    assert_eq!(mesh.closed(socket), Some(CloseReason::StorageDown));
    assert_eq!(mesh.machines[0].stats().contacts_failed, 1);
}

#[test]
fn who_can_be_woken_is_ended_when_idle_and_nobody_else() {
    let mut mesh = Mesh::with(1, |config| {
        config.wake_timeout = TimeSpan::from_secs(30);
        config.ping_interval = TimeSpan(0);
    });
    let users: Vec<Uaid> = (0..3).map(|_| mesh.simple_user(0, None)).collect();
    let idle = mesh.simple_with(0, Some(users[0]), Some("a"));
    let stays = mesh.simple(0, Some(users[1]));
    let busy = mesh.simple_with(0, Some(users[2]), Some("b"));
    let webpush = mesh.session(0, None);
    for _ in 0..3 {
        mesh.pass(20);
        mesh.accept(0, update(users[2], mesh.now.unix().0), Disposition::Direct);
        mesh.ack_version(busy, u64::MAX);
    }
    assert_eq!(mesh.closed(idle), Some(CloseReason::IdledOut));
    for socket in [stays, busy, webpush] {
        assert_eq!(mesh.closed(socket), None);
        assert!(!mesh.said(socket).contains(&Said::Ping), "pings are off");
    }
    mesh.pass(40);
    assert_eq!(mesh.closed(busy), Some(CloseReason::IdledOut));
    assert_eq!(mesh.machines[0].stats().idled_out, 2);
}

#[test]
fn nobody_is_told_to_stay_away_while_an_update_waits_for_its_ack() {
    let mut mesh = Mesh::with(1, |config| config.wake_timeout = TimeSpan::from_secs(30));
    let uaid = mesh.simple_user(0, Some("a"));
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.accept(0, update(uaid, 1), Disposition::Direct);
    mesh.pass(45);
    assert_eq!(mesh.closed(socket), None);
    mesh.ack_version(socket, 1);
    mesh.pass(45);
    assert_eq!(mesh.closed(socket), Some(CloseReason::IdledOut));
}
