//! The minimum urgency of a user agent: what is held, what releases it, and what neither costs nor loses anything.

use super::*;
use Disposition::{Direct, Dropped, Stored};
use Urgency::{High, Low, Normal, VeryLow};

fn of(uaid: Uaid, urgency: Urgency) -> Message {
    Message { urgency, ..message(uaid) }
}

/// Returns a user in storage and its session, which has named this minimum.
fn user_with(mesh: &mut Mesh, minimum: Urgency) -> (Uaid, Socket) {
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.set_minimum(socket, minimum), Some(200));
    (uaid, socket)
}

/// Number of pages that storage was asked for since the last call.
fn pages(mesh: &mut Mesh) -> usize {
    let seen = std::mem::take(&mut mesh.store.seen);
    seen.iter().filter(|kind| matches!(**kind, "topics" | "messages" | "read")).count()
}

#[test]
fn a_lowered_minimum_sends_what_was_held_in_order() {
    for durable in [false, true] {
        let mut mesh = Mesh::with(1, |config| config.durable = durable);
        let (uaid, socket) = user_with(&mut mesh, High);
        let held: Vec<_> =
            [Normal, Low, VeryLow, Normal].map(|urgency| mesh.accept(0, of(uaid, urgency), Stored)).into();
        let high = mesh.accept(0, of(uaid, High), if durable { Stored } else { Direct });
        assert_eq!(mesh.notifications(socket), [high]);
        mesh.ack(socket, high);
        assert_eq!(mesh.set_minimum(socket, Low), Some(200));
        assert_eq!(mesh.notifications(socket), [high, held[0], held[1], held[3]]);
        let at = mesh.said(socket).iter().rposition(|said| matches!(said, Said::Urgency(200)));
        assert_eq!(at, Some(mesh.said(socket).len() - 4), "the reply comes before what it releases");
        assert_eq!(mesh.set_minimum(socket, VeryLow), Some(200));
        assert_eq!(mesh.notifications(socket)[4..], [held[2]]);
        assert_eq!(mesh.sockets[0].told, [High, Normal, Low, Normal, VeryLow]);
        assert_eq!(mesh.machines[0].stats().messages_held, 4);
    }
}

#[test]
fn the_minimum_survives_reconnects_and_restarts() {
    let mut mesh = Mesh::new(1);
    let (uaid, first) = user_with(&mut mesh, Normal);
    mesh.close(first);
    let held = mesh.accept(0, of(uaid, Low), Stored);
    for restarts in [false, true] {
        if restarts {
            mesh.restart();
        }
        let socket = mesh.session(0, Some(uaid));
        let sent = mesh.accept(0, of(uaid, Normal), Direct);
        assert_eq!(mesh.notifications(socket), [sent]);
        assert_eq!(mesh.sockets[socket.0].told, [Normal], "a user agent that named one is told the urgency");
        mesh.ack(socket, sent);
        assert_eq!(mesh.store.contact_of(uaid).minimum, Some(Normal));
        if restarts {
            mesh.set_minimum(socket, Low);
            assert_eq!(mesh.notifications(socket), [sent, held]);
        } else {
            mesh.close(socket);
        }
    }
}

#[test]
fn a_user_agent_that_names_no_minimum_is_told_no_urgency() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    mesh.accept(0, of(uaid, VeryLow), Direct);
    assert!(mesh.sockets[socket.0].told.is_empty());
    assert_eq!(mesh.store.contact_of(uaid).minimum, None);
    assert_eq!(mesh.set_minimum(socket, VeryLow), Some(200));
    mesh.accept(0, of(uaid, VeryLow), Direct);
    assert_eq!(mesh.sockets[socket.0].told, [VeryLow]);
}

