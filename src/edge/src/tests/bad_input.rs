//! Invalid input of clients, and the documented answer to each: a close code, or a status with its errno.

use machine::CloseReason;
use machine::ids::{Chid, Uaid};

use super::*;

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ws::write_masked(&mut out, Opcode::Text, [1, 2, 3, 4], payload);
    out[0] = first;
    out
}

#[test]
fn frames_and_messages_of_a_session() {
    let many_acks = format!(
        r#"{{"messageType":"ack","updates":[{}]}}"#,
        vec![r#"{"channelID":"deadbeef000040008000000000000001","version":""}"#; 1100].join(",")
    );
    let cases: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("unmasked", b"\x81\x02{}".to_vec(), 1002, "Protocol"),
        ("reserved bit", masked(0xc1, b"{}"), 1002, "Protocol"),
        ("reserved opcode", masked(0x83, b"{}"), 1002, "Protocol"),
        ("continuation of nothing", masked(0x80, b"{}"), 1002, "Protocol"),
        ("fragmented ping", masked(0x09, b""), 1002, "Protocol"),
        ("long ping", masked(0x89, &[0; 126]), 1002, "Protocol"),
        ("text inside a fragmented text", [masked(0x01, b"{"), masked(0x81, b"}")].concat(), 1002, "Protocol"),
        ("close of one byte", masked(0x88, b"x"), 1002, "Protocol"),
        ("close with a forbidden code", masked(0x88, &1005u16.to_be_bytes()), 1002, "Protocol"),
        ("garbage", vec![0xff; 40], 1002, "Protocol"),
        ("binary", masked(0x82, b"{}"), 1003, "UnsupportedMessage"),
        ("fragmented binary", masked(0x02, b"{}"), 1003, "UnsupportedMessage"),
        ("no UTF-8", masked(0x81, b"\xff\xfe"), 1007, "Utf8"),
        ("close reason that is no UTF-8", masked(0x88, b"\x03\xe8\xff"), 1007, "Utf8"),
        ("too big", masked(0x81, &[b' '; ws::MESSAGE_BYTES_MAX + 1]), 1009, "TooBig"),
        (
            "too big in fragments",
            [masked(0x01, &[b' '; 40_000]), masked(0x00, &[b' '; 40_000])].concat(),
            1009,
            "TooBig",
        ),
        ("no JSON", masked(0x81, b"hello"), 1011, "Json"),
        ("an array", masked(0x81, b"[{}]"), 1011, "Json"),
        ("null", masked(0x81, b"null"), 1011, "Json"),
        ("nothing", masked(0x81, b""), 1011, "Json"),
        ("unknown type", masked(0x81, br#"{"messageType":"dance"}"#), 1011, "Json"),
        ("missing field", masked(0x81, br#"{"messageType":"ack"}"#), 1011, "Json"),
        ("nested beyond reason", masked(0x81, "[".repeat(60_000).as_bytes()), 1011, "Json"),
        ("too many acks", masked(0x81, &many_acks.as_bytes()[..many_acks.len().min(60_000)]), 1011, "Json"),
        ("hello twice", masked(0x81, br#"{"messageType":"hello"}"#), 1011, "SM"),
        (
            "channel in capitals",
            masked(0x81, br#"{"messageType":"register","channelID":"DEADBEEF-0000-4000-8000-000000000001"}"#),
            1011,
            "SM",
        ),
        (
            "channel undashed",
            masked(0x81, br#"{"messageType":"register","channelID":"deadbeef000040008000000000000001"}"#),
            1011,
            "SM",
        ),
        ("channel that is none", masked(0x81, br#"{"messageType":"register","channelID":"x"}"#), 1011, "SM"),
    ];
    for (name, bytes, code, reason) in cases {
        let mut harness = Harness::greeted();
        harness.feed(&bytes);
        assert_eq!(harness.goodbye(), (code, reason.to_string()), "{name}");
        assert!(harness.commands.is_empty() && harness.ended(), "{name}");
        let stats = harness.edge.stats();
        let counted = stats.frames_refused + stats.messages_refused + stats.messages_misplaced;
        assert_eq!((counted, stats.websocket_closes), (1, 1), "{name}");
    }
}

#[test]
fn anything_but_hello_comes_first() {
    for message in ["{}", r#"{"messageType":"ping"}"#, r#"{"messageType":"ack","updates":[]}"#] {
        let mut harness = Harness::new(Port::WebSocket);
        harness.feed(UPGRADE.as_bytes()).feed_text(message);
        assert_eq!(harness.goodbye(), (1011, "SM".to_string()), "{message}");
    }
}

#[test]
fn every_reason_has_its_goodbye() {
    for (reason, goodbye) in [
        (CloseReason::HandshakeTimeout, Some((1011, "HandshakeTimeout"))),
        (CloseReason::PongTimeout, Some((1011, "PongTimeout"))),
        (CloseReason::MessageTimeout, Some((1008, "MessageTimeout"))),
        (CloseReason::NotReading, Some((1008, "NotReading"))),
        (CloseReason::PingTooSoon, Some((4774, "PingTooSoon"))),
        (CloseReason::Superseded, Some((1011, "SM"))),
        (CloseReason::Reset, Some((1000, "SM"))),
        (CloseReason::Draining, Some((1001, "GoingAway"))),
        (CloseReason::Overloaded, Some((1013, "Overloaded"))),
        (CloseReason::MoveFailed, Some((1013, "Overloaded"))),
        (CloseReason::PeerClosed, None),
        (CloseReason::Said, None),
    ] {
        let mut harness = Harness::greeted();
        harness.close(reason);
        match goodbye {
            Some((code, text)) => assert_eq!(harness.goodbye(), (code, text.to_string())),
            None => assert!(harness.steps.is_empty()),
        }
    }
}

#[test]
fn heads_on_every_port() {
    for port in [Port::WebSocket, Port::Endpoint, Port::Node] {
        for (bytes, status) in [
            (&b"\x16\x03\x01\x02\x00\x01"[..], 400),
            (b"hello\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\n\n", 400),
            (b"GET /health HTTP/2.0\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
            (b"POST /health HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
            (b"POST /health HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        ] {
            let mut harness = Harness::new(port);
            harness.feed(bytes);
            assert_eq!(harness.fault(), (status, None), "{port:?} {}", String::from_utf8_lossy(bytes));
            assert!(harness.response().1.contains("Connection: close") && harness.ended());
            assert_eq!(harness.edge.stats().http_malformed, 1);
        }
        // Only where old user agents may connect without one (PROTOCOL.md 1.1).
        let mut harness = Harness::new(port);
        harness.feed(b"GET /health HTTP/1.1\r\n\r\n");
        assert_eq!(harness.response().0, if port == Port::WebSocket { 200 } else { 400 });
        let mut harness = Harness::new(port);
        harness.feed(b"GET / HTTP/1.1\r\nHost: h\r\nA: ").feed(&[b'x'; 17_000]);
        assert_eq!(harness.fault(), (431, None));
        let mut harness = Harness::new(port);
        harness.feed(b"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(harness.statuses(), [404, 404]);
        assert_eq!(harness.edge.stats().http_not_found, 2);
    }
}

#[test]
fn upgrades_that_are_refused() {
    for (from, to, status) in [
        ("Upgrade: websocket", "Upgrade: h2c", 400),
        ("Version: 13", "Version: 99", 426),
        ("Upgrade: websocket\r\n", "", 400),
        ("Sec-WebSocket-Key", "X", 400),
        ("keep-alive, Upgrade", "keep-alive", 400),
    ] {
        let mut harness = Harness::new(Port::WebSocket);
        harness.feed(UPGRADE.replace(from, to).as_bytes());
        assert_eq!(harness.fault(), (status, None), "{from}");
        // A proxy that speaks HTTP/2 must have no `Upgrade` field to pass on that its client did not send.
        for field in ["Upgrade: websocket", "Sec-WebSocket-Version: 13"] {
            assert_eq!(harness.response().1.contains(field), status == 426, "{from}: {field}");
        }
        assert!(harness.ended());
        assert_eq!(harness.edge.stats().upgrades_refused, 1);
    }
    let mut harness = Harness::new(Port::WebSocket);
    harness.feed(UPGRADE.replace("GET", "POST").as_bytes());
    assert_eq!(harness.fault(), (405, None));
}

#[test]
fn private_paths_are_not_on_other_ports() {
    for (port, request) in [
        (Port::WebSocket, "PUT /notif/deadbeef000040008000000000000001 HTTP/1.1\r\nHost: h\r\n\r\n"),
        (Port::Endpoint, "PUT /notif/deadbeef000040008000000000000001 HTTP/1.1\r\nHost: h\r\n\r\n"),
        (Port::WebSocket, "POST /wpush/v1/x HTTP/1.1\r\nHost: h\r\n\r\n"),
        (Port::Node, "POST /wpush/v1/x HTTP/1.1\r\nHost: h\r\n\r\n"),
        (Port::Endpoint, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ] {
        let mut harness = Harness::new(port);
        harness.feed(request.as_bytes());
        assert_eq!(harness.fault(), (404, None), "{request}");
    }
}

#[test]
fn tokens_of_another_key() {
    let mut strangers = Tokens::new(&base(ORIGIN), TokenForm::Short, &[OTHER_KEY.to_string()]).unwrap();
    let url = url(&mut strangers, &Subscription { uaid: Uaid([1; 16]), chid: Chid([2; 16]), key: None });
    let path = url.strip_prefix(ORIGIN).unwrap();
    let long = format!("/wpush/v1/{}", "A".repeat(5000));
    for path in [path, "/wpush/v1/", "/wpush/", "/wpush/v1/nonsense", "/wpush/v3/x", "/wpush/v1/a/b", &long] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(format!("POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 1\r\nContent-Length: 0\r\n\r\n").as_bytes());
        assert_eq!(harness.fault(), (404, Some(102)), "{path}");
        assert!(!harness.ended());
        assert_eq!(harness.edge.stats().posts_no_endpoint, 1);
    }
}

#[test]
fn slow_senders_are_told_before_they_are_ended() {
    let mut harness = Harness::new(Port::Endpoint);
    harness.close(CloseReason::Idle);
    assert!(harness.steps.is_empty());
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(b"POST /wpush/v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
    assert!(harness.edge.mid_request(&harness.codec));
    harness.close(CloseReason::Idle);
    assert_eq!(harness.fault(), (408, None));
}
