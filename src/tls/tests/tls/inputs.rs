//! Bad input, and the alert that it gets.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

use runtime::ports::Port;
use runtime::tls::{Next, Stage, Tls as _};
use rustls::pki_types::ServerName;
use rustls::server::ServerSessionMemoryCache;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind, KeyLog, ServerConfig, ServerConnection,
};
use tls::ShardTls;

use crate::peer::{Pair, Papers, SLOT, SUITES, alerts_and_failures, completed, sum};
use crate::raw::{Half, Raw, alert, data, key_update};

#[test]
fn inner_plaintexts_that_break_a_rule() {
    let long = data(&[7; 16_385]);
    let padded = [&data(b"x")[..], &[0; 16_384]].concat();
    let update_and_more = [&key_update(0)[..5], &[24, 22]].concat();
    let two_updates = [&key_update(0)[..5], &key_update(0)].concat();
    let table: [(&str, &[u8], u8); 16] = [
        ("no type", &[], 10),
        ("zeros only", &[0; 20], 10),
        ("longer than 2^14", &long, 22),
        ("padded to more than 2^14", &padded, 22),
        ("unknown type", &[1, 99], 10),
        ("heartbeat", &[1, 0, 0, 24], 10),
        ("ChangeCipherSpec", &[1, 20], 10),
        ("empty handshake", &[22], 10),
        ("ClientHello", &[1, 0, 0, 1, 0, 22], 10),
        ("half a KeyUpdate", &[24, 0, 0, 22], 10),
        ("bytes behind a KeyUpdate", &update_and_more, 10),
        ("two KeyUpdates", &two_updates, 10),
        ("KeyUpdate 2", &[24, 0, 0, 1, 2, 22], 47),
        ("empty alert", &[21], 10),
        ("alert of one byte", &[2, 21], 50),
        ("alert of three bytes", &[2, 40, 40, 21], 50),
    ];
    for (name, inner, number) in table {
        let mut raw = Raw::new();
        let bytes = [raw.seal(&data(b"before")), raw.seal(inner), raw.seal(&data(b"behind"))].concat();
        assert_eq!(raw.give(&bytes), (Next::Failed, vec![alert(number)]), "{name}");
        assert_eq!((&raw.pair.heard[..], raw.pair.server.stage(SLOT)), (&b"before"[..], Stage::Failed), "{name}");
        assert_eq!(raw.give(&bytes), (Next::Failed, Vec::new()), "{name}: nothing more is said");
        let stats = raw.pair.server.stats();
        assert_eq!((alerts_and_failures(stats), stats.tls_alerts_received), ((1, 0), 0), "{name}");
    }
}

#[test]
fn records_as_long_as_the_rules_allow_are_opened() {
    for inner in [data(&[7; 16_384]), [&data(b"x")[..], &[0; 16_383]].concat()] {
        let mut raw = Raw::new();
        let bytes = raw.seal(&inner);
        assert_eq!(raw.give(&bytes), (Next::More, Vec::new()));
        assert!(!raw.pair.heard.is_empty());
    }
}

#[test]
fn records_that_break_a_rule_by_their_header() {
    let table: [(&str, &[u8], u8); 8] = [
        ("ChangeCipherSpec", &[20, 3, 3, 0, 1, 1], 10),
        ("alert in the clear", &[21, 3, 3, 0, 2, 2, 40], 10),
        ("handshake in the clear", &[22, 3, 3, 0, 4, 1, 0, 0, 0], 10),
        ("heartbeat", &[24, 3, 3, 0, 1], 10),
        ("unknown type", &[99, 3, 3, 0, 1], 10),
        ("no body", &[23, 3, 3, 0, 0], 20),
        ("no room for a tag", &[23, 3, 3, 0, 3, 1, 2, 3], 20),
        ("longer than 2^14 + 256", &[23, 3, 3, 0x41, 1], 22),
    ];
    for (name, bytes, number) in table {
        let mut raw = Raw::new();
        assert_eq!(raw.give(bytes), (Next::Failed, vec![alert(number)]), "{name}");
    }
    let mut raw = Raw::new();
    assert_eq!(raw.give(&[23, 3, 3, 0x41, 0]), (Next::More, Vec::new()));
}

