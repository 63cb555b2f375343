//! HTTP for the ACME client: over TLS, with a bound for the answer and for its time.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Uri};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use protocol::wire::url::HttpUrl;

use crate::island::client::{Client, Trouble};

/// [`HttpClient`] by the HTTP client of the island.
#[derive(Clone)]
pub(super) struct Http {
    pub client: Arc<Client>,
    pub directory: HttpUrl,
}

/// Bytes of one answer; a chain of certificates has less than 10 KB. Beyond it: the order fails.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Time for one request with its answer. Beyond it: the order fails.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

type Response = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for Http {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Response {
        let Http { client, directory } = self.clone();
        Box::pin(async move {
            let url = HttpUrl::parse(&request.uri().to_string()).filter(|url| url.origin().https);
            // URLs come from the directory and from answers.
            let url = url.ok_or(Error::Str("an https URL"))?;
            let sent = client.send(&url, request, |_| ANSWER_BYTES_MAX);
            let answer = tokio::time::timeout(REQUEST_TIME_MAX, sent).await.unwrap_or(Err(Trouble::Timeout));
            let (parts, body) = answer.map_err(|trouble| Error::Other(Box::new(trouble)))?.into_parts();
            if url == directory && !is_directory(&body) {
                return Err(Error::Str("newNonce in the directory, as an https URL"));
            }
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
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
