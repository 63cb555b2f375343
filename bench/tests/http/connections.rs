//! Lifetime of a connection, pipelined requests, clients that leave early and clients that are too slow.

use super::{Wire, path, post, post_chunked, receive};
use crate::common::World;

#[test]
fn a_connection_is_kept_until_its_last_request() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let mut wire = Wire::open(world.server.endpoint());
    for n in 0..20 {
        let response = wire.send(post(&to, "", &n.to_string())).next().unwrap();
        assert_eq!((response.status, response.header("connection")), (201, None));
        assert!(response.header("date").is_some_and(|date| date.ends_with(" GMT")));
        receive(&mut agent, &[&n.to_string()]);
    }
    // A line end behind a body, as old senders write it, is no request (RFC 9112 section 2.2).
    assert_eq!(wire.send("\r\n").send(post(&to, "", "behind a line end")).status(), 201);
    let last = wire.send(post(&to, "Connection: TE, Close\r\n", "last")).next().unwrap();
    assert_eq!((last.status, last.header("connection")), (201, Some("close")));
    wire.is_over();
    receive(&mut agent, &["behind a line end", "last"]);
    let mut old = Wire::open(world.server.endpoint());
    assert_eq!(old.send("GET /health HTTP/1.0\r\n\r\n").until_the_end(), [200]);
}

#[test]
fn sixteen_requests_in_one_write_are_answered_in_order() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let bodies: Vec<String> = (0..16).map(|n| format!("number {n}")).collect();
    let all: String = bodies.iter().map(|body| post(&to, "", body)).collect();
    // At once, and cut where no request ends.
    for step in [all.len(), 37] {
        let mut wire = Wire::open(world.server.endpoint());
        for piece in all.as_bytes().chunks(step) {
            wire.send(piece);
        }
        let mut notes = Vec::new();
        for body in &bodies {
            let response = wire.next().unwrap();
            assert_eq!(response.status, 201);
            let note = agent.note();
            assert_eq!(note.text(), body);
            assert!(response.header("location").unwrap().ends_with(&note.version), "answers are in order");
            notes.push(note);
        }
        agent.ack(&notes);
    }
    let mixed = [
        post(&to, "", "one"),
        post_chunked(&to, "3\r\ntwo\r\n0\r\n\r\n"),
        "POST /wpush/v3/nonsense HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
        "OPTIONS /m/x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "DELETE /m/x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        post(&to, "Topic: !\r\n", "bad topic"),
        "GET /health HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        post(&to, "", &"x".repeat(6_000)),
        post(&to, "Connection: close\r\n", "three"),
        post(&to, "", "never read"),
    ];
    let mut wire = Wire::open(world.server.endpoint());
    assert_eq!(wire.send(mixed.concat()).until_the_end(), [201, 201, 404, 204, 400, 400, 200, 413, 201]);
    receive(&mut agent, &["one", "two", "three"]);
    agent.silence();
}

#[test]
fn slow_requests_are_ended_with_408_and_idle_connections_without_a_word() {
    // Long enough for a client that its host keeps waiting, and all wait together.
    let world = World::with(&["--set", "http.request_timeout=5", "--set", "http.keep_alive=6"]);
    let (mut agent, to) = world.subscriber();
    let whole = post(&to, "", "slow body");
    let (head, _) = whole.split_at(whole.len() - 5);
    // Idle, fresh and kept: no request was sent.
    let (mut idle, mut kept) = (Wire::open(world.server.endpoint()), Wire::open(world.server.endpoint()));
    kept.send(post(&to, "", "in time"));
    let begun = [("head", &whole[..40]), ("first byte", &whole[..1]), ("body", head)].map(|(what, begun)| {
        let mut wire = Wire::open(world.server.endpoint());
        wire.send(begun);
        (what, wire)
    });
    // One byte at a time does not buy more time: the head would be whole after a minute.
    let (mut slow, endless) =
        (Wire::open(world.server.endpoint()), format!("POST {} HTTP/1.1\r\nX: {}", path(&to), "y".repeat(3_000)));
    for byte in endless.bytes() {
        if !slow.try_write(&[byte]) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for (what, mut wire) in begun.into_iter().chain([("one byte at a time", slow)]) {
        let response = wire.next().unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!((response.status, response.header("connection")), (408, Some("close")), "{what}");
        wire.is_over();
    }
    idle.is_over();
    assert_eq!(kept.until_the_end(), [201]);
    receive(&mut agent, &["in time"]);
    agent.silence();
}

#[test]
fn a_sender_that_leaves_early_has_sent_nothing() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let whole = post(&to, "", "never whole");
    let chunked = post_chunked(&to, "5\r\nnever\r\n6\r\n whole\r\n0\r\n\r\n");
    for request in [&whole, &chunked] {
        for cut in [request.len() - 1, request.len() - 8, request.len() / 2, 10] {
            let mut wire = Wire::open(world.server.endpoint());
            wire.send(&request[..cut]);
            wire.finish();
            // With or without an answer: a request that is half here was not accepted.
            let statuses = wire.until_the_end();
            assert!(statuses.iter().all(|status| *status == 400 || *status == 408), "{statuses:?}");
        }
    }
    agent.silence();
    // A client that has sent its whole request is answered, also when nothing more can come.
    let mut wire = Wire::open(world.server.endpoint());
    wire.send(post(&to, "", "said everything"));
    wire.finish();
    assert_eq!(wire.until_the_end(), [201]);
    receive(&mut agent, &["said everything"]);
}
