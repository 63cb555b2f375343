//! Places: what the peers of one port take is not missing on another.

use std::time::{Duration, Instant};

use crate::reactor::PlaneLimits;
use crate::reactor::lines::Line;
use machine::limits::{ACCEPTS_PER_TURN, ENDPOINT_RESERVE_MIN, READS_PER_TURN};
use machine::time::TimeSpan;

use super::bench::{Bench, Client, run};
use super::late::time_out;
use super::toy_tls::ToyClient;
use super::turns::REQUESTS_PER_TURN;

fn small(connections_max: u32) -> Bench {
    let mut limits = PlaneLimits::new(connections_max);
    // Refused connections are not forgotten for the length of the test.
    limits.linger_timeout = TimeSpan::from_secs(3_600);
    Bench::new(1, limits)
}

impl Bench {
    /// Connections on which nothing is said, each taken in before the next.
    fn idle(&mut self, port: std::net::SocketAddr, count: u32) -> Vec<Client> {
        let taken = self.shards[0].stats.accepts;
        let connect = |n| {
            let client = Client::connect(port);
            self.until("accepted", |bench| bench.shards[0].stats.accepts == taken + n);
            client
        };
        (1..=u64::from(count)).map(connect).collect()
    }

    /// A connection for which there is no place; what it is answered to this line.
    fn answer_without_place(&mut self, line: &[u8], answer: &[u8]) {
        let mut beyond = Client::connect(self.websocket);
        beyond.say(line);
        self.until("an answer", |_| beyond.heard().starts_with(answer));
    }

    fn refused(&self) -> u64 {
        self.shards[0].stats.accepts_refused
    }
}

#[test]
fn idle_websockets_leave_the_endpoint_port_its_places() {
    run(|| {
        let mut bench = small(40);
        let (websocket, endpoint) = (bench.websocket, bench.endpoint);
        let _sessions = bench.idle(websocket, 40);
        assert_eq!(bench.refused(), 0, "all of max_connections is for sessions");
        bench.answer_without_place(b"UP\n", b"503\n");
        let mut senders = bench.idle(endpoint, ENDPOINT_RESERVE_MIN);
        assert_eq!(bench.refused(), 1);
        for sender in &mut senders {
            sender.say(b"E\n");
            bench.until("an answer", |_| sender.heard() == b"pong\n");
        }
        let mut beyond = bench.idle(endpoint, 1);
        bench.until("503", |_| beyond[0].heard() == b"503\n");
    });
}

#[test]
fn idle_senders_leave_half_of_the_places_to_websockets() {
    run(|| {
        let mut bench = small(40);
        let endpoint = bench.endpoint;
        let _senders = bench.idle(endpoint, ENDPOINT_RESERVE_MIN + 20);
        assert_eq!(bench.refused(), 0, "the shared half is theirs as well");
        let mut beyond = bench.idle(endpoint, 1);
        bench.until("503", |_| beyond[0].heard() == b"503\n");
        let sessions: Vec<Client> = (0..20).map(|_| bench.websocket()).collect();
        assert_eq!(bench.refused(), 1);
        bench.answer_without_place(b"UP\n", b"503\n");
        drop(sessions);
    });
}

/// Those that are told no have few slots, and then they are told nothing.
#[test]
fn refused_connections_do_not_fill_the_tables() {
    run(|| {
        let mut bench = small(40);
        let (websocket, endpoint) = (bench.websocket, bench.endpoint);
        let _sessions = bench.idle(websocket, 40);
        let table = bench.shards[0].plane.table();
        let _refused = bench.idle(websocket, 2 * table);
        let stats = &bench.shards[0].stats;
        assert_eq!(stats.accepts_refused, u64::from(2 * table));
        assert!(stats.accepts_dropped > u64::from(table) && stats.accept_errors == 0);
        assert!(bench.shards[0].connections() < 40 + 100, "{} are held", bench.shards[0].connections());
        let mut sender = bench.idle(endpoint, 1);
        sender[0].say(b"E\n");
        bench.until("an answer", |_| sender[0].heard() == b"pong\n");
    });
}

