//! The record layer after the handshake (RFC 8446 section 5): seals and opens records, and keeps the rules for the
//! messages that may still come. `tls12` has the records of TLS 1.2.

mod tls12;

use ring::aead::LessSafeKey;
use runtime::ports::Port;
use runtime::tls::PLAINTEXT_MAX;

use crate::keys::{Direction, EXPORTED_MAX, Suite, TAG_LEN};

/// Bytes of the header of a record.
pub(crate) const HEADER_LEN: usize = 5;
/// Bytes of ciphertext in one record at most (RFC 8446 section 5.2).
pub(crate) const CIPHERTEXT_MAX: usize = PLAINTEXT_MAX + 256;
/// KeyUpdates, empty records and ignored alerts that may come in a row without application data.
const EMPTY_RUN_MAX: u8 = 32;

/// Content types (RFC 8446 section 5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
/// Also the outer type of every sealed record.
pub(crate) const APPLICATION_DATA: u8 = 23;
/// Handshake type KeyUpdate (RFC 8446 section 4.6.3) with the length of its body.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// Handshake type NewSessionTicket (RFC 8446 section 4.6.1).
const NEW_SESSION_TICKET: u8 = 4;

/// Alert descriptions (RFC 8446 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Alert {
    UnexpectedMessage = 10,
    BadRecordMac = 20,
    RecordOverflow = 22,
    HandshakeFailure = 40,
    IllegalParameter = 47,
    DecodeError = 50,
    ProtocolVersion = 70,
}

const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// Header of a record: its content type and the length of its body.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub kind: u8,
    pub len: usize,
    bytes: [u8; HEADER_LEN],
}

impl Header {
    /// Reads the header at the front; `None` if it is not whole.
    pub(crate) fn read(bytes: &[u8]) -> Option<Header> {
        let bytes: [u8; HEADER_LEN] = *bytes.first_chunk()?;
        Some(Header { kind: bytes[0], len: usize::from(u16::from_be_bytes([bytes[3], bytes[4]])), bytes })
    }
}

/// State of an established connection.
pub(crate) struct Session {
    read: Direction,
    write: Direction,
    suite: Suite,
    /// Kept here, where it fits into the padding.
    pub port: Port,
    /// KeyUpdates and records without application data since the last application data.
    empty_run: u8,
    /// The peer asked for a KeyUpdate that is not sent yet.
    owes_update: bool,
    /// A KeyUpdate of the peer is requested, and its key is still the old one.
    has_requested: bool,
    peer_closed: bool,
    /// Tickets may come: this is the end of a client.
    takes_tickets: bool,
    /// Records since the last control record, import or start: those that may be taken back.
    rewindable: u32,
}

/// Records that one key may seal, when lower than the limit of the suite. Tests lower it.
#[derive(Clone, Copy)]
pub(crate) struct Limit(pub u64);

impl Limit {
    fn of(self, suite: Suite) -> u64 {
        self.0.min(suite.limit())
    }
}

/// Result of opening one record.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// Application data; it was moved to the place that the caller named.
    Data(usize),
    /// A record without application data.
    Nothing,
    KeyUpdate,
    PeerClosed,
    /// A fatal alert of the peer.
    PeerFailed,
    /// The peer broke a rule.
    Refused(Alert),
    /// Too many records without application data in a row.
    TooManyEmpty,
    /// The peer has sealed as many records as one key may, and did not change it.
    PeerKeyUsedUp,
}

/// A decrypted record: its type, and the place of its content.
struct Plain {
    kind: u8,
    at: usize,
    len: usize,
}

/// KeyUpdates that [`Session::control`] wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    Nothing,
    Answer,
    Rekey,
}

impl Session {
    pub(crate) fn new(suite: Suite, port: Port, read: Direction, write: Direction) -> Session {
        Session {
            read,
            write,
            suite,
            port,
            empty_run: 0,
            owes_update: false,
            has_requested: false,
            peer_closed: false,
            takes_tickets: false,
            rewindable: 0,
        }
    }

    /// The end of a client, which passes over tickets (RFC 8446 section 4.6.1).
    pub(crate) fn of_client(mut self) -> Session {
        self.takes_tickets = true;
        self
    }

