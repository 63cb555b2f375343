//! Topic replacement in every place a message can be (RFC 8030 section 5.4).

use super::*;

#[test]
fn only_the_latest_stored_one_is_delivered() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.accept(0, topical(uaid, "t"), Disposition::Stored);
    let newer = mesh.accept(0, topical(uaid, "t"), Disposition::Stored);
    let other = mesh.accept(0, topical(uaid, "u"), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [newer, other]);
}

#[test]
fn a_newer_direct_ends_the_older_one_wherever_it_is() {
    for wait in [0, 12] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        let socket = mesh.session(0, Some(uaid));
        mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
        mesh.pass(wait);
        let newer = mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
        mesh.close(socket);
        let again = mesh.session(0, Some(uaid));
        assert_eq!(mesh.notifications(again), [newer]);
        assert!(mesh.ledger.is_empty());
    }
}

#[test]
fn an_older_spill_does_not_displace_a_newer_row() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
    let newer = mesh.accept(0, topical(uaid, "t"), Disposition::Stored);
    mesh.pass(12);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [newer]);
}

#[test]
fn an_ack_of_the_older_version_leaves_the_newer_row() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let older = mesh.accept(0, topical(uaid, "t"), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    let newer = mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [older, newer]);
    mesh.ack(socket, older);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [newer]);
}

#[test]
fn a_parked_one_ends_with_the_next_of_its_topic() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
    mesh.pass(302);
    let newer = mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
    mesh.ack(socket, newer);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert!(mesh.notifications(again).is_empty());
}

#[test]
fn a_stored_one_ends_the_older_direct_and_what_departs() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
    let newer = mesh.accept(0, topical(uaid, "t"), Disposition::Stored);
    assert!(mesh.ledger.is_empty(), "the older one is replaced");
    assert_eq!(mesh.notifications(socket).last(), Some(&newer), "and makes room for the newer");
    mesh.ack(socket, newer);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert!(mesh.notifications(again).is_empty());

    let departing = mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
    mesh.store.mode = Mode::Failing;
    mesh.close(again);
    mesh.store.mode = Mode::Prompt;
    let newest = mesh.start_post(0, topical(uaid, "t"));
    mesh.pass(3);
    assert!(matches!(mesh.answer_to(newest), Some(Published::Accepted { .. })));
    let last = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(last).len(), 1);
    assert_ne!(mesh.notifications(last), [departing]);
}

/// The older one is in the ledger only, or also on its way to storage.
#[test]
fn a_kill_during_a_replacement_leaves_the_older_message_or_the_newer_one() {
    for wait in [0, 12] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        mesh.session(0, Some(uaid));
        mesh.accept(0, topical(uaid, "t"), Disposition::Direct);
        mesh.store.mode = Mode::Held;
        mesh.pass(wait);
        let conn = mesh.conn();
        let publish = Publish { uaid, chid: CHANNEL, message: Ok(Arc::new(topical(uaid, "t"))) };
        let command = SenderCommand::Publish(Box::new(publish));
        mesh.step_watched(0, Input::Command { conn, command: command.into() }, |mesh| {
            assert!(!mesh.ledger.is_empty(), "after {wait} s the ledger held neither of the two");
        });
        assert!(matches!(mesh.answer_to((0, conn.slot)), Some(Published::Accepted { .. })));
        assert_eq!(mesh.ledger.len(), 1, "the older one has ended");
    }
}
