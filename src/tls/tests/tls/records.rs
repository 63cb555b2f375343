//! Records after the handshake: key updates, limits, changed and exchanged records, rewinding.

use std::io::Write as _;

use runtime::ports::Port;
use runtime::tls::{Next, Stage, Tls as _};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use tls::ShardTls;

use crate::peer::{Pair, Papers, SLOT, SUITES, every_suite};
use crate::raw::{Raw, alert, data, key_update};

#[test]
fn key_updates_of_the_client_are_taken_and_answered() {
    for suite in SUITES {
        let mut pair = Pair::established(suite);
        for round in 1..4 {
            pair.client.refresh_traffic_keys().unwrap();
            pair.client_says(b"under a new key");
            pair.assert_alive();
            let stats = pair.server.stats();
            assert_eq!((stats.tls_key_updates_received, stats.tls_key_updates_sent), (round, round));
            assert_eq!(stats.tls_rekeys, 0);
        }
        // Two requests need one answer (RFC 8446 section 4.6.3).
        pair.client.refresh_traffic_keys().unwrap();
        let first = pair.sent_by_client();
        pair.client.refresh_traffic_keys().unwrap();
        let second = pair.sent_by_client();
        assert_eq!(pair.give(&[first, second].concat()), (Next::More, Vec::new()));
        pair.assert_alive();
        assert_eq!(pair.server.stats().tls_key_updates_sent, 4);
    }
}

fn limited(limit: u64) -> Pair {
    let papers = Papers::local();
    let server = ShardTls::with_limit(Some(papers.server(&[1])), None, limit);
    Pair::established_with(server, &papers, TLS13_AES_128_GCM_SHA256)
}

#[test]
fn the_key_for_sealing_changes_at_half_of_its_limit() {
    let mut pair = limited(8);
    for _ in 0..40 {
        pair.server_says(b"data");
    }
    assert_eq!(pair.told, b"data".repeat(40));
    let stats = pair.server.stats();
    // The ticket was the first record; then each key seals four records, the KeyUpdate not counted.
    assert_eq!((stats.tls_rekeys, stats.tls_key_updates_sent, stats.tls_key_updates_received), (10, 10, 0));
    pair.assert_alive();
}

/// The server has nothing to say: the request does not wait for its next record.
#[test]
fn a_new_key_is_asked_for_at_half_of_the_limit_of_the_peer() {
    let mut pair = limited(8);
    for _ in 0..20 {
        pair.client.writer().write_all(b"data").unwrap();
        let sent = pair.sent_by_client();
        let (next, wire) = pair.give(&sent);
        assert_eq!(next, Next::More);
        pair.answer(&wire);
    }
    assert_eq!(pair.heard, b"data".repeat(20));
    let stats = pair.server.stats();
    assert_eq!((stats.tls_rekeys, stats.tls_key_updates_received), (5, 4), "one request for each key");
    pair.assert_alive();
}

#[test]
fn a_peer_that_uses_up_its_key_is_sent_close_notify() {
    let mut raw = Raw::of(limited(8));
    let record: Vec<u8> = (0..3).flat_map(|_| raw.seal(&data(b"x"))).collect();
    assert_eq!(raw.give(&record), (Next::More, Vec::new()));
    let record = raw.seal(&data(b"x"));
    assert_eq!(raw.give(&record), (Next::More, vec![key_update(1)]));
    raw.server_updated();
    let record: Vec<u8> = (0..4).flat_map(|_| raw.seal(&data(b"x"))).collect();
    assert_eq!(raw.give(&record), (Next::More, Vec::new()));
    let record = raw.seal(&data(b"y"));
    assert_eq!(raw.give(&record), (Next::Failed, vec![vec![1, 0, 21]]));
    assert_eq!((&raw.pair.heard[..], raw.pair.server.stage(SLOT)), (&b"xxxxxxxx"[..], Stage::Failed));
}

#[test]
#[should_panic(expected = "a KeyUpdate or the end was due long ago")]
fn no_key_seals_more_records_than_its_limit() {
    let mut pair = limited(8);
    for _ in 0..9 {
        pair.server.seal(SLOT, b"data", &mut Vec::new());
    }
}

