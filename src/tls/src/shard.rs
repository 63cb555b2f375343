//! TLS of one shard: the states of its connections, from accept to end.

use runtime::ports::Port;
use runtime::tls::{GivenUp, Next, Received, Stage, Tls, TlsStats};
use rustls::server::UnbufferedServerConnection;
use zeroize::Zeroize as _;

use crate::counted::{Failure, count_alert, count_completed, count_failure};
use crate::first::First;
use crate::handshake::{HANDSHAKE_BYTES, Handshake, Step};
use crate::record::{Alert, CIPHERTEXT_MAX, Control, HEADER_LEN, Header, Limit, Opened, Session};
use crate::server::ServerTls;
use crate::table::{Entry, Table};

/// Implementation of [`Tls`] by rustls and *ring*.
pub struct ShardTls {
    public: Option<ServerTls>,
    endpoint: Option<ServerTls>,
    node: Option<ServerTls>,
    table: Table,
    limit: Limit,
    /// A handshake or a connection has ended, and may have left secrets in frames that have returned.
    leftovers: bool,
    stats: TlsStats,
}

impl ShardTls {
    /// Makes the TLS of one shard. `node` serves the node API and `public` all other ports.
    pub fn new(public: Option<ServerTls>, node: Option<ServerTls>) -> ShardTls {
        let (endpoint, limit, table) = (None, Limit(u64::MAX), Table::new());
        ShardTls { public, endpoint, node, table, limit, leftovers: false, stats: TlsStats::default() }
    }

    /// Serves app servers apart, so that they alone are asked for certificates.
    #[must_use]
    pub fn with_endpoint(self, endpoint: Option<ServerTls>) -> ShardTls {
        ShardTls { endpoint, ..self }
    }

    /// As [`ShardTls::new`], but no key seals or opens more than `limit` records.
    #[doc(hidden)]
    pub fn with_limit(public: Option<ServerTls>, node: Option<ServerTls>, limit: u64) -> ShardTls {
        ShardTls { limit: Limit(limit), ..ShardTls::new(public, node) }
    }

    /// Puts an entry into its slot, overwrites the secrets that were there, and keeps the gauges.
    fn put(&mut self, slot: u32, entry: Entry) {
        let (old, new) = (self.table.get(slot), &entry);
        let step = |gauge: &mut u64, is: bool, was: bool| *gauge = *gauge + u64::from(is) - u64::from(was);
        let handshake = |entry: &Entry| matches!(entry, Entry::Handshake(_));
        let (is, was) = (new.port(), old.port());
        step(&mut self.stats.tls_connections, is.is_some(), was.is_some());
        step(&mut self.stats.node_tls_connections, is == Some(Port::Node), was == Some(Port::Node));
        step(&mut self.stats.tls_handshakes_in_flight, handshake(new), handshake(old));
        let was_handshake = handshake(old);
        self.leftovers |= was_handshake || matches!(old, Entry::Established(_));
        if was_handshake {
            wipe::freed(|| self.table.set(slot, entry));
        } else {
            self.table.set(slot, entry);
        }
    }

    fn session(&mut self, slot: u32) -> &mut Session {
        match self.table.get_mut(slot) {
            Some(Entry::Established(session)) => session,
            _ => panic!("slot {slot} has no established TLS connection"),
        }
    }

    /// The first byte came: makes the state of a handshake.
    fn begin(&mut self, slot: u32, port: Port) {
        let server = self.server(port);
        let conn = server
            .and_then(|server| Some((UnbufferedServerConnection::new(server.config()).ok()?, server.flight_max())));
        match conn {
            Some((conn, flight_max)) => self.put(slot, Entry::Handshake(Handshake::new(port, conn, flight_max))),
            None => self.handshake_failed(slot, port, Failure::Internal, "there is no certificate for this listener"),
        }
    }

    fn server(&self, port: Port) -> Option<&ServerTls> {
        match port {
            Port::Node => self.node.as_ref(),
            Port::Endpoint if self.endpoint.is_some() => self.endpoint.as_ref(),
            _ => self.public.as_ref(),
        }
    }

    fn handshake_failed(&mut self, slot: u32, port: Port, failure: Failure, reason: &str) {
        if let Some(server) = self.server(port) {
            server.note_failure(reason);
        }
        count_failure(&mut self.stats, failure);
        self.stats.node_tls_handshakes_failed += u64::from(port == Port::Node);
        self.put(slot, Entry::Failed(port));
    }

    /// Ends a connection whose first bytes are not TLS.
    fn not_tls(&mut self, slot: u32, port: Port, kind: First, wire: &mut Vec<u8>) {
        if let Some(server) = self.server(port) {
            let reason = if kind == First::Http { "a plain HTTP request" } else { "the first bytes are no TLS record" };
            server.note_failure(reason);
        }
        self.stats.tls_not_tls += 1;
        self.stats.node_tls_handshakes_failed += u64::from(port == Port::Node);
        wire.extend_from_slice(kind.last_words());
        if kind == First::Other {
            count_alert(&mut self.stats, Alert::DecodeError as u8);
        }
        self.put(slot, Entry::Failed(port));
    }

