//! Relays: one connection for several user agents (PROTOCOL.md 13).

mod bounds;
mod counts;
mod order;
mod pings;

use super::*;

impl Mesh {
    /// Returns a relay whose home is `shard`.
    fn relay(&mut self, shard: usize) -> Socket {
        let socket = self.open(shard);
        self.command(socket, RelayCommand::Open);
        self.run();
        socket
    }

    fn start_attach(&mut self, relay: Socket, uaid: Option<Uaid>) {
        let fresh = self.uaid_of(self.shard_of(relay));
        let hello = Hello::new(uaid, fresh);
        self.command(relay, RelayCommand::Attach(Box::new(hello)));
    }

    /// Sends a hello on a relay. Returns the UAID of the answer.
    fn attach(&mut self, relay: Socket, uaid: Option<Uaid>) -> Uaid {
        let before = self.said(relay).len();
        self.start_attach(relay, uaid);
        self.run();
        let answered = self.said(relay)[before..].iter().find_map(|said| match said {
            Said::Of(uaid, said) if **said == Said::Hello(*uaid) => Some(*uaid),
            _ => None,
        });
        answered.expect("the hello is answered")
    }

    fn ask_for(&mut self, relay: Socket, uaid: Uaid, command: SessionCommand) {
        let command = Box::new(command);
        self.command(relay, RelayCommand::For { uaid, command });
        self.run();
    }

    fn ack_for(&mut self, relay: Socket, uaid: Uaid, stamp: Stamp) {
        let update = AckUpdate { stamp, chid: CHANNEL, topic: None, code: 100 };
        self.ask_for(relay, uaid, SessionCommand::Ack(vec![update]));
    }

    fn leave(&mut self, relay: Socket, uaid: Uaid) {
        self.command(relay, RelayCommand::Bye(uaid));
        self.run();
    }

    /// Returns the messages to one member.
    fn said_to(&self, relay: Socket, member: Uaid) -> Vec<Said> {
        let of = |said: &Said| match said {
            Said::Of(uaid, said) if *uaid == member => Some((**said).clone()),
            _ => None,
        };
        self.said(relay).iter().filter_map(of).collect()
    }

    fn notified(&self, relay: Socket, member: Uaid) -> Vec<Stamp> {
        let stamp = |said: Said| if let Said::Notification(stamp) = said { Some(stamp) } else { None };
        self.said_to(relay, member).into_iter().filter_map(stamp).collect()
    }

    fn byes(&self, relay: Socket) -> Vec<(Option<Uaid>, CloseReason)> {
        let bye = |said: &Said| if let Said::Bye(uaid, reason) = said { Some((*uaid, *reason)) } else { None };
        self.said(relay).iter().filter_map(bye).collect()
    }

    fn count(&mut self, of: impl Fn(&MachineStats) -> u64) -> u64 {
        self.machines.iter_mut().map(|machine| of(machine.stats())).sum()
    }
}

#[test]
fn a_connection_becomes_a_relay_only_where_that_is_configured() {
    let mut mesh = Mesh::new(2);
    let relay = mesh.relay(1);
    assert_eq!(mesh.said(relay), [Said::Relay(8)]);
    assert!(mesh.is_ready(relay));
    let mut mesh = Mesh::with(1, |config| config.relay_members = 0);
    let relay = mesh.relay(0);
    assert_eq!(mesh.said(relay), [Said::Closed(CloseReason::WrongState)]);
}

