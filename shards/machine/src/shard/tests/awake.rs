//! The end of what is held: directs that end while they are saved, and traffic that shows an awake radio.

use super::*;
use Disposition::{Direct, Stored};
use Urgency::{High, Low, Normal};

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
