//! Answers by name: the bodies that the documents of Google and Apple show, and faults of a network.
//!
//! The name of an answer can carry members: `quota;retry-after=7`, `unavailable;retry-after=date+30`,
//! `Unregistered;timestamp=1700000000000`, `ok;delay=250` (milliseconds).

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// Service of one operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Token endpoint of Google.
    Token,
    Fcm,
    Apns,
}

/// Way in which a call ends without a whole answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No byte.
    Silence,
    /// The head of an answer, then RST_STREAM.
    ResetAfterHeaders,
    /// RST_STREAM with REFUSED_STREAM: the call was not processed (RFC 9113 section 8.7).
    Refused,
    /// GOAWAY that names an earlier stream as the last: the call was not processed (RFC 9113 section 6.8).
    GoAwayBefore,
    /// GOAWAY that names this stream as the last, and then the end of the connection.
    GoAwayMidStream,
    /// A whole head, and one byte of the body per second.
    Slow,
    /// The end of the connection.
    Close,
    /// Header fields without an end.
    EndlessHeaders,
}

/// Answer to one call.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    pub fault: Option<Fault>,
    pub delay: Duration,
    /// The credential was accepted, whatever the answer is.
    pub is_authenticated: bool,
}

impl Answer {
    pub(crate) fn new(status: u16, body: String) -> Answer {
        let delay = Duration::ZERO;
        Answer { status, headers: Vec::new(), body, fault: None, delay, is_authenticated: true }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    fn failing(fault: Fault) -> Answer {
        Answer { fault: Some(fault), ..Answer::new(200, r#"{"name":"projects/p/messages/1"}"#.into()) }
    }

    pub(crate) fn after(self, delay: Duration) -> Answer {
        Answer { delay, ..self }
    }

    pub(crate) fn unauthenticated(self) -> Answer {
        Answer { is_authenticated: false, ..self }
    }

    /// The answer of this name at this service; `None` if there is none of this name.
    pub fn named(service: Service, text: &str) -> Option<Answer> {
        let mut parts = text.split(';');
        let name = parts.next()?;
        let members: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let member = |wanted: &str| members.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        let mut answer = fault(name).or_else(|| malformed(name)).or_else(|| match service {
            Service::Token => token(name),
            Service::Fcm => fcm(name),
            Service::Apns => apns(name, member("timestamp").and_then(|text| text.parse().ok())),
        })?;
        if let Some(value) = member("retry-after") {
            answer = answer.with("retry-after", retry_after(value));
        }
        answer.delay = Duration::from_millis(member("delay").and_then(|text| text.parse().ok()).unwrap_or(0));
        Some(answer)
    }

    /// Answer that the text of a device token asks for: `answer.NAME.REST`. The tokens of APNs are the hexadecimal
    /// digits of such a text.
    pub fn asked_by(service: Service, token: &str) -> Option<Answer> {
        let unhex = || {
            let byte = |at| token.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
            let bytes: Option<Vec<u8>> = (0..token.len()).step_by(2).map(byte).collect();
            String::from_utf8(bytes?).ok()
        };
        let text = if service == Service::Apns { unhex()? } else { token.to_owned() };
        let name = text.strip_prefix("answer.")?.split('.').next()?.to_owned();
        Answer::named(service, &name)
    }
}

/// Delay of `ok` and `ok;delay=MILLISECONDS`.
pub(crate) fn delay_of_success(name: &str) -> Option<Duration> {
    let rest = name.strip_prefix("ok")?;
    let millis = if rest.is_empty() { "0" } else { rest.strip_prefix(";delay=")? };
    millis.parse().ok().map(Duration::from_millis)
}

/// Seconds, or the HTTP date of `date+SECONDS`.
fn retry_after(value: &str) -> String {
    match value.strip_prefix("date+").and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds)),
        None => value.to_owned(),
    }
}

fn fault(name: &str) -> Option<Answer> {
    let fault = match name {
        "silence" => Fault::Silence,
        "reset" => Fault::ResetAfterHeaders,
        "refused" => Fault::Refused,
        "goaway_before" => Fault::GoAwayBefore,
        "goaway_mid_stream" => Fault::GoAwayMidStream,
        "slow" => Fault::Slow,
        "close" => Fault::Close,
        "endless_headers" => Fault::EndlessHeaders,
        _ => return None,
    };
    Some(Answer::failing(fault))
}

