//! Pings of a relay: it is one connection, and its silence ends all of its members.

use super::super::late::be_late_in_every_round;
use super::*;

#[test]
fn a_relay_is_pinged_as_one_connection_and_ends_with_its_members() {
    let mut mesh = Mesh::new(2);
    let members = [mesh.known_user(0), mesh.known_user(1)];
    let relay = mesh.relay(0);
    for member in &members {
        mesh.attach(relay, Some(*member));
    }
    mesh.pass(302);
    let pings = |mesh: &Mesh| mesh.said(relay).iter().filter(|said| **said == Said::Ping).count();
    assert_eq!(pings(&mesh), 1);
    mesh.command(relay, RelayCommand::Pong);
    mesh.pass(300);
    assert_eq!((pings(&mesh), mesh.closed(relay)), (2, None));
    mesh.pass(5);
    assert_eq!(mesh.closed(relay), Some(CloseReason::PongTimeout));
    assert_eq!(mesh.count(|stats| stats.sessions), 0);
}

#[test]
fn a_shard_that_is_late_in_every_round_ends_a_silent_relay() {
    let mut mesh = Mesh::new(1);
    let relay = mesh.relay(0);
    while mesh.said(relay).last() != Some(&Said::Ping) {
        mesh.pass(1);
    }
    be_late_in_every_round(&mut mesh);
    assert_eq!(mesh.closed(relay), Some(CloseReason::PongTimeout));
}

#[test]
fn any_frame_of_a_relay_postpones_its_ping() {
    let mut mesh = Mesh::new(2);
    let relay = mesh.relay(0);
    let member = mesh.known_user(1);
    mesh.attach(relay, Some(member));
    for minute in 0..20 {
        match minute % 4 {
            0 => mesh.ask_for(relay, member, SessionCommand::Nack { code: 301 }),
            1 => mesh.command(relay, RelayCommand::Ping),
            2 => mesh.command(relay, RelayCommand::Pong),
            _ => {
                let conn = mesh.sockets[relay.0].conn;
                mesh.step(0, Input::Frame { conn });
            }
        }
        mesh.pass(60);
        assert!(!mesh.said(relay).contains(&Said::Ping), "minute {minute}");
    }
    mesh.pass(245);
    assert_eq!(mesh.said(relay).last(), Some(&Said::Closed(CloseReason::PongTimeout)));
}

#[test]
fn the_pings_of_a_relay_are_its_own() {
    let mut mesh = Mesh::new(1);
    let relay = mesh.relay(0);
    mesh.command(relay, RelayCommand::Ping);
    assert_eq!(mesh.said(relay).last(), Some(&Said::Pong));
    mesh.pass(46);
    mesh.command(relay, RelayCommand::Ping);
    assert_eq!(mesh.closed(relay), None);
    mesh.command(relay, RelayCommand::Ping);
    assert_eq!(mesh.closed(relay), Some(CloseReason::PingTooSoon));
}
