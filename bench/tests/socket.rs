//! The WebSocket below its messages, byte by byte on real sockets: upgrade, frames, close codes, the server's own pings
//! (PROTOCOL.md 1.1 to 1.3 and 1.7).

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::wire::{Heard, PROBE, PROBED, Wire, masked, raw, text};
use crate::common::{PATIENCE, Request, World, exchange};
use client::http::Response;
use murre_bench::frame;
use serde_json::json;
use socket2::{Domain, Socket, Type};

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// The largest message (PROTOCOL.md 1.2).
const MESSAGE_BYTES_MAX: usize = 65_536;

fn upgrade(world: &World, lines: &[u8]) -> (Wire, Response) {
    let mut wire = Wire::open(world.server.websocket());
    wire.write(&[b"GET / HTTP/1.1\r\n", lines, KEY.as_bytes(), b"\r\n"].concat());
    let response = wire.response();
    (wire, response)
}

#[test]
fn every_version_and_spelling_of_an_upgrade_is_accepted() {
    let world = World::start();
    let plain = "Host: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    let cases: [(&str, Vec<u8>); 8] = [
        ("13", plain.into()),
        ("8", plain.into()),
        ("7", plain.into()),
        ("13", "Host: h\r\nupgrade: WebSocket\r\nCONNECTION: keep-alive, UPGRADE\r\n".into()),
        ("13", "Host: h\r\nUpgrade: h2c, websocket\r\nConnection: upgrade\r\n".into()),
        ("13", "Upgrade: websocket\r\nConnection: Upgrade\r\n".into()),
        ("13", format!("{plain}Origin: https://elsewhere.example\r\n").into()),
        ("13", [plain.as_bytes(), b"User-Agent: \xff\xfe\x80\r\n"].concat()),
    ];
    for (version, lines) in cases {
        let what = String::from_utf8_lossy(&lines).into_owned();
        let version = format!("Sec-WebSocket-Version: {version}\r\n");
        let (mut wire, response) = upgrade(&world, &[&lines, version.as_bytes()].concat());
        assert_eq!(response.status, 101, "{version}{what}");
        assert_eq!(response.header("sec-websocket-accept"), Some(ACCEPT));
        assert_eq!(response.header("sec-websocket-protocol"), None);
        wire.say(&json!({"messageType": "hello"}));
        assert_eq!(wire.message()["status"], 200, "{version}{what}");
    }
}

#[test]
fn a_browser_gets_its_sub_protocol_and_no_extension() {
    let world = World::start();
    let lines = "Host: push.test\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0\r\n\
                 Origin: wss://push.test\r\nSec-WebSocket-Protocol: push-notification\r\n\
                 Sec-WebSocket-Extensions: permessage-deflate\r\nConnection: keep-alive, Upgrade\r\n\
                 Pragma: no-cache\r\nCache-Control: no-cache\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
    let (mut wire, response) = upgrade(&world, lines.as_bytes());
    assert_eq!(response.status, 101);
    assert_eq!(response.header("sec-websocket-protocol"), Some("push-notification"));
    assert_eq!(response.header("sec-websocket-extensions"), None);
    assert_eq!(response.header("upgrade"), Some("websocket"));
    // The first reserved bit would say "compressed".
    wire.write(&raw(0xc1, b"{}"));
    assert_eq!(wire.goodbye().0, 1002);
}

