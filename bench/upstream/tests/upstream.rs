//! The stand-ins themselves, asked over TLS and HTTP/2: what is right is taken, each fault is seen, and each answer and
//! each failure arrives.

mod provider;

use std::time::{Duration, Instant};

use provider::{APNS_HEADERS, DEVICE, PAYLOAD, Provider, hex};
use serde_json::json;
use upstream::{CertificateKind, Script, Service, TOPIC};

#[tokio::test]
async fn a_right_assertion_gets_a_token_that_sends() {
    let provider = Provider::start().await;
    let token = provider.access_token().await;
    let (status, body) = provider.fcm(&token, &json!({"token": "device-token"})).await.unwrap();
    assert_eq!(status, 200);
    assert!(body["name"].as_str().unwrap().starts_with("projects/murre-test/messages/"), "{body}");
    assert_eq!(provider.state().violations(), [""; 0]);
    assert_eq!((provider.state().count(Service::Token), provider.state().count(Service::Fcm)), (1, 1));
}

#[tokio::test]
async fn each_fault_of_an_assertion_is_refused() {
    let provider = Provider::start().await;
    let right = provider.claims();
    let faults = [
        ("iss", json!("somebody@else.example")),
        ("aud", json!("https://oauth2.example/token")),
        ("scope", json!("https://www.googleapis.com/auth/firebase")),
        ("iat", json!(right["iat"].as_i64().unwrap() - 4_000)),
        ("iat", json!("now")),
        ("exp", json!(right["iat"].as_i64().unwrap() + 3_601)),
        ("exp", json!(right["iat"].as_i64().unwrap() - 1)),
    ];
    for (name, value) in &faults {
        let mut claims = right.clone();
        claims[*name] = value.clone();
        let (status, body) = provider.token(&provider.rs256(&claims)).await;
        assert_eq!((status, &body["error"]), (400, &json!("invalid_grant")), "{name} {value}");
    }
    let mut forged = provider.rs256(&right);
    forged.replace_range(40..41, if &forged[40..41] == "A" { "B" } else { "A" });
    assert_eq!(provider.token(&forged).await.0, 400);
    assert_eq!(provider.state().violations().len(), faults.len() + 1);
}

#[tokio::test]
async fn each_fault_of_a_message_is_refused() {
    let provider = Provider::start().await;
    let token = provider.access_token().await;
    let with = |android| json!({"token": "device-token", "android": android});
    let faults = [
        ("message.token", json!({})),
        ("message", json!({"token": "t", "tokens": []})),
        ("message.android", with(json!({"time_to_live": "60s"}))),
        ("message.android.ttl", with(json!({"ttl": 60}))),
        ("message.android.ttl", with(json!({"ttl": "60"}))),
        ("message.android.ttl", with(json!({"ttl": "2419201s"}))),
        ("message.android.priority", with(json!({"priority": "LOW"}))),
        ("message.android.collapse_key", with(json!({"collapse_key": 1}))),
        ("message.android.data[from]", with(json!({"data": {"from": "x"}}))),
        ("message.android.data[google.x]", with(json!({"data": {"google.x": "x"}}))),
        ("message.android.data[n]", with(json!({"data": {"n": 1}}))),
        ("message.android.data", with(json!({"data": {"body": "x".repeat(4_093)}}))),
    ];
    for (field, message) in &faults {
        let (status, body) = provider.fcm(&token, message).await.unwrap();
        let found = &body["error"]["details"][0]["fieldViolations"][0]["field"];
        assert_eq!((status, found), (400, &json!(field)), "{message}");
    }
    assert_eq!(provider.state().violations().len(), faults.len());
    let most = with(json!({"ttl": "2419200s", "priority": "HIGH", "data": {"body": "x".repeat(4_092)}}));
    assert_eq!(provider.fcm(&token, &most).await.unwrap().0, 200);
    assert_eq!(provider.fcm("ya29.other", &most).await.unwrap().0, 401);
}

#[tokio::test]
async fn a_right_request_is_taken_by_apns_with_either_credential() {
    for has_certificate in [false, true] {
        let provider = Provider::start().await;
        let mut apns = provider.apple(has_certificate).await.unwrap();
        let token = (!has_certificate).then(|| provider.es256(0));
        let (status, body) = apns.push(DEVICE, token.as_deref(), &APNS_HEADERS, PAYLOAD).await.unwrap();
        assert_eq!((status, body), (200, json!(null)), "certificate: {has_certificate}");
        assert_eq!(provider.state().violations(), [""; 0]);
        assert_eq!(provider.state().calls()[0].has_certificate, has_certificate);
    }
}

