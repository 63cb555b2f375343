//! Limits by the address of the caller, and proxies that name it.

use std::sync::Arc;

use crate::reactor::{CallerRules, PlaneLimits, Proxies};
use crate::ring::{ArenaSpan, SpanSize};
use crate::strangers::{Access, Cause, Limit, StrangerLimits, Strangers};
use machine::limits::RELAYS_OF_ADDRESS_MAX;

use super::bench::{Bench, Client, run};
use super::toy_tls::ToyClient;

fn limits(connections: u32) -> StrangerLimits {
    StrangerLimits { connections, ..StrangerLimits::default() }
}

fn rules(limits: StrangerLimits, proxies: Proxies) -> CallerRules {
    CallerRules { strangers: Arc::new(Strangers::new(limits, 2)), proxies }
}

/// Proxies on the loopback interface, as the clients of these tests are.
fn proxies(protocol: bool, header: bool) -> Proxies {
    Proxies { trusted: Arc::new(["127.0.0.0/8".parse().unwrap()]), protocol, header }
}

/// Answer to a caller beyond a limit: it is heard once, and told.
const REFUSED: &[u8] = b"503\nbye Said\n";

/// A client that says this first.
fn saying(address: std::net::SocketAddr, first: &[u8]) -> Client {
    let mut client = Client::connect(address);
    client.say(first);
    client
}

fn hears(bench: &mut Bench, client: &mut Client, answer: &[u8]) {
    bench.until("an answer", |_| client.heard() == answer);
}

fn is_closed(bench: &mut Bench, client: &mut Client, answer: &[u8]) {
    bench.until("closed", |_| client.heard() == answer && client.end.is_some());
}

#[test]
fn connections_beyond_the_limit_of_an_address_are_refused_until_one_ends() {
    run(|| {
        let rules = rules(limits(2), Proxies::default());
        let mut bench = Bench::with_callers(1, &rules);
        let mut first = saying(bench.websocket, b"UP\n");
        let mut second = saying(bench.endpoint, b"E\n");
        hears(&mut bench, &mut first, b"101\n");
        hears(&mut bench, &mut second, b"pong\n");
        let mut third = saying(bench.websocket, b"UP\n");
        is_closed(&mut bench, &mut third, REFUSED);
        let mut over_tls = ToyClient::new(Client::connect(bench.websocket_tls));
        bench.until("closed without a word", |_| over_tls.heard().is_empty() && over_tls.socket.end.is_some());
        assert_eq!(rules.strangers.stats().refused(Cause::Limit(Limit::Connections)), 2);
        drop(first);
        bench.until("its place is free", |bench| bench.shards[0].connections() == 1);
        let mut fourth = saying(bench.websocket, b"UP\n");
        hears(&mut bench, &mut fourth, b"101\n");
        drop((second, fourth));
        bench.until("all gone", |bench| bench.shards[0].connections() == 0);
        assert_eq!(rules.strangers.stats().addresses, 0);
        assert_eq!(bench.shards[0].callers.heap_bytes() / 4_096, 0, "an idle table holds no chunk");
    });
}

#[test]
fn a_connection_that_moves_stays_counted_once() {
    run(|| {
        let rules = rules(limits(2), Proxies::default());
        let mut bench = Bench::with_callers(2, &rules);
        let mut moving = bench.websocket();
        moving.say(b"M 1\n");
        hears(&mut bench, &mut moving, b"pong\n");
        assert_eq!((bench.shards[0].connections(), bench.shards[1].connections()), (0, 1));
        let mut beside = bench.websocket();
        let mut beyond = saying(bench.websocket, b"UP\n");
        is_closed(&mut bench, &mut beyond, REFUSED);
        moving.forget();
        moving.say(b"E\n");
        hears(&mut bench, &mut moving, b"pong\n");
        drop(moving);
        bench.until("gone", |bench| bench.shards[1].connections() == 0);
        let mut another = saying(bench.websocket, b"UP\n");
        hears(&mut bench, &mut another, b"101\n");
        beside.say(b"E\n");
        hears(&mut bench, &mut beside, b"pong\n");
    });
}

