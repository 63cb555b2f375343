//! Handshakes, and application data at their end.

use std::io::Write as _;
use std::sync::Arc;

use runtime::ports::Port;
use runtime::tls::{GivenUp, Next, Received, Stage, Tls as _};
use rustls::ClientConfig;
use tls::ShardTls;

use crate::peer::{Pair, Papers, SLOT, SUITES, alerts_and_failures, completed, every_suite, is_tls12};

#[test]
fn every_suite_carries_data_in_both_directions() {
    for suite in every_suite() {
        let mut pair = Pair::established(suite);
        assert_eq!(pair.client.negotiated_cipher_suite(), Some(suite));
        pair.assert_alive();
        let long: Vec<u8> = (0..16_384_u32).map(|at| at as u8).collect();
        pair.client_says(&[&long[..], &long].concat());
        assert_eq!(pair.heard.split_off(15), [&long[..], &long].concat());
        pair.server_says(&long);
        assert_eq!(pair.told.split_off(15), long);
        let stats = pair.server.stats();
        assert_eq!((completed(stats), alerts_and_failures(stats)), (1, (0, 0)));
        assert_eq!((stats.tls_connections, stats.tls_handshakes_in_flight), (1, 0));
        let full = [stats.tls_handshakes_full_1_3, stats.tls_handshakes_full_1_2];
        assert_eq!(full, if is_tls12(suite) { [0, 1] } else { [1, 0] });
    }
}

/// The client's second flight, with "first data" behind its Finished.
fn second_flight(pair: &mut Pair) -> Vec<u8> {
    pair.client.writer().write_all(b"first data").unwrap();
    let hello = pair.sent_by_client();
    let (next, wire) = pair.give(&hello);
    assert_eq!((next, pair.server.stage(SLOT)), (Next::More, Stage::Handshake));
    pair.answer(&wire);
    pair.sent_by_client()
}

fn local() -> (Papers, Arc<ClientConfig>, ShardTls) {
    let papers = Papers::local();
    let (client, server) = (Arc::new(papers.client(&SUITES)), ShardTls::new(Some(papers.server(&[1])), None));
    (papers, client, server)
}

#[test]
fn the_clients_flights_may_be_split_anywhere() {
    let (papers, config, _) = local();
    let server = papers.server(&[1]);
    let mut at = 0;
    loop {
        let mut pair = Pair::new(ShardTls::new(Some(server.clone()), None), &config, "localhost");
        pair.client.writer().write_all(b"first data").unwrap();
        let hello = pair.sent_by_client();
        let (first, second) = hello.split_at(at.min(hello.len()));
        let (next, wire) = pair.give(first);
        assert_eq!(next, Next::More);
        assert_eq!(wire.is_empty(), first.len() < hello.len(), "{at}");
        pair.answer(&wire);
        let (_, wire) = pair.give(second);
        pair.answer(&wire);
        let flight = pair.sent_by_client();
        let (first, second) = flight.split_at(at.min(flight.len()));
        let (_, wire) = pair.give(first);
        pair.answer(&wire);
        let (_, wire) = pair.give(second);
        pair.answer(&wire);
        assert_eq!((&pair.heard[..], pair.rest.len()), (&b"first data"[..], 0), "{at}");
        assert_eq!(pair.server.stage(SLOT), Stage::Established);
        pair.assert_alive();
        if at >= hello.len() && at >= flight.len() {
            return;
        }
        at += 1;
    }
}

#[test]
fn a_handshake_may_come_byte_by_byte() {
    let (_papers, config, server) = local();
    let mut pair = Pair::new(server, &config, "localhost");
    pair.client.writer().write_all(b"first data").unwrap();
    for _ in 0..2 {
        for byte in pair.sent_by_client() {
            let (_, wire) = pair.give(&[byte]);
            pair.answer(&wire);
        }
    }
    assert_eq!(pair.heard, b"first data");
    pair.assert_alive();
}

/// A ClientHello in records of 50 bytes.
#[test]
fn handshake_messages_may_be_cut_into_records() {
    let (_papers, config, server) = local();
    let mut pair = Pair::new(server, &config, "localhost");
    let hello = pair.sent_by_client();
    let records: Vec<u8> =
        hello[5..].chunks(50).flat_map(|part| [&[22, 3, 1, 0, part.len() as u8], part].concat()).collect();
    let (next, wire) = pair.give(&records);
    assert_eq!((next, pair.rest.len()), (Next::More, 0));
    pair.answer(&wire);
    let flight = pair.sent_by_client();
    let (_, wire) = pair.give(&flight);
    pair.answer(&wire);
    pair.assert_alive();
}

/// A ClientHello in records of 2 bytes: more than one step takes.
#[test]
fn a_flight_in_many_small_records_takes_several_steps() {
    let (_papers, config, server) = local();
    let mut pair = Pair::new(server, &config, "localhost");
    let hello = pair.sent_by_client();
    let mut records: Vec<u8> =
        hello[5..].chunks(2).flat_map(|part| [&[22, 3, 1, 0, part.len() as u8], part].concat()).collect();
    assert!(records.len() > 65 * 7, "more than one step");
    let mut wire = Vec::new();
    let received = pair.server.receive(SLOT, &mut records, &mut wire);
    assert_eq!(received, Received { plain: 0, consumed: 64 * 7, next: Next::Again });
    let (next, wire) = pair.give(&records[64 * 7..]);
    assert_eq!((next, pair.rest.len()), (Next::More, 0));
    pair.answer(&wire);
    pair.shake();
    pair.assert_alive();
}

