//! App servers: validation in its documented order, answers, CORS, bodies and kept connections (PROTOCOL.md 2).

use machine::message::{Topic, Urgency};
use machine::{Cancelled, Command, Disposition, Published, SenderCommand};
use runtime::ports::Port;

use super::*;
use protocol::webpush::message_id::MessageId;
use protocol::webpush::payload;

pub(super) fn path(key: Option<KeyDigest>) -> String {
    endpoint_path(TokenForm::Short, key)
}

pub(super) fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

pub(super) const GOOD: &str = "TTL: 60\r\nContent-Encoding: aes128gcm\r\n";

#[test]
fn a_post_becomes_a_message_and_is_answered() {
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    harness.feed(post(&path, &format!("{GOOD}Topic: news\r\nUrgency: high\r\n"), "body").as_bytes());
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else {
        panic!("{}", harness.written_text())
    };
    let message = publish.message.as_ref().unwrap();
    assert_eq!((message.uaid, message.chid), (Uaid([1; 16]), Chid([2; 16])));
    assert_eq!((message.ttl, message.accepted.0, message.urgency), (60, NOW, Urgency::High));
    assert_eq!(message.topic, Topic::new(b"news"));
    assert_eq!(payload::view(&message.payload).unwrap().body, b"body");
    let (status, head, body) = harness.response();
    assert_eq!((status, body.as_str()), (201, ""));
    assert!(head.contains("\r\nTTL: 60\r\n") && head.contains("\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n"));
    let location = head.split("Location: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let id = harness.edge.ids.open(location.strip_prefix(&format!("{ORIGIN}/m/")).unwrap().as_bytes()).unwrap();
    assert_eq!((id.stamp, id.uaid, id.topic), (STAMP, Uaid([1; 16]), Topic::new(b"news")));
    assert!(!harness.ended());
    assert_eq!(harness.edge.stats().posts_accepted_direct, 1);
}

#[test]
fn the_time_of_a_post_counts_from_its_head_to_its_response() {
    let mut edge = PushEdge::new(&config()).unwrap();
    let (mut codec, mut out) = (edge.open(Port::Endpoint, false), Vec::new());
    let at = |ms| Now { mono: now().mono.after(machine::time::TimeSpan::from_ms(ms)), ..now() };
    let mut request = post(&path(None), GOOD, "body").into_bytes();
    let mut body = request.split_off(request.len() - 4);
    assert!(matches!(edge.ingest(at(0), &mut codec, &mut request, &mut out).ingest, Ingest::More { .. }));
    assert!(matches!(edge.ingest(at(20), &mut codec, &mut body, &mut out).ingest, Ingest::Command { .. }));
    edge.emit(at(30), &mut codec, &Published::NoSubscription.into(), &mut out);
    assert_eq!((edge.post_times.counts.iter().sum::<u64>(), edge.post_times.sum_us), (1, 30_000));
}

#[test]
fn a_message_is_cancelled_by_its_location() {
    let mut harness = Harness::new(Port::Endpoint);
    let topic = Topic::new(b"t");
    let mut id = Vec::new();
    let (uaid, chid) = (Uaid([1; 16]), Chid([2; 16]));
    harness.edge.ids.seal(&MessageId { stamp: STAMP, uaid, chid, topic }, &mut id);
    let id = String::from_utf8(id).unwrap();
    harness.feed(format!("DELETE /m/{id} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    let Some(Command::Sender(SenderCommand::Cancel(cancel))) = harness.commands.last() else { panic!() };
    assert_eq!((cancel.uaid, cancel.chid, cancel.stamp, cancel.topic), (uaid, chid, STAMP, topic));
    assert_eq!(harness.response().0, 204);
    assert!(!harness.response().1.contains("Content-Length"));
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(b"DELETE /m/nonsense HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(harness.fault(), (400, None));
}

#[test]
fn a_cancel_that_storage_does_not_take_is_503() {
    let mut edge = PushEdge::new(&config()).unwrap();
    let (mut codec, mut out) = (edge.open(Port::Endpoint, false), Vec::new());
    let mut id = Vec::new();
    edge.ids.seal(&MessageId { stamp: STAMP, uaid: Uaid([1; 16]), chid: Chid([2; 16]), topic: None }, &mut id);
    let mut request = [b"DELETE /m/", &id[..], b" HTTP/1.1\r\nHost: h\r\n\r\n"].concat();
    let asked = edge.ingest(now(), &mut codec, &mut request, &mut out).ingest;
    assert!(
        matches!(asked, Ingest::Command { command: Command::Sender(SenderCommand::Cancel(_)), .. }) && out.is_empty()
    );
    edge.emit(now(), &mut codec, &Cancelled { done: false }.into(), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("Retry-After: 120"), "{text}");
}

#[test]
fn each_broken_rule_has_its_errno_and_the_first_one_is_named() {
    let long = "x".repeat(5631);
    for (headers, body, errno, status) in [
        ("", "", 111, 400),
        ("TTL: x\r\nContent-Encoding: gzip\r\nTopic: !\r\n", "b", 111, 400),
        ("TTL: -1\r\nTopic: !\r\n", "b", 110, 400),
        ("TTL: -1\r\nTopic: !\r\n", "", 114, 400),
        ("TTL: 1\r\nTopic: !\r\n", "", 113, 400),
        ("TTL: 1\r\n", "b", 110, 400),
        ("TTL: 1\r\nContent-Encoding: aesgcm\r\nEncryption: rs=1\r\n", "b", 110, 400),
        ("TTL: 1\r\nContent-Encoding: aesgcm\r\nEncryption: salt=AA\r\nCrypto-Key: p256ecdsa=AA\r\n", "b", 110, 400),
        ("TTL: 1\r\nContent-Encoding: aes128gcm\r\nEncryption: salt=AA\r\n", "b", 110, 400),
        ("TTL: 1\r\nContent-Encoding: aesgcm128\r\nEncryption: salt=AA\r\n", "b", 110, 400),
        ("TTL: 1\r\nContent-Encoding: aes128gcm\r\nContent-Encoding: aes128gcm\r\n", "b", 110, 400),
        ("", &long, 104, 413),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        let path = path(None);
        harness.feed(post(&path, headers, body).as_bytes());
        assert_eq!(harness.fault(), (status, Some(errno)), "{headers:?}");
        // The request went to the owner, because the owner's 410 comes first.
        assert!(matches!(&harness.commands[..], [Command::Sender(SenderCommand::Publish(p))] if p.message.is_err()));
        assert!(!harness.ended());
    }
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    harness.feed(post(&path, "TTL: 1\r\nUrgency: low\r\nUrgency: high\r\n", "").as_bytes());
    assert_eq!(harness.fault(), (400, None));
}

fn kept_headers(lines: &str) -> [Option<String>; 3] {
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(post(&path(None), &format!("TTL: 1\r\n{lines}"), "body").as_bytes());
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else {
        panic!("{}", harness.written_text())
    };
    let message = publish.message.as_ref().unwrap_or_else(|_| panic!("{}", harness.written_text()));
    payload::view(&message.payload).unwrap().headers.map(|header| header.map(str::to_owned))
}

#[test]
fn lines_of_one_header_are_read_together() {
    let kept = kept_headers(
        "Content-Encoding: aesgcm\r\nEncryption: keyid=\"a\"\r\nCrypto-Key: p256ecdsa=\"CC==\"\r\n\
         Encryption: keyid=\"b\"; salt=\"AA==\"\r\nCrypto-Key: keyid=\"b\"; dh=\"BB\"\r\n",
    );
    let expected = ["keyid=a, keyid=b; salt=AA", "p256ecdsa=CC, keyid=b; dh=BB"].map(|text| Some(text.to_owned()));
    assert_eq!(kept[..2], expected);
    // The key of draft 01 may stand in any of the lines.
    let sender = Sender::new();
    let authorization = format!("Authorization: WebPush {}\r\n", sender.good_token(NOW + 60));
    let keys = format!("Crypto-Key: dh=BB\r\nCrypto-Key: p256ecdsa={}\r\n", sender.key());
    let mut harness = Harness::new(Port::Endpoint);
    let lines = format!("TTL: 1\r\nContent-Encoding: aesgcm\r\nEncryption: salt=AA\r\n{authorization}{keys}");
    harness.feed(post(&path(Some(sender.digest())), &lines, "body").as_bytes());
    assert_eq!(harness.response().0, 201);
}

#[test]
fn the_first_line_of_a_header_with_one_value_counts() {
    let sender = Sender::new();
    let authorization = format!("Authorization: vapid t={},k={}\r\n", sender.good_token(NOW + 60), sender.key());
    let headers = format!("TTL: 7\r\nTTL: -1\r\nTopic: a\r\nTopic: !\r\n{authorization}Authorization: Basic x\r\n");
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(post(&path(Some(sender.digest())), &headers, "").as_bytes());
    let Some(Command::Sender(SenderCommand::Publish(publish))) = harness.commands.last() else {
        panic!("{}", harness.written_text())
    };
    let message = publish.message.as_ref().unwrap();
    assert_eq!((message.ttl, message.topic), (7, Topic::new(b"a")));
}

#[test]
fn headers_that_mean_nothing_are_ignored() {
    let mut harness = Harness::new(Port::Endpoint);
    let ignored = "Content-Type: application/nonsense; x\r\nX-MessageId: 1\r\nAccept: */*\r\nCookie: a=b\r\n\
                   Accept-Encoding: gzip\r\nIf-Match: \"x\"\r\nUpgrade: h2c\r\nX: \u{e4}\r\n";
    harness.feed(post(&path(None), &format!("{GOOD}{ignored}"), "body").as_bytes());
    assert_eq!(harness.response().0, 201);
}

#[test]
fn senders_of_the_first_draft_are_understood() {
    let kept = kept_headers(
        "Content-Encoding: aesgcm128\r\nEncryption: keyid=p256dh;salt=AA\r\nEncryption-Key: keyid=p256dh;dh=\"BB=\"\r\n",
    );
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(kept, [text("keyid=p256dh;salt=AA"), None, text("keyid=p256dh;dh=BB")]);
}

#[test]
fn what_the_owner_says_has_its_status() {
    for (published, status, errno, header) in [
        (Published::NoSubscription, 410, Some(106), "Cache-Control: max-age=86400"),
        (Published::Unavailable, 503, Some(201), "Retry-After: 120"),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.published = published;
        let path = path(None);
        harness.feed(post(&path, GOOD, "b").as_bytes());
        assert_eq!(harness.fault(), (status, errno));
        assert!(harness.response().1.contains(header));
    }
    for disposition in [Disposition::Stored, Disposition::Dropped] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.published = Published::Accepted { stamp: STAMP, disposition };
        let path = path(None);
        harness.feed(post(&path, "TTL: 99999999\r\n", "").as_bytes());
        assert!(harness.response().1.contains("TTL: 2592000"));
    }
}

#[test]
fn a_locked_endpoint_needs_its_key() {
    for form in [TokenForm::Short, TokenForm::Fernet] {
        needs_its_key(form);
    }
}

fn needs_its_key(form: TokenForm) {
    let (sender, other) = (Sender::new(), Sender::new());
    let token = sender.good_token(NOW + 3600);
    let others = other.good_token(NOW + 3600);
    let (key, other_key) = (sender.key(), other.key());
    for (authorization, verdict) in [
        (format!("Authorization: vapid t={token},k={key}\r\n"), None),
        (format!("Authorization: WebPush {token}\r\nCrypto-Key: p256ecdsa={key}\r\n"), None),
        (String::new(), Some((401, Some(109)))),
        (format!("Authorization: vapid t={others},k={other_key}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: vapid t={token},k={other_key}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: vapid t={token}\r\n"), Some((401, Some(109)))),
        (format!("Authorization: WebPush {token}\r\n"), Some((400, Some(110)))),
        ("Authorization: Digest x\r\n".to_string(), Some((401, Some(109)))),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        let path = endpoint_path(form, Some(sender.digest()));
        harness.feed(post(&path, &format!("{GOOD}{authorization}"), "body").as_bytes());
        match verdict {
            None => assert_eq!(harness.response().0, 201, "{authorization}"),
            Some(verdict) => {
                assert_eq!(harness.fault(), verdict, "{authorization}");
                assert!(harness.commands.is_empty());
                assert_eq!(harness.response().1.contains("WWW-Authenticate: vapid"), verdict.0 == 401);
            }
        }
    }
}

#[test]
fn the_same_authorization_with_another_p256ecdsa_is_401() {
    let (sender, thief) = (Sender::new(), Sender::new());
    let token = sender.good_token(NOW + 3600);
    let mut harness = Harness::new(Port::Endpoint);
    let (path, stolen) = (path(Some(sender.digest())), path(Some(thief.digest())));
    let request = |path: &str, key: &str| {
        let headers = format!("{GOOD}Authorization: WebPush {token}\r\nCrypto-Key: p256ecdsa={key}\r\n");
        post(path, &headers, "body")
    };
    // Twice, so that the second finds the token remembered.
    harness.feed(request(&path, &sender.key()).as_bytes()).feed(request(&path, &sender.key()).as_bytes());
    assert_eq!(harness.edge.stats().vapid_cache_hits, 1);
    harness.feed(request(&path, &thief.key()).as_bytes());
    harness.feed(request(&stolen, &thief.key()).as_bytes());
    harness.feed(request(&stolen, &sender.key()).as_bytes());
    assert_eq!(harness.statuses(), [201, 201, 401, 401, 401]);
    let stats = harness.edge.stats();
    assert_eq!((stats.vapid_bad_signature, stats.vapid_key_mismatch, stats.vapid_cache_hits), (2, 1, 2));
}

#[test]
fn an_unlocked_endpoint_still_verifies_what_is_shown() {
    let sender = Sender::new();
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    let authorization = |exp| format!("Authorization: vapid t={},k={}\r\n", sender.good_token(exp), sender.key());
    harness.feed(post(&path, &format!("{GOOD}{}", authorization(NOW + 60)), "b").as_bytes());
    harness.feed(post(&path, &format!("{GOOD}{}", authorization(NOW - 100)), "b").as_bytes());
    assert_eq!(harness.statuses(), [201, 401]);
}

#[test]
fn a_token_belongs_to_its_version_of_url() {
    let (v1, v2) = (endpoint_path(TokenForm::Fernet, None), endpoint_path(TokenForm::Fernet, Some(KeyDigest([1; 32]))));
    let v3 = path(None);
    for (path, status) in [
        (v1.clone(), 201),
        (v1.replace("/v1/", "/"), 201),
        (v1.replace("/v1/", "/v2/"), 404),
        (v1.replace("/v1/", "/v3/"), 404),
        (v2.replace("/v2/", "/v1/"), 404),
        (v2.clone(), 401),
        (v3.clone(), 201),
        (v3.replace("/v3/", "/"), 404),
        (v3.replace("/v3/", "/v1/"), 404),
        (v3.replace("/v3/", "/v4/"), 404),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(post(&path, GOOD, "b").as_bytes());
        assert_eq!(harness.response().0, status, "{path}");
    }
}

#[test]
fn browsers_may_read_the_answers() {
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(
        b"OPTIONS /wpush/v1/x HTTP/1.1\r\nHost: h\r\nOrigin: https://app\r\nAccess-Control-Request-Method: POST\r\n\
          Access-Control-Request-Headers: ttl, topic\r\n\r\n",
    );
    let (status, head, _) = harness.response();
    assert_eq!(status, 204);
    for line in [
        "Access-Control-Allow-Origin: https://app",
        "Access-Control-Allow-Methods: DELETE, GET, POST, PUT",
        "Access-Control-Allow-Headers: ttl, topic",
        "Access-Control-Max-Age: 3600",
        "Vary: Origin",
        "Allow: POST",
    ] {
        assert!(head.contains(line), "{line}");
    }
    let good = path(None);
    for (path, status) in [(good.as_str(), 201), ("/wpush/v1/x", 404), ("/elsewhere", 404)] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(post(path, &format!("{GOOD}Origin: https://app\r\n"), "b").as_bytes());
        let (said, head, _) = harness.response();
        assert_eq!(said, status);
        assert!(head.contains("Access-Control-Allow-Origin: https://app"));
        assert!(head.contains("Access-Control-Expose-Headers: location, www-authenticate"));
    }
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(post(&good, GOOD, "b").as_bytes());
    let head = harness.response().1;
    assert!(head.contains("Vary: Origin") && !head.contains("Access-Control"));
}

#[test]
fn wrong_methods_and_head() {
    for (request, status, allow) in [
        ("PUT /wpush/x", 405, "Allow: POST, GET, HEAD, OPTIONS"),
        ("DELETE /wpush/v1/x", 405, "Allow: POST, GET, HEAD, OPTIONS"),
        ("POST /m/x", 405, "Allow: DELETE"),
        ("POST /health", 405, "Allow: GET, HEAD"),
        ("get /health", 400, ""),
        ("HEAD /wpush/v1/x", 200, ""),
        ("HEAD /wpush/x", 200, ""),
        ("HEAD /m/x", 200, ""),
        ("HEAD /elsewhere", 404, ""),
        ("OPTIONS /m/x", 204, "Allow: DELETE, HEAD, OPTIONS"),
        ("OPTIONS /health", 204, "Allow: GET, HEAD, OPTIONS"),
        ("OPTIONS *", 204, "Allow: GET, HEAD, POST, PUT, DELETE, OPTIONS"),
        ("OPTIONS /elsewhere", 404, ""),
        ("BREW /health", 405, "Allow: GET"),
    ] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(format!("{request} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        let (said, head, body) = harness.response();
        assert_eq!(said, status, "{request}");
        assert!(head.contains(allow), "{request}");
        assert!(body.is_empty() || !request.starts_with("HEAD"), "{request}");
        assert!(harness.commands.is_empty());
    }
    // RFC 9110 section 9.3.2: the fields of GET, without its content.
    for path in ["/__version__", "/status", "/health", "/__heartbeat__", "/wpush/v1/x"] {
        let [(status, head, body), (_, head_of_get, content)] = ["HEAD", "GET"].map(|method| {
            let mut harness = Harness::new(Port::Endpoint);
            harness.feed(format!("{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            harness.response()
        });
        assert_eq!((status, body.as_str(), &head), (200, "", &head_of_get), "{path}");
        let length = format!("Content-Length: {}", content.len());
        assert!(head.lines().any(|line| line == length) && !content.is_empty(), "{path}: {head}");
    }
}

#[test]
fn an_endpoint_says_that_it_speaks_unifiedpush() {
    let said = r#"{"unifiedpush":{"version":1}}"#;
    for port in [Port::Endpoint, Port::Public] {
        for path in [path(None), "/wpush/v1/not-issued".into()] {
            for (method, content) in [("GET", said), ("HEAD", "")] {
                let mut harness = Harness::new(port);
                harness.feed(format!("{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
                let (status, head, body) = harness.response();
                assert_eq!((status, body.as_str()), (200, content), "{method} {path}");
                assert!(head.contains("Content-Type: application/json\r\n"), "{head}");
                assert!(head.contains(&format!("Content-Length: {}", said.len())), "{head}");
                assert!(harness.commands.is_empty());
            }
        }
    }
}

#[test]
fn small_pages_are_json() {
    for path in ["/status", "/health", "/__heartbeat__", "/__version__"] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        let (status, _, body) = harness.response();
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &json["version"]), (200, &"1.2.3".into()), "{path}");
    }
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!((harness.response().0, harness.response().2.as_str()), (200, ""));
}

#[test]
fn connections_are_kept_and_requests_pipelined() {
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    let chunked = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{GOOD}\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    );
    let refused = post("/wpush/v1/x", GOOD, "not wanted");
    let long = post(&path, GOOD, &"x".repeat(6000));
    let last = post(&path, &format!("{GOOD}Connection: close\r\n"), "last");
    let all = [post(&path, GOOD, "one"), chunked, refused, long, post(&path, GOOD, "two"), last].concat();
    harness.feed(all.as_bytes());
    assert_eq!(harness.statuses(), [201, 201, 404, 413, 201, 201]);
    assert!(harness.ended());
    let bodies: Vec<Vec<u8>> = harness
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Sender(SenderCommand::Publish(p)) => {
                p.message.as_ref().ok().map(|m| payload::view(&m.payload).unwrap().body.to_vec())
            }
            _ => None,
        })
        .collect();
    assert_eq!(bodies, [&b"one"[..], b"abcde", b"two", b"last"]);
    assert!(harness.written_text().ends_with("Content-Length: 0\r\n\r\n"));
}

#[test]
fn bodies_beyond_discarding_end_the_connection() {
    let path = path(None);
    let by_length = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 70000\r\n{GOOD}\r\n");
    let by_chunk = format!("POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{GOOD}\r\n20000\r\nabc");
    // 6,000 bytes in chunks of one, each with an extension: no wanted body takes that many bytes.
    let by_framing = format!("POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{GOOD}\r\n")
        + &"1;extension=1234567890\r\nx\r\n".repeat(6000);
    for request in [by_length, by_chunk, by_framing] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(request.as_bytes());
        assert_eq!(harness.fault(), (413, Some(104)));
        assert!(harness.ended() && harness.response().1.contains("Connection: close"));
        assert_eq!(harness.edge.stats().http_bodies_cut, 1);
    }
}

