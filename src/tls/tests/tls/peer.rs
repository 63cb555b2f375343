//! A rustls client that talks to a `ShardTls` in memory.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use machine::stats::{Board, Counters as _};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256};
use runtime::ports::Port;
use runtime::tls::{Next, Received, Stage, Tls as _, TlsStats};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite};
use tempfile::TempDir;
use tls::{Certificate, MinVersion, ServerTls, Settings, ShardTls, TicketKey, UnknownName};

pub const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

pub const TLS12_SUITES: [SupportedCipherSuite; 6] = [
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

pub fn is_tls12(suite: SupportedCipherSuite) -> bool {
    suite.tls13().is_none()
}

pub fn rsa() -> KeyPair {
    let der = PrivatePkcs8KeyDer::from_pem_slice(include_bytes!("rsa.pem")).unwrap();
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256).unwrap()
}

/// Suites of TLS 1.3 and 1.2.
pub fn every_suite() -> impl Iterator<Item = SupportedCipherSuite> {
    SUITES.into_iter().chain(TLS12_SUITES)
}

/// Slot of the connection: in the second chunk of the table.
pub const SLOT: u32 = 700;

/// PEM files of self-signed certificates.
pub struct Papers {
    pub dir: TempDir,
    pub certificates: Vec<Certificate>,
    pub ders: Vec<CertificateDer<'static>>,
    pub min_version: MinVersion,
}

impl Papers {
    /// One certificate for `localhost`.
    pub fn local() -> Papers {
        let mut papers = Papers::none();
        papers.add(&["localhost"], &KeyPair::generate().unwrap());
        papers
    }

    /// One certificate for `localhost` whose key fits the suite, and its version.
    pub fn of(suite: SupportedCipherSuite) -> Papers {
        let mut papers = Papers::none();
        let is_rsa = format!("{:?}", suite.suite()).contains("ECDHE_RSA");
        papers.add(&["localhost"], &if is_rsa { rsa() } else { KeyPair::generate().unwrap() });
        papers.min_version = if is_tls12(suite) { MinVersion::Tls12 } else { MinVersion::Tls13 };
        papers
    }

    pub fn none() -> Papers {
        Papers {
            dir: tempfile::tempdir().unwrap(),
            certificates: Vec::new(),
            ders: Vec::new(),
            min_version: MinVersion::Tls13,
        }
    }