#[test]
fn the_public_port_has_health_pages_and_nothing_else() {
    let node_key = "0123456789abcdef-node";
    let setting = format!("node.keys={node_key}");
    let world = World::with(&["--set", &setting]);
    let agent = world.agent(None);
    let (public, node) = (world.server.websocket(), world.server.node());
    let request =
        |method: &str, path: &str| Request::new(method, path).header("authorization", &format!("Bearer {node_key}"));
    for path in ["/status", "/health", "/__heartbeat__", "/__lbheartbeat__", "/__version__"] {
        assert_eq!(exchange(public, request("GET", path)).status, 200, "{path}");
    }
    let (notif, push) = (format!("/notif/{}", agent.uaid), format!("/push/{}", agent.uaid));
    let disconnect = format!("{notif}/1");
    let paths =
        [&notif, &push, &disconnect, "/nowhere", "/index.html", "/wpush/v1/x", "/m/x", "/metrics", "/broadcasts"];
    for path in paths {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            assert_eq!(exchange(public, request(method, path)).status, 404, "{method} {path}");
        }
    }
    // The same call on the node API is answered.
    assert_eq!(exchange(node, request("PUT", &notif)).status / 100, 2);
    assert_eq!(exchange(public, request("POST", "/")).status, 405);
}

#[test]
fn beyond_max_connections_a_connection_is_answered_503_and_the_others_stay() {
    let world = World::with(&["--shards", "1", "--max-connections", "8"]);
    let address = world.server.websocket();
    let mut inside = Vec::new();
    let refused = loop {
        assert!(inside.len() < 32, "no connection was refused");
        let mut wire = Wire::open(address);
        // The answer may come before the request is written.
        wire.try_write(&murre_bench::frame::upgrade_request("h"));
        let response = wire.response();
        if response.status != 101 {
            assert_eq!(wire.hear(), Heard::End);
            break response;
        }
        wire.say(&json!({"messageType": "hello"}));
        assert_eq!(wire.message()["status"], 200);
        inside.push(wire);
    };
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("120")));
    assert!(inside.len() >= 8, "only {} connections", inside.len());
    for wire in &mut inside {
        wire.write(&text(PROBE));
        assert_eq!(wire.hear(), Heard::Text(PROBED.into()));
    }
    // Room again when one has left, as soon as the server knows.
    inside.pop();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut wire = Wire::open(address);
        wire.try_write(&murre_bench::frame::upgrade_request("h"));
        if wire.response().status == 101 {
            break;
        }
        assert!(Instant::now() < deadline, "no room after one has left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// [`PROBE`] with blanks behind it, `len` bytes in all.
fn padded(len: usize) -> Vec<u8> {
    let mut message = PROBE.as_bytes().to_vec();
    message.resize(len, b' ');
    message
}

#[test]
fn a_message_of_64_kib_is_taken_and_one_byte_more_is_not() {
    let world = World::start();
    let address = world.server.websocket();
    let whole = |len: usize| masked(frame::TEXT, &padded(len));
    let fragmented = |len: usize| {
        let message = padded(len);
        let (first, rest) = message.split_at(40_000);
        let (middle, last) = rest.split_at(20_000);
        // A ping where hardly a byte of the message may follow, and where none may: it is no part of it.
        let pings = masked(frame::PING, &[0; 125]);
        let (last, end) = last.split_at(last.len().min(5_536));
        [raw(0x01, first), raw(0x00, middle), pings.clone(), raw(0x00, last), pings, raw(0x80, end)].concat()
    };
    for (what, of) in [("one frame", &whole as &dyn Fn(usize) -> Vec<u8>), ("three fragments", &fragmented)] {
        let mut wire = Wire::greeted(address);
        // Twice, so that nothing of the first is counted to the second.
        for _ in 0..2 {
            wire.write(&of(MESSAGE_BYTES_MAX));
            let answer = std::iter::repeat_with(|| wire.hear()).find(|heard| !matches!(heard, Heard::Pong(_)));
            assert_eq!(answer, Some(Heard::Text(PROBED.into())), "{what}");
        }
        wire.write(&of(MESSAGE_BYTES_MAX + 1));
        assert_eq!(wire.goodbye(), (1009, "TooBig".into()), "{what}");
    }
}

#[test]
fn control_frames_between_fragments_are_answered_at_once() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    let message =
        json!({"messageType": "broadcast_subscribe", "broadcasts": {"tests/\u{e9}\u{1f426}": "v"}}).to_string();
    // One byte a fragment: also every character of several bytes is cut.
    let bytes = message.as_bytes();
    let (last, first) = bytes.split_last().unwrap();
    wire.write(&raw(0x01, &first[..1]));
    for (n, byte) in first[1..].iter().enumerate() {
        wire.write(&raw(0x00, &[*byte]));
        if n % 16 == 0 {
            wire.write(&raw(0x89, &[n as u8]));
            assert_eq!(wire.hear(), Heard::Pong(vec![n as u8]), "before the message is whole");
            wire.write(&raw(0x8a, b"nobody asked"));
        }
    }
    wire.write(&raw(0x80, &[*last]));
    let errors = wire.message()["broadcasts"]["errors"].clone();
    assert_eq!(errors, json!({"tests/\u{e9}\u{1f426}": "Broadcast not found"}));
    wire.write(&raw(0x01, b"{\"messageType\":"));
    wire.write(&masked(frame::CLOSE, &1001u16.to_be_bytes()));
    assert_eq!(wire.goodbye(), (1001, String::new()), "a close inside a fragmented message");
}