/// Answers that no document shows.
fn malformed(name: &str) -> Option<Answer> {
    Some(match name {
        "no_json" => Answer::new(500, "<html>Error</html>".into()).with("content-type", "text/html"),
        "empty" => Answer::new(500, String::new()),
        "teapot" => Answer::new(418, "{}".into()),
        "redirect" => Answer::new(302, String::new()).with("location", "https://localhost:1/elsewhere"),
        "large" => Answer::new(500, format!("{{\"error\":\"{}\"}}", "x".repeat(LARGE_BYTES))),
        _ => return None,
    })
}

/// Beyond what any caller should read of an answer.
const LARGE_BYTES: usize = 1 << 20;

/// Errors of the token endpoint (RFC 6749 section 5.2). `None` for its success: that one needs the request.
fn token(name: &str) -> Option<Answer> {
    let refused =
        |error: &str, why: &str| Answer::new(400, json!({"error": error, "error_description": why}).to_string());
    Some(match name {
        "invalid_grant" => refused("invalid_grant", "Invalid JWT Signature."),
        "invalid_scope" => refused("invalid_scope", "Invalid OAuth scope or ID token audience provided."),
        "unauthorized_client" => Answer::new(401, json!({"error": "unauthorized_client"}).to_string()),
        "unavailable" => Answer::new(503, json!({"error": "internal_failure"}).to_string()),
        _ => return None,
    })
}

/// Answers of `messages:send`. `None` for the success: that one needs the request.
fn fcm(name: &str) -> Option<Answer> {
    Some(match name {
        "unregistered" => error(404, "NOT_FOUND", "Requested entity was not found.", &[fcm_error("UNREGISTERED")]),
        "not_found" => error(404, "NOT_FOUND", "Requested entity was not found.", &[]),
        "not_found_empty" => Answer::new(404, String::new()),
        "sender_id_mismatch" => {
            error(403, "PERMISSION_DENIED", "SenderId mismatch", &[fcm_error("SENDER_ID_MISMATCH")])
        }
        "invalid_argument" => {
            let text = "The registration token is not a valid FCM registration token";
            error(400, "INVALID_ARGUMENT", text, &[fcm_error("INVALID_ARGUMENT")])
        }
        "bad_token" => {
            let text = "The registration token is not a valid FCM registration token";
            error(400, "INVALID_ARGUMENT", text, &[bad_request("message.token", "Invalid registration token")])
        }
        "bad_field" => {
            let text = "Invalid value at 'message.android.ttl'";
            error(400, "INVALID_ARGUMENT", text, &[bad_request("message.android.ttl", "Invalid duration")])
        }
        "bad_field_with_code" => {
            let details = [fcm_error("INVALID_ARGUMENT"), bad_request("message.android.ttl", "Invalid duration")];
            error(400, "INVALID_ARGUMENT", "Invalid value at 'message.android.ttl'", &details)
        }
        "unauthenticated" => error(401, "UNAUTHENTICATED", UNAUTHENTICATED, &[]).unauthenticated(),
        "third_party_auth_error" => {
            let text = "Auth error from APNS or Web Push Service";
            error(401, "UNAUTHENTICATED", text, &[fcm_error("THIRD_PARTY_AUTH_ERROR")])
        }
        "permission_denied" => {
            let info = json!({
                "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "IAM_PERMISSION_DENIED",
                "domain": "cloudresourcemanager.googleapis.com",
                "metadata": {"permission": "cloudmessaging.messages.create"},
            });
            let text = "Permission 'cloudmessaging.messages.create' denied on resource '//cloudresourcemanager.\
                        googleapis.com/projects/murre-test' (or it may not exist).";
            error(403, "PERMISSION_DENIED", text, &[info])
        }
        "quota" => {
            let text = "Quota exceeded for quota metric 'Send requests' and limit 'Send requests per minute'";
            error(429, "RESOURCE_EXHAUSTED", text, &[fcm_error("QUOTA_EXCEEDED")])
        }
        "resource_exhausted" => error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted.", &[]),
        "unavailable" => {
            error(503, "UNAVAILABLE", "The service is currently unavailable.", &[fcm_error("UNAVAILABLE")])
        }
        "internal" => error(500, "INTERNAL", "Internal error encountered.", &[fcm_error("INTERNAL")]),
        _ => return None,
    })
}

