//! Users without a channel, whose session ends on one node and begins on another.

use super::*;

fn unregister_all(mesh: &mut Mesh, socket: Socket) {
    for chid in [CHANNEL, OTHER] {
        mesh.command(socket, SessionCommand::Unregister { chid, code: 200 });
        mesh.run();
    }
}

#[test]
fn a_user_with_a_newer_session_on_another_node_stays() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, older) = user_on(&mut mesh, 0);
    unregister_all(&mut mesh, older);
    // The node of the older session does not hear of it.
    mesh.lines[0] = Line::Down;
    let newer = mesh.session(1, Some(uaid));
    mesh.close(older);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![]));
    mesh.register(newer, CHANNEL);
    let stamp = mesh.accept(0, message(uaid), Direct);
    assert_eq!(mesh.notifications(newer), [stamp]);
    mesh.close(newer);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
}

/// A hello on another node has read the user, and the end of the older session drops it before the row of the newer
/// one is there. Its register stands, and every node finds the session.
#[test]
fn a_register_behind_the_drop_on_another_node_stands() {
    for with_minimum in [false, true] {
        let mut mesh = Mesh::nodes(3, |_| {});
        let (uaid, older) = user_on(&mut mesh, 0);
        unregister_all(&mut mesh, older);
        mesh.lines[0] = Line::Down;
        mesh.store.mode = Mode::Held;
        let newer = mesh.session(1, Some(uaid));
        mesh.store.release_one();
        mesh.run();
        assert_eq!(mesh.said(newer), [Said::Hello(uaid)]);
        let (entering, rest) = (mesh.store.held.pop_front(), mesh.store.held.len());
        assert!(matches!(entering, Some((1, _, StoreOp::SetPresence { .. }))) && rest == 0);
        mesh.store.mode = Mode::Prompt;
        mesh.close(older);
        assert_eq!(mesh.store.channels_of(uaid), None, "no row told of the newer session");
        mesh.store.held.extend(entering);
        mesh.store.release();
        mesh.run();
        if with_minimum {
            assert_eq!(mesh.set_minimum(newer, Urgency::Normal), Some(200));
        }
        mesh.register(newer, CHANNEL);
        assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
        assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)]);
        assert_eq!(mesh.store.contact_of(uaid).minimum, with_minimum.then_some(Urgency::Normal));
        let stamp = mesh.accept(2, message(uaid), Direct);
        assert_eq!(mesh.notifications(newer), [stamp]);
    }
}

/// Only the node that dropped the user knows its UAID; elsewhere it is as one that is unknown.
#[test]
fn a_user_that_was_dropped_is_unknown_to_another_node() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 0);
    unregister_all(&mut mesh, socket);
    mesh.close(socket);
    assert_eq!(mesh.store.channels_of(uaid), None);
    let elsewhere = mesh.session(1, Some(uaid));
    assert_ne!(mesh.uaid_on(elsewhere), uaid);
    let back = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(back), uaid);
    mesh.register(back, CHANNEL);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)]);
    let stamp = mesh.accept(1, message(uaid), Direct);
    assert_eq!(mesh.notifications(back), [stamp]);
}