#[test]
fn a_fatal_alert_of_the_peer_is_not_answered() {
    for inner in [alert(42), vec![1, 42, 21], alert(90 + 1)] {
        let mut raw = Raw::new();
        let bytes = [raw.seal(&data(b"before")), raw.seal(&inner)].concat();
        assert_eq!(raw.give(&bytes), (Next::Failed, Vec::new()));
        assert_eq!(raw.pair.heard, b"before");
        let stats = raw.pair.server.stats();
        assert_eq!((alerts_and_failures(stats), stats.tls_alerts_received), ((0, 0), 1));
    }
}

fn server_of(papers: &Papers) -> ShardTls {
    ShardTls::new(Some(papers.server(&[1])), None)
}

#[test]
fn bytes_that_are_no_tls() {
    let papers = Papers::local();
    let alert_50 = vec![21, 3, 3, 0, 2, 2, 50];
    for bytes in [&b"\x80\x2e\x01\x03\x01"[..], b"\x17\x03\x03\x00\x05", b"\x16\x03\x01\xff\xff", b"SSH-2.0-x\r\n"] {
        let mut server = server_of(&papers);
        server.open(SLOT, Port::Endpoint);
        let mut wire = Vec::new();
        let received = server.receive(SLOT, &mut bytes.to_vec(), &mut wire);
        assert_eq!((received.next, received.consumed, &wire), (Next::Failed, bytes.len(), &alert_50), "{bytes:?}");
        let stats = server.stats();
        assert_eq!((stats.tls_not_tls, stats.tls_alerts_sent_decode_error), (1, 1));
        assert_eq!(alerts_and_failures(stats), (1, 0));
    }
}

#[test]
fn a_plain_http_request_is_told_to_use_https() {
    let papers = Papers::local();
    let config = Arc::new(papers.client(&SUITES));
    let request = b"POST /wpush/v2/x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for parts in [vec![&request[..]], request.chunks(1).collect()] {
        let mut pair = Pair::new(server_of(&papers), &config, "localhost");
        let answers: Vec<_> = parts.iter().map(|part| pair.give(part)).collect();
        let said: Vec<u8> = answers.iter().flat_map(|(_, wire)| wire.clone()).collect();
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with("HTTP/1.1 400 Bad Request\r\n") && said.contains("https://"), "{said}");
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{said}");
        assert_eq!((answers.last().unwrap().0, pair.server.stats().tls_not_tls), (Next::Failed, 1));
    }
}

/// Gives the client's bytes of one flight to a server, and returns the alert that the client reads.
pub fn alert_to(pair: &mut Pair, bytes: &[u8]) -> AlertDescription {
    let (next, wire) = pair.give(bytes);
    assert_eq!((next, pair.server.stage(SLOT)), (Next::Failed, Stage::Failed));
    let stats = pair.server.stats();
    assert_eq!((completed(stats), alerts_and_failures(stats)), (0, (1, 1)));
    assert_eq!((stats.tls_not_tls, stats.tls_handshakes_in_flight), (0, 0));
    pair.client.read_tls(&mut &wire[..]).unwrap();
    let Err(Error::AlertReceived(alert)) = pair.client.process_new_packets() else { panic!("no alert") };
    let (name, reason) = match alert {
        AlertDescription::ProtocolVersion => ("protocol_version", "version"),
        AlertDescription::HandshakeFailure => ("handshake_failure", "parameters"),
        AlertDescription::NoApplicationProtocol => ("no_application_protocol", "protocol"),
        AlertDescription::BadRecordMac => ("bad_record_mac", "record"),
        AlertDescription::RecordOverflow => ("record_overflow", "record"),
        AlertDescription::IllegalParameter => ("illegal_parameter", "message"),
        AlertDescription::DecodeError => ("decode_error", "message"),
        AlertDescription::DecryptError => ("decrypt_error", "message"),
        other => panic!("{other:?}"),
    };
    let stats = pair.server.stats();
    for name in [format!("tls_alerts_sent_{name}"), format!("tls_handshakes_failed_{reason}")] {
        assert_eq!(sum(stats, &name), 1, "{name}");
    }
    alert
}

