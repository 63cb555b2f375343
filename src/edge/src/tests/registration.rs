//! The registration API at its port: each row of PROTOCOL.md 3, in the order of its rules.

use machine::upstream::{BridgeFailure, BridgeKind};
use machine::{Device, Refusal, RegistrationCommand};
use serde_json::{Value, json};

use super::endpoint::{GOOD, path, post};
use super::*;
use crate::{AccessRules, BridgeProfiles, Forwarding, Register, RegistrationSettings};
use protocol::webpush::errno::ApiError;
use protocol::webpush::registration::RegistrationFault;
use protocol::webpush::registration::SecretKeys;
use protocol::wire::forwarded::Kind;

const AUTH_KEY: &str = "first-key-of-this-server";
const USERS: &str = "/v1/fcm/app/registration";
const UAID: &str = "729e5104f5f04abc9196085340317dea";

fn settings() -> RegistrationSettings {
    let mut profiles = BridgeProfiles::default();
    profiles.add(BridgeKind::Fcm, "app");
    profiles.add(BridgeKind::Apns, "ios");
    RegistrationSettings { auth_keys: vec![AUTH_KEY.into(), "an-older-key-of-it".into()], profiles }
}

fn harness_of(settings: RegistrationSettings) -> Harness {
    let edge = PushEdge::new(&EdgeConfig { registrations: Arc::new(settings), ..config() }).unwrap();
    Harness::with(edge, Port::Endpoint)
}

fn harness() -> Harness {
    harness_of(settings())
}

fn secret_with(key: &str) -> String {
    let mut out = Vec::new();
    let uaid = u128::from_str_radix(UAID, 16).unwrap().to_be_bytes();
    SecretKeys::new(&[key.to_owned()]).push_secret(&uaid, &mut out);
    String::from_utf8(out).unwrap()
}

fn call(method: &str, path: &str, authorization: Option<&str>, body: &str) -> String {
    let authorization = authorization.map_or(String::new(), |value| format!("Authorization: {value}\r\n"));
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: h\r\nOrigin: o\r\n{authorization}Content-Length: {length}\r\n\r\n{body}")
}

/// A call of the user with its secret.
fn of_user(method: &str, rest: &str, body: &str) -> String {
    let path = format!("/v1/fcm/app/registration/{}{rest}", UAID);
    call(method, &path, Some(&format!("webpush {}", secret_with(AUTH_KEY))), body)
}

fn asked(harness: &Harness) -> &RegistrationCommand {
    let Some(Command::Registration(command)) = harness.commands.last() else { panic!("{:?}", harness.steps) };
    command
}

fn answer_to(request: &str) -> (u16, String, Value) {
    let mut harness = harness();
    harness.feed(request.as_bytes());
    let (status, head, body) = harness.response();
    let body = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{head}\n{body}"));
    (status, head, body)
}

fn fault_of(request: &str) -> (u16, u64) {
    let (status, head, body) = answer_to(request);
    assert_eq!(body["code"], status, "{request}");
    assert!(body["message"].is_string() && head.contains("Access-Control-Allow-Origin: o\r\n"), "{head}");
    assert_eq!(head.contains("Cache-Control: max-age=86400"), status == 410);
    assert_eq!(head.contains("WWW-Authenticate: webpush"), status == 401);
    assert_eq!(head.contains("Retry-After: "), matches!(status, 429 | 503));
    (status, body["errno"].as_u64().unwrap_or_else(|| panic!("errno is an integer: {body}")))
}

const DEVICE: &str = r#"{"token":"device-token","key":null}"#;

#[test]
fn a_device_registers() {
    let mut harness = harness();
    harness.feed(call("POST", USERS, None, DEVICE).as_bytes());
    let (status, head, body) = harness.response();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert!(status == 200 && head.contains("Content-Type: application/json\r\n"), "{head}");
    let RegistrationCommand { uaid, call: RegistrationCall::Create { device, channel, .. } } = asked(&harness) else {
        panic!("{:?}", harness.steps)
    };
    let (kind, token) = (BridgeKind::Fcm, "device-token".into());
    assert_eq!(device, &Some(Device { kind, app: "app".into(), token, aps: None }));
    let dashed = |id: &[u8; 16]| uuid::Uuid::from_bytes(*id).hyphenated().to_string();
    assert_eq!(body["uaid"], dashed(&uaid.0));
    assert_eq!(body["channelID"], dashed(&channel.chid.0));
    assert_eq!(body["secret"].as_str().unwrap().len(), 64);
    assert!(body["endpoint"].as_str().unwrap().starts_with("https://push.example.com/wpush/"));
    assert_eq!(body.as_object().unwrap().len(), 4);
    assert_eq!((channel.key, harness.edge.stats().registrations), (None, 1));
    // The secret opens what follows.
    let path = format!("{USERS}/{}", dashed(&uaid.0));
    let request = call("GET", &path, Some(&format!("Bearer {}", body["secret"].as_str().unwrap())), "");
    assert_eq!(answer_to(&request).0, 200);
}

