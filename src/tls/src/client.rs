//! The other end, for load generators: a million clients that drop rustls after the handshake as the server does.

use std::path::Path;
use std::sync::Arc;

use runtime::ports::Port;
use runtime::tls::PLAINTEXT_MAX;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ClientConfig, RootCertStore};

use crate::handshake::{CatchSecrets, Secrets, catch_secrets, encode};
use crate::key_exchange::provider;
use crate::keys::{Direction, Suite};
use crate::record::{HEADER_LEN, Header, Limit, Opened, Session};

/// Connections of clients to one server, named by numbers.
pub struct Clients {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    connections: Vec<Client>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all are established")]
enum Client {
    Absent,
    Handshake(Box<(UnbufferedClientConnection, Option<Secrets>)>),
    Established(Session),
}

/// Result of [`Clients::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// Bytes of plaintext, moved to the front.
    pub plain: usize,
    /// Bytes that are done with.
    pub consumed: usize,
    /// The handshake ended with this call: data can be sealed.
    pub is_new: bool,
}

/// The configuration of a client that trusts the certificates of one PEM file.
///
/// # Errors
/// One sentence that names the file.
pub fn client_config(ca: &Path) -> Result<ClientConfig, String> {
    config_with(provider(), ca)
}

/// As [`client_config`], of a client that knows no ML-KEM.
///
/// # Errors
/// One sentence that names the file.
pub fn classical_client_config(ca: &Path) -> Result<ClientConfig, String> {
    config_with(default_provider(), ca)
}

fn config_with(provider: CryptoProvider, ca: &Path) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(ca).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    roots.add_parsable_certificates(read.map_err(|error| format!("{}: cannot be read: {error}", ca.display()))?);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| format!("TLS 1.3 is not available: {error}"))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

impl Clients {
    /// `count` clients of the server of this name. They resume nothing.
    ///
    /// # Errors
    /// One sentence that names the name.
    pub fn new(mut config: ClientConfig, name: &str, count: usize) -> Result<Clients, String> {
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(CatchSecrets);
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(name.to_owned()).map_err(|error| format!("{name}: {error}"))?;
        let connections = (0..count).map(|_| Client::Absent).collect();
        Ok(Clients { config: Arc::new(config), name, connections })
    }

    /// Begins a connection: appends its ClientHello.
    pub fn start(&mut self, at: usize, wire: &mut Vec<u8>) {
        // Invariant: the configuration has a version and a suite.
        let conn = UnbufferedClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut pending = Box::new((conn.expect("a usable configuration"), None));
        step(&mut pending, &mut [], wire);
        self.connections[at] = Client::Handshake(pending);
    }

    /// Takes ciphertext; the handshake's answers go to `wire`. `None`: the connection has failed, or its peer ended it.
    pub fn receive(&mut self, at: usize, bytes: &mut [u8], wire: &mut Vec<u8>) -> Option<Heard> {
        let mut heard = Heard { plain: 0, consumed: 0, is_new: false };
        while let Some(header) = Header::read(&bytes[heard.consumed..]) {
            let end = heard.consumed + HEADER_LEN + header.len;
            if end > bytes.len() {
                break;
            }
            match &mut self.connections[at] {
                Client::Absent => return None,
                Client::Handshake(pending) => {
                    // Messages of the server are never torn over records here: a certificate of a test is short.
                    if step(pending, &mut bytes[heard.consumed..end], wire)? {
                        let Client::Handshake(pending) = std::mem::replace(&mut self.connections[at], Client::Absent)
                        else {
                            return None;
                        };
                        self.connections[at] = Client::Established(established(*pending)?);
                        heard.is_new = true;
                    }
                }
                Client::Established(session) => {
                    match session.open(header, (&mut *bytes, heard.consumed, heard.plain), Limit(u64::MAX), &mut None) {
                        Opened::Data(len) => heard.plain += len,
                        Opened::Nothing | Opened::KeyUpdate => {}
                        _ => return None,
                    }
                }
            }
            heard.consumed = end;
        }
        Some(heard)
    }

    /// Seals bytes as records of application data.
    pub fn seal(&mut self, at: usize, plain: &[u8], wire: &mut Vec<u8>) {
        let Client::Established(session) = &mut self.connections[at] else { return };
        session.control(Limit(u64::MAX), wire);
        for piece in plain.chunks(PLAINTEXT_MAX) {
            session.seal(piece, Limit(u64::MAX), wire);
        }
    }

    /// Forgets a connection.
    pub fn end(&mut self, at: usize) {
        self.connections[at] = Client::Absent;
    }
}

/// Runs rustls over one record. Returns true at the end of the handshake.
fn step(
    pending: &mut (UnbufferedClientConnection, Option<Secrets>),
    record: &mut [u8],
    wire: &mut Vec<u8>,
) -> Option<bool> {
    let (conn, secrets) = pending;
    let (ended, caught) = catch_secrets(|| {
        let mut done = 0;
        loop {
            let UnbufferedStatus { discard, state, .. } = conn.process_tls_records(&mut record[done..]);
            let ended = match state.ok()? {
                ConnectionState::EncodeTlsData(chunk) => {
                    encode(chunk, wire);
                    None
                }
                ConnectionState::TransmitTlsData(flight) => {
                    flight.done();
                    None
                }
                ConnectionState::BlockedHandshake => Some(false),
                ConnectionState::WriteTraffic(_) => Some(true),
                _ => return None,
            };
            done += discard;
            if ended.is_some() {
                return ended;
            }
        }
    });
    if caught.is_some() {
        *secrets = caught;
    }
    ended
}

fn established((conn, secrets): (UnbufferedClientConnection, Option<Secrets>)) -> Option<Session> {
    let secrets = secrets?;
    let (extracted, kernel) = conn.dangerous_into_kernel_connection().ok()?;
    let suite = Suite::of(kernel.negotiated_cipher_suite().suite())?;
    let read = Direction::new(suite, secrets.server(suite), extracted.rx.0);
    let write = Direction::new(suite, secrets.client(suite), extracted.tx.0);
    Some(Session::new(suite, Port::WebSocket, read, write).of_client())
}
