//! Firebase Cloud Messaging, HTTP v1 (<https://firebase.google.com/docs/reference/fcm/rest/v1/projects.messages>).

mod account;
mod judge;
mod token;

#[cfg(test)]
pub(super) mod tests;

pub(super) use account::{ServiceAccount, read_profiles};
pub(super) use judge::judge;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use machine::message::{Message, Urgency};
use machine::upstream::{BridgeFailure, Bridged};
use serde_json::json;
use tokio::time::Instant;

use super::judgement::{Judgement, Reason};
use super::payload::{collapse_key, common_map};
use super::request::{Authorization, Check, Prepared};
use crate::http_client::HttpClient;
use token::GoogleToken;

/// Rules of messages, for all profiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FcmRules {
    /// Seconds to keep a message at least, and at most.
    pub min_ttl: u32,
    pub max_ttl: u32,
    /// Bytes of the JSON of `data`.
    pub max_data: usize,
    /// Messages with a topic get a collapse key.
    pub collapse: bool,
}

/// One profile.
pub(super) struct Fcm {
    path: String,
    rules: FcmRules,
    token: Arc<GoogleToken>,
}

impl Fcm {
    /// `base` is the path in `bridge.fcm.base_url`; `client` fetches tokens.
    pub fn new(
        app: &str,
        base: &str,
        project: &str,
        rules: FcmRules,
        account: ServiceAccount,
        client: HttpClient,
    ) -> Fcm {
        let path = format!("{}/v1/projects/{project}/messages:send", base.trim_end_matches('/'));
        Fcm { path, rules, token: Arc::new(GoogleToken::new(app, account, client)) }
    }

    /// Makes the request of a notification.
    pub fn prepare(&self, to: &Arc<Bridged>, message: &Message) -> Result<Prepared, Judgement> {
        let data = common_map(message);
        // Invariant: a map of texts has a JSON form.
        let size = serde_json::to_vec(&data).map_or(usize::MAX, |json| json.len());
        if size > self.rules.max_data {
            let excess = u32::try_from(size - self.rules.max_data).unwrap_or(u32::MAX);
            return Err(Judgement::failed(BridgeFailure::TooLarge { excess }, Reason::TooMuchData).without_call());
        }
        let ttl = message.ttl.min(self.rules.max_ttl).max(self.rules.min_ttl);
        let priority = if message.urgency == Urgency::High { "HIGH" } else { "NORMAL" };
        let mut android = json!({"ttl": format!("{ttl}s"), "priority": priority, "data": data});
        if let Some(key) = collapse_key(message).filter(|_| self.rules.collapse) {
            android["collapse_key"] = key.into();
        }
        let body = json!({"message": {"token": &*to.token, "android": android}}).to_string();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Prepared { to: Arc::clone(to), path: self.path.clone(), headers, body: Bytes::from(body) })
    }

    /// Returns true if both send for one project.
    pub fn leads_to(&self, other: &Fcm) -> bool {
        self.path == other.path
    }

    pub async fn authorize(&self) -> Result<Authorization, Judgement> {
        GoogleToken::get(&self.token).await
    }

    pub fn renew(&self, generation: u64) -> bool {
        self.token.refused(generation)
    }

    /// Asks for an access token, and discards it.
    pub async fn check(&self) -> Check {
        self.token.check().await
    }

    pub fn tick(&self, now: Instant) {
        GoogleToken::renew_early(&self.token, now);
    }

    pub fn token_age(&self) -> Option<Duration> {
        self.token.age()
    }
}