#[test]
fn members_are_greeted_by_their_owners_and_the_socket_stays() {
    for shards in 1..4 {
        let mut mesh = Mesh::new(shards);
        let relay = mesh.relay(0);
        for owner in 0..usize::from(shards) {
            let known = mesh.known_user(owner);
            assert_eq!(mesh.attach(relay, Some(known)), known);
            assert!(mesh.machines[owner].is_resident(known));
            let stranger = mesh.uaid_of(owner);
            let fresh = mesh.attach(relay, Some(stranger));
            assert_ne!(fresh, stranger);
            assert_eq!(mesh.placement.owner(fresh), ShardId(0), "strangers are minted where the socket is");
        }
        let new = mesh.attach(relay, None);
        assert_eq!(mesh.placement.owner(new), ShardId(0));
        assert_eq!(mesh.shard_of(relay), 0);
        let members = 2 * u64::from(shards) + 1;
        assert_eq!(mesh.machines[0].stats().relay_members, members);
        assert_eq!(mesh.count(|stats| stats.relay_seats), members);
        assert_eq!(mesh.count(|stats| stats.sessions), members);
        assert_eq!(mesh.machines[0].stats().conns, 1);
        assert!(mesh.byes(relay).is_empty() && mesh.is_ready(relay));
    }
}

#[test]
fn a_member_of_another_shard_registers_and_acks_directs() {
    for owner in 0..3 {
        let mut mesh = Mesh::new(3);
        let relay = mesh.relay(0);
        let member = mesh.known_user(owner);
        mesh.attach(relay, Some(member));
        let chid = Chid([0xc9; 16]);
        mesh.ask_for(relay, member, SessionCommand::Register { chid, key: None, caller: None });
        assert_eq!(mesh.said_to(relay, member).last(), Some(&Said::Registered(200)));
        let stamp = mesh.accept(1, Message { chid, ..message(member) }, Disposition::Direct);
        assert_eq!(mesh.notified(relay, member), [stamp]);
        assert_eq!(mesh.ledger.len(), 1);
        mesh.ack_for(relay, member, stamp);
        assert!(mesh.ledger.is_empty());
        mesh.ask_for(relay, member, SessionCommand::Unregister { chid, code: 200 });
        assert_eq!(mesh.said_to(relay, member).last(), Some(&Said::Unregistered(200)));
        assert_eq!(mesh.post(2, Message { chid, ..message(member) }), Published::NoSubscription);
    }
}

#[test]
fn what_storage_holds_reaches_a_member_in_order() {
    let mut mesh = Mesh::new(2);
    let member = mesh.known_user(1);
    let stored: Vec<Stamp> = (0..25).map(|_| mesh.accept(0, message(member), Disposition::Stored)).collect();
    let relay = mesh.relay(0);
    mesh.attach(relay, Some(member));
    for at in 0..stored.len() {
        let got = mesh.notified(relay, member);
        assert_eq!(got[at], stored[at]);
        mesh.ack_for(relay, member, got[at]);
    }
    assert_eq!(mesh.notified(relay, member), stored);
    assert!(mesh.store.rows_of(member).is_empty());
    mesh.accept(1, message(member), Disposition::Direct);
}

#[test]
fn the_newer_session_wins_over_members_and_members_over_sessions() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let (relay, other) = (mesh.relay(0), mesh.relay(1));
        mesh.attach(relay, Some(member));
        let stamp = mesh.accept(0, message(member), Disposition::Direct);
        let socket = mesh.session(0, Some(member));
        assert_eq!(mesh.byes(relay), [(Some(member), CloseReason::Superseded)]);
        assert_eq!(mesh.notifications(socket), [stamp], "what was unacked goes with the user");
        mesh.attach(other, Some(member));
        assert_eq!(mesh.closed(socket), Some(CloseReason::Superseded));
        mesh.attach(relay, Some(member));
        assert_eq!(mesh.byes(other), [(Some(member), CloseReason::Superseded)]);
        assert_eq!(mesh.notified(relay, member), [stamp, stamp]);
        assert_eq!((mesh.count(|s| s.sessions), mesh.count(|s| s.relay_seats)), (1, 1));
    }
}

#[test]
fn a_second_hello_of_a_member_begins_a_new_session() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        mesh.attach(relay, Some(member));
        let stamp = mesh.accept(1, message(member), Disposition::Direct);
        mesh.start_attach(relay, Some(member));
        mesh.run();
        assert_eq!(mesh.byes(relay), [(Some(member), CloseReason::Superseded)]);
        assert_eq!(mesh.notified(relay, member), [stamp, stamp]);
        assert_eq!(mesh.machines[0].stats().relay_members, 1);
    }
}

