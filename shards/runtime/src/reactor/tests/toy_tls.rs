//! A toy in the place of TLS, and its client: records with sequence numbers, which the reactor could break.
//!
//! A record is a kind, a length (u16, big endian), a sequence number, and bytes with each bit turned. Kinds: `H` and
//! `F` are the two flights of the client, `h` the one of the server, `D` data, `C` close_notify, `A` an alert. `U` of
//! the client uses up the key of the server. `K` of the client asks for a KeyUpdate, which is `k` of the server.

use std::collections::HashMap;

use crate::ports::Port;
use crate::tls::{GivenUp, Next, Received, Stage, Tls, TlsStats};

use super::bench::Client;

const HEADER: usize = 4;

#[derive(Default)]
pub(in crate::reactor) struct ToyTls {
    entries: HashMap<u32, Entry>,
    stats: TlsStats,
}

#[derive(Clone, Copy)]
struct Entry {
    stage: Stage,
    sent: u8,
    received: u8,
    peer_closed: bool,
    used_up: bool,
    /// A KeyUpdate is owed, in front of the next data.
    owes: bool,
}

impl Entry {
    fn new(stage: Stage) -> Entry {
        Entry { stage, sent: 0, received: 0, peer_closed: false, used_up: false, owes: false }
    }
}

fn record(kind: u8, number: u8, plain: &[u8], wire: &mut Vec<u8>) {
    let len = (plain.len() as u16).to_be_bytes();
    wire.extend([kind, len[0], len[1], number]);
    wire.extend(plain.iter().map(|byte| !byte));
}

impl ToyTls {
    /// One connection that is through its handshake.
    pub(in crate::reactor) fn established(slot: u32) -> ToyTls {
        ToyTls { entries: HashMap::from([(slot, Entry::new(Stage::Established))]), stats: TlsStats::default() }
    }

    fn next(&mut self, slot: u32, kind: u8, plain: &[u8], wire: &mut Vec<u8>) {
        let entry = self.entries.get_mut(&slot).expect("the connection speaks TLS");
        assert!(entry.stage == Stage::Established, "nothing is sealed before the handshake or behind an alert");
        assert!(!entry.owes || kind != b'D', "a KeyUpdate that is owed comes first");
        record(kind, entry.sent, plain, wire);
        entry.sent = entry.sent.wrapping_add(1);
    }

    fn fail(&mut self, slot: u32, consumed: usize, wire: &mut Vec<u8>) -> Received {
        record(b'A', 0, b"", wire);
        self.entries.get_mut(&slot).expect("it is here").stage = Stage::Failed;
        Received { plain: 0, consumed, next: Next::Failed }
    }
}

impl Tls for ToyTls {
    fn open(&mut self, slot: u32, _port: Port) {
        assert!(
            self.entries.insert(slot, Entry::new(Stage::Fresh)).is_none(),
            "the last connection of the slot was ended"
        );
    }

    fn stage(&self, slot: u32) -> Stage {
        self.entries.get(&slot).map_or(Stage::Failed, |entry| entry.stage)
    }

    fn peer_closed(&self, slot: u32) -> bool {
        self.entries.get(&slot).is_some_and(|entry| entry.peer_closed)
    }

    fn handshakes(&self) -> usize {
        self.entries.values().filter(|entry| entry.stage == Stage::Handshake).count()
    }

    fn receive(&mut self, slot: u32, bytes: &mut [u8], wire: &mut Vec<u8>) -> Received {
        let (mut plain, mut at) = (0, 0);
        while let Some([kind, high, low, number]) = bytes[at..].first_chunk().copied() {
            let end = at + HEADER + usize::from(u16::from_be_bytes([high, low]));
            if end > bytes.len() {
                break;
            }
            let entry = self.entries.get_mut(&slot).expect("the connection speaks TLS");
            match (entry.stage, kind) {
                (Stage::Fresh, b'H') => {
                    record(b'h', 0, b"", wire);
                    entry.stage = Stage::Handshake;
                    return Received { plain: 0, consumed: end, next: Next::Again };
                }
                (Stage::Handshake, b'F') => entry.stage = Stage::Established,
                (Stage::Established, b'D') if number == entry.received => {
                    entry.received = entry.received.wrapping_add(1);
                    for from in at + HEADER..end {
                        bytes[plain] = !bytes[from];
                        plain += 1;
                    }
                }
                (Stage::Established, b'U') => entry.used_up = true,
                (Stage::Established, b'K') => entry.owes = true,
                (Stage::Established, b'C') => {
                    entry.peer_closed = true;
                    return Received { plain, consumed: bytes.len(), next: Next::More };
                }
                _ => return self.fail(slot, bytes.len(), wire),
            }
            at = end;
        }
        Received { plain, consumed: at, next: Next::More }
    }

    fn control(&mut self, slot: u32, wire: &mut Vec<u8>) {
        let entry = self.entries.get_mut(&slot).expect("the connection speaks TLS");
        if std::mem::take(&mut entry.owes) {
            record(b'k', 0, b"", wire);
        }
    }

    fn seal(&mut self, slot: u32, plain: &[u8], wire: &mut Vec<u8>) {
        self.next(slot, b'D', plain, wire);
    }

