//! Nodes that share a store: every race of ARCHITECTURE.md 8.9 by name.

mod clocks;
mod explore;
mod idle_user;
mod lost;
mod stale;

use super::*;
use Disposition::{Direct, Dropped, Stored};

/// A channel that is not registered yet.
const THIRD: Chid = Chid([0xc3; 16]);

/// A TTL, in seconds, that outlives an interval between refreshes.
const FORTNIGHT: u32 = 14 * 86_400;

/// Returns a user in storage and a session of it on a node.
fn user_on(mesh: &mut Mesh, node: usize) -> (Uaid, Socket) {
    let uaid = mesh.known_user(0);
    let socket = mesh.session(node, Some(uaid));
    (uaid, socket)
}

fn nodes_of(mesh: &Mesh, uaid: Uaid) -> Vec<NodeId> {
    mesh.store.presence_of(uaid).iter().map(|row| NodeId::clone(&row.node)).collect()
}

/// Delivers the first answer of storage; its consequences are on their way.
fn answered_and_held(mesh: &mut Mesh) {
    let (node, ticket, result) = mesh.store.replies.pop_front().expect("storage was asked");
    mesh.store.mode = Mode::Held;
    mesh.step(node, Input::Stored { ticket, result });
    mesh.store.mode = Mode::Prompt;
}

fn count(mesh: &Mesh, kind: &str) -> usize {
    mesh.store.seen.iter().filter(|seen| **seen == kind).count()
}

#[test]
fn a_post_to_any_node_reaches_the_session_on_another() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)]);
    let sent: Vec<_> = (0..3).map(|node| mesh.accept(node, message(uaid), Direct)).collect();
    assert_eq!(mesh.notifications(socket), sent);
    assert!(mesh.store.rows_of(uaid).is_empty());
    for stamp in sent {
        mesh.ack(socket, stamp);
    }
    assert!(mesh.ledger.is_empty());
}

/// Each hello of a known user is three reads and a write of the database.
#[test]
fn hellos_beyond_the_budget_of_a_user_close_and_its_session_stays() {
    let mut mesh = Mesh::nodes(2, |config| config.ping_interval = TimeSpan(0));
    let (uaid, other) = (mesh.known_user(0), mesh.known_user(0));
    let mut last = mesh.session(0, Some(uaid));
    for _ in 1..limits::HELLOS_PER_MINUTE_MAX {
        last = mesh.session(0, Some(uaid));
    }
    mesh.store.seen.clear();
    let refused = mesh.session(0, Some(uaid));
    assert_eq!(mesh.closed(refused), Some(CloseReason::BudgetExhausted));
    assert!(mesh.store.seen.is_empty() && mesh.closed(last).is_none(), "{:?}", mesh.store.seen);
    let stamp = mesh.accept(1, message(uaid), Direct);
    assert_eq!(mesh.notifications(last), [stamp]);
    // Others, and the next minute, have budgets of their own.
    mesh.session(0, Some(other));
    mesh.pass(60);
    mesh.session(0, Some(uaid));
    assert_eq!(mesh.closed(last), Some(CloseReason::Superseded));
}

#[test]
fn a_live_session_of_the_node_itself_costs_no_storage() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 0);
    mesh.store.seen.clear();
    let stamp = mesh.accept(0, message(uaid), Direct);
    mesh.ack(socket, stamp);
    assert!(mesh.store.seen.is_empty(), "{:?}", mesh.store.seen);
}

#[test]
fn a_hello_elsewhere_ends_the_session_and_takes_its_row() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, first) = user_on(&mut mesh, 0);
    let second = mesh.session(1, Some(uaid));
    assert_eq!(mesh.closed(first), Some(CloseReason::Elsewhere));
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)]);
    let stamp = mesh.accept(0, message(uaid), Direct);
    assert_eq!(mesh.notifications(second), [stamp]);
    mesh.close(second);
    assert!(nodes_of(&mesh, uaid).is_empty());
    mesh.accept(0, message(uaid), Stored);
}

