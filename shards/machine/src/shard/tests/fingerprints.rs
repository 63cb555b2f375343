//! Two channels of one user that share a fingerprint: neither is refused, and no message of it ends, for the other.

use std::collections::HashMap;

use super::*;

/// Returns two channels with one fingerprint. Of 2^18 channels, some eight pairs have one.
fn namesakes(mesh: &Mesh) -> (Chid, Chid) {
    let mut seen = HashMap::new();
    (0..u64::MAX)
        .find_map(|n| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&n.to_be_bytes());
            seen.insert(mesh.placement.fingerprint(Chid(id)), Chid(id)).map(|earlier| (earlier, Chid(id)))
        })
        .expect("a 32-bit fingerprint repeats")
}

fn unregister(mesh: &mut Mesh, socket: Socket, chid: Chid) -> Option<Said> {
    mesh.command(socket, SessionCommand::Unregister { chid, code: 200 });
    mesh.run();
    mesh.said(socket).last().cloned()
}

fn for_channel(uaid: Uaid, chid: Chid) -> Message {
    Message { chid, ..message(uaid) }
}

#[test]
fn a_channel_is_not_refused_after_the_unregister_of_its_namesake() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let (kept, left) = namesakes(&mesh);
    mesh.register(socket, kept);
    mesh.register(socket, left);
    assert_eq!(unregister(&mut mesh, socket, left), Some(Said::Unregistered(200)));
    let direct = mesh.accept(0, for_channel(uaid, kept), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [direct]);
}

#[test]
fn a_channel_is_not_refused_after_the_unregister_of_a_namesake_that_was_never_registered() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let (kept, unknown) = namesakes(&mesh);
    mesh.register(socket, kept);
    unregister(&mut mesh, socket, unknown);
    mesh.accept(0, for_channel(uaid, kept), Disposition::Direct);
}

#[test]
fn a_held_message_stays_after_the_unregister_of_a_namesake_of_its_channel() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let (kept, left) = namesakes(&mesh);
    mesh.register(socket, kept);
    mesh.register(socket, left);
    assert_eq!(mesh.set_minimum(socket, Urgency::High), Some(200));
    let held = mesh.accept(0, for_channel(uaid, kept), Disposition::Stored);
    unregister(&mut mesh, socket, left);
    assert_eq!(mesh.set_minimum(socket, Urgency::VeryLow), Some(200));
    assert_eq!(mesh.notifications(socket), [held]);
}

/// Storage fails on the unregister, and has not said which channels are left.
#[test]
fn an_unregister_that_failed_costs_no_channel_a_message() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Failing;
    assert_eq!(unregister(&mut mesh, socket, CHANNEL), Some(Said::Unregistered(500)));
    mesh.store.mode = Mode::Prompt;
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    assert_eq!(mesh.notifications(socket), [stored], "storage has the channel");
    mesh.accept(0, message(uaid), Disposition::Direct);
}

#[test]
fn a_row_that_an_unsure_session_passed_over_comes_before_the_next_message() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.set_minimum(socket, Urgency::High), Some(200));
    let held = mesh.accept(0, message(uaid), Disposition::Stored);
    mesh.store.mode = Mode::Failing;
    assert_eq!(unregister(&mut mesh, socket, CHANNEL), Some(Said::Unregistered(500)));
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.set_minimum(socket, Urgency::VeryLow), Some(200));
    assert_eq!(mesh.notifications(socket), [], "the session does not know the channel");
    // Storage is asked about the channel, and nothing is written.
    mesh.post(0, lasting(uaid, 0));
    let next = mesh.accept(0, message(uaid), Disposition::Direct);
    let sent = mesh.notifications(socket);
    assert_eq!((sent.first(), sent.last()), (Some(&held), Some(&next)));
}

#[test]
fn a_session_that_ends_while_its_channels_are_listed_leaves_nothing_of_the_channel() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Held;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.store.release_one();
    mesh.close(socket);
    mesh.store.mode = Mode::Prompt;
    mesh.store.release();
    mesh.run();
    mesh.pass(12);
    assert!(mesh.ledger.is_empty() && mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
}