#[test]
fn an_unknown_word_and_a_failed_write_change_nothing() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = user_with(&mut mesh, Low);
    mesh.command(socket, SessionCommand::Urgency { minimum: None });
    assert_eq!(mesh.said(socket).last(), Some(&Said::Urgency(404)));
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.set_minimum(socket, High), Some(500));
    mesh.store.mode = Mode::Prompt;
    mesh.accept(0, of(uaid, Low), Direct);
    assert!(mesh.is_ready(socket));
    assert_eq!(mesh.machines[0].stats().minimums_refused, 2);
    let simple = mesh.open(0);
    mesh.say_hello_as(simple, None, Reach::Simple, None);
    mesh.run();
    assert_eq!(mesh.set_minimum(simple, High), Some(404), "an update has no urgency");
}

#[test]
fn a_new_user_keeps_the_minimum_that_it_named_before_its_first_register() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    assert_eq!(mesh.set_minimum(socket, High), Some(200));
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.store.contact_of(uaid).minimum, Some(High));
    mesh.accept(0, of(uaid, Normal), Stored);
    assert!(mesh.notifications(socket).is_empty());
}

#[test]
fn a_held_backlog_costs_no_read_for_a_post() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = user_with(&mut mesh, High);
    let mut backlog: Vec<_> = (0..3_000).map(|_| mesh.accept(0, of(uaid, Low), Stored)).collect();
    assert_eq!(pages(&mut mesh), 0);
    for _ in 0..20 {
        let high = mesh.accept(0, of(uaid, High), Direct);
        backlog.push(mesh.accept(0, of(uaid, Low), Stored));
        let topical = mesh.accept(0, Message { urgency: High, ..topical(uaid, "t") }, Stored);
        assert_eq!(mesh.notifications(socket).last(), Some(&topical), "a topic may have a held message");
        mesh.ack(socket, high);
        let topic = crate::message::Topic::new(b"t");
        let ack = AckUpdate { stamp: topical, chid: CHANNEL, topic, code: 100 };
        mesh.command(socket, SessionCommand::Ack(vec![ack]));
        mesh.run();
    }
    assert_eq!(pages(&mut mesh), 0);
    mesh.set_minimum(socket, VeryLow);
    let mut got = Vec::new();
    while got.len() < backlog.len() {
        let sent = mesh.notifications(socket);
        let news = sent.iter().filter(|stamp| backlog.contains(stamp)).skip(got.len()).copied().collect::<Vec<_>>();
        assert!(!news.is_empty() || mesh.now.unix_us < 1_700_000_900_000_000, "it goes on");
        news.iter().for_each(|stamp| mesh.ack(socket, *stamp));
        got.extend(news);
        mesh.pass(1);
    }
    assert_eq!(got, backlog);
    mesh.pass(70);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn held_rows_are_read_once_by_a_session_that_is_busy() {
    let mut mesh = Mesh::new(1);
    let (uaid, first) = user_with(&mut mesh, High);
    (0..2_000).for_each(|_| _ = mesh.accept(0, of(uaid, Low), Stored));
    mesh.close(first);
    mesh.pass(100);
    let socket = mesh.session(0, Some(uaid));
    let whole = pages(&mut mesh);
    assert!(whole > 10, "{whole} pages for the whole backlog");
    mesh.accept(0, of(uaid, High), Direct);
    // The socket takes nothing, so that what comes is stored and read again.
    for _ in 0..10 {
        mesh.block(socket);
        mesh.accept(0, of(uaid, High), Stored);
        mesh.unblock(socket);
    }
    let more = pages(&mut mesh);
    assert!(more < whole + 40, "{more} pages for 10 messages, behind {whole} for the backlog");
    assert_eq!(mesh.notifications(socket).len(), 11);
}

