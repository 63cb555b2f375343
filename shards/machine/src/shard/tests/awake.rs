//! The end of what is held: directs that end while they are saved, and traffic that shows an awake radio.

use super::*;
use Disposition::{Direct, Stored};
use Urgency::{High, Low, Normal, VeryLow};

fn of(uaid: Uaid, urgency: Urgency) -> Message {
    Message { urgency, ..message(uaid) }
}

/// The save of a direct fails, and the direct is cancelled before the next attempt: no reply of storage is left that
/// would take the rows beside it out of the window.
#[test]
fn held_rows_leave_the_window_also_if_the_direct_beside_them_ends_unsaved() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let rows: Vec<_> = (0..60).map(|_| mesh.accept(0, of(uaid, Low), Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    mesh.turns();
    let direct = mesh.accept(0, of(uaid, Low), Direct);
    assert_eq!(mesh.notifications(socket), rows[..50], "the pace holds the others back");
    mesh.command(socket, SessionCommand::Urgency { minimum: Some(High) });
    let (shard, ticket, result) = mesh.store.replies.pop_front().expect("the minimum is written");
    mesh.store.mode = Mode::Failing;
    mesh.step(shard, Input::Stored { ticket, result });
    mesh.run();
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.machines[0].stats().messages_held, 0, "the direct is not saved");
    let cancel = Cancel { uaid, chid: CHANNEL, stamp: direct, topic: None };
    assert_eq!(mesh.request(0, SenderCommand::Cancel(Box::new(cancel))), "cancelled true");
    assert_eq!(mesh.machines[0].stats().messages_held, 10, "the rows leave the window");
    rows[..50].iter().for_each(|stamp| mesh.ack(socket, *stamp));
    mesh.set_minimum(socket, Low);
    mesh.turns();
    assert_eq!(mesh.notifications(socket), rows);
}

#[test]
fn the_message_that_raises_the_minimum_shows_an_awake_radio_too() {
    for before in [None, Some(Normal)] {
        let mut mesh = Mesh::with(1, |config| config.release_on_activity = TimeSpan::from_secs(5));
        let uaid = mesh.known_user(0);
        let socket = mesh.session(0, Some(uaid));
        before.map(|before| mesh.set_minimum(socket, before));
        mesh.pass(60);
        mesh.set_minimum(socket, High);
        let released = mesh.accept(0, of(uaid, Low), Direct);
        assert_eq!(mesh.notifications(socket), [released], "{before:?}");
        mesh.ack(socket, released);
        mesh.pass(6);
        mesh.accept(0, of(uaid, Low), Stored);
        assert_eq!(mesh.notifications(socket), [released], "{before:?}: the radio sleeps");
    }
}

/// The time in which nothing is held ends while the shard stands still. It goes on with another input than its timer.
#[test]
fn a_shard_that_stood_still_sends_nothing_below_the_minimum_to_a_sleeping_radio() {
    let mut mesh = Mesh::with(1, |config| config.release_on_activity = TimeSpan::from_secs(5));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.set_minimum(socket, High);
    mesh.pass(6);
    let rows: Vec<_> = (0..40).map(|_| mesh.accept(0, of(uaid, Low), Stored)).collect();
    let (shard, conn) = (mesh.shard_of(socket), mesh.sockets[socket.0].conn);
    mesh.step(shard, Input::Frame { conn });
    mesh.run();
    let sent = mesh.notifications(socket);
    assert!(sent.len() < rows.len() && rows.starts_with(&sent), "the radio is awake, and the turn was over");
    mesh.now.mono = mesh.now.mono.after(TimeSpan::from_secs(60));
    let Published::Accepted { stamp, .. } = mesh.post(0, of(uaid, High)) else { panic!("refused") };
    assert_eq!(mesh.notifications(socket), [sent, vec![stamp]].concat());
}

/// Returns two nodes whose user agents are awake for 5 s behind their traffic, and a user whose session on node 1 has
/// just named the minimum `High`.
fn awake_on_node_1() -> (Mesh, Uaid, Socket) {
    let mut mesh = Mesh::nodes(2, |config| config.release_on_activity = TimeSpan::from_secs(5));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(1, Some(uaid));
    mesh.set_minimum(socket, High);
    (mesh, uaid, socket)
}

/// Lets the radio of the user agent sleep, and then the user agent speaks.
fn speak_after(mesh: &mut Mesh, socket: Socket, seconds: u64) {
    mesh.pass(seconds);
    let (shard, conn) = (mesh.shard_of(socket), mesh.sockets[socket.0].conn);
    mesh.step(shard, Input::Frame { conn });
    mesh.run();
}

/// Number of checks of storage since the last call.
fn checks(mesh: &mut Mesh) -> usize {
    std::mem::take(&mut mesh.store.seen).iter().filter(|kind| **kind == "topics").count()
}

