//! A late shard ends no session: bytes that wait unread in a socket are in time (`Input::HorizonAdvanced`).

use super::*;

/// Returns a mesh whose shard has set its input horizon, and a session whose Ping is out.
fn pinged() -> (Mesh, Socket) {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    while mesh.said(socket).last() != Some(&Said::Ping) {
        mesh.pass(1);
        hear(&mut mesh, false);
    }
    (mesh, socket)
}

/// Sets the input horizon to now.
fn hear(mesh: &mut Mesh, late: bool) {
    hear_until(mesh, mesh.now.mono, late);
}

fn hear_until(mesh: &mut Mesh, until: Instant, late: bool) {
    mesh.step(0, Input::HorizonAdvanced { until, late });
}

/// Keeps the shard from running for this span.
fn stand_still(mesh: &mut Mesh, seconds: u64) {
    mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(seconds));
    mesh.now.unix_us += seconds * 1_000_000;
}

fn time_out(mesh: &mut Mesh) {
    mesh.step(0, Input::Timeout);
    mesh.run();
}

/// Lets twenty rounds of a second pass, each of which begins when the one before ends. A Ping is out that was written
/// within the last second.
pub(super) fn be_late_in_every_round(mesh: &mut Mesh) {
    let mut until = Instant(mesh.now.mono.0 - 1_000_000_000);
    for _ in 0..20 {
        stand_still(mesh, 1);
        hear_until(mesh, until, true);
        time_out(mesh);
        until = mesh.now.mono;
    }
}

#[test]
fn a_pong_that_waits_for_a_late_shard_is_in_time() {
    let (mut mesh, socket) = pinged();
    stand_still(&mut mesh, 10);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), None, "its Pong may wait in the socket");
    assert!(mesh.machines[0].next_timeout().is_some_and(|at| at <= mesh.now.mono), "it is looked at again at once");
    mesh.command(socket, AgentCommand::Pong);
    hear(&mut mesh, false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), None);
    assert!(mesh.machines[0].next_timeout().is_none_or(|at| at > mesh.now.mono), "and no more");
}

#[test]
fn a_silence_that_was_heard_out_ends_the_session() {
    let (mut mesh, socket) = pinged();
    let sent = mesh.now.mono;
    stand_still(&mut mesh, 10);
    hear_until(&mut mesh, sent.after(TimeSpan::from_secs(3)), false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), None, "heard for 3 of 4 seconds");
    hear_until(&mut mesh, sent.after(TimeSpan::from_secs(4)), false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}

/// The Ping is written, and then the shard cannot run: the Ping has only now been sent.
#[test]
fn a_ping_that_a_late_shard_wrote_counts_from_when_it_went_out() {
    let (mut mesh, socket) = pinged();
    // It was written within the last second.
    let written = Instant(mesh.now.mono.0 - 1_000_000_000);
    stand_still(&mut mesh, 10);
    hear_until(&mut mesh, written, true);
    hear(&mut mesh, false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), None, "it was sent this moment");
    stand_still(&mut mesh, 3);
    hear(&mut mesh, false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), None);
    // A second delay does not move it again: it went out before.
    let later = mesh.now.mono;
    stand_still(&mut mesh, 2);
    hear_until(&mut mesh, later, true);
    hear(&mut mesh, false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}

/// A crowd may make every round of the horizon long.
#[test]
fn a_shard_that_is_late_in_every_round_ends_a_silent_session() {
    let (mut mesh, socket) = pinged();
    be_late_in_every_round(&mut mesh);
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}

/// Nothing of a connection is read while its command is under way (ring/RULES.md rule 8).
#[test]
fn a_pong_behind_a_command_that_waits_for_storage_is_in_time() {
    let (mut mesh, socket) = pinged();
    mesh.store.mode = Mode::Held;
    mesh.command(socket, SessionCommand::Register { chid: CHANNEL, key: None, caller: None });
    for _ in 0..30 {
        stand_still(&mut mesh, 1);
        hear(&mut mesh, false);
        time_out(&mut mesh);
    }
    assert_eq!(mesh.closed(socket), None, "it is storage that is slow");
    mesh.store.release();
    mesh.run();
    mesh.command(socket, AgentCommand::Pong);
    mesh.pass(20);
    assert_eq!(mesh.closed(socket), None);
}

#[test]
fn a_session_that_is_silent_after_its_command_ends_all_the_same() {
    let (mut mesh, socket) = pinged();
    mesh.store.mode = Mode::Held;
    mesh.command(socket, SessionCommand::Register { chid: CHANNEL, key: None, caller: None });
    mesh.pass(10);
    hear(&mut mesh, false);
    mesh.store.release();
    mesh.run();
    for _ in 0..10 {
        mesh.pass(1);
        hear(&mut mesh, false);
    }
    assert_eq!(mesh.closed(socket), Some(CloseReason::PongTimeout));
}

#[test]
fn a_hello_that_waits_for_a_late_shard_is_in_time() {
    let mut mesh = Mesh::new(1);
    hear(&mut mesh, false);
    let (socket, silent) = (mesh.open(0), mesh.open(0));
    let opened = mesh.now.mono;
    stand_still(&mut mesh, 20);
    time_out(&mut mesh);
    hear_until(&mut mesh, opened.after(TimeSpan::from_secs(4)), false);
    time_out(&mut mesh);
    assert_eq!((mesh.closed(socket), mesh.closed(silent)), (None, None));
    mesh.say_hello(socket, None);
    mesh.run();
    hear(&mut mesh, false);
    time_out(&mut mesh);
    assert_eq!(mesh.closed(socket), None);
    assert_eq!(mesh.closed(silent), Some(CloseReason::HandshakeTimeout));
}
