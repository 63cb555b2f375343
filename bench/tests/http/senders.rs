//! Requests that senders and proxies of others make and that are valid by their RFC.

use super::{GOOD, Wire, path, receive};
use crate::common::World;

#[test]
fn lists_with_empty_elements_long_ttls_and_encoded_paths_are_taken() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let plain = path(&to);
    let encoded: String = plain.bytes().map(|b| if b == b'/' { "/".into() } else { format!("%{b:02x}") }).collect();
    let dashes = plain.replace('-', "%2D").replace('_', "%5F");
    let http2 = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    let mut wire = Wire::open(world.server.endpoint());
    for (target, ttl, lines) in [
        (&*dashes, "60", "Content-Encoding: aes128gcm\r\n"),
        (&*encoded, "60", "Content-Encoding: aes128gcm\r\n"),
        (plain, "18446744073709551615", "Content-Encoding: aes128gcm,\r\n"),
        (plain, "999999999999999999999999999999", &*format!("Content-Encoding: aes128gcm\r\n{http2}")),
        (plain, "60", "Content-Encoding: aesgcm\r\nEncryption: salt=AA,\r\nCrypto-Key: dh=BB, ,p256ecdsa=CC,\r\n"),
    ] {
        let request =
            format!("POST {target} HTTP/1.1\r\nHost: h\r\nTTL: {ttl}\r\nContent-Length: 4\r\n{lines}\r\nbody");
        let response = wire.send(&request).next().unwrap();
        assert_eq!(response.status, 201, "{request}");
        assert_eq!(response.header("ttl"), Some(if ttl == "60" { "60" } else { "2592000" }), "{request}");
        receive(&mut agent, &["body"]);
    }
    let slash = plain.replacen("/wpush/v3/", "/wpush/v3%2F", 1);
    let request = format!("POST {slash} HTTP/1.1\r\nHost: h\r\n{GOOD}Content-Length: 4\r\n\r\nbody");
    assert_eq!(wire.send(request).next().unwrap().errno(), Some(102));
    agent.silence();
}

#[test]
fn an_offer_of_http_2_gets_the_page_and_a_short_key_no_websocket() {
    let world = World::start();
    let mut wire = Wire::open(world.server.websocket());
    let get = |lines: &str| format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
    assert_eq!(
        wire.send(get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n")).status(),
        200
    );
    let handshake =
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: KEY\r\n";
    for (key, status) in [("AAAA", 400), ("dGhlIHNhbXBsZSBub25jZQ==", 101)] {
        let mut wire = Wire::open(world.server.websocket());
        assert_eq!(wire.send(get(&handshake.replace("KEY", key))).status(), status, "{key}");
    }
}