fn alert_to_hello(config: ClientConfig, papers: &Papers, change: impl FnOnce(&mut Vec<u8>)) -> AlertDescription {
    let mut pair = Pair::new(server_of(papers), &Arc::new(config), "localhost");
    let mut hello = pair.sent_by_client();
    change(&mut hello);
    alert_to(&mut pair, &hello)
}

/// Makes a ClientHello of this older version without extensions.
fn without_extensions(hello: &mut Vec<u8>, minor: u8) {
    let suites = usize::from(u16::from_be_bytes([hello[76], hello[77]]));
    hello.truncate(78 + suites + 2);
    hello[10] = minor;
    let (record, message) = ((hello.len() - 5) as u16, (hello.len() - 9) as u16);
    hello[3..5].copy_from_slice(&record.to_be_bytes());
    hello[7..9].copy_from_slice(&message.to_be_bytes());
}

/// A ticket whose binder is wrong is no record that does not open.
#[test]
fn a_wrong_binder_gets_decrypt_error_and_fails_as_a_message() {
    let papers = Papers::local();
    let config = Arc::new(papers.client(&SUITES));
    let mut pair = Pair::new(server_of(&papers), &config, "localhost");
    pair.shake();
    pair.assert_alive();
    let mut pair = Pair::new(server_of(&papers), &config, "localhost");
    let mut hello = pair.sent_by_client();
    *hello.last_mut().unwrap() ^= 1;
    assert_eq!(alert_to(&mut pair, &hello), AlertDescription::DecryptError);
}

#[test]
fn hellos_without_a_common_version_suite_or_protocol() {
    let papers = Papers::local();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let old = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS12]);
    let old = old.unwrap().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    assert_eq!(alert_to_hello(old, &papers, |_| ()), AlertDescription::ProtocolVersion);

    // 5 of the record, 4 of the message, 2 of the version, 32 random, 33 session id: then the length of the suites.
    let unknown_suites = |hello: &mut Vec<u8>| {
        let suites = usize::from(u16::from_be_bytes([hello[76], hello[77]]));
        hello[78..78 + suites].fill(0x7a);
    };
    let alert = alert_to_hello(papers.client(&SUITES), &papers, unknown_suites);
    assert_eq!(alert, AlertDescription::HandshakeFailure);

    // The versions of TLS 1.0 and 1.1, and no extensions.
    for minor in [1, 2] {
        let alert = alert_to_hello(papers.client(&SUITES), &papers, |hello| without_extensions(hello, minor));
        assert_eq!(alert, AlertDescription::ProtocolVersion);
    }

    let mut http2 = papers.client(&SUITES);
    http2.alpn_protocols = vec![b"h2".to_vec()];
    assert_eq!(alert_to_hello(http2, &papers, |_| ()), AlertDescription::NoApplicationProtocol);

    // Also if the head of the message comes in another record than its version.
    for part in 1..=6 {
        let torn = |hello: &mut Vec<u8>| {
            without_extensions(hello, 2);
            let rest = hello.split_off(5 + part);
            hello[3..5].copy_from_slice(&(part as u16).to_be_bytes());
            hello.extend_from_slice(&[22, 3, 1]);
            hello.extend_from_slice(&(rest.len() as u16).to_be_bytes());
            hello.extend_from_slice(&rest);
        };
        let alert = alert_to_hello(papers.client(&SUITES), &papers, torn);
        assert_eq!(alert, AlertDescription::ProtocolVersion, "{part} bytes");
    }

    let cut = |hello: &mut Vec<u8>| hello[8] -= 1;
    assert_eq!(alert_to_hello(papers.client(&SUITES), &papers, cut), AlertDescription::DecodeError);

    let mut both = papers.client(&SUITES);
    both.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut pair = Pair::new(server_of(&papers), &Arc::new(both), "localhost");
    pair.shake();
    assert_eq!(pair.client.alpn_protocol(), Some(&b"http/1.1"[..]));
}

