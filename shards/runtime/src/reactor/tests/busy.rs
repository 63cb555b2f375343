//! Time limits of a shard that has more to do in every turn than one turn takes.

use crate::ports::Port;
use crate::reactor::PlaneLimits;
use crate::reactor::sealed::PATIENCE;
use machine::limits::{ENDPOINT_RESERVE_MIN, READS_PER_TURN, TLS_HANDSHAKES_MAX};
use machine::time::{Instant, TimeSpan};

use super::bench::{Bench, Client, run};
use super::toy_tls::ToyClient;

/// A crowd of app servers has more completions than this in each turn.
const COMPLETIONS_MAX: usize = 8;

/// A shard whose turns are that short, and on which each time limit is `limit`.
fn short_turns(limit: TimeSpan) -> Bench {
    let limits = PlaneLimits {
        request_timeout: limit,
        blocked_timeout: limit,
        handshake_timeout: limit,
        keep_alive_timeout: limit,
        ..PlaneLimits::new(1_000)
    };
    let mut bench = Bench::new(1, limits);
    bench.shards[0].completions_max = COMPLETIONS_MAX;
    bench
}

/// App servers that have said nothing yet.
fn crowd(bench: &mut Bench) -> Vec<Client> {
    let crowd: Vec<Client> = (0..8 * COMPLETIONS_MAX).map(|_| Client::connect(bench.endpoint)).collect();
    bench.until("accepted", |bench| bench.shards[0].stats.accepts == crowd.len() as u64);
    crowd
}

/// Every one of the crowd that has its answer asks again.
fn ask(crowd: &mut [Client]) {
    for app_server in crowd {
        if app_server.lines() > 0 {
            app_server.forget();
            app_server.say(b"E\n");
        }
    }
}

/// Every one of the crowd says something that needs no answer.
fn speak(crowd: &mut [Client]) {
    crowd.iter_mut().for_each(|app_server| app_server.say(b"\n"));
}

#[test]
fn time_limits_hold_on_a_shard_that_never_handles_all_completions() {
    run(|| {
        let mut bench = short_turns(TimeSpan::from_ms(200));
        let mut crowd = crowd(&mut bench);
        crowd.iter_mut().for_each(|app_server| app_server.say(b"E\n"));
        bench.until("the shard has more than it takes", |bench| {
            ask(&mut crowd);
            bench.shards[0].stats.receives > 10 * 8 * COMPLETIONS_MAX as u64
        });
        let connect = |address, said: &[u8]| {
            let mut client = Client::connect(address);
            client.say(said);
            client
        };
        let _kept_alive = connect(bench.endpoint, b"");
        let _half_request = connect(bench.endpoint, b"E half");
        let _no_upgrade = connect(bench.websocket, b"");
        let _half_handshake = connect(bench.websocket_tls, &ToyClient::flights()[..4]);
        let _half_message = connect(bench.websocket, b"UP\nE half");
        let _reads_nothing = connect(bench.websocket, b"UP\nN 400\n");
        bench.until("each of them is ended", |bench| {
            assert!(bench.shards[0].plane.has_ready(), "the shard took everything: nothing was tested");
            ask(&mut crowd);
            let stats = &bench.shards[0].stats;
            (stats.idle_closes, stats.stuck_closes) == (4, 2)
        });
        assert_eq!(bench.tls_stats(0).tls_handshakes_timeout, 1);
        let closes = &bench.shards[0].closes;
        assert_eq!((closes.close_message_timeout, closes.close_not_reading), (1, 1));
    });
}

/// Each of them is in line at most times at which the shard looks at it.
#[test]
fn messages_that_drip_are_ended_after_twice_their_time() {
    run(|| {
        let limit = TimeSpan::from_ms(200);
        let mut bench = Bench::new(1, PlaneLimits { request_timeout: limit, ..PlaneLimits::new(1_000) });
        let mut crowd: Vec<Client> = (0..16 * READS_PER_TURN).map(|_| bench.websocket()).collect();
        crowd.iter_mut().for_each(|session| session.say(b"E"));
        bench.until("all have begun", |bench| bench.shards[0].begun_in_line(Port::WebSocket) == crowd.len());
        let begun = bench.shards[0].clock.now().mono;
        let mut drip_until = |bench: &mut Bench, what: &str, instant: Instant| {
            bench.until(what, |bench| {
                crowd.iter_mut().for_each(|session| _ = session.try_say(b"."));
                bench.shards[0].input_horizon.until() >= instant
            });
            bench.shards[0].clock.now().mono
        };
        // A millisecond more: silences are counted in whole ones.
        let twice = TimeSpan(2 * limit.0 + TimeSpan::from_ms(1).0);
        let over = drip_until(&mut bench, "twice their time is over", begun.after(twice));
        // Every look that is in line by now is due within a quarter of the limit.
        drip_until(&mut bench, "each was looked at", over.after(TimeSpan(limit.0 / 4)));
        bench.turn();
        assert_eq!(bench.shards[0].stats.stuck_closes, crowd.len() as u64);
    });
}

