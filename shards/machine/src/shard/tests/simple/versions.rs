//! Only the highest version of a channel is sent, kept and waited for, in every place it can be.

use super::*;

#[test]
fn a_live_session_gets_an_update_at_once_and_its_ack_ends_it() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.simple(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.store.contact_of(uaid).mode, Reach::Simple, "written with the first register");
    let sent = mesh.accept(0, update(uaid, 7), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [sent]);
    mesh.ack_version(socket, 6);
    assert_eq!(mesh.ledger.len(), 1, "a lower version ends nothing");
    mesh.ack_version(socket, 7);
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn an_ack_of_a_higher_version_ends_the_lower_one_of_its_channel_only() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.accept(0, update(uaid, 7), Disposition::Direct);
    let other = mesh.accept(0, update_on(uaid, OTHER, 3), Disposition::Direct);
    mesh.ack_version(socket, 100);
    let left: Vec<Stamp> = mesh.ledger.values().map(|message| message.stamp).collect();
    assert_eq!(left, [other]);
}

#[test]
fn of_what_was_stored_only_the_highest_version_is_delivered() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.simple_user(1, None);
    mesh.accept(0, update(uaid, 5), Disposition::Stored);
    let newest = mesh.accept(1, update(uaid, 9), Disposition::Stored);
    mesh.accept(0, update(uaid, 9), Disposition::Stored);
    mesh.accept(0, update(uaid, 8), Disposition::Stored);
    let other = mesh.accept(0, update_on(uaid, OTHER, 1), Disposition::Stored);
    let socket = mesh.simple(0, Some(uaid));
    assert_eq!(mesh.shard_of(socket), 1, "its mode goes with the socket to its owner");
    assert_eq!(mesh.notifications(socket), [newest, other]);
    mesh.command(
        socket,
        SessionCommand::AckVersions(vec![
            AckVersion { chid: CHANNEL, version: 9 },
            AckVersion { chid: OTHER, version: 1 },
        ]),
    );
    mesh.run();
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn a_version_that_is_not_higher_than_the_one_sent_is_accepted_and_screened_out() {
    for wait in [0, 12, 302] {
        let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
        let uaid = mesh.simple_user(0, None);
        let socket = mesh.simple(0, Some(uaid));
        mesh.accept(0, update(uaid, 5), Disposition::Direct);
        mesh.pass(wait);
        let before = mesh.notifications(socket).len();
        for version in [5, 4] {
            mesh.accept(0, update(uaid, version), Disposition::Stored);
        }
        assert_eq!(mesh.notifications(socket).len(), before, "after {wait} s");
        assert_eq!(mesh.machines[0].stats().updates_screened, 2);
        mesh.ack_version(socket, 5);
        assert!(mesh.nothing_left(uaid));
    }
}

#[test]
fn a_higher_version_ends_the_lower_one_wherever_it_is() {
    for wait in [0, 12, 302] {
        let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
        let uaid = mesh.simple_user(0, None);
        let socket = mesh.simple(0, Some(uaid));
        mesh.accept(0, update(uaid, 5), Disposition::Direct);
        mesh.pass(wait);
        let newest = mesh.accept(0, update(uaid, 6), Disposition::Direct);
        mesh.close(socket);
        let again = mesh.simple(0, Some(uaid));
        assert_eq!(mesh.notifications(again), [newest], "after {wait} s");
        assert!(mesh.ledger.is_empty());
    }
}

#[test]
fn an_unacked_version_is_saved_when_the_session_ends_and_a_lower_one_does_not_replace_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    let highest = mesh.accept(0, update(uaid, 9), Disposition::Direct);
    mesh.store.mode = Mode::Failing;
    mesh.close(socket);
    mesh.store.mode = Mode::Prompt;
    // The save is tried again behind this one.
    let lower = mesh.start_post(0, update(uaid, 2));
    mesh.pass(3);
    assert!(matches!(mesh.answer_to(lower), Some(Published::Accepted { .. })));
    let again = mesh.simple(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [highest]);
    mesh.ack_version(again, 9);
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn versions_that_come_behind_a_full_window_are_stored_and_the_highest_comes_out() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    let first = mesh.accept(0, update_on(uaid, OTHER, 1), Disposition::Direct);
    mesh.accept(0, update(uaid, 5), Disposition::Stored);
    let highest = mesh.accept(0, update(uaid, 6), Disposition::Stored);
    mesh.accept(0, update(uaid, 4), Disposition::Stored);
    mesh.command(socket, SessionCommand::AckVersions(vec![AckVersion { chid: OTHER, version: 1 }]));
    mesh.run();
    assert_eq!(mesh.notifications(socket), [first, highest]);
}

