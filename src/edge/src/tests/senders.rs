//! Requests as senders, libraries and proxies of others make them: each is valid by its RFC, and none may cost a push.

use runtime::process_clock::HostClock;

use super::endpoint::{GOOD, path, post};
use super::*;

/// The status of a POST with these claims, to an edge whose endpoint URLs begin so.
fn posted_at(endpoint_url: &str, claims: &str) -> u16 {
    harness_at(endpoint_url, claims).response().0
}

fn harness_at(endpoint_url: &str, claims: &str) -> Harness {
    let sender = Sender::new();
    let edge = PushEdge::new(&EdgeConfig { endpoint_url: base(endpoint_url), ..config() }).unwrap();
    let mut harness = Harness::with(edge, Port::Endpoint);
    let token = sender.0.sign_text(r#"{"typ":"JWT","alg":"ES256"}"#, claims);
    let lines = format!("{GOOD}Authorization: vapid t={token}, k={}\r\n", sender.key());
    harness.feed(post(&path(Some(sender.digest())), &lines, "body").as_bytes());
    harness
}

fn posted(claims: &str) -> u16 {
    posted_at(ORIGIN, claims)
}

fn with_exp(exp: &str) -> String {
    format!(r#"{{"aud":"{ORIGIN}","exp":{exp},"sub":"mailto:a@b"}}"#)
}

/// Mastodon signs for a day by its own clock, and drops the subscription at any 4xx.
#[test]
fn a_sender_whose_clock_runs_ahead_may_sign_for_a_whole_day() {
    for ahead in [0, 1, 5, 60] {
        assert_eq!(posted(&with_exp(&(NOW + 86_400 + ahead).to_string())), 201, "{ahead} s ahead");
        assert_eq!(posted(&with_exp(&(NOW - ahead).to_string())), 201, "{ahead} s behind");
    }
    assert_eq!(posted(&with_exp(&(NOW + 86_400 + 61).to_string())), 401);
    assert_eq!(posted(&with_exp(&(NOW - 61).to_string())), 401);
}

/// Decision 0019: for half a minute after a step it is unknown which clock is right.
#[test]
fn a_token_that_either_clock_allows_is_good_while_a_step_awaits_confirmation() {
    const HOUR: i64 = 3_600;
    let host = HostClock::default();
    let clock = Arc::new(ProcessClock::of(host.clone()));
    let sender = Sender::new();
    let mut edge = PushEdge::new(&EdgeConfig { clock: Arc::clone(&clock), ..config() }).unwrap();
    let mut is_taken = |ahead: i64| {
        let (mut codec, mut out) = (edge.open(Port::Endpoint, false), Vec::new());
        let token = sender.good_token(clock.unix().0.saturating_add_signed(ahead));
        let lines = format!("{GOOD}Authorization: vapid t={token},k={}\r\n", sender.key());
        let mut request = post(&path(Some(sender.digest())), &lines, "body").into_bytes();
        matches!(edge.ingest(clock.now(), &mut codec, &mut request, &mut out).ingest, Ingest::Command { .. })
    };
    let (day, minutes) = (24 * HOUR, HOUR / 2);
    // The right clock is the host's, an hour ahead or behind, and the sender signs by it.
    for (offset, good, bad) in [(HOUR, day + minutes, day + 2 * HOUR), (-HOUR, -minutes, -2 * HOUR)] {
        assert!(!is_taken(good), "the clocks agree");
        host.set_off(offset * 1_000_000);
        assert!(is_taken(good) && is_taken(minutes) && !is_taken(bad));
        clock.mark_host_wrong(clock.host_offset_us(), 0);
        assert!(!is_taken(good), "the host clock is known to be wrong");
        clock.trust();
        host.set_off(0);
    }
}

#[test]
fn any_json_number_is_a_time_and_a_text_is_none() {
    for exp in [
        format!("{}.5", NOW + 300),
        format!("{}.0", NOW + 300),
        format!("{}e0", NOW + 300),
        "1.7000003E9".to_owned(),
        format!("{}.999", NOW + 86_460),
        format!("{}.001", NOW - 60),
    ] {
        assert_eq!(posted(&with_exp(&exp)), 201, "{exp}");
    }
    for exp in ["\"1700000300\"", "null", "true", "[]", "-1", "-0.5", "0", "1e300", "1e999", "18446744073709551616"] {
        assert_eq!(posted(&with_exp(exp)), 401, "{exp}");
    }
}

#[test]
fn an_audience_is_compared_as_an_origin() {
    let exp = NOW + 300;
    let status = |url: &str, aud: &str| posted_at(url, &format!(r#"{{"aud":"{aud}","exp":{exp}}}"#));
    for (url, aud) in [
        ("https://push.example.org:443", "https://push.example.org:443"),
        ("https://push.example.org:443", "https://push.example.org"),
        ("https://push.example.org", "https://push.example.org:443"),
        ("https://Push.Example.org/", "HTTPS://push.example.ORG/"),
        ("https://push.example.org", "https://push.example.org."),
        ("http://push.example.org:80", "http://push.example.org"),
        ("http://192.0.2.1", "http://192.0.2.1:80/"),
        ("https://[2001:db8::1]", "https://[2001:DB8:0:0::1]:443"),
        ("https://[2001:db8::1]:8443", "https://[2001:DB8::1]:8443"),
        ("https://push.example.org:8443", "https://push.example.org:8443/"),
        // Libraries that leave the port out.
        ("https://push.example.org:8443", "https://push.example.org"),
        ("http://push.example.org:8082", "http://push.example.org"),
        ("https://[2001:db8::1]:8443", "https://[2001:db8::1]"),
    ] {
        assert_eq!(status(url, aud), 201, "{aud} at {url}");
    }
    for (url, aud) in [
        ("https://push.example.org", "http://push.example.org"),
        ("https://push.example.org", "http://push.example.org:443"),
        ("https://push.example.org", "https://push.example.org:8443"),
        ("https://push.example.org", "https://example.org"),
        ("https://push.example.org", "https://push.example.org.evil.example"),
        ("https://push.example.org", "https://push.example.org@evil.example"),
        ("https://push.example.org", "https://u@push.example.org"),
        ("https://push.example.org", "https://push.example.org?q"),
        ("https://push.example.org", "push.example.org"),
        ("https://push.example.org", ""),
        ("https://push.example.org:8443", "https://push.example.org:443"),
        ("https://push.example.org:8443", "https://push.example.org:8444"),
        ("https://push.example.org:8443", "http://push.example.org"),
        ("https://push.example.org:8443", "https://h"),
    ] {
        assert_eq!(status(url, aud), 401, "{aud} at {url}");
    }
}

#[test]
fn an_audience_without_its_port_is_counted() {
    let count = |aud: &str| {
        let harness = harness_at("https://push.example.com:8443", &format!(r#"{{"aud":"{aud}","exp":{}}}"#, NOW + 60));
        (harness.response().0, harness.edge.stats().vapid_audience_without_port)
    };
    assert_eq!(count(ORIGIN), (201, 1));
    assert_eq!(count("https://push.example.com:8443"), (201, 0));
    assert_eq!(count("https://push.example.com:443"), (401, 0));
    // The Host field of a request is no configured origin.
    assert_eq!(count("https://h"), (401, 0));
}

/// The `Location` of a 201, whatever the spelling of `endpoint.url`.
#[test]
fn what_is_handed_out_begins_with_one_spelling_of_the_origin() {
    for url in ["https://Push.Example.com:443/", "https://push.example.com.", ORIGIN] {
        let edge = PushEdge::new(&EdgeConfig { endpoint_url: base(url), ..config() }).unwrap();
        let mut harness = Harness::with(edge, Port::Endpoint);
        harness.feed(post(&path(None), &format!("{GOOD}Prefer: respond-async\r\n"), "body").as_bytes());
        let head = harness.response().1;
        assert!(head.contains(&format!("Location: {ORIGIN}/m/")), "{url}: {head}");
        assert!(head.contains(&format!("Link: <{ORIGIN}/r/")), "{url}: {head}");
    }
}

fn kept_crypto_key(lines: &str) -> Option<String> {
    let mut harness = Harness::new(Port::Endpoint);
    let lines = format!("TTL: 1\r\nContent-Encoding: aesgcm\r\nEncryption: salt=AA\r\n{lines}");
    harness.feed(post(&path(None), &lines, "body").as_bytes());
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else { panic!("{lines}") };
    let message = publish.message.as_ref().ok()?;
    let view = protocol::webpush::payload::view(&message.payload).unwrap();
    view.headers[1].map(str::to_owned)
}

#[test]
fn empty_elements_of_a_list_are_passed_over() {
    for (lines, kept) in [
        ("Crypto-Key: dh=BB,p256ecdsa=CC,\r\n", "dh=BB,p256ecdsa=CC"),
        ("Crypto-Key: dh=BB, ,p256ecdsa=CC\r\n", "dh=BB,p256ecdsa=CC"),
        ("Crypto-Key: ,,\tdh=BB ,\t, p256ecdsa=CC\t,\r\n", "dh=BB, p256ecdsa=CC"),
        ("Crypto-Key: dh=BB;;keyid=p;\r\n", "dh=BB;keyid=p"),
        ("Crypto-Key: ,\r\nCrypto-Key: dh=BB\r\n", "dh=BB"),
        ("Crypto-Key: keyid=\"a,b;c\";dh=\"BB==\"\r\n", "keyid=\"a,b;c\";dh=BB"),
    ] {
        assert_eq!(kept_crypto_key(lines).as_deref(), Some(kept), "{lines}");
    }
    for lines in ["Crypto-Key: dh=BB,nonsense\r\n", "Crypto-Key: keyid=\"x,dh=BB\"\r\n"] {
        assert_eq!(kept_crypto_key(lines), None, "{lines}");
    }
    let mut harness = Harness::new(Port::Endpoint);
    let lines = "TTL: 1\r\nContent-Encoding: , aes128gcm,\r\nTransfer-Encoding: , chunked ,\r\nConnection: ,close,\r\n";
    harness.feed(format!("POST {} HTTP/1.1\r\nHost: h\r\n{lines}\r\n1\r\nx\r\n0\r\n\r\n", path(None)).as_bytes());
    assert_eq!((harness.response().0, harness.ended()), (201, true), "{}", harness.written_text());
}

/// RFC 3986 section 6.2.2.2.
#[test]
fn unreserved_characters_of_a_path_may_be_encoded() {
    let encoded = |path: &str| {
        let (start, token) = path.rsplit_once('/').unwrap();
        let token: String = token.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("{start}/{token}")
    };
    for form in [TokenForm::Short, TokenForm::Fernet] {
        let path = endpoint_path(form, None);
        let dashes = path.replace('-', "%2D").replace('_', "%5f");
        for path in [encoded(&path), dashes, path.replace("/wpush/", "/%77push/")] {
            let mut harness = Harness::new(Port::Endpoint);
            harness.feed(post(&path, GOOD, "body").as_bytes());
            assert_eq!(harness.response().0, 201, "{path}");
        }
        for path in [path.replace("/v", "%2Fv"), path.replace('-', "%252D") + "%2", path.clone() + "%2F"] {
            let mut harness = Harness::new(Port::Endpoint);
            harness.feed(post(&path, GOOD, "body").as_bytes());
            assert_eq!(harness.response().0, 404, "{path}");
        }
    }
    for (port, path) in
        [(Port::Endpoint, "/%68ealth"), (Port::WebSocket, "/%5f%5Fversion%5F_"), (Port::Node, "/%62oot")]
    {
        let mut harness = Harness::new(port);
        let lines = format!("Host: h\r\nAuthorization: Bearer {NODE_KEY}\r\n");
        harness.feed(format!("GET {path} HTTP/1.1\r\n{lines}\r\n").as_bytes());
        assert_eq!(harness.response().0, 200, "{path}");
    }
}

#[test]
fn an_upgrade_to_another_protocol_is_no_upgrade() {
    let http2 = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";
    let requests = [
        (Port::WebSocket, format!("GET / HTTP/1.1\r\nHost: h\r\n{http2}\r\n"), 200),
        (Port::Public, format!("GET / HTTP/1.1\r\nHost: h\r\n{http2}\r\n"), 200),
        (Port::Public, "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: TLS/1.0, notwebsocket\r\n\r\n".to_owned(), 200),
        (Port::Endpoint, format!("GET /health HTTP/1.1\r\nHost: h\r\n{http2}\r\n"), 200),
        (Port::Endpoint, post(&path(None), &format!("{GOOD}{http2}"), "body"), 201),
        (Port::WebSocket, UPGRADE.replace("Upgrade: websocket", "Upgrade: h2c"), 400),
        (Port::WebSocket, UPGRADE.replace("Upgrade: websocket", "Upgrade: notwebsocket"), 400),
        (Port::WebSocket, UPGRADE.replace("Upgrade: websocket", "Upgrade: h2c, ,WebSocket,"), 101),
    ];
    for (port, request, status) in requests {
        let mut harness = Harness::new(port);
        harness.feed(request.as_bytes());
        assert_eq!(harness.response().0, status, "{port:?} {request}");
        assert!(!harness.response().1.contains("Upgrade") || status == 101, "{request}");
    }
}

/// RFC 8030 section 5.2: 1*DIGIT, and nothing else.
#[test]
fn a_ttl_is_any_number_of_digits() {
    let posted = |ttl: &str| {
        let mut harness = Harness::new(Port::Endpoint);
        let lines = format!("TTL: {ttl}\r\nContent-Encoding: aes128gcm\r\n");
        harness.feed(post(&path(None), &lines, "body").as_bytes());
        harness
    };
    for ttl in ["9223372036854775808", "18446744073709551615", "18446744073709551616", &"9".repeat(30), "00002592001"] {
        let (status, head, _) = posted(ttl).response();
        assert!(status == 201 && head.contains("\r\nTTL: 2592000"), "{ttl}: {status} {head}");
    }
    assert!(posted(&format!("{}7", "0".repeat(40))).response().1.contains("\r\nTTL: 7"));
    for (ttl, errno) in [
        ("+60", 111),
        ("", 111),
        ("6 0", 111),
        ("60, 60", 111),
        ("6e1", 111),
        ("-1", 114),
        (&*format!("-{}", "9".repeat(30)), 114),
    ] {
        assert_eq!(posted(ttl).fault(), (400, Some(errno)), "{ttl}");
    }
}

/// RFC 9110 section 8.6 and RFC 9112 section 7.1: a body that is too long is 413, however its length is written.
#[test]
fn a_length_is_any_number_of_digits() {
    let posted = |lines: &str, body: &str| {
        let mut harness = Harness::new(Port::Endpoint);
        let head = format!("POST {} HTTP/1.1\r\nHost: h\r\n{GOOD}{lines}\r\n", path(None));
        harness.feed((head + body).as_bytes());
        harness
    };
    for length in ["65537", "18446744073709551615", "18446744073709551616", &"9".repeat(40)] {
        let harness = posted(&format!("Content-Length: {length}\r\n"), "body");
        assert_eq!((harness.fault(), harness.ended()), ((413, Some(104)), true), "{length}");
    }
    for size in ["10001", "ffffffff", "123456789", "ffffffffffffffff", "10000000000000000", &"F".repeat(40)] {
        let harness = posted("Transfer-Encoding: chunked\r\n", &format!("{size}\r\nbody"));
        assert_eq!((harness.fault(), harness.ended()), ((413, Some(104)), true), "{size}");
    }
    let zeros = "0".repeat(30);
    assert_eq!(posted(&format!("Content-Length: {zeros}4\r\n"), "body").response().0, 201);
    let chunks = format!("{zeros}4\r\nbody\r\n{zeros}\r\n\r\n");
    assert_eq!(posted("Transfer-Encoding: chunked\r\n", &chunks).response().0, 201);
}

/// RFC 7519 section 4.1.3: the general case of `aud` is a list, which golang-jwt and jjwt write by default.
#[test]
fn an_audience_may_be_a_list_that_names_us() {
    let named = |aud: &str| {
        let url = "https://push.example.com:8443";
        let harness = harness_at(url, &format!(r#"{{"aud":{aud},"exp":{}}}"#, NOW + 60));
        (harness.response().0, harness.edge.stats().vapid_audience_without_port)
    };
    assert_eq!(named(r#"["https://push.example.com:8443"]"#), (201, 0));
    assert_eq!(named(r#"["https://other.example","https://PUSH.example.com:8443/"]"#), (201, 0));
    assert_eq!(named(r#"["https://push.example.com"]"#), (201, 1));
    assert_eq!(named(r#"["https://push.example.com","https://push.example.com:8443"]"#), (201, 0));
    for aud in ["[]", "[null]", r#"["https://other.example"]"#, r#"["https://push.example.com:8443",1]"#, "{}", "1"] {
        assert_eq!(named(aud), (401, 0), "{aud}");
    }
}

/// RFC 6455 sections 4.2.1 and 11.3.
#[test]
fn a_handshake_has_one_key_of_16_bytes_and_one_version() {
    let answered = |from: &str, to: &str| {
        let mut harness = Harness::new(Port::WebSocket);
        harness.feed(UPGRADE.replace(from, to).as_bytes());
        harness.response().0
    };
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    for (good, status) in [(key, 101), ("AAAAAAAAAAAAAAAAAAAAAA==", 101), ("+/+/+/+/+/+/+/+/+/+/+w==", 101)] {
        assert_eq!(answered(key, good), status, "{good}");
    }
    for bad in [
        "AAAA",
        "x",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ===",
        "dGhlIHNhbXBsZSBub25jZSE=",
        "dGhlIHNhbXBsZSBub25jZSEh",
        "-_-_-_-_-_-_-_-_-_-_-w==",
        "dGhlIHNhbXBsZSBub25j ZQ==",
        "\"dGhlIHNhbXBsZSBub25jZQ==\"",
    ] {
        assert_eq!(answered(key, bad), 400, "{bad}");
    }
    let line = format!("Sec-WebSocket-Key: {key}\r\n");
    assert_eq!(answered(&line, &line.repeat(2)), 400, "two keys");
    let line = "Sec-WebSocket-Version: 13\r\n";
    assert_eq!(answered(line, &line.repeat(2)), 400, "two versions");
    assert_eq!(answered("keep-alive, Upgrade", ", ,UPGRADE ,"), 101);
    assert_eq!(answered("keep-alive, Upgrade", "keep-alive, Upgraded"), 400);
}