/// A pair in which the client has the server's flight, and the client's second flight.
fn half_way(papers: &Papers) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(server_of(papers), &Arc::new(papers.client(&SUITES)), "localhost");
    let hello = pair.sent_by_client();
    let (_, wire) = pair.give(&hello);
    pair.answer(&wire);
    let flight = pair.sent_by_client();
    (pair, flight)
}

#[test]
fn a_changed_finished_or_a_record_that_is_too_long_ends_the_handshake() {
    let papers = Papers::local();
    let (mut pair, mut flight) = half_way(&papers);
    *flight.last_mut().unwrap() ^= 1;
    assert_eq!(alert_to(&mut pair, &flight), AlertDescription::BadRecordMac);

    let (mut pair, flight) = half_way(&papers);
    let too_long = [&flight[..6], &[23, 3, 3, 0x41, 1]].concat();
    assert_eq!(alert_to(&mut pair, &too_long), AlertDescription::RecordOverflow);

    // Before the server has answered, the alert is in the clear.
    let mut pair = Pair::new(server_of(&papers), &Arc::new(papers.client(&SUITES)), "localhost");
    let hello = pair.sent_by_client();
    let part = [&[22, 3, 1, 0, 20], &hello[5..25], &[22, 3, 1, 0x41, 1]].concat();
    assert_eq!(alert_to(&mut pair, &part), AlertDescription::RecordOverflow);
}

#[test]
fn an_alert_or_a_flood_during_the_handshake_is_not_answered() {
    let papers = Papers::local();
    let config = Arc::new(papers.client(&SUITES));
    let mut pair = Pair::new(server_of(&papers), &config, "localhost");
    let hello = pair.sent_by_client();
    let _ = pair.give(&hello);
    assert_eq!(pair.give(&[21, 3, 3, 0, 2, 2, 48]), (Next::Failed, Vec::new()));
    let stats = pair.server.stats();
    assert_eq!((stats.tls_handshakes_failed_alert_received, stats.tls_alerts_received), (1, 1));
    assert_eq!(alerts_and_failures(stats), (0, 1));

    // The head of a ClientHello of 64,000 bytes, and its start.
    let mut pair = Pair::new(server_of(&papers), &config, "localhost");
    let part = [&[22, 3, 1, 0x20, 0, 1, 0, 0xfa, 0], &[0; 8_188][..]].concat();
    assert_eq!(pair.give(&part), (Next::More, Vec::new()));
    assert_eq!(pair.give(&part), (Next::Failed, Vec::new()));
    let stats = pair.server.stats();
    assert_eq!((stats.tls_handshakes_failed_flood, alerts_and_failures(stats)), (1, (0, 1)));
}

/// A client that has a ticket for early data of another server with the same name.
fn client_with_early_data(papers: &Papers, record: Option<usize>) -> Arc<ClientConfig> {
    let mut config = papers.client(&SUITES);
    config.enable_early_data = true;
    config.max_fragment_size = record;
    let config = Arc::new(config);
    let name = ServerName::try_from("localhost").unwrap();
    let mut other = ServerConfig::clone(&papers.server(&[]).config());
    other.max_early_data_size = 20_000;
    other.session_storage = ServerSessionMemoryCache::new(9);
    other.send_tls13_tickets = 1;
    let mut server = ServerConnection::new(Arc::new(other)).unwrap();
    let mut client = ClientConnection::new(Arc::clone(&config), name).unwrap();
    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    config
}

/// A connection whose client has sent early data of this size in records of this size.
fn early(papers: &Papers, size: usize, record: Option<usize>) -> Pair {
    let config = client_with_early_data(papers, record);
    let mut pair = Pair::new(server_of(papers), &config, "localhost");
    pair.client.early_data().expect("a ticket for early data").write_all(&vec![7; size]).unwrap();
    pair
}

