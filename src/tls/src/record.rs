//! The record layer after the handshake (RFC 8446 section 5): seals and opens records, and keeps the rules for the
//! messages that may still come.

use ring::aead::LessSafeKey;
use shards::ports::Port;
use shards::tls::PLAINTEXT_MAX;

use crate::keys::{Direction, SECRET_MAX, Suite, TAG_LEN};

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
        let body = at + HEADER_LEN;
        let sealed = &mut bytes[body..body + header.len];
        let Some(opened) = self.read.open(self.suite, key, header.bytes, sealed) else {
            return Opened::Refused(Alert::BadRecordMac);
        };
        if opened > PLAINTEXT_MAX + 1 {
            return Opened::Refused(Alert::RecordOverflow);
        }
        // The inner plaintext ends with its type and zeros behind it (RFC 8446 section 5.4).
        let Some(len) = sealed[..opened].iter().rposition(|byte| *byte != 0) else {
            return Opened::Refused(Alert::UnexpectedMessage);
        };
        match sealed[len] {
            APPLICATION_DATA if len == 0 => self.empty(Opened::Nothing),
            APPLICATION_DATA => {
                self.empty_run = 0;
                bytes.copy_within(body..body + len, to);
                Opened::Data(len)
            }
            ALERT => {
                let alert = [sealed[0], sealed[1]];
                self.alert(&alert[..len.min(2)], len)
            }
            HANDSHAKE if self.takes_tickets && sealed[0] == NEW_SESSION_TICKET => self.empty(Opened::Nothing),
            HANDSHAKE => match sealed[..len].strip_prefix(&KEY_UPDATE) {
                Some([request]) => {
                    *key = None;
                    self.key_update(*request)
                }
                _ => Opened::Refused(Alert::UnexpectedMessage),
            },
            _ => Opened::Refused(Alert::UnexpectedMessage),
        }
    }

    fn alert(&mut self, alert: &[u8], len: usize) -> Opened {
        match (alert, len) {
            ([], _) => Opened::Refused(Alert::UnexpectedMessage),
            ([_, CLOSE_NOTIFY], 2) => {
                self.peer_closed = true;
                Opened::PeerClosed
            }
            ([_, USER_CANCELED], 2) => self.empty(Opened::Nothing),
            (_, 2) => Opened::PeerFailed,
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

    /// Appends the KeyUpdate that is due, and goes over to the next key for sealing.
    pub(crate) fn control(&mut self, limit: Limit, wire: &mut Vec<u8>) -> Control {
        let half = limit.of(self.suite) / 2;
        let asks = self.read.seq >= half && !self.has_requested;
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
        assert!(self.write.seq < limit.of(self.suite), "a KeyUpdate was due long ago");
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
        let len = plain.len() + 1 + TAG_LEN;
        let [high, low] = (len as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        wire.reserve(HEADER_LEN + len);
        wire.extend_from_slice(&header);
        let inner = wire.len();
        wire.extend_from_slice(plain);
        wire.push(kind);
        let tag = self.write.seal(self.suite, header, &mut wire[inner..]);
        wire.extend_from_slice(&tag);
        self.rewindable = self.rewindable.saturating_add(1);
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
    /// | 1 | suite: 1 AES-128-GCM, 2 AES-256-GCM, 3 ChaCha20-Poly1305 |
    /// | 1 | 1: a KeyUpdate is owed; 2: one is requested; 4: the peer has sent close_notify |
    /// | 1 | records without application data in a row |
    /// | 8 | sequence number of the next record of the peer, big endian |
    /// | 32 or 48 | traffic secret of the peer |
    /// | 8 | our next sequence number |
    /// | 32 or 48 | our traffic secret |
    ///
    /// Keys and IVs follow from the secrets. No record from before the export can be taken back after it.
    pub(crate) fn export(&self) -> Vec<u8> {
        // A vector that grows would leave copies of secrets in freed memory.
        let mut state = Vec::with_capacity(3 + 2 * (8 + SECRET_MAX));
        let flags = u8::from(self.owes_update) | u8::from(self.has_requested) << 1 | u8::from(self.peer_closed) << 2;
        state.extend([self.suite as u8, flags, self.empty_run]);
        for direction in [&self.read, &self.write] {
            state.extend_from_slice(&direction.seq.to_be_bytes());
            state.extend_from_slice(direction.secret(self.suite));
        }
        state
    }

    /// Reads what [`Session::export`] wrote, and the number of its bytes.
    pub(crate) fn import(port: Port, state: &[u8]) -> Option<(Session, usize)> {
        let [suite, flags, empty_run, rest @ ..] = state else { return None };
        let suite = Suite::from_number(*suite)?;
        let each = 8 + suite.secret_len();
        let direction = |bytes: &[u8]| {
            let (seq, secret) = bytes.split_first_chunk()?;
            Some(Direction::new(suite, secret, u64::from_be_bytes(*seq)))
        };
        let (read, write) = (direction(rest.get(..each)?)?, direction(rest.get(each..2 * each)?)?);
        let mut session = Session::new(suite, port, read, write);
        session.empty_run = *empty_run;
        session.owes_update = flags & 1 != 0;
        session.has_requested = flags & 2 != 0;
        session.peer_closed = flags & 4 != 0;
        Some((session, 3 + 2 * each))
    }
}
