//! Requests of FCM, and the rows of its answers that need no service.

use std::net::Ipv4Addr;
use std::time::SystemTime;

use hyper::StatusCode;
use machine::ids::{Chid, Clock, Stamp, Uaid};
use machine::message::{Topic, Tries};
use machine::time::UnixSeconds;
use machine::upstream::{BridgeKind, BridgeOutcome};
use protocol::webpush::headers::Encryption;
use protocol::webpush::payload::Draft;
use serde_json::Value;
use upstream::{CA, FCM_CREDENTIALS, Service, Upstream};

use super::*;
use crate::bridges::request::Answer;

/// RSA key of the tests of TLS.
const RSA_KEY: &str = include_str!("../../../../tls/tests/tls/rsa.pem");

fn account() -> ServiceAccount {
    let uri = "https://oauth2.googleapis.com/token";
    let text = json!({"type": "service_account", "client_email": "a@b", "private_key": RSA_KEY, "token_uri": uri});
    ServiceAccount::parse(&text.to_string()).unwrap()
}

const RULES: FcmRules = FcmRules { min_ttl: 60, max_ttl: 2_419_200, max_data: 4_096, collapse: true };

fn fcm(rules: FcmRules) -> Fcm {
    Fcm::new("app", "/", "project", rules, account(), HttpClient::new())
}

pub(in crate::bridges) fn message(headers: &Encryption<'_>, body: &[u8]) -> Message {
    let mut draft = Draft::new(headers, body.len());
    draft.extend(body);
    Message {
        uaid: Uaid([1; 16]),
        chid: Chid([2; 16]),
        stamp: Stamp::default(),
        ttl: 0,
        accepted: UnixSeconds(0),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Tries::default(),
        payload: draft.finish().unwrap(),
    }
}

const MODERN: Encryption<'static> =
    Encryption { encoding: Some(b"aes128gcm"), encryption: None, crypto_key: None, encryption_key: None };

pub(in crate::bridges) fn user(kind: BridgeKind, app: &str, token: &str) -> Arc<Bridged> {
    let (app, token) = (app.into(), token.into());
    Arc::new(Bridged { kind, app, token, aps: None, registered: Clock(0), refused: None })
}

fn body(fcm: &Fcm, message: &Message) -> Value {
    let prepared = fcm.prepare(&user(BridgeKind::Fcm, "app", "device"), message).unwrap();
    assert_eq!(prepared.path, "/v1/projects/project/messages:send");
    serde_json::from_slice(&prepared.body).unwrap()
}

#[test]
fn a_message_is_spelled_as_documented() {
    let mut message = message(&MODERN, &[0xfb, 0xff]);
    let chid = "02020202-0202-0202-0202-020202020202";
    let data = json!({"chid": chid, "body": "-_8", "con": "aes128gcm"});
    let android = json!({"ttl": "60s", "priority": "NORMAL", "data": data});
    assert_eq!(body(&fcm(RULES), &message), json!({"message": {"token": "device", "android": android}}));

    (message.ttl, message.urgency, message.topic) = (u32::MAX, Urgency::High, Topic::new(b"t"));
    let android = &body(&fcm(RULES), &message)["message"]["android"];
    assert_eq!((&android["ttl"], &android["priority"]), (&json!("2419200s"), &json!("HIGH")));
    assert_eq!(android["collapse_key"].as_str().unwrap().len(), 22);
    let mut other = message.clone();
    other.chid = Chid([3; 16]);
    let key = &body(&fcm(RULES), &other)["message"]["android"]["collapse_key"];
    assert_ne!(*key, android["collapse_key"], "two channels with one topic do not replace each other");

    message.ttl = 0;
    let now_or_never = FcmRules { min_ttl: 0, collapse: false, ..RULES };
    let android = &body(&fcm(now_or_never), &message)["message"]["android"];
    assert_eq!(android["ttl"], "0s");
    assert!(android.get("collapse_key").is_none());
}

