//! An imported user at a running server: it keeps its UAID, gets its stored messages, and endpoint URLs that the other
//! service sealed deliver. Tokens are made here by the layout of PROTOCOL.md 2.2, not by the code under test.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::json;

use super::*;
use client::agent::Agent;
use client::http::{self, Request};
use protocol::webpush::identity::Identity;

/// The key list of the other service, as its configuration had it.
const OLD_KEY: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const NEW_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const ORIGIN: &str = "https://push.example.com";
const UAID: [u8; 16] = [0xe1; 16];
const OPEN: [u8; 16] = [0xc1; 16];
const LOCKED: [u8; 16] = [0xc2; 16];

/// The path of an endpoint URL as autopush makes it: Fernet over UAID, CHID and the digest of the key; no padding.
fn old_endpoint(chid: [u8; 16], key: Option<&[u8]>) -> String {
    let digest = key.map(|key| ring::digest::digest(&ring::digest::SHA256, key));
    let plain = [&UAID[..], &chid, digest.as_ref().map_or(&[][..], |digest| digest.as_ref())].concat();
    let token = fernet::Fernet::new(OLD_KEY).unwrap().encrypt(&plain);
    format!("/wpush/v{}/{}", if key.is_some() { 2 } else { 1 }, token.trim_end_matches('='))
}

/// `Authorization` of RFC 8292 section 3.
fn authorization(sender: &Identity) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    sender.authorization(ORIGIN, now + 3_600)
}

/// Returns the status of the answer.
fn post(address: SocketAddr, path: &str, authorization: Option<&str>, body: &str) -> u16 {
    let request = Request::new("POST", path).header("Host", "x").header("TTL", "60").encrypted(body);
    let request = match authorization {
        Some(authorization) => request.header("Authorization", authorization),
        None => request,
    };
    http::exchange(address, &request).unwrap().status
}

fn dashed(chid: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(chid).hyphenated().to_string()
}

#[test]
fn an_imported_user_keeps_its_uaid_and_old_endpoint_urls_deliver() {
    let dir = tempfile::tempdir().unwrap();
    let keys = format!("endpoint.crypto_keys={NEW_KEY},{OLD_KEY}");
    let sets = [
        "websocket.listen=127.0.0.1:0",
        "endpoint.listen=127.0.0.1:0",
        "node.listen=127.0.0.1:0",
        "admin.listen=127.0.0.1:0",
        "shards.count=2",
        "delivery.ledger_bytes=4MiB",
        "max_connections=1000",
        "drain.delay=0",
        "endpoint.url=https://push.example.com",
        &keys,
    ];
    let config = config(dir.path(), &sets);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let line = json!({
        "uaid": dashed(UAID), "router_type": "webpush", "connected_at": (now - 3_600) * 1_000,
        "channels": [dashed(OPEN), dashed(LOCKED)],
        "messages": [{
            "chid": dashed(OPEN), "ttl": 86_400, "timestamp": now - 600, "sortkey_timestamp": (now - 600) * 1_000,
            "headers": { "encoding": "aes128gcm" }, "data": BASE64.encode("it waited"),
        }],
    });
    let mut say = |said| panic!("{said}");
    let mut import = Import::new(&args(&[]), &mut say);
    server::with_store(&config, |store| Ok(import.all(line.to_string().as_bytes(), store))).unwrap().unwrap();
    assert_eq!((import.summary.admitted.users_new, import.summary.admitted.rows_added), (1, 1));

    let running = server::start(&config).unwrap();
    let endpoint = running.addresses().endpoint[0];
    let sender = Identity::generate();
    let (open, locked) = (old_endpoint(OPEN, None), old_endpoint(LOCKED, Some(sender.point())));
    let stranger = old_endpoint([0xc3; 16], None);
    // Stored before its first hello, behind its imported messages.
    assert_eq!(post(endpoint, &open, None, "before hello"), 201);
    let uaid = uuid::Uuid::from_bytes(UAID).simple().to_string();
    let mut agent = Agent::connect(running.addresses().websocket[0]).unwrap();
    assert_eq!(agent.hello(Some(&uaid)).unwrap(), uaid, "it keeps its UAID");
    for expected in ["it waited", "before hello"] {
        let note = agent.note().unwrap();
        assert_eq!((note.text(), &note.channel), (expected, &dashed(OPEN)));
        agent.ack([&note]).unwrap();
    }
    assert_eq!(post(endpoint, &open, None, "to v1"), 201);
    assert_eq!(agent.note().unwrap().text(), "to v1");
    let signed = authorization(&sender);
    assert_eq!(post(endpoint, &locked, Some(&signed), "to v2"), 201);
    let note = agent.note().unwrap();
    assert_eq!((note.text(), &note.channel), ("to v2", &dashed(LOCKED)));
    // Another sender's key, no key, and a channel that the user has not.
    let other = authorization(&Identity::generate());
    assert_eq!(post(endpoint, &locked, Some(&other), "no"), 401);
    assert_eq!(post(endpoint, &locked, None, "no"), 401);
    assert_eq!(post(endpoint, &stranger, None, "no"), 410);

    drop(agent);
    running.stop().unwrap();
    // A second import does not bring acked messages back.
    let mut import = Import::new(&args(&[]), &mut say);
    server::with_store(&config, |store| Ok(import.all(line.to_string().as_bytes(), store))).unwrap().unwrap();
    assert_eq!((import.summary.admitted.users_new, import.summary.admitted.rows_left_out), (0, 1));
}
