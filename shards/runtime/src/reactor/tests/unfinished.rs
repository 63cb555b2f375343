//! Unfinished input has a bound for each port of the shard, not only for each connection, and a time.

use crate::ports::Port;
use crate::reactor::PlaneLimits;
use crate::ring::ConnBufferPool;
use machine::time::TimeSpan;

use super::bench::{Bench, Client, run};

/// Bytes of half a line.
const HALF: usize = 1_500;
/// Room for this many halves.
const ROOM: usize = 20;

/// A shard on which each port has room for [`ROOM`] halves and a bit before memory is tight, which it is at three
/// quarters.
fn small() -> Bench {
    let mut limits = PlaneLimits::new(1_000);
    // The endpoint port has three eighths of all.
    limits.unfinished_bytes_max = (ROOM * HALF + HALF / 2) * 4 / 3 * 8 / 3 + 32;
    Bench::new(1, limits)
}

/// A shard that has room for no half of a WebSocket.
fn tiny() -> Bench {
    let mut limits = PlaneLimits::new(1_000);
    limits.unfinished_bytes_max = 2 * (HALF - 1);
    Bench::new(1, limits)
}

fn half(first: u8) -> Vec<u8> {
    let mut line = vec![b'.'; HALF];
    line[0] = first;
    line
}

impl Bench {
    fn held(&self, port: Port) -> usize {
        self.shards[0].buffer_pool.unfinished().of(port).used()
    }

    /// Connections that have sent half a line each, as many as there is room for.
    fn filled(&mut self, port: Port) -> Vec<Client> {
        let mut clients = Vec::new();
        while self.held(port) < ROOM * HALF {
            let mut client = if port == Port::WebSocket { self.websocket() } else { Client::connect(self.endpoint) };
            let held = self.held(port);
            client.say(&half(b'E'));
            self.until("a half is kept", |bench| bench.held(port) == held + HALF);
            clients.push(client);
        }
        clients
    }
}

/// Any amount of unfinished input from strangers leaves room for a request that is whole a moment later.
#[test]
fn the_oldest_unfinished_request_goes_when_memory_is_tight() {
    run(|| {
        let mut bench = small();
        let mut strangers = bench.filled(Port::Endpoint);
        let mut request = Client::connect(bench.endpoint);
        request.say(&half(b'E'));
        bench.until("the oldest is ended", |_| strangers[0].heard() == b"bye Overloaded\n");
        request.say(b"\n");
        bench.until("an answer", |_| request.heard() == b"pong\n");
        let stats = &bench.shards[0].stats;
        assert_eq!((stats.input_evicted, stats.input_refused), (1, 0));
        for client in &mut strangers[1..] {
            client.say(b"\n");
            bench.until("what was begun is finished", |_| client.heard() == b"pong\n");
        }
    });
}

#[test]
fn of_websockets_the_oldest_goes_and_the_machine_is_told() {
    run(|| {
        let mut bench = small();
        let mut strangers = Vec::new();
        let mut limit = 0;
        while bench.shards[0].stats.input_evicted == 0 {
            let mut client = bench.websocket();
            client.say(&half(b'E'));
            bench.settle();
            strangers.push(client);
            limit = limit.max(bench.held(Port::WebSocket));
            assert!(strangers.len() < 4 * ROOM, "nobody is ended");
        }
        bench.until("ended", |_| strangers[0].heard() == b"bye Overloaded\n" && strangers[0].end == Some(Ok(())));
        let told = bench.log(0).iter().filter(|line| *line == "gone Overloaded").count();
        assert_eq!((told, bench.shards[0].closes.close_overloaded), (1, 1));
        assert!(bench.held(Port::WebSocket) <= limit);
        strangers[1].say(b"\n");
        bench.until("the next is served", |_| strangers[1].heard() == b"pong\n");
    });
}

#[test]
fn who_takes_more_than_its_port_may_hold_is_ended_and_whole_requests_need_no_room() {
    run(|| {
        let mut bench = tiny();
        let mut whole = bench.websocket();
        let mut beyond: Vec<Client> = (0..10).map(|_| bench.websocket()).collect();
        for client in &mut beyond {
            client.say(&half(b'E'));
            bench.until("goodbye", |_| client.heard() == b"bye Overloaded\n" && client.end == Some(Ok(())));
        }
        let shard = &bench.shards[0];
        assert_eq!(bench.held(Port::WebSocket), 0, "who was ended holds nothing");
        assert_eq!((shard.stats.input_refused, shard.closes.close_overloaded), (10, 10));
        let told = bench.log(0).iter().filter(|line| *line == "gone Overloaded").count();
        assert_eq!(told, 10, "the machine knows of the WebSockets");
        whole.say(b"E\n");
        bench.until("whole requests need no room", |_| whole.heard() == b"pong\n");
    });
}