#[test]
fn a_key_locks_the_endpoint_and_a_channel_can_be_named() {
    let sender = Sender::new();
    let chid = "DECAFBAD-0000-0000-0000-0123456789AB";
    let body = json!({ "token": "device-token", "channelID": chid, "key": sender.key() }).to_string();
    let mut harness = harness();
    harness.feed(call("POST", &format!("{USERS}/"), None, &body).as_bytes());
    assert_eq!(harness.response().0, 200);
    let RegistrationCall::Create { channel, .. } = &asked(&harness).call else { panic!() };
    assert_eq!(channel.key, Some(sender.digest()));
    let (_, _, answer) = harness.response();
    assert!(answer.contains("decafbad-0000-0000-0000-0123456789ab"));
}

#[test]
fn types_are_told_apart() {
    for (path, kind) in [("gcm/app", BridgeKind::Fcm), ("APNS/ios", BridgeKind::Apns)] {
        let mut harness = harness();
        harness.feed(call("POST", &format!("/v1/{path}/registration"), None, DEVICE).as_bytes());
        let RegistrationCall::Create { device: Some(device), .. } = &asked(&harness).call else { panic!() };
        assert_eq!(device.kind, kind);
    }
    let mut harness = harness();
    harness.feed(call("POST", "/v1/webpush/any/registration", None, DEVICE).as_bytes());
    assert!(matches!(asked(&harness).call, RegistrationCall::Create { device: None, .. }));
}

