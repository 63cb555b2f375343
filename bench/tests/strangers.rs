//! One stranger with very many connections: its neighbours must not lack the resources that it takes (docs/LIMITS.md).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::common::wire::{Heard, PROBE, PROBED, Wire, masked, raw, text};
use crate::common::{PATIENCE, Request, World, exchange};
use murre_bench::frame;
use serde_json::{Value, json};

const NODE_KEY: &str = "0123456789abcdef-node";

/// Starts a server whose node API has [`NODE_KEY`].
fn world(settings: &[&str]) -> World {
    let setting = format!("node.keys={NODE_KEY}");
    World::with(&[&["--set", &setting], settings].concat())
}

fn node_request(method: &str, path: &str) -> Request {
    Request::new(method, path).header("authorization", &format!("Bearer {NODE_KEY}"))
}

/// Opens connections on which nothing is sent, each after the server has taken in the one before.
fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Status of a health page; `None` when the connection ends without one.
fn health(address: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    // Bytes that came before a reset count.
    let _ = stream.read_to_end(&mut answer);
    let head = std::str::from_utf8(&answer).ok()?;
    head.split(' ').nth(1)?.parse().ok()
}

#[test]
fn idle_websockets_leave_room_for_senders_nodes_and_health_checks() {
    let world = world(&["--shards", "2", "--max-connections", "100"]);
    let (mut agent, subscription) = world.subscriber();
    let mut sessions = Vec::new();
    let mut refused = 0;
    while refused < 50 {
        let mut wire = Wire::open(world.server.websocket());
        wire.try_write(&murre_bench::frame::upgrade_request("h"));
        refused += usize::from(wire.response().status == 503);
        sessions.push(wire);
        assert!(sessions.len() < 400, "{refused} of {} connections were refused", sessions.len());
    }
    let (endpoint, node) = (world.server.endpoint(), world.server.node());
    for round in 0..8 {
        let reply = world.post(&subscription, 60, "beside them");
        assert_eq!(reply.status, 201, "round {round}: {reply:?}");
        let note = agent.note();
        agent.ack([&note]);
        let called = exchange(node, node_request("PUT", &format!("/notif/{}", agent.uaid)));
        assert_eq!(called.status / 100, 2, "round {round}: {called:?}");
        for port in [endpoint, node] {
            assert_eq!(exchange(port, node_request("GET", "/health")).status, 200, "round {round}");
        }
    }
    // No place is left for a WebSocket, and the process is well: a health request on that port is answered so, once the
    // connections that were refused a moment ago are gone.
    let asked = Instant::now();
    for path in ["/health", "/status"] {
        while health(world.server.websocket(), path) != Some(200) {
            assert!(asked.elapsed() < PATIENCE, "a full port answers no {path}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let mut wire = Wire::open(world.server.websocket());
    wire.try_write(&murre_bench::frame::upgrade_request("h"));
    assert_eq!(wire.response().status, 503, "a WebSocket is still refused");
}

#[test]
fn idle_senders_leave_room_for_sessions_and_nodes() {
    let world = world(&["--shards", "1", "--max-connections", "200"]);
    let idle = idle(world.server.endpoint(), 600);
    let (mut agent, _) = world.subscriber();
    let called = exchange(world.server.node(), node_request("PUT", &format!("/notif/{}", agent.uaid)));
    assert_eq!(called.status / 100, 2, "{called:?}");
    agent.barrier();
    drop(idle);
}

#[test]
fn a_message_that_is_not_finished_in_time_is_closed_1008() {
    let world = World::with(&["--set", "http.request_timeout=1"]);
    let mut bystander = Wire::greeted(world.server.websocket());
    let half_frame = text(PROBE)[..20].to_vec();
    for (what, begun) in [("a fragment", raw(0x01, b"{\"messageType\":")), ("half a frame", half_frame)] {
        let mut wire = Wire::greeted(world.server.websocket());
        wire.write(&begun);
        assert_eq!(wire.hear(), Heard::Close(1008, "MessageTimeout".into()), "{what}");
        assert_eq!(wire.hear(), Heard::End, "{what}");
    }
    bystander.write(&text(PROBE));
    assert_eq!(bystander.hear(), Heard::Text(PROBED.into()), "an idle session is not late");
}

/// Control frames between the fragments are commands and answers of their own, and win no time for the message.
#[test]
fn control_frames_do_not_prolong_an_unfinished_message() {
    let world = World::with(&["--set", "http.request_timeout=2"]);
    let mut wire = Wire::greeted(world.server.websocket());
    wire.write(&raw(0x01, b"{\"messageType\":"));
    let begun = Instant::now();
    while wire.try_write(&[masked(frame::PONG, b""), masked(frame::PING, b"")].concat()) {
        match wire.hear() {
            Heard::Pong(_) => std::thread::sleep(Duration::from_millis(100)),
            Heard::Close(code, reason) => {
                assert_eq!((code, reason.as_str()), (1008, "MessageTimeout"));
                return;
            }
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < PATIENCE, "a ping now and then keeps half a message for ever");
    }
    panic!("the connection ended without a close frame");
}

/// The session sends requests and never reads the answers, so that a reply is always owed to it.
#[test]
fn a_session_that_takes_no_bytes_is_ended_after_the_ping_timeout() {
    let world = World::with(&["--set", "websocket.auto_ping_timeout=1"]);
    let wire = Wire::greeted(world.server.websocket());
    let mut writer = wire.writer();
    writer.set_nonblocking(true).unwrap();
    let questions = text(PROBE).repeat(100);
    let begun = Instant::now();
    loop {
        match writer.write(&questions) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => break,
        }
        assert!(begun.elapsed() < PATIENCE, "the session is still there");
    }
}

/// Returns what a session is told of these broadcasts: their versions, and the ids that are not found.
fn subscribes(wire: &mut Wire, ids: impl IntoIterator<Item = String>) -> Value {
    let named: serde_json::Map<String, Value> = ids.into_iter().map(|id| (id, json!("older"))).collect();
    wire.say(&json!({"messageType": "broadcast_subscribe", "broadcasts": named}));
    wire.message()["broadcasts"].clone()
}

/// One stranger with many sessions, each of which waits for as many ids as it may that do not exist.
#[test]
fn invented_broadcasts_take_no_place_of_real_ones() {
    let world = World::with(&["--shards", "1"]);
    let strangers: Vec<Wire> = (0..64)
        .map(|session| {
            let mut wire = Wire::greeted(world.server.websocket());
            let told = subscribes(&mut wire, (0..8).map(|n| format!("invented/{session}-{n}")));
            assert_eq!(told["errors"].as_object().unwrap().len(), 8);
            wire
        })
        .collect();
    let mut agent = Wire::greeted(world.server.websocket());
    for id in ["remote-settings/monitor_changes", "operator/announced-later"] {
        assert_eq!(subscribes(&mut agent, [id.to_owned()]), json!({"errors": {id: "Broadcast not found"}}));
        murre_bench::metrics::set_broadcast(world.server.admin(), &world.server.admin_token().unwrap(), id, "v1")
            .unwrap();
        assert_eq!(agent.message()["broadcasts"], json!({id: "v1"}));
    }
    drop(strangers);
}
