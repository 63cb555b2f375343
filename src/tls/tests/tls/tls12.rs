//! TLS 1.2: handshakes, records, moves and the end of a key.

use std::io::Write as _;
use std::sync::Arc;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use runtime::ports::Port;
use runtime::tls::{Next, Stage, Tls as _};
use rustls::{AlertDescription, Error, HandshakeKind, ProtocolVersion};
use tls::{MinVersion, ShardTls};

use crate::peer::{Pair, Papers, SLOT, SUITES, TLS12_SUITES, alerts_and_failures};

/// One direction of a connection with AES-128-GCM, as the exported state has it.
struct Half {
    seq: u64,
    key: [u8; 16],
    salt: [u8; 4],
}

impl Half {
    fn read(state: &[u8]) -> Half {
        let seq = u64::from_be_bytes(state[..8].try_into().unwrap());
        Half { seq, key: state[8..24].try_into().unwrap(), salt: state[24..28].try_into().unwrap() }
    }

    /// Key, nonce and additional data of a record (RFC 5288 section 3, RFC 5246 section 6.2.3.3).
    fn next(&mut self, explicit: [u8; 8], kind: u8, len: usize) -> (LessSafeKey, Nonce, Aad<Vec<u8>>) {
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &self.key).unwrap());
        let nonce = [&self.salt[..], &explicit].concat().try_into().unwrap();
        let additional = [&self.seq.to_be_bytes()[..], &[kind, 3, 3], &(len as u16).to_be_bytes()].concat();
        self.seq += 1;
        (key, Nonce::assume_unique_for_key(nonce), Aad::from(additional))
    }
}

/// A server whose client is a script.
struct Raw {
    pair: Pair,
    write: Half,
    read: Half,
}

impl Raw {
    fn of(mut pair: Pair) -> Raw {
        let state = pair.server.export(SLOT);
        assert_eq!((state[0], state.len()), (4, 3 + 2 * 36));
        pair.server.import(SLOT, Port::Endpoint, &mut state.clone());
        Raw { pair, write: Half::read(&state[3..39]), read: Half::read(&state[39..]) }
    }

    fn new() -> Raw {
        Raw::of(Pair::established(TLS12_SUITES[0]))
    }

    fn seal(&mut self, kind: u8, plain: &[u8]) -> Vec<u8> {
        // A client may choose the explicit part as it likes.
        let explicit = [0x5a; 8].map(|byte: u8| byte ^ self.write.seq as u8);
        let (key, nonce, additional) = self.write.next(explicit, kind, plain.len());
        let mut body = plain.to_vec();
        key.seal_in_place_append_tag(nonce, additional, &mut body).unwrap();
        let len = (8 + body.len()) as u16;
        [&[kind, 3, 3][..], &len.to_be_bytes(), &explicit, &body].concat()
    }

    /// Gives bytes to the server. Returns its result, and type and content of the records that it answered.
    fn give(&mut self, bytes: &[u8]) -> (Next, Vec<(u8, Vec<u8>)>) {
        let (next, mut wire) = self.pair.give(bytes);
        let mut records = Vec::new();
        while let [kind, 3, 3, high, low, ..] = wire[..] {
            let rest = wire.split_off(5 + usize::from(u16::from_be_bytes([high, low])));
            let (explicit, mut body) = (wire[5..13].try_into().unwrap(), wire[13..].to_vec());
            let (key, nonce, additional) = self.read.next(explicit, kind, body.len() - 16);
            records.push((kind, key.open_in_place(nonce, additional, &mut body).unwrap().to_vec()));
            wire = rest;
        }
        (next, records)
    }
}

fn alert(number: u8) -> Vec<(u8, Vec<u8>)> {
    vec![(21, vec![2, number])]
}

#[test]
fn tls_1_2_is_served_only_on_demand_and_newer_clients_get_tls_1_3() {
    let mut papers = Papers::of(TLS12_SUITES[0]);
    let both = Arc::new(papers.client_of(rustls::crypto::ring::default_provider()));
    let mut pair = Pair::new(ShardTls::new(Some(papers.server(&[1])), None), &both, "localhost");
    pair.shake();
    assert_eq!(pair.client.protocol_version(), Some(ProtocolVersion::TLSv1_3));

    papers.min_version = MinVersion::Tls13;
    let old = Arc::new(papers.client(&TLS12_SUITES));
    let mut pair = Pair::new(ShardTls::new(Some(papers.server(&[1])), None), &old, "localhost");
    let hello = pair.sent_by_client();
    let (next, wire) = pair.give(&hello);
    pair.client.read_tls(&mut &wire[..]).unwrap();
    let error = pair.client.process_new_packets().unwrap_err();
    assert_eq!((next, error), (Next::Failed, Error::AlertReceived(AlertDescription::ProtocolVersion)));
}

