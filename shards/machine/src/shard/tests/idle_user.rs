//! Users without a channel: when the end of a session drops them, and when it must not.

use super::registration::{channel, device};
use super::*;

/// Ends both channels of a known user.
fn unregister_all(mesh: &mut Mesh, socket: Socket) {
    for chid in [CHANNEL, OTHER] {
        mesh.command(socket, SessionCommand::Unregister { chid, code: 200 });
        mesh.run();
        assert_eq!(mesh.said(socket).last(), Some(&Said::Unregistered(200)));
    }
}

/// Returns a user in storage that has no channel, and a session of it.
fn idle_user(mesh: &mut Mesh, shard: usize) -> (Uaid, Socket) {
    let uaid = mesh.known_user(shard);
    let socket = mesh.session(shard, Some(uaid));
    unregister_all(mesh, socket);
    (uaid, socket)
}

fn dropped(mesh: &mut Mesh) -> u64 {
    mesh.machines.iter_mut().map(|machine| machine.stats().idle_users_dropped).sum()
}

fn asked_to_drop(mesh: &Mesh) -> usize {
    mesh.store.seen.iter().filter(|seen| **seen == "drop idle").count()
}

#[test]
fn a_user_without_a_channel_is_dropped_when_its_session_ends() {
    let mut mesh = Mesh::new(2);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![]), "while its session lives it stays");
    mesh.close(socket);
    assert_eq!((mesh.store.channels_of(uaid), dropped(&mut mesh)), (None, 1));
    assert!(mesh.machines[0].is_quiet());
}

#[test]
fn a_new_user_that_unregisters_leaves_nothing() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.register(socket, CHANNEL);
    // The answer does not come before the session ends.
    mesh.store.mode = Mode::Held;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.close(socket);
    mesh.store.release();
    mesh.run();
    assert_eq!((mesh.store.channels_of(uaid), dropped(&mut mesh)), (None, 1));
}

#[test]
fn a_dropped_user_comes_back_with_its_uaid_and_is_no_new_one() {
    let mut mesh = Mesh::new(2);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.close(socket);
    // At its owner, and where its socket has to move.
    for landing in [0, 1, 1] {
        let socket = mesh.session(landing, Some(uaid));
        assert_eq!((mesh.said(socket), mesh.shard_of(socket)), (&[Said::Hello(uaid)][..], 0));
        mesh.store.seen.clear();
        mesh.close(socket);
        assert!(mesh.store.seen.is_empty(), "nothing was written: {:?}", mesh.store.seen);
    }
    let stats = mesh.machines[0].stats().clone();
    assert_eq!((stats.hellos_returned, stats.hellos_reassigned, stats.hellos_new), (3, 0, 0));
    let socket = mesh.session(1, Some(uaid));
    mesh.register(socket, CHANNEL);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
    let stamp = mesh.accept(0, message(uaid), Disposition::Direct);
    assert_eq!(mesh.notifications(socket), [stamp]);
}

/// It names its minimum once, and nothing keeps it: under a fresh UAID it names it again.
#[test]
fn a_dropped_user_that_names_a_minimum_and_leaves_starts_over() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.close(socket);
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid);
    assert_eq!(mesh.set_minimum(socket, Urgency::High), Some(200));
    mesh.close(socket);
    let again = mesh.session(0, Some(uaid));
    assert_ne!(mesh.uaid_on(again), uaid);
}

#[test]
fn a_user_that_is_removed_after_its_return_starts_over() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.close(socket);
    let socket = mesh.session(0, Some(uaid));
    mesh.register(socket, CHANNEL);
    mesh.close(socket);
    mesh.store.done(&StoreOp::DropUser { uaid });
    let socket = mesh.session(0, Some(uaid));
    assert_ne!(mesh.uaid_on(socket), uaid, "its user agent has a subscription that must end");
}

#[test]
fn a_user_that_another_removal_took_is_not_remembered() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.store.done(&StoreOp::DropUser { uaid });
    mesh.close(socket);
    let socket = mesh.session(0, Some(uaid));
    assert_ne!(mesh.uaid_on(socket), uaid);
    assert_eq!(dropped(&mut mesh), 0);
}