#[test]
fn a_user_who_comes_back_to_the_same_node_keeps_the_newer_row() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, first) = user_on(&mut mesh, 0);
    let second = mesh.session(0, Some(uaid));
    assert_eq!(mesh.closed(first), Some(CloseReason::Superseded));
    mesh.close(first);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)]);
    let stamp = mesh.accept(1, message(uaid), Direct);
    assert_eq!(mesh.notifications(second), [stamp]);
}

#[test]
fn a_new_user_is_found_with_its_first_channel() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, CHANNEL);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)]);
    let stamp = mesh.accept(1, message(uaid), Direct);
    assert_eq!(mesh.notifications(socket), [stamp]);
}

#[test]
fn an_answer_not_here_clears_the_row_that_led_there_and_the_message_is_stored() {
    let mut mesh = Mesh::nodes(3, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.store.mode = Mode::Failing;
    mesh.close(socket);
    mesh.store.mode = Mode::Prompt;
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)], "the clear was lost");
    let stored = mesh.accept(0, message(uaid), Stored);
    assert!(nodes_of(&mesh, uaid).is_empty());
    let socket = mesh.session(2, Some(uaid));
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn nobody_clears_the_row_of_a_newer_session() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, first) = user_on(&mut mesh, 1);
    mesh.lines[1] = Line::Held;
    let post = mesh.start_post(0, message(uaid));
    mesh.run();
    mesh.close(first);
    // The push finds a hello under way, whose row is newer than the one that led here.
    mesh.store.mode = Mode::Held;
    let second = mesh.open(1);
    mesh.say_hello(second, Some(uaid));
    mesh.lines[1] = Line::Up;
    mesh.run();
    mesh.store.release();
    mesh.run();
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)]);
    let Some(Published::Accepted { stamp, .. }) = mesh.answer_to(post) else { panic!() };
    assert_eq!(mesh.notifications(second), [stamp]);
}

#[test]
fn what_is_stored_while_a_hello_reads_is_seen_by_its_first_look() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let socket = mesh.open(1);
    mesh.say_hello(socket, Some(uaid));
    // The user is read and the presence row is on its way; no node finds the session yet.
    answered_and_held(&mut mesh);
    let stored = mesh.accept(0, message(uaid), Stored);
    assert!(mesh.notifications(socket).is_empty());
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn a_session_that_comes_between_store_and_second_look_is_told() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let post = mesh.start_post(0, message(uaid));
    // Looked up; the write is under way.
    answered_and_held(&mut mesh);
    let socket = mesh.session(1, Some(uaid));
    assert!(mesh.notifications(socket).is_empty());
    mesh.store.release();
    mesh.run();
    let Some(Published::Accepted { stamp, disposition: Stored }) = mesh.answer_to(post) else { panic!() };
    assert_eq!(mesh.notifications(socket), [stamp]);
}

