//! `messages:send` of the FCM HTTP v1 API, as its reference and the proto3 JSON mapping describe it.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::answer::{Answer, Service, UNAUTHENTICATED, bad_request, error};
use crate::papers::PROJECT;
use crate::record::{Call, Chosen, Inner};

/// Checks one request, notes its faults, and returns the answer to it.
pub(crate) fn answer(inner: &mut Inner, call: &Call) -> Answer {
    if let Some(answer) = refuse_head(inner, call) {
        return answer;
    }
    let message = match read(&call.body) {
        Ok(message) => message,
        Err((field, fault)) => {
            inner.violation(Service::Fcm, &format!("{field}: {fault}"));
            return error(400, "INVALID_ARGUMENT", &fault, &[bad_request(&field, &fault)]);
        }
    };
    let token = message["token"].as_str().unwrap_or_default();
    match inner.chosen(Service::Fcm, Some(token)) {
        Chosen::Answer(answer) => answer,
        Chosen::Success(delay) => {
            let id = format!("0:{}%31bd1c9631bd1c96", inner.counts.get(&Service::Fcm).copied().unwrap_or(0));
            let body = json!({"name": format!("projects/{PROJECT}/messages/{id}")});
            Answer::new(200, body.to_string()).with("content-type", "application/json; charset=UTF-8").after(delay)
        }
    }
}

/// Checks method, path and access token.
fn refuse_head(inner: &mut Inner, call: &Call) -> Option<Answer> {
    if call.path != format!("/v1/projects/{PROJECT}/messages:send") || call.method != "POST" {
        inner.violation(Service::Fcm, &format!("{} {}", call.method, call.path));
        return Some(Answer::named(Service::Fcm, "not_found").unwrap_or_else(|| Answer::new(404, String::new())));
    }
    let kind = call.header("content-type").unwrap_or_default();
    if kind.split(';').next() != Some("application/json") {
        inner.violation(Service::Fcm, &format!("content-type {kind:?}"));
    }
    let given = call.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let is_known = |(token, end): &(String, Instant)| Some(token.as_str()) == given && Instant::now() < *end;
    if inner.access_tokens.iter().any(is_known) {
        return None;
    }
    inner.violation(Service::Fcm, "no valid access token");
    Some(error(401, "UNAUTHENTICATED", UNAUTHENTICATED, &[]).unauthenticated())
}

type Refusal = (String, String);

/// The message of a body, if every part of it is right.
fn read(body: &str) -> Result<Map<String, Value>, Refusal> {
    let fault = |field: &str, text: &str| (field.to_owned(), text.to_owned());
    let body: Value = serde_json::from_str(body).map_err(|error| fault("", &error.to_string()))?;
    let body = object(&body, "")?;
    known(body, "", &["message", "validate_only", "validateOnly"])?;
    let message = object(&body["message"], "message")?;
    known(message, "message", &["token", "android", "data", "notification", "apns", "webpush", "fcm_options", "name"])?;
    if message.get("token").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(fault("message.token", "Recipient of the message is not set."));
    }
    let mut maps = vec![("message.data", message.get("data"))];
    if let Some(android) = message.get("android") {
        let android = object(android, "message.android")?;
        known(android, "message.android", ANDROID)?;
        check_android(android)?;
        maps.push(("message.android.data", android.get("data")));
    }
    for (field, map) in maps.into_iter().filter_map(|(field, map)| map.map(|map| (field, map))) {
        check_data(field, object(map, field)?)?;
    }
    Ok(message.clone())
}

/// Members of `AndroidConfig`.
const ANDROID: &[&str] = &[
    "collapse_key",
    "priority",
    "ttl",
    "restricted_package_name",
    "data",
    "notification",
    "fcm_options",
    "direct_boot_ok",
];

fn object<'v>(value: &'v Value, field: &str) -> Result<&'v Map<String, Value>, Refusal> {
    value.as_object().ok_or_else(|| (field.to_owned(), "is no object".to_owned()))
}

/// Refuses members that the API does not have: it does so too.
fn known(map: &Map<String, Value>, field: &str, names: &[&str]) -> Result<(), Refusal> {
    match map.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err((field.to_owned(), format!("Invalid JSON payload received. Unknown name \"{name}\""))),
    }
}

fn check_android(android: &Map<String, Value>) -> Result<(), Refusal> {
    let refuse = |name: &str, text: &str| Err((format!("message.android.{name}"), text.to_owned()));
    if let Some(ttl) = android.get("ttl") {
        // Duration of the proto3 JSON mapping: seconds with up to nine fractional digits, ended by `s`.
        let text = ttl.as_str().and_then(|text| text.strip_suffix('s')).unwrap_or_default();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let seconds: Option<u64> = whole.parse().ok();
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 || seconds.is_none_or(|s| s > TTL_SECONDS_MAX) {
            return refuse("ttl", "Invalid duration");
        }
    }
    if let Some(priority) = android.get("priority")
        && !["NORMAL", "HIGH", "normal", "high"].iter().any(|word| priority == word)
    {
        return refuse("priority", "Invalid value");
    }
    match android.get("collapse_key") {
        Some(key) if key.as_str().is_none_or(str::is_empty) => refuse("collapse_key", "Invalid value"),
        _ => Ok(()),
    }
}

/// 28 days.
const TTL_SECONDS_MAX: u64 = 2_419_200;
/// Bytes of all keys and values.
const DATA_BYTES_MAX: usize = 4_096;

fn check_data(field: &str, data: &Map<String, Value>) -> Result<(), Refusal> {
    let mut bytes = 0;
    for (key, value) in data {
        let refuse = |text: &str| Err((format!("{field}[{key}]"), text.to_owned()));
        let Some(value) = value.as_str() else { return refuse("is no string") };
        if key == "from" || key == "message_type" || key.starts_with("google.") || key.starts_with("gcm.notification.")
        {
            return refuse("Invalid data payload key");
        }
        bytes += key.len() + value.len();
    }
    if bytes > DATA_BYTES_MAX {
        return Err((field.to_owned(), format!("Android message is too big: {bytes} bytes")));
    }
    Ok(())
}
