//! Answers of FCM (<https://firebase.google.com/docs/reference/fcm/rest/v1/ErrorCode>).

use std::time::SystemTime;

use machine::upstream::BridgeFailure;
use serde::Deserialize;

use crate::bridges::judgement::{Judgement, Reason, Retry};
use crate::bridges::request::Answer;
use crate::retry_after::retry_seconds;

/// Reads an answer. Members that are missing or of another type count as absent.
pub(in crate::bridges) fn judge(answer: &Answer, now: SystemTime) -> Judgement {
    if answer.status.is_success() {
        return Judgement::sent();
    }
    let status = answer.status.as_u16();
    let error = FcmError::read(&answer.body);
    let code = error.as_ref().and_then(|error| error.code.as_deref());
    let pause = retry_seconds(&answer.headers, now);
    match (status, &error) {
        (404, _) if code == Some("UNREGISTERED") => Judgement::gone(),
        (404, _) => Judgement::doubted(Reason::NotFound),
        (401, _) if code != Some("THIRD_PARTY_AUTH_ERROR") => unauthenticated().retrying(Retry::NewCredentials),
        (429, _) => Judgement::quota(pause.unwrap_or(QUOTA_SECONDS)),
        (_, None) => Judgement::no_answer_of_ours(status),
        (_, Some(_)) if code == Some("QUOTA_EXCEEDED") => Judgement::quota(pause.unwrap_or(QUOTA_SECONDS)),
        (401, Some(_)) => unauthenticated(),
        (403, Some(_)) if code == Some("SENDER_ID_MISMATCH") => Judgement::doubted(Reason::SenderMismatch),
        (403, Some(_)) => unauthenticated(),
        (400, Some(error)) => bad_request(error),
        (500 | 503, Some(_)) => Judgement::unavailable(pause.unwrap_or(PAUSE_SECONDS)),
        _ => Judgement::no_answer_of_ours(status),
    }
}

fn unauthenticated() -> Judgement {
    Judgement::failed(BridgeFailure::Authentication, Reason::Authentication)
        .alarming("FCM does not accept the credential; check the service account, its role and project_id")
}

fn bad_request(error: &FcmError) -> Judgement {
    match &error.field {
        Some(field) if field == "message.token" => Judgement::doubted(Reason::BadToken),
        None if error.code.as_deref() == Some("INVALID_ARGUMENT") => Judgement::doubted(Reason::BadToken),
        field => {
            let field = field.as_deref().unwrap_or("none named");
            Judgement::failed(BridgeFailure::BadRequest, Reason::BadRequest)
                .alarming(format!("FCM does not understand a message; field: {field}"))
        }
    }
}

/// Parts of an error that count.
struct FcmError {
    /// `errorCode` of the FCM detail.
    code: Option<String>,
    /// First field of a `BadRequest` detail; that of the token if it is among them.
    field: Option<String>,
}

impl FcmError {
    /// `None` for a body that is no JSON object.
    fn read(body: &[u8]) -> Option<FcmError> {
        let body: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body).ok()?;
        let details = body.get("error").and_then(|error| error["details"].as_array()).cloned().unwrap_or_default();
        let details = details.into_iter().take(DETAILS_MAX);
        let details: Vec<Detail> = details.filter_map(|detail| serde_json::from_value(detail).ok()).collect();
        let code = details.iter().find(|detail| detail.type_name.ends_with("google.firebase.fcm.v1.FcmError"));
        let code = code.and_then(|detail| detail.error_code.clone());
        let is_bad_request = |detail: &&Detail| detail.type_name.ends_with("google.rpc.BadRequest");
        let mut fields = details.iter().filter(is_bad_request).flat_map(|detail| &detail.field_violations);
        let first = fields.next().map(|violation| shortened(&violation.field));
        let is_token = |field: &str| field == "message.token";
        let token = fields.any(|violation| is_token(&violation.field)).then(|| "message.token".to_owned());
        Some(FcmError { code, field: token.or(first) })
    }
}

/// Part of a name that a service chose, for the log.
fn shortened(field: &str) -> String {
    field.chars().filter(char::is_ascii_graphic).take(FIELD_CHARS_MAX).collect()
}

#[derive(Deserialize)]
struct Detail {
    #[serde(rename = "@type", default)]
    type_name: String,
    #[serde(rename = "errorCode")]
    error_code: Option<String>,
    #[serde(rename = "fieldViolations", default)]
    field_violations: Vec<Violation>,
}

#[derive(Deserialize)]
struct Violation {
    #[serde(default)]
    field: String,
}

/// Details of one error that are read.
const DETAILS_MAX: usize = 16;
/// Characters of the name of a field in the log.
const FIELD_CHARS_MAX: usize = 64;
/// Pause of senders when FCM names none.
const QUOTA_SECONDS: u32 = 60;
const PAUSE_SECONDS: u32 = 120;