#[test]
fn pings_come_back_with_their_payload_also_before_hello() {
    let world = World::start();
    let mut wire = Wire::upgraded(world.server.websocket());
    for round in 0..2 {
        for payload in [&b""[..], b"\x00\xff not text", &[0xa5; 125]] {
            wire.write(&masked(frame::PING, payload));
            assert_eq!(wire.hear(), Heard::Pong(payload.to_vec()), "round {round}");
        }
        wire.write(&masked(frame::PONG, b"nobody asked"));
        if round == 0 {
            wire.say(&json!({"messageType": "hello"}));
            assert_eq!(wire.message()["status"], 200);
        }
    }
}

#[test]
fn of_a_burst_of_pings_the_latest_is_answered() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    let burst: Vec<u8> = (0..100u8).flat_map(|n| masked(frame::PING, &[n])).collect();
    wire.write(&[burst, text(PROBE)].concat());
    let mut pongs = Vec::new();
    loop {
        match wire.hear() {
            Heard::Pong(payload) => pongs.push(payload),
            Heard::Text(text) => break assert_eq!(text, PROBED),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pongs.last(), Some(&vec![99]));
    assert!(pongs.len() < 100, "not one of a hundred pings was left out");
}

#[test]
fn what_is_pipelined_is_answered_one_by_one_in_order() {
    let world = World::start();
    let mut wire = Wire::upgraded(world.server.websocket());
    let channel = client::agent::channel_id();
    let mut bytes = text(&json!({"messageType": "hello"}).to_string());
    for _ in 0..3 {
        bytes.extend(text(&json!({"messageType": "register", "channelID": channel}).to_string()));
        bytes.extend(text(PROBE));
        bytes.extend(text(&json!({"messageType": "unregister", "channelID": channel}).to_string()));
        bytes.extend(text(&json!({"messageType": "nack", "version": "v"}).to_string()));
    }
    bytes.extend(text("{}"));
    wire.write(&bytes);
    assert_eq!(wire.message()["messageType"], "hello");
    for _ in 0..3 {
        for kind in ["register", "broadcast", "unregister"] {
            assert_eq!(wire.message()["messageType"], kind);
        }
    }
    assert_eq!(wire.hear(), Heard::Text("{}".into()));
}

/// Name, true if a hello comes first, the bytes, and the code and text of the goodbye.
type BadFrame = (&'static str, bool, Vec<u8>, (u16, &'static str));

