//! Handshakes: rustls, fed record by record, until the client's Finished; then the secrets are taken over and rustls
//! ends.

use std::cell::RefCell;

use runtime::ports::Port;
use rustls::PeerIncompatible::SignatureAlgorithmsExtensionRequired;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, HandshakeKind, KeyLog};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::challenges::ACME_TLS;
use crate::counted::{Completed, Failure};
use crate::keys::{Direction, SECRET_MAX, Suite, TAG_LEN};
use crate::record::{ALERT, APPLICATION_DATA, Alert, HANDSHAKE, HEADER_LEN, Session};

/// Bytes that a client may send between two flights of the server, early data not counted.
pub(crate) const FLIGHT_MAX: usize = 16_384;
/// Those on a listener that asks for client certificates, whose chain is in the second flight.
pub(crate) const FLIGHT_CERTIFICATES_MAX: usize = 65_536;
/// Bytes of refused early data that are skipped, tags included, as in rustls.
const EARLY_DATA_MAX: usize = 16_384;
/// Bytes of a handshake that waits for the client's Finished, as measured in a prototype with rustls 0.23.46.
pub(crate) const HANDSHAKE_BYTES: u64 = 3_800;

/// One handshake.
pub(crate) struct Handshake {
    pub port: Port,
    /// A whole record has come, so the client speaks TLS.
    pub speaks_tls: bool,
    conn: UnbufferedServerConnection,
    /// The head of the ClientHello: type, length and version.
    hello: Head,
    /// Records that rustls has seen and needs again: those of a handshake message that is not whole.
    held: Vec<u8>,
    /// Bytes of the client since the last flight of the server.
    flight: usize,
    /// Bound of `flight`: [`FLIGHT_MAX`] or [`FLIGHT_CERTIFICATES_MAX`].
    flight_max: usize,
    /// Bytes of early data that were skipped.
    skipped: usize,
    /// A record under the handshake secret of the client was opened: no early data comes behind it.
    opened: bool,
    /// Traffic secrets, known from the server's Finished on.
    secrets: Option<Secrets>,
    /// Reason of the failure, for the log.
    pub reason: String,
}

/// Result of one record.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Step {
    More,
    /// A flight of the server was appended, and the client's next one is awaited.
    Flight,
    /// The client's Finished was verified.
    Finished,
    Failed(Failure),
}

/// In the place of a description: the alert is sealed.
const SEALED: u8 = u8::MAX;
/// Bytes of a record with a sealed alert: header, 2 bytes, type and tag.
const SEALED_ALERT_LEN: usize = HEADER_LEN + 3 + TAG_LEN;

impl Handshake {
    pub(crate) fn new(port: Port, conn: UnbufferedServerConnection, flight_max: usize) -> Box<Handshake> {
        Box::new(Handshake {
            port,
            speaks_tls: false,
            conn,
            hello: Head::default(),
            held: Vec::new(),
            flight: 0,
            flight_max,
            skipped: 0,
            opened: false,
            secrets: None,
            reason: String::new(),
        })
    }

    /// Processes one whole record and appends the answer to `wire`.
    pub(crate) fn feed(&mut self, record: &mut [u8], wire: &mut Vec<u8>) -> Step {
        let (before, bytes) = (wire.len(), record.len());
        // It may be early data, until a record has opened. rustls changes the bytes of a record that it cannot open.
        let may_be_early = record[0] == APPLICATION_DATA && self.held.is_empty() && !self.opened;
        let sealed = may_be_early.then(|| record.to_vec());
        if sealed.is_none() && self.flight + bytes > self.flight_max {
            self.reason = format!("the client sent more than {} bytes in one flight", self.flight_max);
            return Step::Failed(Failure::Flood);
        }
        // rustls moves the parts of a torn message together in the bytes that it is given.
        self.hello.take(record);
        let (result, secrets) = catch_secrets(|| {
            let said = (&self.hello, &mut self.reason);
            if self.held.is_empty() {
                let (done, result) = drive(&mut self.conn, record, wire, said);
                self.held.extend_from_slice(&record[done..]);
                result
            } else {
                self.held.extend_from_slice(record);
                let (done, result) = drive(&mut self.conn, &mut self.held, wire, said);
                self.held.drain(..done);
                result
            }
        });
        if secrets.is_some() {
            self.secrets = secrets;
        }
        if result == Step::More
            && let Some(sealed) = sealed
        {
            if self.held.len() == bytes && !self.opens(sealed) {
                return self.skip(bytes - HEADER_LEN, wire);
            }
            // Before the keys are known, behind a HelloRetryRequest, rustls skips by itself.
            self.opened = self.secrets.is_some();
        }
        self.flight += bytes;
        match result {
            Step::More if wire.len() > before => {
                self.flight = 0;
                Step::Flight
            }
            Step::Failed(Failure::AlertSent(SEALED)) => {
                Step::Failed(Failure::AlertSent(self.sealed_alert(wire).unwrap_or(SEALED)))
            }
            other => other,
        }
    }