#[test]
fn the_calls_of_a_user() {
    let rows: [(&str, &str, &str, Value); 5] = [
        ("PUT", "", r#"{"token":"another-token"}"#, json!({})),
        ("DELETE", "", "", json!({})),
        ("DELETE", "/", "", json!({})),
        ("DELETE", "/subscription/decafbad0000000000000123456789ab", "", json!({})),
        (
            "GET",
            "",
            "",
            json!({ "uaid": UAID, "channelIDs": [
                "02020202-0202-0202-0202-020202020202", "03030303-0303-0303-0303-030303030303"] }),
        ),
    ];
    for (method, rest, body, expected) in rows {
        let (status, _, answer) = answer_to(&of_user(method, rest, body));
        assert_eq!((status, answer), (200, expected), "{method} {rest}");
    }
    for body in ["", "{}", r#"{"token":5,"key":null}"#] {
        let (status, _, answer) = answer_to(&of_user("POST", "/subscription", body));
        assert!(status == 200 && answer["endpoint"].is_string() && answer["channelID"].is_string(), "{answer}");
        assert_eq!(answer.as_object().unwrap().len(), 2);
    }
}

#[test]
fn the_uaid_of_a_list_is_spelled_as_in_the_path() {
    let dashed = "729E5104-F5F0-4ABC-9196-085340317DEA";
    let secret = format!("WebPush {}", secret_with("an-older-key-of-it"));
    let (status, _, body) = answer_to(&call("GET", &format!("{USERS}/{dashed}/"), Some(&secret), ""));
    assert_eq!((status, &body["uaid"]), (200, &json!(dashed)));
    let mut harness = harness();
    harness.feed(call("GET", &format!("{USERS}/{dashed}"), Some(&secret), "").as_bytes());
    assert_eq!(harness.edge.stats().registration_checks, 1);
}

#[test]
fn bad_first_registrations_ask_nothing() {
    let odd = [
        ("/v1/adm/app/registration", DEVICE, (400, 108)),
        ("/v1/simplepush/app/registration", DEVICE, (400, 108)),
        (USERS, "{", (400, 108)),
        (USERS, "", (400, 108)),
        (USERS, r#"{"token":5}"#, (400, 108)),
        (USERS, r#"{"token":"short"}"#, (400, 108)),
        (USERS, r#"{"token":"with blank"}"#, (400, 108)),
        (USERS, r#"{"token":"device-token","channelID":"x"}"#, (400, 108)),
        (USERS, r#"{"token":"device-token","key":"x"}"#, (400, 108)),
        (USERS, r#"{"token":"device-token","aps":"x"}"#, (400, 108)),
        ("/v1/fcm/other/registration", DEVICE, (400, 106)),
        ("/v1/fcm/a%20b/registration", DEVICE, (400, 106)),
        ("/v1/apns/app/registration", DEVICE, (400, 106)),
    ];
    for (path, body, expected) in odd {
        assert_eq!(fault_of(&call("POST", path, None, body)), expected, "{path} {body}");
        let mut harness = harness();
        harness.feed(call("POST", path, None, body).as_bytes());
        assert!(harness.commands.is_empty(), "{path} {body}");
    }
    let long = format!(r#"{{"token":"{}"}}"#, "x".repeat(5_630));
    assert_eq!(fault_of(&call("POST", USERS, None, &long)), (413, 104));
}

#[test]
fn the_secret_comes_before_all_but_the_syntax_of_the_uaid() {
    let path = format!("/v1/adm/app/registration/{}", UAID);
    let other_key = format!("webpush {}", secret_with("another-key-of-nobody"));
    let vapid = format!("vapid {}", secret_with(AUTH_KEY));
    for authorization in [None, Some("webpush"), Some("webpush x"), Some(&*other_key), Some(&*vapid)] {
        for method in ["GET", "PUT", "DELETE"] {
            assert_eq!(fault_of(&call(method, &path, authorization, "")), (401, 109), "{method} {authorization:?}");
        }
    }
    for odd in ["x", "729e5104f5f04abc9196085340317de", "{729e5104-f5f0-4abc-9196-085340317dea}"] {
        assert_eq!(fault_of(&call("GET", &format!("{USERS}/{odd}"), None, "")), (410, 103), "{odd}");
    }
    let secret = format!("webpush {}", secret_with(AUTH_KEY));
    assert_eq!(fault_of(&call("GET", &path, Some(&secret), "")), (400, 108), "then the type");
}

#[test]
fn a_broken_rule_of_a_user_travels_to_its_owner() {
    let rows = [
        ("PUT", "", "{", ApiError::Registration(RegistrationFault::Body)),
        ("PUT", "", r#"{"token":"short"}"#, ApiError::Registration(RegistrationFault::Token)),
        ("POST", "/subscription", "x", ApiError::Registration(RegistrationFault::Body)),
        ("POST", "/subscription", r#"{"key":"x"}"#, ApiError::Registration(RegistrationFault::Key)),
    ];
    for (method, rest, body, fault) in rows {
        let mut harness = harness();
        harness.feed(of_user(method, rest, body).as_bytes());
        let (RegistrationCall::Update(Err(refusal)) | RegistrationCall::Subscribe(Err(refusal))) = asked(&harness).call
        else {
            panic!("{:?}", harness.steps)
        };
        assert_eq!(refusal, fault.refusal());
        assert_eq!(fault_of(&of_user(method, rest, body)), (400, 108));
    }
    let path = format!("/v1/fcm/other/registration/{}", UAID);
    let secret = format!("webpush {}", secret_with(AUTH_KEY));
    assert_eq!(fault_of(&call("PUT", &path, Some(&secret), DEVICE)), (400, 106));
    assert_eq!(answer_to(&call("GET", &path, Some(&secret), "")).0, 200, "no token, no app");
    let long = "x".repeat(5_631);
    assert_eq!(fault_of(&of_user("PUT", "", &long)), (413, 104));
    assert_eq!(fault_of(&of_user("DELETE", "/subscription/x", "")), (410, 106));
}

#[test]
fn answers_of_the_owner() {
    let rows = [
        (RegistrationAnswer::NoUser, (410, 103)),
        (RegistrationAnswer::NoChannel, (410, 106)),
        (RegistrationAnswer::Conflict, (409, 108)),
        (RegistrationAnswer::Full, (400, 108)),
        (RegistrationAnswer::Refused(Refusal(255)), (400, 0)),
        (RegistrationAnswer::TooMany { retry_after: 77 }, (429, 203)),
        (RegistrationAnswer::Unavailable, (503, 201)),
    ];
    for (answer, (status, errno)) in rows {
        let mut harness = harness();
        harness.registration = Some(answer);
        harness.feed(of_user("POST", "/subscription", "").as_bytes());
        assert_eq!(harness.fault(), (status, Some(errno).filter(|errno| *errno > 0)));
        assert_eq!(harness.edge.stats().registrations_refused, 1);
    }
}

#[test]
fn answers_are_counted_by_call_and_status() {
    let mut harness = harness();
    for request in [
        call("POST", USERS, None, DEVICE),
        call("POST", USERS, None, "{}"),
        of_user("PUT", "", DEVICE),
        of_user("GET", "", ""),
        call("GET", &format!("{USERS}/{UAID}"), None, ""),
        call("GET", USERS, None, ""),
        call("GET", "/v1/x", None, ""),
    ] {
        harness.feed(request.as_bytes());
    }
    let stats = harness.edge.stats();
    assert_eq!((stats.bridge_registrations_register_200, stats.bridge_registrations_register_400), (1, 1));
    assert_eq!((stats.bridge_registrations_update_200, stats.bridge_registrations_list_200), (1, 1));
    assert_eq!(stats.bridge_registrations_list_401, 1);
    assert_eq!((stats.bridge_registrations_other_405, stats.bridge_registrations_other_404), (1, 1));
}

#[test]
fn methods_and_paths_are_told() {
    assert_eq!(fault_of(&call("GET", USERS, None, "")), (405, 108));
    assert_eq!(fault_of(&of_user("POST", "", "")), (405, 108));
    assert_eq!(fault_of(&of_user("GET", "/subscription", "")), (405, 108));
    assert_eq!(fault_of(&of_user("GET", "/subscription/x", "")), (405, 108));
    for path in ["/v1/", "/v1/x", "/v1/fcm/app", "/v1/fcm/app/registration/x/y/z"] {
        assert_eq!(fault_of(&call("GET", path, None, "")), (404, 102), "{path}");
    }
    let mut harness = harness();
    harness.feed(call("OPTIONS", USERS, None, "").as_bytes());
    let (status, head, _) = harness.response();
    assert!(status == 204 && head.contains("Allow: POST, OPTIONS"), "{head}");
}

#[test]
fn without_keys_there_is_no_api() {
    let mut harness = harness_of(RegistrationSettings { auth_keys: Vec::new(), ..settings() });
    harness.feed(call("POST", USERS, None, DEVICE).as_bytes());
    assert_eq!(harness.fault(), (404, None));
    let mut other = Harness::with(harness.edge, Port::Node);
    other.edge.set_registrations(&Arc::new(settings()));
    other.feed(call("POST", USERS, None, DEVICE).as_bytes());
    assert_ne!(other.response().0, 200, "not on the port of other nodes");
    let mut other = Harness::with(other.edge, Port::Public);
    other.feed(call("POST", USERS, None, DEVICE).as_bytes());
    assert_eq!(other.response().0, 200, "keys and profiles come by a reload");
}

/// `access.register` holds for every way to become a user.
#[test]
fn a_first_registration_needs_the_token_of_an_upgrade() {
    let token = "a-token-of-sixteen-or-more";
    let rules = AccessRules { register: Register::Token(vec![token.into()]), ..AccessRules::default() };
    for (users, body) in [("/v1/webpush/any/registration", DEVICE), (USERS, DEVICE)] {
        let edge =
            || PushEdge::new(&EdgeConfig { rules: rules.clone(), registrations: Arc::new(settings()), ..config() });
        for wrong in [None, Some("Bearer another-token-of-sixteen"), Some("webpush 00")] {
            let mut harness = Harness::with(edge().unwrap(), Port::Endpoint);
            harness.feed(call("POST", users, wrong, body).as_bytes());
            assert_eq!(harness.fault(), (401, None), "{users} {wrong:?}");
            assert!(harness.commands.is_empty() && harness.response().1.contains("WWW-Authenticate: Bearer\r\n"));
            assert_eq!(harness.edge.take_refused().by_rule, [1, 0, 0]);
            assert_eq!(harness.edge.stats().bridge_registrations_register_401, 1);
        }
        let mut harness = Harness::with(edge().unwrap(), Port::Endpoint);
        harness.feed(call("POST", users, Some(&format!("Bearer {token}")), body).as_bytes());
        assert_eq!(harness.response().0, 200, "{users}");
        // The secret of a user is its right.
        let mut harness = Harness::with(harness.edge, Port::Endpoint);
        harness.feed(of_user("POST", "/subscription", "").as_bytes());
        assert_eq!(harness.response().0, 200);
    }
}

#[test]
fn a_channel_of_a_key_that_is_not_allowed_is_refused_and_counted() {
    let rules = AccessRules { register: Register::Vapid(vec![Sender::new().digest()]), ..AccessRules::default() };
    let edge = PushEdge::new(&EdgeConfig { rules, registrations: Arc::new(settings()), ..config() }).unwrap();
    let mut harness = Harness::with(edge, Port::Endpoint);
    harness.feed(call("POST", USERS, None, DEVICE).as_bytes());
    assert_eq!(harness.fault(), (400, Some(108)));
    assert_eq!(harness.edge.take_refused().by_rule, [0, 1, 0]);
}

/// The reactor asks for it when the command comes, and trusts it if a trusted proxy sent the head.
#[test]
fn a_first_registration_names_the_caller_of_its_head() {
    let forwarding = Forwarding { field: Some(Kind::XForwardedFor), trusted: Arc::default() };
    let edge = PushEdge::new(&EdgeConfig { forwarding, registrations: Arc::new(settings()), ..config() }).unwrap();
    let mut harness = Harness::with(edge, Port::Endpoint);
    let request = call("POST", USERS, None, DEVICE).replacen("Host:", "X-Forwarded-For: 192.0.2.7\r\nHost:", 1);
    harness.feed(request.as_bytes());
    assert_eq!(harness.response().0, 200);
    assert_eq!(harness.edge.forwarded(), Some([192, 0, 2, 7].into()));
}

#[test]
fn a_body_in_pieces_is_one_body() {
    let mut harness = harness();
    for byte in call("POST", USERS, None, DEVICE).as_bytes() {
        harness.feed(&[*byte]);
    }
    assert_eq!(harness.response().0, 200);
}

#[test]
fn a_bridged_notification_has_no_receipt() {
    let mut harness = harness();
    harness.published = Published::Accepted { stamp: STAMP, disposition: Disposition::Bridged };
    harness.feed(post(&path(None), &format!("{GOOD}Prefer: respond-async\r\n"), "body").as_bytes());
    let (status, head, _) = harness.response();
    assert!(status == 201 && !head.contains("Link:") && head.contains("Location: https://"), "{head}");
    assert_eq!(harness.edge.stats().posts_accepted_bridged, 1);
}

#[test]
fn a_notification_that_is_too_large_for_its_service_is_told_by_how_much() {
    for (excess, said) in [(3, "3 bytes too many"), (0, "of this subscription\",")] {
        let mut harness = harness();
        harness.published = Published::NotBridged(BridgeFailure::TooLarge { excess });
        harness.feed(post(&path(None), GOOD, "body").as_bytes());
        let body = harness.response().2;
        assert!(body.contains(said), "{body}");
    }
}

#[test]
fn failures_at_a_service_are_told() {
    let rows = [
        (BridgeFailure::TooLarge { excess: 3 }, (413, 104), None),
        (BridgeFailure::Quota { retry_after: 77 }, (429, 201), Some(77)),
        (BridgeFailure::BadRequest, (500, 900), None),
        (BridgeFailure::Configuration, (502, 900), None),
        (BridgeFailure::Authentication, (502, 901), None),
        (BridgeFailure::Unreachable, (502, 902), None),
        (BridgeFailure::NoAnswer, (502, 903), None),
        (BridgeFailure::Unavailable { retry_after: 9 }, (503, 201), Some(9)),
    ];
    for (failure, (status, errno), retry_after) in rows {
        let mut harness = harness();
        harness.published = Published::NotBridged(failure);
        harness.feed(post(&path(None), GOOD, "body").as_bytes());
        assert_eq!(harness.fault(), (status, Some(errno)), "{failure:?}");
        let retry = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n"));
        let head = harness.response().1;
        assert!(retry.is_none_or(|retry| head.contains(&retry)), "{head}");
        assert_eq!(harness.edge.stats().posts_not_bridged, 1);
    }
}
