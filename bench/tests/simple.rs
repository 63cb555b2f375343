//! SimplePush over real sockets: versions, of which only the newest counts, and wake-up calls for absent user agents
//! (PROTOCOL.md 1.12).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Request, SILENCE, Subscription, UserAgent, World};
use serde_json::{Value, json};

/// Seconds between two wake-up calls for one user (docs/LIMITS.md).
const WAKE_PAUSE_SECONDS: u64 = 10;
const ENABLED: [&str; 2] = ["--set", "simplepush.enabled=true"];

/// A user agent in SimplePush mode that has said hello.
fn agent(world: &World, uaid: &str, wake_port: Option<u16>) -> UserAgent {
    let mut agent = UserAgent::connect(world.server.websocket());
    let mut hello = json!({"messageType": "hello", "uaid": uaid});
    if let Some(port) = wake_port {
        hello["wakeup_host"] = json!({"ip": "192.0.2.7", "port": port});
        hello["mobilenetwork"] = json!({"mcc": "310", "mnc": "26"});
    }
    agent.send(hello);
    let answer = agent.expect("hello");
    assert_eq!((&answer["status"], &answer["use_webpush"]), (&json!(200), &json!(false)), "{answer}");
    agent.uaid = answer["uaid"].as_str().unwrap().to_owned();
    agent
}

fn put(to: &Subscription, form: &str) -> Request {
    let path = &to.url[to.url.find("/spush/v1/").unwrap()..];
    Request::new("PUT", path).header("content-type", "application/x-www-form-urlencoded").body(form)
}

fn version(world: &World, to: &Subscription, version: u64) -> u16 {
    world.send(put(to, &format!("version={version}"))).status
}

/// The one update that comes next: its version and its data.
fn update(agent: &mut UserAgent, of: &Subscription) -> (u64, Value) {
    let message = agent.expect("notification");
    let updates = message["updates"].as_array().unwrap();
    assert_eq!((updates.len(), &updates[0]["channelID"]), (1, &json!(of.channel)), "{message}");
    (updates[0]["version"].as_u64().unwrap(), updates[0]["data"].clone())
}

fn ack(agent: &mut UserAgent, of: &Subscription, version: u64) {
    agent.send(json!({"messageType": "ack", "updates": [{"channelID": of.channel, "version": version}]}));
    agent.barrier();
}

#[test]
fn versions_reach_a_live_session_and_their_acks_end_them() {
    let world = World::with(&ENABLED);
    let mut agent_1 = agent(&world, "", None);
    let subscription = agent_1.register(None);
    let reply = world.send(put(&subscription, "version=7&data=hello%20there"));
    assert_eq!((reply.status, &reply.body[..]), (200, &b"Delivered"[..]));
    assert_eq!(update(&mut agent_1, &subscription), (7, json!("hello there")));
    assert_eq!(version(&world, &subscription, 7), 202, "it was sent already");
    agent_1.silence();
    ack(&mut agent_1, &subscription, 7);
    let uaid = agent_1.uaid.clone();
    agent_1.leave();
    agent(&world, &uaid, None).silence();
}

#[test]
fn who_was_away_gets_the_newest_version_also_after_a_crash() {
    let mut world = World::with(&ENABLED);
    let mut first = agent(&world, "", None);
    let (one, other) = (first.register(None), first.register(None));
    assert_eq!(version(&world, &other, 3), 200);
    let uaid = first.uaid.clone();
    // Not acked: it is saved when the session ends.
    assert_eq!(update(&mut first, &other), (3, Value::Null));
    first.leave();
    for (number, status) in [(5, 202), (9, 202), (8, 202)] {
        assert_eq!(version(&world, &one, number), status);
    }
    world.crash();
    let mut again = agent(&world, &uaid, None);
    assert_eq!(again.uaid, uaid);
    let mut came = [again.expect("notification"), again.expect("notification")];
    came.sort_by_key(|message| message["updates"][0]["version"].as_u64());
    let versions = came.map(|m| (m["updates"][0]["channelID"].clone(), m["updates"][0]["version"].clone()));
    assert_eq!(versions, [(json!(other.channel), json!(3)), (json!(one.channel), json!(9))]);
    again.silence();
    ack(&mut again, &one, 9);
    ack(&mut again, &other, 3);
    again.leave();
    agent(&world, &uaid, None).silence();
}

#[test]
fn endpoints_of_one_mode_refuse_the_other_and_unknown_users() {
    let world = World::with(&ENABLED);
    let mut simple = agent(&world, "", None);
    let mine = simple.register(None);
    let (mut webpush, theirs) = world.subscriber();
    let as_webpush = Subscription { url: mine.url.replace("/spush/", "/wpush/"), ..mine.clone() };
    assert_eq!(world.post(&as_webpush, 60, "body").refusal(), (400, 108));
    simple.unregister(&mine.channel);
    assert_eq!(world.send(put(&mine, "version=1")).refusal(), (410, 103));
    let token = theirs.url.rsplit('/').next().unwrap();
    let crossed = Request::new("PUT", &format!("/spush/v1/{token}"));
    assert_eq!(world.send(crossed).refusal(), (404, 102), "a token of WebPush");
    assert_eq!(world.send(put(&mine, "version=x")).refusal().0, 410, "410 comes first");
    webpush.silence();
    let off = World::start();
    assert_eq!(off.send(put(&mine, "version=1")).refusal(), (404, 0));
}

/// Answers POSTs and hands out their bodies.
fn wake_server() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/wake", listener.local_addr().unwrap());
    let (called, calls) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            reader.get_mut().write_all(answer).unwrap();
            if called.send(String::from_utf8(body).unwrap()).is_err() {
                return;
            }
        }
    });
    (url, calls)
}

#[test]
fn an_update_wakes_who_is_away() {
    let (url, calls) = wake_server();
    let world = World::with(&["--set", "simplepush.enabled=true", "--set", &format!("simplepush.wake_url={url}")]);
    let mut sleeper = agent(&world, "", Some(4_500));
    let subscription = sleeper.register(None);
    assert_eq!(version(&world, &subscription, 1), 200);
    assert_eq!(update(&mut sleeper, &subscription).0, 1);
    ack(&mut sleeper, &subscription, 1);
    let uaid = sleeper.uaid.clone();
    sleeper.leave();
    let begun = Instant::now();
    assert_eq!(version(&world, &subscription, 2), 202);
    let body = calls.recv_timeout(PATIENCE).unwrap();
    assert_eq!(body, "ip=192.0.2.7&port=4500&mcc=310&mnc=26");
    assert_eq!(version(&world, &subscription, 3), 202);
    let called = calls.recv_timeout(SILENCE);
    // On a busy host the pause may be over.
    let over = begun.elapsed() > Duration::from_secs(WAKE_PAUSE_SECONDS);
    assert!(called == Err(RecvTimeoutError::Timeout) || over, "it was called a moment ago: {called:?}");
    let mut awake = agent(&world, &uaid, Some(4_500));
    assert_eq!(update(&mut awake, &subscription).0, 3);
    assert!(!world.server.log().contains("192.0.2.7"), "where somebody is is never logged");
}