/// Gives everything that the client sends, in two parts. Returns the number of bytes.
fn give_split(pair: &mut Pair, at: usize) -> usize {
    let bytes = pair.sent_by_client();
    let (first, second) = bytes.split_at(at.min(bytes.len()));
    for part in [first, second] {
        let (next, wire) = pair.give(part);
        assert_eq!(next, Next::More, "{at}");
        pair.answer(&wire);
    }
    bytes.len()
}

#[test]
fn flights_and_records_may_be_split_anywhere() {
    for suite in TLS12_SUITES {
        let papers = Papers::of(suite);
        let (server, config) = (papers.server(&[1]), Arc::new(papers.client(&[suite])));
        let (mut at, mut longest) = (0, 0);
        while at <= longest {
            let mut pair = Pair::new(ShardTls::new(Some(server.clone()), None), &config, "localhost");
            longest = longest.max(give_split(&mut pair, at)).max(give_split(&mut pair, at));
            assert_eq!(pair.server.stage(SLOT), Stage::Established, "{at}");
            for data in [&b"one"[..], b"two"] {
                pair.client.writer().write_all(data).unwrap();
            }
            give_split(&mut pair, at);
            assert_eq!((&pair.heard[..], pair.rest.len()), (&b"onetwo"[..], 0), "{at}");
            pair.assert_alive();
            at += 1;
        }
    }
}

#[test]
fn no_connection_is_resumed() {
    let papers = Papers::of(TLS12_SUITES[0]);
    let (server, config) = (papers.server(&[1]), Arc::new(papers.client(&TLS12_SUITES)));
    for _ in 0..2 {
        let mut pair = Pair::new(ShardTls::new(Some(server.clone()), None), &config, "localhost");
        pair.shake();
        assert_eq!(pair.client.handshake_kind(), Some(HandshakeKind::Full));
        pair.assert_alive();
    }
}

#[test]
fn records_that_break_a_rule() {
    let table: [(&str, u8, &[u8], u8); 9] = [
        ("renegotiation", 22, &[1, 0, 0, 1, 0], 40),
        ("HelloRequest", 22, &[0, 0, 0, 0], 10),
        ("KeyUpdate", 22, &[24, 0, 0, 1, 0], 10),
        ("empty handshake", 22, &[], 10),
        ("ChangeCipherSpec", 20, &[1], 10),
        ("heartbeat", 24, &[1, 0, 0], 10),
        ("unknown type", 99, &[1], 10),
        ("empty alert", 21, &[], 10),
        ("alert of three bytes", 21, &[2, 40, 40], 50),
    ];
    for (name, kind, plain, number) in table {
        let mut raw = Raw::new();
        let bytes = [raw.seal(23, b"before"), raw.seal(kind, plain), raw.seal(23, b"behind")].concat();
        assert_eq!(raw.give(&bytes), (Next::Failed, alert(number)), "{name}");
        assert_eq!(raw.pair.heard, b"before", "{name}");
        assert_eq!(alerts_and_failures(raw.pair.server.stats()), (1, 0), "{name}");
    }
    let mut raw = Raw::new();
    let long = raw.seal(23, &[7; 16_385]);
    assert_eq!(raw.give(&long), (Next::Failed, alert(22)));
    assert_eq!(Raw::new().give(&[23, 3, 3, 0x41, 1]), (Next::Failed, alert(22)));
    let no_room_for_a_tag = [&[23, 3, 3, 0, 23][..], &[0; 23]].concat();
    assert_eq!(Raw::new().give(&no_room_for_a_tag), (Next::Failed, alert(20)));
}

#[test]
fn warnings_are_passed_over_within_the_bound_and_fatal_alerts_end() {
    let mut raw = Raw::new();
    for _ in 0..32 {
        let warning = raw.seal(21, &[1, 100]);
        assert_eq!(raw.give(&warning), (Next::More, Vec::new()));
    }
    let data = raw.seal(23, b"data");
    assert_eq!(raw.give(&data), (Next::More, Vec::new()));
    let empty: Vec<u8> = (0..33).flat_map(|_| raw.seal(23, b"")).collect();
    assert_eq!(raw.give(&empty), (Next::Failed, alert(10)));
    let mut raw = Raw::new();
    let fatal = raw.seal(21, &[2, 40]);
    assert_eq!(raw.give(&fatal), (Next::Failed, Vec::new()));
    let mut raw = Raw::new();
    let end = raw.seal(21, &[1, 0]);
    assert_eq!(raw.give(&end), (Next::More, Vec::new()));
    assert!(raw.pair.server.peer_closed(SLOT));
}

