//! Turns: what a connection is given before another one gets its own, in cost. No test here measures time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::reactor::CallerRules;
use crate::reactor::lines::Line;
use crate::strangers::{Prefix, StrangerLimits, Strangers};
use machine::limits::{
    CONNECTION_COST_PER_TURN, FAILED_SIGNATURES_PER_MINUTE, LINE_COST_PER_TURN, NEW_SENDERS_COST_PER_TURN,
    REQUEST_COST, SIGNATURE_COST,
};
use machine::time::TimeSpan;

use super::bench::{Bench, Client, run};
use super::late::time_out;
use super::toy_tls::ToyClient;

/// Requests of one line that a turn of a shard serves.
pub(super) const REQUESTS_PER_TURN: usize = LINE_COST_PER_TURN.div_ceil(REQUEST_COST) as usize;

/// Cost of one turn of a shard at most: each line goes beyond its part by one turn of one connection.
const TURN_COST_MAX: u32 = 3 * LINE_COST_PER_TURN + NEW_SENDERS_COST_PER_TURN + 4 * (SIGNATURE_COST + REQUEST_COST);

/// Turns from the request of a proven app server to its answer: readable, received; and one more, in which another
/// part of the kernel's work is done.
const TURNS_TO_ANSWER: u32 = 3;

/// An app server whose last request was carried out.
fn proven(bench: &mut Bench) -> Client {
    let mut client = Client::connect(bench.endpoint);
    answer(bench, &mut client);
    client
}

/// Has the app server ask, and waits for the answer.
fn answer(bench: &mut Bench, client: &mut Client) {
    client.say(b"E\n");
    bench.until("an answer", |_| client.heard() == b"pong\n");
    client.forget();
}

/// App servers that have sent this many times `line` at once, and a shard that has read nothing of it.
fn flood(bench: &mut Bench, clients: usize, line: &str, times: usize) -> Vec<Client> {
    let taken = bench.shards[0].stats.accepts;
    let mut flood: Vec<Client> = (0..clients).map(|_| Client::connect(bench.endpoint)).collect();
    bench.until("accepted", |bench| bench.shards[0].stats.accepts == taken + clients as u64);
    bench.settle();
    flood.iter_mut().for_each(|client| client.say(line.repeat(times).as_bytes()));
    flood
}

/// Cost of the turns until `done`, each of which is bounded.
fn cost_until(bench: &mut Bench, what: &str, mut done: impl FnMut(&mut Bench) -> bool) -> u32 {
    let begun = bench.shards[0].edge.spent;
    let mut before = begun;
    bench.until(what, |bench| {
        let spent = bench.shards[0].edge.spent;
        assert!(spent - before <= TURN_COST_MAX, "a turn cost {}", spent - before);
        before = spent;
        done(bench)
    });
    bench.shards[0].edge.spent - begun
}

/// Requests that the edge answers itself, of many connections that pipeline them.
#[test]
fn app_server_gets_its_turn_beside_pipelined_requests() {
    run(|| {
        for line in ["P\n", "S\n"] {
            let mut bench = Bench::one();
            let mut good = proven(&mut bench);
            let mut crowd = flood(&mut bench, 40, line, 400);
            // The shard has the whole flood in hand.
            bench.turn();
            good.say(b"E\n");
            let cost = cost_until(&mut bench, "the app server is answered", |_| good.heard() == b"pong\n");
            assert!(cost <= TURNS_TO_ANSWER * TURN_COST_MAX, "{line:?}: the flood got {cost} meanwhile");
            cost_until(&mut bench, "the flood is answered", |_| crowd.iter_mut().all(|client| client.lines() == 400));
        }
    });
}

/// Of two that pipeline, the second does not wait for the end of the first.
#[test]
fn what_is_left_of_a_connection_goes_to_the_end_of_its_line() {
    run(|| {
        let mut bench = Bench::one();
        let mut pair = flood(&mut bench, 2, "P\n", 300);
        let most = 2 * CONNECTION_COST_PER_TURN.div_ceil(REQUEST_COST) as usize + 1;
        bench.until("both are answered", |_| {
            let [one, other] = [0, 1].map(|at| pair[at].lines());
            assert!(one.abs_diff(other) <= most, "{one} and {other} are answered");
            one.min(other) == 300
        });
    });
}

