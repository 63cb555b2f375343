//! Disconnect, superseding, spill, retry, shutdown (ARCHITECTURE.md 3).

use super::*;

fn six(mesh: &mut Mesh, uaid: Uaid) -> Vec<Stamp> {
    (0..6).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect()
}

#[test]
fn six_unacked_directs_come_back_in_order_under_the_same_ids() {
    let mut mesh = Mesh::new(2);
    let uaid = mesh.known_user(1);
    let socket = mesh.session(0, Some(uaid));
    let stamps = six(&mut mesh, uaid);
    mesh.close(socket);
    assert!(mesh.ledger.is_empty(), "storage has them");
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again), stamps);
    for stamp in &stamps {
        mesh.ack(again, *stamp);
    }
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_hello_waits_until_the_previous_session_is_saved() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamps = six(&mut mesh, uaid);
    mesh.store.mode = Mode::Held;
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert!(mesh.said(again).is_empty());
    assert_eq!(mesh.ledger.len(), 6, "until storage has them the log does");
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.notifications(again), stamps);
    assert!(mesh.ledger.is_empty());
}

#[test]
fn a_save_that_fails_is_tried_again_and_nothing_is_lost() {
    for mode in [Mode::Failing, Mode::Lossy] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        let socket = mesh.session(0, Some(uaid));
        let stamps = six(&mut mesh, uaid);
        mesh.store.mode = mode;
        mesh.close(socket);
        assert_eq!(mesh.ledger.len(), 6);
        let early = mesh.session(0, Some(uaid));
        mesh.pass(2);
        assert_eq!(mesh.closed(early), Some(CloseReason::StorageDown), "not sure is never unknown");
        mesh.store.mode = Mode::Prompt;
        mesh.pass(2);
        let again = mesh.session(0, Some(uaid));
        assert_eq!(mesh.notifications(again), stamps);
        assert!(mesh.ledger.is_empty());
    }
}

#[test]
fn the_newer_session_wins_and_the_ledger_goes_with_the_user() {
    for shard in [0, 1] {
        let mut mesh = Mesh::new(2);
        let uaid = mesh.known_user(1);
        let older = mesh.session(1, Some(uaid));
        let stamps = six(&mut mesh, uaid);
        let newer = mesh.session(shard, Some(uaid));
        assert_eq!(mesh.closed(older), Some(CloseReason::Superseded));
        assert_eq!(mesh.notifications(newer), stamps);
        mesh.accept(0, message(uaid), Disposition::Direct);
        assert_eq!(mesh.machines[1].stats().sessions, 1);
    }
}

#[test]
fn an_unacked_direct_spills_and_its_late_ack_deletes_the_row() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.pass(11);
    assert!(mesh.ledger.is_empty());
    assert_eq!(mesh.store.rows_of(uaid).len(), 1);
    mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.ack(socket, stamp);
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.notifications(socket).len(), 2, "a spill is not a second delivery");
}

#[test]
fn an_ack_that_overtakes_its_spill_still_deletes_the_row() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Held;
    mesh.pass(11);
    mesh.ack(socket, stamp);
    assert!(mesh.ledger.is_empty());
    mesh.store.release();
    mesh.run();
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_spill_whose_reply_was_lost_leaves_no_row_behind_an_ack() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Lossy;
    mesh.pass(11);
    assert_eq!(mesh.ledger.len(), 1, "not sure: the log keeps it");
    mesh.store.mode = Mode::Prompt;
    mesh.ack(socket, stamp);
    assert!(mesh.ledger.is_empty());
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn unacked_is_sent_again_three_times_and_then_waits_for_the_next_session() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, lasting(uaid, 86_400), Disposition::Direct);
    mesh.pass(62);
    assert_eq!(mesh.notifications(socket), [stamp, stamp]);
    mesh.pass(240);
    assert_eq!(mesh.notifications(socket).len(), 4);
    assert_eq!(mesh.machines[0].stats().parked, 1);
    assert_eq!(mesh.machines[0].window_len(uaid), 0);
    mesh.request(0, notify(uaid));
    assert_eq!(mesh.notifications(socket).len(), 4, "a check leaves it alone");
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again), [stamp]);
}

#[test]
fn a_parked_message_is_settled_by_its_late_ack() {
    let mut mesh = Mesh::with(1, |config| config.ping_interval = TimeSpan(0));
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, lasting(uaid, 86_400), Disposition::Direct);
    mesh.pass(302);
    mesh.ack(socket, stamp);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn what_expires_in_the_window_is_dropped_and_counted() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, lasting(uaid, 3), Disposition::Direct);
    mesh.pass(12);
    assert!(mesh.ledger.is_empty());
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.machines[0].stats().expired, 1);
    mesh.accept(0, lasting(uaid, 3), Disposition::Direct);
    mesh.pass(4);
    mesh.close(socket);
    assert!(mesh.ledger.is_empty());
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_cancel_reaches_a_message_whose_save_failed_once() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Failing;
    mesh.close(socket);
    mesh.store.mode = Mode::Prompt;
    let conn = mesh.conn();
    let cancel = Cancel { uaid, chid: CHANNEL, stamp, topic: None };
    mesh.step(0, Input::Command { conn, command: SenderCommand::Cancel(Box::new(cancel)).into() });
    mesh.pass(3);
    assert!(mesh.ledger.is_empty());
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert!(mesh.machines[0].is_quiet());
}