/// A server whose state is taken out, to be put back for each attempt.
struct Attempts {
    raw: Raw,
    state: Vec<u8>,
}

impl Attempts {
    fn new() -> Attempts {
        let mut raw = Raw::new();
        let state = raw.pair.server.export(SLOT);
        Attempts { raw, state }
    }

    /// Result of these bytes, the plaintext, and the alert if it failed.
    fn give(&mut self, bytes: &[u8]) -> (Next, Vec<u8>, Option<u8>) {
        let pair = &mut self.raw.pair;
        pair.server.import(SLOT, Port::Endpoint, &mut self.state.clone());
        pair.rest.clear();
        pair.heard.clear();
        let (next, wire) = pair.give(bytes);
        let heard = std::mem::take(&mut pair.heard);
        let seq = self.raw.read.seq;
        let described = self.raw.open(&wire).first().map(|inner| inner[1]);
        self.raw.read.seq = seq;
        (next, heard, described)
    }
}

#[test]
fn a_record_with_any_bit_changed_does_not_open() {
    let mut attempts = Attempts::new();
    let record = attempts.raw.seal(&data(b"a secret"));
    assert_eq!(attempts.give(&record), (Next::More, b"a secret".to_vec(), None));
    for bit in 0..record.len() * 8 {
        let mut changed = record.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let (next, heard, described) = attempts.give(&changed);
        assert!(heard.is_empty(), "bit {bit}");
        let longer = changed[3..5] > record[3..5];
        match bit / 8 {
            0 => assert_eq!((next, described), (Next::Failed, Some(10)), "bit {bit}"),
            3 if changed[3] >= 0x41 => assert_eq!((next, described), (Next::Failed, Some(22)), "bit {bit}"),
            3 | 4 if longer => assert_eq!((next, described), (Next::More, None), "bit {bit}"),
            _ => assert_eq!((next, described), (Next::Failed, Some(20)), "bit {bit}"),
        }
    }
}

#[test]
fn a_cut_record_waits_or_does_not_open() {
    let mut attempts = Attempts::new();
    let record = attempts.raw.seal(&data(b"a secret"));
    for len in 0..record.len() {
        assert_eq!(attempts.give(&record[..len]), (Next::More, Vec::new(), None));
        assert_eq!(attempts.raw.pair.rest, record[..len], "an incomplete record is left as it is");
        if len >= 5 {
            let mut shorter = record[..len].to_vec();
            shorter[3..5].copy_from_slice(&(len as u16 - 5).to_be_bytes());
            assert_eq!(attempts.give(&shorter), (Next::Failed, Vec::new(), Some(20)), "{len}");
        }
    }
}

#[test]
fn repeated_exchanged_left_out_and_foreign_records_do_not_open() {
    let mut attempts = Attempts::new();
    let (a, b) = (attempts.raw.seal(&data(b"a")), attempts.raw.seal(&data(b"b")));
    let foreign = Raw::new().seal(&data(b"a"));
    let mut give = |records: &[&[u8]]| attempts.give(&records.concat());
    assert_eq!(give(&[&a, &b]), (Next::More, b"ab".to_vec(), None));
    assert_eq!(give(&[&a, &a]), (Next::Failed, b"a".to_vec(), Some(20)));
    assert_eq!(give(&[&b, &a]), (Next::Failed, Vec::new(), Some(20)));
    assert_eq!(give(&[&b]), (Next::Failed, Vec::new(), Some(20)));
    assert_eq!(give(&[&foreign, &a]), (Next::Failed, Vec::new(), Some(20)));
}

#[test]
fn records_may_be_split_anywhere() {
    let mut attempts = Attempts::new();
    let records =
        [data(b"one"), [&data(b"two")[..], &[0; 9]].concat(), key_update(0)].map(|inner| attempts.raw.seal(&inner));
    attempts.raw.update();
    let bytes = [&records.concat()[..], &attempts.raw.seal(&data(b"three"))].concat();
    for at in 0..=bytes.len() {
        let pair = &mut attempts.raw.pair;
        pair.server.import(SLOT, Port::Endpoint, &mut attempts.state.clone());
        pair.heard.clear();
        for part in [&bytes[..at], &bytes[at..]] {
            assert_eq!(pair.give(part), (Next::More, Vec::new()), "{at}");
        }
        assert_eq!((&pair.heard[..], pair.rest.len()), (&b"onetwothree"[..], 0), "{at}");
    }
}