#[test]
fn a_tls_connection_takes_its_caller_along() {
    run(|| {
        let rules = rules(limits(1), Proxies::default());
        let mut bench = Bench::with_callers(2, &rules);
        let mut moving = ToyClient::new(Client::connect(bench.websocket_tls));
        moving.socket.say(&ToyClient::flights());
        moving.say(b"UP\nM 1\nE\n");
        bench.until("moved", |_| moving.heard() == b"101\npong\npong\n");
        assert_eq!((bench.shards[0].connections(), bench.shards[1].connections()), (0, 1));
        let mut beyond = saying(bench.websocket, b"UP\n");
        is_closed(&mut bench, &mut beyond, REFUSED);
    });
}

#[test]
fn an_app_server_is_counted_by_the_shard_that_serves_it() {
    run(|| {
        let rules = rules(limits(4), Proxies::default());
        let mut bench = Bench::with_callers(2, &rules);
        let mut senders: Vec<Client> = (0..4).map(|_| saying(bench.endpoint, b"E\n")).collect();
        bench.until("all are served", |_| senders.iter_mut().all(|sender| sender.heard() == b"pong\n"));
        assert!(bench.shards.iter().all(|shard| shard.connections() > 0), "the connections are dealt");
        let mut beyond = saying(bench.endpoint, b"E\n");
        is_closed(&mut bench, &mut beyond, REFUSED);
        senders.clear();
        bench.until("all gone", |_| rules.strangers.stats().addresses == 0);
    });
}

/// A proxy behind a proxy: the header names a trusted one, whose upgrades name their callers. The mark of a proxy moves
/// with its connection.
#[test]
fn a_field_counts_behind_a_proxy_header_that_names_a_trusted_proxy() {
    run(|| {
        let rules = rules(limits(1), proxies(true, true));
        let mut bench = Bench::with_callers(2, &rules);
        let mut first = saying(bench.websocket, b"PROXY 127.0.0.9\nUP 192.0.2.1\nM 1\n");
        hears(&mut bench, &mut first, b"101\npong\n");
        let mut beyond = saying(bench.websocket, b"PROXY 127.0.0.9\nUP 192.0.2.1\n");
        is_closed(&mut bench, &mut beyond, b"101\nbye AddressLimit\n");
        let mut other = saying(bench.websocket, b"PROXY 192.0.2.7\nUP 192.0.2.1\n");
        hears(&mut bench, &mut other, b"101\n");
        // Of two without a field, which count for no address.
        let mut unnamed = [(); 2].map(|()| saying(bench.websocket, b"PROXY 127.0.0.9\nUP\nM 1\n"));
        for client in &mut unnamed {
            hears(&mut bench, client, b"101\npong\n");
        }
    });
}

#[test]
fn handshakes_registers_and_new_users_have_limits() {
    run(|| {
        let limits = StrangerLimits {
            handshakes_per_second: 1,
            new_users_per_hour: 1,
            registers_per_hour: 2,
            ..StrangerLimits::default()
        };
        let rules = rules(limits, Proxies::default());
        let mut bench = Bench::with_callers(1, &rules);
        let mut agent = bench.websocket();
        agent.say(b"W\nW 1\nR\nR\n");
        hears(&mut bench, &mut agent, b"pong\npong\npong\npong\n");
        let mut second = bench.websocket();
        second.say(b"W 1\nW\n");
        is_closed(&mut bench, &mut second, b"pong\nbye AddressLimit\n");
        agent.forget();
        agent.say(b"R\n");
        is_closed(&mut bench, &mut agent, b"bye AddressLimit\n");
        assert_eq!(bench.log(0).last().unwrap(), "gone AddressLimit", "the machine is told");
        // Of two that came together.
        let mut over_tls = [(); 2].map(|()| ToyClient::new(Client::connect(bench.websocket_tls)));
        bench.until("closed", |_| over_tls[1].heard().is_empty() && over_tls[1].socket.end.is_some());
        over_tls[0].socket.say(&ToyClient::flights());
        over_tls[0].say(b"UP\n");
        bench.until("upgrade", |_| over_tls[0].heard() == b"101\n");
        let stats = rules.strangers.stats();
        let refused =
            [Limit::Handshakes, Limit::NewUsers, Limit::Registers].map(|limit| stats.refused(Cause::Limit(limit)));
        assert_eq!(refused, [1, 1, 1]);
    });
}

