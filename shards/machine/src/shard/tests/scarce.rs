//! Room of storage is scarce: users and the addresses that made them have shares of what is left (`crate::share`).

use std::num::NonZeroU64;

use super::*;
use crate::ids::CallerAddress;

/// Fills storage with one message of another user, so that this part of a million bytes is left.
fn scarce(mesh: &mut Mesh, left: u64) {
    let other = mesh.known_user(0);
    mesh.store.put(Arc::new(Message { payload: vec![0; 1_000_000].into(), ..message(other) }));
    mesh.store.model.bound(mesh.store.model.bytes() + left);
}

fn large(uaid: Uaid) -> Message {
    Message { payload: vec![0; 1_000].into(), ..message(uaid) }
}

/// A user who was made from this address and has left.
fn made_from(mesh: &mut Mesh, address: u64) -> Uaid {
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    let caller = NonZeroU64::new(address).map(CallerAddress);
    mesh.command(socket, SessionCommand::Register { chid: CHANNEL, key: None, caller });
    mesh.close(socket);
    uaid
}

/// Posts until a message is refused; returns the number of accepted ones.
fn fill(mesh: &mut Mesh, uaid: Uaid) -> usize {
    for accepted in 0..1_000 {
        match mesh.post(0, large(uaid)) {
            Published::Accepted { disposition: Disposition::Stored, .. } => {}
            Published::Unavailable => return accepted,
            other => panic!("{other:?}"),
        }
    }
    panic!("nothing is refused");
}

#[test]
fn users_of_an_address_share_what_is_left() {
    let mut mesh = Mesh::new(1);
    let (first, second, late, elsewhere) =
        (made_from(&mut mesh, 7), made_from(&mut mesh, 7), made_from(&mut mesh, 7), made_from(&mut mesh, 8));
    scarce(&mut mesh, 200_000);
    let accepted = fill(&mut mesh, first);
    assert!((2..10).contains(&accepted), "{accepted}");
    assert!(fill(&mut mesh, second) <= 1, "its address has its share");
    mesh.accept(0, message(late), Disposition::Stored);
    mesh.accept(0, large(elsewhere), Disposition::Stored);
    assert_eq!(mesh.store.rows_of(first).len(), accepted, "nothing was removed");
    assert!(mesh.machines[0].stats().publishes_unavailable >= 2);
    // It comes back and acks: its address has room again.
    let session = mesh.session(0, Some(first));
    for stamp in mesh.notifications(session) {
        mesh.ack(session, stamp);
    }
    mesh.close(session);
    assert!(fill(&mut mesh, first) > 0);
}

#[test]
fn who_leaves_messages_unacked_gets_more_only_within_a_share() {
    let mut mesh = Mesh::new(1);
    let (uaid, absent) = (made_from(&mut mesh, 7), made_from(&mut mesh, 8));
    scarce(&mut mesh, 200_000);
    let session = mesh.session(0, Some(uaid));
    // Any answer to a write tells the shard.
    mesh.accept(0, message(absent), Disposition::Stored);
    for _ in 0..limits::UNACKED_IF_SCARCE {
        mesh.accept(0, large(uaid), Disposition::Direct);
    }
    let stored = fill(&mut mesh, uaid);
    assert!((2..10).contains(&stored), "{stored}");
    let stamps = mesh.notifications(session);
    assert_eq!(stamps.len(), limits::UNACKED_IF_SCARCE + stored, "what was accepted is sent at once");
    for stamp in stamps {
        mesh.ack(session, stamp);
    }
    mesh.accept(0, large(uaid), Disposition::Direct);
}
