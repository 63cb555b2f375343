//! Requests, answers, partial and pipelined input, timeouts, many connections.

use crate::reactor::PlaneLimits;
use machine::time::TimeSpan;

use super::bench::{Bench, Client, run};

#[test]
fn a_request_in_pieces_is_answered_once() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = Client::connect(bench.websocket);
        for piece in [b"U".as_slice(), b"P\nE", b"\nE\n", b"E"] {
            client.say(piece);
            bench.settle();
        }
        bench.until("what is whole", |_| client.heard() == b"101\npong\npong\n");
        client.say(b"\nP\n");
        bench.until("the rest", |_| client.heard() == b"101\npong\npong\npong\nat once\n");
        bench.settle();
        assert_eq!(bench.shards[0].buffer_pool.used(), 0, "an idle connection has no side entry");
    });
}

/// Of WebSockets that the machine knows, when nothing else came with it.
#[test]
fn a_frame_that_asks_for_nothing_is_told() {
    run(|| {
        let mut bench = Bench::one();
        let mut http = Client::connect(bench.endpoint);
        http.say(b"P\n");
        bench.until("an answer", |_| http.heard() == b"at once\n");
        let mut client = bench.websocket();
        let frames = |bench: &Bench| bench.log(0).iter().filter(|line| *line == "frame").count();
        client.say(b"P\nP\nhalf a ");
        bench.until("answers", |_| client.heard() == b"at once\nat once\n");
        assert_eq!(frames(&bench), 1);
        client.say(b"line\nP\nE\n");
        bench.until("more answers", |_| client.heard().ends_with(b"pong\nat once\npong\n"));
        assert_eq!(frames(&bench), 1, "a command says as much");
    });
}

#[test]
fn a_peer_that_closes_is_forgotten() {
    run(|| {
        let mut bench = Bench::one();
        let client = bench.websocket();
        drop(client);
        bench.until("gone", |bench| bench.log(0).contains(&"gone PeerClosed".to_owned()));
        bench.until("slot free", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.shards[0].connections(), 0);
    });
}

#[test]
fn slow_and_idle_http_connections_end() {
    run(|| {
        let mut limits = PlaneLimits::new(100);
        // Far apart, and long for a client that its host keeps waiting.
        limits.request_timeout = TimeSpan::from_secs(2);
        limits.keep_alive_timeout = TimeSpan::from_secs(8);
        let mut bench = Bench::new(1, limits);
        let mut never_upgraded = Client::connect(bench.websocket);
        let mut half = Client::connect(bench.endpoint);
        half.say(b"half a li");
        let mut upgraded = bench.websocket();
        let mut idle = Client::connect(bench.endpoint);
        idle.say(b"E\n");
        bench.until("answer", |_| idle.heard() == b"pong\n");
        bench.until("slow ones end", |_| half.heard() == b"bye Idle\n" && never_upgraded.heard() == b"bye Idle\n");
        assert_eq!(idle.heard(), b"pong\n", "idle between requests, it may stay longer");
        bench.until("the idle one ends", |_| idle.heard() == b"pong\nbye Idle\n");
        // It was there before that one.
        upgraded.say(b"E\n");
        bench.until("an upgraded one has no timer here", |_| upgraded.heard() == b"pong\n");
    });
}

#[test]
fn connection_whose_requests_the_edge_answers_itself_is_not_idle() {
    run(|| {
        let limits = PlaneLimits { keep_alive_timeout: TimeSpan::from_secs(2), ..PlaneLimits::new(100) };
        let mut bench = Bench::new(1, limits);
        let [mut used, mut idle] = [(); 2].map(|()| Client::connect(bench.endpoint));
        used.say(b"P\n");
        idle.say(b"P\n");
        let mut asked = 1;
        bench.until("the idle one ends", |_| {
            if used.heard().len() == asked * b"at once\n".len() {
                used.say(b"P\n");
                asked += 1;
            }
            idle.heard() == b"at once\nbye Idle\n"
        });
        bench.until("the last answer", |_| used.heard().len() >= asked * b"at once\n".len());
        assert!(used.heard().ends_with(b"at once\n"), "{:?}", String::from_utf8_lossy(used.heard()));
    });
}

/// More than one table holds: connections spread over the rings, and each is served from its own.
#[test]
fn ten_thousand_connections_over_several_rings() {
    run(|| {
        const COUNT: usize = 9_000;
        let mut limits = PlaneLimits::new(10_000);
        limits.table_max = 2_500;
        let mut bench = Bench::new(1, limits);
        assert!(bench.shards[0].plane.rings() >= 4);
        let mut clients = Vec::with_capacity(COUNT);
        for _ in 0..COUNT {
            clients.push(Client::connect(bench.websocket));
            bench.turn();
        }
        for client in &mut clients {
            client.say(b"UP\nE\n");
            bench.turn();
        }
        for client in &mut clients {
            bench.until("an answer", |_| client.heard() == b"101\npong\n");
        }
        bench.settle();
        let shard = &bench.shards[0];
        assert_eq!(shard.connections(), COUNT as u32);
        assert_eq!(shard.stats.accept_errors, 0);
        assert!(shard.stats.accept_ring_changes >= 3);
        let used = (0..shard.plane.rings()).filter(|ring| shard.conns.occupied(*ring) > 0).count();
        assert!(used >= 4, "{used} rings are in use");
        assert_eq!(shard.buffer_pool.used(), 0);
        let per_connection = shard.conns.heap_bytes() / COUNT;
        assert!(per_connection <= 40, "{per_connection} bytes of slab per connection");
    });
}