#[test]
fn low_water_does_not_pass_what_is_held() {
    let mut mesh = Mesh::new(1);
    let (uaid, first) = user_with(&mut mesh, High);
    mesh.close(first);
    let held = mesh.accept(0, of(uaid, Low), Stored);
    let highs: Vec<_> = (0..4).map(|_| mesh.accept(0, of(uaid, High), Stored)).collect();
    mesh.pass(200);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), highs);
    highs.iter().for_each(|stamp| mesh.ack(socket, *stamp));
    mesh.pass(200);
    let last = mesh.accept(0, of(uaid, High), Direct);
    mesh.ack(socket, last);
    assert_eq!(mesh.store.rows_of(uaid).len(), 1);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    mesh.set_minimum(again, Low);
    assert_eq!(mesh.notifications(again), [held]);
}

#[test]
fn a_raised_minimum_takes_back_what_waits_in_the_window() {
    for rows in [false, true] {
        let mut mesh = Mesh::new(1);
        let uaid = mesh.known_user(0);
        let sent = if rows { Stored } else { Direct };
        let first = (!rows).then(|| mesh.session(0, Some(uaid)));
        let stamps: Vec<_> = (0..80).map(|_| mesh.accept(0, of(uaid, Low), sent)).collect();
        let socket = first.unwrap_or_else(|| mesh.session(0, Some(uaid)));
        mesh.turns();
        assert_eq!(mesh.notifications(socket), stamps[..50], "the pace holds the others back");
        mesh.set_minimum(socket, Normal);
        let high = mesh.accept(0, of(uaid, High), Direct);
        mesh.pass(100);
        let notified = mesh.notifications(socket);
        assert_eq!(notified[..50], stamps[..50]);
        assert!(notified[50..].iter().all(|stamp| *stamp == high), "nothing below the minimum, also not again");
        assert_eq!(mesh.machines[0].stats().messages_held, 30);
        mesh.set_minimum(socket, VeryLow);
        mesh.turns();
        mesh.pass(3);
        let notified = mesh.notifications(socket);
        let released: Vec<_> = notified[50..].iter().filter(|stamp| **stamp != high).copied().collect();
        assert_eq!(released, stamps[50..]);
    }
}

/// Seed 89792 of the simulator.
#[test]
fn a_retry_that_the_socket_refused_leaves_the_first_delivery_to_be_acked() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamp = mesh.accept(0, of(uaid, Low), Direct);
    mesh.pass(65);
    assert_eq!(mesh.notifications(socket), [stamp; 2], "it is sent again");
    mesh.block(socket);
    mesh.unsend(socket, 1);
    mesh.set_minimum(socket, High);
    mesh.unblock(socket);
    mesh.turns();
    let sent = mesh.notifications(socket);
    mesh.ack(socket, stamp);
    mesh.set_minimum(socket, VeryLow);
    mesh.pass(70);
    assert_eq!(mesh.notifications(socket), sent, "it was acked");
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_minimum_that_falls_while_its_window_is_saved_keeps_the_order() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    let socket = mesh.session(0, Some(uaid));
    let stamps: Vec<_> = (0..60).map(|_| mesh.accept(0, of(uaid, Low), Direct)).collect();
    mesh.command(socket, SessionCommand::Urgency { minimum: Some(High) });
    let (shard, ticket, result) = mesh.store.replies.pop_front().expect("the minimum is written");
    mesh.store.mode = Mode::Held;
    mesh.step(shard, Input::Stored { ticket, result });
    let later = of(uaid, Low);
    mesh.start_post(0, later);
    mesh.store.release_one();
    mesh.store.release();
    mesh.run();
    mesh.set_minimum(socket, VeryLow);
    mesh.pass(2);
    let notified = mesh.notifications(socket);
    assert_eq!(notified[..60], stamps);
    assert_eq!(notified.len(), 61);
}

