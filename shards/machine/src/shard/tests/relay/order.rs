//! Relays while mails, answers of storage and refused frames come in any order that their lanes allow.

use proptest::prelude::*;

use super::*;

/// Delivers the first mail of a lane: of requests to a shard, or of replies.
fn deliver(mesh: &mut Mesh, lane: (usize, bool)) {
    let at = mesh.mail.iter().position(|mail| lane_of(mail) == lane).expect("a mail is on its way");
    let (to, mail) = mesh.mail.remove(at).expect("a place that was found");
    mesh.step(to, Input::Mail(mail));
}

fn lane_of((to, mail): &(usize, Mail)) -> (usize, bool) {
    (*to, matches!(mail, Mail::Reply { .. }))
}

/// Delivers a mail of some lane; each lane keeps its order.
fn deliver_some(mesh: &mut Mesh, draw: usize) {
    let mut lanes: Vec<(usize, bool)> = mesh.mail.iter().map(lane_of).collect();
    lanes.sort_unstable();
    lanes.dedup();
    if !lanes.is_empty() {
        deliver(mesh, lanes[draw % lanes.len()]);
    }
}

fn store_answers(mesh: &mut Mesh) {
    while let Some((shard, ticket, result)) = mesh.store.replies.pop_front() {
        mesh.step(shard, Input::Stored { ticket, result });
    }
}

/// A socket that takes frames or refuses them.
#[derive(Default)]
struct Taken {
    stamps: Vec<Stamp>,
    seen: usize,
    /// Frames that it has taken for good: all until it took bytes again.
    kept: usize,
    blocked: bool,
}

impl Taken {
    /// Reads the messages since the last call.
    fn look(&mut self, mesh: &Mesh, relay: Socket, member: Uaid) {
        let all = mesh.notified(relay, member);
        assert!(!self.blocked || all.len() == self.seen, "no notification is handed to a blocked socket");
        self.stamps.extend(&all[self.seen..]);
        self.seen = all.len();
    }

    /// Refuses the last frames.
    fn refuse(&mut self, mesh: &mut Mesh, relay: Socket, count: usize) {
        let count = count.min(self.stamps.len() - self.kept);
        self.stamps.truncate(self.stamps.len() - count);
        mesh.unsend(relay, count);
    }
}