/// The rest came in time and lies behind the crowd's completions.
#[test]
fn input_that_waits_behind_a_crowd_is_in_time() {
    run(|| {
        let mut bench = short_turns(TimeSpan::from_secs(2));
        let mut crowd = crowd(&mut bench);
        let mut request = Client::connect(bench.endpoint);
        request.say(b"E ");
        let mut session = bench.websocket();
        session.say(b"E ");
        let mut newcomer = Client::connect(bench.websocket);
        newcomer.say(b"U");
        bench.settle();
        // The shard is not let run until the limits are over.
        speak(&mut crowd);
        request.say(b"\n");
        session.say(b"\n");
        newcomer.say(b"P\n");
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        bench.until("each is answered", |_| {
            let heard = [request.heard(), session.heard(), newcomer.heard()];
            heard == [&b"pong\n"[..], b"pong\n", b"101\n"]
        });
    });
}

/// An idle connection makes room for another, but not one whose request the shard has not read yet.
#[test]
fn a_connection_whose_request_is_unread_makes_no_room() {
    run(|| {
        let mut bench = Bench::new(1, PlaneLimits::new(40));
        let places = ENDPOINT_RESERVE_MIN as usize + 20;
        let mut app_servers: Vec<Client> = (0..places).map(|_| Client::connect(bench.endpoint)).collect();
        bench.until("accepted", |bench| bench.shards[0].stats.accepts == places as u64);
        // That may have taken long.
        speak(&mut app_servers);
        bench.until("heard", |bench| bench.shards[0].stats.receives == places as u64);
        let mut another = Client::connect(bench.endpoint);
        app_servers.iter_mut().for_each(|app_server| app_server.say(b"E\n"));
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        bench.until("an answer", |_| !another.heard().is_empty());
        assert_eq!((another.heard(), bench.shards[0].stats.idle_evicted), (&b"503\n"[..], 0));
        for app_server in &mut app_servers {
            bench.until("an answer", |_| app_server.heard() == b"pong\n");
        }
    });
}

/// A handshake that has taken long makes room for one that waits, but not if the shard has not read its flight yet.
#[test]
fn a_handshake_whose_flight_is_unread_makes_no_room() {
    run(|| {
        let mut bench = Bench::new(1, PlaneLimits::new(4_000));
        bench.shards[0].lines.patience = TimeSpan(0);
        let mut crowd: Vec<ToyClient> = Vec::new();
        for _ in 0..TLS_HANDSHAKES_MAX {
            let mut client = ToyClient::new(Client::connect(bench.websocket_tls));
            client.socket.say(&ToyClient::flights()[..4]);
            crowd.push(client);
            // The line of the listener is short.
            bench.turn();
        }
        bench.until("all handshakes have begun", |bench| bench.shards[0].tls.handshakes() == TLS_HANDSHAKES_MAX);
        bench.settle();
        // That may have taken long.
        let now = bench.shards[0].clock.now().mono;
        bench.shards[0].handshakes.begun.iter_mut().for_each(|(_, since)| *since = now);
        bench.shards[0].completions_max = COMPLETIONS_MAX;
        let mut next = ToyClient::new(Client::connect(bench.websocket_tls));
        bench.settle();
        next.socket.say(&ToyClient::flights());
        // The oldest speaks last.
        crowd.iter_mut().rev().for_each(|client| client.socket.say(&ToyClient::flights()[4..]));
        std::thread::sleep(std::time::Duration::from_nanos(PATIENCE.0));
        next.say(b"UP\n");
        bench.until("the next is through", |_| next.heard() == b"101\n");
        assert_eq!(bench.tls_stats(0).tls_handshakes_timeout, 0);
        for client in &mut crowd {
            client.say(b"UP\n");
            bench.until("every one is through", |_| client.heard() == b"101\n");
        }
    });
}