/// A health check is answered beside as many sessions as there may be, and beside a stranger who takes what is kept for
/// such checks and says nothing, or half a line.
#[test]
fn a_port_without_places_hears_what_it_is_asked() {
    run(|| {
        let mut bench = small(40);
        let _sessions: Vec<Client> = (0..40).map(|_| bench.websocket()).collect();
        bench.answer_without_place(b"P\n", b"at once\n");
        bench.answer_without_place(b"UP\n", b"503\n");
        let websocket = bench.websocket;
        let mut silent = bench.idle(websocket, 64);
        silent.iter_mut().step_by(2).for_each(|client| _ = client.try_say(b"P"));
        let mut asked = Client::connect(websocket);
        asked.try_say(b"P\n");
        bench.until("a silent one makes room", |_| {
            let heard = asked.heard().to_vec();
            if !heard.is_empty() || asked.end.is_some() {
                asked = Client::connect(websocket);
                asked.try_say(b"P\n");
            }
            heard.starts_with(b"at once\n")
        });
        assert!(bench.shards[0].stats.idle_evicted > 0);
        assert!(bench.shards[0].connections() < 40 + 100, "{} are held", bench.shards[0].connections());
    });
}

/// A stranger with idle connections on the endpoint port loses them when others come.
#[test]
fn idle_connections_make_room_for_those_who_come() {
    run(|| {
        let mut bench = small(40);
        let endpoint = bench.endpoint;
        let mut strangers = bench.idle(endpoint, ENDPOINT_RESERVE_MIN + 20);
        let mut busy = strangers.pop().unwrap();
        // A connection that has come a moment ago makes no room.
        let mut early = bench.idle(endpoint, 1);
        bench.until("503", |_| early[0].heard() == b"503\n");
        let begun = Instant::now();
        bench.until("the busy one is busy", |_| {
            busy.try_say(b"E\n");
            begun.elapsed() > Duration::from_millis(1_500)
        });
        let mut late = bench.idle(endpoint, 5);
        for client in &mut late {
            client.say(b"E\n");
            bench.until("an answer", |_| client.heard() == b"pong\n");
        }
        let stats = &bench.shards[0].stats;
        assert_eq!((stats.idle_evicted, stats.accepts_refused), (5, 1));
        let ended = |client: &mut Client| {
            client.heard();
            client.end == Some(Ok(()))
        };
        bench.until("five strangers are gone", |_| {
            strangers.iter_mut().filter_map(|c| ended(c).then_some(())).count() == 5
        });
        busy.forget();
        busy.say(b"E\n");
        bench.until("the busy one is served", |_| busy.heard().ends_with(b"pong\n"));
    });
}

/// Turns in which a session has something.
const BUSY_TURNS: usize = 200;

/// Newcomers that have said all up to their upgrade, half of them over TLS, and a shard that has read nothing of it.
fn crowd(bench: &mut Bench) -> Vec<Client> {
    bench.shards[0].lines.patience = TimeSpan(u64::MAX);
    let mut crowd = Vec::new();
    for _ in 0..20 {
        crowd.push(Client::connect(bench.websocket));
        crowd.push(Client::connect(bench.websocket_tls));
    }
    let taken = bench.shards[0].stats.accepts;
    bench.until("accepted", |bench| bench.shards[0].stats.accepts == taken + 40);
    for (number, client) in crowd.iter_mut().enumerate() {
        if number % 2 == 0 { client.say(b"UP\n") } else { client.say(&ToyClient::flights()[..4]) }
    }
    crowd
}

