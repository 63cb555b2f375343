//! What is begun and not finished has a bound for each port of the shard, not only for each connection, and a time.

use crate::ports::Port;
use crate::reactor::PlaneLimits;
use crate::ring::Sides;
use crate::time::Span;

use super::bench::{Bench, Client, run};

/// Bytes of half a line.
const HALF: usize = 1_500;
/// Room for this many halves.
const ROOM: usize = 20;

/// A shard whose WebSockets have room for [`ROOM`] halves: half of what all ports may hold.
fn small() -> Bench {
    let mut limits = PlaneLimits::new(1_000);
    limits.unfinished_bytes_max = 2 * (ROOM * HALF + HALF / 2);
    Bench::new(1, limits)
}

fn half(first: u8) -> Vec<u8> {
    let mut line = vec![b'.'; HALF];
    line[0] = first;
    line
}

impl Bench {
    fn held(&self, port: Port) -> usize {
        self.shards[0].sides.unfinished().of(port).used()
    }

    /// WebSockets that have sent half a line each, as many as there is room for.
    fn filled(&mut self) -> Vec<Client> {
        let mut clients: Vec<Client> = (0..ROOM).map(|_| self.websocket()).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.say(&half(b'E'));
            self.until("a half is kept", |bench| bench.held(Port::WebSocket) == (n + 1) * HALF);
        }
        clients
    }
}

#[test]
fn who_begins_more_than_the_shard_has_room_for_is_ended_and_the_others_live_on() {
    run(|| {
        let mut bench = small();
        let mut whole = bench.websocket();
        let mut beyond: Vec<Client> = (0..10).map(|_| bench.websocket()).collect();
        let mut within = bench.filled();
        assert_eq!(bench.held(Port::WebSocket), ROOM * HALF);
        for client in &mut beyond {
            client.say(&half(b'E'));
            bench.until("goodbye", |_| client.heard() == b"bye Overloaded\n" && client.end == Some(Ok(())));
        }
        let shard = &bench.shards[0];
        assert_eq!(bench.held(Port::WebSocket), ROOM * HALF, "who was ended holds nothing");
        assert_eq!((shard.stats.input_refused, shard.closes.close_overloaded), (10, 10));
        let told = bench.log(0).iter().filter(|line| *line == "gone Overloaded").count();
        assert_eq!(told, 10, "the machine knows of the WebSockets");

        whole.say(b"E\n");
        bench.until("whole requests need no room", |_| whole.heard() == b"pong\n");
        for client in &mut within {
            client.say(b"\n");
            bench.until("what was begun is finished", |_| client.heard() == b"pong\n");
        }
        whole.forget();
        whole.say(&half(b'E'));
        bench.settle();
        whole.say(b"\n");
        bench.until("there is room again", |_| whole.heard() == b"pong\n");
        assert_eq!(bench.shards[0].stats.input_refused, 10);
    });
}

#[test]
fn requests_in_two_segments_are_served_beside_websockets_that_fill_their_quota() {
    run(|| {
        let mut bench = small();
        let _within = bench.filled();
        let mut request = Client::connect(bench.endpoint);
        request.say(&half(b'E'));
        bench.until("the first segment is kept", |bench| bench.held(Port::Endpoint) == HALF);
        request.say(b"\n");
        bench.until("an answer", |_| request.heard() == b"pong\n");
        assert_eq!((bench.shards[0].stats.input_refused, bench.held(Port::Endpoint)), (0, 0));
    });
}

/// As in `end_idle_http`, but what is ended is a session: the machine is told.
#[test]
fn a_websocket_that_does_not_finish_its_line_is_ended_and_an_idle_one_stays() {
    run(|| {
        let mut limits = PlaneLimits::new(1_000);
        limits.request_timeout = Span::from_secs(2);
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
        let mut bench = small();
        let mut client = bench.websocket();
        let _within = bench.filled();
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
        bench.shards[1].sides = Sides::new(2 * (HALF - 1));
        let mut client = bench.websocket();
        client.say(&[b"M 1\n", &half(b'E')[..]].concat());
        bench.until("answered, and ended by the other", |_| client.heard() == b"pong\nbye Overloaded\n");
        assert_eq!(bench.shards[0].stats.sockets_sent, 1, "it left with what it had");
        assert_eq!((bench.shards[0].stats.input_refused, bench.shards[1].stats.input_refused), (0, 1));
        assert!(bench.shards.iter().all(|shard| shard.sides.unfinished().used() == 0));
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
        bench.until("it is kept aside", |bench| bench.shards[0].sides.unfinished().used() >= 18_000);
        client.say(b"\nE");
        bench.until("an answer", |_| client.heard() == b"pong\n");
        bench.settle();
        let held = bench.shards[0].sides.unfinished().used();
        assert!(held <= 8 * 1_024, "{held} bytes are held");
    });
}
