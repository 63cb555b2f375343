//! Requests that the stand-ins received, and the answers that they are told to give next.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::answer::{self, Answer, Service};
use crate::papers::{CertificateKind, Papers, token_uri};

/// One request as it arrived.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Call {
    pub service: Service,
    pub method: String,
    pub path: String,
    /// Names in lower case. A name that occurs twice is here twice.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Number of the connection, counted from 1 over both listeners.
    pub connection: u64,
    /// The connection showed a client certificate.
    pub has_certificate: bool,
    /// Claims of the assertion or of the provider token, if they were read.
    pub claims: Option<Value>,
    /// Status of the answer; 0 while there is none.
    pub status: u16,
}

impl Call {
    /// The value of a field that occurs once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(of, _)| of == name).map(|(_, value)| value.as_str());
        values.next().filter(|_| values.next().is_none())
    }
}

/// Next answers. Each name is one of [`Answer::named`], or `ok`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// For the next calls, in their order.
    pub next: HashMap<Service, VecDeque<String>>,
    /// For every call that has no next answer.
    pub always: HashMap<Service, String>,
    /// For calls to these device tokens.
    pub tokens: HashMap<String, String>,
    /// Certificate of later connections.
    pub certificate: CertificateKind,
    /// Streams at a time that SETTINGS allow, once a token was accepted; 0: the usual number of the service.
    pub streams: u32,
    /// Seconds by which the field `Date` of answers is ahead.
    pub clock_ahead: i64,
    /// Seconds that an access token of the token endpoint lives; 0: 3,599.
    pub expires_in: u64,
}

/// A provider token that APNs saw last.
pub(crate) struct Seen {
    pub token: String,
    pub first: Instant,
}

/// State of all stand-ins of a run.
pub struct State {
    pub(crate) token_uri: String,
    pub(crate) account_key: Vec<u8>,
    pub(crate) apns_point: Vec<u8>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub script: Script,
    pub calls: VecDeque<Call>,
    pub counts: HashMap<Service, u64>,
    pub connections: u64,
    pub violations: Vec<String>,
    /// Access tokens that the token endpoint issued, with their ends.
    pub access_tokens: Vec<(String, Instant)>,
    pub provider_token: Option<Seen>,
    /// Largest number of streams at a time on one connection.
    pub streams_max: usize,
}

impl State {
    pub(crate) fn new(papers: &Papers, google: SocketAddr) -> State {
        State {
            token_uri: token_uri(google),
            account_key: papers.account_key.clone(),
            apns_point: papers.apns_point.clone(),
            inner: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the next answers.
    pub fn set(&self, script: Script) {
        self.lock().script = script;
    }

    /// Sets the next answers of one service, and leaves everything else.
    pub fn answer(&self, service: Service, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.lock().script.next.insert(service, names);
    }

    /// Forgets calls, violations, tokens and answers.
    pub fn reset(&self) {
        let connections = self.lock().connections;
        *self.lock() = Inner { connections, ..Inner::default() };
    }

    /// The requests that arrived, the oldest first; at most [`CALLS_MAX`].
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.iter().cloned().collect()
    }

    /// Number of requests to one service.
    pub fn count(&self, service: Service) -> u64 {
        self.lock().counts.get(&service).copied().unwrap_or(0)
    }

    /// Number of connections whose TLS handshake ended well.
    pub fn connections(&self) -> u64 {
        self.lock().connections
    }

    /// Largest number of streams that were open at a time on one connection.
    pub fn streams_max(&self) -> usize {
        self.lock().streams_max
    }

    /// Faults against the documents of the services.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Everything at once, for the control port.
    pub(crate) fn summary(&self) -> Value {
        let inner = self.lock();
        serde_json::json!({
            "counts": inner.counts,
            "connections": inner.connections,
            "streams_max": inner.streams_max,
            "violations": inner.violations,
        })
    }
}

impl Inner {
    /// Notes a fault. The list is bounded: a caller with one fault usually repeats it.
    pub fn violation(&mut self, service: Service, text: &str) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("{service:?}: {text}"));
        }
    }

    /// Counts a call, and keeps it with the status of its answer.
    pub fn note(&mut self, call: Call) {
        *self.counts.entry(call.service).or_default() += 1;
        if self.calls.len() == CALLS_MAX {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// The answer that a test chose for this call, or the usual success.
    pub fn chosen(&mut self, service: Service, device_token: Option<&str>) -> Chosen {
        let script = &mut self.script;
        let name = device_token.and_then(|token| script.tokens.get(token).cloned());
        let name = name.or_else(|| script.next.get_mut(&service).and_then(VecDeque::pop_front));
        let name = match (name, device_token.and_then(|token| Answer::asked_by(service, token))) {
            (Some(name), _) => name,
            (None, Some(answer)) => return Chosen::Answer(answer),
            (None, None) => script.always.get(&service).cloned().unwrap_or_else(|| "ok".to_owned()),
        };
        if let Some(delay) = answer::delay_of_success(&name) {
            return Chosen::Success(delay);
        }
        match Answer::named(service, &name) {
            Some(answer) => Chosen::Answer(answer),
            None => {
                self.violation(service, &format!("a test asks for an answer that does not exist: {name}"));
                Chosen::Success(Duration::ZERO)
            }
        }
    }
}

/// Choice of an answer.
pub(crate) enum Chosen {
    /// The usual answer, after this time.
    Success(Duration),
    Answer(Answer),
}

/// Requests that are kept. The oldest goes first.
pub const CALLS_MAX: usize = 1_000;
const VIOLATIONS_MAX: usize = 1_000;
