//! The client, which is a process of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PKCS_RSA_SHA256};
use ring::hkdf::{HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::crypto::ring::ALL_CIPHER_SUITES;
use rustls::crypto::{ActiveKeyExchange, CryptoProvider, SharedSecret, SupportedKxGroup};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, Error, KeyLog, NamedGroup, RootCertStore,
    SupportedCipherSuite,
};

use crate::scan::MASK;

/// Words of the client before it waits for the scan.
pub const LAST_WORDS: &[u8] = b"look at me";

pub fn every_suite() -> &'static [SupportedCipherSuite] {
    ALL_CIPHER_SUITES
}

pub fn rsa() -> KeyPair {
    let der = PrivatePkcs8KeyDer::from_pem_slice(include_bytes!("../tls/rsa.pem")).unwrap();
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256).unwrap()
}

pub fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// Connects twice. Tells the secrets of each connection, and ends it when it is told to.
pub fn run(address: &str, certificate: &str, suite: &str) {
    let suite = *every_suite().iter().find(|known| format!("{:?}", known.suite()) == suite).unwrap();
    let logged = Arc::new(Logged::default());
    let mut provider = CryptoProvider { cipher_suites: vec![suite], ..tls::provider() };
    if suite.tls13().is_some() {
        provider.kx_groups = vec![&TellingGroup];
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let builder =
        ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.key_log = Arc::clone(&logged) as Arc<dyn KeyLog>;
    config.enable_secret_extraction = true;
    let config = Arc::new(config);
    for _ in 0..2 {
        let mut socket = TcpStream::connect(address).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut says = |tls: &mut ClientConnection, words: &[u8]| {
            let mut stream = rustls::Stream::new(tls, &mut socket);
            stream.write_all(words).unwrap();
            stream.flush().unwrap();
            stream.read_exact(&mut [0; b"an answer".len()]).unwrap();
        };
        says(&mut tls, b"hello");
        if suite.tls13().is_some() {
            tls.refresh_traffic_keys().unwrap();
            // The answer has the KeyUpdate of the server before it.
            says(&mut tls, b"with the next key");
        }
        says(&mut tls, LAST_WORDS);
        for (label, secret) in std::mem::take(&mut *logged.0.lock().unwrap()) {
            tell(suite, &label, secret);
        }
        tls.send_close_notify();
        let mut close = Vec::new();
        tls.write_tls(&mut close).unwrap();
        if suite.tls13().is_none() {
            let extracted = tls.dangerous_extract_secrets().unwrap();
            [extracted.rx.1, extracted.tx.1].iter().for_each(|secrets| show("traffic key", &key_of(secrets)));
        }
        println!("that is all");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        socket.write_all(&close).unwrap();
        socket.read_to_end(&mut Vec::new()).unwrap();
    }
}

/// Tells the secrets that follow from one of the key log.
fn tell(suite: SupportedCipherSuite, label: &str, secret: Vec<u8>) {
    match label {
        "CLIENT_RANDOM" => show("master secret", &secret),
        "EXPORTER_SECRET" => show("exporter secret", &secret),
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET" | "SERVER_HANDSHAKE_TRAFFIC_SECRET" => {
            traffic(suite, "handshake", &secret);
        }
        "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0" => {
            traffic(suite, "traffic", &secret);
            let next = expand(&secret, b"traffic upd", secret.len());
            traffic(suite, "traffic", &next);
        }
        _ => panic!("{label}"),
    }
}

fn traffic(suite: SupportedCipherSuite, of: &str, secret: &[u8]) {
    let key_len = if format!("{:?}", suite.suite()).contains("AES_128") { 16 } else { 32 };
    show(&format!("{of} secret"), secret);
    show(&format!("{of} key"), &expand(secret, b"key", key_len));
    show(&format!("{of} IV"), &expand(secret, b"iv", 12));
}

fn key_of(secrets: &ConnectionTrafficSecrets) -> Vec<u8> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, .. }
        | ConnectionTrafficSecrets::Aes256Gcm { key, .. }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, .. } => key.as_ref().to_vec(),
        _ => panic!("keys of no suite of this list"),
    }
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand(secret: &[u8], label: &[u8], len: usize) -> Vec<u8> {
    let algorithm = if secret.len() == 48 { HKDF_SHA384 } else { HKDF_SHA256 };
    let lengths = [0, len as u8, 6 + label.len() as u8];
    let info: [&[u8]; 4] = [&lengths, b"tls13 ", label, &[0]];
    let mut out = vec![0; len];
    Prk::new_less_safe(algorithm, secret).expand(&info, Len(len)).unwrap().fill(&mut out).unwrap();
    out
}

fn show(kind: &str, secret: &[u8]) {
    let hex: String = secret.iter().map(|byte| format!("{:02x}", byte ^ MASK)).collect();
    println!("{kind}: {hex}");
}

/// ML-KEM beside X25519, whose secrets it tells.
#[derive(Debug)]
struct TellingGroup;

impl SupportedKxGroup for TellingGroup {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(TellingExchange(tls::X25519MLKEM768.start()?)))
    }

    fn name(&self) -> NamedGroup {
        tls::X25519MLKEM768.name()
    }
}

struct TellingExchange(Box<dyn ActiveKeyExchange>);

impl ActiveKeyExchange for TellingExchange {
    fn complete(self: Box<Self>, share: &[u8]) -> Result<SharedSecret, Error> {
        let secret = self.0.complete(share)?;
        let (ml_kem, x25519) = secret.secret_bytes().split_at(32);
        show("secret of ML-KEM", ml_kem);
        show("secret of X25519", x25519);
        Ok(secret)
    }

    fn pub_key(&self) -> &[u8] {
        self.0.pub_key()
    }

    fn group(&self) -> NamedGroup {
        self.0.group()
    }
}

#[derive(Default, Debug)]
struct Logged(Mutex<Vec<(String, Vec<u8>)>>);

impl KeyLog for Logged {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push((label.to_owned(), secret.to_vec()));
    }
}