#[test]
fn a_relay_that_goes_saves_what_each_of_its_members_has_not_acked() {
    let mut mesh = Mesh::new(3);
    let members: Vec<Uaid> = (0..6).map(|n| mesh.known_user(n % 3)).collect();
    let relay = mesh.relay(0);
    for member in &members {
        mesh.attach(relay, Some(*member));
    }
    let sent = |mesh: &mut Mesh| members.iter().map(|m| mesh.accept(1, message(*m), Disposition::Direct)).collect();
    let (acked, unacked): (Vec<Stamp>, Vec<Stamp>) = (sent(&mut mesh), sent(&mut mesh));
    for (member, stamp) in members.iter().zip(&acked) {
        mesh.ack_for(relay, *member, *stamp);
    }
    mesh.close(relay);
    mesh.pass(1);
    assert!(mesh.ledger.is_empty(), "storage has them");
    assert_eq!((mesh.count(|s| s.sessions), mesh.count(|s| s.relay_seats), mesh.count(|s| s.relays)), (0, 0, 0));
    assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
    let relay = mesh.relay(2);
    for (member, stamp) in members.iter().zip(&unacked) {
        mesh.attach(relay, Some(*member));
        assert_eq!(mesh.notified(relay, *member), [*stamp], "once, and not what was acked");
        mesh.ack_for(relay, *member, *stamp);
        assert!(mesh.store.rows_of(*member).is_empty());
    }
}

#[test]
fn a_relay_that_goes_while_a_member_is_greeted_leaves_nothing() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        mesh.store.mode = Mode::Held;
        mesh.start_attach(relay, Some(member));
        mesh.run();
        mesh.close(relay);
        mesh.store.release();
        mesh.pass(1);
        assert!(!mesh.machines[owner].is_resident(member));
        assert_eq!((mesh.count(|s| s.relay_seats), mesh.count(|s| s.relay_members)), (0, 0));
        assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
    }
}

#[test]
fn frames_that_the_socket_of_a_relay_refused_go_out_again_in_order() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let (member, other) = (mesh.known_user(owner), mesh.known_user(1));
        let relay = mesh.relay(0);
        mesh.attach(relay, Some(member));
        mesh.attach(relay, Some(other));
        let sent: Vec<Stamp> = (0..3).map(|_| mesh.accept(0, message(member), Disposition::Direct)).collect();
        mesh.block(relay);
        mesh.unsend(relay, 2);
        mesh.run();
        let late = mesh.accept(0, message(member), Disposition::Stored);
        let waits = mesh.accept(0, message(other), Disposition::Direct);
        assert_eq!(mesh.notified(relay, member), sent, "nothing goes to a blocked socket");
        assert!(mesh.notified(relay, other).is_empty());
        mesh.unblock(relay);
        mesh.pass(1);
        assert_eq!(mesh.notified(relay, member), [sent[0], sent[1], sent[2], sent[1], sent[2], late]);
        assert_eq!(mesh.notified(relay, other), [waits]);
        let next = mesh.accept(0, message(other), Disposition::Direct);
        assert_eq!(mesh.notified(relay, other), [waits, next]);
    }
}

#[test]
fn what_was_on_its_way_does_not_overtake_what_was_refused() {
    let mut mesh = Mesh::new(2);
    let member = mesh.known_user(1);
    let relay = mesh.relay(0);
    mesh.attach(relay, Some(member));
    mesh.hold_mail = true;
    let posts: Vec<_> = (0..3).map(|_| mesh.start_post(1, message(member))).collect();
    // The first is refused, the others come when the socket takes bytes again.
    mesh.block(relay);
    let (to, first) = mesh.mail.pop_front().expect("the first is on its way");
    mesh.step(to, Input::Mail(first));
    mesh.hold_mail = false;
    mesh.unblock(relay);
    mesh.pass(1);
    let stamps: Vec<Stamp> = posts.into_iter().map(|post| stamp_of(mesh.answer_to(post))).collect();
    assert_eq!(mesh.notified(relay, member), stamps);
    assert_eq!(mesh.machines[0].stats().member_words_refused, 3);
}

