//! Connections of a public port, which count as those of user agents or of app servers by their last head.

use crate::ports::Port;
use crate::reactor::PlaneLimits;

use super::bench::{Bench, Client, run};
use super::toy_tls::ToyClient;

/// Places by port, and the connections of app servers that the shard counts.
fn counts(bench: &Bench) -> ([u32; 3], u64) {
    (bench.shards[0].conns.placed(), bench.shards[0].stats.endpoint_connections)
}

fn ask(bench: &mut Bench, client: &mut Client, line: &str, answer: &str) {
    client.forget();
    client.say(line.as_bytes());
    bench.until(answer, |_| client.heard() == answer.as_bytes());
}

#[test]
fn a_connection_of_a_public_port_counts_as_its_last_head_says() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = Client::connect(bench.public);
        bench.until("accepted", |bench| bench.shards[0].connections() == 1);
        assert_eq!(counts(&bench), ([1, 0, 0], 0), "it may be a user agent");
        ask(&mut bench, &mut client, "E\n", "pong\n");
        assert_eq!(counts(&bench), ([0, 1, 0], 1));
        ask(&mut bench, &mut client, "P\n", "at once\n");
        assert_eq!(counts(&bench), ([0, 1, 0], 1));
        ask(&mut bench, &mut client, "UP\n", "101\n");
        assert_eq!(counts(&bench), ([1, 0, 0], 0), "a proxy may use a connection for both");
        ask(&mut bench, &mut client, "E\n", "pong\n");
        assert_eq!(counts(&bench), ([1, 0, 0], 0));
        let mut other = Client::connect(bench.public);
        ask(&mut bench, &mut other, "E\n", "pong\n");
        assert_eq!(counts(&bench), ([1, 1, 0], 1));
        drop((client, other));
        bench.until("both are gone", |bench| bench.shards[0].connections() == 0);
        assert_eq!(counts(&bench), ([0, 0, 0], 0));
    });
}

#[test]
fn an_app_server_of_a_public_port_takes_no_place_of_user_agents() {
    run(|| {
        let mut bench = Bench::new(1, PlaneLimits::new(2));
        // All places of app servers (the reserve of 32), and the one place for all ports.
        let mut senders: Vec<Client> = (0..33).map(|_| Client::connect(bench.endpoint)).collect();
        for sender in &mut senders {
            ask(&mut bench, sender, "E\n", "pong\n");
        }
        let mut beyond = Client::connect(bench.public);
        beyond.say(b"E\n");
        bench.until("ended", |_| beyond.heard() == b"bye Overloaded\n" && beyond.end == Some(Ok(())));
        assert_eq!(bench.shards[0].stats.accepts_refused, 1);
        drop(beyond);
        bench.until("its place is free", |bench| bench.shards[0].connections() == 33);
        let mut agent = Client::connect(bench.public);
        ask(&mut bench, &mut agent, "UP\n", "101\n");
        assert_eq!(counts(&bench), ([1, 33, 0], 33));
    });
}

/// A request that is not whole is charged to app servers, whose part of the memory it takes.
#[test]
fn bytes_of_a_request_are_charged_to_its_role() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = Client::connect(bench.public);
        ask(&mut bench, &mut client, "P\nhalf a li", "at once\n");
        bench.settle();
        let unfinished = bench.shards[0].buffer_pool.unfinished();
        assert_eq!(unfinished.of(Port::WebSocket).used(), 0);
        assert!(unfinished.of(Port::Endpoint).used() >= 9);
    });
}

/// A head in two parts begins as that of a user agent. Its rest makes it one of an app server whose body has not come:
/// it is ended for the memory of app servers, so it stands in their line.
#[test]
fn a_torn_head_stands_in_the_line_of_its_role() {
    run(|| {
        let mut bench = Bench::one();
        let mut client = Client::connect(bench.public);
        client.say(b"BO");
        bench.until("begun", |bench| bench.shards[0].begun_in_line(Port::WebSocket) == 1);
        client.say(b"DY\n");
        bench.until("counted anew", |bench| counts(bench) == ([0, 1, 0], 1));
        assert_eq!(bench.shards[0].begun_in_line(Port::Endpoint), 1);
    });
}

/// All connections of a public port are accepted by shard 0. It keeps at most twice the mean, and the others answer.
#[test]
fn app_servers_of_a_crowded_shard_are_handed_over_between_two_requests() {
    run(|| {
        let mut bench = Bench::new(3, PlaneLimits::new(100));
        let mut senders: Vec<ToyClient> = Vec::new();
        for _ in 0..12 {
            let mut sender = ToyClient::new(Client::connect(bench.public_tls));
            sender.socket.say(&ToyClient::flights());
            sender.say(b"E\n");
            bench.until("an answer", |_| sender.heard() == b"pong\n");
            bench.settle();
            senders.push(sender);
        }
        let there: Vec<u64> = bench.shards.iter().map(|shard| shard.stats.endpoint_connections).collect();
        assert_eq!(there.iter().sum::<u64>(), 12);
        assert!(there.iter().all(|there| (2..=8).contains(there)), "{there:?}");
        assert_eq!(bench.shards[0].stats.handed_over, 12 - there[0]);
        let tls: Vec<u64> = (0..3).map(|shard| bench.tls_stats(shard).tls_connections).collect();
        assert_eq!(tls, there, "secrets go along");
        for sender in &mut senders {
            sender.say(b"E\nE\n");
            bench.until("more answers", |_| sender.heard() == b"pong\npong\npong\n");
        }
        let mut agent = senders.pop().unwrap();
        agent.say(b"UP\nE\n");
        bench.until("a session", |_| agent.heard().ends_with(b"101\npong\n"));
        drop((agent, senders));
        bench.until("all are gone", |bench| bench.shards.iter().all(|shard| shard.connections() == 0));
        assert!(bench.shards.iter().all(|shard| shard.stats.endpoint_connections == 0));
        assert_eq!(bench.shards[0].mailbox.relief(), None);
    });
}

/// A connection with half a request, or an answer that is not sent, stays until that is over.
#[test]
fn an_app_server_in_the_middle_of_a_request_is_not_handed_over() {
    run(|| {
        let mut bench = Bench::new(3, PlaneLimits::new(100));
        let mut senders: Vec<Client> = (0..3).map(|_| Client::connect(bench.public)).collect();
        for sender in &mut senders {
            sender.say(b"E\nhalf a li");
            bench.until("an answer", |_| sender.heard() == b"pong\n");
            bench.settle();
        }
        assert_eq!((bench.shards[0].stats.handed_over, bench.shards[0].stats.endpoint_connections), (0, 3));
        assert!(bench.shards[0].mailbox.relief().is_some());
        for sender in &mut senders {
            ask(&mut bench, sender, "ne\nE\n", "pong\npong\n");
        }
    });
}