    pub fn add(&mut self, names: &[&str], key: &KeyPair) {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let made = CertificateParams::new(names).unwrap().self_signed(key).unwrap();
        let at = self.certificates.len();
        let (cert_path, key_path) = (self.path(&format!("{at}.pem")), self.path(&format!("{at}.key")));
        std::fs::write(&cert_path, pem("CERTIFICATE", made.der())).unwrap();
        std::fs::write(&key_path, pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        self.certificates.push(Certificate::read(("tls.cert", &cert_path), ("tls.key", &key_path)).unwrap());
        self.ders.push(made.der().clone());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn settings(&self, ticket_keys: &[u8]) -> Settings {
        Settings {
            certificates: self.certificates.clone(),
            ticket_keys: ticket_keys.iter().map(|byte| TicketKey::from([*byte; 32])).collect(),
            unknown_name: UnknownName::Refuse,
            min_version: self.min_version,
            challenges: None,
            clients: None,
        }
    }

    pub fn server(&self, ticket_keys: &[u8]) -> ServerTls {
        ServerTls::new(self.settings(ticket_keys)).unwrap()
    }

    pub fn client(&self, suites: &[SupportedCipherSuite]) -> ClientConfig {
        let provider = CryptoProvider { cipher_suites: suites.to_vec(), ..tls::provider() };
        self.client_of(provider)
    }

    pub fn client_of(&self, provider: CryptoProvider) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for der in &self.ders {
            roots.add(der.clone()).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(roots).with_no_client_auth()
    }
}

/// Sum of the counters whose names begin so.
pub fn sum(stats: &TlsStats, prefix: &str) -> u64 {
    let board = Board::new(&[TlsStats::MEANINGS]);
    stats.write_to(&board, 0);
    board.read().filter(|(meaning, _)| meaning.name.starts_with(prefix)).map(|(_, value)| value).sum()
}

/// Handshakes that were completed.
pub fn completed(stats: &TlsStats) -> u64 {
    sum(stats, "tls_handshakes_full_") + sum(stats, "tls_handshakes_resumed_")
}

/// Fatal alerts that were sent, and handshakes that failed.
pub fn alerts_and_failures(stats: &TlsStats) -> (u64, u64) {
    (sum(stats, "tls_alerts_sent_"), sum(stats, "tls_handshakes_failed_"))
}

pub fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// A client and the server's side of its connection.
pub struct Pair {
    pub server: ShardTls,
    pub client: ClientConnection,
    /// Ciphertext of the client that the server has not consumed.
    pub rest: Vec<u8>,
    /// Plaintext that the server has opened.
    pub heard: Vec<u8>,
    /// Plaintext that the client has opened.
    pub told: Vec<u8>,
}

impl Pair {
    pub fn new(server: ShardTls, config: &Arc<ClientConfig>, name: &str) -> Pair {
        let name = ServerName::try_from(name.to_string()).unwrap();
        let client = ClientConnection::new(Arc::clone(config), name).unwrap();
        let mut pair = Pair { server, client, rest: Vec::new(), heard: Vec::new(), told: Vec::new() };
        pair.server.open(SLOT, Port::Endpoint);
        pair
    }

    /// A connection that is established.
    pub fn established(suite: SupportedCipherSuite) -> Pair {
        let papers = Papers::of(suite);
        Pair::established_with(ShardTls::new(Some(papers.server(&[1])), None), &papers, suite)
    }

    pub fn established_with(server: ShardTls, papers: &Papers, suite: SupportedCipherSuite) -> Pair {
        let mut pair = Pair::new(server, &Arc::new(papers.client(&[suite])), "localhost");
        pair.shake();
        pair
    }

    /// Runs the handshake to its end.
    pub fn shake(&mut self) {
        while self.client.is_handshaking() || self.server.stage(SLOT) != Stage::Established {
            let sent = self.sent_by_client();
            assert!(!sent.is_empty(), "the handshake stands still");
            let (next, wire) = self.give(&sent);
            assert_eq!(next, Next::More);
            self.answer(&wire);
        }
    }

    /// Everything that the client has to send.
    pub fn sent_by_client(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut sent).unwrap();
        }
        sent
    }

    /// Gives ciphertext to the server, and returns the last result and the bytes for the client.
    pub fn give(&mut self, bytes: &[u8]) -> (Next, Vec<u8>) {
        let mut wire = Vec::new();
        self.rest.extend_from_slice(bytes);
        loop {
            let Received { plain, consumed, next } = self.server.receive(SLOT, &mut self.rest, &mut wire);
            self.heard.extend_from_slice(&self.rest[..plain]);
            self.rest.drain(..consumed);
            if next != Next::Again {
                return (next, wire);
            }
        }
    }

    /// Gives ciphertext of the server to the client.
    pub fn answer(&mut self, mut wire: &[u8]) {
        while !wire.is_empty() {
            self.client.read_tls(&mut wire).unwrap();
            let state = self.client.process_new_packets().unwrap();
            let at = self.told.len();
            self.told.resize(at + state.plaintext_bytes_to_read(), 0);
            self.client.reader().read_exact(&mut self.told[at..]).unwrap();
        }
    }

    /// Sends application data of the client.
    pub fn client_says(&mut self, plain: &[u8]) {
        self.client.set_buffer_limit(None);
        self.client.writer().write_all(plain).unwrap();
        let sent = self.sent_by_client();
        let (next, wire) = self.give(&sent);
        assert_eq!((next, wire.len()), (Next::More, 0));
    }

    /// Sends application data of the server, behind the control records that are due.
    pub fn server_says(&mut self, plain: &[u8]) {
        let mut wire = Vec::new();
        self.server.control(SLOT, &mut wire);
        self.server.seal(SLOT, plain, &mut wire);
        self.answer(&wire);
    }

    /// Asserts that data goes through in both directions.
    pub fn assert_alive(&mut self) {
        let (heard, told) = (self.heard.len(), self.told.len());
        self.client_says(b"from the client");
        self.server_says(b"from the server");
        assert_eq!((&self.heard[heard..], &self.told[told..]), (&b"from the client"[..], &b"from the server"[..]));
    }
}