#[test]
fn a_blocked_relay_keeps_one_broadcast_for_each_member() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        mesh.attach(relay, Some(member));
        let version = |version: &str| BroadcastVersion { id: "a".into(), version: version.into() };
        mesh.step(owner, Input::Broadcasts([version("1")].into()));
        mesh.ask_for(relay, member, SessionCommand::BroadcastSubscribe(vec![version("1")]));
        mesh.block(relay);
        for n in 2..9 {
            mesh.step(owner, Input::Broadcasts([version(&n.to_string())].into()));
            mesh.run();
        }
        let told =
            |mesh: &Mesh| mesh.said_to(relay, member).iter().filter(|s| matches!(s, Said::Broadcast(..))).count();
        assert_eq!(told(&mesh), 1);
        mesh.unblock(relay);
        mesh.pass(1);
        assert_eq!(told(&mesh), 2, "the latest value follows");
    }
}

#[test]
fn a_member_leaves_and_what_crosses_its_bye_is_answered_with_another() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        mesh.attach(relay, Some(member));
        let stamp = mesh.accept(0, message(member), Disposition::Direct);
        mesh.leave(relay, member);
        assert_eq!(mesh.byes(relay), [(Some(member), CloseReason::PeerClosed)]);
        assert!(!mesh.machines[owner].is_resident(member));
        assert_eq!(mesh.store.rows_of(member).len(), 1);
        mesh.ack_for(relay, member, stamp);
        assert_eq!(mesh.byes(relay).last(), Some(&(Some(member), CloseReason::WrongState)));
        mesh.leave(relay, member);
        assert_eq!(mesh.byes(relay).len(), 3);
        assert_eq!(mesh.machines[0].stats().members_unknown, 1);
        mesh.attach(relay, Some(member));
        assert_eq!(mesh.notified(relay, member), [stamp, stamp]);
    }
}

#[test]
fn words_of_a_seat_that_was_left_reach_nobody() {
    let mut mesh = Mesh::new(2);
    let member = mesh.known_user(1);
    let relay = mesh.relay(0);
    mesh.attach(relay, Some(member));
    mesh.hold_mail = true;
    let post = mesh.start_post(1, message(member));
    mesh.leave(relay, member);
    mesh.start_attach(relay, Some(member));
    mesh.hold_mail = false;
    mesh.run();
    let stamp = stamp_of(mesh.answer_to(post));
    // Only the new session writes it: events of the old one came behind the bye.
    assert_eq!(mesh.notified(relay, member), [stamp]);
    mesh.ack_for(relay, member, stamp);
    assert!(mesh.store.rows_of(member).is_empty() && mesh.ledger.is_empty());
}

#[test]
fn storage_that_cannot_say_ends_the_hello_of_a_member_and_not_the_relay() {
    for owner in 0..2 {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        mesh.store.mode = Mode::Failing;
        mesh.start_attach(relay, Some(member));
        mesh.run();
        assert_eq!(mesh.byes(relay), [(Some(member), CloseReason::StorageDown)]);
        mesh.store.mode = Mode::Prompt;
        assert_eq!(mesh.attach(relay, Some(member)), member);
    }
}