#[test]
fn changed_cut_repeated_and_exchanged_records_do_not_open() {
    let mut raw = Raw::new();
    let state = raw.pair.server.export(SLOT);
    let (a, b, foreign) = (raw.seal(23, b"a"), raw.seal(23, b"b"), Raw::new().seal(23, b"a"));
    let read = raw.read.seq;
    let mut give = |bytes: &[u8]| {
        raw.pair.server.import(SLOT, Port::Endpoint, &mut state.clone());
        raw.pair.rest.clear();
        raw.pair.heard.clear();
        raw.read.seq = read;
        let (next, records) = raw.give(bytes);
        (next, raw.pair.heard.clone(), records.first().map(|(_, content)| content[1]))
    };
    assert_eq!(give(&[&a[..], &b].concat()), (Next::More, b"ab".to_vec(), None));
    for bad in [[&b[..], &a], [&foreign[..], &a]] {
        assert_eq!(give(&bad.concat()), (Next::Failed, Vec::new(), Some(20)));
    }
    assert_eq!(give(&[&a[..], &a].concat()), (Next::Failed, b"a".to_vec(), Some(20)));
    for bit in 40..a.len() * 8 {
        let mut changed = a.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(give(&changed), (Next::Failed, Vec::new(), Some(20)), "bit {bit}");
    }
    for len in 0..a.len() {
        assert_eq!(give(&a[..len]), (Next::More, Vec::new(), None));
        if len >= 5 {
            let cut = [&a[..3], &(len as u16 - 5).to_be_bytes(), &a[5..len]].concat();
            assert_eq!(give(&cut), (Next::Failed, Vec::new(), Some(20)), "{len}");
        }
    }
}

#[test]
fn a_connection_moves_while_a_record_is_half_received() {
    for suite in TLS12_SUITES {
        let mut pair = Pair::established(suite);
        pair.assert_alive();
        pair.client.writer().write_all(b"in two halves").unwrap();
        let record = pair.sent_by_client();
        let _ = pair.give(&record[..record.len() / 2]);
        let mut state = pair.server.export(SLOT);
        let len = state.len();
        pair.server = ShardTls::new(None, None);
        assert_eq!(pair.server.import(SLOT, Port::WebSocket, &mut state), Some(len));
        assert!(state.iter().all(|byte| *byte == 0), "the state is overwritten");
        assert_eq!(pair.give(&record[record.len() / 2..]), (Next::More, Vec::new()));
        assert!(pair.heard.ends_with(b"in two halves"));
        pair.assert_alive();
    }
}

fn limited() -> Pair {
    let papers = Papers::of(TLS12_SUITES[0]);
    let server = ShardTls::with_limit(Some(papers.server(&[1])), None, 8);
    Pair::established_with(server, &papers, TLS12_SUITES[0])
}

/// The Finished was the first record of each side.
#[test]
fn a_key_that_is_used_up_ends_the_connection() {
    let mut pair = limited();
    for sealed in 1..4 {
        assert!(!pair.server.key_used_up(SLOT), "{sealed}");
        pair.server_says(b"data");
    }
    assert!(pair.server.key_used_up(SLOT));
    pair.server_says(b"last words");
    let mut wire = Vec::new();
    pair.server.close_notify(SLOT, &mut wire);
    pair.answer(&wire);
    assert!(pair.client.process_new_packets().unwrap().peer_has_closed());
    assert_eq!(pair.server.stats().tls_key_updates_sent, 0);

    let mut raw = Raw::of(limited());
    for _ in 1..8 {
        let record = raw.seal(23, b"x");
        assert_eq!(raw.give(&record), (Next::More, Vec::new()));
    }
    let record = raw.seal(23, b"y");
    assert_eq!(raw.give(&record), (Next::Failed, vec![(21, vec![1, 0])]));
    assert_eq!(raw.pair.heard, b"xxxxxxx");
    assert!(!Pair::established(SUITES[0]).server.key_used_up(SLOT));
}

#[test]
#[should_panic(expected = "a KeyUpdate or the end was due long ago")]
fn no_key_seals_more_records_than_its_limit() {
    let mut pair = limited();
    for _ in 0..8 {
        pair.server.seal(SLOT, b"data", &mut Vec::new());
    }
}