#[test]
fn sigterm_saves_first_then_closes_and_says_so() {
    let mut mesh = Mesh::new(2);
    let users: Vec<Uaid> = (0..20).map(|n| mesh.known_user(n % 2)).collect();
    let sockets: Vec<Socket> = users.iter().map(|uaid| mesh.session(0, Some(*uaid))).collect();
    let stamps: Vec<Stamp> = users.iter().map(|uaid| mesh.accept(0, message(*uaid), Disposition::Direct)).collect();
    for shard in 0..2 {
        mesh.step(shard, Input::Drain { rate: 50 });
    }
    let late = mesh.open(0);
    assert_eq!(mesh.closed(late), Some(CloseReason::Draining));
    mesh.accept(0, message(users[0]), Disposition::Stored);
    mesh.pass(3);
    assert_eq!(mesh.drained.len(), 2);
    for socket in &sockets {
        assert_eq!(mesh.closed(*socket), Some(CloseReason::Draining));
    }
    assert!(mesh.ledger.is_empty());
    for (uaid, stamp) in users.iter().zip(&stamps) {
        assert!(mesh.store.rows_of(*uaid).iter().any(|m| m.stamp == *stamp));
    }
}

#[test]
fn sigterm_with_storage_down_keeps_the_ledger_and_never_says_drained() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.session(0, Some(uaid));
    mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.store.mode = Mode::Failing;
    mesh.step(0, Input::Drain { rate: 50 });
    mesh.pass(10);
    assert!(mesh.drained.is_empty());
    assert_eq!(mesh.ledger.len(), 1);
}

#[test]
fn no_save_comes_behind_an_unregister_and_brings_its_rows_back() {
    for (leaves, done) in [(false, true), (true, true), (true, false)] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        let socket = mesh.session(0, Some(uaid));
        let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
        mesh.pass(8);
        mesh.store.mode = if done { Mode::Held } else { Mode::Failing };
        mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
        if leaves {
            mesh.close(socket);
        } else {
            mesh.pass(4);
        }
        mesh.store.release();
        mesh.run();
        mesh.pass(2);
        let left: Vec<Stamp> = mesh.store.rows_of(uaid).iter().map(|m| m.stamp).collect();
        let expected = if done { Vec::new() } else { vec![stamp] };
        assert_eq!(left, expected);
        assert!(mesh.ledger.is_empty());
        assert!(!mesh.store.seen.contains(&"settle"), "nothing had to be deleted again");
    }
}

/// Their saves have failed, so each ends with a delete of its own when it expires; the last one has a window full.
#[test]
fn a_crowd_of_deadlines_keeps_within_the_effects_of_a_step() {
    let mut mesh = Mesh::with(1, |config| {
        config.sessions_max = 5_000;
        config.ledger_bytes_max = 64 << 20;
        config.window = 1_024;
        config.ping_interval = TimeSpan(0);
    });
    let users: Vec<Uaid> = (0..2_041).map(|_| mesh.known_user(0)).collect();
    let lasting = |uaid| Message { ttl: 15, ..message(uaid) };
    for uaid in &users {
        mesh.session(0, Some(*uaid));
    }
    for uaid in &users {
        mesh.accept(0, lasting(*uaid), Disposition::Direct);
    }
    for _ in 0..1_000 {
        mesh.accept(0, lasting(users[users.len() - 1]), Disposition::Direct);
    }
    mesh.store.mode = Mode::Failing;
    mesh.pass(11);
    mesh.store.mode = Mode::Prompt;
    mesh.pass(11);
    assert!(mesh.ledger.is_empty());
}

#[test]
fn a_full_storage_keeps_nobody_out_and_loses_nothing() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let mut stamps = six(&mut mesh, uaid);
    mesh.store.mode = Mode::Full;
    mesh.close(socket);
    // The hello that waits for the save, and one that comes between two attempts.
    for _ in 0..2 {
        let early = mesh.session(0, Some(uaid));
        mesh.pass(3);
        assert_eq!(mesh.closed(early), None, "it is let in");
        mesh.close(early);
    }
    let late = mesh.session(0, Some(uaid));
    mesh.pass(3);
    assert_eq!(mesh.ledger.len(), 6, "until storage has them the log does");
    mesh.store.mode = Mode::Prompt;
    mesh.pass(3);
    assert_eq!(mesh.notifications(late), stamps, "the session is told of what was saved while it was there");
    assert!(mesh.ledger.is_empty());
    stamps.push(mesh.accept(0, message(uaid), Disposition::Direct));
    for stamp in &stamps {
        mesh.ack(late, *stamp);
    }
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert!(mesh.machines[0].is_quiet());
}