    fn handshake(&mut self, slot: u32, bytes: &mut [u8], wire: &mut Vec<u8>) -> Received {
        let Some(Entry::Handshake(handshake)) = self.table.get_mut(slot) else { return failed(0, bytes) };
        let port = handshake.port;
        if !handshake.speaks_tls {
            match First::of(bytes) {
                First::Unknown => return more(0, 0),
                First::Tls => handshake.speaks_tls = true,
                kind => {
                    self.not_tls(slot, port, kind, wire);
                    return failed(0, bytes);
                }
            }
        }
        let mut at = 0;
        for _ in 0..STEP_RECORDS_MAX {
            let Some(header) = Header::read(&bytes[at..]) else { return more(0, at) };
            let end = at + HEADER_LEN + header.len;
            if header.len > CIPHERTEXT_MAX {
                handshake.fail(Alert::RecordOverflow, wire);
                let failure = Failure::AlertSent(Alert::RecordOverflow as u8);
                self.handshake_failed(slot, port, failure, "a record is too long");
                return failed(0, bytes);
            }
            if bytes.len() < end {
                return more(0, at);
            }
            match wipe::freed(|| handshake.feed(&mut bytes[at..end], wire)) {
                Step::More => at = end,
                Step::Flight => {
                    let next = if end < bytes.len() { Next::Again } else { Next::More };
                    return Received { plain: 0, consumed: end, next };
                }
                Step::Finished => return self.finished(slot, port, bytes, end, wire),
                Step::Failed(failure) => {
                    let reason = std::mem::take(&mut handshake.reason);
                    self.handshake_failed(slot, port, failure, &reason);
                    return failed(0, bytes);
                }
            }
        }
        Received { plain: 0, consumed: at, next: Next::Again }
    }

    /// The client's Finished came, in the record before `at`.
    fn finished(&mut self, slot: u32, port: Port, bytes: &mut [u8], at: usize, wire: &mut Vec<u8>) -> Received {
        let Some(entry) = self.table.get_mut(slot) else { return failed(0, bytes) };
        let Entry::Handshake(handshake) = std::mem::replace(entry, Entry::Failed(port)) else {
            return failed(0, bytes);
        };
        self.stats.tls_handshakes_in_flight -= 1;
        self.leftovers = true;
        let is_challenge = handshake.is_challenge();
        let Some((mut session, completed)) = wipe::freed(|| handshake.finish()) else {
            self.handshake_failed(slot, port, Failure::Internal, "the secrets of the connection are not of its suite");
            return failed(0, bytes);
        };
        count_completed(&mut self.stats, session.is_tls12(), completed);
        self.stats.node_tls_handshakes += u64::from(port == Port::Node);
        if is_challenge {
            session.close_notify(wire);
            self.put(slot, Entry::Failed(port));
            return failed(0, bytes);
        }
        self.put(slot, Entry::Established(session));
        self.records(slot, bytes, at, wire)
    }

    /// Opens the whole records from `at` on.
    fn records(&mut self, slot: u32, bytes: &mut [u8], mut at: usize, wire: &mut Vec<u8>) -> Received {
        let Some(Entry::Established(session)) = self.table.get_mut(slot) else { return failed(0, bytes) };
        let (port, end, mut plain, mut key) = (session.port, bytes.len(), 0, None);
        if session.peer_closed() {
            return more(plain, end);
        }
        loop {
            if session.must_ask(self.limit) {
                // The server has perhaps nothing to say for long.
                count_control(&mut self.stats, session.control(self.limit, wire));
            }
            let Some(header) = Header::read(&bytes[at..]) else { return more(plain, at) };
            let opened = if !session.takes(header.kind) {
                Opened::Refused(Alert::UnexpectedMessage)
            } else if header.len > CIPHERTEXT_MAX {
                Opened::Refused(Alert::RecordOverflow)
            } else if end - at < HEADER_LEN + header.len {
                return more(plain, at);
            } else {
                session.open(header, (&mut *bytes, at, plain), self.limit, &mut key)
            };
            at += HEADER_LEN + header.len;
            match opened {
                Opened::Data(len) => plain += len,
                Opened::Nothing => {}
                Opened::KeyUpdate => self.stats.tls_key_updates_received += 1,
                Opened::PeerClosed => return more(plain, end),
                Opened::PeerFailed => self.stats.tls_alerts_received += 1,
                Opened::PeerKeyUsedUp => session.close_notify(wire),
                Opened::TooManyEmpty => {
                    self.stats.tls_updates_refused += 1;
                    count_alert(&mut self.stats, Alert::UnexpectedMessage as u8);
                    session.fail(Alert::UnexpectedMessage, wire);
                }
                Opened::Refused(alert) => {
                    count_alert(&mut self.stats, alert as u8);
                    session.fail(alert, wire);
                }
            }
            if !matches!(opened, Opened::Data(_) | Opened::Nothing | Opened::KeyUpdate) {
                self.put(slot, Entry::Failed(port));
                return failed(plain, bytes);
            }
        }
    }
}