/// The message is held until the user agent speaks.
fn comes_with_the_next_traffic(mesh: &mut Mesh, socket: Socket, held: Stamp) {
    assert_eq!(mesh.notifications(socket), []);
    speak_after(mesh, socket, 1);
    assert_eq!(mesh.notifications(socket), [held]);
}

/// Posts on node 0, which has read the user and pushed the message, and leaves its store at storage.
fn post_until_stored(mesh: &mut Mesh, message: Message) -> (usize, u32) {
    mesh.store.mode = Mode::Held;
    let post = mesh.start_post(0, message);
    mesh.store.release_one();
    mesh.run();
    mesh.store.mode = Mode::Prompt;
    assert!(matches!(mesh.store.held.front(), Some((0, _, StoreOp::Publish { .. }))), "{:?}", mesh.store.held);
    post
}

/// Carries the store of a POST out, and returns its stamp.
fn stored(mesh: &mut Mesh, post: (usize, u32)) -> Stamp {
    mesh.store.release();
    mesh.run();
    match mesh.answer_to(post) {
        Some(Published::Accepted { stamp, disposition: Stored }) => stamp,
        other => panic!("{other:?}"),
    }
}

/// A socket that is blocked refuses the push, and a check of the session comes before the store.
#[test]
fn a_push_that_an_awake_session_refused_goes_out_when_it_is_stored() {
    for asleep in [false, true] {
        let (mut mesh, uaid, socket) = awake_on_node_1();
        mesh.block(socket);
        let post = post_until_stored(&mut mesh, of(uaid, Low));
        checks(&mut mesh);
        mesh.unblock(socket);
        assert_eq!(checks(&mut mesh), 1, "it finds nothing");
        mesh.pass(if asleep { 6 } else { 1 });
        let sent = stored(&mut mesh, post);
        assert_eq!(checks(&mut mesh), 1, "one read for the one message");
        assert_eq!(mesh.notifications(socket), if asleep { vec![] } else { vec![sent] });
        speak_after(&mut mesh, socket, 1);
        assert_eq!(mesh.notifications(socket), [sent], "asleep: {asleep}");
    }
}

/// A session holds a message of another node, and a check of it comes before the store of that node.
#[test]
fn a_check_before_the_store_of_another_node_does_not_forget_what_is_held() {
    let (mut mesh, uaid, socket) = awake_on_node_1();
    mesh.pass(6);
    let post = post_until_stored(&mut mesh, of(uaid, Low));
    let conn = mesh.conn();
    mesh.step(1, Input::Command { conn, command: notify(uaid).into() });
    checks(&mut mesh);
    mesh.run();
    let held = stored(&mut mesh, post);
    assert_eq!((checks(&mut mesh), mesh.notifications(socket)), (0, vec![]), "it is held");
    speak_after(&mut mesh, socket, 6);
    assert_eq!(mesh.notifications(socket), [held]);
    mesh.ack(socket, held);
    checks(&mut mesh);
    (0..20).for_each(|_| speak_after(&mut mesh, socket, 1));
    assert_eq!(checks(&mut mesh), 0, "traffic of an awake radio costs no read, although more may come");
    mesh.pass(60);
    (0..20).for_each(|_| speak_after(&mut mesh, socket, 10));
    assert!(checks(&mut mesh) <= 1, "nothing is held: traffic costs no read");
}

/// The session reads all of storage with the lower minimum, and the other node reads the higher one behind its store.
#[test]
fn a_minimum_that_falls_and_rises_while_another_node_stores_does_not_forget_what_is_held() {
    let (mut mesh, uaid, socket) = awake_on_node_1();
    mesh.pass(6);
    let post = post_until_stored(&mut mesh, of(uaid, Low));
    [VeryLow, High].iter().for_each(|minimum| _ = mesh.set_minimum(socket, *minimum));
    mesh.pass(6);
    let held = stored(&mut mesh, post);
    comes_with_the_next_traffic(&mut mesh, socket, held);
}

/// The user connects between the first read of the user and the store, and its first check comes before the store.
#[test]
fn a_session_that_comes_while_another_node_stores_hears_of_the_message() {
    let (mut mesh, uaid, left) = awake_on_node_1();
    mesh.close(left);
    let post = post_until_stored(&mut mesh, of(uaid, Low));
    let socket = mesh.session(1, Some(uaid));
    mesh.pass(6);
    let held = stored(&mut mesh, post);
    comes_with_the_next_traffic(&mut mesh, socket, held);
}

/// The push does not arrive: the session hears of the message when its node is reached again.
#[test]
fn a_session_whose_node_was_not_reached_hears_of_the_message() {
    let (mut mesh, uaid, socket) = awake_on_node_1();
    mesh.lines[1] = Line::Down;
    mesh.pass(6);
    let held = mesh.accept(0, of(uaid, Low), Stored);
    mesh.lines[1] = Line::Up;
    mesh.call_again();
    comes_with_the_next_traffic(&mut mesh, socket, held);
}
