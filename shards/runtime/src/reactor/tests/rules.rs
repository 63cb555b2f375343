//! The rules of ring/RULES.md that the reactor keeps. Rules 2 and 3 are in `ring/tests`.

use crate::ports::Port;
use crate::reactor::PlaneLimits;
use crate::ring::accept_limit;

use super::bench::{Bench, Client, run};
use super::script::NOTE_BYTES;

/// Many frames of one turn leave as one send, and a slow reader finds every frame whole and in order.
#[test]
fn rule_1_one_send_per_socket_and_submission() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        let before = bench.shards[0].stats.sends;
        client.say(b"N 2\n");
        bench.until("two notes", |_| notes(client.heard()).len() == 2);
        assert_eq!(bench.shards[0].stats.sends - before, 1, "frames of one turn are coalesced");
        client.forget();
        client.say(b"N 300\n");
        bench.until("all notes, read slowly", |_| {
            client.hear(3_000);
            client.lines_so_far() == 300
        });
        assert_eq!(notes(client.heard_so_far()), (0..300).collect::<Vec<_>>());
        assert!(bench.shards[0].stats.sends_short > 0, "the reader was not slow enough to test anything");
    });
}

/// Accepting moves to the next ring at 95 %, never meets a full table, leaves room for hand-offs, and beyond
/// the limit answers 503.
#[test]
fn rule_5_accepting_moves_on_before_a_table_is_full() {
    run(|| {
        let mut limits = PlaneLimits::new(150);
        limits.table_max = 100;
        let mut bench = Bench::new(1, limits);
        let table = bench.shards[0].plane.table();
        let mut clients = Vec::new();
        for _ in 0..150 {
            clients.push(Client::connect(bench.websocket));
            bench.settle_quickly();
        }
        for client in &mut clients {
            client.say(b"UP\n");
            bench.until("served", |_| client.heard() == b"101\n");
        }
        let shard = &bench.shards[0];
        assert!(shard.stats.accept_ring_changes > 0);
        assert_eq!(shard.stats.accept_errors, 0, "no accept met a full table");
        for ring in 0..shard.plane.rings() {
            let occupied = shard.conns.occupied(ring);
            assert!(occupied <= table * 95 / 100, "ring {ring} was filled by accepting: {occupied} of {table}");
        }
        let mut beyond = Client::connect(bench.websocket);
        beyond.say(b"UP\n");
        bench.until("503", |_| beyond.heard().starts_with(b"503\n") && beyond.end == Some(Ok(())));
        drop(clients.pop());
        bench.until("a place is free", |bench| bench.shards[0].connections() < 150);
        let mut next = Client::connect(bench.websocket);
        next.say(b"UP\n");
        bench.until("served again", |_| next.heard() == b"101\n");
    });
}

/// The accept is cancelled while every table is at its limit; it is armed again when slots are free.
#[test]
fn rule_5_accepting_stops_when_all_tables_are_filled_and_starts_again() {
    run(|| {
        let mut limits = PlaneLimits::new(10);
        limits.table_max = 64;
        let mut bench = Bench::new(1, limits);
        bench.shards[0].limits.connections_max = 10_000;
        let shard = &bench.shards[0];
        let room = accept_limit(shard.plane.table(), shard.limits.backlog) * u32::from(shard.plane.rings());
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..room + 20 {
            clients.push(Client::connect(bench.websocket));
            bench.settle_quickly();
        }
        bench.until("accepting fills what it may", |bench| bench.shards[0].connections() >= room);
        bench.settle();
        assert_eq!(bench.shards[0].stats.accept_errors, 0);
        assert_eq!(bench.shards[0].connections(), room, "and no more");
        let shard = &bench.shards[0];
        assert!(accept_limit(shard.plane.table(), shard.limits.backlog) <= shard.plane.table() * 95 / 100);
        clients.drain(..60);
        let last = clients.last_mut().unwrap();
        last.say(b"UP\n");
        bench.until("the backlog is served", |_| last.heard() == b"101\n");
    });
}

/// A reader that stops pins one tail; the machine hears Blocked, then which notifications were not sent, and
/// Writable when there is room; nothing is lost or doubled.
#[test]
fn rule_6_a_blocked_socket_holds_one_tail() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        client.say(b"N 400\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        bench.until("the last is given back", |bench| bench.log(0).contains(&"unsent 399".to_owned()));
        bench.settle();
        let conn = bench.shards[0].machine.opened[0];
        let buffers = bench.shards[0].conns.get(conn).unwrap().buffers;
        let held = bench.shards[0].buffer_pool.get(buffers).unwrap().out.len();
        assert!(held <= NOTE_BYTES + 20, "a blocked socket holds {held} bytes");
        let log = bench.log(0);
        let blocked = log.iter().position(|line| line == "blocked").unwrap();
        let unsent: Vec<u32> = log.iter().filter_map(|line| line.strip_prefix("unsent ")?.parse().ok()).collect();
        assert!(unsent.len() > 100 && unsent.is_sorted() && *unsent.last().unwrap() == 399);
        assert!(log.iter().position(|line| line.starts_with("unsent")).unwrap() > blocked);
        assert!(!log.contains(&"writable".to_owned()));
        bench.until("everything arrives", |_| client.lines() == 400);
        assert_eq!(notes(client.heard()), (0..400).collect::<Vec<_>>(), "whole, in order, once each");
        bench.until("writable", |bench| bench.log(0).last().is_some_and(|line| line == "writable"));
        client.forget();
        client.say(b"E\n");
        bench.until("the session goes on", |_| client.heard() == b"pong\n");
    });
}