#[test]
fn a_hello_that_names_a_channel_starts_over_under_reconciliation() {
    let mut mesh = Mesh::with(1, |config| config.reconcile = true);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.close(socket);
    mesh.channels = Some([].into());
    let socket = mesh.session(0, Some(uaid));
    assert_eq!(mesh.uaid_on(socket), uaid);
    mesh.close(socket);
    mesh.channels = Some([CHANNEL].into());
    let socket = mesh.session(0, Some(uaid));
    assert_ne!(mesh.uaid_on(socket), uaid);
}

#[test]
fn a_restart_forgets_who_was_dropped() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.close(socket);
    mesh.restart();
    let socket = mesh.session(0, Some(uaid));
    assert_ne!(mesh.uaid_on(socket), uaid);
    assert_eq!(mesh.machines[0].stats().hellos_reassigned, 1);
}

/// One row for each reason for which nobody asks storage.
#[test]
fn a_user_of_whom_something_is_under_way_stays() {
    type Case = (&'static str, fn(&mut Mesh, Uaid, Socket));
    let cases: [Case; 7] = [
        ("a channel", |mesh, _, socket| {
            mesh.register(socket, CHANNEL);
            mesh.close(socket);
        }),
        ("a register at storage", |mesh, _, socket| {
            mesh.store.mode = Mode::Held;
            mesh.command(socket, SessionCommand::Register { chid: CHANNEL, key: None, caller: None });
            mesh.close(socket);
            mesh.store.release();
            mesh.run();
        }),
        ("a minimum", |mesh, _, socket| {
            assert_eq!(mesh.set_minimum(socket, Urgency::High), Some(200));
            mesh.close(socket);
        }),
        ("a minimum at storage", |mesh, _, socket| {
            mesh.store.mode = Mode::Held;
            mesh.command(socket, SessionCommand::Urgency { minimum: Some(Urgency::High) });
            mesh.close(socket);
            mesh.store.release();
            mesh.run();
        }),
        ("a newer session", |mesh, uaid, socket| {
            mesh.session(0, Some(uaid));
            assert_eq!(mesh.closed(socket), Some(CloseReason::Superseded));
        }),
        ("a call of the registration API", |mesh, uaid, socket| {
            mesh.store.mode = Mode::Held;
            mesh.start_registration(0, uaid, RegistrationCall::Subscribe(Ok(channel(CHANNEL))));
            mesh.close(socket);
            mesh.store.release();
            mesh.run();
            assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
        }),
        ("a drain", |mesh, _, socket| {
            mesh.step(0, Input::Drain { rate: 1 });
            mesh.close(socket);
        }),
    ];
    for (what, happens) in cases {
        let mut mesh = Mesh::new(1);
        let (uaid, socket) = idle_user(&mut mesh, 0);
        happens(&mut mesh, uaid, socket);
        assert!(mesh.store.channels_of(uaid).is_some(), "{what}");
        assert_eq!(asked_to_drop(&mesh), 0, "{what}");
    }
}

/// A register that was answered 500 has taken effect or not: storage knows.
#[test]
fn a_register_that_failed_with_effect_keeps_its_user() {
    for mode in [Mode::Failing, Mode::Lossy] {
        let mut mesh = Mesh::new(1);
        let (uaid, socket) = idle_user(&mut mesh, 0);
        mesh.store.mode = mode;
        mesh.register(socket, CHANNEL);
        assert_eq!(mesh.said(socket).last(), Some(&Said::Registered(500)));
        mesh.store.mode = Mode::Prompt;
        mesh.close(socket);
        assert_eq!(mesh.store.channels_of(uaid), (mode == Mode::Lossy).then(|| vec![CHANNEL]));
    }
}

/// As a probe does whose register failed.
#[test]
fn an_unregister_behind_a_register_that_failed_leaves_nothing() {
    let mut mesh = Mesh::new(1);
    let socket = mesh.session(0, None);
    let uaid = mesh.uaid_on(socket);
    mesh.store.mode = Mode::Lossy;
    mesh.register(socket, CHANNEL);
    mesh.store.mode = Mode::Prompt;
    mesh.command(socket, SessionCommand::Unregister { chid: CHANNEL, code: 200 });
    mesh.close(socket);
    assert_eq!((mesh.store.channels_of(uaid), dropped(&mut mesh)), (None, 1));
}

/// Storage has what the session does not know.
#[test]
fn storage_keeps_a_user_with_a_channel_a_bridge_or_a_minimum() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.store.add_user(uaid, &[CHANNEL], UnixSeconds(0));
    mesh.close(socket);
    assert_eq!((mesh.store.channels_of(uaid), asked_to_drop(&mesh)), (Some(vec![CHANNEL]), 1));
    let bridged = registration::bridged_user(&mut mesh, 0);
    mesh.registration(0, bridged, RegistrationCall::Unsubscribe(Some(CHANNEL)));
    assert_eq!(
        mesh.registration(0, bridged, RegistrationCall::Update(Ok(Some(device("t"))))),
        RegistrationAnswer::Done
    );
    let minimum = crate::simplepush::Contact { minimum: Some(Urgency::Low), ..Default::default() };
    let quiet = mesh.uaid_of(0);
    mesh.store.add_user(quiet, &[CHANNEL], UnixSeconds(0));
    mesh.store.done(&StoreOp::SetContact { uaid: quiet, contact: Box::new(minimum), durable: true });
    mesh.store.done(&StoreOp::Unregister { uaid: quiet, chid: CHANNEL, at: Clock(2) });
    for uaid in [bridged, quiet] {
        assert!(matches!(mesh.store.model.apply(&StoreOp::DropIdle { uaid }), Ok(StoreReply::Kept)));
    }
}