    /// Returns true if the record is the first that the client sealed with its handshake secret: the start of a message
    /// that rustls waits for. A record that does not open is early data, which rustls skips (RFC 8446 section 4.2.10).
    fn opens(&self, mut record: Vec<u8>) -> bool {
        let suite = self.conn.negotiated_cipher_suite().and_then(|suite| Suite::of(suite.suite()));
        let (Some(secrets), Some(suite)) = (&self.secrets, suite) else { return true };
        let Some((header, sealed)) = record.split_first_chunk_mut::<HEADER_LEN>() else { return true };
        Direction::new(suite, secrets.client_handshake(suite), 0)
            .open(suite, &mut None, (header, &[]), sealed)
            .is_some()
    }

    /// Drops a record of early data. rustls would take it out of its bound again with each later record.
    fn skip(&mut self, bytes: usize, wire: &mut Vec<u8>) -> Step {
        self.held.clear();
        self.skipped += bytes;
        // A record without room for a tag is no early data, and would not use up the bound.
        if bytes > TAG_LEN && self.skipped <= EARLY_DATA_MAX {
            return Step::More;
        }
        self.fail(Alert::BadRecordMac, wire);
        self.reason = format!("the client sent more than {EARLY_DATA_MAX} bytes of early data");
        Step::Failed(Failure::AlertSent(Alert::BadRecordMac as u8))
    }

    /// Description of an alert that rustls has sealed, at the end of `wire`: its first record under the traffic secret,
    /// as in [`Handshake::fail`].
    fn sealed_alert(&self, wire: &[u8]) -> Option<u8> {
        let suite = Suite::of(self.conn.negotiated_cipher_suite()?.suite())?;
        let mut record = *wire.last_chunk::<SEALED_ALERT_LEN>()?;
        let (header, sealed) = record.split_first_chunk_mut::<HEADER_LEN>()?;
        let mut server = Direction::new(suite, self.secrets.as_ref()?.server(suite), 0);
        server.open(suite, &mut None, (header, &[]), sealed)?;
        Some(sealed[1])
    }

    /// Returns true if the peer is an authority that validates a name: it has seen all that it requires.
    pub(crate) fn is_challenge(&self) -> bool {
        self.conn.alpn_protocol() == Some(ACME_TLS)
    }

    /// Takes over the secrets after [`Step::Finished`], and says what kind of handshake it was. `None` if they are not
    /// of the suite that was negotiated: then the connection must end.
    pub(crate) fn finish(self) -> Option<(Session, Completed)> {
        let is_resumed = self.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        let group = self.conn.negotiated_key_exchange_group().map(|group| group.name());
        let (extracted, kernel) = self.conn.dangerous_into_kernel_connection().ok()?;
        let suite = Suite::of(kernel.negotiated_cipher_suite().suite())?;
        let (client, server) = match &self.secrets {
            Some(secrets) => (secrets.client(suite), secrets.server(suite)),
            None if suite.is_tls12() => (&[][..], &[][..]),
            None => return None,
        };
        let read = Direction::extracted(suite, client, &extracted.rx)?;
        let write = Direction::extracted(suite, server, &extracted.tx)?;
        debug_assert!(read.is_derived(suite) && write.is_derived(suite), "the secrets that rustls told are others");
        self.held.is_empty().then(|| (Session::new(suite, self.port, read, write), Completed { is_resumed, group }))
    }

