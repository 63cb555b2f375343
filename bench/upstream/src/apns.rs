//! `POST /3/device/TOKEN` of APNs, as Apple's "Sending notification requests to APNs" and "Establishing a token-based
//! connection to APNs" describe it.

use std::time::{Duration, Instant};

use crate::answer::{Answer, Service};
use crate::aps;
use crate::jwt::{Jwt, Key, now};
use crate::papers::{KEY_ID, TEAM_ID, TOPIC};
use crate::record::{Call, Chosen, Inner, Seen, State};

/// Checks one request, notes its faults, and returns the answer to it.
pub(crate) fn answer(state: &State, inner: &mut Inner, call: &mut Call) -> Answer {
    let id = call.header("apns-id").filter(|id| is_uuid(id)).map(str::to_owned);
    let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let answer = check(state, inner, call).unwrap_or_else(|answer| answer);
    answer.with("apns-id", id)
}

fn check(state: &State, inner: &mut Inner, call: &mut Call) -> Result<Answer, Answer> {
    let Some(token) = call.path.strip_prefix("/3/device/").map(str::to_owned) else {
        return Err(refused(inner, "BadPath", &call.path));
    };
    if call.method != "POST" {
        return Err(refused(inner, "MethodNotAllowed", &call.method));
    }
    if call.has_certificate {
        if call.header("authorization").is_some() {
            inner.violation(Service::Apns, "a provider token over a connection with a client certificate");
        }
    } else {
        check_provider_token(state, inner, call)?;
    }
    if let Err((reason, fault)) = check_headers(call).and_then(|()| check_request(&token, call)) {
        return Err(refused(inner, reason, &fault));
    }
    note_silent_faults(inner, call);
    Ok(match inner.chosen(Service::Apns, Some(&token)) {
        Chosen::Answer(answer) => answer,
        Chosen::Success(delay) => Answer::new(200, String::new()).after(delay),
    })
}

/// Notes a fault, and returns the answer of this reason.
fn refused(inner: &mut Inner, reason: &str, fault: &str) -> Answer {
    inner.violation(Service::Apns, &format!("{reason}: {fault}"));
    Answer::named(Service::Apns, reason).unwrap_or_else(|| Answer::new(500, format!("no such reason: {reason}")))
}

/// An age of more than an hour is refused, and so is a new token within twenty minutes of the last.
fn check_provider_token(state: &State, inner: &mut Inner, call: &mut Call) -> Result<(), Answer> {
    let Some(token) = call.header("authorization").and_then(|value| strip_scheme(value, "bearer ")) else {
        return Err(refused(inner, "MissingProviderToken", "no authorization of scheme bearer"));
    };
    let token = token.to_owned();
    let read = Jwt::verify(&token, &Key::P256(&state.apns_point)).and_then(|jwt| {
        let issued = jwt.number("iat")?;
        Ok((jwt, now() - issued))
    });
    let (jwt, age) = read.map_err(|fault| refused(inner, "InvalidProviderToken", &fault))?;
    call.claims = Some(jwt.claims.clone());
    if jwt.header["kid"] != KEY_ID || jwt.claims["iss"] != TEAM_ID {
        let fault = format!("kid {} and iss {}", jwt.header["kid"], jwt.claims["iss"]);
        return Err(refused(inner, "InvalidProviderToken", &fault));
    }
    if age < -SKEW_SECONDS {
        return Err(refused(inner, "InvalidProviderToken", &format!("iat is {} s ahead", -age)));
    }
    if age > AGE_SECONDS_MAX {
        return Err(refused(inner, "ExpiredProviderToken", &format!("iat is {age} s old")));
    }
    match &inner.provider_token {
        Some(seen) if seen.token == token => return Ok(()),
        Some(seen) if seen.first.elapsed() < INTERVAL_MIN => {
            return Err(refused(inner, "TooManyProviderTokenUpdates", "a new token within 20 minutes"));
        }
        _ => {}
    }
    inner.provider_token = Some(Seen { token, first: Instant::now() });
    Ok(())
}

