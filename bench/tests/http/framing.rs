//! End of a request: heads, bodies, chunks, their bounds, and requests that two parsers might cut differently.

use super::{GOOD, Wire, path, post, post_chunked, receive};
use crate::common::World;

#[test]
fn heads_have_bounds() {
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
        let mut wire = Wire::open(world.server.endpoint());
        assert_eq!(wire.send(head(&lines)).status(), status, "{what}");
        if status == 431 {
            wire.is_over();
        }
    }
    let long = format!("POST /wpush/v3/{} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "A".repeat(9_000));
    assert_eq!(Wire::open(world.server.endpoint()).send(long).next().unwrap().errno(), Some(102));
    for garbage in [&b"\x16\x03\x01\x02\x00\x01"[..], b"\0\0\0", b"hello\r\n\r\n", b"GET\r\n\r\n"] {
        assert_eq!(Wire::open(world.server.endpoint()).send(garbage).until_the_end(), [400], "{garbage:?}");
    }
}

/// As senders with post-quantum signatures need it: the longest head, with an authorization of 5 KB, in small pieces.
#[test]
fn long_heads_in_small_pieces_are_served_and_judged() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let long = "A".repeat(5_000);
    let head_of = |lines: &str| {
        let bare = post(&to, &format!("{lines}X-Fill: \r\n"), "").len();
        post(&to, &format!("{lines}X-Fill: {}\r\n", "y".repeat(16 * 1024 - bare)), "long")
    };
    for piece in [1_460, 97, 11] {
        for (lines, status, errno) in
            [(String::new(), 201, None), (format!("Authorization: vapid t={long}, k={long}\r\n"), 401, Some(109))]
        {
            let mut wire = Wire::open(world.server.endpoint());
            head_of(&lines).as_bytes().chunks(piece).for_each(|piece| wire.write(piece));
            let response = wire.response();
            assert_eq!((response.status, response.errno()), (status, errno), "in pieces of {piece}");
        }
        receive(&mut agent, &["long"]);
    }
}

#[test]
fn bodies_in_chunks_with_extensions_and_trailers() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let mut wire = Wire::open(world.server.endpoint());
    for body in [
        "4\r\nWiki\r\n5;a=b;c=\"d;e\"\r\npedia\r\n0\r\n\r\n",
        "00000004;x\r\nWiki\r\n5 ;y\r\npedia\r\n0;last\r\nExpires: never\r\nX: \r\n\r\n",
        "1\r\nW\r\n1\r\ni\r\n1\r\nk\r\n1\r\ni\r\n5\r\npedia\r\n0\r\nContent-Length: 5\r\n\r\n",
    ] {
        for piece in post_chunked(&to, body).as_bytes().chunks(19) {
            wire.send(piece);
        }
        assert_eq!(wire.status(), 201, "{body}");
        receive(&mut agent, &["Wikipedia"]);
    }
    for (body, status) in [
        ("5\r\nab\r\n0\r\n\r\n", 400),
        ("-1\r\n", 400),
        ("0x4\r\n", 400),
        ("123456789\r\n", 413),
        ("10000000000000000\r\n", 413),
        ("4\nWiki\n0\n\n", 400),
        ("4\r\nWikiX\r\n", 400),
        ("0\r\nno trailer\r\n\r\n", 400),
        ("0\r\nA: b\r\n folded\r\n\r\n", 400),
    ] {
        let mut wire = Wire::open(world.server.endpoint());
        assert_eq!(wire.send(post_chunked(&to, body)).until_the_end(), [status], "{body:?}");
    }
    let trailers = format!("1\r\nx\r\n0\r\n{}\r\n", "A: b\r\n".repeat(17));
    assert_eq!(Wire::open(world.server.endpoint()).send(post_chunked(&to, &trailers)).until_the_end(), [431]);
    agent.silence();
}

#[test]
fn bodies_beyond_the_limit_are_413_and_beyond_reason_the_end() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
    let mut wire = Wire::open(world.server.endpoint());
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
        let mut wire = Wire::open(world.server.endpoint());
        let response = wire.send(&endless).next().unwrap();
        assert_eq!((response.status, response.errno(), response.header("connection")), (413, Some(104), Some("close")));
        wire.is_over();
    }
    for _ in 0..3 {
        assert_eq!(agent.note().body.len(), 5_630);
    }
    agent.silence();
}

/// A request that two parsers might cut differently; the second in it must never be answered.
#[test]
fn what_could_smuggle_a_request_is_refused_and_ends_the_connection() {
    let world = World::start();
    let (mut agent, to) = world.subscriber();
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
        let mut wire = Wire::open(world.server.endpoint());
        assert_eq!(wire.send(format!("{head}{body}{hidden}")).until_the_end(), [400], "{what}");
    }
    // Lengths beyond 64 bits are lengths, and what follows is part of the body.
    for (lines, body) in
        [("Content-Length: 18446744073709551616\r\n", ""), ("Transfer-Encoding: chunked\r\n", "10000000000000000\r\n")]
    {
        let head = format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}{lines}\r\n", path(&to));
        let mut wire = Wire::open(world.server.endpoint());
        assert_eq!(wire.send(format!("{head}{body}{hidden}")).until_the_end(), [413], "{lines}{body}");
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
        let mut wire = Wire::open(world.server.endpoint());
        assert_eq!(wire.send(format!("{line}\r\n{GOOD}\r\n{hidden}")).until_the_end(), [400], "{what}");
    }
    agent.silence();
    // Odd and allowed.
    for target in [format!("http://push.test{}", path(&to)), format!("HTTP://h:1{}?query", path(&to))] {
        let request = format!("POST {target} HTTP/1.1\r\nhOST:\r\n{GOOD}content-LENGTH:  \t4 \t\r\n\r\nbody");
        assert_eq!(Wire::open(world.server.endpoint()).send(request).status(), 201, "{target}");
        receive(&mut agent, &["body"]);
    }
}
