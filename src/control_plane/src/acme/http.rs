//! HTTP for the ACME client: over TLS, with a bound for the answer and for its time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use protocol::wire::url::HttpUrl;

use crate::http_client::{self, HttpClientError};
use crate::retry_after::retry_after;

/// [`HttpClient`] by the HTTP client of the control plane.
#[derive(Clone)]
pub(super) struct Http {
    pub client: Arc<http_client::HttpClient>,
    pub directory: HttpUrl,
    /// Seconds in `Retry-After` of the last answer 429 or 503; 0: none.
    asked: Arc<AtomicU64>,
}

impl Http {
    pub(super) fn new(client: http_client::HttpClient, directory: HttpUrl) -> Http {
        Http { client: Arc::new(client), directory, asked: Arc::default() }
    }

    /// Takes the pause that the authority has asked for since the last call, as far as it did (RFC 8555 section 6.6).
    pub(super) fn take_pause(&self) -> Duration {
        Duration::from_secs(self.asked.swap(0, Ordering::Relaxed))
    }
}

/// Bytes of one answer; a chain of certificates has less than 10 KB. Beyond it: the order fails.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Time for one request with its answer. Beyond it: the order fails.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause that the authority asks for. Beyond it: a day counts.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

type Response = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for Http {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Response {
        let Http { client, directory, asked } = self.clone();
        Box::pin(async move {
            let url = HttpUrl::parse(&request.uri().to_string()).filter(|url| url.origin().https);
            // URLs come from the directory and from answers.
            let url = url.ok_or(Error::Str("an https URL"))?;
            let sent = client.send(&url, request, |_| ANSWER_BYTES_MAX);
            let answer = tokio::time::timeout(REQUEST_TIME_MAX, sent).await.unwrap_or(Err(HttpClientError::Timeout));
            let (mut parts, body) = answer.map_err(|trouble| Error::Other(Box::new(trouble)))?.into_parts();
            if url == directory && !is_directory(&body) {
                return Err(Error::Str("newNonce in the directory, as an https URL"));
            }
            let pause = bound_retry_after(&mut parts.headers, SystemTime::now());
            if matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
                asked.store(pause.as_secs(), Ordering::Relaxed);
            }
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

/// Returns the pause that an answer asks for, and writes it into the field as seconds within its bound: the client adds
/// them to the clock unchecked, and an overflow would panic. A field that cannot be read is removed.
fn bound_retry_after(headers: &mut HeaderMap, now: SystemTime) -> Duration {
    let pause = retry_after(headers, now).map(|pause| pause.min(RETRY_AFTER_MAX));
    headers.remove(RETRY_AFTER);
    if let Some(pause) = pause {
        headers.insert(RETRY_AFTER, HeaderValue::from(pause.as_secs()));
    }
    pause.unwrap_or_default()
}

/// Returns true if the client can ask for nonces with this directory: it takes that URL for granted, and would panic.
fn is_directory(body: &[u8]) -> bool {
    let directory: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let url = directory["newNonce"].as_str().and_then(HttpUrl::parse);
    url.is_some_and(|url| url.origin().https && url.to_string().parse::<Uri>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: Duration = Duration::from_secs(784_111_777);

    #[test]
    fn a_pause_that_the_authority_asks_for_is_at_most_a_day() {
        let most = u64::MAX.to_string();
        for (said, taken) in [
            ("5", 5),
            ("86400", 86_400),
            ("86401", 86_400),
            (&*most, 86_400),
            ("99999999999999999999999", 86_400),
            // Let's Encrypt and others may name a time in place of a span.
            ("Sun, 06 Nov 1994 10:49:37 GMT", 7_200),
            ("Tue, 31 Dec 2999 23:59:59 GMT", 86_400),
            ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(said).unwrap());
            headers.append(RETRY_AFTER, HeaderValue::from_static("7"));
            let pause = bound_retry_after(&mut headers, SystemTime::UNIX_EPOCH + NOW);
            assert_eq!(pause, Duration::from_secs(taken), "{said}");
            assert_eq!(headers.get_all(RETRY_AFTER).iter().collect::<Vec<_>>(), [taken.to_string().as_str()], "{said}");
        }
        for said in ["", "soon", "+86401", "-1"] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(said).unwrap());
            assert_eq!(bound_retry_after(&mut headers, SystemTime::UNIX_EPOCH + NOW), Duration::ZERO);
            assert!(headers.is_empty(), "{said}");
        }
    }

    #[test]
    fn a_directory_has_a_url_for_nonces() {
        assert!(is_directory(b"{\"newNonce\":\"https://a.example/nonce\"}"));
        for body in
            ["", "{}", "[]", "{\"newNonce\":1}", "{\"newNonce\":\"http://a/\"}", "{\"newNonce\":\"https://a b/\"}"]
        {
            assert!(!is_directory(body.as_bytes()), "{body}");
        }
    }
}