/// Sessions and requests share the limits of their address, and a request is told when to try again.
#[test]
fn a_registration_by_request_counts_as_that_of_a_session() {
    run(|| {
        let limits = StrangerLimits { new_users_per_hour: 2, registers_per_hour: 9, ..StrangerLimits::default() };
        let rules = rules(limits, Proxies::default());
        let mut bench = Bench::with_callers(1, &rules);
        let mut agent = bench.websocket();
        agent.say(b"W\n");
        hears(&mut bench, &mut agent, b"pong\n");
        let mut device = saying(bench.endpoint, b"A\nA\nE\n");
        hears(&mut bench, &mut device, b"pong\n429 1800\npong\n");
        let mut another = bench.websocket();
        another.say(b"W\n");
        is_closed(&mut bench, &mut another, b"bye AddressLimit\n");
        assert_eq!(rules.strangers.stats().refused(Cause::Limit(Limit::NewUsers)), 2);
        assert_eq!(bench.log(0).iter().filter(|line| *line == "command R").count(), 1, "the machine made one user");
    });
}

#[test]
fn an_address_has_its_share_of_the_relays_until_one_ends() {
    run(|| {
        let rules = rules(limits(1_000), Proxies::default());
        let mut bench = Bench::with_callers(1, &rules);
        let mut relays: Vec<Client> = (0..RELAYS_OF_ADDRESS_MAX).map(|_| saying(bench.websocket, b"UP\nO\n")).collect();
        bench.until("all are relays", |_| relays.iter_mut().all(|relay| relay.heard() == b"101\npong\n"));
        let mut beyond = saying(bench.websocket, b"UP\nO\n");
        is_closed(&mut bench, &mut beyond, b"101\nbye AddressLimit\n");
        drop(relays.pop());
        bench.until("one has ended", |bench| bench.shards[0].connections() < RELAYS_OF_ADDRESS_MAX as u32);
        let mut next = saying(bench.websocket, b"UP\nO\n");
        hears(&mut bench, &mut next, b"101\npong\n");
    });
}

/// Of the two limits that it needs, a request that is refused takes neither.
#[test]
fn a_registration_by_request_takes_both_limits_or_none() {
    run(|| {
        let limits = StrangerLimits { new_users_per_hour: 3, registers_per_hour: 1, ..StrangerLimits::default() };
        let rules = rules(limits, Proxies::default());
        let mut bench = Bench::with_callers(1, &rules);
        let mut device = saying(bench.endpoint, b"A\nA\nA\nA\n");
        hears(&mut bench, &mut device, b"pong\n429 3600\n429 3600\n429 3600\n");
        for _ in 0..2 {
            let mut agent = bench.websocket();
            agent.say(b"W\n");
            hears(&mut bench, &mut agent, b"pong\n");
        }
    });
}

#[test]
fn a_request_of_a_trusted_proxy_counts_for_the_caller_that_it_names() {
    run(|| {
        let limits = StrangerLimits { new_users_per_hour: 1, ..StrangerLimits::default() };
        let rules = rules(limits, proxies(false, true));
        let mut bench = Bench::with_callers(1, &rules);
        let mut proxy = saying(bench.endpoint, b"A 192.0.2.1\nA 192.0.2.1\nA 192.0.2.2\nA\nA\n");
        hears(&mut bench, &mut proxy, b"pong\n429 3600\npong\npong\npong\n");
        let mut agent = saying(bench.websocket, b"UP 192.0.2.2\nW\n");
        is_closed(&mut bench, &mut agent, b"101\nbye AddressLimit\n");
    });
}

#[test]
fn a_proxy_header_names_the_caller_also_in_two_parts() {
    run(|| {
        let rules = rules(limits(1), proxies(true, false));
        let mut bench = Bench::with_callers(1, &rules);
        let bytes = b"PROXY 192.0.2.1\nUP\n";
        for split in [0, 4, 15, 16, 18] {
            let mut client = saying(bench.websocket, &bytes[..split]);
            bench.settle();
            client.say(&bytes[split..]);
            hears(&mut bench, &mut client, b"101\n");
            let mut beyond = saying(bench.websocket, bytes);
            is_closed(&mut bench, &mut beyond, REFUSED);
            let mut other = saying(bench.websocket, b"PROXY 192.0.2.2\nUP\n");
            hears(&mut bench, &mut other, b"101\n");
            drop((client, other));
            bench.until("gone", |bench| bench.shards[0].connections() == 0);
        }
        // A proxy that speaks for itself is not counted.
        let mut checks = [(); 2].map(|()| saying(bench.endpoint, b"PROXY\nE\n"));
        for check in &mut checks {
            hears(&mut bench, check, b"pong\n");
        }
    });
}

