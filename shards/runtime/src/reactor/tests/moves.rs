//! The move of a socket to its owner (ring/RULES.md).

use crate::mailbox::mesh;
use crate::reactor::PlaneLimits;
use crate::ring::{PlaneConfig, PlaneKind, RingUses, SocketMove};
use machine::ids::{Claim, ShardId, Uaid};
use machine::{Arrival, Carried, Hello, Mail};

use super::bench::{Bench, plane_kind, run};

fn hello() -> Box<Hello> {
    Box::new(Hello::new(None, Uaid([0; 16])))
}

fn two() -> Bench {
    Bench::new(2, PlaneLimits::new(100))
}

#[test]
fn a_session_moves_with_its_undecoded_bytes() {
    run(|| {
        let mut bench = two();
        let mut client = bench.websocket();
        client.say(b"M 1\nE\nP\nE");
        bench.until("moved", |bench| {
            bench.shards[0].stats.sockets_sent == 1 && bench.shards[1].stats.sockets_received == 1
        });
        client.say(b"\nE\n");
        bench.until("answers of the target", |_| client.heard() == b"pong\npong\nat once\npong\npong\n");
        bench.until("slot free", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!((bench.shards[0].connections(), bench.shards[1].connections()), (0, 1));
        assert!(!bench.log(0).iter().any(|line| line.starts_with("gone")));
        drop(client);
        bench.until("the target hears the end", |bench| bench.log(1).contains(&"gone PeerClosed".to_owned()));
    });
}

/// The answer to the upgrade, encoded in the same turn, leaves before the descriptor does.
#[test]
fn what_is_owed_is_sent_before_the_move() {
    run(|| {
        let mut bench = two();
        let mut client = super::bench::Client::connect(bench.websocket);
        client.say(b"UP\nM 1\nE\n");
        bench.until("all answers", |_| client.heard() == b"101\npong\npong\n");
        assert_eq!(bench.shards[1].connections(), 1);
    });
}

/// A blocked session leaves when its tail is out, and its peer finds the frame whole.
#[test]
fn a_tail_is_sent_before_the_move() {
    run(|| {
        let mut bench = two();
        let mut client = bench.websocket();
        client.say(b"N 400\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        let conn = bench.shards[0].machine.opened[0];
        let claim = Claim::new(ShardId(0), 77);
        bench.shards[0].depart(conn, SocketMove::Claimed { to: ShardId(1), claim, hello: hello() });
        for _ in 0..100 {
            bench.turn();
        }
        assert_eq!(bench.shards[1].stats.sockets_received, 0, "it left although a tail is owed");
        bench.until("moved", |_| client.heard().ends_with(b"x\npong\n"));
        assert_eq!(bench.shards[1].stats.sockets_received, 1);
    });
}

/// Bytes that come while the socket is between the shards are delivered on the target.
#[test]
fn bytes_that_arrive_during_the_move_are_delivered_on_the_target() {
    run(|| {
        let mut bench = two();
        let mut client = bench.websocket();
        client.say(b"M 1\n");
        // Only the source takes turns, until its part is done; the client goes on.
        while bench.shards[0].stats.sockets_sent == 0 {
            bench.shards[0].turn();
            client.say(b"P\n");
        }
        client.say(b"E\n");
        bench.until("all of it", |_| client.heard().ends_with(b"at once\npong\n"));
        assert!(client.heard().starts_with(b"pong\nat once\n"));
    });
}

/// The poll of the source is armed (`early` false) or has fired already when the move begins: an idle session
/// is moved by an order instead of by its own command.
fn move_with_poll(early: bool) {
    run(move || {
        let mut bench = two();
        let mut client = bench.websocket();
        bench.settle();
        let conn = bench.shards[0].machine.opened[0];
        if early {
            client.say(b"E\n");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let claim = Claim::new(ShardId(0), 77);
        let departure = SocketMove::Claimed { to: ShardId(1), claim, hello: hello() };
        bench.shards[0].depart(conn, departure);
        bench.until("moved", |bench| bench.shards[1].stats.sockets_received == 1);
        if !early {
            client.say(b"E\n");
        }
        bench.until("the greeting and the answer", |_| client.heard() == b"pong\npong\n");
        assert_eq!(bench.shards[0].stats.received_bytes, 3, "the source read the upgrade and nothing more");
        drop(client);
        bench.until("the target hears the end", |bench| bench.shards[1].stats.closes == 1);
    });
}

#[test]
fn a_move_with_its_poll_armed() {
    move_with_poll(false);
}

#[test]
fn a_move_whose_poll_has_fired() {
    move_with_poll(true);
}

/// Shard 1 is a bare plane whose table takes one descriptor.
#[test]
fn a_full_target_leaves_the_socket_with_the_source() {
    run(|| {
        let mut boxes = mesh(2).unwrap();
        let other = boxes.pop().unwrap();
        let config = PlaneConfig { rings: 1, table: 1, sq: 8, cq: 16 };
        let limits = PlaneLimits { kind: plane_kind(), ..PlaneLimits::new(1) };
        let mut plane = limits.open(config, RingUses::default(), other.waker()).unwrap();
        other.publish_rings([plane.address(0)].into());
        let mut bench = Bench::of(boxes, PlaneLimits::new(100));
        let (mut first, mut second) = (bench.websocket(), bench.websocket());
        first.say(b"M 1\n");
        bench.until("moved", |bench| {
            plane.enter();
            bench.shards[0].stats.sockets_sent == 1
        });
        second.say(b"M 1\n");
        bench.until("told and ended", |_| {
            plane.enter();
            second.heard() == b"bye MoveFailed\n"
        });
        assert!(bench.log(0).contains(&"move failed".to_owned()));
        assert_eq!((bench.shards[0].stats.sockets_sent, bench.shards[0].stats.sockets_kept), (1, 1));
        drop(second);
        bench.until("slots free", |bench| bench.shards[0].stats.closes == 2);
    });
}

/// The thread that owned the target ring has ended, or the plane of the target is gone.
#[test]
fn a_dead_target_leaves_the_socket_with_the_source() {
    run(|| {
        let mut boxes = mesh(2).unwrap();
        let other = boxes.pop().unwrap();
        let waker = std::sync::Arc::clone(other.waker());
        let kind = plane_kind();
        let dead = std::thread::spawn(move || {
            let config = PlaneConfig { rings: 1, table: 8, sq: 8, cq: 16 };
            let limits = PlaneLimits { kind, ..PlaneLimits::new(1) };
            let plane = limits.open(config, RingUses::default(), &waker).unwrap();
            let address = plane.address(0);
            // A ring is dead with its thread, and must be there all the same.
            (kind == PlaneKind::Rings).then(|| Box::leak(plane));
            address
        });
        let address = dead.join().unwrap();
        other.publish_rings([address].into());
        let mut bench = Bench::of(boxes, PlaneLimits::new(100));
        let mut client = bench.websocket();
        client.say(b"M 1\n");
        bench.until("told and ended", |_| client.heard() == b"bye MoveFailed\n");
        assert_eq!(bench.shards[0].stats.sockets_kept, 1);
    });
}

/// Descriptor first is how it goes: the mail leaves when the descriptor is known to be there.
#[test]
fn the_descriptor_comes_before_the_mail() {
    run(|| {
        let mut bench = two();
        let mut client = bench.websocket();
        client.say(b"M 1\nE\n");
        bench.until("answered", |_| client.heard() == b"pong\npong\n");
        assert_eq!(bench.log(1)[..2], ["arrived", "arrival mail"]);
    });
}

/// But a target with much to do may read its lanes before the completion: the pair is made all the same.
#[test]
fn the_mail_comes_before_the_descriptor() {
    run(|| {
        let mut boxes = mesh(2).unwrap();
        let other = boxes.pop().unwrap();
        // A third party that writes in the name of the source.
        let mut bench = Bench::of(vec![boxes.pop().unwrap(), other], PlaneLimits::new(100));
        let mut client = bench.websocket();
        let conn = bench.shards[0].machine.opened[0];
        let claim = Claim::new(ShardId(0), 5);
        let mail = Mail::Arrive(Box::new(Arrival { claim, hello: hello(), bytes: Carried(b"P\n".as_slice().into()) }));
        bench.shards[0].post(ShardId(1), mail);
        bench.until("mail", |bench| bench.log(1) == ["arrival mail"]);
        let target = bench.shards[0].mailbox.target_ring_of(ShardId(1)).unwrap();
        bench.shards[0].plane.move_claimed(conn, (true, false), target, claim, false);
        bench.until("paired", |_| client.heard() == b"pong\nat once\n");
        assert_eq!(bench.log(1)[..2], ["arrival mail", "arrived"]);
    });
}
