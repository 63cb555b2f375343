//! Half messages and half bodies: what one shard holds of them together has a bound.

use shards::machine::CloseReason;
use shards::ports::Port;

use super::*;

/// Bytes of a fragment.
const FRAGMENT: usize = 1_000;

/// An edge with room for about twenty fragments.
fn small() -> PushEdge {
    PushEdge::new(&EdgeConfig { unfinished_bytes_max: 20 * FRAGMENT, ..config() }).unwrap()
}

/// A text frame that is the first of its message and not the last.
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
    /// Goes on with another connection of the same edge; the codec of the one before.
    fn change(&mut self, codec: Codec) -> Codec {
        (self.ended, self.aside) = (false, Vec::new());
        self.steps.clear();
        std::mem::replace(&mut self.codec, codec)
    }

    /// Goes on with a new connection of this port, or a session.
    fn next(&mut self, port: Option<Port>) -> Codec {
        let codec = match port {
            Some(port) => self.edge.open(port),
            None => self.edge.arrived(),
        };
        self.change(codec)
    }

    /// Sessions with half a message each, until one is ended.
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

    // What was begun is finished, and makes room.
    harness.change(within.pop().unwrap());
    harness.feed(&last(b"{}"));
    assert_eq!(harness.steps[0], Step::Asked("Ping".to_string()));
    harness.next(None);
    assert!(!harness.feed(&fragment()).ended());

    // Who holds some already and wants more is treated alike.
    let other = within.pop().unwrap();
    within.push(harness.change(other));
    let mut more = fragment();
    more[0] = 0x00;
    harness.feed(&more);
    assert_eq!(harness.goodbye().0, 1013);
    assert_eq!(harness.edge.stats().unfinished_refused, 2);

    // Nothing is held for those who are gone.
    drop(within);
    harness.next(None);
    assert_eq!(harness.edge.unfinished.used(), 0);
}

#[test]
fn bodies_beyond_the_bound_are_answered_503() {
    let mut harness = Harness::with(small(), Port::WebSocket);
    harness.next(None);
    let within = harness.fill();
    let path = endpoint_path(TokenForm::Short, None);
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nTTL: 1\r\nContent-Encoding: aes128gcm\r\n");

    harness.next(Some(Port::Endpoint));
    harness.feed(format!("{head}Content-Length: 4000\r\n\r\nbegun").as_bytes());
    assert_eq!(harness.fault().0, 503);
    let head_written = harness.response().1;
    assert!(head_written.contains("Connection: close") && head_written.contains("Retry-After: 120"));
    assert!(harness.ended() && harness.commands.is_empty());
    assert_eq!(harness.edge.stats().unfinished_refused, 2);

    // A whole one needs no room.
    harness.next(Some(Port::Endpoint));
    harness.feed(format!("{head}Content-Length: 5\r\n\r\nwhole").as_bytes());
    assert_eq!(harness.statuses(), [201]);

    // There is room again: it may come in as many pieces as it likes, since its memory was taken at the start.
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