#[test]
fn requests_in_two_segments_are_served_beside_websockets_that_fill_their_quota() {
    run(|| {
        let mut bench = small();
        let _within = bench.filled(Port::WebSocket);
        let mut request = Client::connect(bench.endpoint);
        request.say(&half(b'E'));
        bench.until("the first segment is kept", |bench| bench.held(Port::Endpoint) == HALF);
        request.say(b"\n");
        bench.until("an answer", |_| request.heard() == b"pong\n");
        assert_eq!((bench.shards[0].stats.input_refused, bench.held(Port::Endpoint)), (0, 0));
    });
}

/// Finished input leaves the line, so that it does not grow with what was received in all.
#[test]
fn the_line_of_begun_requests_is_tidied() {
    run(|| {
        let mut bench = Bench::one();
        let mut stuck = Client::connect(bench.endpoint);
        stuck.say(&half(b'E'));
        let mut client = Client::connect(bench.endpoint);
        for _ in 0..3_000 {
            client.say(b"E");
            bench.until("begun", |bench| bench.shards[0].buffer_pool.unfinished().used() > HALF);
            client.say(b"\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
            client.forget();
        }
        assert!(bench.shards[0].begun_in_line(Port::Endpoint) <= 1_025, "what is finished is kept in line");
    });
}

/// As in `end_idle_http`, but what is ended is a session: the machine is told.
#[test]
fn a_websocket_that_does_not_finish_its_line_is_ended_and_an_idle_one_stays() {
    run(|| {
        let mut limits = PlaneLimits::new(1_000);
        limits.request_timeout = TimeSpan::from_secs(2);
        let mut bench = Bench::new(1, limits);
        let mut idle = bench.websocket();
        let mut stuck = bench.websocket();
        stuck.say(b"E\nE half a li");
        bench.until("ended", |_| stuck.heard() == b"pong\nbye MessageTimeout\n");
        bench.until("told", |bench| bench.log(0).contains(&"gone MessageTimeout".to_owned()));
        assert_eq!(bench.shards[0].stats.stuck_closes, 1);
        idle.say(b"E\n");
        bench.until("an answer", |_| idle.heard() == b"pong\n");
        bench.until("nobody is watched", |bench| bench.shards[0].websockets.next().is_none());
    });
}

/// It counts to the bound as well; a command before it is not carried out, since its answer would not be heard.
#[test]
fn what_comes_behind_a_command_needs_room_too() {
    run(|| {
        let mut bench = tiny();
        let mut client = bench.websocket();
        client.say(&[b"H\n", &half(b'E')[..]].concat());
        bench.until("goodbye", |_| client.heard() == b"bye Overloaded\n");
        assert!(bench.shards[0].machine.held.is_empty());
        assert_eq!(bench.shards[0].stats.input_refused, 1);
    });
}

#[test]
fn what_a_socket_brings_along_from_another_shard_needs_room_there() {
    run(|| {
        let mut bench = Bench::new(2, PlaneLimits::new(1_000));
        bench.shards[1].buffer_pool = ConnBufferPool::new(2 * (HALF - 1));
        let mut client = bench.websocket();
        client.say(&[b"M 1\n", &half(b'E')[..]].concat());
        bench.until("ended by the other", |_| client.heard() == b"bye Overloaded\n");
        assert_eq!(bench.shards[0].stats.sockets_sent, 1, "it left with what it had");
        assert_eq!((bench.shards[0].stats.input_refused, bench.shards[1].stats.input_refused), (0, 1));
        assert!(bench.shards.iter().all(|shard| shard.buffer_pool.unfinished().used() == 0));
        assert!(bench.log(1).contains(&"gone Overloaded".to_owned()));
    });
}

/// A long line that was sent whole must not hold its memory for the byte behind it.
#[test]
fn memory_of_a_long_line_is_given_back() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        let mut line = vec![b'.'; 18_000];
        line[0] = b'E';
        client.say(&line);
        bench.until("it is kept aside", |bench| bench.shards[0].buffer_pool.unfinished().used() >= 18_000);
        client.say(b"\nE");
        bench.until("an answer", |_| client.heard() == b"pong\n");
        bench.settle();
        let held = bench.shards[0].buffer_pool.unfinished().used();
        assert!(held <= 8 * 1_024, "{held} bytes are held");
    });
}