    /// Appends a fatal alert that rustls does not know of. The server seals with its traffic secret from its Finished
    /// on (RFC 8446 section 4.4.4), and rustls has sealed nothing with it yet.
    pub(crate) fn fail(&self, alert: Alert, wire: &mut Vec<u8>) {
        let suite = self.conn.negotiated_cipher_suite().and_then(|suite| Suite::of(suite.suite()));
        match (&self.secrets, suite) {
            (Some(secrets), Some(suite)) => {
                let direction = |secret: &[u8]| Direction::new(suite, secret, 0);
                let (read, write) = (direction(secrets.client(suite)), direction(secrets.server(suite)));
                Session::new(suite, self.port, read, write).fail(alert, wire);
            }
            _ => plain_alert(alert, wire),
        }
    }
}

/// Appends a fatal alert before any key is known.
pub(crate) fn plain_alert(alert: Alert, wire: &mut Vec<u8>) {
    wire.extend_from_slice(&[ALERT, 3, 3, 0, 2, 2, alert as u8]);
}

/// Runs rustls over `input` until it needs more, has finished or has failed. Returns the bytes that it is done with.
fn drive(
    conn: &mut UnbufferedServerConnection,
    input: &mut [u8],
    wire: &mut Vec<u8>,
    (hello, reason): (&Head, &mut String),
) -> (usize, Step) {
    let mut done = 0;
    loop {
        let UnbufferedStatus { discard, state, .. } = conn.process_tls_records(&mut input[done..]);
        let end = match state {
            Ok(ConnectionState::EncodeTlsData(chunk)) => {
                encode(chunk, wire);
                None
            }
            Ok(ConnectionState::TransmitTlsData(flight)) => {
                flight.done();
                None
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Step::More),
            Ok(ConnectionState::WriteTraffic(_)) => Some(Step::Finished),
            // close_notify, or early data, which is never accepted.
            Ok(_) => {
                "the client ended the connection within the handshake".clone_into(reason);
                Some(Step::Failed(Failure::Left))
            }
            Err(error) => {
                *reason = error.to_string();
                let failure = match error {
                    Error::AlertReceived(_) => Failure::AlertReceived,
                    // Appendix D.2 of RFC 8446 asks for protocol_version, and rustls looks at the version too late.
                    Error::PeerIncompatible(SignatureAlgorithmsExtensionRequired) if hello.is_older_than_1_2() => {
                        plain_alert(Alert::ProtocolVersion, wire);
                        Failure::AlertSent(Alert::ProtocolVersion as u8)
                    }
                    _ => match encode_queued(conn, &mut input[done + discard..], wire) {
                        // Sealed with the handshake secret of the server, as the only alert.
                        Some(SEALED) if error == Error::NoApplicationProtocol => Failure::AlertSent(120),
                        sent => sent.map_or(Failure::Internal, Failure::AlertSent),
                    },
                };
                return (input.len(), Step::Failed(failure));
            }
        };
        done += discard;
        match end {
            None => {}
            Some(Step::Failed(failure)) => return (input.len(), Step::Failed(failure)),
            Some(step) => return (done, step),
        }
    }
}

/// First bytes of a ClientHello, in however many records they come (RFC 8446 section 4.1.2).
#[derive(Default)]
struct Head {
    bytes: [u8; Head::LEN],
    len: usize,
}

impl Head {
    /// Type of the message, length, and `legacy_version`.
    const LEN: usize = 6;

    /// Takes those of its bytes that are in this record.
    fn take(&mut self, record: &[u8]) {
        if let Some((header, part)) = record.split_first_chunk::<HEADER_LEN>()
            && header[0] == HANDSHAKE
        {
            let missing = &mut self.bytes[self.len..];
            let taken = missing.len().min(part.len());
            missing[..taken].copy_from_slice(&part[..taken]);
            self.len += taken;
        }
    }

    /// Returns true if `legacy_version` is that of TLS 1.1 or older.
    fn is_older_than_1_2(&self) -> bool {
        self.len == Head::LEN && self.bytes[4..] < [3, 3][..]
    }
}

/// Appends the records that are queued behind an error: the last is its alert. rustls must not be called again after
/// that, since it would meet the same error again. Returns the description of the alert, or [`SEALED`].
fn encode_queued(conn: &mut UnbufferedServerConnection, input: &mut [u8], wire: &mut Vec<u8>) -> Option<u8> {
    let mut done = 0;
    loop {
        let before = wire.len();
        let UnbufferedStatus { discard, state, .. } = conn.process_tls_records(&mut input[done..]);
        let Ok(ConnectionState::EncodeTlsData(chunk)) = state else { return None };
        encode(chunk, wire);
        done += discard;
        match wire[before..] {
            [ALERT, _, _, 0, 2, _, description] => return Some(description),
            [APPLICATION_DATA, ..] if wire.len() - before == SEALED_ALERT_LEN => return Some(SEALED),
            _ => {}
        }
    }
}