#[test]
fn a_version_acked_while_storage_is_read_is_not_sent_again() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    mesh.accept(0, update(uaid, 5), Disposition::Stored);
    let socket = mesh.open(0);
    mesh.say_hello_as(socket, Some(uaid), Reach::Simple, None);
    // The hello is answered, and the page is still at storage.
    let (shard, ticket, result) = mesh.store.replies.pop_front().expect("the user was read");
    mesh.step(shard, Input::Stored { ticket, result });
    mesh.command(socket, SessionCommand::AckVersions(vec![AckVersion { chid: CHANNEL, version: 5 }]));
    mesh.run();
    assert!(mesh.notifications(socket).is_empty());
    assert!(mesh.nothing_left(uaid));
    // Later updates are new, with any version.
    let lower = mesh.accept(0, update(uaid, 3), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [lower]);
}

#[test]
fn durable_keeps_only_the_newest_too() {
    let mut mesh = Mesh::with(1, |config| config.durable = true);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.store.mode = Mode::Held;
    mesh.start_post(0, update(uaid, 9));
    mesh.start_post(0, update(uaid, 4));
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.notifications(socket).len(), 1, "the lower version is not sent behind the higher");
    mesh.ack_version(socket, 9);
    assert!(mesh.nothing_left(uaid));
}

#[test]
fn a_channel_that_is_registered_again_has_seen_no_version() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.accept(0, update(uaid, 9), Disposition::Direct);
    // It was retried in vain and waits in storage for the next session.
    mesh.pass(302);
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 0 });
    mesh.run();
    mesh.register(socket, CHANNEL);
    let lower = mesh.accept(0, update(uaid, 1), Disposition::Direct);
    assert_eq!(mesh.notifications(socket).last(), Some(&lower));
}

#[test]
fn what_was_acked_of_a_channel_says_nothing_when_it_is_registered_anew() {
    let mut mesh = Mesh::with(1, |config| config.window = 1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple_with(0, Some(uaid), Some("a"));
    mesh.accept(0, update(uaid, 5), Disposition::Direct);
    mesh.accept(0, update_on(uaid, OTHER, 1), Disposition::Stored);
    mesh.ack_version(socket, 5);
    assert_eq!(mesh.notifications(socket).len(), 2);
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    mesh.register(socket, CHANNEL);
    let low = mesh.accept(0, update(uaid, 1), Disposition::Stored);
    mesh.command(socket, SessionCommand::AckVersions(vec![AckVersion { chid: OTHER, version: 1 }]));
    mesh.run();
    assert_eq!(mesh.notifications(socket).last(), Some(&low));
}

#[test]
fn an_ack_of_a_version_that_waits_for_room_ends_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.simple_user(0, None);
    let socket = mesh.simple(0, Some(uaid));
    mesh.accept(0, update(uaid, 7), Disposition::Direct);
    let other = mesh.accept(0, update_on(uaid, OTHER, 3), Disposition::Direct);
    mesh.store.mode = Mode::Full;
    mesh.close(socket);
    let late = mesh.simple(0, Some(uaid));
    mesh.pass(3);
    // Its user agent had read both from the connection before.
    mesh.ack_version(late, 7);
    assert_eq!(mesh.ledger.len(), 1);
    assert_eq!(mesh.machines[0].stats().acks_unknown, 0);
    mesh.store.mode = Mode::Prompt;
    mesh.pass(3);
    assert_eq!(mesh.notifications(late), [other], "what was acked is never sent again");
}