#[test]
fn a_wanted_body_may_come_in_chunks_of_one_byte() {
    let mut harness = Harness::new(Port::Endpoint);
    let head = format!("POST {} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n{GOOD}\r\n", path(None));
    harness.feed(format!("{head}{}0\r\n\r\n", "1\r\nx\r\n".repeat(5630)).as_bytes());
    assert_eq!(harness.response().0, 201);
    assert!(!harness.ended());
}

#[test]
fn expect_100_continue_is_answered_by_the_verdict() {
    let mut harness = Harness::new(Port::Endpoint);
    let path = path(None);
    let head = |path: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n{GOOD}\r\n")
    };
    harness.feed(head(&path, 4).as_bytes());
    assert_eq!(harness.statuses(), [100]);
    harness.feed(b"body");
    assert_eq!(harness.statuses(), [100, 201]);
    for (path, length, fault) in [("/wpush/v1/x", 4, (404, Some(102))), (&path, 6000, (413, Some(104)))] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(head(path, length).as_bytes());
        assert_eq!(harness.fault(), fault);
        assert!(harness.ended());
    }
}

#[test]
fn old_http_is_answered_once() {
    let mut harness = Harness::new(Port::Endpoint);
    harness.feed(b"GET /health HTTP/1.0\r\n\r\n");
    assert!(harness.ended() && harness.response().1.contains("Connection: close"));
}
