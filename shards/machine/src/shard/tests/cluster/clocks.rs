//! Clocks of nodes: the time that a write may take, a clock that is stopped, and low water beside both.

use super::*;

/// Low water of every node may pass a clock that is older than a write may take, for any cause of the delay.
#[test]
fn the_time_of_a_write_counts_from_the_stamp_of_its_message() {
    for (pushing, writing, in_time) in [(25, 10, false), (10, 10, true)] {
        let mut mesh = Mesh::nodes(2, |_| {});
        let (uaid, _) = user_on(&mut mesh, 1);
        mesh.lines[1] = Line::Held;
        let post = mesh.start_post(0, message(uaid));
        mesh.run();
        mesh.pass(pushing);
        mesh.store.mode = Mode::Held;
        mesh.lines[1] = Line::Down;
        mesh.run();
        assert_eq!(mesh.store.held.len(), 1, "the write");
        mesh.pass(writing);
        mesh.store.mode = Mode::Prompt;
        mesh.store.release();
        mesh.run();
        let accepted = matches!(mesh.answer_to(post), Some(Published::Accepted { disposition: Stored, .. }));
        assert_eq!(accepted, in_time, "{pushing} s and {writing} s: {:?}", mesh.answer_to(post));
        assert_eq!(mesh.store.rows_of(uaid).len(), 1, "a refused one may have taken effect");
    }
}

/// A node whose time is too far from the clocks of the database stamps nothing, and continues other work.
#[test]
fn a_node_whose_clock_is_stopped_refuses_what_needs_a_stamp_and_keeps_what_it_has() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 0);
    let away = mesh.known_user(0);
    let sent = mesh.accept(0, message(uaid), Direct);
    mesh.step(0, Input::ClockStopped(true));
    mesh.run();
    assert_eq!(mesh.post(0, message(uaid)), Published::Unavailable);
    assert_eq!(mesh.post(0, message(away)), Published::Unavailable);
    mesh.register(socket, THIRD);
    assert_eq!(count(&mesh, "register"), 0);
    let late = mesh.session(0, Some(away));
    assert_eq!(mesh.closed(late), Some(CloseReason::StorageDown));
    let pushed = mesh.accept(1, message(uaid), Direct);
    assert_eq!(mesh.notifications(socket), [sent, pushed], "what another node stamped is sent");
    mesh.ack(socket, sent);
    mesh.ack(socket, pushed);
    mesh.step(0, Input::ClockStopped(false));
    mesh.run();
    mesh.accept(0, message(uaid), Direct);
    let back = mesh.session(0, Some(away));
    assert_eq!(mesh.closed(back), None);
}

/// A write that took very long, or came by a clock that was far behind: no page shows a message row at or below low
/// water, so the message is stored once more as a row that low water does not cover.
#[test]
fn a_message_that_turns_up_below_low_water_is_saved_again_and_delivered() {
    for save_fails in [false, true] {
        let mut mesh = Mesh::nodes(2, |_| {});
        let uaid = mesh.known_user(0);
        mesh.store.mode = Mode::Held;
        let post = mesh.start_post(0, message(uaid));
        mesh.store.release_one();
        answered_and_held(&mut mesh);
        assert_eq!((count(&mesh, "load"), count(&mesh, "publish")), (1, 1), "the write is on its way");
        mesh.store.raise_low_water(uaid, Clock(mesh.now.unix_us + 1_000_000));
        mesh.store.release();
        answered_and_held(&mut mesh);
        mesh.store.release();
        if save_fails {
            mesh.store.mode = Mode::Failing;
            mesh.run();
            assert_eq!(mesh.answer_to(post), Some(Published::Unavailable), "nobody would ever see it");
        } else {
            mesh.run();
            assert_eq!((count(&mesh, "save"), count(&mesh, "load")), (1, 3), "the user is read again behind it");
            assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { .. })));
            let socket = mesh.session(1, Some(uaid));
            assert_eq!(mesh.notifications(socket).len(), 1);
        }
    }
}

#[test]
fn an_accepted_message_below_low_water_is_saved_until_it_is_stored() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    mesh.store.mode = Mode::Held;
    let post = mesh.start_post(0, message(uaid));
    mesh.store.release_one();
    answered_and_held(&mut mesh);
    mesh.store.raise_low_water(uaid, Clock(mesh.now.unix_us + 1_000_000));
    mesh.store.release();
    // The look behind the write fails, so the POST is accepted without it.
    mesh.store.mode = Mode::Failing;
    mesh.run();
    assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { .. })));
    // The next look finds low water, and storage has no room for the save.
    mesh.store.mode = Mode::Full;
    mesh.pass(60);
    assert!(count(&mesh, "save") > 0);
    mesh.store.mode = Mode::Prompt;
    mesh.pass(60);
    let socket = mesh.session(1, Some(uaid));
    assert_eq!(mesh.notifications(socket).len(), 1);
}

#[test]
fn a_node_whose_clock_is_stopped_vouches_for_no_low_water() {
    for stopped in [false, true] {
        let mut mesh = Mesh::nodes(2, |_| {});
        let (uaid, socket) = user_on(&mut mesh, 0);
        mesh.step(0, Input::ClockStopped(stopped));
        mesh.lines[0] = Line::Down;
        let stored = mesh.accept(1, message(uaid), Stored);
        assert_eq!(mesh.request(0, notify(uaid)), "Done");
        assert_eq!(mesh.notifications(socket), [stored]);
        mesh.ack(socket, stored);
        mesh.pass(30);
        assert!(mesh.store.rows_of(uaid).is_empty());
        let low_water = mesh.store.low_water_of(uaid);
        assert_eq!(low_water == Clock(0), stopped, "{low_water:?}");
    }
}
