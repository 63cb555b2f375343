//! Half messages and half bodies: a shard holds a bounded number of bytes of them.

use machine::CloseReason;
use runtime::ports::Port;

use super::*;

/// Bytes of a fragment.
const FRAGMENT: usize = 1_000;

/// An edge with room for about twenty fragments, which is half of the room of all ports.
fn small() -> PushEdge {
    PushEdge::new(&EdgeConfig { unfinished_bytes_max: 40 * FRAGMENT, ..config() }).unwrap()
}

/// Text frame that is the first of its message and not the last.
fn fragment() -> Vec<u8> {
    let mut bytes = Vec::new();
    ws::write_masked(&mut bytes, Opcode::Text, [1, 2, 3, 4], &[b' '; FRAGMENT]);
    bytes[0] = 0x01;
    bytes
}

fn last(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    ws::write_masked(&mut bytes, Opcode::Text, [1, 2, 3, 4], text);
    bytes[0] = 0x80;
    bytes
}

impl Harness {
    /// Continues with another connection of the same edge. Returns the codec of the one before.
    fn change(&mut self, codec: Codec) -> Codec {
        (self.ended, self.aside) = (false, Vec::new());
        self.steps.clear();
        std::mem::replace(&mut self.codec, codec)
    }

    /// Continues with a new connection of this port, or a session.
    fn next(&mut self, port: Option<Port>) -> Codec {
        let codec = match port {
            Some(port) => self.edge.open(port, false),
            None => self.edge.arrived(),
        };
        self.change(codec)
    }

    /// Opens sessions with half a message each, until one is ended.
    fn fill(&mut self) -> Vec<Codec> {
        let mut within = Vec::new();
        while !self.feed(&fragment()).ended() {
            within.push(self.next(None));
        }
        within
    }
}