const AGE_SECONDS_MAX: i64 = 3_600;
const SKEW_SECONDS: i64 = 60;
const INTERVAL_MIN: Duration = Duration::from_secs(1_200);

fn strip_scheme<'v>(value: &'v str, scheme: &str) -> Option<&'v str> {
    let (start, rest) = value.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

type Refusal = (&'static str, String);

fn check_headers(call: &Call) -> Result<(), Refusal> {
    let names = names(call);
    for name in names.clone() {
        if names.clone().filter(|other| *other == name).count() > 1 {
            return Err(("DuplicateHeaders", name.to_owned()));
        }
    }
    let header = |name: &str| call.header(name);
    match header("apns-topic") {
        None | Some("") => return Err(("MissingTopic", String::new())),
        Some(TOPIC) => {}
        Some(other) => return Err(("TopicDisallowed", other.to_owned())),
    }
    match header("apns-push-type") {
        Some("alert" | "background" | "complication" | "fileprovider" | "mdm" | "location" | "voip" | "pushtotalk") => {
        }
        other => return Err(("InvalidPushType", format!("{other:?}"))),
    }
    if let Some(id) = header("apns-id").filter(|id| !is_uuid(id)) {
        return Err(("BadMessageId", id.to_owned()));
    }
    if let Some(text) = header("apns-expiration")
        && (text.is_empty() || text.len() > 10 || !text.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err(("BadExpirationDate", text.to_owned()));
    }
    if let Some(other) = header("apns-priority").filter(|text| !["10", "5", "1"].contains(text)) {
        return Err(("BadPriority", other.to_owned()));
    }
    match header("apns-collapse-id") {
        Some(id) if id.is_empty() || id.len() > COLLAPSE_ID_BYTES_MAX => Err(("BadCollapseId", id.to_owned())),
        _ => Ok(()),
    }
}

const KNOWN: [&str; 6] =
    ["apns-topic", "apns-push-type", "apns-id", "apns-expiration", "apns-priority", "apns-collapse-id"];
const COLLAPSE_ID_BYTES_MAX: usize = 64;
const PAYLOAD_BYTES_MAX: usize = 4_096;

fn check_request(token: &str, call: &Call) -> Result<(), Refusal> {
    if token.is_empty() {
        return Err(("MissingDeviceToken", String::new()));
    }
    let is_hex = token.len().is_multiple_of(2) && token.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hex || token.len() > TOKEN_DIGITS_MAX {
        return Err(("BadDeviceToken", format!("{} characters", token.len())));
    }
    if call.body.is_empty() {
        return Err(("PayloadEmpty", String::new()));
    }
    if call.body.len() > PAYLOAD_BYTES_MAX {
        return Err(("PayloadTooLarge", format!("{} bytes", call.body.len())));
    }
    Ok(())
}

/// Faults that APNs does not see: a field that it does not have, and a payload that a device cannot use.
fn note_silent_faults(inner: &mut Inner, call: &Call) {
    for name in names(call).filter(|name| !KNOWN.contains(name)) {
        inner.violation(Service::Apns, &format!("there is no header field {name}"));
    }
    let is_alert = call.header("apns-push-type") == Some("alert");
    if let Err(fault) = aps::check(&call.body, is_alert) {
        inner.violation(Service::Apns, &fault);
    }
}

/// Names of the header fields of APNs.
fn names(call: &Call) -> impl Iterator<Item = &str> + Clone {
    call.headers.iter().map(|(name, _)| name.as_str()).filter(|name| name.starts_with("apns-"))
}

/// Device tokens have no fixed length; a hundred bytes are the most that Apple names.
const TOKEN_DIGITS_MAX: usize = 200;

/// Canonical form: 32 lower-case hexadecimal digits in groups of 8-4-4-4-12.
fn is_uuid(text: &str) -> bool {
    uuid::Uuid::try_parse(text).is_ok_and(|uuid| uuid.hyphenated().to_string() == text)
}