    fn close_notify(&mut self, slot: u32, wire: &mut Vec<u8>) {
        self.next(slot, b'C', b"", wire);
    }

    fn key_used_up(&self, slot: u32) -> bool {
        self.entries.get(&slot).is_some_and(|entry| entry.used_up)
    }

    fn rewind(&mut self, slot: u32, records: u32) {
        let entry = self.entries.get_mut(&slot).expect("the connection speaks TLS");
        entry.sent = entry.sent.wrapping_sub(records as u8);
    }

    fn export(&mut self, slot: u32) -> Vec<u8> {
        let entry = self.entries.remove(&slot).expect("the connection speaks TLS");
        vec![entry.sent, entry.received, u8::from(entry.peer_closed), u8::from(entry.owes)]
    }

    fn import(&mut self, slot: u32, _port: Port, state: &mut [u8]) -> Option<usize> {
        let [sent, received, peer_closed, owes] = *state.first_chunk()?;
        let (peer_closed, owes) = (peer_closed == 1, owes == 1);
        let entry = Entry { sent, received, peer_closed, owes, ..Entry::new(Stage::Established) };
        assert!(self.entries.insert(slot, entry).is_none(), "the last connection of the slot was ended");
        Some(4)
    }

    fn end(&mut self, slot: u32) {
        let entry = self.entries.remove(&slot);
        let left = entry.is_some_and(|entry| entry.stage == Stage::Handshake);
        self.stats.tls_handshakes_failed_left += u64::from(left);
    }

    fn give_up(&mut self, slot: u32, why: GivenUp) {
        self.stats.tls_handshakes_timeout += u64::from(why == GivenUp::Late);
        let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.stage == Stage::Handshake) else { return };
        entry.stage = Stage::Failed;
        let counter = match why {
            GivenUp::Late => &mut self.stats.tls_handshakes_failed_timeout,
            GivenUp::Flood => &mut self.stats.tls_handshakes_failed_flood,
            GivenUp::Closed => &mut self.stats.tls_handshakes_failed_closed,
        };
        *counter += 1;
    }

    fn count_refused(&mut self, _port: Port) {
        self.stats.tls_handshakes_refused += 1;
    }

    fn take_leftovers(&mut self) -> bool {
        false
    }

    fn stats(&mut self) -> &TlsStats {
        self.stats.tls_connections = self.entries.len() as u64;
        &self.stats
    }
}

/// A client of the toy.
pub(super) struct ToyClient {
    pub socket: Client,
    sent: u8,
    /// Bytes of `socket` that were opened.
    opened: usize,
    received: u8,
    heard: Vec<u8>,
    /// Kind of the last record that is not data.
    pub last: Option<u8>,
    /// KeyUpdates heard.
    pub updates: usize,
}

impl ToyClient {
    pub(super) fn new(socket: Client) -> ToyClient {
        ToyClient { socket, sent: 0, opened: 0, received: 0, heard: Vec::new(), last: None, updates: 0 }
    }

    /// The two flights of a handshake.
    pub(super) fn flights() -> Vec<u8> {
        let mut wire = Vec::new();
        record(b'H', 0, b"", &mut wire);
        record(b'F', 0, b"", &mut wire);
        wire
    }

    pub(super) fn sealed(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        record(b'D', self.sent, plain, &mut wire);
        self.sent = self.sent.wrapping_add(1);
        wire
    }

    /// A request for a KeyUpdate.
    pub(super) fn key_update() -> Vec<u8> {
        let mut wire = Vec::new();
        record(b'K', 0, b"", &mut wire);
        wire
    }

    pub(super) fn use_up_key(&mut self) {
        let mut wire = Vec::new();
        record(b'U', 0, b"", &mut wire);
        self.socket.say(&wire);
    }

    pub(super) fn close_notify() -> Vec<u8> {
        let mut wire = Vec::new();
        record(b'C', 0, b"", &mut wire);
        wire
    }

    pub(super) fn say(&mut self, plain: &[u8]) {
        let wire = self.sealed(plain);
        self.socket.say(&wire);
    }

    /// Opens what was heard. Each record must have the number that follows the one before.
    pub(super) fn heard(&mut self) -> &[u8] {
        self.socket.heard();
        self.heard_so_far()
    }

    /// As above, without reading on.
    pub(super) fn heard_so_far(&mut self) -> &[u8] {
        let bytes = self.socket.heard_so_far();
        while let Some([kind, high, low, number]) = bytes[self.opened..].first_chunk().copied() {
            let end = self.opened + HEADER + usize::from(u16::from_be_bytes([high, low]));
            if end > bytes.len() {
                break;
            }
            if kind == b'D' || kind == b'C' {
                assert_eq!(number, self.received, "records come in their order, each once");
                self.received = self.received.wrapping_add(1);
            }
            if kind == b'D' {
                assert!(self.last != Some(b'C'), "nothing follows close_notify");
                self.heard.extend(bytes[self.opened + HEADER..end].iter().map(|byte| !byte));
            } else {
                self.last = Some(kind);
                self.updates += usize::from(kind == b'k');
            }
            self.opened = end;
        }
        &self.heard
    }

    pub(super) fn forget(&mut self) {
        self.heard.clear();
    }
}