#[test]
fn nothing_is_accepted_ahead_of_what_waits_for_room() {
    let mut mesh = Mesh::new(1);
    let (uaid, other) = (mesh.known_user(0), mesh.known_user(0));
    let first = mesh.session(0, Some(uaid));
    let mut stamps = six(&mut mesh, uaid);
    mesh.store.mode = Mode::Full;
    mesh.close(first);
    let second = mesh.session(0, Some(uaid));
    mesh.pass(1);
    // Another user's message finds room; the next attempt for this user follows.
    mesh.store.mode = Mode::Prompt;
    mesh.accept(0, message(other), Disposition::Stored);
    assert!(!mesh.machines[0].storage_room.is_full() && mesh.ledger.len() == 6, "it has not come yet");
    let post = mesh.start_post(0, message(uaid));
    mesh.pass(3);
    let Some(Published::Accepted { stamp, disposition: Disposition::Stored }) = mesh.answer_to(post) else {
        panic!("{:?}", mesh.answer_to(post));
    };
    stamps.push(stamp);
    assert!(mesh.ledger.is_empty());
    assert_eq!(mesh.notifications(second), stamps, "in the order in which they were accepted");
}

#[test]
fn a_full_storage_has_no_direct_accepted_that_it_could_not_save() {
    let mut mesh = Mesh::new(1);
    let (left, there) = (mesh.known_user(0), mesh.known_user(0));
    let socket = mesh.session(0, Some(left));
    let other = mesh.session(0, Some(there));
    six(&mut mesh, left);
    mesh.store.mode = Mode::Full;
    mesh.accept(0, message(there), Disposition::Direct);
    mesh.close(socket);
    assert_eq!(mesh.post(0, message(there)), Published::Unavailable);
    assert_eq!(mesh.ledger.len(), 7, "nothing was added");
    mesh.store.mode = Mode::Prompt;
    mesh.pass(3);
    mesh.accept(0, message(there), Disposition::Direct);
    assert_eq!(mesh.notifications(other).len(), 2);
}

#[test]
fn an_ack_of_what_waits_for_room_ends_it() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamps = six(&mut mesh, uaid);
    mesh.store.mode = Mode::Full;
    mesh.close(socket);
    let late = mesh.session(0, Some(uaid));
    mesh.pass(3);
    // Its user agent had read it from the connection before.
    mesh.ack(late, stamps[0]);
    assert_eq!(mesh.ledger.len(), 5);
    mesh.store.mode = Mode::Prompt;
    mesh.pass(3);
    assert_eq!(mesh.notifications(late), stamps[1..], "what was acked is never sent again");
}

#[test]
fn a_post_that_storage_did_not_keep_does_not_say_that_it_has_room() {
    let mut mesh = Mesh::new(1);
    let (left, there) = (mesh.known_user(0), mesh.known_user(0));
    let socket = mesh.session(0, Some(left));
    mesh.session(0, Some(there));
    six(&mut mesh, left);
    mesh.store.mode = Mode::Full;
    mesh.close(socket);
    let stranger = mesh.uaid_of(0);
    mesh.store.mode = Mode::Prompt;
    assert_eq!(mesh.post(0, message(stranger)), Published::NoSubscription);
    mesh.store.mode = Mode::Full;
    assert_eq!(mesh.post(0, message(there)), Published::Unavailable);
    assert_eq!(mesh.ledger.len(), 6, "nothing was added");
}

/// A session that held something reads its user when it ends: a drain paces these reads as it paces the sessions.
#[test]
fn a_drain_reads_no_more_users_in_a_second_than_its_rate() {
    let mut mesh = Mesh::nodes(2, |_| {});
    for _ in 0..60 {
        let uaid = mesh.known_user(0);
        let socket = mesh.session(0, Some(uaid));
        assert_eq!(mesh.set_minimum(socket, Urgency::High), Some(200));
        mesh.accept(0, Message { urgency: Urgency::Low, ..message(uaid) }, Disposition::Stored);
    }
    mesh.pass(5);
    mesh.step(0, Input::Drain { rate: 10 });
    mesh.store.seen.clear();
    let mut reads = 0;
    for _ in 0..12 {
        mesh.pass(1);
        let read = std::mem::take(&mut mesh.store.seen).iter().filter(|kind| **kind == "load").count();
        assert!(read <= 10, "{read} reads in a second");
        reads += read;
    }
    assert_eq!((reads, mesh.drained.as_slice()), (60, &[0][..]));
}

/// A process that leaves its idle sessions to the next one ends when this says so.
#[test]
fn unacked_rows_and_acks_at_storage_are_owed() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.accept(0, message(uaid), Disposition::Stored);
    let owed = |mesh: &mut Mesh| {
        mesh.pass(10);
        [0, 1, 2].map(|idle| !mesh.machines[0].owes_nothing_but(idle))
    };
    const NOTHING: [bool; 3] = [false, true, true];
    const SOMETHING: [bool; 3] = [true; 3];
    assert_eq!(owed(&mut mesh), NOTHING);
    let socket = mesh.session(0, Some(uaid));
    let row = mesh.notifications(socket)[0];
    assert_eq!(owed(&mut mesh), SOMETHING, "the delivery is not counted yet");
    mesh.store.mode = Mode::Held;
    mesh.ack(socket, row);
    assert_eq!(owed(&mut mesh), SOMETHING, "the ack is at storage");
}
