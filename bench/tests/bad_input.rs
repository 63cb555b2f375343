//! Bad input of strangers: each case gets the documented close code or status and errno, and other sessions do not
//! notice (PROTOCOL.md 1.3 and 2.11).

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::wire::{self, Wire, masked, raw};
use crate::common::{PATIENCE, Request, Subscription, UserAgent, World};
use client::agent::{Agent, Received};
use murre_bench::frame;
use serde_json::{Value, json};

/// A session that must notice nothing, checked at the end of every test.
struct Bystander {
    agent: UserAgent,
    subscription: Subscription,
}

impl Bystander {
    fn new(world: &World) -> Bystander {
        let (agent, subscription) = world.subscriber();
        Bystander { agent, subscription }
    }

    fn is_undisturbed(&mut self, world: &mut World) {
        assert!(world.server.running(), "{}", world.server.log());
        assert_eq!(world.post(&self.subscription, 60, "still here?").status, 201);
        let note = self.agent.note();
        assert_eq!(note.text(), "still here?");
        self.agent.ack([&note]);
    }
}

/// The code a session is closed with after these bytes; 0 without a close frame.
fn closed_with(address: SocketAddr, hello_first: bool, bytes: &[u8]) -> u16 {
    let mut agent = Agent::connect(address).unwrap();
    if hello_first {
        agent.hello(None).unwrap();
    }
    agent.send_bytes(bytes).unwrap();
    last_code(&mut agent)
}

fn last_code(agent: &mut Agent) -> u16 {
    loop {
        match agent.receive(PATIENCE).unwrap() {
            Received::Message(_) => {}
            Received::Close(code) => return code,
            Received::End => return 0,
            Received::Nothing => panic!("not closed in {PATIENCE:?}"),
        }
    }
}

fn text(message: &Value) -> Vec<u8> {
    wire::text(&message.to_string())
}

#[test]
fn wrong_frames_and_messages_close_with_the_documented_code() {
    let mut world = World::start();
    let mut bystander = Bystander::new(&world);
    let address = world.server.websocket();
    let mut huge = Vec::new();
    frame::push_header(&mut huge, 0x81, 1 << 40, 0x80);
    huge.extend_from_slice(&[0; 4]);
    let unmasked = [&[0x81, 2][..], b"{}"].concat();
    let late_binary = [&raw(0x01, b"{\"messageType\":")[..], &raw(0x82, b"x")].concat();
    let cases: Vec<(&str, bool, Vec<u8>, u16)> = vec![
        ("first frame binary", false, masked(frame::BINARY, b"hello"), 1003),
        ("binary after hello", true, masked(frame::BINARY, b"{}"), 1003),
        ("unmasked frame", true, unmasked, 1002),
        ("reserved bit", true, raw(0xc1, b"{}"), 1002),
        ("unknown opcode", true, raw(0x83, b""), 1002),
        ("fragmented ping", true, raw(0x09, b""), 1002),
        ("ping of 126 bytes", true, raw(0x89, &[0; 126]), 1002),
        ("continuation of nothing", true, raw(0x80, b"x"), 1002),
        ("binary inside a fragmented text", true, late_binary, 1002),
        ("frame of 2^40 bytes", true, huge, 1009),
        ("text of 100,000 bytes", true, masked(frame::TEXT, &[b' '; 100_000]), 1009),
        ("invalid UTF-8", true, masked(frame::TEXT, b"{\"messageType\":\"\xff\"}"), 1007),
        ("invalid JSON", true, masked(frame::TEXT, b"{\"messageType\""), 1011),
        ("not an object", true, masked(frame::TEXT, b"[]"), 1011),
        ("null", true, masked(frame::TEXT, b"null"), 1011),
        ("empty text", true, masked(frame::TEXT, b""), 1011),
        ("deep nesting", true, masked(frame::TEXT, "[".repeat(30_000).as_bytes()), 1011),
        ("unknown messageType", true, text(&json!({"messageType": "nonsense"})), 1011),
        ("messageType of another type", true, text(&json!({"messageType": 1})), 1011),
        ("register without channel", true, text(&json!({"messageType": "register"})), 1011),
        ("register of no UUID", true, text(&json!({"messageType": "register", "channelID": "x"})), 1011),
        ("register in upper case", true, text(&upper_case_register()), 1011),
        ("ack without updates", true, text(&json!({"messageType": "ack"})), 1011),
        ("ack of a wrong type", true, text(&json!({"messageType": "ack", "updates": "all"})), 1011),
        ("hello twice", true, text(&json!({"messageType": "hello"})), 1011),
        ("hello with a numeric uaid", false, text(&json!({"messageType": "hello", "uaid": 7})), 1011),
        ("register before hello", false, text(&json!({"messageType": "register"})), 1011),
        ("ping before hello", false, text(&json!({})), 1011),
    ];
    for (what, hello_first, bytes, code) in cases {
        assert_eq!(closed_with(address, hello_first, &bytes), code, "{what}");
    }
    bystander.is_undisturbed(&mut world);
}