#[test]
fn a_message_that_outlives_its_channel_while_it_is_stored_is_410_and_gone() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let post = mesh.start_post(0, message(uaid));
    answered_and_held(&mut mesh);
    // The write takes effect before the unregister, its answer comes behind it.
    let held = std::mem::take(&mut mesh.store.held);
    for (shard, ticket, op) in held {
        mesh.store.submit(shard, ticket, op);
    }
    let answers = std::mem::take(&mut mesh.store.replies);
    mesh.store.submit(
        1,
        StoreTicket { index: 900, generation: 1 },
        StoreOp::Unregister { uaid, chid: CHANNEL, at: Clock(1) },
    );
    mesh.store.replies.clear();
    mesh.store.replies.extend(answers);
    mesh.run();
    assert_eq!(mesh.answer_to(post), Some(Published::NoSubscription));
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_push_whose_answer_is_lost_is_delivered_once() {
    for ack_first in [false, true] {
        let mut mesh = Mesh::nodes(2, |_| {});
        let (uaid, socket) = user_on(&mut mesh, 1);
        mesh.lines[1] = Line::Mute;
        let stamp = mesh.accept(0, message(uaid), Stored);
        assert_eq!(mesh.notifications(socket), [stamp]);
        assert_eq!(mesh.store.rows_of(uaid).len(), 1);
        mesh.lines[1] = Line::Up;
        let again = NodeNotify { uaid, unsure: Some(mesh.store.rows_of(uaid).first().map(|m| RowKey::of(m)).unwrap()) };
        if ack_first {
            mesh.ack(socket, stamp);
        }
        mesh.request(1, NodeCommand::Notify(Box::new(again)));
        if !ack_first {
            mesh.ack(socket, stamp);
        }
        assert_eq!(mesh.notifications(socket), [stamp], "ack first: {ack_first}");
        assert!(mesh.store.rows_of(uaid).is_empty(), "ack first: {ack_first}");
        mesh.close(socket);
        let socket = mesh.session(0, Some(uaid));
        assert!(mesh.notifications(socket).is_empty(), "what was acked is never sent again");
    }
}

#[test]
fn a_word_that_is_lost_with_the_node_that_owed_it_costs_one_refresh() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.lines[1] = Line::Down;
    let stored = mesh.accept(0, lasting(uaid, FORTNIGHT), Stored);
    // The node that must send the notification dies with it.
    assert_eq!(mesh.owed.len(), 1);
    mesh.owed.clear();
    mesh.restart_node(0, 2);
    mesh.lines[1] = Line::Up;
    mesh.pass(30);
    assert!(mesh.notifications(socket).is_empty(), "nothing tells it");
    mesh.now.unix_us += limits::REFRESH_INTERVAL_SECONDS * 1_000_000;
    mesh.pass(30);
    assert_eq!(mesh.notifications(socket), [stored]);
    let direct = mesh.accept(0, message(uaid), Direct);
    assert_eq!(mesh.notifications(socket), [stored, direct]);
}

#[test]
fn a_refresh_that_fails_looks_at_storage_when_it_is_made() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.lines[1] = Line::Down;
    let stored = mesh.accept(0, lasting(uaid, FORTNIGHT), Stored);
    mesh.owed.clear();
    mesh.store.mode = Mode::Failing;
    mesh.now.unix_us += limits::REFRESH_INTERVAL_SECONDS * 1_000_000;
    mesh.pass(30);
    assert!(mesh.notifications(socket).is_empty());
    mesh.store.mode = Mode::Prompt;
    mesh.pass(30);
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn a_new_user_whose_first_register_fails_is_found_with_the_next() {
    for first in [Mode::Failing, Mode::Lossy] {
        let mut mesh = Mesh::nodes(2, |_| {});
        let socket = mesh.session(0, None);
        let uaid = mesh.uaid_on(socket);
        mesh.store.mode = first;
        mesh.register(socket, OTHER);
        mesh.register(socket, CHANNEL);
        assert_eq!(mesh.said(socket)[1..], [Said::Registered(500), Said::Registered(500)]);
        mesh.store.mode = Mode::Prompt;
        mesh.register(socket, CHANNEL);
        assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)], "{first:?}");
        let stamp = mesh.accept(1, message(uaid), Direct);
        assert_eq!(mesh.notifications(socket), [stamp], "{first:?}");
        // It is stored now: a row that a newer session of the user cleared is not written again.
        mesh.store.mode = Mode::Held;
        mesh.register(socket, OTHER);
        let asked = mesh.store.held.back().map(|(_, _, op)| op);
        assert!(matches!(asked, Some(StoreOp::Register { presence: None, .. })), "{first:?}: {asked:?}");
    }
}