/// Replies stay in line behind a tail: they are never given back.
#[test]
fn rule_6_a_reply_waits_behind_the_tail() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        client.say(b"H\n");
        bench.until("held", |bench| bench.shards[0].machine.held.len() == 1);
        let conn = bench.shards[0].machine.held[0];
        bench.shards[0].machine.send_notes(conn, 0..400);
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        bench.shards[0].machine.release();
        bench.settle();
        bench.until("everything arrives", |_| client.lines() == 401);
        assert!(client.heard().windows(6).any(|part| part == b"\npong\n"));
        assert_eq!(notes(client.heard()), (0..400).collect::<Vec<_>>());
    });
}

/// Endpoint connections that all come in at one shard are served by all; a large request is one receive.
#[test]
fn rule_7_endpoint_connections_are_dealt_to_the_least_loaded() {
    run(|| {
        let mut bench = Bench::new(3, PlaneLimits::new(1_000));
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..30 {
            clients.push(Client::connect(bench.endpoint));
            bench.settle_quickly();
        }
        for client in &mut clients {
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
        }
        let served: Vec<u32> = bench.shards.iter().map(|shard| shard.connections()).collect();
        assert_eq!(served, [10, 10, 10]);
        assert_eq!(bench.shards[0].stats.dealt_out, 20);
        // Those of one shard leave; the next ones go there.
        drop(clients);
        bench.until("all gone", |bench| bench.shards.iter().all(|shard| shard.connections() == 0));
        assert_eq!(bench.shards[2].stats.endpoint_connections, 0);

        let mut client = Client::connect(bench.endpoint);
        bench.settle();
        let receives = |bench: &Bench| bench.shards.iter().map(|shard| shard.stats.receives).sum::<u64>();
        let before = receives(&bench);
        let mut line = vec![b'.'; 8_000];
        line[0] = b'E';
        line.push(b'\n');
        client.say(&line);
        bench.until("an answer", |_| client.heard() == b"pong\n");
        assert_eq!(receives(&bench) - before, 1, "a request of 8 KB takes one receive on the endpoint port");
        let mut websocket = bench.websocket();
        let before = receives(&bench);
        websocket.say(&line);
        bench.until("an answer", |_| websocket.heard() == b"pong\n");
        assert!(receives(&bench) - before >= 4, "WebSockets receive into small spans");
        assert_eq!(bench.shards[0].conns.get(bench.shards[0].machine.opened[0]).unwrap().port, Port::WebSocket);
    });
}

/// While a command is under way nothing further is decoded, nor even received; the rest follows in order. The
/// script itself asserts that no command comes while one is under way.
#[test]
fn rule_8_one_command_at_a_time() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        client.say(b"H\nE\nP\nE\n");
        bench.until("held", |bench| bench.shards[0].machine.held.len() == 1);
        bench.settle();
        let received = bench.shards[0].stats.received_bytes;
        for _ in 0..20 {
            client.say(b"E\n");
            bench.turn();
        }
        bench.settle();
        assert_eq!(bench.shards[0].stats.received_bytes, received, "a busy connection is not read from");
        assert_eq!(client.heard(), b"");
        bench.shards[0].machine.release();
        let mut expected = b"pong\npong\nat once\npong\n".to_vec();
        expected.extend(b"pong\n".repeat(20));
        bench.until("the rest in order", |_| client.heard() == expected);
    });
}

/// A blocked socket is not read from either.
#[test]
fn rule_8_a_blocked_connection_is_not_read_from() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        client.say(b"N 400\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        bench.settle();
        let received = bench.shards[0].stats.received_bytes;
        client.say(b"E\n");
        bench.settle();
        assert_eq!(bench.shards[0].stats.received_bytes, received);
        bench.until("read again", |_| client.heard().ends_with(b"pong\n"));
        assert_eq!(notes(client.heard()).len(), 400);
    });
}

impl Bench {
    /// A few turns: enough for an accept and what follows from it.
    fn settle_quickly(&mut self) {
        for _ in 0..6 {
            self.turn();
        }
    }
}

/// The ids of the notes, each of which must be whole.
fn notes(bytes: &[u8]) -> Vec<u32> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"note"));
    let note = |line: &[u8]| {
        let mut words = line.splitn(3, |byte| *byte == b' ').skip(1);
        let id = std::str::from_utf8(words.next().unwrap()).unwrap().parse().unwrap();
        let body = words.next().unwrap();
        assert!(body.len() == NOTE_BYTES && body.iter().all(|byte| *byte == b'x'), "note {id} is spliced");
        id
    };
    lines.map(note).collect()
}