/// Records of one step of a handshake: a flight in records of one byte would take 2,700. Queue: the rest waits for a
/// further step.
const STEP_RECORDS_MAX: usize = 64;

fn count_control(stats: &mut TlsStats, control: Control) {
    stats.tls_key_updates_sent += u64::from(control != Control::Nothing);
    stats.tls_rekeys += u64::from(control == Control::Rekey);
}

fn more(plain: usize, consumed: usize) -> Received {
    Received { plain, consumed, next: Next::More }
}

fn failed(plain: usize, bytes: &[u8]) -> Received {
    Received { plain, consumed: bytes.len(), next: Next::Failed }
}

impl Tls for ShardTls {
    fn open(&mut self, slot: u32, port: Port) {
        self.put(slot, Entry::Fresh(port));
    }

    fn stage(&self, slot: u32) -> Stage {
        self.table.get(slot).stage()
    }

    fn peer_closed(&self, slot: u32) -> bool {
        matches!(self.table.get(slot), Entry::Established(session) if session.peer_closed())
    }

    fn handshakes(&self) -> usize {
        self.stats.tls_handshakes_in_flight as usize
    }

    fn receive(&mut self, slot: u32, bytes: &mut [u8], wire: &mut Vec<u8>) -> Received {
        match *self.table.get(slot) {
            Entry::Fresh(_) if bytes.is_empty() => more(0, 0),
            Entry::Fresh(port) => {
                self.begin(slot, port);
                self.handshake(slot, bytes, wire)
            }
            Entry::Handshake(_) => self.handshake(slot, bytes, wire),
            Entry::Established(_) => self.records(slot, bytes, 0, wire),
            Entry::Failed(_) | Entry::Empty => failed(0, bytes),
        }
    }

    fn control(&mut self, slot: u32, wire: &mut Vec<u8>) {
        let limit = self.limit;
        let control = self.session(slot).control(limit, wire);
        count_control(&mut self.stats, control);
    }

    fn seal(&mut self, slot: u32, plain: &[u8], wire: &mut Vec<u8>) {
        let limit = self.limit;
        self.session(slot).seal(plain, limit, wire);
    }

    fn close_notify(&mut self, slot: u32, wire: &mut Vec<u8>) {
        self.session(slot).close_notify(wire);
    }

    fn key_used_up(&self, slot: u32) -> bool {
        matches!(self.table.get(slot), Entry::Established(session) if session.key_used_up(self.limit))
    }

    fn rewind(&mut self, slot: u32, records: u32) {
        self.session(slot).rewind(records);
    }

    fn export(&mut self, slot: u32) -> Vec<u8> {
        let state = self.session(slot).export();
        self.end(slot);
        state
    }

    fn import(&mut self, slot: u32, port: Port, state: &mut [u8]) -> Option<usize> {
        let (session, len) = Session::import(port, state)?;
        state[..len].zeroize();
        self.put(slot, Entry::Established(session));
        Some(len)
    }

    fn end(&mut self, slot: u32) {
        if let Entry::Handshake(handshake) = self.table.get(slot) {
            let port = handshake.port;
            self.handshake_failed(slot, port, Failure::Left, "the client left within the handshake");
        }
        if !matches!(self.table.get(slot), Entry::Empty) {
            self.put(slot, Entry::Empty);
        }
    }

    fn give_up(&mut self, slot: u32, why: GivenUp) {
        if why == GivenUp::Late {
            self.stats.tls_handshakes_timeout += 1;
            self.stats.node_tls_handshakes_timeout += u64::from(self.table.get(slot).port() == Some(Port::Node));
        }
        let Entry::Handshake(handshake) = self.table.get(slot) else { return };
        let port = handshake.port;
        let (failure, reason) = match why {
            GivenUp::Late => (Failure::Late, "the handshake took too long"),
            GivenUp::Flood => (Failure::Flood, "the client sent too many bytes in one flight"),
            GivenUp::Closed => (Failure::Closed, "the server ended the connection within its handshake"),
        };
        self.handshake_failed(slot, port, failure, reason);
    }

    fn count_refused(&mut self, port: Port) {
        self.stats.tls_handshakes_refused += 1;
        self.stats.node_tls_refused += u64::from(port == Port::Node);
    }

    fn take_leftovers(&mut self) -> bool {
        std::mem::take(&mut self.leftovers)
    }

    fn stats(&mut self) -> &TlsStats {
        let handshakes = self.stats.tls_handshakes_in_flight * HANDSHAKE_BYTES;
        self.stats.tls_state_bytes = self.table.heap_bytes() as u64 + handshakes;
        &self.stats
    }
}
