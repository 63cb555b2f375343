//! Apple Push Notification service (APNs): one channel of it.

mod aps;
mod channels;
mod judge;
mod provider_token;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use machine::message::{Message, Urgency};
use machine::upstream::{BridgeFailure, Bridged};
use protocol::webpush::message_id::{MessageId, MessageIds};
use serde_json::{Map, Value};
use tokio::time::Instant;
use uuid::Uuid;

use super::judgement::{Judgement, Reason};
use super::payload::{collapse_key, common_map};
use super::request::{Authorization, CredentialAges, Prepared};
pub(super) use channels::{Credential, read_channels};

/// One channel: an app at Apple, with the credentials for its topic.
pub(super) struct Apns {
    pub topic: HeaderValue,
    pub credential: Credential,
    /// Bytes of a whole payload.
    pub data_bytes_max: usize,
    /// Makes the member `ver` of the payload.
    pub ids: MessageIds,
}

impl Apns {
    /// Makes the request. An error is the outcome without a call.
    pub fn prepare(&self, to: &Arc<Bridged>, message: &Message) -> Result<Prepared, Judgement> {
        // Apple would answer BadDeviceToken, or BadPath.
        if to.token.is_empty() || !to.token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Judgement::doubted_here(Reason::BadToken));
        }
        let body = serde_json::to_vec(&self.payload(to, message)).unwrap_or_default();
        let excess = body.len().saturating_sub(self.data_bytes_max);
        if excess > 0 {
            let excess = u32::try_from(excess).unwrap_or(u32::MAX);
            return Err(Judgement::failed(BridgeFailure::TooLarge { excess }, Reason::TooMuchData).without_call());
        }
        let path = format!("/3/device/{}", to.token);
        Ok(Prepared { to: Arc::clone(to), path, headers: self.headers(message), body: Bytes::from(body) })
    }

    /// The common map and `ver` at the top, beside `aps`.
    fn payload(&self, to: &Bridged, message: &Message) -> Map<String, Value> {
        let mut map = common_map(message);
        let Message { stamp, uaid, chid, topic, .. } = *message;
        let mut version = Vec::with_capacity(VERSION_BYTES);
        self.ids.seal(&MessageId { stamp, uaid, chid, topic }, &mut version);
        map.insert("ver".to_owned(), String::from_utf8_lossy(&version).into());
        map.insert("aps".to_owned(), aps::dictionary(to.aps.as_deref()).into());
        map
    }

    fn headers(&self, message: &Message) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8);
        let id = Uuid::new_v4().hyphenated().to_string();
        tracing::debug!(apns_id = %id, "notification for APNs prepared");
        headers.insert(APNS_TOPIC, self.topic.clone());
        headers.insert(APNS_PUSH_TYPE, HeaderValue::from_static("alert"));
        headers.insert(APNS_PRIORITY, HeaderValue::from_static(priority(message.urgency)));
        headers.insert(APNS_EXPIRATION, HeaderValue::from(expiration(message)));
        let texts = [(APNS_ID, Some(id)), (APNS_COLLAPSE_ID, collapse_key(message))];
        for (name, value) in texts.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            // Both are ASCII by their alphabets.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Returns the credentials of one attempt.
    ///
    /// # Errors
    /// The outcome without a call, if the key of the channel cannot sign.
    pub fn authorize(&self) -> Result<Authorization, Judgement> {
        let Credential::Token(tokens) = &self.credential else {
            return Ok(Authorization { header: None, generation: 0 });
        };
        let unsigned = || {
            let failed = Judgement::failed(BridgeFailure::Authentication, Reason::Authentication).without_call();
            failed.alarming("the key of this channel in bridge.apns.channels does not sign")
        };
        let (header, generation) = tokens.current(Instant::now(), unix_seconds()).ok_or_else(unsigned)?;
        Ok(Authorization { header: Some(header), generation })
    }

    /// Discards a token that Apple calls expired. Returns true if a new one may be sent.
    pub fn renew(&self, generation: u64) -> bool {
        match &self.credential {
            Credential::Token(tokens) => tokens.renew(generation, Instant::now()),
            Credential::Certificate { .. } => false,
        }
    }

    /// Returns true if both send for one app with one key, or with one certificate.
    pub fn leads_to(&self, other: &Apns) -> bool {
        let is_same = match (&self.credential, &other.credential) {
            (Credential::Token(one), Credential::Token(other)) => one.is_of_key(other),
            (Credential::Certificate { expires: one }, Credential::Certificate { expires: other }) => one == other,
            _ => false,
        };
        is_same && self.topic == other.topic
    }

    /// Keeps the token of a channel with the same key, so that reading the configuration again does not make tokens
    /// faster than Apple takes them.
    pub fn adopt(&mut self, before: &Apns) {
        if let (Credential::Token(own), Credential::Token(old)) = (&mut self.credential, &before.credential)
            && own.is_of_key(old)
        {
            *own = Arc::clone(old);
        }
    }

    /// Reads an answer.
    pub fn judge(&self, status: u16, body: &[u8], to: &Bridged) -> Judgement {
        let judged = judge::judge(status, body, to.registered);
        if let (true, Credential::Token(tokens)) = (judged.keeps_token, &self.credential) {
            tokens.hold(Instant::now());
        }
        judged.judgement
    }

    /// Returns the age of the credentials.
    pub fn ages(&self) -> CredentialAges {
        match &self.credential {
            Credential::Token(tokens) => {
                CredentialAges { token: tokens.age(Instant::now()), certificate_expires: None }
            }
            Credential::Certificate { expires } => CredentialAges { token: None, certificate_expires: *expires },
        }
    }
}

const APNS_TOPIC: HeaderName = HeaderName::from_static("apns-topic");
const APNS_PUSH_TYPE: HeaderName = HeaderName::from_static("apns-push-type");
const APNS_PRIORITY: HeaderName = HeaderName::from_static("apns-priority");
const APNS_EXPIRATION: HeaderName = HeaderName::from_static("apns-expiration");
const APNS_COLLAPSE_ID: HeaderName = HeaderName::from_static("apns-collapse-id");
const APNS_ID: HeaderName = HeaderName::from_static("apns-id");
/// Room for the text of a message id with a topic.
const VERSION_BYTES: usize = 128;
/// Error line of the guard: what an operator should check.
pub(super) const GUARD_HINT: &str =
    "check topic, sandbox and url of this channel in bridge.apns.channels: tokens of another environment are refused";

/// Apple's 10 is at once, 5 with regard to the battery, and 1 without waking the device.
fn priority(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::High | Urgency::Normal => "10",
        Urgency::Low => "5",
        Urgency::VeryLow => "1",
    }
}

/// Seconds since the epoch at which Apple gives up; 0: now or never, as TTL 0.
fn expiration(message: &Message) -> u64 {
    if message.ttl == 0 { 0 } else { message.accepted.0.saturating_add(u64::from(message.ttl)) }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