#[test]
fn a_round_begins_only_when_all_that_was_refused_is_known() {
    let mut mesh = Mesh::new(2);
    let member = mesh.known_user(1);
    let relay = mesh.relay(0);
    mesh.attach(relay, Some(member));
    let conn = mesh.sockets[relay.0].conn;
    let (to_home, to_owner, answer) = ((0, false), (1, false), (1, true));
    mesh.hold_mail = true;
    // Two notifications are refused, and each time the socket takes bytes again before the owner has heard of it.
    let posts = [mesh.start_post(1, message(member)), mesh.start_post(1, message(member))];
    for _ in 0..2 {
        mesh.block(relay);
        deliver(&mut mesh, to_home);
        mesh.step(0, Input::Writable { conn });
    }
    // The first notification of it begins the next round; the second is still on its way.
    for lane in [to_owner, answer, answer] {
        deliver(&mut mesh, lane);
    }
    mesh.step(1, Input::Timeout);
    // Of that round the socket does not take the first frame, and the second is refused.
    deliver(&mut mesh, to_home);
    mesh.block(relay);
    mesh.unsend(relay, 1);
    deliver(&mut mesh, to_home);
    mesh.step(0, Input::Writable { conn });
    // The owner knows of the second frame, and the older notification comes before that of the first.
    for lane in [answer, answer, to_owner] {
        deliver(&mut mesh, lane);
    }
    mesh.step(1, Input::Timeout);
    mesh.hold_mail = false;
    mesh.pass(1);
    let accepted: Vec<Stamp> = posts.iter().map(|post| stamp_of(mesh.answer_to(*post))).collect();
    let taken = mesh.notified(relay, member);
    assert_eq!(taken[1..], accepted, "the first was handed to the socket twice");
    assert_eq!(taken[0], accepted[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Property, for every interleaving of mails with a socket that takes bytes and then does not: the frames that it
    /// took for the first time are in the order of acceptance, and in the end it took everything.
    #[test]
    fn notifications_of_a_member_keep_their_order(owner in 0usize..2,
                                                  acts in prop::collection::vec((0u8..8, 0usize..8), 1..80)) {
        let mut mesh = Mesh::new(2);
        let member = mesh.known_user(owner);
        let relay = mesh.relay(0);
        mesh.attach(relay, Some(member));
        mesh.hold_mail = true;
        let mut taken = Taken::default();
        let mut posts = Vec::new();
        for (act, draw) in acts {
            match act {
                0 | 1 => posts.push(mesh.start_post(owner, message(member))),
                2 if !taken.blocked => {
                    taken.blocked = true;
                    mesh.block(relay);
                    taken.refuse(&mut mesh, relay, draw % 4);
                }
                2 => {
                    taken.blocked = false;
                    taken.kept = taken.stamps.len();
                    let (shard, conn) = (0, mesh.sockets[relay.0].conn);
                    mesh.step(shard, Input::Writable { conn });
                }
                3 => (0..2).for_each(|shard| mesh.step(shard, Input::Timeout)),
                _ => deliver_some(&mut mesh, draw),
            }
            store_answers(&mut mesh);
            taken.look(&mesh, relay, member);
        }
        mesh.hold_mail = false;
        taken.blocked = false;
        mesh.unblock(relay);
        mesh.pass(2);
        // A drain goes on when what it sent is acked.
        let mut acked = 0;
        while acked < mesh.notified(relay, member).len() {
            let stamp = mesh.notified(relay, member)[acked];
            mesh.ack_for(relay, member, stamp);
            acked += 1;
        }
        taken.look(&mesh, relay, member);
        let mut first = Vec::new();
        taken.stamps.iter().for_each(|stamp| if !first.contains(stamp) { first.push(*stamp) });
        let accepted: Vec<Stamp> = posts.iter().map(|post| stamp_of(mesh.answer_to(*post))).collect();
        prop_assert_eq!(first, accepted);
    }

    /// Relays and sessions that come, go and take each other's users, with mail in any order: in the end every virtual
    /// connection has a member, every relay may send, and no accepted message is lost.
    #[test]
    fn seats_and_members_agree(acts in prop::collection::vec((0u8..12, 0usize..12), 1..120)) {
        let mut mesh = Mesh::with(3, |config| config.attempts_max = 0);
        let users: Vec<Uaid> = (0..4).map(|n| mesh.known_user(n % 3)).collect();
        let mut relays: Vec<Socket> = (0..3).map(|home| mesh.relay(home)).collect();
        let mut posts = Vec::new();
        mesh.hold_mail = true;
        for (act, draw) in acts {
            let (relay, user) = (relays[draw % 3], users[draw / 3]);
            match act {
                0 | 1 if mesh.is_ready(relay) => mesh.start_attach(relay, Some(user)),
                2 if mesh.is_ready(relay) => mesh.command(relay, RelayCommand::Bye(user)),
                3 if mesh.is_ready(relay) => {
                    let command = Box::new(SessionCommand::Register { chid: CHANNEL, key: None, caller: None });
                    mesh.command(relay, RelayCommand::For { uaid: user, command });
                }
                4 => {
                    let socket = mesh.open(draw % 3);
                    mesh.say_hello(socket, Some(user));
                }
                5 if draw == 0 => {
                    let (shard, conn) = (mesh.sockets[relay.0].shard, mesh.sockets[relay.0].conn);
                    mesh.step(shard, Input::Gone { conn, reason: CloseReason::PeerClosed });
                    relays[0] = mesh.open(0);
                    mesh.command(relays[0], RelayCommand::Open);
                }
                6 => posts.push((user, mesh.start_post(draw % 3, message(user)))),
                7 => (0..3).for_each(|shard| mesh.step(shard, Input::Timeout)),
                _ => deliver_some(&mut mesh, draw),
            }
            store_answers(&mut mesh);
        }
        mesh.hold_mail = false;
        mesh.pass(2);
        prop_assert!(relays.iter().all(|relay| mesh.is_ready(*relay)), "every command is answered");
        let (virtual_conns, members) = (mesh.count(|s| s.relay_seats), mesh.count(|s| s.relay_members));
        prop_assert_eq!(virtual_conns, members);
        prop_assert!(mesh.machines.iter().all(ShardMachine::is_quiet));
        for (user, post) in posts {
            let stamp = stamp_of(mesh.answer_to(post));
            let stored = mesh.store.rows_of(user).iter().any(|row| row.stamp == stamp);
            let held = mesh.ledger.values().any(|message| message.stamp == stamp);
            prop_assert!(stored || held, "it was never acked");
        }
    }
}

/// Counted in 64 bits: 32 bits would wrap, and earlier refused notifications would wait for ever.
#[test]
fn refused_frames_go_out_again_after_the_socket_was_blocked_very_often() {
    for owner in [0, 1] {
        let mut mesh = Mesh::new(2);
        let relay = mesh.relay(0);
        let member = mesh.known_user(owner);
        mesh.attach(relay, Some(member));
        mesh.machines[0].relays.set_wakes(u32::MAX - 1);
        let mut expected = Vec::new();
        for _ in 0..4 {
            let stamp = mesh.accept(owner, message(member), Disposition::Direct);
            mesh.block(relay);
            mesh.unsend(relay, 1);
            mesh.run();
            mesh.unblock(relay);
            expected.extend([stamp, stamp]);
        }
        assert_eq!(mesh.notified(relay, member), expected);
    }
}
