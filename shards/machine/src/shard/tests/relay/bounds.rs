//! Steps that touch many members or many relays keep within the effects of a step.

use super::*;

/// Returns a relay at shard 0 with this many members at shard 1.
fn crowd(mesh: &mut Mesh, members: usize) -> (Socket, Vec<Uaid>) {
    let relay = mesh.relay(0);
    let users: Vec<Uaid> = (0..members).map(|_| mesh.known_user(1)).collect();
    for uaid in &users {
        mesh.attach(relay, Some(*uaid));
    }
    (relay, users)
}

fn tune(config: &mut MachineConfig) {
    config.relay_members = limits::RELAY_MEMBERS_MAX as u16;
    config.sessions_max = 10_000;
    config.ledger_bytes_max = 64 << 20;
    config.ping_interval = TimeSpan(0);
    config.broadcast_spread = TimeSpan::from_ms(20);
}

/// The messages of each member have expired by the time it is closed, and each ends with its own effect.
#[test]
fn a_drain_closes_members_within_the_effects_of_a_step() {
    let mut mesh = Mesh::with(2, tune);
    let (relay, users) = crowd(&mut mesh, 1_100);
    for uaid in &users {
        for _ in 0..5 {
            mesh.accept(1, lasting(*uaid, 1), Disposition::Direct);
        }
    }
    mesh.store.mode = Mode::Held;
    mesh.step(1, Input::Drain { rate: 1_000_000 });
    mesh.pass(5);
    assert_eq!(mesh.byes(relay).len(), users.len());
    assert!(mesh.ledger.is_empty());
}

/// The home does not answer, the queue of waiters for credit is full, and a broadcast finds no room in it.
#[test]
fn members_whose_words_find_no_room_end_within_the_effects_of_a_step() {
    let mut mesh = Mesh::with(2, tune);
    mesh.step(1, Input::Broadcasts([BroadcastVersion { id: "a".into(), version: "1".into() }].into()));
    let (relay, users) = crowd(&mut mesh, 1_100);
    for uaid in &users {
        let subscribe =
            SessionCommand::BroadcastSubscribe(vec![BroadcastVersion { id: "a".into(), version: "1".into() }]);
        mesh.ask_for(relay, *uaid, subscribe);
    }
    mesh.hold_mail = true;
    let room = limits::CREDIT_WAITERS_MAX + limits::reply_credit(2);
    for n in 0..room {
        mesh.accept(1, lasting(users[n % users.len()], 5), Disposition::Direct);
    }
    assert_eq!(mesh.count(|stats| stats.members_choked), 0);
    mesh.pass(6);
    mesh.step(1, Input::Broadcasts([BroadcastVersion { id: "a".into(), version: "2".into() }].into()));
    mesh.pass(5);
    assert_eq!(mesh.count(|stats| stats.members_choked), users.len() as u64);
    assert!(mesh.ledger.is_empty());
    mesh.hold_mail = false;
    mesh.run();
    assert_eq!(mesh.byes(relay).len(), users.len());
}

/// All relays of a shard are silent at once, each with members at every other shard.
#[test]
fn silent_relays_end_within_the_effects_of_a_step() {
    const SHARDS: u16 = 20;
    let mut mesh = Mesh::with(SHARDS, |config| {
        tune(config);
        config.ping_interval = TimeSpan::from_secs(10);
    });
    let relays: Vec<Socket> = (0..limits::RELAYS_MAX).map(|_| mesh.relay(0)).collect();
    for relay in &relays {
        for owner in 1..usize::from(SHARDS) {
            let member = mesh.known_user(owner);
            mesh.attach(*relay, Some(member));
        }
    }
    mesh.pass(16);
    assert!(relays.iter().all(|relay| mesh.closed(*relay) == Some(CloseReason::PongTimeout)));
    assert_eq!(mesh.count(|stats| stats.sessions), 0);
}