pub(crate) fn encode<Data>(mut chunk: EncodeTlsData<'_, Data>, wire: &mut Vec<u8>) {
    if let Err(EncodeError::InsufficientSize(missing)) = chunk.encode(&mut []) {
        let at = wire.len();
        wire.resize(at + missing.required_size, 0);
        // Invariant: the chunk said its size, and was not encoded.
        let written = chunk.encode(&mut wire[at..]).expect("the room that it asked for");
        debug_assert_eq!(written, missing.required_size);
    }
}

/// The two application traffic secrets of one connection, and the handshake secret of the client. Overwritten when
/// dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Secrets {
    client: [u8; SECRET_MAX],
    server: [u8; SECRET_MAX],
    client_handshake: [u8; SECRET_MAX],
    /// 1: the client's is known; 2: the server's; 4: the handshake secret of the client.
    known: u8,
}

impl Secrets {
    fn client_handshake(&self, suite: Suite) -> &[u8] {
        &self.client_handshake[..suite.secret_len()]
    }

    pub(crate) fn client(&self, suite: Suite) -> &[u8] {
        &self.client[..suite.secret_len()]
    }

    pub(crate) fn server(&self, suite: Suite) -> &[u8] {
        &self.server[..suite.secret_len()]
    }
}

thread_local! {
    /// Secrets of the handshake whose step runs on this thread, while it runs.
    static CAUGHT: RefCell<Option<Secrets>> = const { RefCell::new(None) };
}

/// Runs a step of a handshake, and returns the secrets that it made.
pub(crate) fn catch_secrets<T>(step: impl FnOnce() -> T) -> (T, Option<Secrets>) {
    let empty = [0; SECRET_MAX];
    let none = Secrets { client: empty, server: empty, client_handshake: empty, known: 0 };
    CAUGHT.set(Some(none));
    let result = step();
    let caught = CAUGHT.with_borrow_mut(|caught| {
        let known = caught.as_ref().filter(|secrets| secrets.known & 3 == 3).cloned();
        // A place that is only marked as empty would keep its bytes.
        caught.zeroize();
        known
    });
    (result, caught)
}

/// Key log that hands the traffic secrets to the handshake of this thread, and to nothing else. It ignores
/// `SSLKEYLOGFILE`.
#[derive(Debug)]
pub(crate) struct CatchSecrets;

impl KeyLog for CatchSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        CAUGHT.with_borrow_mut(|caught| {
            let Some(caught) = caught else { return };
            let (place, bit) = match label {
                "CLIENT_TRAFFIC_SECRET_0" => (&mut caught.client, 1),
                "SERVER_TRAFFIC_SECRET_0" => (&mut caught.server, 2),
                "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => (&mut caught.client_handshake, 4),
                _ => return,
            };
            if let Some(place) = place.get_mut(..secret.len()) {
                place.copy_from_slice(secret);
                caught.known |= bit;
            }
        });
    }

    fn will_log(&self, label: &str) -> bool {
        const NEEDED: [&str; 3] =
            ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0", "CLIENT_HANDSHAKE_TRAFFIC_SECRET"];
        NEEDED.contains(&label) && CAUGHT.with_borrow(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_caught_during_a_step_and_at_no_other_time() {
        let log = |byte: u8| {
            for label in ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0", "EXPORTER_SECRET"] {
                CatchSecrets.log(label, &[], &[byte; 32]);
            }
            CatchSecrets.will_log("CLIENT_TRAFFIC_SECRET_0")
        };
        assert!(!log(1), "no step runs");
        assert!(!catch_secrets(|| CatchSecrets.will_log("EXPORTER_SECRET")).0);
        let (will_log, secrets) = catch_secrets(|| log(2));
        let secrets = secrets.unwrap();
        let suite = Suite::Aes128GcmSha256;
        assert!(will_log && secrets.client(suite) == [2; 32] && secrets.server(suite) == [2; 32]);
        assert!(!log(3));
        assert!(catch_secrets(|| ()).1.is_none(), "nothing is left of an earlier step");
    }
}