    pub(crate) fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Opens the whole record that lies at `at` in `bytes`, and moves application data to `to`, which is not behind
    /// `at`.
    ///
    /// `key` starts empty with each run of records: it spares the others of the run the making of a key object.
    pub(crate) fn open(
        &mut self,
        header: Header,
        (bytes, at, to): (&mut [u8], usize, usize),
        limit: Limit,
        key: &mut Option<LessSafeKey>,
    ) -> Opened {
        if self.read.seq >= limit.of(self.suite) {
            return Opened::PeerKeyUsedUp;
        }
        let decrypted = if self.suite.is_tls12() {
            self.decrypt_12(header, (&mut *bytes, at), key)
        } else {
            self.decrypt_13(header, (&mut *bytes, at), key)
        };
        let Plain { kind, at, len } = match decrypted {
            Ok(plain) if plain.len <= PLAINTEXT_MAX => plain,
            Ok(_) => return Opened::Refused(Alert::RecordOverflow),
            Err(alert) => return Opened::Refused(alert),
        };
        let content = &bytes[at..at + len];
        match kind {
            APPLICATION_DATA if len == 0 => self.empty(Opened::Nothing),
            APPLICATION_DATA => {
                self.empty_run = 0;
                bytes.copy_within(at..at + len, to);
                Opened::Data(len)
            }
            ALERT => self.alert(content),
            HANDSHAKE if self.suite.is_tls12() => Session::handshake_12(content),
            HANDSHAKE if self.takes_tickets && content.first() == Some(&NEW_SESSION_TICKET) => {
                self.empty(Opened::Nothing)
            }
            HANDSHAKE => match content.strip_prefix(&KEY_UPDATE) {
                Some([request]) => {
                    *key = None;
                    self.key_update(*request)
                }
                _ => Opened::Refused(Alert::UnexpectedMessage),
            },
            _ => Opened::Refused(Alert::UnexpectedMessage),
        }
    }

    /// Decrypts the record that lies at `at`, in place.
    fn decrypt_13(
        &mut self,
        header: Header,
        (bytes, at): (&mut [u8], usize),
        key: &mut Option<LessSafeKey>,
    ) -> Result<Plain, Alert> {
        let body = at + HEADER_LEN;
        let sealed = &mut bytes[body..body + header.len];
        let opened = self.read.open(self.suite, key, (&header.bytes, &[]), sealed).ok_or(Alert::BadRecordMac)?;
        if opened > PLAINTEXT_MAX + 1 {
            return Err(Alert::RecordOverflow);
        }
        // The inner plaintext ends with its type and zeros behind it (RFC 8446 section 5.4).
        let len = sealed[..opened].iter().rposition(|byte| *byte != 0).ok_or(Alert::UnexpectedMessage)?;
        Ok(Plain { kind: sealed[len], at: body, len })
    }

    /// Returns true if a record of this outer type may come after the handshake.
    pub(crate) fn takes(&self, kind: u8) -> bool {
        if self.suite.is_tls12() { tls12::is_known(kind) } else { kind == APPLICATION_DATA }
    }

    pub(crate) fn is_tls12(&self) -> bool {
        self.suite.is_tls12()
    }

    fn alert(&mut self, alert: &[u8]) -> Opened {
        match alert {
            [] => Opened::Refused(Alert::UnexpectedMessage),
            [_, CLOSE_NOTIFY] => {
                self.peer_closed = true;
                Opened::PeerClosed
            }
            [_, USER_CANCELED] => self.empty(Opened::Nothing),
            // TLS 1.3 has no warnings besides (RFC 8446 section 6).
            [WARNING, _] if self.suite.is_tls12() => self.empty(Opened::Nothing),
            [_, _] => Opened::PeerFailed,
            _ => Opened::Refused(Alert::DecodeError),
        }
    }

    fn key_update(&mut self, request: u8) -> Opened {
        if request > 1 {
            return Opened::Refused(Alert::IllegalParameter);
        }
        let counted = self.empty(Opened::KeyUpdate);
        if counted == Opened::KeyUpdate {
            self.read.update(self.suite);
            self.has_requested = false;
            self.owes_update |= request == 1;
        }
        counted
    }

    /// Counts a record without application data.
    fn empty(&mut self, otherwise: Opened) -> Opened {
        self.empty_run += 1;
        if self.empty_run > EMPTY_RUN_MAX { Opened::TooManyEmpty } else { otherwise }
    }

    /// Returns true if the connection must end because its key for sealing cannot be changed: in TLS 1.2, after half of
    /// the records that one key may seal. The other half is for what is said until the end.
    pub(crate) fn key_used_up(&self, limit: Limit) -> bool {
        self.suite.is_tls12() && self.write.seq >= limit.of(self.suite) / 2
    }

    /// Returns true if the peer has sealed half of the records that one key may seal, and was not asked for another
    /// one.
    pub(crate) fn must_ask(&self, limit: Limit) -> bool {
        !self.suite.is_tls12() && !self.has_requested && self.read.seq >= limit.of(self.suite) / 2
    }

