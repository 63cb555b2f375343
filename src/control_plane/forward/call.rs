//! One call of a target, within the bounds of all calls.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderName, HeaderValue};
use hyper::{Method, Request};
use machine::upstream::{ForwardCall, ForwardMessage, ForwardOutcome};
use protocol::webpush::forward::{Targets, authorization};
use protocol::wire::text::urgency_name;
use protocol::wire::url::HttpUrl;

use super::super::http_client::{HttpClient, HttpClientError};
use super::super::retry_after::retry_seconds;

/// Settings of the calls.
#[derive(Clone, Copy, Debug)]
pub struct ForwardLimits {
    /// `forward.timeout`: for a whole call, from the lookup to the head of the answer.
    pub timeout: Duration,
    /// `forward.max_in_flight`.
    pub in_flight_max: usize,
}

/// Makes the calls. Lives on the control plane.
pub(in crate::control_plane) struct Forwarder {
    client: HttpClient,
    limits: ForwardLimits,
    pub(super) in_flight: Mutex<InFlight>,
}

/// Calls that are under way.
#[derive(Default)]
pub(super) struct InFlight {
    pub all: usize,
    pub by_host: HashMap<Box<str>, usize>,
}

/// Place of one call; free again when it is dropped.
struct CallPermit<'f> {
    forwarder: &'f Forwarder,
    host: &'f str,
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.forwarder.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        in_flight.all = in_flight.all.saturating_sub(1);
        if let Some(calls) = in_flight.by_host.get_mut(self.host) {
            *calls -= 1;
            if *calls == 0 {
                in_flight.by_host.remove(self.host);
            }
        }
    }
}

impl Forwarder {
    pub fn new(client: HttpClient, limits: ForwardLimits) -> Forwarder {
        Forwarder { client, limits, in_flight: Mutex::default() }
    }

    /// Makes one call. The edge has checked the URL; it is checked again here against the rules that need no
    /// configuration.
    pub async fn call(&self, call: &ForwardCall) -> ForwardOutcome {
        let Some(url) = Targets::default().read(&call.url) else { return ForwardOutcome::Forbidden };
        self.call_url(&url, call.message.as_ref()).await
    }

    pub(super) async fn call_url(&self, url: &HttpUrl, message: Option<&ForwardMessage>) -> ForwardOutcome {
        let Some(_permit) = self.enter(&url.origin().host) else { return ForwardOutcome::Unavailable };
        let made = tokio::time::timeout(self.limits.timeout, self.attempt(url, message)).await;
        made.unwrap_or(ForwardOutcome::NoAnswer)
    }

    /// Takes a place for a call of this host; `None` if too many are under way.
    fn enter<'f>(&'f self, host: &'f str) -> Option<CallPermit<'f>> {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let of_host = in_flight.by_host.get(host).copied().unwrap_or(0);
        if in_flight.all >= self.limits.in_flight_max || of_host >= HOST_CALLS_MAX {
            return None;
        }
        in_flight.all += 1;
        in_flight.by_host.insert(host.into(), of_host + 1);
        Some(CallPermit { forwarder: self, host })
    }

    async fn attempt(&self, url: &HttpUrl, message: Option<&ForwardMessage>) -> ForwardOutcome {
        let Some(message) = message else {
            return self
                .client
                .check(url.origin())
                .await
                .map_or_else(|fault| failure(&fault), |()| ForwardOutcome::Allowed);
        };
        let Some(request) = request(url, message) else { return ForwardOutcome::Unreachable };
        match self.client.send(url, request, |_| 0).await {
            Ok(answer) => ForwardOutcome::Answered {
                status: answer.status().as_u16(),
                retry_after: retry_seconds(answer.headers(), SystemTime::now()),
            },
            Err(fault) => failure(&fault),
        }
    }
}

fn failure(fault: &HttpClientError) -> ForwardOutcome {
    match fault {
        HttpClientError::Timeout => ForwardOutcome::NoAnswer,
        HttpClientError::Forbidden => ForwardOutcome::Forbidden,
        HttpClientError::Connect(_)
        | HttpClientError::Untrusted(_)
        | HttpClientError::Status(_)
        | HttpClientError::Body(_)
        | HttpClientError::Redirect(_) => ForwardOutcome::Unreachable,
    }
}

/// The request: what the message needs, and nothing of its sender.
fn request(url: &HttpUrl, message: &ForwardMessage) -> Option<Request<Full<Bytes>>> {
    let ForwardMessage { ttl, urgency, topic, vapid, body } = message;
    let mut request = Request::new(Full::new(Bytes::copy_from_slice(body)));
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(HeaderName::from_static("ttl"), HeaderValue::from(*ttl));
    headers.insert(HeaderName::from_static("urgency"), HeaderValue::from_static(urgency_name(*urgency)));
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("aes128gcm"));
    if let Some(topic) = topic {
        headers.insert(HeaderName::from_static("topic"), HeaderValue::from_bytes(topic.as_bytes()).ok()?);
    }
    if let Some((claims, key)) = vapid {
        let mut value = HeaderValue::try_from(authorization(claims, &url.origin().to_string(), key)?).ok()?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Some(request)
}

/// Calls under way of one host. Refuse: 503.
pub(super) const HOST_CALLS_MAX: usize = 16;
