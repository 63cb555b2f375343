//! The HTTP conformance table of the endpoint port, over real sockets (RFC 9112, RFC 9110, BEHAVIOUR.md 2).

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use common::{PATIENCE, Subscription, UserAgent, World};
use murre_bench::http::{self, Response};

const GOOD: &str = "TTL: 60\r\nContent-Encoding: aes128gcm\r\n";

/// One connection of an app server, byte by byte.
struct Wire {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Wire {
    fn open(world: &World) -> Wire {
        let stream = TcpStream::connect(world.server.endpoint()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Wire { stream, inbox: Vec::new() }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Wire {
        // The server may have said no and closed before the last byte.
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// The next response; `None` at the end of the stream. A HEAD's must be read with [`Wire::rest`].
    fn next(&mut self) -> Option<Response> {
        loop {
            if let Some((response, used)) = http::parse(&self.inbox).unwrap() {
                self.inbox.drain(..used);
                return Some(response);
            }
            match http::read_more(&mut self.stream, &mut self.inbox) {
                Ok(0) => {
                    assert!(self.inbox.is_empty(), "half a response: {:?}", String::from_utf8_lossy(&self.inbox));
                    return None;
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer in {PATIENCE:?}: {error}"),
            }
        }
    }

    fn status(&mut self) -> u16 {
        self.next().expect("a response").status
    }

    /// Statuses until the server ends the connection.
    fn until_the_end(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.next()).map(|response| response.status).collect()
    }

    /// The server has ended the connection, and said nothing more.
    fn is_over(&mut self) {
        assert_eq!(self.until_the_end(), [0u16; 0]);
    }

    /// Everything until the end of the stream.
    fn rest(&mut self) -> String {
        let mut bytes = std::mem::take(&mut self.inbox);
        self.stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

fn path(subscription: &Subscription) -> &str {
    subscription.url.strip_prefix("http://push.test").unwrap()
}

/// A POST with these header lines beside the usual ones.
fn post(to: &Subscription, lines: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}Content-Length: {length}\r\n{lines}\r\n{body}", path(to))
}

fn post_chunked(to: &Subscription, body: &str) -> String {
    format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}Transfer-Encoding: chunked\r\n\r\n{body}", path(to))
}

async fn receive(agent: &mut UserAgent, texts: &[&str]) {
    let mut notes = Vec::new();
    for text in texts {
        notes.push(agent.note().await);
        assert_eq!(notes.last().unwrap().text(), *text);
    }
    agent.ack(&notes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_kept_until_its_last_request() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let mut wire = Wire::open(&world);
    for n in 0..20 {
        let response = wire.send(post(&to, "", &n.to_string())).next().unwrap();
        assert_eq!((response.status, response.header("connection")), (201, None));
        assert!(response.header("date").is_some_and(|date| date.ends_with(" GMT")));
        receive(&mut agent, &[&n.to_string()]).await;
    }
    // A line end behind a body, as old senders write it, is no request (RFC 9112 section 2.2).
    assert_eq!(wire.send("\r\n").send(post(&to, "", "behind a line end")).status(), 201);
    let last = wire.send(post(&to, "Connection: TE, Close\r\n", "last")).next().unwrap();
    assert_eq!((last.status, last.header("connection")), (201, Some("close")));
    wire.is_over();
    receive(&mut agent, &["behind a line end", "last"]).await;
    let mut old = Wire::open(&world);
    assert_eq!(old.send("GET /health HTTP/1.0\r\n\r\n").until_the_end(), [200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_requests_in_one_write_are_answered_in_order() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let bodies: Vec<String> = (0..16).map(|n| format!("number {n}")).collect();
    let all: String = bodies.iter().map(|body| post(&to, "", body)).collect();
    // At once, and cut where no request ends.
    for step in [all.len(), 37] {
        let mut wire = Wire::open(&world);
        for piece in all.as_bytes().chunks(step) {
            wire.send(piece);
        }
        let mut notes = Vec::new();
        for body in &bodies {
            let response = wire.next().unwrap();
            assert_eq!(response.status, 201);
            let note = agent.note().await;
            assert_eq!(note.text(), body);
            assert!(response.header("location").unwrap().ends_with(&note.version), "answers are in order");
            notes.push(note);
        }
        agent.ack(&notes).await;
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
    let mut wire = Wire::open(&world);
    assert_eq!(wire.send(mixed.concat()).until_the_end(), [201, 201, 404, 204, 400, 400, 200, 413, 201]);
    receive(&mut agent, &["one", "two", "three"]).await;
    agent.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_in_chunks_with_extensions_and_trailers() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let mut wire = Wire::open(&world);
    for body in [
        "4\r\nWiki\r\n5;a=b;c=\"d;e\"\r\npedia\r\n0\r\n\r\n",
        "00000004;x\r\nWiki\r\n5 ;y\r\npedia\r\n0;last\r\nExpires: never\r\nX: \r\n\r\n",
        "1\r\nW\r\n1\r\ni\r\n1\r\nk\r\n1\r\ni\r\n5\r\npedia\r\n0\r\nContent-Length: 5\r\n\r\n",
    ] {
        for piece in post_chunked(&to, body).as_bytes().chunks(19) {
            wire.send(piece);
        }
        assert_eq!(wire.status(), 201, "{body}");
        receive(&mut agent, &["Wikipedia"]).await;
    }
    for (body, status) in [
        ("5\r\nab\r\n0\r\n\r\n", 400),
        ("-1\r\n", 400),
        ("0x4\r\n", 400),
        ("123456789\r\n", 400),
        ("4\nWiki\n0\n\n", 400),
        ("4\r\nWikiX\r\n", 400),
        ("0\r\nno trailer\r\n\r\n", 400),
        ("0\r\nA: b\r\n folded\r\n\r\n", 400),
    ] {
        let mut wire = Wire::open(&world);
        assert_eq!(wire.send(post_chunked(&to, body)).until_the_end(), [status], "{body:?}");
    }
    let trailers = format!("1\r\nx\r\n0\r\n{}\r\n", "A: b\r\n".repeat(17));
    assert_eq!(Wire::open(&world).send(post_chunked(&to, &trailers)).until_the_end(), [431]);
    agent.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_requests_are_ended_with_408_and_idle_connections_without_a_word() {
    // Long enough for a client that its host keeps waiting, and all wait together.
    let world = World::with(&["--set", "http.request_timeout=5", "--set", "http.keep_alive=6"]);
    let (mut agent, to) = world.subscriber().await;
    let whole = post(&to, "", "slow body");
    let (head, _) = whole.split_at(whole.len() - 5);
    // Idle, fresh and kept: nobody asked anything.
    let (mut idle, mut kept) = (Wire::open(&world), Wire::open(&world));
    kept.send(post(&to, "", "in time"));
    let begun = [("head", &whole[..40]), ("first byte", &whole[..1]), ("body", head)].map(|(what, begun)| {
        let mut wire = Wire::open(&world);
        wire.send(begun);
        (what, wire)
    });
    // One byte at a time does not buy more time: the head would be whole after a minute.
    let (mut slow, endless) = (Wire::open(&world), format!("POST {} HTTP/1.1\r\nX: {}", path(&to), "y".repeat(3_000)));
    for byte in endless.bytes() {
        if slow.stream.write_all(&[byte]).is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for (what, mut wire) in begun.into_iter().chain([("one byte at a time", slow)]) {
        let response = wire.next().unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!((response.status, response.header("connection")), (408, Some("close")), "{what}");
        wire.is_over();
    }
    idle.is_over();
    assert_eq!(kept.until_the_end(), [201]);
    receive(&mut agent, &["in time"]).await;
    agent.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_leaves_early_has_sent_nothing() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let whole = post(&to, "", "never whole");
    let chunked = post_chunked(&to, "5\r\nnever\r\n6\r\n whole\r\n0\r\n\r\n");
    for request in [&whole, &chunked] {
        for cut in [request.len() - 1, request.len() - 8, request.len() / 2, 10] {
            let mut wire = Wire::open(&world);
            wire.send(&request[..cut]);
            wire.stream.shutdown(Shutdown::Write).unwrap();
            // Told or not: what is half here was not accepted.
            let statuses = wire.until_the_end();
            assert!(statuses.iter().all(|status| *status == 400 || *status == 408), "{statuses:?}");
        }
    }
    agent.silence().await;
    // Whoever has said everything is answered, also when nothing more can come.
    let mut wire = Wire::open(&world);
    wire.send(post(&to, "", "said everything"));
    wire.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wire.until_the_end(), [201]);
    receive(&mut agent, &["said everything"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_bounds() {
    let world = World::start();
    let line = |bytes: usize| format!("X: {}\r\n", "y".repeat(bytes - 5));
    let head = |lines: &str| format!("GET /health HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
    let bare = head("").len();
    for (what, lines, status) in [
        ("100 lines", "A: b\r\n".repeat(99), 200),
        ("101 lines", "A: b\r\n".repeat(100), 431),
        ("just 16 KiB", line(16 * 1024 - bare), 200),
        ("a byte more", line(16 * 1024 - bare + 1), 431),
        ("200 KB", line(200_000), 431),
        ("no line end", "y".repeat(20_000), 431),
    ] {
        let mut wire = Wire::open(&world);
        assert_eq!(wire.send(head(&lines)).status(), status, "{what}");
        if status == 431 {
            wire.is_over();
        }
    }
    let long = format!("POST /wpush/v3/{} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "A".repeat(9_000));
    assert_eq!(Wire::open(&world).send(long).next().unwrap().errno(), Some(102));
    for garbage in [&b"\x16\x03\x01\x02\x00\x01"[..], b"\0\0\0", b"hello\r\n\r\n", b"GET\r\n\r\n"] {
        assert_eq!(Wire::open(&world).send(garbage).until_the_end(), [400], "{garbage:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_beyond_the_limit_are_413_and_beyond_reason_the_end() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let mut wire = Wire::open(&world);
    for (length, status) in [(5_630, 201), (5_631, 413), (60_000, 413), (5_630, 201)] {
        let response = wire.send(post(&to, "", &"x".repeat(length))).next().unwrap();
        assert_eq!(response.status, status, "{length}");
        assert_eq!(response.errno(), (status == 413).then_some(104));
    }
    let in_chunks = post_chunked(&to, &format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(5_630)));
    assert_eq!(wire.send(in_chunks).status(), 201);
    for endless in [
        format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}Content-Length: 99999999999\r\n\r\n", path(&to)),
        post_chunked(&to, &format!("1000\r\n{}\r\n", "z".repeat(4_096)).repeat(64)),
        post_chunked(&to, &format!("1;{}\r\nx\r\n", "e".repeat(200)).repeat(1_000)),
    ] {
        let mut wire = Wire::open(&world);
        let response = wire.send(&endless).next().unwrap();
        assert_eq!((response.status, response.errno(), response.header("connection")), (413, Some(104), Some("close")));
        wire.is_over();
    }
    for _ in 0..3 {
        assert_eq!(agent.note().await.body.len(), 5_630);
    }
    agent.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_first_is_told_to_go_on_or_not() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let head = |path: &str, version: &str, lines: &str| {
        format!("POST {path} HTTP/{version}\r\nHost: h\r\n{GOOD}Expect: 100-continue\r\n{lines}\r\n")
    };
    let mut wire = Wire::open(&world);
    for (lines, body) in
        [("Content-Length: 4\r\n", "body"), ("Transfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n")]
    {
        assert_eq!(wire.send(head(path(&to), "1.1", lines)).status(), 100);
        assert_eq!(wire.send(body).status(), 201);
        receive(&mut agent, &["body"]).await;
    }
    // Nothing to go on with.
    assert_eq!(wire.send(head(path(&to), "1.1", "Content-Length: 0\r\n")).status(), 201);
    agent.note().await;
    for (what, path, lines, status) in [
        ("unknown token", "/wpush/v3/x", "Content-Length: 4\r\n", 404),
        ("too large", path(&to), "Content-Length: 6000\r\n", 413),
        ("unknown scheme", path(&to), "Content-Length: 4\r\nAuthorization: Basic x\r\n", 401),
        ("wrong method", "/m/x", "Content-Length: 4\r\n", 405),
    ] {
        let mut wire = Wire::open(&world);
        assert_eq!(wire.send(head(path, "1.1", lines)).until_the_end(), [status], "{what}");
    }
    // An old client cannot have asked (RFC 9110 section 10.1.1).
    let mut wire = Wire::open(&world);
    assert_eq!(wire.send(head(path(&to), "1.0", "Content-Length: 4\r\n") + "body").until_the_end(), [201]);
    receive(&mut agent, &["body"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_and_options_are_answered_everywhere_and_say_nothing() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let ask = |method: &str, path: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let text = Wire::open(&world).send(request).rest();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse::<u16>().unwrap(), head.to_owned(), body.to_owned())
    };
    for target in [path(&to), "/wpush/v1/unknown", "/wpush/unknown", "/m/unknown"] {
        let (status, head, body) = ask("HEAD", target);
        assert_eq!((status, body.as_str()), (200, ""), "{target}: {head}");
        let (status, head, _) = ask("OPTIONS", target);
        assert_eq!(status, 204, "{target}");
        assert!(head.contains(", HEAD, OPTIONS") && !head.contains("Content-Length"), "{head}");
        let (status, head, body) = ask("GET", target);
        assert_eq!(status, 405, "{target}");
        assert!(head.contains("\r\nAllow: ") && body.contains("\"errno\":null"), "{head} {body}");
    }
    // As GET would be answered, without the body (RFC 9110 section 9.3.2).
    for target in ["/health", "/__version__", "/no/such/path"] {
        let (get, head) = (ask("GET", target), ask("HEAD", target));
        let length = format!("\r\nContent-Length: {}", get.2.len());
        assert_eq!((get.0, head.2.as_str()), (head.0, ""), "{target}");
        assert!(get.1.contains(&length) && head.1.contains(&length), "{target}");
    }
    assert_eq!(ask("OPTIONS", "*").0, 204);
    assert_eq!(ask("GET", "*").0, 400);
    agent.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_of_any_origin_may_post_and_read_where_the_message_is() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let preflight = format!(
        "OPTIONS {} HTTP/1.1\r\nHost: h\r\nOrigin: https://app.example\r\n\
         Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: ttl, content-encoding\r\n\r\n",
        path(&to)
    );
    let mut wire = Wire::open(&world);
    let response = wire.send(preflight).next().unwrap();
    assert_eq!(response.status, 204);
    assert_eq!(response.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(response.header("access-control-allow-methods"), Some("DELETE, GET, POST, PUT"));
    assert_eq!(response.header("access-control-allow-headers"), Some("ttl, content-encoding"));
    assert_eq!(response.header("access-control-max-age"), Some("3600"));
    let origin = "Origin: https://app.example\r\n";
    let response = wire.send(post(&to, origin, "from a page")).next().unwrap();
    assert_eq!(response.status, 201);
    assert_eq!(response.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(response.header("access-control-expose-headers").unwrap().contains("location"));
    assert_eq!(response.header("vary"), Some("Origin"));
    assert_eq!(response.header("access-control-allow-credentials"), None);
    receive(&mut agent, &["from a page"]).await;
    // A page may also read why it was refused.
    let response = wire.send(post(&to, &format!("{origin}Topic: !\r\n"), "x")).next().unwrap();
    assert_eq!((response.status, response.header("access-control-allow-origin")), (400, Some("https://app.example")));
}

/// A request that two parsers might cut differently; the second in it must never be answered.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_smuggle_a_request_is_refused_and_ends_the_connection() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let hidden = post(&to, "", "smuggled");
    let cases = [
        ("two lengths", "Content-Length: 5\r\nContent-Length: 0\r\n", "12345"),
        ("the same length twice", "Content-Length: 5\r\nContent-Length: 5\r\n", "12345"),
        ("a list of lengths", "Content-Length: 5, 5\r\n", "12345"),
        ("length and chunks", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("chunks and length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
        ("negative length", "Content-Length: -1\r\n", ""),
        ("length with a sign", "Content-Length: +5\r\n", "12345"),
        ("length in hexadecimal", "Content-Length: 0x5\r\n", "12345"),
        ("no length", "Content-Length:\r\n", ""),
        ("length beyond 64 bits", "Content-Length: 18446744073709551616\r\n", ""),
        ("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("chunked twice in a list", "Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
        ("chunked before another", "Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"),
        ("chunked behind another", "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        ("identity", "Transfer-Encoding: identity\r\n", "0\r\n\r\n"),
        ("nearly chunked", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        ("chunked with a parameter", "Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n"),
        ("vertical tab", "Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"),
        ("blank before the colon", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("folded line", "X: y\r\n Content-Length: 5\r\n", "12345"),
        ("bare line feed", "X: y\nContent-Length: 5\r\n", "12345"),
        ("bare carriage return", "X: y\rContent-Length: 5\r\n", "12345"),
        ("NUL", "X: \0\r\n", ""),
        ("line without a colon", "Content-Length 5\r\n", "12345"),
        ("line without a name", ": 5\r\n", ""),
        ("two hosts", "Host: other\r\n", ""),
    ];
    for (what, lines, body) in cases {
        let head = format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}{lines}\r\n", path(&to));
        let mut wire = Wire::open(&world);
        assert_eq!(wire.send(format!("{head}{body}{hidden}")).until_the_end(), [400], "{what}");
    }
    for (what, line) in [
        ("HTTP/1.0 with chunks", format!("POST {} HTTP/1.0\r\nTransfer-Encoding: chunked", path(&to))),
        ("two blanks", format!("POST  {} HTTP/1.1\r\nHost: h", path(&to))),
        ("tab", format!("POST\t{} HTTP/1.1\r\nHost: h", path(&to))),
        ("blank at the end", format!("POST {} HTTP/1.1 \r\nHost: h", path(&to))),
        ("blank before the first line", format!("POST {} HTTP/1.1\r\n Host: h", path(&to))),
        ("no host", format!("POST {} HTTP/1.1", path(&to))),
        ("bad host", format!("POST {} HTTP/1.1\r\nHost: a/b", path(&to))),
        ("another version", format!("POST {} HTTP/2.0\r\nHost: h", path(&to))),
        ("no version", format!("POST {}\r\nHost: h", path(&to))),
        ("neither path nor URL", "POST wpush/v3/x HTTP/1.1\r\nHost: h".to_owned()),
        ("a URL of another kind", "POST ftp://h/wpush/v3/x HTTP/1.1\r\nHost: h".to_owned()),
    ] {
        let mut wire = Wire::open(&world);
        assert_eq!(wire.send(format!("{line}\r\n{GOOD}\r\n{hidden}")).until_the_end(), [400], "{what}");
    }
    agent.silence().await;
    // Odd and allowed.
    for target in [format!("http://push.test{}", path(&to)), format!("HTTP://h:1{}?query", path(&to))] {
        let request = format!("POST {target} HTTP/1.1\r\nhOST:\r\n{GOOD}content-LENGTH:  \t4 \t\r\n\r\nbody");
        assert_eq!(Wire::open(&world).send(request).status(), 201, "{target}");
        receive(&mut agent, &["body"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_headers_and_its_body() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let gone = agent.register(None).await;
    agent.unregister(&gone.channel).await;
    let unknown = "POST /wpush/v3/x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n".to_owned();
    let cases = [
        (unknown, 404, Some(102), "Not Found", None),
        (
            post(&to, "Authorization: Basic x\r\n", "b"),
            401,
            Some(109),
            "Unauthorized",
            Some(("www-authenticate", "vapid")),
        ),
        (post(&gone, "", "b"), 410, Some(106), "Gone", Some(("cache-control", "max-age=86400"))),
        // The owner's 410 comes before every rule about headers and size (BEHAVIOUR.md 2.3).
        (post(&gone, "Topic: !\r\n", &"b".repeat(6_000)), 410, Some(106), "Gone", None),
        (post(&to, "Topic: !\r\n", "b"), 400, Some(113), "Bad Request", None),
        (post(&to, "Urgency: low\r\nUrgency: high\r\n", "b"), 400, None, "Bad Request", None),
        (post(&to, "Encryption: salt=AA\r\n", "b"), 400, Some(110), "Bad Request", None),
        (post(&to, "", &"b".repeat(6_000)), 413, Some(104), "Payload Too Large", None),
        ("DELETE /m/x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400, None, "Bad Request", None),
        (
            "PUT /m/x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
            405,
            None,
            "Method Not Allowed",
            Some(("allow", "DELETE, HEAD, OPTIONS")),
        ),
        ("GET /x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 404, None, "Not Found", None),
    ];
    let mut wire = Wire::open(&world);
    for (request, status, errno, error, header) in cases {
        let response = wire.send(&request).next().unwrap();
        assert_eq!((response.status, response.errno()), (status, errno), "{request}");
        assert_eq!(response.header("content-type"), Some("application/json"));
        if let Some((name, value)) = header {
            assert_eq!(response.header(name), Some(value), "{request}");
        }
        let body = String::from_utf8(response.body).unwrap();
        let begins = format!(
            r#"{{"code":{status},"errno":{},"error":"{error}","message":""#,
            errno.map_or("null".to_owned(), |errno| errno.to_string())
        );
        assert!(body.starts_with(&begins) && body.contains(r#"","more_info":"http"#), "{body}");
    }
    agent.silence().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_names_one_version_and_recalls_nothing() {
    let world = World::start();
    let (mut agent, to) = world.subscriber().await;
    let sent = world.post(&to, 3600, "already there").await.id();
    assert_eq!(agent.note().await.text(), "already there");
    assert_eq!(world.cancel(&sent).await.status, 204);
    agent.silence().await;
    let uaid = agent.uaid.clone();
    agent.leave().await;
    let topic = |body: &'static str| to.request(3600).header("topic", "mail").body(body);
    let older = world.send(topic("older")).await.id();
    let newer = world.send(topic("newer")).await.id();
    for id in [&older, &sent] {
        assert_eq!(world.cancel(id).await.status, 204);
    }
    // Neither what was cancelled after it was sent, nor what the newer one replaced; and the newer one.
    let mut agent = world.agent(Some(&uaid)).await;
    let note = agent.note().await;
    assert_eq!((note.text(), &note.version), ("newer", &newer));
    agent.silence().await;
}