#[test]
fn a_held_message_is_replaced_by_its_topic_and_ends_by_the_other_rules() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = user_with(&mut mesh, Normal);
    mesh.accept(0, Message { urgency: Low, ..topical(uaid, "t") }, Stored);
    let newer = mesh.accept(0, Message { urgency: High, ..topical(uaid, "t") }, Stored);
    assert_eq!(mesh.notifications(socket), [newer]);
    mesh.accept(0, Message { ttl: 0, ..of(uaid, Low) }, Dropped);
    mesh.accept(0, Message { ttl: 30, ..of(uaid, Low) }, Stored);
    let cancelled = mesh.accept(0, of(uaid, Low), Stored);
    let cancel = Cancel { uaid, chid: CHANNEL, stamp: cancelled, topic: None };
    mesh.request(0, SenderCommand::Cancel(Box::new(cancel)));
    let other = mesh.accept(0, Message { chid: OTHER, ..of(uaid, Low) }, Stored);
    mesh.command(socket, SessionCommand::Unregister { chid: OTHER, code: 200 });
    mesh.run();
    mesh.pass(40);
    mesh.set_minimum(socket, VeryLow);
    assert!(!mesh.notifications(socket).contains(&other));
    assert_eq!(mesh.notifications(socket), [newer]);
}

#[test]
fn held_messages_have_no_attempts_and_no_retries() {
    let mut mesh = Mesh::with(1, |config| config.attempts_max = 3);
    let (uaid, first) = user_with(&mut mesh, High);
    let held = mesh.accept(0, of(uaid, Normal), Stored);
    mesh.close(first);
    for _ in 0..5 {
        let socket = mesh.session(0, Some(uaid));
        mesh.pass(70);
        assert!(mesh.notifications(socket).is_empty());
        mesh.close(socket);
    }
    let socket = mesh.session(0, Some(uaid));
    mesh.set_minimum(socket, Normal);
    assert_eq!(mesh.notifications(socket), [held]);
}

#[test]
fn traffic_of_the_user_agent_releases_what_is_held_for_a_while() {
    let mut mesh = Mesh::with(1, |config| config.release_on_activity = TimeSpan::from_secs(5));
    let (uaid, socket) = user_with(&mut mesh, High);
    mesh.pass(6);
    let held: Vec<_> = (0..3).map(|_| mesh.accept(0, of(uaid, Low), Stored)).collect();
    mesh.pass(20);
    assert!(mesh.notifications(socket).is_empty());
    let (shard, conn) = (mesh.sockets[socket.0].shard, mesh.sockets[socket.0].conn);
    pages(&mut mesh);
    mesh.step(shard, Input::Frame { conn });
    mesh.run();
    assert_eq!(mesh.notifications(socket), held);
    assert!(pages(&mut mesh) > 0);
    let direct = mesh.accept(0, of(uaid, VeryLow), Direct);
    held.iter().chain([&direct]).for_each(|stamp| mesh.ack(socket, *stamp));
    mesh.pass(4);
    mesh.step(shard, Input::Frame { conn });
    mesh.run();
    assert_eq!(pages(&mut mesh), 0, "nothing is held: traffic costs no read");
    mesh.pass(6);
    mesh.accept(0, of(uaid, Low), Stored);
    assert_eq!(mesh.notifications(socket).len(), 4);
    mesh.pass(60);
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(again).len(), 1, "a hello is traffic");
}

#[test]
fn a_user_of_an_old_record_keeps_what_is_held() {
    let mut mesh = Mesh::new(1);
    let (uaid, first) = user_with(&mut mesh, High);
    mesh.close(first);
    let held = mesh.accept(0, of(uaid, Low), Stored);
    mesh.store.record_version -= 1;
    let socket = mesh.session(0, Some(uaid));
    mesh.pass(10);
    assert_eq!(mesh.closed(socket), None);
    mesh.set_minimum(socket, Low);
    assert_eq!(mesh.notifications(socket), [held]);
    mesh.ack(socket, held);
    assert_eq!(mesh.closed(socket), Some(CloseReason::Reset));
}