#[test]
fn a_drop_that_failed_leaves_the_user_to_its_next_session() {
    for mode in [Mode::Failing, Mode::Lossy] {
        let mut mesh = Mesh::new(1);
        let (uaid, socket) = idle_user(&mut mesh, 0);
        mesh.store.mode = mode;
        mesh.close(socket);
        mesh.store.mode = Mode::Prompt;
        assert_eq!(mesh.store.channels_of(uaid).is_some(), mode == Mode::Failing);
        let socket = mesh.session(0, Some(uaid));
        assert_eq!(mesh.uaid_on(socket) == uaid, mode == Mode::Failing);
        mesh.close(socket);
        assert_eq!(mesh.store.channels_of(uaid), None);
    }
}

/// Its hello comes while the drop is at storage.
#[test]
fn a_session_that_begins_behind_the_drop_keeps_its_uaid() {
    let mut mesh = Mesh::new(1);
    let (uaid, socket) = idle_user(&mut mesh, 0);
    mesh.store.mode = Mode::Held;
    mesh.close(socket);
    let socket = mesh.session(0, Some(uaid));
    mesh.store.release();
    mesh.run();
    assert_eq!(mesh.said(socket), [Said::Hello(uaid)]);
    mesh.register(socket, CHANNEL);
    mesh.close(socket);
    assert_eq!(mesh.store.channels_of(uaid), Some(vec![CHANNEL]));
}

/// A user agent in SimplePush mode says again how it is reached.
#[test]
fn a_user_of_simplepush_is_dropped_and_registers_whole() {
    let mut mesh = Mesh::new(1);
    let uaid = mesh.known_user(0);
    for _ in 0..2 {
        let socket = mesh.open(0);
        mesh.say_hello_as(socket, Some(uaid), Reach::Simple, Some("at=here"));
        mesh.run();
        assert_eq!(mesh.uaid_on(socket), uaid);
        mesh.register(socket, CHANNEL);
        let contact = mesh.store.contact_of(uaid);
        assert!(contact.mode == Reach::Simple && contact.wake.is_some());
        unregister_all(&mut mesh, socket);
        mesh.close(socket);
        assert_eq!(mesh.store.channels_of(uaid), None);
    }
}
