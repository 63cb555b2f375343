//! Messages that a user agent is sent again and again and never acks (decision 0021).

use super::*;
use crate::message::Topic;

/// Connects a user agent, lets it receive, and disconnects it without an ack, as often as given. Returns the number of
/// notifications that it received.
fn comes_and_goes(mesh: &mut Mesh, uaid: Uaid, times: usize) -> usize {
    let mut heard = 0;
    for _ in 0..times {
        let socket = mesh.session(0, Some(uaid));
        heard += mesh.notifications(socket).len();
        mesh.close(socket);
    }
    heard
}

#[test]
fn a_message_that_is_never_acked_ends_after_its_attempts() {
    for live in [true, false] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        let mut heard = 0;
        if live {
            let socket = mesh.session(0, Some(uaid));
            mesh.accept(0, message(uaid), Disposition::Direct);
            heard = mesh.notifications(socket).len();
            mesh.close(socket);
        } else {
            mesh.accept(0, message(uaid), Disposition::Stored);
        }
        heard += comes_and_goes(&mut mesh, uaid, 30);
        assert_eq!(heard, 10, "live: {live}");
        assert!(mesh.store.rows_of(uaid).is_empty() && mesh.ledger.is_empty());
    }
}

#[test]
fn the_count_survives_restarts_and_costs_nothing_for_what_is_acked() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.accept(0, message(uaid), Disposition::Stored);
    let mut heard = 0;
    for _ in 0..6 {
        heard += comes_and_goes(&mut mesh, uaid, 3);
        mesh.restart();
    }
    assert_eq!(heard, 10);
    mesh.store.seen.clear();
    for _ in 0..5 {
        mesh.accept(0, message(uaid), Disposition::Stored);
        let socket = mesh.session(0, Some(uaid));
        let direct = mesh.accept(0, message(uaid), Disposition::Direct);
        for stamp in mesh.notifications(socket) {
            mesh.ack(socket, stamp);
        }
        assert_eq!(mesh.notifications(socket).last(), Some(&direct));
        mesh.close(socket);
    }
    assert!(!mesh.store.seen.contains(&"tried"));
}

#[test]
fn retries_count_and_one_or_two_sessions_are_never_enough() {
    let mut mesh = Mesh::with(1, |config| (config.attempts_max, config.ping_interval) = (5, TimeSpan(0)));
    let uaid = mesh.known_user(0);
    let lasting = Message { ttl: 1 << 20, ..message(uaid) };
    let stamp = mesh.accept(0, lasting, Disposition::Stored);
    // Four deliveries each: the first and three retries; then it is deferred.
    for _ in 0..2 {
        let socket = mesh.session(0, Some(uaid));
        mesh.pass(300);
        assert_eq!(mesh.notifications(socket), [stamp; 4]);
        mesh.close(socket);
    }
    // Eight deliveries over two sessions. The third session is sent it, and is not asked twice.
    let socket = mesh.session(0, Some(uaid));
    mesh.pass(300);
    assert_eq!(mesh.notifications(socket), [stamp]);
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.machines[0].stats().unacked_ended, 1);
    // Its ack comes too late to mean anything.
    mesh.ack(socket, stamp);
    assert_eq!(mesh.machines[0].stats().acks_unknown, 1);
}

#[test]
fn a_direct_in_the_ledger_ends_by_its_attempts_too() {
    let mut mesh = Mesh::with(1, |config| (config.attempts_max, config.retry_after) = (3, TimeSpan::from_secs(2)));
    let uaid = mesh.known_user(0);
    for topic in [None, Topic::new(b"t")] {
        let wanted = Message { topic, receipt: true, ..message(uaid) };
        let socket = mesh.session(0, Some(uaid));
        let stamp = mesh.accept(0, wanted.clone(), Disposition::Direct);
        mesh.close(socket);
        let mut heard = 1;
        for _ in 0..4 {
            let socket = mesh.session(0, Some(uaid));
            heard += mesh.notifications(socket).iter().filter(|seen| **seen == stamp).count();
            mesh.close(socket);
        }
        assert_eq!(heard, 3);
        assert_eq!(mesh.receipt(0, (&wanted, stamp)), ReceiptAnswer::Ended(Outcome::Unacked));
    }
    assert!(mesh.store.rows_of(uaid).is_empty() && mesh.ledger.is_empty());
}

/// Its retry and the end of its relay, which has not answered a Ping, come in the same step.
#[test]
fn what_is_said_to_a_relay_that_ends_is_no_delivery() {
    let mut mesh = Mesh::with(1, |config| {
        (config.ping_interval, config.spill_after) = (TimeSpan::from_secs(20), TimeSpan::from_secs(200));
    });
    let uaid = mesh.known_user(0);
    let relay = mesh.open(0);
    mesh.command(relay, RelayCommand::Open);
    mesh.run();
    mesh.command(relay, RelayCommand::Attach(Box::new(Hello::new(Some(uaid), uaid))));
    mesh.run();
    mesh.accept(0, message(uaid), Disposition::Direct);
    while !mesh.said(relay).contains(&Said::Ping) {
        mesh.pass_step();
    }
    mesh.store.mode = Mode::Failing;
    mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(100));
    mesh.step(0, Input::Timeout);
    assert_eq!(mesh.closed(relay), Some(CloseReason::PongTimeout));
    mesh.store.mode = Mode::Prompt;
    mesh.run();
    mesh.pass(3);
    let tries = mesh.store.rows_of(uaid)[0].tries;
    assert_eq!(tries.deliveries(), 1, "it went out once");
}

/// Its socket takes bytes again after the time of a Pong is over.
#[test]
fn what_a_relay_that_ends_had_refused_is_no_delivery() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan::from_secs(20));
    let uaid = mesh.known_user(0);
    let relay = mesh.open(0);
    mesh.command(relay, RelayCommand::Open);
    mesh.run();
    mesh.command(relay, RelayCommand::Attach(Box::new(Hello::new(Some(uaid), uaid))));
    mesh.run();
    while !mesh.said(relay).contains(&Said::Ping) {
        mesh.pass_step();
    }
    mesh.block(relay);
    mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(100));
    mesh.unblock(relay);
    assert_eq!(mesh.closed(relay), Some(CloseReason::PongTimeout));
    let tries = mesh.store.rows_of(uaid)[0].tries;
    assert_eq!(tries.deliveries(), 0, "it never went out");
}

#[test]
fn without_a_number_a_message_waits_for_its_ack_until_it_expires() {
    let mut mesh = Mesh::with(1, |config| config.attempts_max = 0);
    let uaid = mesh.known_user(0);
    mesh.accept(0, message(uaid), Disposition::Stored);
    assert_eq!(comes_and_goes(&mut mesh, uaid, 40), 40);
    assert!(!mesh.store.seen.contains(&"tried"));
}