/// The rest of what it has pipelined comes in slices; those that have proven themselves have work all the time.
#[test]
fn connection_whose_request_was_refused_comes_last_until_one_is_carried_out() {
    run(|| {
        let mut bench = Bench::one();
        let _session = bench.websocket();
        let mut good = proven(&mut bench);
        bench.shards[0].lines.patience = TimeSpan(u64::MAX);
        let mut bad = flood(&mut bench, 1, "S\n", 20);
        let busy_until = |bench: &mut Bench, what: &str, done: &mut dyn FnMut(&Bench) -> bool| {
            bench.until(what, |bench| {
                time_out(bench);
                done(bench)
            });
        };
        busy_until(&mut bench, "it waits", &mut |bench| bench.shards[0].lines.len(Line::Refused) == 1);
        good.say(b"E\n");
        busy_until(&mut bench, "the other is answered", &mut |_| good.heard() == b"pong\n");
        assert_eq!((bad[0].lines(), bench.shards[0].lines.len(Line::Refused)), (1, 1));
        bench.until("all are answered", |_| bad[0].lines() == 20);
        bad[0].forget();
        answer(&mut bench, &mut bad[0]);
        bad[0].say(b"E\n");
        busy_until(&mut bench, "it is answered at once", &mut |_| bad[0].heard() == b"pong\n");
    });
}

/// As above over TLS; and what was sent before close_notify is answered, in however many turns.
#[test]
fn pipelined_requests_over_tls_take_turns_and_are_all_answered() {
    run(|| {
        let mut bench = Bench::one();
        let mut good = proven(&mut bench);
        let mut crowd: Vec<ToyClient> = (0..20).map(|_| ToyClient::new(Client::connect(bench.endpoint_tls))).collect();
        for client in &mut crowd {
            client.socket.say(&ToyClient::flights());
            client.say("S\n".repeat(30).as_bytes());
            client.socket.say(&ToyClient::close_notify());
        }
        bench.turn();
        good.say(b"E\n");
        let cost = cost_until(&mut bench, "the app server is answered", |_| good.heard() == b"pong\n");
        assert!(cost <= TURNS_TO_ANSWER * TURN_COST_MAX, "the flood got {cost} meanwhile");
        for client in &mut crowd {
            bench.until("all are answered", |_| {
                client.heard().len() == 30 * b"denied\n".len() && client.socket.end == Some(Ok(()))
            });
        }
    });
}

impl Bench {
    /// Connects an app server from loopback, and returns the line in which it waits with its first request. The last
    /// lines are not served meanwhile.
    fn line_of_a_new_sender(&mut self) -> Line {
        let mut client = Client::connect(self.endpoint);
        client.say(b"E\n");
        let mut line = None;
        self.until("it is served, or in line", |bench| {
            time_out(bench);
            let failing = bench.shards[0].lines.len(Line::Failing) > 0;
            line =
                if failing { Some(Line::Failing) } else { (client.heard() == b"pong\n").then_some(Line::NewSenders) };
            line.is_some()
        });
        line.unwrap()
    }
}

/// New app servers of an address with many failed signatures come last; its proven ones keep their places. An exempt
/// address is not counted.
#[test]
fn new_app_servers_of_an_address_that_fails_come_last() {
    run(|| {
        for (exempt, line) in [(false, Line::Failing), (true, Line::NewSenders)] {
            let loopback = Prefix::of(IpAddr::V4(Ipv4Addr::LOCALHOST), 32);
            let exempt = if exempt { vec![loopback] } else { Vec::new() };
            let limits = StrangerLimits { connections: 1_000, exempt, ..StrangerLimits::default() };
            let rules = CallerRules { strangers: Arc::new(Strangers::new(limits, 1)), ..CallerRules::default() };
            let mut bench = Bench::with_callers(1, &rules);
            let _session = bench.websocket();
            let mut good = proven(&mut bench);
            assert_eq!(bench.line_of_a_new_sender(), Line::NewSenders);
            let failures = FAILED_SIGNATURES_PER_MINUTE as usize;
            let mut bad = flood(&mut bench, 1, "S\n", failures);
            bench.until("all have failed", |_| bad[0].lines() == failures);
            assert_eq!(bench.shards[0].stats.failed_signatures, failures as u64);
            bench.shards[0].lines.patience = TimeSpan(u64::MAX);
            assert_eq!(bench.line_of_a_new_sender(), line);
            good.say(b"E\n");
            bench.until("a proven one of that address is served", |bench| {
                time_out(bench);
                good.heard() == b"pong\n"
            });
        }
    });
}
