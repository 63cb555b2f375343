//! A user has one mode: messages of the other mode are not sent, and a user that changes it starts over.

use super::*;

#[test]
fn neither_mode_is_sent_what_is_for_the_other() {
    let mut mesh = Mesh::new(2);
    let (simple, webpush) = (mesh.simple_user(0, None), mesh.known_user(0));
    for connected in [false, true] {
        let sockets = connected.then(|| (mesh.simple(0, Some(simple)), mesh.session(0, Some(webpush))));
        for ttl in [0, 60] {
            assert_eq!(mesh.post(1, lasting(simple, ttl)), Published::OtherMode);
        }
        assert_eq!(mesh.post(1, update(webpush, 1)), Published::OtherMode);
        if let Some((simple, webpush)) = sockets {
            assert!(mesh.notifications(simple).is_empty() && mesh.notifications(webpush).is_empty());
        }
    }
    let node_push = NodePush { message: Arc::new(message(simple)), stored: false };
    assert_eq!(mesh.request(0, NodeCommand::Push(Box::new(node_push))), "Busy");
    assert!(mesh.nothing_left(simple) && mesh.nothing_left(webpush));
}

#[test]
fn who_comes_back_in_the_other_mode_starts_over() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.simple(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid);
    assert!(mesh.notifications(socket).is_empty() && mesh.nothing_left(uaid));
    assert_eq!(mesh.store.contact_of(uaid).mode, Reach::Simple);
    mesh.accept(0, update(uaid, 1), Disposition::Direct);
    mesh.close(socket);
    let back = mesh.session(0, Some(uaid));
    assert!(mesh.notifications(back).is_empty() && mesh.nothing_left(uaid));
    assert_eq!(mesh.store.contact_of(uaid), Contact::default());
    assert_eq!(mesh.machines[0].stats().rows_other_mode, 2);
}

#[test]
fn acks_of_versions_mean_nothing_to_webpush_and_to_who_has_nothing() {
    let mut mesh = Mesh::new(1);
    let (simple, webpush) = (mesh.simple_user(0, None), mesh.known_user(0));
    let (idle, socket) = (mesh.simple(0, Some(simple)), mesh.session(0, Some(webpush)));
    mesh.accept(0, message(webpush), Disposition::Direct);
    mesh.ack_version(socket, u64::MAX);
    mesh.ack_version(idle, u64::MAX);
    assert_eq!((mesh.ledger.len(), mesh.machines[0].stats().acks_unknown), (1, 2));
}