#[test]
fn early_data_is_skipped_and_the_handshake_goes_on() {
    let papers = Papers::local();
    // 17 bytes of each record are its type and its tag.
    for (size, record) in [(900, None), (8_192, None), (16_367, None), (6_000, Some(1_500)), (15_000, Some(1_500))] {
        let mut pair = early(&papers, size, record);
        pair.shake();
        assert_eq!(pair.client.handshake_kind(), Some(HandshakeKind::Full), "{size}");
        assert!(!pair.client.is_early_data_accepted() && pair.heard.is_empty(), "{size}");
        pair.assert_alive();
    }
}

#[test]
fn early_data_beyond_the_bound_gets_alert_20() {
    let papers = Papers::local();
    for (size, record) in [(16_368, None), (16_300, Some(1_500))] {
        let mut pair = early(&papers, size, record);
        let hello = pair.sent_by_client();
        assert_eq!(alert_to(&mut pair, &hello), AlertDescription::BadRecordMac, "{size}");
    }
    // Records without content would not use up the bound.
    let mut pair = early(&papers, 1, None);
    let hello = [&pair.sent_by_client()[..], &[23, 3, 3, 0, 0]].concat();
    assert_eq!(alert_to(&mut pair, &hello), AlertDescription::BadRecordMac);
}

#[test]
fn the_finished_of_the_client_may_be_cut_into_records() {
    let papers = Papers::local();
    let mut config = papers.client(&SUITES);
    config.max_fragment_size = Some(37);
    let mut pair = Pair::new(server_of(&papers), &Arc::new(config), "localhost");
    pair.shake();
    pair.assert_alive();
    // Behind early data, too.
    let mut pair = early(&papers, 300, Some(37));
    pair.shake();
    pair.assert_alive();
}

/// Keeps the secret with which a client seals its second flight.
#[derive(Debug, Default)]
struct SecondFlight(Mutex<Vec<u8>>);

impl KeyLog for SecondFlight {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == "CLIENT_HANDSHAKE_TRAFFIC_SECRET" {
            *self.0.lock().unwrap() = secret.to_vec();
        }
    }
}

/// Early data is over with the first record that opens. Here it is a warning, and the Finished comes in two records, of
/// which the first is the longer one.
#[test]
fn a_record_behind_the_first_that_opens_is_no_early_data() {
    let (papers, log) = (Papers::local(), Arc::new(SecondFlight::default()));
    let mut config = papers.client(&SUITES[..1]);
    config.key_log = log.clone();
    let mut pair = Pair::new(server_of(&papers), &Arc::new(config), "localhost");
    let hello = pair.sent_by_client();
    let (_, wire) = pair.give(&hello);
    pair.answer(&wire);
    let flight = pair.sent_by_client();
    let secret: [u8; 32] = log.0.lock().unwrap()[..].try_into().unwrap();
    let (change_cipher_spec, finished) = flight.split_at(6);
    let finished = Half::of(secret).open(finished);
    let mut half = Half::of(secret);
    let user_canceled = half.seal(&[1, 90, 21]);
    let padded = half.seal(&[&finished[..10], &[22], &[0; 100]].concat());
    let rest = half.seal(&finished[10..]);
    for record in [change_cipher_spec, &user_canceled, &padded] {
        assert_eq!(pair.give(record), (Next::More, Vec::new()));
    }
    let (_, tickets) = pair.give(&rest);
    pair.answer(&tickets);
    pair.assert_alive();
}

#[test]
fn after_a_failure_the_client_reads_its_alert() {
    let mut pair = Pair::established(SUITES[1]);
    pair.client_says(b"data");
    let (next, wire) = pair.give(&[99; 40]);
    assert_eq!(next, Next::Failed);
    pair.client.read_tls(&mut &wire[..]).unwrap();
    let error = pair.client.process_new_packets().unwrap_err();
    assert_eq!(error, Error::AlertReceived(AlertDescription::UnexpectedMessage));
    assert!(pair.client.reader().read(&mut [0; 9]).is_err());
}