/// Work of sessions comes before newcomers.
#[test]
fn newcomers_wait_unread_while_others_have_work() {
    run(|| {
        let mut bench = Bench::one();
        let mut session = bench.websocket();
        let _crowd = crowd(&mut bench);
        let receives = bench.shards[0].stats.receives;
        for _ in 0..BUSY_TURNS {
            time_out(&mut bench);
            bench.turn();
        }
        session.say(b"E\n");
        bench.until("an answer", |bench| {
            time_out(bench);
            session.heard() == b"pong\n"
        });
        let shard = &mut bench.shards[0];
        assert_eq!((shard.lines.len(Line::Newcomers), shard.tls.handshakes()), (20, 0));
        assert_eq!(shard.stats.receives, receives + 1, "that of the session");
    });
}

#[test]
fn newcomers_are_served_in_slices_when_nothing_else_is_to_do() {
    run(|| {
        let mut bench = Bench::one();
        let mut crowd = crowd(&mut bench);
        let mut before = 0;
        bench.until("all are served", |bench| {
            let shard = &mut bench.shards[0];
            let served = shard.machine.opened.len();
            assert!(served <= before + REQUESTS_PER_TURN, "{before}, then {served}");
            before = served;
            served == 20 && shard.tls.handshakes() == 20
        });
        bench.until("all hear of it", |_| crowd.iter_mut().step_by(2).all(|client| client.heard() == b"101\n"));
    });
}

/// Sessions that always have work do not shut newcomers out.
#[test]
fn newcomers_that_have_waited_are_served_beside_others() {
    run(|| {
        let mut bench = Bench::one();
        let _session = bench.websocket();
        let _crowd = crowd(&mut bench);
        bench.shards[0].lines.patience = TimeSpan(0);
        bench.until("all are served", |bench| {
            time_out(bench);
            let shard = &mut bench.shards[0];
            shard.machine.opened.len() == 21 && shard.tls.handshakes() == 20
        });
    });
}

/// A backlog is taken in little by little.
#[test]
fn a_turn_accepts_few_connections() {
    run(|| {
        let mut bench = Bench::one();
        bench.turn();
        let crowd: Vec<Client> = (0..4 * ACCEPTS_PER_TURN).map(|_| Client::connect(bench.websocket)).collect();
        let mut before = 0;
        bench.until("all are taken in", |bench| {
            let now = bench.shards[0].stats.accepts as usize;
            assert!(now <= before + ACCEPTS_PER_TURN, "{before}, then {now}");
            before = now;
            now == crowd.len()
        });
    });
}

/// A crowd of sessions that all have something, or leave, is read little by little; an app server is read at once.
#[test]
fn a_turn_reads_few_sessions_and_every_app_server() {
    run(|| {
        let mut bench = Bench::one();
        let mut sessions: Vec<Client> = (0..8 * READS_PER_TURN).map(|_| bench.websocket()).collect();
        let mut sender = Client::connect(bench.endpoint);
        bench.settle();
        let commands = |bench: &Bench| bench.shards[0].stats.commands as usize;
        let before = commands(&bench);
        sessions.iter_mut().for_each(|session| session.say(b"E\n"));
        sender.say(b"E\n");
        let mut last = before;
        let mut turn = |bench: &Bench| {
            let now = commands(bench);
            assert!(now <= last + REQUESTS_PER_TURN + 1, "{last}, then {now}");
            last = now;
            now
        };
        bench.until("the app server is answered", |bench| {
            turn(bench);
            sender.heard() == b"pong\n"
        });
        assert!(bench.shards[0].lines.len(Line::Sessions) > 0, "sessions wait still, although they spoke first");
        bench.until("all are answered", |bench| turn(bench) == before + sessions.len() + 1);
        drop(sessions);
        let mut gone = bench.shards[0].stats.peers_gone as usize;
        bench.until("all have left", |bench| {
            let now = bench.shards[0].stats.peers_gone as usize;
            assert!(now <= gone + READS_PER_TURN, "{gone}, then {now}");
            gone = now;
            gone == 8 * READS_PER_TURN
        });
    });
}
