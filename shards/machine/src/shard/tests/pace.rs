//! One paced window for live and stored messages (decision 0020), and checks that begin beside writes.

use super::*;

/// Number of notifications on a socket so far.
fn heard(mesh: &Mesh, socket: Socket) -> usize {
    mesh.notifications(socket).len()
}

/// Lets `steps` fifths of a second pass. Asserts that no half second brings more than 64 frames. Returns the number of
/// steps until `count` frames had come.
fn hear_unacked(mesh: &mut Mesh, socket: Socket, count: usize, steps: usize) -> Option<usize> {
    let mut at_step = vec![heard(mesh, socket); 4];
    for step in 0..steps {
        if heard(mesh, socket) >= count {
            return Some(step);
        }
        mesh.pass_step();
        at_step.push(heard(mesh, socket));
        let half_second = at_step[at_step.len() - 1] - at_step[at_step.len() - 4];
        assert!(half_second <= 64, "{half_second} unacked frames within half a second, at step {step}");
    }
    None
}

#[test]
fn a_live_burst_that_nobody_acks_comes_in_paced_portions() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamps: Vec<Stamp> = (0..300).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    assert!(heard(&mesh, socket) <= 64, "{} frames at once", heard(&mesh, socket));
    let steps = hear_unacked(&mut mesh, socket, 300, 40);
    assert!(steps.is_some(), "{} of 300 in 8 s", heard(&mesh, socket));
    assert_eq!(mesh.notifications(socket), stamps);
}

#[test]
fn a_backlog_that_nobody_acks_comes_in_paced_portions() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps: Vec<Stamp> = (0..300).map(|_| mesh.accept(0, message(uaid), Disposition::Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    assert!(heard(&mesh, socket) <= 64, "{} frames at once", heard(&mesh, socket));
    let steps = hear_unacked(&mut mesh, socket, 300, 40);
    assert!(steps.is_some(), "{} of 300 in 8 s", heard(&mesh, socket));
    assert_eq!(mesh.notifications(socket), stamps);
}

#[test]
fn a_user_of_a_slow_store_is_served_between_its_writes() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let first = mesh.accept(0, message(uaid), Disposition::Stored);
    mesh.store.mode = Mode::Held;
    let socket = mesh.session(0, Some(uaid));
    // The user is loaded and its check is at storage. From now on a write of this user is always under way.
    let mut posts = vec![mesh.start_post(0, message(uaid))];
    for _ in 0..12 {
        posts.push(mesh.start_post(0, message(uaid)));
        mesh.store.release_one();
        mesh.run();
    }
    let seen = mesh.notifications(socket);
    assert!(seen.len() > 1, "only {} of {} came while a write was under way", seen.len(), posts.len());
    assert_eq!(seen[0], first);
    assert!(seen.is_sorted(), "in the order of their answers");
    mesh.store.release();
    mesh.run();
    let stamps = posts.into_iter().filter_map(|post| match mesh.answer_to(post) {
        Some(Published::Accepted { stamp, .. }) => Some(stamp),
        _ => None,
    });
    let expected: Vec<Stamp> = std::iter::once(first).chain(stamps).collect();
    assert_eq!(mesh.notifications(socket), expected, "and the rest follows");
}

#[test]
fn one_that_acks_every_half_minute_gets_each_burst_within_seconds() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    for round in 1..4 {
        let stamps: Vec<Stamp> = (0..300).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
        let steps = hear_unacked(&mut mesh, socket, round * 300, 40);
        assert!(steps.is_some(), "{} of 300 in 8 s of round {round}", heard(&mesh, socket) - (round - 1) * 300);
        mesh.pass(22);
        // In many messages, one right behind the other.
        for stamp in stamps {
            mesh.ack(socket, stamp);
        }
        assert!(mesh.store.rows_of(uaid).is_empty() && mesh.ledger.is_empty());
    }
    assert_eq!(mesh.machines[0].stats().actives, 0, "what it costs it costs while something is under way");
}

#[test]
fn acks_of_old_ones_do_not_let_a_whole_window_out_at_once() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let stamps: Vec<Stamp> = (0..900).map(|_| mesh.accept(0, message(uaid), Disposition::Stored)).collect();
    let socket = mesh.session(0, Some(uaid));
    assert!(hear_unacked(&mut mesh, socket, 500, 60).is_some());
    mesh.pass(5);
    assert_eq!(heard(&mesh, socket), 500, "no more than the window");
    for stamp in &stamps[..450] {
        mesh.ack(socket, *stamp);
    }
    mesh.turns();
    assert_eq!(heard(&mesh, socket), 550);
    assert!(hear_unacked(&mut mesh, socket, 900, 60).is_some());
    assert_eq!(mesh.notifications(socket), stamps);
}

#[test]
fn what_is_sent_again_is_paced_too() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.mode = Mode::Failing;
    let stamps: Vec<Stamp> = (0..200).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    assert!(hear_unacked(&mut mesh, socket, 200, 40).is_some());
    // For two minutes the socket refuses everything: then all of it is due at once.
    mesh.block(socket);
    mesh.pass(120);
    mesh.unblock(socket);
    assert!(hear_unacked(&mut mesh, socket, 400, 40).is_some(), "{} of 400", heard(&mesh, socket));
    assert!(stamps.iter().all(|stamp| mesh.notifications(socket).iter().filter(|seen| *seen == stamp).count() == 2));
}

#[test]
fn what_expires_while_it_waits_is_not_sent() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let sent: Vec<Stamp> = (0..50).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    (0..20).for_each(|_| _ = mesh.accept(0, lasting(uaid, 1), Disposition::Direct));
    let last = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.now.unix_us += 2_000_000;
    mesh.pass(2);
    assert_eq!(mesh.notifications(socket), [&sent[..], &[last]].concat());
    assert_eq!((mesh.machines[0].stats().expired, mesh.ledger.len()), (20, 51));
}

#[test]
fn what_waits_for_its_turn_survives_the_end_of_its_session() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamps: Vec<Stamp> = (0..120).map(|_| mesh.accept(0, message(uaid), Disposition::Direct)).collect();
    assert_eq!(heard(&mesh, socket), 50);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert!(hear_unacked(&mut mesh, again, 120, 40).is_some());
    assert_eq!(mesh.notifications(again), stamps);
}