pub(crate) const UNAUTHENTICATED: &str = "Request had invalid authentication credentials. Expected OAuth 2 access \
    token, login cookie or other valid authentication credential.";

/// Error of a Google API.
pub(crate) fn error(status: u16, code: &str, text: &str, details: &[Value]) -> Answer {
    let mut body = json!({"error": {"code": status, "message": text, "status": code}});
    if !details.is_empty() {
        body["error"]["details"] = details.into();
    }
    Answer::new(status, body.to_string()).with("content-type", "application/json; charset=UTF-8")
}

fn fcm_error(code: &str) -> Value {
    json!({"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code})
}

pub(crate) fn bad_request(field: &str, description: &str) -> Value {
    let violations = [json!({"field": field, "description": description})];
    json!({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations})
}

/// Answers of APNs by their reason, as in Apple's table. `None` for the success.
fn apns(reason: &str, timestamp: Option<u64>) -> Option<Answer> {
    let status = APNS_REASONS.iter().find(|(_, reasons)| reasons.contains(&reason)).map(|(status, _)| *status)?;
    let mut body = json!({"reason": reason});
    if status == 410 {
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        body["timestamp"] = timestamp.unwrap_or_else(now).into();
    }
    let answer = Answer::new(status, body.to_string());
    Some(if matches!(status, 403) || reason.starts_with("TooManyProvider") { answer.unauthenticated() } else { answer })
}

/// Status codes and reasons of APNs.
const APNS_REASONS: &[(u16, &[&str])] = &[
    (
        400,
        &[
            "BadCollapseId",
            "BadDeviceToken",
            "BadExpirationDate",
            "BadMessageId",
            "BadPriority",
            "BadTopic",
            "DeviceTokenNotForTopic",
            "DuplicateHeaders",
            "IdleTimeout",
            "InvalidPushType",
            "MissingDeviceToken",
            "MissingTopic",
            "PayloadEmpty",
            "TopicDisallowed",
        ],
    ),
    (
        403,
        &[
            "BadCertificate",
            "BadCertificateEnvironment",
            "BadEnvironmentKeyIdInToken",
            "ExpiredProviderToken",
            "Forbidden",
            "InvalidProviderToken",
            "MissingProviderToken",
            "UnrelatedKeyIdInToken",
        ],
    ),
    (404, &["BadPath"]),
    (405, &["MethodNotAllowed"]),
    (410, &["ExpiredToken", "Unregistered"]),
    (413, &["PayloadTooLarge"]),
    (429, &["TooManyProviderTokenUpdates", "TooManyRequests"]),
    (500, &["InternalServerError"]),
    (503, &["ServiceUnavailable", "Shutdown"]),
];

#[test]
fn every_reason_of_apns_has_its_status_and_body() {
    for (status, reasons) in APNS_REASONS {
        for reason in *reasons {
            let answer = Answer::named(Service::Apns, reason).unwrap();
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((answer.status, &body["reason"]), (*status, &json!(reason)));
            assert_eq!(body["timestamp"].is_u64(), *status == 410, "{reason}");
        }
    }
}

#[test]
fn a_device_token_and_its_members_choose_an_answer() {
    let status = |service, token: &str| Answer::asked_by(service, token).map(|answer| answer.status);
    assert_eq!(status(Service::Fcm, "answer.quota;retry-after=7.x"), Some(429));
    let hex: String = "answer.BadDeviceToken.1".bytes().map(|b| format!("{b:02x}")).collect();
    assert_eq!(status(Service::Apns, &hex), Some(400));
    assert_eq!(status(Service::Fcm, "device-token"), None);
    assert_eq!(status(Service::Apns, "not hexadecimal"), None);
    let quota = Answer::named(Service::Fcm, "quota;retry-after=date+30;delay=5").unwrap();
    let (name, value) = quota.headers.last().unwrap();
    let date = httpdate::parse_http_date(value).unwrap();
    assert_eq!((*name, quota.delay), ("retry-after", Duration::from_millis(5)));
    assert!(date.duration_since(SystemTime::now()).unwrap() <= Duration::from_secs(30), "{value}");
}