#[test]
fn fragments_beyond_the_bound_close_1013_and_the_others_live_on() {
    let mut harness = Harness::with(small(), Port::WebSocket);
    harness.next(None);
    let mut within = harness.fill();
    assert!((17..20).contains(&within.len()), "{} have room", within.len());
    assert_eq!(harness.steps[0], Step::Closed(CloseReason::Overloaded));
    assert_eq!(harness.goodbye(), (1013, "Overloaded".to_string()));
    assert_eq!(harness.edge.stats().unfinished_refused, 1);
    assert!(harness.edge.unfinished.used() <= 20 * FRAGMENT);

    // Whole messages need no room.
    harness.next(None);
    harness.feed_text(r#"{"messageType":"ping"}"#);
    assert_eq!(harness.steps[0], Step::Asked("Ping".to_string()));

    // The end of a message makes room.
    harness.change(within.pop().unwrap());
    harness.feed(&last(b"{}"));
    assert_eq!(harness.steps[0], Step::Asked("Ping".to_string()));
    harness.next(None);
    assert!(!harness.feed(&fragment()).ended());

    // A connection that holds some bytes and takes more is refused in the same way.
    let other = within.pop().unwrap();
    within.push(harness.change(other));
    let mut more = fragment();
    more[0] = 0x00;
    harness.feed(&more);
    assert_eq!(harness.goodbye().0, 1013);
    assert_eq!(harness.edge.stats().unfinished_refused, 2);

    // Ended connections hold nothing.
    drop(within);
    harness.next(None);
    assert_eq!(harness.edge.unfinished.used(), 0);
}

/// The head of a POST without its length.
fn post_head() -> String {
    let path = endpoint_path(TokenForm::Short, None);
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 1\r\nContent-Encoding: aes128gcm\r\n")
}

#[test]
fn bodies_beyond_the_bound_are_answered_503() {
    let mut harness = Harness::with(small(), Port::Endpoint);
    let head = post_head();
    let half = format!("{head}Content-Length: 4000\r\n\r\nbegun");
    let mut within = Vec::new();
    while !harness.feed(half.as_bytes()).ended() {
        within.push(harness.next(Some(Port::Endpoint)));
        assert!(within.len() < 10, "nothing is refused");
    }
    assert_eq!(harness.fault().0, 503);
    let head_written = harness.response().1;
    assert!(head_written.contains("Connection: close") && head_written.contains("Retry-After: 120"));
    assert!(harness.ended() && harness.commands.is_empty());
    assert_eq!(harness.edge.stats().unfinished_refused, 1);

    // A whole one needs no room.
    harness.next(Some(Port::Endpoint));
    harness.feed(format!("{head}Content-Length: 5\r\n\r\nwhole").as_bytes());
    assert_eq!(harness.statuses(), [201]);

    // There is room again. The request can come in any number of pieces, since its memory was taken at the start.
    drop(within);
    harness.next(Some(Port::Endpoint));
    harness.feed(format!("{head}Content-Length: 4000\r\n\r\n").as_bytes());
    let held = harness.edge.unfinished.used();
    assert!(held >= 4_000, "{held} bytes are held");
    for _ in 0..8 {
        assert!(!harness.ended());
        harness.feed(&[b'x'; 500]);
    }
    assert_eq!(harness.statuses(), [201]);
    assert_eq!(harness.edge.unfinished.used(), 0, "what is finished holds nothing");
}

/// Half messages of WebSocket clients must not take the memory of app servers, nor app servers that of other nodes.
#[test]
fn half_messages_and_half_bodies_leave_room_for_the_other_ports() {
    let mut harness = Harness::with(small(), Port::WebSocket);
    harness.next(None);
    let messages = harness.fill();
    let fragments = harness.edge.unfinished.used();
    assert!(fragments > 15 * FRAGMENT && messages.len() > 15);

    harness.next(Some(Port::Endpoint));
    harness.feed(format!("{}Content-Length: 5\r\n\r\nbe", post_head()).as_bytes()).feed(b"gun");
    assert_eq!(harness.statuses(), [201], "a body that comes in two segments");

    let mut bodies = Vec::new();
    harness.next(Some(Port::Endpoint));
    while !harness.feed(format!("{}Content-Length: 2000\r\n\r\nbegun", post_head()).as_bytes()).ended() {
        bodies.push(harness.next(Some(Port::Endpoint)));
        assert!(bodies.len() < 20, "nothing is refused");
    }
    harness.next(Some(Port::Node));
    let call = "PUT /notif/deadbeef000040008000000000000001 HTTP/1.1\r\nHost: h\r\n";
    harness.feed(format!("{call}Authorization: Bearer {NODE_KEY}\r\nContent-Length: 2\r\n\r\n{{").as_bytes());
    harness.feed(b"}");
    assert!(!harness.ended(), "the call of another node is refused");
    assert_eq!(harness.commands.len(), 2, "the POST and the call");
}

/// The loop ends the oldest connections until there is room, and their goodbyes take two seconds.
#[test]
fn what_is_being_ended_holds_nothing() {
    let mut harness = Harness::with(small(), Port::WebSocket);
    harness.next(None);
    harness.feed(&fragment());
    assert!(harness.edge.unfinished.used() > FRAGMENT);
    harness.close(CloseReason::Overloaded);
    assert_eq!(harness.edge.unfinished.used(), 0, "half a message");

    harness.next(Some(Port::Endpoint));
    harness.feed(format!("{}Content-Length: 4000\r\n\r\nbegun", post_head()).as_bytes());
    assert!(harness.edge.unfinished.used() > 4_000);
    harness.close(CloseReason::Overloaded);
    assert_eq!(harness.edge.unfinished.used(), 0, "half a body");
}

#[test]
fn what_unfinished_input_holds_is_shown() {
    let mut harness = Harness::with(small(), Port::WebSocket);
    harness.next(None);
    harness.feed(&fragment());
    let message = harness.next(Some(Port::Endpoint));
    harness.feed(format!("{}Content-Length: 4000\r\n\r\nbegun", post_head()).as_bytes());
    let board = machine::stats::Board::new(&[PushEdge::MEANINGS]);
    let shown = |harness: &Harness, name: &str| {
        harness.edge.write_to(&board, 0);
        board.read().find(|(meaning, _)| meaning.name == name).unwrap().1
    };
    assert!((1_000..2_000).contains(&shown(&harness, "unfinished_fragment_bytes")));
    assert!((4_000..6_000).contains(&shown(&harness, "unfinished_body_bytes")));
    drop(message);
    assert_eq!(shown(&harness, "unfinished_fragment_bytes"), 0);
}
