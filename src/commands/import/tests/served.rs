//! An imported user at a running server: it keeps its UAID, gets its stored messages, and endpoint URLs that the other
//! service sealed deliver. Tokens are made here by the layout of PROTOCOL.md 2.2, not by the code under test.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;

use super::*;
use crate::node::Running;
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

fn post(address: SocketAddr, path: &str, authorization: Option<&str>, body: &str) -> String {
    let authorization = authorization.map_or(String::new(), |text| format!("authorization: {text}\r\n"));
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nttl: 60\r\ncontent-encoding: aes128gcm\r\n{authorization}\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn hear(socket: &mut Socket) -> Value {
    let heard = tokio::time::timeout(Duration::from_secs(60), socket.next()).await.expect("in time");
    serde_json::from_str(heard.unwrap().unwrap().to_text().unwrap()).unwrap()
}

async fn hello(running: &Running) -> (Socket, String) {
    let url = format!("ws://{}/", running.addresses().websocket[0]);
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    let uaid = uuid::Uuid::from_bytes(UAID).simple().to_string();
    let hello = json!({ "messageType": "hello", "use_webpush": true, "uaid": uaid });
    socket.send(tungstenite::Message::text(hello.to_string())).await.unwrap();
    let answer = hear(&mut socket).await;
    assert_eq!(answer["status"], 200);
    (socket, answer["uaid"].as_str().unwrap().to_owned())
}

fn body(note: &Value) -> String {
    String::from_utf8(BASE64.decode(note["data"].as_str().unwrap()).unwrap()).unwrap()
}

fn dashed(chid: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(chid).hyphenated().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_imported_user_keeps_its_uaid_and_old_endpoint_urls_deliver() {
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
    node::with_store(&config, |store| Ok(import.all(line.to_string().as_bytes(), store))).unwrap().unwrap();
    assert_eq!((import.summary.admitted.users_new, import.summary.admitted.rows_added), (1, 1));

    let running = node::start(&config).unwrap();
    let endpoint = running.addresses().endpoint[0];
    let sender = Identity::generate();
    let (open, locked) = (old_endpoint(OPEN, None), old_endpoint(LOCKED, Some(sender.point())));
    let stranger = old_endpoint([0xc3; 16], None);
    // Stored before its first hello, behind its imported messages.
    assert!(post(endpoint, &open, None, "before hello").starts_with("HTTP/1.1 201 "));
    let (mut socket, uaid) = hello(&running).await;
    assert_eq!(uaid, uuid::Uuid::from_bytes(UAID).simple().to_string(), "it keeps its UAID");
    for expected in ["it waited", "before hello"] {
        let note = hear(&mut socket).await;
        assert_eq!((body(&note), note["channelID"].as_str()), (expected.to_owned(), Some(&*dashed(OPEN))));
        let settled = json!({ "channelID": note["channelID"], "version": note["version"] });
        let ack = json!({ "messageType": "ack", "updates": [settled] });
        socket.send(tungstenite::Message::text(ack.to_string())).await.unwrap();
    }
    assert!(post(endpoint, &open, None, "to v1").starts_with("HTTP/1.1 201 "));
    assert_eq!(body(&hear(&mut socket).await), "to v1");
    let signed = authorization(&sender);
    assert!(post(endpoint, &locked, Some(&signed), "to v2").starts_with("HTTP/1.1 201 "));
    let note = hear(&mut socket).await;
    assert_eq!((body(&note), note["channelID"].as_str()), ("to v2".to_owned(), Some(&*dashed(LOCKED))));
    // Another sender's key, no key, and a channel that the user has not.
    let other = authorization(&Identity::generate());
    assert!(post(endpoint, &locked, Some(&other), "no").starts_with("HTTP/1.1 401 "));
    assert!(post(endpoint, &locked, None, "no").starts_with("HTTP/1.1 401 "));
    assert!(post(endpoint, &stranger, None, "no").starts_with("HTTP/1.1 410 "));

    drop(socket);
    tokio::task::spawn_blocking(move || running.stop().unwrap()).await.unwrap();
    // A second import does not bring acked messages back.
    let mut import = Import::new(&args(&[]), &mut say);
    node::with_store(&config, |store| Ok(import.all(line.to_string().as_bytes(), store))).unwrap().unwrap();
    assert_eq!((import.summary.admitted.users_new, import.summary.admitted.rows_left_out), (0, 1));
}
