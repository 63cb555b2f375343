//! Long request heads: VAPID of other algorithms fills some KiB, and any sender may cut a head into small pieces.

use runtime::ports::Port;

use super::endpoint::{GOOD, path, post};
use super::*;
use protocol::wire::base64url;
use protocol::wire::http1::HEAD_BYTES_MAX;

/// A POST whose head has exactly this many bytes.
fn post_of(head_bytes: usize, path: &str, headers: &str) -> Vec<u8> {
    let filled = |bytes: usize| post(path, &format!("{headers}X-Fill: {}\r\n", "y".repeat(bytes)), "body");
    filled(head_bytes - (filled(0).len() - "body".len())).into_bytes()
}

#[test]
fn heads_of_16_kib_are_served_on_every_port_of_app_servers_whole_or_in_pieces() {
    let sender = Sender::new();
    let authorization = format!("{GOOD}Authorization: vapid t={},k={}\r\n", sender.good_token(NOW + 60), sender.key());
    let path = path(Some(sender.digest()));
    for port in [Port::Endpoint, Port::Public] {
        for (bytes, statuses) in [(5_000, [201]), (HEAD_BYTES_MAX, [201]), (HEAD_BYTES_MAX + 1, [431])] {
            for piece in [usize::MAX, 1_460, 1] {
                let mut harness = Harness::new(port);
                for piece in post_of(bytes, &path, &authorization).chunks(piece) {
                    harness.feed(piece);
                }
                assert_eq!(harness.statuses(), statuses, "{port:?}, {bytes} bytes in pieces of {piece}");
            }
        }
    }
}

#[test]
fn heads_in_pieces_are_read_once() {
    let mut harness = Harness::new(Port::Endpoint);
    let head = "GET /health HTTP/1.1\r\nHost: h\r\nX-Fill: yyyyyyyyyyyyyyyy\r\n";
    harness.feed(head.as_bytes());
    // A reader that began again would find the end of the head here.
    let fill = harness.aside.len() - 10;
    harness.aside[fill..fill + 4].copy_from_slice(b"\r\n\r\n");
    harness.feed(b"\r");
    assert!(harness.steps.is_empty(), "{}", harness.written_text());
    harness.aside[fill..fill + 4].copy_from_slice(b"yyyy");
    harness.feed(b"\n");
    assert_eq!(harness.statuses(), [200]);
}

/// As senders with post-quantum signatures would write it: RFC 8292 section 3 ignores unknown parameters, and a key or
/// an algorithm that is not known here is a refusal with its reason, and never one for its size.
#[test]
fn authorizations_of_some_kib_are_judged() {
    let (sender, long) = (Sender::new(), "A".repeat(5_000));
    let (key, good) = (sender.key(), sender.good_token(NOW + 60));
    let roomy = sender.0.sign(&serde_json::json!({ "aud": ORIGIN, "exp": NOW + 60, "x": long }));
    let other_algorithm = format!("{}.e30.{long}", base64url::encode(br#"{"alg":"ML-DSA-44"}"#));
    for (headers, verdict) in [
        (format!("Authorization: vapid t={roomy}, k={key}\r\n"), None),
        (format!("Authorization: vapid t={good}, k={key}, pq={long}\r\n"), None),
        (format!("Authorization: WebPush {roomy}\r\nCrypto-Key: p256ecdsa={key}\r\n"), None),
        (format!("Authorization: vapid t={other_algorithm}, k={key}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: vapid t={good}{long}, k={key}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: vapid t={long}, k={key}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: vapid t={good}, k={long}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: WebPush {good}\r\nCrypto-Key: p256ecdsa={long}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: PQ {long}\r\n"), Some((401, Some(109)))),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(post(&path(Some(sender.digest())), &format!("{GOOD}{headers}"), "body").as_bytes());
        let start = &headers[..60];
        match verdict {
            None => assert_eq!(harness.response().0, 201, "{start}"),
            Some(verdict) => assert_eq!(harness.fault(), verdict, "{start}"),
        }
    }
}