#[test]
fn every_node_honours_the_minimum() {
    for durable in [false, true] {
        let mut mesh = Mesh::nodes(3, |config| config.durable = durable);
        let uaid = mesh.known_user(0);
        let socket = mesh.session(1, Some(uaid));
        assert_eq!(mesh.set_minimum(socket, High), Some(200));
        pages(&mut mesh);
        let mut held: Vec<_> = (0..3).map(|node| mesh.accept(node, of(uaid, Normal), Stored)).collect();
        // Their nodes stamp them in one microsecond.
        held.sort_unstable();
        assert_eq!(pages(&mut mesh), 0, "no node makes the session read");
        let high = mesh.accept(2, of(uaid, High), Direct);
        assert_eq!(mesh.notifications(socket), [high]);
        mesh.accept(2, Message { ttl: 0, ..of(uaid, Low) }, Dropped);
        let moved = mesh.session(2, Some(uaid));
        mesh.pass(1);
        assert_eq!(mesh.closed(socket), Some(CloseReason::Elsewhere));
        assert_eq!(mesh.notifications(moved).iter().filter(|stamp| held.contains(stamp)).count(), 0);
        mesh.set_minimum(moved, Low);
        let got: Vec<_> = mesh.notifications(moved).into_iter().filter(|stamp| held.contains(stamp)).collect();
        assert_eq!(got, held);
    }
}

#[test]
fn a_minimum_that_falls_while_another_node_stores_releases_that_message() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let socket = mesh.session(1, Some(uaid));
    mesh.set_minimum(socket, High);
    // The node has stored the message and not read the user again.
    mesh.store.mode = Mode::Held;
    let post = mesh.start_post(0, of(uaid, Low));
    mesh.run();
    mesh.store.release_one();
    mesh.run();
    mesh.store.release_one();
    mesh.run();
    mesh.store.mode = Mode::Prompt;
    mesh.set_minimum(socket, Low);
    mesh.store.release();
    mesh.run();
    let Some(Published::Accepted { stamp, .. }) = mesh.answer_to(post) else { panic!("{:?}", mesh.answer_to(post)) };
    assert_eq!(mesh.notifications(socket), [stamp]);
}

/// The write of a minimum takes effect and its answer is lost: the other node holds what the session would take.
#[test]
fn a_minimum_whose_write_failed_is_written_back_and_what_it_held_is_sent() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let socket = mesh.session(1, Some(uaid));
    mesh.store.mode = Mode::Lossy;
    assert_eq!(mesh.set_minimum(socket, High), Some(500));
    mesh.store.mode = Mode::Prompt;
    mesh.lines[1] = Line::Down;
    let held = mesh.accept(0, of(uaid, Low), Stored);
    mesh.lines[1] = Line::Up;
    assert_eq!(mesh.notifications(socket), [], "the record says so");
    mesh.pass(2);
    assert_eq!(mesh.store.contact_of(uaid).minimum, None);
    assert_eq!(mesh.notifications(socket), [held]);
    assert!(mesh.is_ready(socket));
}

/// The minimum that is named while an older one waits to be written back is the one that stays.
#[test]
fn a_minimum_named_behind_a_failed_one_stays() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let socket = mesh.session(1, Some(uaid));
    mesh.store.mode = Mode::Lossy;
    assert_eq!(mesh.set_minimum(socket, High), Some(500));
    mesh.store.mode = Mode::Held;
    mesh.pass(2);
    // The old one is at storage now; its write fails, and the new one is written before it is tried again.
    mesh.command(socket, SessionCommand::Urgency { minimum: Some(Normal) });
    mesh.run();
    let (shard, ticket, _) = mesh.store.held.pop_front().expect("the old minimum is at storage");
    mesh.store.replies.push_back((shard, ticket, Err(StoreError::Transient)));
    mesh.store.release();
    mesh.run();
    mesh.pass(2);
    mesh.pass(2);
    assert_eq!(mesh.store.contact_of(uaid).minimum, Some(Normal));
    let held = mesh.accept(0, of(uaid, Low), Stored);
    assert_eq!(mesh.set_minimum(socket, Low), Some(200));
    assert_eq!(mesh.notifications(socket), [held]);
}