fn upper_case_register() -> Value {
    json!({"messageType": "register", "channelID": "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"})
}

#[test]
fn fragmented_text_and_a_clients_close_are_fine() {
    let world = World::start();
    let mut agent = Agent::connect(world.server.websocket()).unwrap();
    let hello = json!({"messageType": "hello", "use_webpush": true}).to_string();
    let (first, rest) = hello.as_bytes().split_at(9);
    let bytes = [raw(0x01, first), raw(0x89, b"in between"), raw(0x80, rest)].concat();
    for byte in bytes {
        agent.send_bytes(&[byte]).unwrap();
    }
    agent.receive_type("hello").unwrap();
    agent.send_bytes(&masked(frame::CLOSE, &4_001u16.to_be_bytes())).unwrap();
    assert_eq!(agent.receive(PATIENCE).unwrap(), Received::Close(4_001));
    assert_eq!(agent.receive(PATIENCE).unwrap(), Received::End);
}

/// The status of the first answer to these bytes; 0 when the connection ends without one.
fn answered(address: SocketAddr, bytes: &[u8]) -> (u16, u64) {
    let response = Wire::open(address).send(bytes).next();
    response.map_or((0, 0), |response| (response.status, response.errno().unwrap_or(0)))
}

#[test]
fn garbage_on_any_port_is_refused() {
    let mut world = World::start();
    let mut bystander = Bystander::new(&world);
    let server = &world.server;
    let tls_hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 64]].concat();
    let long_head = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "y".repeat(200_000));
    let many_headers = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(2_000));
    for port in [server.websocket(), server.endpoint(), server.node()] {
        for garbage in [&b"\0\0\0\0\r\n\r\n"[..], b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", &tls_hello] {
            let (status, _) = answered(port, garbage);
            assert!(matches!(status, 0 | 400 | 505), "{port}: {:?} answered {status}", &garbage[..5]);
        }
        for head in [&long_head, &many_headers] {
            let (status, _) = answered(port, head.as_bytes());
            assert!(matches!(status, 400 | 431), "{port}: an oversized head is answered {status}");
        }
        let smuggled =
            "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let (status, _) = answered(port, smuggled.as_bytes());
        assert!(matches!(status, 400 | 404 | 501), "{port}: two framings are answered {status}");
        let (status, _) = answered(port, b"GET /no/such/path HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(status, 404, "{port}");
    }
    bystander.is_undisturbed(&mut world);
}

#[test]
fn failed_upgrades_say_why() {
    let world = World::start();
    let address = world.server.websocket();
    let upgrade = |lines: &str| format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let cases = [
        (upgrade(key), 400),
        (upgrade(&format!("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 12\r\n{key}")), 426),
        (upgrade(&format!("Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n{key}")), 400),
        (upgrade("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"), 400),
    ];
    for (request, status) in cases {
        assert_eq!(answered(address, request.as_bytes()).0, status, "{request}");
    }
    for path in ["/notif/0123456789abcdef0123456789abcdef", "/push/0123456789abcdef0123456789abcdef"] {
        let request = format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(answered(address, request.as_bytes()).0, 404, "{path} must not answer on the public port");
    }
}

#[test]
fn bad_posts_are_answered_with_their_errno() {
    let mut world = World::start();
    let mut bystander = Bystander::new(&world);
    let (mut agent, to) = world.subscriber();
    let other_world = World::start();
    let (_other_agent, foreign) = other_world.subscriber();
    let post = |path: &str| Request::new("POST", path).header("ttl", "60");
    let path = to.url.strip_prefix("http://push.test").unwrap().to_owned();
    let cases: Vec<(&str, Request, (u16, u64))> = vec![
        ("token of another key", foreign.request(60).encrypted("x"), (404, 102)),
        ("token of nonsense", post("/wpush/v1/nonsense").encrypted("x"), (404, 102)),
        ("token cut short", post(&path[..path.len() - 9]).encrypted("x"), (404, 102)),
        ("v3 token under v1", post(&path.replace("/v3/", "/v1/")).encrypted("x"), (404, 102)),
        ("unknown version", post(&path.replace("/v3/", "/v9/")).encrypted("x"), (404, 102)),
        ("no TTL", to.request(60).without("ttl").encrypted("x"), (400, 111)),
        ("TTL of letters", to.request(60).header("ttl", "soon").encrypted("x"), (400, 111)),
        ("TTL negative", to.request(60).header("ttl", "-1").encrypted("x"), (400, 114)),
        ("Topic too long", to.request(60).header("topic", &"t".repeat(33)).encrypted("x"), (400, 113)),
        ("Topic with a blank", to.request(60).header("topic", "a b").encrypted("x"), (400, 113)),
        ("unknown encoding", to.request(60).header("content-encoding", "gzip").encrypted("x"), (400, 110)),
        ("aesgcm without salt", to.request(60).header("content-encoding", "aesgcm").encrypted("x"), (400, 110)),
        ("body too large", to.request(60).encrypted(vec![0; 5_631]), (413, 104)),
        ("unknown scheme", to.request(60).header("authorization", "Basic eDp5").encrypted("x"), (401, 109)),
        ("vapid without key", to.request(60).header("authorization", "vapid t=a.b.c").encrypted("x"), (401, 109)),
    ];
    for (what, request, refusal) in cases {
        assert_eq!(world.send(request).refusal(), refusal, "{what}");
    }
    assert_eq!(world.send(to.request(60).encrypted(vec![b'y'; 5_630])).status, 201);
    assert_eq!(agent.note().body.len(), 5_630);
    let far = world.send(to.request(u32::MAX).encrypted("x"));
    assert_eq!((far.status, far.header("ttl")), (201, "2592000"));
    assert_eq!(agent.note().text(), "x");
    let wrong_method = world.send(Request::new("PUT", &path));
    assert_eq!(wrong_method.status, 405);
    agent.silence();
    bystander.is_undisturbed(&mut world);
}

