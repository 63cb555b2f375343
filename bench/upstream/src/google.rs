//! Token endpoint: an assertion of a service account (RFC 7523) for an access token.
//!
//! Checked as Google's "Using OAuth 2.0 for Server to Server Applications" describes it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::answer::{Answer, Service};
use crate::jwt::{Jwt, Key, now};
use crate::papers::SERVICE_ACCOUNT_EMAIL;
use crate::record::{Call, Chosen, Inner, State};

/// Checks one request, notes its faults, and returns the answer to it.
pub(crate) fn answer(state: &State, inner: &mut Inner, call: &mut Call) -> Answer {
    let assertion = match read(call) {
        Ok(assertion) => assertion,
        Err(fault) => return refused(inner, "invalid_request", &fault),
    };
    let checked = Jwt::verify(&assertion, &Key::Rsa(&state.account_key)).and_then(|jwt| {
        call.claims = Some(jwt.claims.clone());
        check(state, &jwt)
    });
    if let Err(fault) = checked {
        return refused(inner, "invalid_grant", &fault);
    }
    let delay = match inner.chosen(Service::Token, None) {
        Chosen::Answer(answer) => return answer,
        Chosen::Success(delay) => delay,
    };
    let lives = if inner.script.expires_in == 0 { LIFETIME_SECONDS } else { inner.script.expires_in };
    let token = format!("ya29.{}", uuid::Uuid::new_v4().simple());
    inner.access_tokens.push((token.clone(), Instant::now() + Duration::from_secs(lives)));
    let body = json!({"access_token": token, "expires_in": lives, "token_type": "Bearer"});
    Answer::new(200, body.to_string()).with("content-type", "application/json; charset=UTF-8").after(delay)
}

/// Seconds that Google's tokens live.
const LIFETIME_SECONDS: u64 = 3_599;
/// Longest life of an assertion, and the skew of a clock that Google forgives.
const ASSERTION_SECONDS_MAX: i64 = 3_600;
const SKEW_SECONDS: i64 = 300;

fn refused(inner: &mut Inner, error: &str, fault: &str) -> Answer {
    inner.violation(Service::Token, fault);
    Answer::new(400, json!({"error": error, "error_description": fault}).to_string())
}

/// The assertion of a form.
fn read(call: &Call) -> Result<String, String> {
    if call.method != "POST" {
        return Err(format!("method {}", call.method));
    }
    let kind = call.header("content-type").unwrap_or_default();
    if kind.split(';').next() != Some("application/x-www-form-urlencoded") {
        return Err(format!("content-type {kind}"));
    }
    let fields: Vec<_> = form_urlencoded::parse(call.body.as_bytes()).into_owned().collect();
    let field = |name: &str| fields.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
    if field("grant_type").as_deref() != Some("urn:ietf:params:oauth:grant-type:jwt-bearer") {
        return Err(format!("grant_type {:?}", field("grant_type")));
    }
    field("assertion").ok_or_else(|| "no assertion".into())
}

fn check(state: &State, jwt: &Jwt) -> Result<(), String> {
    if jwt.claims["iss"] != SERVICE_ACCOUNT_EMAIL {
        return Err(format!("iss {}", jwt.claims["iss"]));
    }
    // google-auth for Python names Google's endpoint whatever the token_uri is.
    if jwt.claims["aud"] != state.token_uri.as_str() && jwt.claims["aud"] != GOOGLE_ENDPOINT {
        return Err(format!("aud {}", jwt.claims["aud"]));
    }
    let scopes = jwt.claims["scope"].as_str().unwrap_or_default();
    if !scopes.split(' ').any(|scope| SCOPES.contains(&scope)) {
        return Err(format!("scope {scopes:?} does not permit messages"));
    }
    let (issued, expires) = (jwt.number("iat")?, jwt.number("exp")?);
    if (now() - issued).abs() > SKEW_SECONDS {
        return Err(format!("iat is {} s away from now", now() - issued));
    }
    if expires <= now() || expires - issued > ASSERTION_SECONDS_MAX {
        return Err(format!("exp is {} s after iat", expires - issued));
    }
    Ok(())
}

const GOOGLE_ENDPOINT: &str = "https://oauth2.googleapis.com/token";
/// Scopes that `messages:send` takes.
const SCOPES: [&str; 2] =
    ["https://www.googleapis.com/auth/firebase.messaging", "https://www.googleapis.com/auth/cloud-platform"];