#[test]
fn every_close_names_its_code_and_reason() {
    let world = World::start();
    let address = world.server.websocket();
    let hello = text(&json!({"messageType": "hello"}).to_string());
    let binary_fragment = [raw(0x02, b"{"), raw(0x80, b"}")].concat();
    let text_inside = [raw(0x01, b"{"), raw(0x81, b"}")].concat();
    let cases: [BadFrame; 14] = [
        ("first frame binary", false, masked(frame::BINARY, b"{}"), (1003, "UnsupportedMessage")),
        ("binary later", true, masked(frame::BINARY, b""), (1003, "UnsupportedMessage")),
        ("fragmented binary", true, binary_fragment, (1003, "UnsupportedMessage")),
        ("first frame a continuation", false, raw(0x80, b"{}"), (1002, "Protocol")),
        ("text inside a fragmented text", true, text_inside, (1002, "Protocol")),
        ("no mask", true, vec![0x81, 2, b'{', b'}'], (1002, "Protocol")),
        ("second reserved bit", true, raw(0xa1, b"{}"), (1002, "Protocol")),
        ("third reserved bit", true, raw(0x91, b"{}"), (1002, "Protocol")),
        ("reserved control opcode", true, raw(0x8b, b""), (1002, "Protocol")),
        ("no UTF-8", true, masked(frame::TEXT, b"{\"a\":\"\xc3(\"}"), (1007, "Utf8")),
        ("no JSON", true, text("hello"), (1011, "Json")),
        ("no message before hello", false, text(r#"{"messageType":"dance"}"#), (1011, "Json")),
        ("ping before hello", false, text("{}"), (1011, "SM")),
        ("a second hello", true, hello, (1011, "SM")),
    ];
    for (what, greeted, bytes, (code, reason)) in cases {
        let mut wire = if greeted { Wire::greeted(address) } else { Wire::upgraded(address) };
        wire.write(&bytes);
        assert_eq!(wire.goodbye(), (code, reason.to_owned()), "{what}");
        assert_eq!(wire.hear(), Heard::End, "{what}: nothing follows a close frame");
    }
}

#[test]
fn a_clients_close_is_echoed_and_ends_the_connection() {
    let world = World::start();
    let address = world.server.websocket();
    let close = |code: u16, reason: &[u8]| masked(frame::CLOSE, &[&code.to_be_bytes(), reason].concat());
    let long = "r".repeat(123);
    let cases: [(Vec<u8>, (u16, &str)); 9] = [
        (close(1000, b"bye"), (1000, "bye")),
        (close(1001, b""), (1001, "")),
        (close(3000, "\u{1f426}".as_bytes()), (3000, "\u{1f426}")),
        (close(4999, long.as_bytes()), (4999, &long)),
        (masked(frame::CLOSE, b""), (1005, "")),
        (masked(frame::CLOSE, b"x"), (1002, "Protocol")),
        (close(1005, b""), (1002, "Protocol")),
        (close(2999, b""), (1002, "Protocol")),
        (close(1000, b"\xff"), (1007, "Utf8")),
    ];
    for (bytes, (code, reason)) in cases {
        for greeted in [false, true] {
            let mut wire = if greeted { Wire::greeted(address) } else { Wire::upgraded(address) };
            wire.write(&bytes);
            assert_eq!(wire.hear(), Heard::Close(code, reason.to_owned()), "{bytes:02x?}");
            assert_eq!(wire.hear(), Heard::End);
        }
    }
}

#[test]
fn a_close_code_reaches_a_client_that_is_still_sending() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    // Less than a goodbye discards, and more than the server has read when it refuses.
    let more = [masked(frame::BINARY, b"no"), text(PROBE).repeat(600)].concat();
    wire.write(&more);
    assert_eq!(wire.hear(), Heard::Close(1003, "UnsupportedMessage".into()), "and no answer to what came behind");
    assert_eq!(wire.hear(), Heard::End, "an end in order, no reset");
    // The server does not wait for so slow a client: a write may fail by now, and the end stays an end.
    wire.try_write(b"still here");
    assert_eq!(wire.hear(), Heard::End);
}

/// A client that writes its whole message before it reads, as most libraries do.
#[test]
fn a_close_code_reaches_a_client_with_much_in_flight() {
    let world = World::start();
    // The server lingers on a goodbye for two seconds: a busy host may make a client later than that, but not every
    // time.
    for _ in 0..20 {
        if hears_the_end_of_its_long_message(world.server.websocket()) {
            return;
        }
    }
    panic!("every client was reset while it was sending");
}

/// False when the connection is reset before the message is written.
fn hears_the_end_of_its_long_message(address: SocketAddr) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // The written bytes must have left for the server.
    socket.set_send_buffer_size(8 * 1024).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut wire = Wire::of(socket.into());
    wire.write(&murre_bench::frame::upgrade_request("h"));
    assert_eq!(wire.response().status, 101);
    if !wire.try_write(&masked(frame::TEXT, &padded(400_000))) {
        return false;
    }
    let heard = (wire.hear(), wire.hear());
    heard == (Heard::Close(1009, "TooBig".into()), Heard::End)
}

