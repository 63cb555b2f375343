//! Any split of the bytes gives the same commands, the same output and the same end; and no bytes make it panic.

use proptest::prelude::*;
use runtime::ports::Port;

use super::*;

/// Feeds `bytes` cut at `cuts`. Returns the steps, neighbouring outputs joined.
fn run(port: Port, bytes: &[u8], cuts: &[usize]) -> Vec<Step> {
    let mut harness = Harness::new(port);
    let mut start = 0;
    for &cut in cuts {
        let cut = cut.clamp(start, bytes.len());
        harness.feed(&bytes[start..cut]);
        start = cut;
    }
    harness.feed(&bytes[start..]);
    let mut joined: Vec<Step> = Vec::new();
    for step in harness.steps {
        match (joined.last_mut(), step) {
            (Some(Step::Out(last)), Step::Out(more)) => last.extend_from_slice(&more),
            (_, step) => joined.push(step),
        }
    }
    joined
}

fn cuts(bytes: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..bytes.max(1), 0..12).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts
    })
}

fn same_however_split(port: Port, bytes: &[u8], cuts: &[usize]) -> Result<(), TestCaseError> {
    let whole = run(port, bytes, &[]);
    prop_assert_eq!(&run(port, bytes, cuts), &whole);
    let every: Vec<usize> = (0..bytes.len().min(3000)).collect();
    prop_assert_eq!(&run(port, bytes, &every), &whole);
    Ok(())
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ws::write_masked(&mut out, Opcode::Text, [3, 1, 4, 1], payload);
    out[0] = first;
    out
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let text = |message: &'static str| Just(frame(0x81, message.as_bytes()));
    prop_oneof![
        4 => text("{}"),
        2 => text(r#"{"messageType":"register","channelID":"deadbeef-0000-4000-8000-000000000001"}"#),
        2 => text(r#"{"messageType":"register","channelID":"deadbeef-0000-4000-8000-000000000001","key":"AA"}"#),
        2 => text(r#"{"messageType":"unregister","channelID":"deadbeef-0000-4000-8000-000000000001","code":200}"#),
        1 => text(r#"{"messageType":"nack","version":"v"}"#),
        1 => text(r#"{"messageType":"ack","updates":[]}"#),
        1 => text(r#"{"messageType":"hello"}"#),
        4 => Just([frame(0x01, b"{"), frame(0x89, b"x"), frame(0x00, b""), frame(0x80, b"}")].concat()),
        4 => "[a-z]{0,9}".prop_map(|payload| frame(0x89, payload.as_bytes())),
        2 => Just(frame(0x8a, b"")),
        1 => Just(frame(0x88, b"\x03\xe8")),
        1 => Just(frame(0x82, b"binary")),
        1 => Just(frame(0x81, b"\xff")),
        1 => Just(frame(0x81, &[b' '; 300])),
        1 => prop::collection::vec(any::<u8>(), 1..20),
    ]
}

fn session() -> impl Strategy<Value = Vec<u8>> {
    let hello = frame(0x81, br#"{"messageType":"hello","uaid":"deadbeef000040008000000000000001"}"#);
    prop::collection::vec(frames(), 0..8)
        .prop_map(move |frames| [UPGRADE.as_bytes().to_vec(), hello.clone(), frames.concat()].concat())
}

/// As above, on a relay.
fn relay_session() -> impl Strategy<Value = Vec<u8>> {
    let text = |message: &'static str| Just(frame(0x81, message.as_bytes()));
    let message = prop_oneof![
        2 => text(r#"{"messageType":"hello"}"#),
        2 => text(r#"{"messageType":"hello","uaid":"deadbeef000040008000000000000001"}"#),
        2 => text(r#"{"messageType":"bye","uaid":"deadbeef000040008000000000000001"}"#),
        2 => text(concat!(
            r#"{"messageType":"unregister","channelID":"deadbeef-0000-4000-8000-000000000001","#,
            r#""uaid":"deadbeef000040008000000000000001"}"#
        )),
        2 => text(concat!(
            r#"{"messageType":"register","channelID":"deadbeef-0000-4000-8000-000000000001","key":"AA","#,
            r#""uaid":"deadbeef000040008000000000000001"}"#
        )),
        6 => frames(),
    ];
    let hello = frame(0x81, br#"{"messageType":"hello","relay":true}"#);
    prop::collection::vec(message, 0..8)
        .prop_map(move |frames| [UPGRADE.as_bytes().to_vec(), hello.clone(), frames.concat()].concat())
}

fn good_path() -> String {
    // Sealed once: the text of a token is different each time.
    static PATH: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PATH.get_or_init(|| endpoint_path(TokenForm::Short, None)).clone()
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let post =
        |lines: &str, body: &str| format!("POST {} HTTP/1.1\r\nHost: h\r\n{lines}\r\n{body}", good_path()).into_bytes();
    let good = "TTL: 5\r\nContent-Encoding: aes128gcm\r\n";
    let chunks = "3;x\r\nabc\r\n1\r\nd\r\n0\r\nT: x\r\n\r\n";
    prop_oneof![
        4 => Just(post(&format!("{good}Content-Length: 5\r\n"), "hello")),
        4 => Just(post(&format!("{good}Transfer-Encoding: chunked\r\n"), chunks)),
        2 => Just(post(&format!("{good}Content-Length: 6000\r\n"), &"x".repeat(6000))),
        1 => Just(post(&format!("{good}Content-Length: 66000\r\n"), "x")),
        1 => Just(post(&format!("{good}Transfer-Encoding: chunked\r\n"), "20000\r\nabc")),
        2 => Just(post(&format!("{good}Expect: 100-continue\r\nContent-Length: 2\r\n"), "hi")),
        1 => Just(post(&format!("{good}Transfer-Encoding: chunked\r\n"), "1\r\na\r\n0\r\nno trailer\r\n\r\n")),
        1 => Just(post("Connection: close\r\n", "")),
        1 => Just(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n".to_vec()),
        1 => Just(b"GET /health HTTP/1.1\r\n\r\n".to_vec()),
        2 => Just(b"\r\nDELETE /m/x HTTP/1.1\r\nHost: h\r\nOrigin: o\r\n\r\n".to_vec()),
        2 => Just(b"GET /health?x HTTP/1.1\r\nHost: h\r\n\r\n".to_vec()),
        2 => Just(b"POST /wpush/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc".to_vec()),
        1 => Just(b"GET / HTTP/1.0\r\n\r\n".to_vec()),
        1 => Just(b"GET / HTTP/1.1\r\nHost: h\r\nA: b\nC: d\r\n\r\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..30),
        1 => NEARLY_HTTP.prop_map(String::into_bytes),
    ]
}

fn node_requests() -> impl Strategy<Value = Vec<u8>> {
    let field = prop_oneof![
        Just(r#""channelID":"02020202-0202-0202-0202-020202020202""#.to_string()),
        Just(r#""timestamp":1"#.to_string()),
        Just(r#""headers":{"encoding":"aes128gcm"}"#.to_string()),
        "\"(data|version|ttl|urgency|x)\":(\"[ -~]{0,9}\"|-?[0-9]{1,3}|null)",
    ];
    let body = prop::collection::vec(field, 0..6).prop_map(|fields| format!("{{{}}}", fields.join(",")));
    prop::collection::vec(body, 1..4).prop_map(|bodies| {
        let request = |body: &String| {
            format!(
                "PUT /push/01010101010101010101010101010101 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {NODE_KEY}\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        bodies.iter().map(request).collect::<String>().into_bytes()
    })
}

const NEARLY_HTTP: &str =
    "[A-Z]{1,5} /[a-z]{0,5} HTTP/1.[01]\r\n(Host: h\r\n)?([A-Za-z-]{1,9}: [ -~]{0,9}\r\n){0,3}\r\n";

/// Bytes and the places of the cuts.
fn split(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    bytes.prop_flat_map(|bytes| {
        let cuts = cuts(bytes.len());
        (Just(bytes), cuts)
    })
}

/// Bytes with one of them changed, and its place.
fn changed(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = (Vec<u8>, usize)> {
    (bytes, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
        let at = at.index(bytes.len());
        bytes[at] = byte;
        (bytes, at)
    })
}

fn pipeline() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(requests(), 1..6).prop_map(|requests| requests.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn websockets((bytes, cuts) in split(session())) {
        same_however_split(Port::WebSocket, &bytes, &cuts)?;
    }

    #[test]
    fn relays((bytes, cuts) in split(relay_session())) {
        same_however_split(Port::WebSocket, &bytes, &cuts)?;
    }

    #[test]
    fn http((bytes, cuts) in split(pipeline())) {
        same_however_split(Port::Endpoint, &bytes, &cuts)?;
    }

    #[test]
    fn changed_bytes((bytes, at) in changed(pipeline())) {
        same_however_split(Port::Endpoint, &bytes, &[at])?;
    }

    #[test]
    fn changed_frames((bytes, at) in changed(session())) {
        same_however_split(Port::WebSocket, &bytes, &[at])?;
    }

    #[test]
    fn node_bodies((bytes, cuts) in split(node_requests())) {
        same_however_split(Port::Node, &bytes, &cuts)?;
    }

    #[test]
    fn garbage(bytes in prop::collection::vec(any::<u8>(), 0..300), port in 0usize..3, greeted in any::<bool>()) {
        let port = [Port::WebSocket, Port::Endpoint, Port::Node][port];
        let mut harness = if greeted { Harness::greeted() } else { Harness::new(port) };
        harness.feed(&bytes);
    }
}