#[test]
fn a_push_that_never_arrived_is_delivered_from_storage() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.lines[1] = Line::Down;
    let stored = mesh.accept(0, message(uaid), Stored);
    assert!(mesh.notifications(socket).is_empty());
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)], "a node that is not reached is not dead");
    // The peer client repeats the calls.
    assert_eq!(mesh.request(1, notify(uaid)), "Done");
    assert_eq!(mesh.notifications(socket), [stored]);
}

#[test]
fn a_busy_session_finds_what_was_stored_instead_in_order() {
    let mut mesh = Mesh::nodes(2, |config| config.window = 1);
    let (uaid, socket) = user_on(&mut mesh, 1);
    let first = mesh.accept(0, message(uaid), Direct);
    let second = mesh.accept(0, message(uaid), Stored);
    assert_eq!(mesh.notifications(socket), [first]);
    mesh.ack(socket, first);
    assert_eq!(mesh.notifications(socket), [first, second]);
    mesh.ack(socket, second);
    assert!(mesh.store.rows_of(uaid).is_empty());
}

#[test]
fn a_half_open_session_is_found_by_what_stays_unacked() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, stale) = user_on(&mut mesh, 0);
    mesh.lines[0] = Line::Down;
    let live = mesh.session(1, Some(uaid));
    assert_eq!(mesh.closed(stale), None, "the call to leave was lost");
    mesh.lines[0] = Line::Up;
    let sent = mesh.accept(0, message(uaid), Direct);
    assert_eq!(mesh.notifications(stale), [sent]);
    mesh.pass(12);
    assert_eq!(mesh.closed(stale), Some(CloseReason::Elsewhere));
    assert_eq!(mesh.notifications(live), [sent]);
    mesh.ack(live, sent);
    assert!(mesh.store.rows_of(uaid).is_empty() && mesh.ledger.is_empty());
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)]);
}

#[test]
fn a_session_whose_row_was_cleared_by_mistake_writes_it_again() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 0);
    let cleared = mesh.store.presence_of(uaid);
    mesh.store.clear_presence(uaid);
    mesh.accept(0, message(uaid), Direct);
    mesh.pass(12);
    assert_eq!(mesh.closed(socket), None);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 1)]);
    let written = mesh.store.presence_of(uaid);
    assert!(written[0].connected_at > cleared[0].connected_at, "a delete wins against the version that it removed");
}

#[test]
fn what_a_session_left_unacked_follows_the_user_to_the_other_node() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, first) = user_on(&mut mesh, 0);
    let sent = mesh.accept(0, message(uaid), Direct);
    // The call to leave comes when the new session has looked at storage: the save is behind that look.
    mesh.lines[0] = Line::Held;
    let second = mesh.session(1, Some(uaid));
    assert!(mesh.notifications(second).is_empty());
    mesh.lines[0] = Line::Up;
    mesh.run();
    assert_eq!(mesh.closed(first), Some(CloseReason::Elsewhere));
    assert_eq!(mesh.notifications(second), [sent]);
}

#[test]
fn durable_messages_are_stored_first_and_pushed_from_memory() {
    let mut mesh = Mesh::nodes(2, |config| config.durable = true);
    let (uaid, socket) = user_on(&mut mesh, 1);
    let stamp = mesh.accept(0, message(uaid), Direct);
    assert_eq!(mesh.notifications(socket), [stamp]);
    assert_eq!(mesh.store.rows_of(uaid).len(), 1);
    assert!(mesh.ledger.is_empty());
    mesh.ack(socket, stamp);
    assert!(mesh.store.rows_of(uaid).is_empty());
    mesh.lines[1] = Line::Mute;
    let unsure = mesh.accept(0, message(uaid), Stored);
    mesh.ack(socket, unsure);
    assert!(mesh.store.rows_of(uaid).is_empty());
    assert_eq!(mesh.notifications(socket), [stamp, unsure], "sent once though told twice");
}