/// Two nodes have a session of one user: the later one is left by its user agent, and its minimum is the higher one.
#[test]
fn a_session_that_ends_leaves_what_it_held_to_the_other_node() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let uaid = mesh.known_user(0);
    let alive = mesh.session(0, Some(uaid));
    assert_eq!(mesh.set_minimum(alive, High), Some(200));
    mesh.lines[0] = Line::Down;
    let left = mesh.session(1, Some(uaid));
    mesh.lines[0] = Line::Up;
    assert_eq!(mesh.set_minimum(alive, VeryLow), Some(200));
    let held = mesh.accept(2, of(uaid, Low), Stored);
    assert_eq!((mesh.notifications(alive), mesh.notifications(left)), (vec![], vec![]));
    mesh.close(left);
    assert_eq!(mesh.notifications(alive), [held]);
}

/// The minimum of a session that ended is no longer its to write: another node may have written a newer one.
#[test]
fn a_failed_minimum_is_not_written_back_for_a_session_that_ended() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let left = mesh.session(0, Some(uaid));
    assert_eq!(mesh.set_minimum(left, Low), Some(200));
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.set_minimum(left, Normal), Some(500));
    // The next one waits behind the write-back.
    mesh.command(left, SessionCommand::Urgency { minimum: Some(VeryLow) });
    mesh.store.mode = Mode::Prompt;
    mesh.close(left);
    let moved = mesh.session(1, Some(uaid));
    assert_eq!(mesh.set_minimum(moved, High), Some(200));
    mesh.pass(3);
    assert_eq!(mesh.store.contact_of(uaid).minimum, Some(High));
    assert!(mesh.machines[0].is_quiet());
}

#[test]
fn failed_minimums_of_a_session_are_tried_again_as_one() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = user_with(&mut mesh, Low);
    mesh.store.mode = Mode::Failing;
    for _ in 0..4 {
        mesh.command(socket, SessionCommand::Urgency { minimum: Some(High) });
        mesh.pass(3);
        assert_eq!(mesh.said(socket).last(), Some(&Said::Urgency(500)));
    }
    mesh.store.seen.clear();
    mesh.pass(10);
    let writes = mesh.store.seen.iter().filter(|kind| **kind == "contact").count();
    assert!((5..=11).contains(&writes), "{writes} writes in 10 s");
    mesh.store.mode = Mode::Prompt;
    mesh.pass(3);
    mesh.store.seen.clear();
    mesh.pass(10);
    assert!(!mesh.store.seen.contains(&"contact"), "it is over");
    assert_eq!(mesh.store.contact_of(uaid).minimum, Some(Low));
}

/// A write-back that is due while a newer minimum is at storage must not come behind it.
#[test]
fn a_write_back_never_replaces_a_minimum_that_was_answered() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = user_with(&mut mesh, Low);
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.set_minimum(socket, VeryLow), Some(500));
    mesh.store.mode = Mode::Held;
    mesh.pass(2);
    mesh.command(socket, SessionCommand::Urgency { minimum: Some(High) });
    mesh.run();
    let (shard, ticket, _) = mesh.store.held.pop_front().expect("the old minimum is at storage");
    mesh.store.replies.push_back((shard, ticket, Err(StoreError::Transient)));
    mesh.pass(2);
    mesh.store.mode = Mode::Prompt;
    while !mesh.store.held.is_empty() {
        mesh.store.release_one();
        assert_eq!(mesh.store.contact_of(uaid).minimum, Some(High));
    }
    mesh.run();
    assert_eq!(mesh.said(socket).last(), Some(&Said::Urgency(200)));
    mesh.pass(3);
    assert_eq!(mesh.store.contact_of(uaid).minimum, Some(High));
    assert!(mesh.machines[0].is_quiet());
}
