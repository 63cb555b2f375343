//! Key exchanges: ML-KEM beside X25519, older groups, and shares that break a rule.

use std::sync::Arc;

use runtime::tls::Tls as _;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::kx_group::{SECP256R1, SECP384R1, X25519};
use rustls::crypto::{ActiveKeyExchange, CryptoProvider, SharedSecret, SupportedKxGroup};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::version::TLS12;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind, NamedGroup, RootCertStore, ServerConfig,
    ServerConnection,
};
use tls::{MinVersion, ShardTls, X25519MLKEM768, provider};

use crate::inputs::alert_to;
use crate::peer::{Pair, Papers, SLOT, sum};

type Group = &'static dyn SupportedKxGroup;

fn with_groups(groups: &[Group]) -> CryptoProvider {
    CryptoProvider { kx_groups: groups.to_vec(), ..default_provider() }
}

fn server_of(papers: &Papers) -> ShardTls {
    ShardTls::new(Some(papers.server(&[1])), None)
}

/// Shakes hands with a new server. Returns the group, and the kind of the handshake.
fn negotiated(papers: &Papers, config: &Arc<ClientConfig>) -> (NamedGroup, HandshakeKind) {
    let mut pair = Pair::new(server_of(papers), config, "localhost");
    pair.shake();
    pair.assert_alive();
    let group = pair.client.negotiated_key_exchange_group().unwrap().name();
    let metric = format!("tls_key_exchanges_{}", format!("{group:?}").to_lowercase());
    assert_eq!(sum(pair.server.stats(), &metric), 1, "{metric}");
    assert_eq!(sum(pair.server.stats(), "tls_key_exchanges_"), 1, "{metric}");
    (group, pair.client.handshake_kind().unwrap())
}

#[test]
fn the_first_group_of_the_client_that_both_know_is_taken_at_once() {
    let papers = Papers::local();
    let table: [(&[Group], NamedGroup); 6] = [
        (&provider().kx_groups, NamedGroup::X25519MLKEM768),
        (&[X25519MLKEM768], NamedGroup::X25519MLKEM768),
        (&[X25519], NamedGroup::X25519),
        (&[SECP256R1], NamedGroup::secp256r1),
        (&[SECP384R1], NamedGroup::secp384r1),
        // Its only share is of X25519, which it prefers.
        (&[X25519, X25519MLKEM768], NamedGroup::X25519),
    ];
    for (groups, group) in table {
        let config = Arc::new(papers.client_of(with_groups(groups)));
        assert_eq!(negotiated(&papers, &config), (group, HandshakeKind::Full), "{groups:?}");
        assert_eq!(negotiated(&papers, &config), (group, HandshakeKind::Resumed), "{groups:?}");
    }
}

/// A client that lists ML-KEM first gets it, also if it sent a share of X25519 alone.
#[test]
fn a_client_that_prefers_ml_kem_and_sends_no_share_of_it_is_asked_for_one() {
    let papers = Papers::local();
    let config = Arc::new(papers.client_of(provider()));
    // rustls remembers the group of a server that had no other, and begins with it.
    classical_server(&papers, &config);
    let expected = (NamedGroup::X25519MLKEM768, HandshakeKind::FullWithHelloRetryRequest);
    assert_eq!(negotiated(&papers, &config), expected);
    assert_eq!(negotiated(&papers, &config).0, NamedGroup::X25519MLKEM768, "and remembers this one");
}

/// A server of rustls without ML-KEM and without tickets takes the share of X25519 that comes beside the first.
fn classical_server(papers: &Papers, config: &Arc<ClientConfig>) {
    let key = PrivateKeyDer::from_pem_file(papers.path("0.key")).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut server = builder.with_single_cert(papers.ders.clone(), key).unwrap();
    server.send_tls13_tickets = 0;
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::clone(config), name).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        client.write_tls(&mut to_server).unwrap();
        server.read_tls(&mut &to_server[..]).unwrap();
        server.process_new_packets().unwrap();
        server.write_tls(&mut to_client).unwrap();
        client.read_tls(&mut &to_client[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    assert_eq!(client.negotiated_key_exchange_group().unwrap().name(), NamedGroup::X25519);
    assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full), "no HelloRetryRequest was needed");
}

#[test]
fn tls_1_2_knows_no_ml_kem() {
    let mut papers = Papers::local();
    papers.min_version = MinVersion::Tls12;
    let mut roots = RootCertStore::empty();
    roots.add(papers.ders[0].clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider())).with_protocol_versions(&[&TLS12]);
    let config = Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth());
    assert_eq!(negotiated(&papers, &config), (NamedGroup::X25519, HandshakeKind::Full));
}

/// A group of clients whose share is what a test says.
#[derive(Debug)]
struct Forged(NamedGroup, Vec<u8>);

impl Forged {
    fn group(group: NamedGroup, share: Vec<u8>) -> Group {
        Box::leak(Box::new(Forged(group, share)))
    }
}

impl SupportedKxGroup for Forged {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(Forged(self.0, self.1.clone())))
    }

    fn name(&self) -> NamedGroup {
        self.0
    }
}

impl ActiveKeyExchange for Forged {
    fn complete(self: Box<Self>, _: &[u8]) -> Result<SharedSecret, Error> {
        panic!("the server has answered a share that breaks a rule")
    }

    fn pub_key(&self) -> &[u8] {
        &self.1
    }

    fn group(&self) -> NamedGroup {
        self.0
    }
}

/// Points of X25519 whose shared secret is zero for every private key (RFC 7748 section 6.1).
fn low_order_points() -> [[u8; 32]; 4] {
    let mut one = [0; 32];
    one[0] = 1;
    // 2^255 - 19, which is zero, and the number before it.
    let mut zero = [0xff; 32];
    (zero[0], zero[31]) = (0xed, 0x7f);
    let mut minus_one = zero;
    minus_one[0] = 0xec;
    [[0; 32], one, zero, minus_one]
}

#[test]
fn shares_that_break_a_rule_get_illegal_parameter() {
    let papers = Papers::local();
    let good = X25519MLKEM768.start().unwrap().pub_key().to_vec();
    let mut bad: Vec<(String, NamedGroup, Vec<u8>)> = Vec::new();
    for len in [1, 32, 1_088, 1_120, 1_152, 1_183, 1_184, 1_185, 1_215, 1_217, 1_248, 2_432] {
        let share = good.iter().copied().cycle().take(len).collect();
        bad.push((format!("{len} bytes"), NamedGroup::X25519MLKEM768, share));
    }
    // A coefficient of 12 bits that is not below 3,329, in each of the three polynomials.
    for at in [0, 383, 384, 768, 1_149, 1_150] {
        let mut share = good.clone();
        share[at..at + 2].fill(0xff);
        bad.push((format!("coefficient at {at}"), NamedGroup::X25519MLKEM768, share));
    }
    for point in low_order_points() {
        bad.push((format!("{point:x?}"), NamedGroup::X25519MLKEM768, [&good[..1_184], &point].concat()));
        bad.push((format!("{point:x?} alone"), NamedGroup::X25519, point.to_vec()));
    }
    for (name, group, share) in bad {
        let config = Arc::new(papers.client_of(with_groups(&[Forged::group(group, share)])));
        let mut pair = Pair::new(server_of(&papers), &config, "localhost");
        let hello = pair.sent_by_client();
        assert_eq!(alert_to(&mut pair, &hello), AlertDescription::IllegalParameter, "{name}");
        pair.server.end(SLOT);
        assert_eq!(pair.server.stats().tls_connections, 0);
    }
}
