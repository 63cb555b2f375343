//! What is begun and not finished has a bound for the whole shard, not only for each connection.

use crate::reactor::PlaneLimits;
use crate::ring::Sides;

use super::bench::{Bench, Client, run};

/// Bytes of half a line.
const HALF: usize = 1_500;
/// Room for this many halves.
const ROOM: usize = 20;

/// A shard with room for [`ROOM`] halves.
fn small() -> Bench {
    let mut limits = PlaneLimits::new(1_000);
    limits.unfinished_bytes_max = ROOM * HALF + HALF / 2;
    Bench::new(1, limits)
}

fn half(first: u8) -> Vec<u8> {
    let mut line = vec![b'.'; HALF];
    line[0] = first;
    line
}

impl Bench {
    /// Clients that have sent half a line each, as many as there is room for.
    fn filled(&mut self) -> Vec<Client> {
        let mut clients: Vec<Client> = (0..ROOM).map(|_| Client::connect(self.endpoint)).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.say(&half(b'E'));
            self.until("a half is kept", |bench| bench.shards[0].sides.unfinished().used() == (n + 1) * HALF);
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
        let mut request = Client::connect(bench.endpoint);
        let mut within = bench.filled();
        assert_eq!(bench.shards[0].sides.unfinished().used(), ROOM * HALF);
        for client in &mut beyond {
            client.say(&half(b'E'));
            bench.until("goodbye", |_| client.heard() == b"bye Overloaded\n" && client.end == Some(Ok(())));
        }
        request.say(&half(b'E'));
        bench.until("goodbye", |_| request.heard() == b"bye Overloaded\n");
        let shard = &bench.shards[0];
        assert_eq!(shard.sides.unfinished().used(), ROOM * HALF, "who was ended holds nothing");
        assert_eq!((shard.stats.input_refused, shard.closes.close_overloaded), (11, 11));
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
        assert_eq!(bench.shards[0].stats.input_refused, 11);
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
        bench.shards[1].sides = Sides::new(HALF - 1);
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