#[test]
fn relays_and_members_are_bounded_and_members_count_as_sessions() {
    let mut mesh = Mesh::with(2, |config| {
        config.sessions_max = 5;
        config.relay_members = 3;
    });
    let relay = mesh.relay(0);
    for owner in [0, 1, 1] {
        let member = mesh.known_user(owner);
        mesh.attach(relay, Some(member));
    }
    mesh.start_attach(relay, None);
    mesh.run();
    assert_eq!(mesh.byes(relay), [(None, CloseReason::Overloaded)]);
    assert_eq!(mesh.machines[0].stats().members_refused, 1);
    let another = mesh.relay(1);
    let third = mesh.relay(1);
    for _ in 0..3 {
        mesh.attach(another, None);
    }
    mesh.start_attach(third, None);
    mesh.run();
    assert_eq!(mesh.byes(third), [(None, CloseReason::Overloaded)], "five sessions are there");
    let known = mesh.known_user(1);
    mesh.start_attach(third, Some(known));
    mesh.run();
    assert_eq!(mesh.byes(third).last(), Some(&(Some(known), CloseReason::Overloaded)));
    assert!(mesh.is_ready(third));

    let mut mesh = Mesh::new(1);
    let relays: Vec<Socket> = (0..=limits::RELAYS_MAX).map(|_| mesh.relay(0)).collect();
    assert_eq!(mesh.closed(relays[limits::RELAYS_MAX]), Some(CloseReason::Overloaded));
    mesh.close(relays[0]);
    let relay = mesh.relay(0);
    assert_eq!(mesh.said(relay), [Said::Relay(8)]);
}

#[test]
fn sigterm_ends_members_at_the_drain_rate_and_then_their_relay() {
    let mut mesh = Mesh::new(2);
    let members: Vec<Uaid> = (0..8).map(|n| mesh.known_user(n % 2)).collect();
    let relay = mesh.relay(0);
    for member in &members {
        mesh.attach(relay, Some(*member));
    }
    for member in &members {
        mesh.accept(0, message(*member), Disposition::Direct);
    }
    for shard in 0..2 {
        mesh.step(shard, Input::Drain { rate: 50 });
    }
    mesh.start_attach(relay, None);
    mesh.run();
    assert_eq!(mesh.byes(relay), [(None, CloseReason::Draining)]);
    mesh.pass(5);
    assert_eq!(mesh.byes(relay).len(), 9);
    assert!(mesh.byes(relay).iter().all(|(_, reason)| *reason == CloseReason::Draining));
    assert_eq!(mesh.closed(relay), Some(CloseReason::Draining));
    assert_eq!(mesh.drained.len(), 2);
    assert!(mesh.ledger.is_empty());
    assert!(members.iter().all(|member| mesh.store.rows_of(*member).len() == 1));
}

#[test]
fn members_whose_words_nobody_takes_end_and_lose_nothing() {
    let mut mesh = Mesh::new(2);
    let members: Vec<Uaid> = (0..8).map(|_| mesh.known_user(1)).collect();
    let relay = mesh.relay(0);
    let version = |version: u32| BroadcastVersion { id: "a".into(), version: version.to_string().into() };
    mesh.step(1, Input::Broadcasts([version(0)].into()));
    for member in &members {
        mesh.attach(relay, Some(*member));
        mesh.ask_for(relay, *member, SessionCommand::BroadcastSubscribe(vec![version(0)]));
    }
    mesh.hold_mail = true;
    let post = mesh.start_post(1, message(members[0]));
    let most = limits::reply_credit(2) + limits::CREDIT_WAITERS_MAX;
    for n in 1..=(most / members.len() + 1) as u32 {
        mesh.step(1, Input::Broadcasts([version(n)].into()));
    }
    assert_eq!(mesh.machines[1].stats().members_choked, 8);
    mesh.hold_mail = false;
    mesh.run();
    assert_eq!(mesh.byes(relay).len(), 8);
    assert!(mesh.byes(relay).iter().all(|(_, reason)| *reason == CloseReason::Overloaded));
    let stamp = stamp_of(mesh.answer_to(post));
    mesh.attach(relay, Some(members[0]));
    assert_eq!(mesh.notified(relay, members[0]), [stamp, stamp]);
}

fn stamp_of(answer: Option<Published>) -> Stamp {
    match answer {
        Some(Published::Accepted { stamp, .. }) => stamp,
        other => panic!("not accepted: {other:?}"),
    }
}