#[test]
fn an_upgrade_of_http_1_0_is_answered_426() {
    let world = World::start();
    let mut wire = Wire::open(world.server.websocket());
    let request = String::from_utf8(murre_bench::frame::upgrade_request("h")).unwrap();
    wire.write(request.replace("HTTP/1.1", "HTTP/1.0").as_bytes());
    let response = wire.response();
    assert_eq!((response.status, response.header("upgrade")), (426, Some("websocket")));
}

#[test]
fn a_client_that_never_stops_sending_is_told_and_cut_off() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    wire.write(&masked(frame::BINARY, b"no"));
    let mut writer = wire.writer();
    let sender = std::thread::spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if writer.write_all(&[0x5a; 4_096]).is_err() {
                return true;
            }
        }
        false
    });
    assert_eq!(wire.hear(), Heard::Close(1003, "UnsupportedMessage".into()));
    assert!(matches!(wire.hear(), Heard::End | Heard::Reset));
    assert!(sender.join().unwrap(), "the server still takes bytes after {PATIENCE:?}");
}

#[test]
fn a_client_that_does_not_close_after_the_goodbye_is_dropped() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    wire.write(&masked(frame::BINARY, b"no"));
    assert_eq!(wire.goodbye().0, 1003);
    assert_eq!(wire.hear(), Heard::End);
    let deadline = Instant::now() + PATIENCE;
    // Bytes that are sent after the connection is gone are answered with a reset.
    while wire.try_write(b"x") {
        assert!(Instant::now() < deadline, "the server holds a connection that it has said goodbye to");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_answers_no_ping_is_closed_and_who_does_stays() {
    let settings = ["--set", "websocket.auto_ping_interval=1", "--set", "websocket.auto_ping_timeout=0.5"];
    let world = World::with(&settings);
    let address = world.server.websocket();
    let mut silent = Wire::greeted(address);
    assert_eq!(silent.hear(), Heard::Ping(Vec::new()));
    // Another message of a client is not a pong.
    silent.write(&text(PROBE));
    assert_eq!(silent.goodbye(), (1011, "PongTimeout".into()));
    // On a busy host this client may be later than the half second itself; but not every time.
    assert!((0..20).any(|_| outlives_three_pings(&mut Wire::greeted(address))), "who answers is closed as well");
}

/// Answers three pings and sends a request; returns false when the server says that a pong was too late.
fn outlives_three_pings(wire: &mut Wire) -> bool {
    let mut pings = 0;
    loop {
        match wire.hear() {
            Heard::Ping(payload) => {
                assert_eq!(payload, b"");
                pings += 1;
                // It may be closing, and then says so.
                wire.try_write(&masked(frame::PONG, b""));
                if pings == 3 {
                    wire.try_write(&text(PROBE));
                }
            }
            Heard::Text(text) => {
                assert!(pings >= 3 && text == PROBED, "{text} after {pings} pings");
                return true;
            }
            end => {
                assert_eq!(end, Heard::Close(1011, "PongTimeout".into()));
                return false;
            }
        }
    }
}

#[test]
fn an_end_without_a_close_frame_ends_the_session() {
    let world = World::start();
    let mut wire = Wire::greeted(world.server.websocket());
    wire.finish();
    assert_eq!(wire.hear(), Heard::End, "without a close frame, for nobody closed");
}
