//! Dead endpoints without a cost, and the limits of one endpoint and of one user.

use super::*;

fn publishes_seen(mesh: &Mesh) -> usize {
    mesh.store.seen.iter().filter(|kind| **kind == "publish").count()
}

#[test]
fn a_dead_endpoint_costs_one_storage_read() {
    let mut mesh = Mesh::new(2);
    let stranger = mesh.uaid_of(1);
    for _ in 0..20 {
        assert_eq!(mesh.post(0, message(stranger)), Published::NoSubscription);
    }
    let broken = Publish { uaid: stranger, chid: CHANNEL, message: Err(Refusal(4)) };
    assert_eq!(mesh.publish(0, broken), Published::NoSubscription, "410 comes before the broken rule");
    assert_eq!(publishes_seen(&mesh), 1);
    assert_eq!(mesh.machines[1].stats().dead_endpoint_hits, 20);
    assert_eq!(mesh.machines[1].stats().publishes_unregistered, 21);
    mesh.pass(61);
    assert_eq!(mesh.post(0, message(stranger)), Published::NoSubscription);
    assert_eq!(publishes_seen(&mesh), 2, "storage is asked again after a minute");
}

#[test]
fn a_connected_user_answers_without_storage() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.session(0, Some(uaid));
    let elsewhere = Message { chid: Chid([7; 16]), ..message(uaid) };
    assert_eq!(mesh.post(0, elsewhere), Published::NoSubscription);
    assert_eq!(publishes_seen(&mesh), 0);
}

#[test]
fn a_register_revives_the_endpoint_at_once() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, OTHER);
    mesh.close(socket);
    assert_eq!(mesh.post(0, message(uaid)), Published::NoSubscription);
    let socket = mesh.session(0, Some(uaid));
    mesh.register(socket, CHANNEL);
    mesh.close(socket);
    mesh.accept(0, message(uaid), Disposition::Stored);
}

#[test]
fn an_error_of_storage_kills_no_endpoint() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    mesh.store.mode = Mode::Failing;
    assert_eq!(mesh.post(0, message(uaid)), Published::Unavailable);
    mesh.store.mode = Mode::Prompt;
    mesh.accept(0, message(uaid), Disposition::Stored);
}

/// Storage refused the POST before the register reached it; its answer comes last. No shard may remember it.
#[test]
fn an_older_no_does_not_outlive_a_register() {
    for register_answered in [false, true] {
        let mut mesh = Mesh::new(1);
        let socket = mesh.session(0, None);
        let uaid = mesh.uaid_on(socket);
        mesh.register(socket, OTHER);
        mesh.close(socket);
        let post = mesh.start_post(0, message(uaid));
        // Storage has refused, and no reply has arrived yet.
        let no = mesh.store.replies.pop_front().expect("storage answered the POST");
        let socket = mesh.session(0, Some(uaid));
        mesh.store.mode = Mode::Held;
        mesh.command(socket, SessionCommand::Register { chid: CHANNEL, key: None, caller: None });
        if register_answered {
            mesh.store.release();
            mesh.run();
        }
        mesh.store.replies.push_back(no);
        mesh.run();
        assert_eq!(mesh.answer_to(post), Some(Published::NoSubscription), "as it was when it was asked");
        mesh.store.release();
        mesh.run();
        assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(200)));
        mesh.close(socket);
        mesh.accept(0, message(uaid), Disposition::Stored);
    }
}

#[test]
fn an_endpoint_takes_its_rate_and_says_when_to_try_again() {
    let mut mesh = Mesh::with(2, |config| config.token_rate = 1);
    let (here, away) = (mesh.known_user(1), mesh.known_user(1));
    mesh.session(1, Some(here));
    for uaid in [here, away] {
        for _ in 0..10 {
            assert!(matches!(mesh.post(0, message(uaid)), Published::Accepted { .. }));
        }
        assert_eq!(mesh.post(0, message(uaid)), Published::TooMany { retry_after: 1 });
        assert_eq!(mesh.post(1, message(uaid)), Published::TooMany { retry_after: 1 }, "wherever it lands");
        let other = Message { chid: OTHER, ..message(uaid) };
        assert!(matches!(mesh.post(0, other), Published::Accepted { .. }), "each endpoint has its own");
    }
    let before = publishes_seen(&mesh);
    assert_eq!(mesh.post(0, message(away)), Published::TooMany { retry_after: 1 });
    assert_eq!(publishes_seen(&mesh), before, "a refusal costs no storage");
    assert_eq!(mesh.machines[1].stats().token_rate_refused, 5);
    mesh.pass(1);
    assert!(matches!(mesh.post(0, message(away)), Published::Accepted { .. }));
    assert_eq!(mesh.post(0, message(away)), Published::TooMany { retry_after: 1 });
}

#[test]
fn without_a_rate_nothing_is_refused() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    (0..1_000).for_each(|_| assert!(matches!(mesh.post(0, message(uaid)), Published::Accepted { .. })));
}

#[test]
fn a_user_has_a_budget_of_stored_bytes_a_day() {
    let one = message(Uaid([0; 16])).encoded_len() as u64;
    let mut mesh = Mesh::with(1, |config| config.user_bytes_per_day = 3 * one);
    let (uaid, other) = (mesh.known_user(0), mesh.known_user(0));
    for _ in 0..3 {
        mesh.accept(0, message(uaid), Disposition::Stored);
    }
    let left = 86_400 - mesh.now.unix().0 % 86_400;
    assert!(left > 3_600);
    assert_eq!(mesh.post(0, message(uaid)), Published::OverBudget { retry_after: 3_600 });
    mesh.accept(0, message(other), Disposition::Stored);
    mesh.accept(0, lasting(uaid, 0), Disposition::Dropped);
    // A session takes directs as always, and its unacked messages are saved with any budget.
    let socket = mesh.session(0, Some(uaid));
    for stamp in mesh.notifications(socket) {
        mesh.ack(socket, stamp);
    }
    let direct = mesh.accept(0, message(uaid), Disposition::Direct);
    mesh.pass(12);
    assert_eq!(mesh.store.rows_of(uaid).iter().map(|m| m.stamp).collect::<Vec<_>>(), [direct]);
    mesh.close(socket);
    mesh.now.unix_us += (left - 100) * 1_000_000;
    assert!(matches!(mesh.post(0, message(uaid)), Published::OverBudget { retry_after } if retry_after < 101));
    mesh.now.unix_us += 100_000_000;
    mesh.accept(0, message(uaid), Disposition::Stored);
    assert_eq!(mesh.machines[0].stats().budget_refused, 2);
}

#[test]
fn what_storage_refuses_is_not_charged() {
    let one = message(Uaid([0; 16])).encoded_len() as u64;
    let mut mesh = Mesh::with(1, |config| config.user_bytes_per_day = one);
    let uaid = mesh.known_user(0);
    mesh.store.mode = Mode::Failing;
    (0..5).for_each(|_| assert_eq!(mesh.post(0, message(uaid)), Published::Unavailable));
    mesh.store.mode = Mode::Prompt;
    mesh.accept(0, message(uaid), Disposition::Stored);
    assert!(matches!(mesh.post(0, message(uaid)), Published::OverBudget { .. }));
}
