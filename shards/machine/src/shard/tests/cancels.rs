//! Effects of a cancel or an unregister, also if storage fails or is slow.

use super::*;

#[test]
fn cancelled_messages_come_no_more_in_none_of_their_forms() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let cancel = |stamp| SenderCommand::Cancel(Box::new(Cancel { uaid, chid: CHANNEL, stamp, topic: None }));
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    assert_eq!(mesh.request(0, cancel(stored)), "cancelled true");
    assert!(mesh.store.rows_of(uaid).is_empty());
    let socket = mesh.session(1, Some(uaid));
    let direct = mesh.accept(0, message(uaid), Disposition::Direct);
    assert_eq!(mesh.request(1, cancel(direct)), "cancelled true");
    assert!(mesh.ledger.is_empty());
    let spilled = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.pass(12);
    assert_eq!(mesh.store.rows_of(uaid).len(), 1);
    assert_eq!(mesh.request(0, cancel(spilled)), "cancelled true");
    mesh.close(socket);
    let again = mesh.session(1, Some(uaid));
    assert!(mesh.notifications(again).is_empty());
}

#[test]
fn a_cancelled_row_is_not_read_back_while_its_delete_is_on_its_way() {
    let mut mesh = Mesh::with(1, |config| config.window = 2);
    let uaid = mesh.known_user(0);
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Held;
    let conn = mesh.conn();
    let cancel = Cancel { uaid, chid: CHANNEL, stamp: stored, topic: None };
    mesh.step(0, Input::Command { conn, command: SenderCommand::Cancel(Box::new(cancel)).into() });
    let conn = mesh.conn();
    mesh.step(0, Input::Command { conn, command: notify(uaid).into() });
    mesh.store.held.rotate_left(1);
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.notifications(socket), [stored]);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_cancel_whose_delete_fails_is_carried_out_later_all_the_same() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stored = mesh.accept(0, message(uaid), Disposition::Stored);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Failing;
    let cancel = Cancel { uaid, chid: CHANNEL, stamp: stored, topic: None };
    assert_eq!(mesh.request(0, SenderCommand::Cancel(Box::new(cancel))), "cancelled false");
    mesh.ack(socket, stored);
    mesh.store.mode = Mode::Prompt;
    mesh.pass(3);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn an_unregister_that_storage_may_have_done_accepts_nothing_more() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Lossy;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    assert_eq!(mesh.said(socket).last(), Some(&Said::Unregistered(500)));
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
}

#[test]
fn a_register_that_storage_may_have_done_can_be_undone() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.store.mode = Mode::Lossy;
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(500)));
    mesh.store.mode = Mode::Prompt;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    mesh.close(socket);
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
}

#[test]
fn unregister_drops_what_is_pending_and_registering_again_revives_nothing() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, message(uaid), Disposition::Direct);
    let spilled = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.pass(12);
    mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.run();
    assert_eq!(mesh.said(socket).last(), Some(&Said::Unregistered(200)));
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
    mesh.register(socket, CHANNEL);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert!(mesh.notifications(again).is_empty(), "{spilled:?} is gone with its channel");
    assert!(mesh.ledger.is_empty());
}
