//! Rule 4 of ring/RULES.md: the closing frame reaches the peer.

use std::time::Duration;

use crate::reactor::PlaneLimits;
use machine::time::TimeSpan;

use super::bench::{Bench, Client, run};

/// A shard whose goodbyes may take as long as the host lets them.
fn patient() -> Bench {
    let mut limits = PlaneLimits::new(1_000);
    limits.linger_timeout = TimeSpan::from_secs(3600);
    Bench::new(1, limits)
}

/// The peer has sent much that is not read; the lingering close still reaches it, and then the end of the stream, not a
/// reset.
#[test]
fn rule_4_a_goodbye_with_unread_input_is_heard() {
    run(|| {
        let mut bench = patient();
        let mut client = bench.websocket();
        client.say(b"H\n");
        bench.until("held", |bench| bench.shards[0].machine.held.len() == 1);
        let conn = bench.shards[0].machine.held[0];
        client.say(&[b'u'; 30_000]);
        bench.settle();
        bench.shards[0].machine.orders.push(machine::Effect::Close(conn, machine::CloseReason::Reset));
        bench.until("the end", |_| {
            client.heard();
            client.end.is_some()
        });
        assert_eq!(client.end, Some(Ok(())), "an end, not a reset");
        assert_eq!(client.heard(), b"bye Reset\n");
        assert_eq!(bench.shards[0].connections(), 1, "it waits for the peer to end its side");
        drop(client);
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.shards[0].stats.goodbyes_cut, 0);
        assert!(!bench.log(0).iter().any(|line| line.starts_with("gone")), "the machine had forgotten it");
    });
}

#[test]
fn rule_4_a_goodbye_ends_after_its_time() {
    run(|| {
        let mut limits = PlaneLimits::new(10);
        limits.linger_timeout = TimeSpan::from_ms(100);
        let mut bench = Bench::new(1, limits);
        let mut client = bench.websocket();
        client.say(b"X\n");
        bench.until("heard", |_| client.heard() == b"bye Superseded\n");
        bench.until("cut", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.shards[0].stats.goodbyes_cut, 1);
    });
}

#[test]
fn rule_4_a_goodbye_ends_after_so_many_bytes() {
    run(|| {
        let mut limits = PlaneLimits::new(10);
        limits.linger_timeout = TimeSpan::from_secs(3600);
        let mut bench = Bench::new(1, limits);
        let mut client = bench.websocket();
        client.say(b"X\n");
        bench.until("cut", |bench| {
            client.try_say(&[b'u'; 10_000]);
            bench.shards[0].stats.closes == 1
        });
        assert_eq!(bench.shards[0].stats.goodbyes_cut, 1);
    });
}

/// A peer that reads nothing cannot keep a connection that is ended.
#[test]
fn rule_4_a_goodbye_to_a_blocked_peer_ends_too() {
    run(|| {
        let mut limits = PlaneLimits::new(10);
        limits.linger_timeout = TimeSpan::from_ms(200);
        let mut bench = Bench::new(1, limits);
        let mut client = bench.websocket();
        client.say(b"N 400\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        let conn = bench.shards[0].machine.opened[0];
        bench.shards[0].machine.orders.push(machine::Effect::Close(conn, machine::CloseReason::Reset));
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.shards[0].buffer_pool.used(), 0);
    });
}

/// The close frame comes behind the tail, whole.
#[test]
fn rule_4_a_goodbye_waits_behind_the_tail() {
    run(|| {
        let mut bench = patient();
        let mut client = bench.websocket();
        client.say(b"N 400\n");
        bench.until("blocked", |bench| bench.log(0).contains(&"blocked".to_owned()));
        let conn = bench.shards[0].machine.opened[0];
        bench.shards[0].machine.orders.push(machine::Effect::Close(conn, machine::CloseReason::Reset));
        bench.settle();
        bench.until("the end", |_| {
            client.heard();
            client.end.is_some()
        });
        assert_eq!(client.end, Some(Ok(())));
        assert!(client.heard().ends_with(b"x\nbye Reset\n"), "the tail of a whole note, then the lingering close");
    });
}

#[test]
fn an_http_connection_ends_after_its_last_answer() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = Client::connect(bench.endpoint);
        client.say(b"E\nL\nE\n");
        bench.until("the end", |_| {
            client.heard();
            client.end.is_some()
        });
        assert_eq!(client.heard(), b"pong\nlast\nbye Finished\n", "what follows the last request is not answered");
        assert_eq!(client.end, Some(Ok(())));
    });
}

#[test]
fn garbage_is_ended_by_the_edge_and_the_machine_hears_why() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = bench.websocket();
        bench.until("ended", |_| {
            client.try_say(&[b'.'; 2_000]);
            client.heard() == b"bye TooBig\n"
        });
        bench.until("told", |bench| bench.log(0).contains(&"gone TooBig".to_owned()));
    });
}

#[test]
fn a_reset_is_told_once() {
    run(|| {
        let mut bench = Bench::one();
        let client = bench.websocket();
        // Closing with an answer unread makes the client's kernel reset the connection.
        let conn = bench.shards[0].machine.opened[0];
        bench.shards[0].machine.send_notes(conn, 0..1);
        bench.settle();
        std::thread::sleep(Duration::from_millis(10));
        drop(client);
        bench.until("gone", |bench| bench.log(0).iter().any(|line| line.starts_with("gone")));
        bench.until("closed", |bench| bench.shards[0].stats.closes == 1);
        assert_eq!(bench.log(0).iter().filter(|line| line.starts_with("gone")).count(), 1);
    });
}
