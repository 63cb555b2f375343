//! Moves of TLS sessions at every step of what they receive and of what they send.

use crate::reactor::PlaneLimits;
use crate::ring::SocketMove;
use machine::Hello;
use machine::ids::{Claim, ShardId, Uaid};

use super::bench::{Bench, run};
use super::toy_tls::ToyClient;

/// Sends the latest session of shard 0 to shard 1, as its owner.
fn depart(bench: &mut Bench) {
    let conn = *bench.shards[0].machine.opened.last().unwrap();
    let (claim, hello) = (Claim::new(ShardId(0), 77), Box::new(Hello::new(None, Uaid([0; 16]))));
    bench.shards[0].depart(conn, SocketMove::Claimed { to: ShardId(1), claim, hello });
}

fn leaves(bench: &mut Bench, client: ToyClient) {
    drop(client);
    bench.until("it leaves", |bench| bench.tls_stats(1).tls_connections == 0);
}

/// The move begins behind each byte of three records and of two requests for a KeyUpdate, and up to two turns later:
/// before the shard has read that byte, while a KeyUpdate is owed, and when it was sent.
#[test]
fn a_session_moves_at_every_byte_of_its_records_and_owes_its_key_update() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(100));
        let stream = |client: &mut ToyClient| {
            let update = ToyClient::key_update();
            let [first, second, third] = [&b"E\nP"[..], b"\n", b"E\n"].map(|plain| client.sealed(plain));
            [first, update.clone(), second, update, third].concat()
        };
        let length = stream(&mut ToyClient::new(super::bench::Client::connect(bench.websocket_tls))).len();
        let mut owed = 0;
        for (cut, turns) in (0..=length).flat_map(|cut| (0..3).map(move |turns| (cut, turns))) {
            let mut client = bench.tls_websocket();
            let bytes = stream(&mut client);
            let moved = bench.shards[1].stats.sockets_received;
            client.socket.say(&bytes[..cut]);
            (0..turns).for_each(|_| _ = bench.turn());
            client.heard();
            depart(&mut bench);
            bench.turn();
            client.socket.say(&bytes[cut..]);
            bench.until("all answers, and the greeting of the owner", |_| {
                let heard = client.heard();
                heard.len() == b"pong\npong\nat once\npong\n".len()
            });
            let mut lines: Vec<&[u8]> = client.heard_so_far().split(|byte| *byte == b'\n').collect();
            lines.sort_unstable();
            assert_eq!(lines, [&b""[..], b"at once", b"pong", b"pong", b"pong"], "{cut} bytes, {turns} turns");
            assert!((1..=2).contains(&client.updates), "{cut} bytes, {turns} turns: {}", client.updates);
            owed += usize::from(client.updates == 1);
            assert_eq!(bench.shards[1].stats.sockets_received, moved + 1);
            leaves(&mut bench, client);
        }
        assert!(owed > 0, "both requests were answered at once each time");
    });
}

/// The socket takes no more, the reader takes a part of what waits, and then the session moves. A tail leaves first.
#[test]
fn a_blocked_session_moves_at_every_step_of_its_reader() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(100));
        for step in 0..24 {
            let mut client = bench.tls_websocket();
            let moved = bench.shards[1].stats.sockets_received;
            let blocked = |bench: &Bench| bench.log(0).iter().filter(|line| *line == "blocked").count();
            let before = blocked(&bench);
            client.say(b"N 400\n");
            bench.until("blocked", |bench| blocked(bench) > before);
            for _ in 0..step {
                client.socket.hear(150_000 + step);
                bench.turn();
            }
            client.socket.say(&ToyClient::key_update());
            depart(&mut bench);
            bench.until("the greeting of the owner", |_| client.heard().ends_with(b"pong\n"));
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard().ends_with(b"pong\npong\n"));
            assert_eq!(client.updates, 1);
            assert_eq!(bench.shards[1].stats.sockets_received, moved + 1);
            leaves(&mut bench, client);
        }
    });
}
