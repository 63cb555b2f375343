//! Resumption by tickets.

use std::sync::Arc;

use runtime::tls::Tls as _;
use rustls::{ClientConfig, HandshakeKind};
use tls::{ServerTls, ShardTls};

use crate::peer::{Pair, Papers, SUITES, completed};

/// Connects, and returns the kind of the handshake as both sides see it.
fn connect(config: &Arc<ClientConfig>, server: &ServerTls) -> HandshakeKind {
    let mut pair = Pair::new(ShardTls::new(Some(server.clone()), None), config, "localhost");
    pair.shake();
    pair.assert_alive();
    let kind = pair.client.handshake_kind().unwrap();
    let stats = pair.server.stats();
    let resumed = u64::from(kind == HandshakeKind::Resumed);
    assert_eq!([stats.tls_handshakes_full_1_3, stats.tls_handshakes_resumed_1_3], [1 - resumed, resumed]);
    assert_eq!(completed(stats), 1);
    kind
}

#[test]
fn servers_with_the_same_keys_resume_each_others_connections() {
    let papers = Papers::local();
    for suite in SUITES {
        let config = Arc::new(papers.client(&[suite]));
        assert_eq!(connect(&config, &papers.server(&[1])), HandshakeKind::Full);
        assert_eq!(connect(&config, &papers.server(&[1])), HandshakeKind::Resumed);
        assert_eq!(connect(&config, &papers.server(&[2, 1])), HandshakeKind::Resumed);
        assert_eq!(connect(&config, &papers.server(&[2])), HandshakeKind::Resumed, "the first key sealed");
        assert_eq!(connect(&config, &papers.server(&[3])), HandshakeKind::Full);
        assert_eq!(connect(&config, &papers.server(&[])), HandshakeKind::Full, "a server without a key");
        assert_eq!(connect(&config, &papers.server(&[3])), HandshakeKind::Full, "that made no ticket");
    }
}

#[test]
fn ticket_keys_are_replaced_while_the_server_runs() {
    let papers = Papers::local();
    let config = Arc::new(papers.client(&SUITES));
    let server = papers.server(&[1]);
    assert_eq!(connect(&config, &server), HandshakeKind::Full);
    server.replace(papers.settings(&[2])).unwrap();
    assert_eq!(connect(&config, &server), HandshakeKind::Full);
    assert_eq!(connect(&config, &papers.server(&[2])), HandshakeKind::Resumed);
}

#[test]
fn one_ticket_is_sent_and_offers_no_early_data() {
    let papers = Papers::local();
    let config = papers.server(&[1]).config();
    assert_eq!((config.send_tls13_tickets, config.max_early_data_size), (1, 0));
    let mut client = papers.client(&SUITES);
    client.enable_early_data = true;
    let client = Arc::new(client);
    assert_eq!(connect(&client, &papers.server(&[1])), HandshakeKind::Full);
    let mut pair = Pair::new(ShardTls::new(Some(papers.server(&[1])), None), &client, "localhost");
    assert!(pair.client.early_data().is_none());
    pair.shake();
    assert_eq!(pair.client.handshake_kind(), Some(HandshakeKind::Resumed));
}
