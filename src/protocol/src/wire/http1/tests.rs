//! Heads: their parts, their lists, and what could smuggle a request.

use super::*;
use proptest::prelude::*;

fn with_head<T>(bytes: &[u8], look: impl FnOnce(Result<Head<'_, '_>, Malformed>) -> T) -> T {
    let length = match find_head(bytes, 0) {
        Ok(Some(length)) => length,
        Ok(None) => panic!("not whole"),
        Err(fault) => return look(Err(fault)),
    };
    look(parse_head(&bytes[..length], &mut HeaderSlots::new()))
}

#[test]
fn a_head_is_read() {
    let bytes = b"POST http://h/wpush/v1/x?q HTTP/1.1\r\nHost: h\r\ncontent-length: 12\r\n\
                  Connection: TE, Close\r\n\r\nrest";
    with_head(bytes, |head| {
        let head = head.unwrap();
        assert_eq!((head.method, &*head.path), ("POST", "/wpush/v1/x"));
        assert_eq!(head.framing, Framing::Length(12));
        assert!(!head.keep_alive);
        assert_eq!(head.header("HOST"), Some(&b"h"[..]));
    });
    with_head(b"GET / HTTP/1.0\r\n\r\n", |head| assert!(!head.unwrap().keep_alive));
    with_head(b"PUT /a HTTP/1.1\r\nHost:\r\nTransfer-Encoding: Chunked\r\nExpect: 100-Continue\r\n\r\n", |head| {
        let head = head.unwrap();
        assert_eq!(head.framing, Framing::Chunked);
        assert!(head.expects_continue && head.keep_alive);
    });
}

#[test]
fn targets_have_three_forms() {
    for (method, target, path) in [
        ("GET", "/a/b?c#d", Some("/a/b")),
        ("GET", "//a", Some("//a")),
        ("GET", "HTTP://h:1/a?c", Some("/a")),
        ("GET", "https://h", Some("/")),
        ("GET", "http://h?c", Some("/")),
        ("OPTIONS", "*", Some("*")),
        ("GET", "*", None),
        ("OPTIONS", "*x", None),
        ("GET", "a", None),
        ("GET", "http://", None),
        ("GET", "http:///a", None),
        ("GET", "ftp://h/a", None),
        ("CONNECT", "h:443", None),
    ] {
        let bytes = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        with_head(bytes.as_bytes(), |head| {
            assert_eq!(head.ok().map(|head| head.path).as_deref(), path, "{method} {target}")
        });
    }
}