#[test]
fn a_proxy_header_stands_before_tls() {
    run(|| {
        let rules = rules(limits(1), proxies(true, false));
        let mut bench = Bench::with_callers(1, &rules);
        let mut client = ToyClient::new(Client::connect(bench.websocket_tls));
        client.socket.say(&[b"PROXY 192.0.2.1\n", &ToyClient::flights()[..]].concat());
        client.say(b"UP\n");
        bench.until("upgrade", |_| client.heard() == b"101\n");
        let mut beyond = ToyClient::new(Client::connect(bench.websocket_tls));
        beyond.socket.say(b"PROXY 192.0.2.1\n");
        bench.until("closed", |_| beyond.heard().is_empty() && beyond.socket.end.is_some());
    });
}

#[test]
fn connections_without_a_proxy_header_are_closed() {
    run(|| {
        let mut bench = Bench::with_callers(1, &rules(limits(0), proxies(true, false)));
        let mut bare = saying(bench.websocket, b"UP\n");
        is_closed(&mut bench, &mut bare, b"");
        drop(saying(bench.websocket, b"PRO"));
        bench.until("gone", |bench| bench.shards[0].connections() == 0);
        assert_eq!(bench.shards[0].stats.proxy_headers_refused, 1, "the end of a header is no fault");

        let elsewhere = Proxies { trusted: Arc::new(["192.0.2.0/24".parse().unwrap()]), protocol: true, header: false };
        let mut bench = Bench::with_callers(1, &rules(limits(0), elsewhere));
        let mut untrusted = saying(bench.websocket, b"PROXY 192.0.2.1\nUP\n");
        is_closed(&mut bench, &mut untrusted, b"");
        assert_eq!(bench.shards[0].stats.proxy_headers_refused, 1);
    });
}

#[test]
fn a_proxy_header_that_does_not_come_is_waited_for_as_a_handshake_is() {
    run(|| {
        let callers = rules(limits(0), proxies(true, false));
        let mut bench = Bench::with_callers(1, &callers);
        bench.shards[0].limits =
            PlaneLimits { handshake_timeout: machine::time::TimeSpan::from_ms(50), ..PlaneLimits::new(10) };
        let mut silent = saying(bench.websocket, b"PROXY 192.");
        is_closed(&mut bench, &mut silent, b"");
        assert_eq!(bench.shards[0].stats.proxy_headers_refused, 1);
    });
}

#[test]
fn the_head_of_an_upgrade_names_the_caller_if_a_trusted_proxy_sent_it() {
    run(|| {
        let trusting = rules(limits(1), proxies(false, true));
        let mut bench = Bench::with_callers(1, &trusting);
        let mut first = saying(bench.websocket, b"UP 192.0.2.1\n");
        hears(&mut bench, &mut first, b"101\n");
        let mut other = saying(bench.websocket, b"UP 192.0.2.2\n");
        hears(&mut bench, &mut other, b"101\n");
        let mut beyond = saying(bench.websocket, b"UP 192.0.2.1\n");
        is_closed(&mut bench, &mut beyond, b"101\nbye AddressLimit\n");
        assert_eq!(bench.log(0), ["opened", "opened"], "the machine knows nothing of the third");

        let elsewhere = Proxies { trusted: Arc::new(["192.0.2.0/24".parse().unwrap()]), protocol: false, header: true };
        let mut bench = Bench::with_callers(1, &rules(limits(1), elsewhere));
        let mut first = saying(bench.websocket, b"UP 192.0.2.1\n");
        hears(&mut bench, &mut first, b"101\n");
        let mut second = saying(bench.websocket, b"UP 192.0.2.2\n");
        is_closed(&mut bench, &mut second, REFUSED);
    });
}

