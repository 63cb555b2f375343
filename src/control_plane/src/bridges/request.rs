//! Requests to services, their credentials, and answers.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{DATE, HeaderMap, HeaderValue};
use machine::upstream::Bridged;

/// Request for one notification, without credentials. It holds a device token: it is never shown.
pub(super) struct Prepared {
    pub to: Arc<Bridged>,
    /// Path and query of the URL.
    pub path: String,
    /// All fields but the credentials.
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("to", &self.to).finish_non_exhaustive()
    }
}

/// Result of asking a service once, for an operator.
pub(super) struct Check {
    /// A sentence without a secret if the service does not answer as it should.
    pub service: Result<(), String>,
    /// Clock of the service, as its answer says (RFC 9110 section 6.6.1).
    pub date: Option<SystemTime>,
}

impl Check {
    /// No answer.
    pub fn failed(why: String) -> Check {
        Check { service: Err(why), date: None }
    }
}

/// Returns the clock of the server that made an answer with these fields.
pub(super) fn date_of(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()
}

/// Credentials of one attempt.
#[derive(Clone)]
pub(super) struct Authorization {
    /// Value of the field `authorization`, marked as sensitive; `None`: the client certificate suffices.
    pub header: Option<HeaderValue>,
    /// Number of these credentials, for `Bridge::renew`.
    pub generation: u64,
}

/// Complete answer of a service.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Age of credentials, for operators.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct CredentialAges {
    /// Age of the token that is sent.
    pub token: Option<Duration>,
    /// Time at which the client certificate expires.
    pub certificate_expires: Option<SystemTime>,
}