#[test]
fn a_host_is_one_and_good() {
    for good in ["Host: h", "Host:", "host: a.b:80", "Host: [::1]:8082", "HOST: xn--bcher-kva.example"] {
        let bytes = format!("GET / HTTP/1.1\r\n{good}\r\n\r\n");
        with_head(bytes.as_bytes(), |head| assert!(!head.unwrap().lacks_host, "{good}"));
    }
    with_head(b"GET / HTTP/1.1\r\n\r\n", |head| assert!(head.unwrap().lacks_host));
    with_head(b"GET / HTTP/1.0\r\n\r\n", |head| assert!(!head.unwrap().lacks_host));
    for bad in ["Host: a b", "Host: a/b", "Host: a@b", "Host: \"a\"", "Host: a\r\nHost: a", "Host: a, b"] {
        let bytes = format!("GET / HTTP/1.1\r\n{bad}\r\n\r\n");
        with_head(bytes.as_bytes(), |head| assert_eq!(head.err(), Some(Malformed::Syntax), "{bad}"));
    }
    with_head(b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", |head| assert!(head.is_err()));
}

#[test]
fn lines_of_a_list_are_joined() {
    let bytes = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: x\r\na:\r\nA: 2, 3\r\nC:\r\nC: y\r\nD:\r\n\r\n";
    with_head(bytes, |head| {
        let head = head.unwrap();
        for (name, value) in [("A", Some(&b"1, 2, 3"[..])), ("B", Some(b"x")), ("C", Some(b"y")), ("D", Some(b""))] {
            assert_eq!(head.joined(name).as_deref(), value, "{name}");
        }
        assert_eq!(head.joined("E"), None);
        assert!(matches!(head.joined("B"), Some(Cow::Borrowed(_))), "one line is not copied");
    });
}

#[test]
fn empty_elements_of_a_list_count_for_nothing() {
    let bytes = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\t, chunked ,\r\nConnection: ,\t,Close,\r\n\
                  Expect: ,100-continue\r\n\r\n";
    with_head(bytes, |head| {
        let head = head.unwrap();
        assert_eq!((head.framing, head.keep_alive, head.expects_continue), (Framing::Chunked, false, true));
        assert!(!head.lists("connection", ""));
    });
    with_head(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x=\"a, close, b\"\r\n\r\n", |head| {
        assert!(head.unwrap().keep_alive, "quoted");
    });
}

#[test]
fn unreserved_characters_of_a_target_are_decoded() {
    with_head(b"GET http://h/%77push/a%2Db%2Fc%5F?%62oot=%31&x=%26 HTTP/1.1\r\nHost: h\r\n\r\n", |head| {
        let head = head.unwrap();
        assert_eq!((&*head.path, &*head.query), ("/wpush/a-b%2Fc_", "boot=1&x=%26"));
    });
}

/// RFC 9110 section 8.6: 1*DIGIT, which no reader may overflow.
#[test]
fn a_length_is_any_number_of_digits() {
    let zeros = "0".repeat(60) + "7";
    for (digits, length) in
        [("007", 7), (&*zeros, 7), ("18446744073709551615", u64::MAX), ("99999999999999999999999999", u64::MAX)]
    {
        let bytes = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {digits}\r\n\r\n");
        with_head(bytes.as_bytes(), |head| assert_eq!(head.unwrap().framing, Framing::Length(length), "{digits}"));
    }
}

#[test]
fn what_could_smuggle_is_refused() {
    for lines in [
        "Content-Length: 1\r\nContent-Length: 1\r\n",
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: 1, 1\r\n",
        "Content-Length: +1\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x1\r\n",
        "Content-Length:\r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "A: b\r\n folded\r\n",
        "A: b\nB: c\r\n",
        "A b\r\n",
        "A: \0\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: , ,\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding:\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Content-Length: 1 1\r\n",
        "Content-Length: \"1\"\r\n",
        "A: b\r\n\tfolded\r\n",
        "A: b\rc\r\n",
        "A: b\r\rC: d\r\n",
        ": b\r\n",
        "A\r\n",
        "A\x01: b\r\n",
        "A: \x7f\r\n",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
        with_head(bytes.as_bytes(), |head| assert_eq!(head.err(), Some(Malformed::Syntax), "{lines:?}"));
    }
    with_head(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", |head| assert!(head.is_err()));
    for lines in [
        "GET / HTTP/1.1\r\n Host: h\r\n",
        "GET  / HTTP/1.1\r\nHost: h\r\n",
        "GET / HTTP/1.1 \r\nHost: h\r\n",
        "GET\t/ HTTP/1.1\r\nHost: h\r\n",
        "GET /\rx HTTP/1.1\r\nHost: h\r\n",
        "GET / HTTP/1.2\r\nHost: h\r\n",
        "GET / HTTP/2.0\r\nHost: h\r\n",
        "GET / http/1.1\r\nHost: h\r\n",
        "GET /\r\nHost: h\r\n",
        "GET HTTP/1.1\r\nHost: h\r\n",
    ] {
        let bytes = format!("{lines}\r\n");
        with_head(bytes.as_bytes(), |head| assert_eq!(head.err(), Some(Malformed::Syntax), "{lines:?}"));
    }
    for bytes in [&b"\x16\x03\x01\x02"[..], b"get", b"\n", b"GET / HTTP/1.1\n", b"GET /\r\r\n\n"] {
        let refused = find_head(bytes, 0) == Err(Malformed::Syntax);
        assert!(refused, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn heads_are_bounded() {
    let mut long = b"GET / HTTP/1.1\r\nA: ".to_vec();
    long.resize(HEAD_BYTES_MAX - 1, b'x');
    assert_eq!(find_head(&long, 0), Ok(None));
    long.push(b'x');
    assert_eq!(find_head(&long, 0), Err(Malformed::HeadTooLarge));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
    with_head(many.as_bytes(), |head| assert_eq!(head.err(), Some(Malformed::HeadTooLarge)));
    let enough = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX - 1));
    with_head(enough.as_bytes(), |head| assert!(head.is_ok()));
}

proptest! {
    #[test]
    fn heads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(Some(length)) = find_head(&bytes, 0) {
            let _ = parse_head(&bytes[..length], &mut HeaderSlots::new()).is_ok();
        }
    }

    #[test]
    fn heads_of_nearly_http_never_panic(
        text in "GET /[ -~]{0,40} HTTP/1.1\r\nHost: h\r\n([!-~]{1,9}:[ -~]{0,20}\r\n){0,5}\r\n",
    ) {
        if let Ok(Some(length)) = find_head(text.as_bytes(), 0) {
            let _ = parse_head(&text.as_bytes()[..length], &mut HeaderSlots::new()).is_ok();
        }
    }

    #[test]
    fn more_bytes_change_no_verdict(text in "[GP][A-Z\r\n :/a]{0,60}", cut in 0usize..60) {
        let bytes = text.as_bytes();
        let cut = cut.min(bytes.len());
        let early = find_head(&bytes[..cut], 0);
        let later = find_head(bytes, if early == Ok(None) { cut } else { 0 });
        prop_assert_eq!(&later, &find_head(bytes, 0));
        if early != Ok(None) {
            prop_assert_eq!(early, later);
        }
    }
}