/// No span is free for the answers of the kernel.
#[test]
fn a_crowd_is_served_although_addresses_wait_for_spans() {
    run(|| {
        let mut bench = Bench::with_callers(1, &rules(limits(10_000), Proxies::default()));
        let arena = &mut bench.shards[0].plane.arena();
        let spans: Vec<ArenaSpan> = std::iter::from_fn(|| arena.take(SpanSize::Small)).collect();
        let mut crowd: Vec<Client> = (0..150).map(|_| saying(bench.websocket, b"UP\n")).collect();
        bench.until("all are accepted", |bench| bench.shards[0].stats.accepts == 150);
        bench.settle();
        assert!(bench.shards[0].stats.receives_starved >= 150 && crowd.iter_mut().all(|client| client.heard() == b""));
        spans.into_iter().for_each(|span| bench.shards[0].plane.arena().free(span));
        bench.until("all are served", |_| crowd.iter_mut().all(|client| client.heard() == b"101\n"));
    });
}

/// Refusals of the edge have the network of the caller where the limits know it, and none elsewhere.
#[test]
fn refusals_by_a_rule_are_counted_with_the_network_of_the_caller() {
    type Case = (fn() -> CallerRules, &'static [u8], Option<&'static str>);
    let cases: [Case; 3] = [
        (|| rules(limits(9), Proxies::default()), b"DENY\n", Some("127.0.0.0/24")),
        (|| rules(limits(9), proxies(false, true)), b"DENY 192.0.2.7\n", Some("192.0.2.0/24")),
        (|| rules(limits(0), Proxies::default()), b"DENY\n", None),
    ];
    for (rules, line, network) in cases {
        run(move || {
            let rules = rules();
            let mut bench = Bench::with_callers(1, &rules);
            let mut client = saying(bench.websocket, &[line, line].concat());
            hears(&mut bench, &mut client, b"denied\ndenied\n");
            client.say(b"UP\n");
            bench.until("upgrade", |_| client.heard().ends_with(b"101\n"));
            assert_eq!(rules.strangers.stats().refused(Cause::Access(Access::Token)), 2);
            let refusals = rules.strangers.take_refusals(Cause::Access(Access::Token)).unwrap();
            assert_eq!((refusals.count, refusals.network), (2, network.map(|text| text.parse().unwrap())));
            assert_eq!(rules.strangers.take_refusals(Cause::Access(Access::Token)), None);
        });
    }
}

/// A refused request whose body is awaited has its own caller, also when the proxy brings other callers meanwhile.
#[test]
fn refusals_of_two_callers_of_a_proxy_are_told_apart() {
    run(|| {
        let rules = rules(limits(9), proxies(false, true));
        let mut bench = Bench::with_callers(1, &rules);
        let networks = [("LATER 192.0.2.7\n", "192.0.2.0/24"), ("DENY 198.51.100.7\n", "198.51.100.0/24")];
        for (line, network) in networks {
            let _client = saying(bench.websocket, line.as_bytes());
            bench.settle();
            let refusals = rules.strangers.take_refusals(Cause::Access(Access::Token)).unwrap();
            assert_eq!((refusals.count, refusals.network), (1, network.parse().ok()));
        }
    });
}

#[test]
fn a_register_names_its_caller_if_users_are_charged_to_it() {
    run(|| {
        let exempt = vec!["198.51.100.0/24".parse().unwrap()];
        let limits = StrangerLimits { registers_per_hour: 10, exempt, ..StrangerLimits::default() };
        let rules = rules(limits, proxies(true, true));
        let mut bench = Bench::with_callers(1, &rules);
        for said in [
            "PROXY 192.0.2.7\nUP\nR\n",
            "PROXY 127.0.0.9\nUP 192.0.2.7\nR\n",
            // A proxy that names nobody, and an exempt address.
            "PROXY 127.0.0.9\nUP\nR\n",
            "PROXY 198.51.100.1\nUP\nR\n",
        ] {
            let mut agent = saying(bench.websocket, said.as_bytes());
            hears(&mut bench, &mut agent, b"101\npong\n");
        }
        let log = bench.log(0);
        let named: Vec<_> = log.iter().filter(|line| line.starts_with("caller")).collect();
        assert_eq!(named, ["caller 1c0000207", "caller 1c0000207"]);
    });
}