#[test]
fn ttl_zero_is_sent_once_where_the_user_is_and_never_stored() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.accept(0, lasting(uaid, 0), Direct);
    assert_eq!(mesh.notifications(socket).len(), 1);
    mesh.lines[1] = Line::Down;
    mesh.accept(0, lasting(uaid, 0), Dropped);
    mesh.lines[1] = Line::Up;
    mesh.close(socket);
    mesh.accept(0, lasting(uaid, 0), Dropped);
    assert_eq!(count(&mesh, "publish"), 0);
}

#[test]
fn a_node_that_died_is_no_obstacle_and_its_ledger_follows() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, _) = user_on(&mut mesh, 1);
    let sent = mesh.accept(0, message(uaid), Direct);
    mesh.restart_node(1, 2);
    // Another boot answers there: the row of the first one is cleared.
    let stored = mesh.accept(0, message(uaid), Stored);
    assert!(nodes_of(&mesh, uaid).is_empty());
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [sent, stored]);
}

#[test]
fn a_node_clears_the_rows_of_its_own_earlier_runs() {
    let mut mesh = Mesh::nodes(1, |_| {});
    let (uaid, _) = user_on(&mut mesh, 0);
    mesh.restart_node(0, 2);
    let stored = mesh.accept(0, message(uaid), Stored);
    assert!(mesh.calls.is_empty() && nodes_of(&mesh, uaid).is_empty());
    mesh.restart_node(0, 3);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.notifications(socket), [stored]);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(0, 3)]);
}

#[test]
fn a_node_that_leaves_clears_nothing_and_its_users_lose_nothing() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 0);
    let sent = mesh.accept(1, message(uaid), Direct);
    mesh.store.seen.clear();
    mesh.step(0, Input::Drain { rate: 1_000 });
    mesh.run();
    mesh.pass(2);
    assert_eq!(mesh.closed(socket), Some(CloseReason::Draining));
    assert_eq!(mesh.drained, [0]);
    assert_eq!(count(&mesh, "clear"), 0);
    let socket = mesh.session(1, Some(uaid));
    assert_eq!(mesh.notifications(socket), [sent]);
    assert_eq!(nodes_of(&mesh, uaid), [node_id(1, 1)], "its call to leave was answered");
}

#[test]
fn storage_that_is_down_refuses_posts_and_new_sessions_and_ends_none() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let (uaid, socket) = user_on(&mut mesh, 1);
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.post(0, message(uaid)), Published::Unavailable);
    mesh.accept(1, message(uaid), Direct);
    let refused = mesh.session(0, Some(uaid));
    assert_eq!(mesh.closed(refused), Some(CloseReason::StorageDown));
    assert_eq!(mesh.closed(socket), None);
}

#[test]
fn a_session_that_nobody_would_find_is_closed() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let socket = mesh.open(1);
    mesh.say_hello(socket, Some(uaid));
    let (node, ticket, result) = mesh.store.replies.pop_front().expect("the user was read");
    mesh.store.mode = Mode::Failing;
    mesh.step(node, Input::Stored { ticket, result });
    mesh.run();
    assert_eq!(mesh.closed(socket), Some(CloseReason::StorageDown));
}

#[test]
fn a_second_look_that_fails_is_made_again_and_the_post_does_not_wait() {
    let mut mesh = Mesh::nodes(2, |_| {});
    let uaid = mesh.known_user(0);
    let post = mesh.start_post(0, message(uaid));
    answered_and_held(&mut mesh);
    let socket = mesh.session(1, Some(uaid));
    mesh.store.release();
    let (node, ticket, result) = mesh.store.replies.pop_front().expect("it was stored");
    mesh.store.mode = Mode::Failing;
    mesh.step(node, Input::Stored { ticket, result });
    mesh.run();
    assert!(matches!(mesh.answer_to(post), Some(Published::Accepted { disposition: Stored, .. })));
    assert!(mesh.notifications(socket).is_empty());
    mesh.store.mode = Mode::Prompt;
    mesh.pass(2);
    assert_eq!(mesh.notifications(socket).len(), 1);
}
