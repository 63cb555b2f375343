//! Rounds in which every session reads storage, because notifications of another node are lost (decision 0037).

use super::*;

/// A user on node 1, and a stored message that nothing tells it of.
fn hidden(mesh: &mut Mesh) -> (Uaid, Socket, Stamp) {
    let (uaid, socket) = user_on(mesh, 1);
    mesh.lines[1] = Line::Down;
    let stored = mesh.accept(0, lasting(uaid, FORTNIGHT), Stored);
    mesh.owed.clear();
    mesh.lines[1] = Line::Up;
    mesh.pass(30);
    assert!(mesh.notifications(socket).is_empty(), "nothing tells it");
    (uaid, socket, stored)
}

#[test]
fn a_round_finds_what_a_lost_notification_has_hidden() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket, stored) = hidden(&mut mesh);
    mesh.step(1, Input::ReadStorage);
    mesh.pass(1);
    assert_eq!(mesh.notifications(socket), [stored]);
    let direct = mesh.accept(1, message(uaid), Direct);
    assert_eq!(mesh.notifications(socket), [stored, direct]);
}

#[test]
fn a_session_whose_turn_has_not_come_reads_before_its_next_direct() {
    for landed in [0, 1] {
        let mut mesh = Mesh::nodes(2, |_| {});
        let (uaid, socket, stored) = hidden(&mut mesh);
        mesh.step(1, Input::ReadStorage);
        let next = mesh.accept(landed, message(uaid), Stored);
        mesh.run();
        assert_eq!(mesh.notifications(socket), [stored, next], "a POST to node {landed}");
    }
}

#[test]
fn a_round_that_storage_does_not_answer_goes_on_when_it_does() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (_, socket, stored) = hidden(&mut mesh);
    mesh.store.mode = Mode::Failing;
    mesh.step(1, Input::ReadStorage);
    mesh.pass(5);
    assert!(mesh.notifications(socket).is_empty());
    mesh.store.mode = Mode::Prompt;
    mesh.pass(5);
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn a_round_takes_its_time() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let users = 3 * limits::STORAGE_READS_PER_TURN as usize;
    for _ in 0..users {
        user_on(&mut mesh, 1);
    }
    mesh.pass(1);
    mesh.store.seen.clear();
    mesh.step(1, Input::ReadStorage);
    mesh.step(1, Input::Timeout);
    mesh.run();
    let first = count(&mesh, "topics");
    assert!(first > 0 && first <= limits::STORAGE_READS_PER_TURN as usize, "{first} reads at once");
    mesh.pass(2);
    assert!(count(&mesh, "topics") >= users);
}