    /// Appends the KeyUpdate that is due, and goes over to the next key for sealing. TLS 1.2 has none.
    pub(crate) fn control(&mut self, limit: Limit, wire: &mut Vec<u8>) -> Control {
        if self.suite.is_tls12() {
            return Control::Nothing;
        }
        let half = limit.of(self.suite) / 2;
        let asks = self.must_ask(limit);
        let rekeys = self.write.seq >= half;
        if !asks && !rekeys && !self.owes_update {
            return Control::Nothing;
        }
        let [kind, a, b, c] = KEY_UPDATE;
        self.seal_record(HANDSHAKE, &[kind, a, b, c, u8::from(asks)], wire);
        self.write.update(self.suite);
        self.has_requested |= asks;
        self.owes_update = false;
        self.rewindable = 0;
        if asks || rekeys { Control::Rekey } else { Control::Answer }
    }

    /// Appends one record of application data.
    pub(crate) fn seal(&mut self, plain: &[u8], limit: Limit, wire: &mut Vec<u8>) {
        assert!(!plain.is_empty() && plain.len() <= PLAINTEXT_MAX, "{} bytes for one record", plain.len());
        assert!(self.write.seq < limit.of(self.suite), "a KeyUpdate or the end was due long ago");
        self.seal_record(APPLICATION_DATA, plain, wire);
    }

    pub(crate) fn close_notify(&mut self, wire: &mut Vec<u8>) {
        self.seal_record(ALERT, &[WARNING, CLOSE_NOTIFY], wire);
    }

    /// Appends a fatal alert. Nothing may be sealed or taken back after it.
    pub(crate) fn fail(&mut self, alert: Alert, wire: &mut Vec<u8>) {
        self.seal_record(ALERT, &[FATAL, alert as u8], wire);
        self.rewindable = 0;
    }

    fn seal_record(&mut self, kind: u8, plain: &[u8], wire: &mut Vec<u8>) {
        self.rewindable = self.rewindable.saturating_add(1);
        if self.suite.is_tls12() {
            return self.seal_12(kind, plain, wire);
        }
        let len = plain.len() + 1 + TAG_LEN;
        let [high, low] = (len as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        wire.reserve(HEADER_LEN + len);
        wire.extend_from_slice(&header);
        let inner = wire.len();
        wire.extend_from_slice(plain);
        wire.push(kind);
        let tag = self.write.seal(self.suite, &header, &mut wire[inner..]);
        wire.extend_from_slice(&tag);
    }

    /// Takes back the sequence numbers of the last records. A number is used again only for a record of which the
    /// kernel took no byte: two ciphertexts under one nonce never leave this process, so no observer can compare them.
    pub(crate) fn rewind(&mut self, records: u32) {
        assert!(records <= self.rewindable, "{records} records to take back of {}", self.rewindable);
        self.rewindable -= records;
        self.write.seq -= u64::from(records);
    }

    /// Appends the state for another shard:
    ///
    /// | bytes | meaning |
    /// |---|---|
    /// | 1 | suite: 1 AES-128-GCM, 2 AES-256-GCM, 3 ChaCha20-Poly1305; 4, 5 and 6 the same in TLS 1.2 |
    /// | 1 | 1: a KeyUpdate is owed; 2: one is requested; 4: the peer has sent close_notify |
    /// | 1 | records without application data in a row |
    /// | 8 | sequence number of the next record of the peer, big endian |
    /// | 32 or 48 | traffic secret of the peer; in TLS 1.2 its key of 16 or 32 bytes and its IV of 12 |
    /// | 8 | our next sequence number |
    /// | 32 or 48 | our traffic secret; in TLS 1.2 our key and IV |
    ///
    /// Keys and IVs of TLS 1.3 follow from the secrets. No record from before the export can be taken back after it.
    pub(crate) fn export(&self) -> Vec<u8> {
        // A vector that grows would leave copies of secrets in freed memory.
        let mut state = Vec::with_capacity(3 + 2 * EXPORTED_MAX);
        let flags = u8::from(self.owes_update) | u8::from(self.has_requested) << 1 | u8::from(self.peer_closed) << 2;
        state.extend([self.suite as u8, flags, self.empty_run]);
        self.read.export(self.suite, &mut state);
        self.write.export(self.suite, &mut state);
        state
    }

    /// Reads what [`Session::export`] wrote, and the number of its bytes.
    pub(crate) fn import(port: Port, state: &[u8]) -> Option<(Session, usize)> {
        let [suite, flags, empty_run, rest @ ..] = state else { return None };
        let suite = Suite::from_number(*suite)?;
        let each = suite.exported_len();
        let direction = |bytes: &[u8]| Direction::import(suite, bytes);
        let (read, write) = (direction(rest.get(..each)?)?, direction(rest.get(each..2 * each)?)?);
        let mut session = Session::new(suite, port, read, write);
        session.empty_run = *empty_run;
        session.owes_update = flags & 1 != 0;
        session.has_requested = flags & 2 != 0;
        session.peer_closed = flags & 4 != 0;
        Some((session, 3 + 2 * each))
    }
}
