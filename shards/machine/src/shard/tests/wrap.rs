//! Clocks, generations and counters that are masked or narrowed, at their wrap-around.

use super::*;

/// A tick is kept in 29 bits beside the state of its connection, and counted in 32.
#[test]
fn the_hello_clock_goes_on_after_its_wrap_around() {
    for bits in [29, 32] {
        let mut mesh = Mesh::new(1);
        let wrap = Instant((1 << bits) * 100_000_000);
        mesh.now.mono = Instant(wrap.0 - 3_000_000_000);
        let silent = mesh.open(0);
        let greeted = mesh.session(0, None);
        mesh.pass(2);
        let later = mesh.open(0);
        mesh.pass(2);
        assert!(mesh.now.mono > wrap);
        let last = mesh.open(0);
        assert_eq!(mesh.closed(silent), None, "4 of 5 seconds are over");
        mesh.pass(2);
        let closed = [silent, later, last].map(|socket| mesh.closed(socket));
        assert_eq!(closed, [Some(CloseReason::HandshakeTimeout), None, None], "2^{bits} ticks");
        mesh.say_hello(last, None);
        mesh.pass(4);
        let closed = [greeted, later, last].map(|socket| mesh.closed(socket));
        assert_eq!(closed, [None, Some(CloseReason::HandshakeTimeout), None], "2^{bits} ticks");
    }
}

/// Ticks of a tenth of a second are counted in 32 bits: 13 years.
#[test]
fn pings_go_on_after_the_wrap_around_of_their_clock() {
    let mut mesh = Mesh::new(1);
    mesh.now.mono = Instant(((1 << 32) - 100 * 10) * 100_000_000);
    let (silent, alive) = (mesh.session(0, None), mesh.session(0, None));
    let pings = |mesh: &Mesh, socket| mesh.said(socket).iter().filter(|s| **s == Said::Ping).count();
    mesh.pass(90);
    mesh.command(alive, AgentCommand::Ping);
    assert_eq!((pings(&mesh, silent), pings(&mesh, alive)), (0, 0), "no ping is due within half an interval");
    for _ in 0..320 {
        mesh.pass(1);
        if pings(&mesh, alive) == 1 && mesh.is_ready(alive) {
            mesh.command(alive, AgentCommand::Pong);
        }
    }
    assert_eq!(mesh.closed(silent), Some(CloseReason::PongTimeout));
    assert_eq!((mesh.closed(alive), pings(&mesh, alive)), (None, 1));
    // The previous Ping was answered on the other side of the wrap-around.
    mesh.command(alive, AgentCommand::Ping);
    assert_eq!(mesh.closed(alive), None);
    mesh.pass(44);
    mesh.command(alive, AgentCommand::Ping);
    assert_eq!(mesh.closed(alive), Some(CloseReason::PingTooSoon));
}

/// The interval of a session has 16 bits: for 1,256 years.
#[test]
fn a_user_is_refreshed_once_an_interval_after_their_wrap_around() {
    const SECONDS: u64 = limits::REFRESH_INTERVAL_SECONDS;
    // The last: refreshed a moment ago by a node whose clock is ahead.
    for (now, seen, touches) in [(65_540, 65_540, 0), (65_540, 65_539, 1), (65_536, 65_535, 1), (65_535, 65_536, 0)] {
        let mut mesh = Mesh::new(1);
        mesh.now.unix_us = now * SECONDS * 1_000_000 + 1;
        let uaid = mesh.user_seen(0, UnixSeconds(seen * SECONDS));
        mesh.session(0, Some(uaid));
        let touched = mesh.store.seen.iter().filter(|op| **op == "touch").count();
        assert_eq!(touched, touches, "interval {now}, last seen in interval {seen}");
    }
}

#[test]
fn refused_frames_go_out_again_in_order_over_the_wrap_around_of_their_names() {
    let mut mesh = Mesh::new(1);
    // The first window to begin gets its names from the last three on.
    mesh.machines[0].active_sessions.set_emissions(0u32.wrapping_sub(1_024 + 3));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let sent: Vec<Stamp> = (0..6).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    let names: Vec<u32> = mesh.sockets[socket.0].emissions.iter().map(|emission| emission.0).collect();
    assert!(names.contains(&u32::MAX) && names.contains(&1), "{names:?}");
    mesh.block(socket);
    mesh.unsend(socket, 5);
    mesh.unblock(socket);
    assert_eq!(mesh.notifications(socket)[6..], sent[1..]);
}

/// Names count on when a session has nothing under way for a moment: a frame that comes back then is not taken for one
/// of the next window.
#[test]
fn no_two_frames_of_a_session_have_one_name() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    for _ in 0..2 {
        let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
        for _ in 0..1_100 {
            mesh.accept(0, lasting(uaid, 0), Disposition::Direct);
        }
        mesh.ack(socket, stamp);
    }
    let mut names: Vec<u32> = mesh.sockets[socket.0].emissions.iter().map(|emission| emission.0).collect();
    let frames = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), frames);
}
