//! Forward endpoints: their creation, messages for targets, and the answers.

use machine::message::Urgency;
use machine::upstream::{ForwardCall, ForwardMessage, ForwardOutcome};

use super::*;
use crate::edge::ForwardRules;
use protocol::webpush::forward::{ForwardToken, ForwardTokens, Targets, authorization};
use protocol::wire::base64url;

const TARGET: &str = "https://up.example.net/secret?a=b";

fn rules() -> ForwardRules {
    ForwardRules::default()
}

fn edge(forward: ForwardRules) -> PushEdge {
    let rules = AccessRules { forward, ..AccessRules::default() };
    PushEdge::new(&EdgeConfig { rules, forward_rate: Some(Arc::default()), ..config() }).unwrap()
}

/// Answers one request; the machine gives this outcome.
fn ask(edge: PushEdge, outcome: ForwardOutcome, request: &[u8]) -> Harness {
    let mut harness = Harness::with(edge, Port::Endpoint);
    harness.forwarded = Some(outcome);
    harness.feed(request);
    harness
}

fn post(path: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const FIELDS: &str = "TTL: 60\r\nContent-Encoding: aes128gcm\r\n";

fn create(edge: PushEdge, fields: &str, json: &serde_json::Value) -> Harness {
    ask(edge, ForwardOutcome::Allowed, &post("/fpush/v1/new", fields, json.to_string().as_bytes()))
}

fn send(token: &ForwardToken, fields: &str, body: &[u8]) -> Harness {
    let answer = ForwardOutcome::Answered { status: 201, retry_after: None };
    ask(edge(rules()), answer, &post(&path(token), fields, body))
}

fn path(token: &ForwardToken) -> String {
    format!("/fpush/v1/{}", ForwardTokens::new(&[KEY.into()]).unwrap().seal(token))
}

fn open() -> ForwardToken {
    ForwardToken { url: TARGET.into(), sender: None, key: None }
}

fn asked(harness: &Harness) -> &ForwardCall {
    let [Command::Sender(SenderCommand::Forward(call))] = &harness.commands[..] else {
        panic!("{:?}", harness.commands)
    };
    call
}

fn message(harness: &Harness) -> &ForwardMessage {
    asked(harness).message.as_ref().expect("it has a message")
}

#[test]
fn without_the_setting_there_is_no_such_path() {
    for path in ["/fpush/v1/new", &path(&open())] {
        let mut harness = Harness::new(Port::Endpoint);
        harness.feed(&post(path, FIELDS, b"x"));
        assert_eq!(harness.fault(), (404, None), "{path}");
        assert!(harness.commands.is_empty());
    }
}

#[test]
fn an_endpoint_is_created_when_its_target_may_be_called() {
    for port in [Port::Endpoint, Port::Public] {
        let mut harness = Harness::with(edge(rules()), port);
        harness.forwarded = Some(ForwardOutcome::Allowed);
        harness.feed(&post("/fpush/v1/new", "", serde_json::json!({ "url": TARGET }).to_string().as_bytes()));
        assert_eq!((&*asked(&harness).url, &asked(&harness).message), (TARGET, &None));
        let (status, head, body) = harness.response();
        assert!(status == 200 && head.contains("Content-Type: application/json"), "{head}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let token = body["url"].as_str().unwrap().strip_prefix("https://push.example.com/fpush/v1/").unwrap();
        assert_eq!(ForwardTokens::new(&[KEY.into()]).unwrap().open(token), Some(open()));
        assert_eq!(harness.edge.stats().forwards_created, 1);
    }
    let json = serde_json::json!({ "url": TARGET });
    let request = post("/fpush/v1/new", "", json.to_string().as_bytes());
    for (outcome, fault) in [
        (ForwardOutcome::Forbidden, (400, Some(108))),
        (ForwardOutcome::Unreachable, (502, Some(902))),
        (ForwardOutcome::NoAnswer, (502, Some(903))),
        (ForwardOutcome::Unavailable, (503, Some(201))),
    ] {
        assert_eq!(ask(edge(rules()), outcome, &request).fault(), fault, "{outcome:?}");
    }
}

#[test]
fn a_bad_request_for_an_endpoint_asks_nothing() {
    let sender = Sender::new();
    let url = serde_json::json!({ "url": TARGET });
    let long = serde_json::json!({ "url": format!("https://a.example/{}", "x".repeat(495)) });
    for json in [
        serde_json::json!({}),
        serde_json::json!([TARGET]),
        serde_json::json!({ "url": "http://up.example.net/" }),
        serde_json::json!({ "url": "https://10.0.0.1/" }),
        serde_json::json!({ "url": "https://PUSH.example.com/wpush/v1/x" }),
        serde_json::json!({ "url": TARGET, "server_pubkey": "AAAA" }),
        serde_json::json!({ "url": TARGET, "server_pubkey": sender.key(), "forward_privkey": "x" }),
        serde_json::json!({ "url": TARGET, "forward_privkey": "x" }),
        long,
    ] {
        let harness = create(edge(rules()), "", &json);
        assert_eq!(harness.fault(), (400, Some(108)), "{json}");
        assert!(harness.commands.is_empty());
        assert_eq!(harness.edge.stats().forwards_not_created, 1);
    }
    let fits = serde_json::json!({ "url": format!("https://a.example/{}", "x".repeat(494)) });
    assert_eq!(create(edge(rules()), "", &fits).response().0, 200);
    let request = post("/fpush/v1/new", "", &[b' '; 4_097]);
    assert_eq!(ask(edge(rules()), ForwardOutcome::Allowed, &request).fault(), (413, Some(104)));
    // A path in front of the token can make an endpoint too long for user agents.
    let path = format!("{ORIGIN}/{}", "p".repeat(120));
    let config = EdgeConfig { endpoint_url: base(&path), forward_rate: Some(Arc::default()), ..config() };
    assert_eq!(create(PushEdge::new(&config).unwrap(), "", &fits).fault(), (400, Some(108)));
    assert_eq!(create(PushEdge::new(&config).unwrap(), "", &url).response().0, 200);
    for method in ["GET", "PUT", "DELETE"] {
        let mut harness = Harness::with(edge(rules()), Port::Endpoint);
        harness.feed(format!("{method} /fpush/v1/new HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(harness.fault().0, 405, "{method}");
    }
}

#[test]
fn a_token_for_creators_is_demanded_if_it_is_set() {
    let rules = || ForwardRules { create_token: Some("0123456789abcdef".into()), ..rules() };
    let json = serde_json::json!({ "url": TARGET });
    for fields in ["", "Authorization: Bearer 0123456789abcdee\r\n", "Authorization: Basic 0123456789abcdef\r\n"] {
        let harness = create(edge(rules()), fields, &json);
        assert_eq!(harness.fault(), (401, Some(109)), "{fields}");
        assert!(harness.response().1.contains("WWW-Authenticate: Bearer"));
    }
    let good = "Authorization: bearer 0123456789abcdef\r\n";
    assert_eq!(create(edge(rules()), good, &json).response().0, 200);
}

#[test]
fn creations_have_one_rate_for_all_shards_that_a_reload_changes() {
    let rate = Arc::<crate::edge::NodeRate>::default();
    let with = |create_rate| {
        let rules = AccessRules { forward: ForwardRules { create_rate, ..rules() }, ..AccessRules::default() };
        PushEdge::new(&EdgeConfig { rules, forward_rate: Some(Arc::clone(&rate)), ..config() }).unwrap()
    };
    let json = serde_json::json!({ "url": TARGET });
    for _ in 0..10 {
        assert_eq!(create(with(1), "", &json).response().0, 200);
    }
    let refused = create(with(1), "", &json);
    assert_eq!(refused.fault(), (429, Some(203)));
    assert!(refused.response().1.contains("Retry-After: 1"), "{}", refused.response().1);
    assert_eq!(create(with(0), "", &json).response().0, 200, "no limit");
}

#[test]
fn a_message_is_passed_on_with_its_headers_and_nothing_else() {
    let fields = "TTL: 99999999\r\nTopic: news\r\nUrgency: low\r\nContent-Encoding: aes128gcm\r\n\
                  Cookie: a=b\r\nAuthorization: whatever\r\nUser-Agent: sender\r\n";
    let harness = send(&open(), fields, b"body");
    assert_eq!(&*asked(&harness).url, TARGET);
    let ForwardMessage { ttl, urgency, topic, vapid, body } = message(&harness);
    assert_eq!((*ttl, *urgency, &body[..], vapid), (2_592_000, Urgency::Low, &b"body"[..], &None));
    assert_eq!(topic.unwrap().as_bytes(), b"news");
    let (status, head, body) = harness.response();
    assert_eq!((status, body.as_str()), (201, r#"{"msg":"upstream status code"}"#));
    assert!(head.contains("TTL: 2592000") && !head.contains("Location"), "{head}");
    assert_eq!(harness.edge.stats().forward_2xx, 1);
    let harness = send(&open(), FIELDS, &[7; 4_096]);
    assert_eq!((message(&harness).body.len(), message(&harness).urgency), (4_096, Urgency::Normal));
    assert!(!format!("{harness:?}", harness = harness.commands).contains("up.example.net"), "targets are not shown");
}

#[test]
fn a_message_that_breaks_a_rule_asks_nothing() {
    let encoding = "Content-Encoding: aes128gcm\r\n";
    for (fields, fault) in [
        (encoding, (400, Some(111))),
        ("TTL: 60\r\n", (400, Some(110))),
        ("TTL: 60\r\nContent-Encoding: aesgcm\r\nEncryption: salt=AA\r\nCrypto-Key: dh=AA\r\n", (400, Some(110))),
        (&format!("TTL: -1\r\n{encoding}"), (400, Some(114))),
        (&format!("TTL: 1\r\nTopic: a b\r\n{encoding}"), (400, Some(113))),
        (&format!("TTL: 1\r\nUrgency: soon\r\n{encoding}"), (400, None)),
    ] {
        let harness = send(&open(), fields, b"x");
        assert_eq!(harness.fault(), fault, "{fields}");
        assert!(harness.commands.is_empty());
        assert_eq!(harness.edge.stats().forward_400, 1);
    }
    let large = send(&open(), FIELDS, &[7; 4_097]);
    assert_eq!((large.fault(), large.commands.len(), large.edge.stats().forward_413), ((413, Some(104)), 0, 1));
    let empty = send(&open(), "TTL: 60\r\n", b"");
    assert_eq!((empty.response().0, empty.commands.len()), (200, 0), "nothing is called for an empty message");
}

#[test]
fn a_token_is_refused_that_no_key_sealed_or_whose_target_may_not_be_called_any_more() {
    let answer = ForwardOutcome::Answered { status: 201, retry_after: None };
    for path in ["/fpush/v1/", "/fpush/v1/x", "/fpush/v1/a/b", &endpoint_path(TokenForm::Fernet, None)[10..]] {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/fpush/v1/{path}") };
        assert_eq!(ask(edge(rules()), answer, &post(&path, FIELDS, b"x")).fault(), (404, Some(102)), "{path}");
    }
    for url in ["http://up.example.net/", "https://127.0.0.1/", "https://push.example.com/", "https://a.example:8443/"]
    {
        let harness = send(&ForwardToken { url: url.into(), ..open() }, FIELDS, b"x");
        assert_eq!((harness.fault(), harness.edge.stats().forward_404), ((404, Some(102)), 1), "{url}");
    }
    let only =
        |name: &str| ForwardRules { targets: Targets { own: Vec::new(), only: vec![name.to_owned()] }, ..rules() };
    let mut listed = edge(rules());
    listed.set_rules(&AccessRules { forward: only("other.example"), ..AccessRules::default() });
    assert_eq!(ask(listed, answer, &post(&path(&open()), FIELDS, b"x")).fault(), (404, Some(102)));
    let harness = ask(edge(only("up.example.net")), answer, &post(&path(&open()), FIELDS, b"x"));
    assert_eq!(harness.response().0, 201);
    let mut rekeyed = edge(rules());
    rekeyed.rekey(&EdgeKeys { crypto: vec![OTHER_KEY.into()], node: Vec::new() }).unwrap();
    assert_eq!(ask(rekeyed, answer, &post(&path(&open()), FIELDS, b"x")).fault(), (404, Some(102)));
    let mut rekeyed = edge(rules());
    rekeyed.rekey(&EdgeKeys { crypto: vec![OTHER_KEY.into(), KEY.into()], node: Vec::new() }).unwrap();
    assert_eq!(ask(rekeyed, answer, &post(&path(&open()), FIELDS, b"x")).response().0, 201);
}

#[test]
fn a_token_with_a_sender_takes_messages_of_that_sender_only() {
    let (sender, other) = (Sender::new(), Sender::new());
    let locked = ForwardToken { sender: Some(sender.digest()), ..open() };
    let good = |sender: &Sender| format!("vapid t={},k={}", sender.good_token(NOW + 60), sender.key());
    let foreign = sender.0.authorization("https://elsewhere.example", NOW + 60);
    let draft = format!("WebPush {}\r\nCrypto-Key: p256ecdsa={}", sender.good_token(NOW + 60), sender.key());
    let expired = format!("vapid t={},k={}", sender.good_token(NOW - 600), sender.key());
    for authorization in ["vapid", "vapid t=x,k=y", &good(&other), &foreign, &draft, &expired] {
        let harness = send(&locked, &format!("{FIELDS}Authorization: {authorization}\r\n"), b"x");
        assert_eq!(harness.fault(), (401, Some(109)), "{authorization}");
        assert!(harness.commands.is_empty());
        assert_eq!(harness.edge.stats().forward_401, 1);
    }
    assert_eq!(send(&locked, FIELDS, b"x").fault(), (401, Some(109)));
    let harness = send(&locked, &format!("{FIELDS}Authorization: {}\r\n", good(&sender)), b"x");
    assert_eq!((harness.response().0, &message(&harness).vapid), (201, &None), "no key, no authorization");
}

#[test]
fn verified_claims_go_to_the_key_that_signs_them() {
    let sender = Sender::new();
    let key = machine::upstream::ForwardKey([5; 32]);
    let signing = ForwardToken { sender: Some(sender.digest()), key: Some(key), ..open() };
    let claims = serde_json::json!({ "aud": ORIGIN, "exp": NOW + 60, "sub": "mailto:a@b", "more": [1] });
    for space in ["", " "] {
        let authorization = format!("vapid t={},{space}k={}", sender.0.sign(&claims), sender.key());
        let harness = send(&signing, &format!("{FIELDS}Authorization: {authorization}\r\n"), b"x");
        let (kept, with) = message(&harness).vapid.as_ref().expect("there are claims");
        assert_eq!((serde_json::from_slice::<serde_json::Value>(kept).unwrap(), *with), (claims.clone(), key));
    }
    let signed = authorization(claims.to_string().as_bytes(), "https://up.example.net", &key).unwrap();
    let payload = base64url::decode(signed.split('.').nth(1).unwrap().as_bytes()).unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&payload).unwrap()["aud"], "https://up.example.net");
}

#[test]
fn only_allowed_senders_send_if_the_operator_names_them() {
    let (sender, other) = (Sender::new(), Sender::new());
    let answer = ForwardOutcome::Answered { status: 201, retry_after: None };
    let fields = |sender: &Sender| {
        format!("{FIELDS}Authorization: vapid t={},k={}\r\n", sender.good_token(NOW + 60), sender.key())
    };
    let ask = |token: &ForwardToken, fields: &str| {
        let mut edge = edge(rules());
        edge.set_rules(&AccessRules { senders: vec![sender.digest()], ..AccessRules::default() });
        ask(edge, answer, &post(&path(token), fields, b"x"))
    };
    let locked = |sender: &Sender| ForwardToken { sender: Some(sender.digest()), ..open() };
    assert_eq!(ask(&locked(&sender), &fields(&sender)).response().0, 201);
    assert_eq!(ask(&locked(&other), &fields(&other)).fault(), (401, Some(109)));
    assert_eq!(ask(&open(), &fields(&sender)).fault(), (401, Some(109)), "a token without a sender verifies none");
}

#[test]
fn answers_of_targets_become_answers_to_senders() {
    let answered = |status, retry_after| ForwardOutcome::Answered { status, retry_after };
    for status in [200, 201, 202, 204, 207] {
        let harness = ask(edge(rules()), answered(status, None), &post(&path(&open()), FIELDS, b"x"));
        let (said, head, body) = harness.response();
        assert!(said == status && head.contains("TTL: 60") && !head.contains("Internal"), "{head}");
        assert_eq!(body.is_empty(), status == 204);
    }
    for (outcome, fault, retry_after) in [
        (answered(400, None), (400, None), None),
        (answered(401, None), (502, Some(901)), None),
        (answered(403, None), (502, Some(901)), None),
        (answered(404, None), (404, Some(102)), None),
        (answered(410, None), (410, Some(106)), None),
        (answered(413, None), (413, Some(104)), None),
        (answered(429, Some(33)), (429, Some(201)), Some(33)),
        (answered(429, None), (429, Some(201)), Some(60)),
        (answered(500, None), (503, Some(201)), Some(120)),
        (answered(503, Some(12)), (503, Some(201)), Some(12)),
        (answered(301, None), (502, Some(902)), None),
        (answered(307, None), (502, Some(902)), None),
        (answered(402, None), (502, Some(902)), None),
        (ForwardOutcome::Forbidden, (502, Some(902)), None),
        (ForwardOutcome::Unreachable, (502, Some(902)), None),
        (ForwardOutcome::NoAnswer, (502, Some(903)), None),
        (ForwardOutcome::Unavailable, (503, Some(201)), Some(10)),
    ] {
        let harness = ask(edge(rules()), outcome, &post(&path(&open()), FIELDS, b"x"));
        assert_eq!(harness.fault(), fault, "{outcome:?}");
        let head = harness.response().1;
        let seconds = head.lines().find_map(|line| line.strip_prefix("Retry-After: ")?.parse::<u32>().ok());
        assert_eq!(seconds, retry_after, "{outcome:?}");
        assert_eq!(harness.edge.stats().forwards_not_taken, 1, "{outcome:?}");
    }
}

#[test]
fn get_of_an_endpoint_is_the_answer_of_unifiedpush() {
    let mut harness = Harness::with(edge(rules()), Port::Endpoint);
    harness.feed(format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", path(&open())).as_bytes());
    assert_eq!((harness.response().0, harness.response().2.as_str()), (200, r#"{"unifiedpush":{"version":1}}"#));
    let mut harness = Harness::with(edge(rules()), Port::Endpoint);
    harness.feed(format!("PUT {} HTTP/1.1\r\nHost: a\r\n\r\n", path(&open())).as_bytes());
    assert_eq!(harness.fault().0, 405);
}