#[test]
fn headers_of_the_older_encoding_go_without_quotes_and_padding_and_a_message_without_body_has_none() {
    let old = Encryption {
        encoding: Some(b"aesgcm"),
        encryption: Some(br#"keyid="p"; salt="AA==""#),
        crypto_key: Some(b"dh=BB=="),
        encryption_key: None,
    };
    let data = &body(&fcm(RULES), &message(&old, b"x"))["message"]["android"]["data"];
    assert_eq!((&data["enc"], &data["cryptokey"]), (&json!("keyid=p; salt=AA"), &json!("dh=BB")));
    let data = &body(&fcm(RULES), &message(&MODERN, b""))["message"]["android"]["data"];
    assert_eq!(data.as_object().unwrap().len(), 1, "only the channel: {data}");
}

#[test]
fn data_of_4096_bytes_is_taken_and_one_more_is_refused_with_the_excess() {
    let taken =
        |bytes: usize| fcm(RULES).prepare(&user(BridgeKind::Fcm, "app", "device"), &message(&MODERN, &vec![0; bytes]));
    assert!(taken(3_015).is_ok());
    let refused = taken(3_016).unwrap_err();
    assert!(!refused.answered);
    let excess = match refused.outcome {
        BridgeOutcome::Failed(BridgeFailure::TooLarge { excess }) => excess,
        other => panic!("{other:?}"),
    };
    assert_eq!(excess, 1);
}

#[test]
fn bodies_that_are_no_errors_of_fcm_are_judged_by_their_status() {
    for (status, body, reason) in [
        (404, "", Reason::NotFound),
        (404, "<html>", Reason::NotFound),
        (403, "<html>", Reason::Upstream(403)),
        (400, "[]", Reason::Upstream(400)),
        (400, "{}", Reason::BadRequest),
        (400, r#"{"error":{"details":7}}"#, Reason::BadRequest),
        (400, r#"{"error":{"details":[7,{"@type":8},{}]}}"#, Reason::BadRequest),
        (302, "", Reason::Upstream(302)),
        (502, "{}", Reason::Upstream(502)),
        (503, "", Reason::Upstream(503)),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer { status, headers: HeaderMap::new(), body: Bytes::from(body) };
        assert_eq!(judge(&answer, SystemTime::UNIX_EPOCH).reason, reason, "{status} {body}");
    }
}

#[test]
fn profiles_are_refused_with_a_sentence_and_the_nearest_name() {
    let refusal = |text: Value| read_profiles(&text.to_string()).err().unwrap();
    let account = json!({"client_email": "a@b", "private_key": RSA_KEY});
    let taken = json!({"app": {"project_id": "p", "credential": account, "_comment": "anything"}});
    assert_eq!(read_profiles(&taken.to_string()).unwrap().len(), 1);
    for (text, sentence) in [
        (
            json!({"app": {"projectid": "p", "credential": account}}),
            "unknown member \"projectid\"; did you mean \"project_id\"?",
        ),
        (json!({"app": {"credential": account}}), "project_id is missing"),
        (json!({"app": {"project_id": "p"}}), "credential is missing"),
        (json!({"app": {"project_id": "p", "credential": {}}}), "it is no service account"),
        (json!({"a b": {"project_id": "p", "credential": account}}), "a name has 1 to 64 characters"),
        (json!({"app": 7}), "is not a JSON object"),
        (json!({"app": {"project_id": "p", "credential": "/nowhere.json"}}), "cannot read /nowhere.json"),
        (
            json!({"app": {"project_id": "p", "credential": {"client_email": "a", "private_key": "secret-text"}}}),
            "is not an RSA key",
        ),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(sentence) && !refusal.contains("secret-text"), "{refusal}");
    }
}

#[test]
fn an_assertion_is_signed_by_the_key_of_the_account_and_asks_for_the_scope_of_messages() {
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
    let (account, now) = (account(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let assertion = account.assertion(now).unwrap();
    let (signed, signature) = assertion.rsplit_once('.').unwrap();
    let signature = protocol::wire::base64url::decode(signature.as_bytes()).unwrap();
    let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, account.public_key());
    assert!(key.verify(signed.as_bytes(), &signature).is_ok());
    let claims = protocol::wire::base64url::decode(signed.split_once('.').unwrap().1.as_bytes()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let wanted = json!({
        "iss": "a@b", "scope": "https://www.googleapis.com/auth/firebase.messaging",
        "aud": "https://oauth2.googleapis.com/token", "iat": 1_700_000_000, "exp": 1_700_003_600,
    });
    assert_eq!(claims, wanted);
}

#[test]
fn nothing_that_debug_shows_is_a_secret() {
    let prepared = fcm(RULES).prepare(&user(BridgeKind::Fcm, "app", "device-token"), &message(&MODERN, b"x")).unwrap();
    let shown = format!("{prepared:?} {:?}", account());
    for secret in ["device-token", "PRIVATE", "a@b"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// The clock moves; the token of the stand-in lives for an hour.
#[tokio::test]
async fn an_access_token_is_renewed_five_minutes_before_its_end_and_used_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = Upstream::start(Ipv4Addr::LOCALHOST.into(), directory.path()).await.unwrap();
    let file = |name: &str| directory.path().join(name);
    let profile = read_profiles(&file(FCM_CREDENTIALS).display().to_string()).unwrap().remove(0);
    let client = HttpClient::trusting_file(&file(CA)).unwrap();
    let fcm = Fcm::new(&profile.app, "/", &profile.project, RULES, profile.account, client);
    let generation = async || fcm.authorize().await.map(|authorization| authorization.generation);
    assert_eq!(generation().await, Ok(1));
    let (fetched, pause) = (Instant::now(), Duration::from_millis(100));
    for seconds in [2, 1_800, 3_290] {
        fcm.tick(fetched + Duration::from_secs(seconds));
        tokio::time::sleep(pause).await;
        assert_eq!((upstream.state.count(Service::Token), generation().await), (1, Ok(1)), "{seconds}");
    }
    upstream.state.answer(Service::Token, &["ok;delay=300"]);
    fcm.tick(fetched + Duration::from_secs(3_301));
    assert_eq!(generation().await, Ok(1), "no call waits for the renewal");
    let began = Instant::now();
    while generation().await != Ok(2) {
        assert!(began.elapsed() < Duration::from_secs(30), "it is renewed");
        tokio::time::sleep(pause).await;
    }
    assert_eq!(upstream.state.count(Service::Token), 2);
}