#[test]
fn records_taken_back_are_never_seen_and_their_numbers_used_again() {
    for suite in every_suite() {
        let mut pair = Pair::established(suite);
        let seal = |pair: &mut Pair, plain: &[u8]| {
            let mut wire = Vec::new();
            pair.server.seal(SLOT, plain, &mut wire);
            wire
        };
        let (a, _b) = (seal(&mut pair, b"a"), seal(&mut pair, b"b"));
        pair.server.rewind(SLOT, 1);
        let (c, _d) = (seal(&mut pair, b"c"), seal(&mut pair, b"d"));
        pair.server.close_notify(SLOT, &mut Vec::new());
        pair.server.rewind(SLOT, 2);
        let e = seal(&mut pair, b"e");
        pair.answer(&[a, c, e].concat());
        assert_eq!(pair.told, b"ace");
        pair.assert_alive();
    }
}

#[test]
#[should_panic(expected = "2 records to take back of 1")]
fn nothing_is_taken_back_behind_a_control_record() {
    let mut pair = Pair::established(SUITES[0]);
    pair.server.seal(SLOT, b"a", &mut Vec::new());
    pair.client.refresh_traffic_keys().unwrap();
    pair.client_says(b"x");
    pair.server.control(SLOT, &mut Vec::new());
    pair.server.seal(SLOT, b"b", &mut Vec::new());
    pair.server.rewind(SLOT, 2);
}

#[test]
fn records_without_data_are_bounded() {
    let (update, empty, canceled) = (key_update(0), data(b""), vec![1, 90, 21]);
    for inner in [update, empty, canceled] {
        let mut raw = Raw::new();
        let updates = u64::from(inner[0] == 24);
        for _ in 0..2 {
            for _ in 0..32 {
                let record = raw.seal(&inner);
                assert_eq!(raw.give(&record), (Next::More, Vec::new()));
                (0..updates).for_each(|_| raw.update());
            }
            let record = raw.seal(&data(b"data"));
            assert_eq!(raw.give(&record), (Next::More, Vec::new()));
        }
        assert_eq!((&raw.pair.heard[..], raw.pair.server.stats().tls_updates_refused), (&b"datadata"[..], 0));
        let mut last = (Next::More, Vec::new());
        for _ in 0..33 {
            assert_eq!(last, (Next::More, Vec::new()));
            let record = raw.seal(&inner);
            last = raw.give(&record);
            (0..updates).for_each(|_| raw.update());
        }
        assert_eq!(last, (Next::Failed, vec![alert(10)]));
        let stats = raw.pair.server.stats();
        assert_eq!((stats.tls_updates_refused, stats.tls_key_updates_received), (1, 96 * updates));
    }
}

#[test]
fn after_close_notify_of_the_peer_data_can_still_be_sealed() {
    let mut pair = Pair::established(SUITES[0]);
    pair.client_says(b"last words");
    pair.client.send_close_notify();
    let mut bytes = pair.sent_by_client();
    bytes.extend_from_slice(b"anything behind it");
    assert!(!pair.server.peer_closed(SLOT));
    assert_eq!(pair.give(&bytes), (Next::More, Vec::new()));
    assert!(pair.server.peer_closed(SLOT));
    assert_eq!((&pair.heard[..], pair.rest.len()), (&b"last words"[..], 0));
    assert_eq!(pair.give(b"and later"), (Next::More, Vec::new()));
    pair.server_says(b"goodbye");
    let mut wire = Vec::new();
    pair.server.close_notify(SLOT, &mut wire);
    pair.answer(&wire);
    assert_eq!(pair.told, b"goodbye");
    assert!(pair.client.process_new_packets().unwrap().peer_has_closed());
    assert_eq!(pair.server.stage(SLOT), Stage::Established);
}