#[test]
fn one_call_does_one_flight_and_then_what_follows_the_finished() {
    let (_papers, config, server) = local();
    let mut pair = Pair::new(server, &config, "localhost");
    let mut bytes = second_flight(&mut pair);
    let mut wire = Vec::new();
    let received = pair.server.receive(SLOT, &mut bytes, &mut wire);
    assert_eq!(received, Received { plain: 10, consumed: bytes.len(), next: Next::More });
    assert_eq!(bytes[..10], *b"first data");
    assert!(!wire.is_empty(), "the ticket");
}

#[test]
fn without_a_ticket_key_no_ticket_is_sent() {
    let papers = Papers::local();
    let config = Arc::new(papers.client(&SUITES));
    let mut pair = Pair::new(ShardTls::new(Some(papers.server(&[])), None), &config, "localhost");
    let bytes = second_flight(&mut pair);
    assert_eq!(pair.give(&bytes), (Next::More, Vec::new()));
    pair.assert_alive();
}

#[test]
fn a_connection_costs_memory_from_its_first_byte_and_none_after_its_end() {
    let (_papers, config, mut server) = local();
    assert_eq!(server.stats().tls_state_bytes, 0);
    server.open(SLOT, Port::Endpoint);
    let fresh = server.stats().tls_state_bytes;
    let mut pair = Pair::new(server, &config, "localhost");
    let hello = pair.sent_by_client();
    let _ = pair.give(&hello[..1]);
    let stats = pair.server.stats();
    assert!(stats.tls_state_bytes > fresh + 3_000 && stats.tls_handshakes_in_flight == 1);
    assert_eq!(pair.server.stage(SLOT), Stage::Handshake);
    pair.server.end(SLOT);
    pair.server.end(SLOT);
    let stats = pair.server.stats();
    assert_eq!((stats.tls_handshakes_failed_left, alerts_and_failures(stats)), (1, (0, 1)));
    assert_eq!((stats.tls_connections, stats.tls_handshakes_in_flight), (0, 0));
    assert!(stats.tls_state_bytes < 100, "{stats:?}");
}

#[test]
fn a_handshake_that_the_server_ends_fails_once_and_for_this_reason() {
    for why in [GivenUp::Late, GivenUp::Flood, GivenUp::Closed] {
        let (_papers, config, server) = local();
        let mut pair = Pair::new(server, &config, "localhost");
        let hello = pair.sent_by_client();
        let _ = pair.give(&hello[..1]);
        pair.server.give_up(SLOT, why);
        // As the end of any connection that the shard ends.
        pair.server.give_up(SLOT, GivenUp::Closed);
        pair.server.end(SLOT);
        let stats = pair.server.stats();
        let failed = [
            stats.tls_handshakes_failed_timeout,
            stats.tls_handshakes_failed_flood,
            stats.tls_handshakes_failed_closed,
        ];
        assert_eq!(failed, [GivenUp::Late, GivenUp::Flood, GivenUp::Closed].map(|other| u64::from(other == why)));
        assert_eq!((stats.tls_handshakes_timeout, alerts_and_failures(stats)), (failed[0], (0, 1)));
    }
}

#[test]
fn connections_of_nodes_have_their_own_certificate_and_counters() {
    let (public, node) = (Papers::local(), Papers::local());
    let config = Arc::new(node.client(&SUITES));
    let mut server = ShardTls::new(Some(public.server(&[1])), Some(node.server(&[1])));
    server.count_refused(Port::Node);
    server.count_refused(Port::WebSocket);
    let mut pair = Pair::new(server, &config, "localhost");
    pair.server.end(SLOT);
    pair.server.open(SLOT, Port::Node);
    pair.shake();
    pair.assert_alive();
    pair.server.give_up(SLOT, GivenUp::Late);
    let stats = pair.server.stats();
    assert_eq!((stats.node_tls_connections, stats.node_tls_handshakes, completed(stats)), (1, 1, 1));
    assert_eq!((stats.node_tls_refused, stats.tls_handshakes_refused), (1, 2));
    assert_eq!((stats.node_tls_handshakes_timeout, stats.tls_handshakes_timeout), (1, 1));
    pair.server.end(SLOT);
    pair.server.give_up(SLOT, GivenUp::Late);
    let stats = pair.server.stats();
    assert_eq!((stats.node_tls_connections, stats.node_tls_handshakes_timeout), (0, 1));
}

#[test]
fn established_connections_outlive_new_settings() {
    let (old, new) = (Papers::local(), Papers::local());
    let server = old.server(&[1]);
    let mut pair = Pair::established_with(ShardTls::new(Some(server.clone()), None), &old, SUITES[0]);
    server.replace(new.settings(&[2])).unwrap();
    pair.assert_alive();
    assert!(server.replace(Papers::none().settings(&[2])).is_err());
    Pair::established_with(ShardTls::new(Some(server), None), &new, SUITES[0]).assert_alive();
}