#[test]
fn oversized_and_endless_bodies_are_cut_off() {
    let mut world = World::start();
    let mut bystander = Bystander::new(&world);
    let path = bystander.subscription.url.strip_prefix("http://push.test").unwrap().to_owned();
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 60\r\nContent-Encoding: aes128gcm\r\n");
    let endpoint = world.server.endpoint();
    let announced = format!("{head}Content-Length: 99999999999\r\n\r\n");
    assert_eq!(answered(endpoint, announced.as_bytes()), (413, 104));
    let chunk = format!("1000\r\n{}\r\n", "z".repeat(4_096));
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(64));
    assert_eq!(answered(endpoint, endless.as_bytes()), (413, 104));
    let bad_length = format!("{head}Content-Length: -5\r\n\r\n");
    assert_eq!(answered(endpoint, bad_length.as_bytes()).0, 400);
    bystander.is_undisturbed(&mut world);
}

#[test]
fn those_who_say_nothing_or_speak_slowly_are_ended() {
    let mut world = World::with(&["--set", "websocket.hello_timeout=5"]);
    let mut bystander = Bystander::new(&world);
    let mut silent = Agent::connect(world.server.websocket()).unwrap();
    // One byte of a hello at a time is as bad as silence. It would be whole after a minute.
    let mut slow = Agent::connect(world.server.websocket()).unwrap();
    let hello = text(&json!({"messageType": "hello", "use_webpush": true, "padding": "x".repeat(3_000)}));
    for byte in hello {
        if slow.send_bytes(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(last_code(&mut slow), 1011, "one byte of a hello at a time");
    assert_eq!(last_code(&mut silent), 1011, "upgraded, then silent");
    bystander.is_undisturbed(&mut world);
}

#[test]
fn half_requests_hold_nobody_up() {
    let mut world = World::start();
    let mut bystander = Bystander::new(&world);
    let server = &world.server;
    let mut half = Vec::new();
    for n in 0..60 {
        for port in [server.websocket(), server.endpoint(), server.node()] {
            let mut stream = TcpStream::connect(port).unwrap();
            let request = b"POST /wpush/v1/abc HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf";
            stream.write_all(&request[..n.min(request.len())]).unwrap();
            half.push(stream);
        }
    }
    let mut half_frames = Vec::new();
    for n in 1..30 {
        let mut agent = Agent::connect(server.websocket()).unwrap();
        agent.hello(None).unwrap();
        agent.send_bytes(&text(&json!({"messageType": "register", "channelID": "x"}))[..n]).unwrap();
        half_frames.push(agent);
    }
    bystander.is_undisturbed(&mut world);
    drop((half, half_frames));
    bystander.is_undisturbed(&mut world);
}

#[test]
fn a_reader_that_never_reads_costs_only_itself() {
    let mut world = World::start();
    let mut bystander = Bystander::new(&world);
    let (lazy, subscription) = world.subscriber();
    let uaid = lazy.uaid.clone();
    let mut ids = Vec::new();
    for n in 0..300 {
        let body = [&u32::to_be_bytes(n)[..], &[0; 4_000]].concat();
        ids.push(world.send(subscription.request(3600).encrypted(body)).id());
    }
    bystander.is_undisturbed(&mut world);
    drop(lazy);
    // Everything that was accepted is there for the next session, in order.
    let mut agent = world.agent(Some(&uaid));
    for (n, id) in ids.iter().enumerate() {
        let note = agent.note();
        assert_eq!(&note.version, id, "number {n}");
        let update = json!({"channelID": note.channel, "version": note.version});
        agent.send(json!({"messageType": "ack", "updates": [update]}));
    }
    bystander.is_undisturbed(&mut world);
}

#[test]
fn the_node_api_wants_its_key() {
    let world = World::start();
    let (agent, _) = world.subscriber();
    let path = format!("/notif/{}", agent.uaid);
    for authorization in ["", "Authorization: Bearer wrong-key-wrong-key\r\n", "Authorization: Basic eDp5\r\n"] {
        let request = format!("PUT {path} HTTP/1.1\r\nHost: h\r\n{authorization}Content-Length: 0\r\n\r\n");
        assert_eq!(answered(world.server.node(), request.as_bytes()).0, 401, "{authorization}");
    }
}