#[tokio::test]
async fn each_fault_of_a_request_to_apns_has_its_reason() {
    let provider = Provider::start().await;
    let mut apns = provider.apple(false).await.unwrap();
    let token = provider.es256(0);
    let long = "x".repeat(65);
    let changes: [(&str, Option<&str>, &str); 12] = [
        ("apns-topic", None, "MissingTopic"),
        ("apns-topic", Some("org.example.other"), "TopicDisallowed"),
        ("apns-push-type", None, "InvalidPushType"),
        ("apns-push-type", Some("loud"), "InvalidPushType"),
        ("apns-priority", Some("9"), "BadPriority"),
        ("apns-priority", Some("010"), "BadPriority"),
        ("apns-expiration", Some("soon"), "BadExpirationDate"),
        ("apns-expiration", Some("-1"), "BadExpirationDate"),
        ("apns-collapse-id", Some(&long), "BadCollapseId"),
        ("apns-collapse-id", Some(""), "BadCollapseId"),
        ("apns-id", Some("1"), "BadMessageId"),
        ("apns-id", Some("123E4567-E89B-12D3-A456-42665544000A"), "BadMessageId"),
    ];
    for (name, value, reason) in changes {
        let mut headers: Vec<(&str, &str)> = APNS_HEADERS.into_iter().filter(|(of, _)| *of != name).collect();
        headers.extend(value.map(|value| (name, value)));
        let (status, body) = apns.push(DEVICE, Some(&token), &headers, PAYLOAD).await.unwrap();
        assert_eq!((status, &body["reason"]), (400, &json!(reason)), "{name} {value:?}");
    }
    let large = format!(r#"{{"aps":{{"alert":"a"}},"x":"{}"}}"#, "x".repeat(4_096));
    let requests = [
        ("", PAYLOAD, "MissingDeviceToken"),
        ("00fg", PAYLOAD, "BadDeviceToken"),
        ("00f", PAYLOAD, "BadDeviceToken"),
        (DEVICE, "", "PayloadEmpty"),
        (DEVICE, &large, "PayloadTooLarge"),
    ];
    for (device, payload, reason) in requests {
        let (_, body) = apns.push(device, Some(&token), &APNS_HEADERS, payload).await.unwrap();
        assert_eq!(body["reason"], reason, "{device}");
    }
    assert_eq!(provider.state().violations().len(), changes.len() + requests.len());
    let twice = [APNS_HEADERS.as_slice(), &[("apns-topic", TOPIC)]].concat();
    let (_, body) = apns.push(DEVICE, Some(&token), &twice, PAYLOAD).await.unwrap();
    assert_eq!(body["reason"], "DuplicateHeaders");
}

#[tokio::test]
async fn a_payload_that_no_device_can_use_is_a_violation() {
    let payloads = [
        r#"{"body":"x"}"#,
        r#"{"aps":{}}"#,
        r#"{"aps":{"alert":{"title_loc_key":"x"}}}"#,
        r#"{"aps":{"alert":{"loc-args":"x"}}}"#,
        r#"{"aps":{"alert":"x","badge":"1"}}"#,
        r#"{"aps":{"alert":"x","mutable-content":true}}"#,
    ];
    for payload in payloads {
        let provider = Provider::start().await;
        let mut apns = provider.apple(false).await.unwrap();
        let (status, _) = apns.push(DEVICE, Some(&provider.es256(0)), &APNS_HEADERS, payload).await.unwrap();
        assert_eq!((status, provider.state().violations().len()), (200, 1), "{payload}");
    }
}

#[tokio::test]
async fn age_rate_and_names_of_a_provider_token_are_checked() {
    let provider = Provider::start().await;
    let mut apns = provider.apple(false).await.unwrap();
    let mut reason = async |token: Option<String>| {
        let (status, body) = apns.push(DEVICE, token.as_deref(), &APNS_HEADERS, PAYLOAD).await.unwrap();
        (status, body["reason"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(reason(None).await, (403, "MissingProviderToken".into()));
    assert_eq!(reason(Some(provider.es256(3_601))).await, (403, "ExpiredProviderToken".into()));
    assert_eq!(reason(Some(provider.es256(-120))).await, (403, "InvalidProviderToken".into()));
    assert_eq!(reason(Some(provider.es256_of("OTHERKEYID", 0))).await, (403, "InvalidProviderToken".into()));
    let mut forged = provider.es256(0);
    forged.replace_range(60..61, if &forged[60..61] == "A" { "B" } else { "A" });
    assert_eq!(reason(Some(forged)).await, (403, "InvalidProviderToken".into()));
    let first = provider.es256(3_000);
    assert_eq!(reason(Some(first.clone())).await.0, 200);
    assert_eq!(reason(Some(first.clone())).await.0, 200);
    assert_eq!(reason(Some(provider.es256(0))).await, (429, "TooManyProviderTokenUpdates".into()));
    assert_eq!(reason(Some(first)).await.0, 200);
}

#[tokio::test]
async fn one_stream_is_allowed_until_a_token_is_accepted() {
    let provider = Provider::start().await;
    let mut apns = provider.apple(false).await.unwrap();
    assert_eq!(apns.limit_of_streams(1).await, 1);
    let (status, _) = apns.push(DEVICE, None, &APNS_HEADERS, PAYLOAD).await.unwrap();
    assert_eq!((status, apns.limit_of_streams(1).await), (403, 1));
    let token = provider.es256(0);
    assert_eq!(apns.push(DEVICE, Some(&token), &APNS_HEADERS, PAYLOAD).await.unwrap().0, 200);
    assert_eq!(apns.limit_of_streams(1_000).await, 1_000);
    // The acknowledgement of the second SETTINGS does no harm to the connection.
    for _ in 0..3 {
        assert_eq!(apns.push(DEVICE, Some(&token), &APNS_HEADERS, PAYLOAD).await.unwrap().0, 200);
    }
    provider.state().set(Script { streams: 1, ..Script::default() });
    let mut one = provider.apple(true).await.unwrap();
    assert_eq!(one.limit_of_streams(1).await, 1);
}

#[tokio::test]
async fn a_caller_that_opens_too_many_streams_is_noted() {
    let provider = Provider::start().await;
    let token = provider.es256(0);
    provider.state().answer(Service::Apns, &["ok;delay=1", "silence", "silence"]);
    let mut apns = provider.apple_without_limit().await;
    for _ in 0..3 {
        apns.begin(DEVICE, Some(&token), &APNS_HEADERS, PAYLOAD).await;
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while provider.state().violations().is_empty() {
        assert!(Instant::now() < deadline, "two streams at a time were not seen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(provider.state().violations()[0].contains("SETTINGS allow 1"), "{:?}", provider.state().violations());
}

#[tokio::test]
async fn an_answer_is_chosen_by_token_by_order_or_for_all() {
    let provider = Provider::start().await;
    let token = provider.es256(0);
    let mut apns = provider.apple(false).await.unwrap();
    let script = json!({
        "next": {"apns": ["TooManyRequests", "ok"]},
        "always": {"apns": "ServiceUnavailable"},
        "tokens": {"00ff": "Unregistered;timestamp=17"},
    });
    provider.control("PUT", "/script", &script.to_string()).await;
    let asked = hex("answer.BadDeviceToken.");
    let wanted = [("00ff", 410), (DEVICE, 429), (DEVICE, 200), (&asked, 400), (DEVICE, 503), (DEVICE, 503)];
    for (device, status) in wanted {
        let (got, body) = apns.push(device, Some(&token), &APNS_HEADERS, PAYLOAD).await.unwrap();
        assert_eq!(got, status, "{body}");
        assert!(got != 410 || body["timestamp"] == 17, "{body}");
    }
    let state = provider.control("GET", "/state", "").await;
    assert_eq!((&state["counts"]["apns"], &state["violations"]), (&json!(6), &json!([])));
    let calls = provider.control("GET", "/calls", "").await;
    assert_eq!((calls.as_array().unwrap().len(), &calls[1]["status"]), (6, &json!(429)));
    provider.control("DELETE", "/", "").await;
    assert_eq!(provider.state().count(Service::Apns), 0);
}

#[tokio::test]
async fn each_fault_of_a_service_arrives() {
    let faults = ["reset", "refused", "goaway_before", "goaway_mid_stream", "close", "endless_headers"];
    for fault in faults {
        let provider = Provider::start().await;
        let mut apns = provider.apple(false).await.unwrap();
        provider.state().answer(Service::Apns, &[fault]);
        let token = provider.es256(0);
        let error = apns.push(DEVICE, Some(&token), &APNS_HEADERS, PAYLOAD).await.unwrap_err();
        let reason = error.reason();
        match fault {
            "reset" => assert_eq!(reason, Some(h2::Reason::INTERNAL_ERROR)),
            "refused" => assert_eq!(reason, Some(h2::Reason::REFUSED_STREAM)),
            "goaway_before" => assert!(error.is_go_away() && error.is_remote(), "{error:?}"),
            "endless_headers" => assert!(reason.is_some() && !error.is_remote(), "{error:?}"),
            _ => assert!(error.is_io() || error.is_go_away(), "{fault}: {error:?}"),
        }
        assert_eq!(provider.state().violations(), [""; 0], "{fault}");
    }
}

#[tokio::test]
async fn a_silent_and_a_slow_answer_take_long() {
    let provider = Provider::start().await;
    let mut apns = provider.apple(false).await.unwrap();
    provider.state().answer(Service::Apns, &["slow", "silence"]);
    let token = provider.es256(0);
    for _ in 0..2 {
        let call = apns.push(DEVICE, Some(&token), &APNS_HEADERS, PAYLOAD);
        assert!(tokio::time::timeout(Duration::from_millis(1_500), call).await.is_err());
    }
}

#[tokio::test]
async fn a_caller_sees_each_wrong_certificate() {
    let provider = Provider::start().await;
    for kind in [CertificateKind::Expired, CertificateKind::WrongName, CertificateKind::Untrusted] {
        provider.state().set(Script { certificate: kind, ..Script::default() });
        let error = provider.apple(false).await.err().unwrap();
        let inner = error.get_ref().unwrap().downcast_ref::<rustls::Error>();
        assert!(matches!(inner, Some(rustls::Error::InvalidCertificate(_))), "{kind:?}: {error}");
    }
    provider.state().set(Script::default());
    // The first frame of the service comes behind its end of the handshake.
    assert_eq!(provider.apple(true).await.unwrap().limit_of_streams(1_000).await, 1_000);
    assert_eq!(provider.state().connections(), 1);
}
