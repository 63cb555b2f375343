//! Handshakes: rustls, fed record by record, until the client's Finished; then the secrets are taken over and rustls
//! ends.

use std::cell::RefCell;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, HandshakeKind, KeyLog};
use shards::ports::Port;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::challenges::ACME_TLS;
use crate::keys::{Direction, SECRET_MAX, Suite};
use crate::record::{ALERT, APPLICATION_DATA, Alert, Session};

/// Bytes that a client may send between two flights of the server.
pub(crate) const FLIGHT_MAX: usize = 16_384;
/// The same on a listener that asks for client certificates, whose chain is in the second flight.
pub(crate) const FLIGHT_CERTIFICATES_MAX: usize = 65_536;
/// Bytes of a handshake that waits for the client's Finished, as measured in a prototype with rustls 0.23.46.
pub(crate) const HANDSHAKE_BYTES: u64 = 3_800;

/// One handshake.
pub(crate) struct Handshake {
    pub port: Port,
    /// A whole record has come, so the client speaks TLS.
    pub speaks_tls: bool,
    conn: UnbufferedServerConnection,
    /// Records that rustls has seen and needs again: those of a handshake message that is not whole.
    held: Vec<u8>,
    /// Bytes of the client since the last flight of the server.
    flight: usize,
    /// Most of them: [`FLIGHT_MAX`] or [`FLIGHT_CERTIFICATES_MAX`].
    flight_max: usize,
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

/// End of a handshake that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    AlertSent,
    AlertReceived,
    Silent,
}

impl Handshake {
    pub(crate) fn new(port: Port, conn: UnbufferedServerConnection, flight_max: usize) -> Box<Handshake> {
        Box::new(Handshake {
            port,
            speaks_tls: false,
            conn,
            held: Vec::new(),
            flight: 0,
            flight_max,
            secrets: None,
            reason: String::new(),
        })
    }

    /// Processes one whole record and appends the answer to `wire`.
    pub(crate) fn feed(&mut self, record: &mut [u8], wire: &mut Vec<u8>) -> Step {
        self.flight += record.len();
        if self.flight > self.flight_max {
            self.reason = format!("the client sent more than {} bytes in one flight", self.flight_max);
            return Step::Failed(Failure::Silent);
        }
        let before = wire.len();
        let caught = catch_secrets(|| {
            if self.held.is_empty() {
                let (done, result) = drive(&mut self.conn, record, wire, &mut self.reason);
                self.held.extend_from_slice(&record[done..]);
                result
            } else {
                self.held.extend_from_slice(record);
                let (done, result) = drive(&mut self.conn, &mut self.held, wire, &mut self.reason);
                self.held.drain(..done);
                result
            }
        });
        let (result, secrets) = caught;
        if secrets.is_some() {
            self.secrets = secrets;
        }
        match result {
            Step::More if wire.len() > before => {
                self.flight = 0;
                Step::Flight
            }
            other => other,
        }
    }

    /// Returns true if the peer is an authority that validates a name: it has seen all that it wants to.
    pub(crate) fn is_challenge(&self) -> bool {
        self.conn.alpn_protocol() == Some(ACME_TLS)
    }

    /// Takes over the secrets after [`Step::Finished`], and says if an earlier connection was resumed. `None` if they
    /// are not those that rustls has: then the connection must end.
    pub(crate) fn finish(self) -> Option<(Session, bool)> {
        let is_resumed = self.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        let secrets = self.secrets?;
        let (extracted, kernel) = self.conn.dangerous_into_kernel_connection().ok()?;
        let suite = Suite::of(kernel.negotiated_cipher_suite().suite())?;
        let read = Direction::new(suite, secrets.client(suite), extracted.rx.0);
        let write = Direction::new(suite, secrets.server(suite), extracted.tx.0);
        let are_equal = read.equals(suite, &extracted.rx) && write.equals(suite, &extracted.tx);
        (are_equal && self.held.is_empty()).then(|| (Session::new(suite, self.port, read, write), is_resumed))
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
    reason: &mut String,
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
                Some(Step::Failed(Failure::Silent))
            }
            Err(error) => {
                *reason = error.to_string();
                let is_theirs = matches!(error, Error::AlertReceived(_));
                Some(Step::Failed(if is_theirs { Failure::AlertReceived } else { Failure::AlertSent }))
            }
        };
        done += discard;
        match end {
            None => {}
            Some(Step::Failed(Failure::AlertSent)) => {
                let has_alert = encode_queued(conn, &mut input[done..], wire);
                let failure = if has_alert { Failure::AlertSent } else { Failure::Silent };
                return (input.len(), Step::Failed(failure));
            }
            Some(Step::Failed(failure)) => return (input.len(), Step::Failed(failure)),
            Some(step) => return (done, step),
        }
    }
}

/// Appends the records that are queued behind an error: the last is its alert. rustls must not be called again after
/// that, since it would meet the same error again.
fn encode_queued(conn: &mut UnbufferedServerConnection, input: &mut [u8], wire: &mut Vec<u8>) -> bool {
    let mut done = 0;
    loop {
        let before = wire.len();
        let UnbufferedStatus { discard, state, .. } = conn.process_tls_records(&mut input[done..]);
        let Ok(ConnectionState::EncodeTlsData(chunk)) = state else { return false };
        encode(chunk, wire);
        done += discard;
        // In the clear, or sealed: 2 bytes, the type and the tag.
        if matches!(wire[before..], [ALERT, _, _, 0, 2, ..] | [APPLICATION_DATA, _, _, 0, 19, ..]) {
            return true;
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

/// The two application traffic secrets of one connection. Overwritten when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Secrets {
    client: [u8; SECRET_MAX],
    server: [u8; SECRET_MAX],
    /// 1: the client's is known; 2: the server's.
    known: u8,
}

impl Secrets {
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
    let none = Secrets { client: [0; SECRET_MAX], server: [0; SECRET_MAX], known: 0 };
    CAUGHT.set(Some(none));
    let result = step();
    let caught = CAUGHT.with_borrow_mut(|caught| {
        let known = caught.as_ref().filter(|secrets| secrets.known == 3).cloned();
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
                _ => return,
            };
            if let Some(place) = place.get_mut(..secret.len()) {
                place.copy_from_slice(secret);
                caught.known |= bit;
            }
        });
    }

    fn will_log(&self, label: &str) -> bool {
        let is_needed = matches!(label, "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0");
        is_needed && CAUGHT.with_borrow(Option::is_some)
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
