//! The question a node asks of its own URL before it listens: an answer comes from another boot of a node.

use std::io;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode};
use serde::Deserialize;
use tokio::time::timeout;

use super::queue::TrustRoots;
use crate::http_client::HttpClientError;
use edge::EdgeKeys;
use protocol::webpush::node_call::parse_boot;
use protocol::wire::url::HttpUrl;

/// Answer at the URL of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answering {
    /// No connection.
    Nothing,
    /// A node, and its run.
    Node(u64),
    /// A server that takes none of our node keys.
    Locked,
    /// Something that is no node, or says nothing in time: in words.
    Stranger(String),
}

#[derive(Deserialize)]
struct BootBody {
    boot: String,
}

/// Asks which boot of a node answers at `url`. Waits: for a thread of its own, at most `within`.
///
/// # Errors
/// If the operating system refuses a runtime.
pub fn who_answers(url: &str, keys: &EdgeKeys, trust: &TrustRoots, within: Duration) -> io::Result<Answering> {
    let Some(target) = HttpUrl::parse(&format!("{}/boot", url.trim_end_matches('/'))) else {
        return Ok(Answering::Nothing);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(ask(&target, keys, trust, within)))
}

async fn ask(target: &HttpUrl, keys: &EdgeKeys, TrustRoots(client): &TrustRoots, within: Duration) -> Answering {
    let mut request = Request::new(String::new());
    if let Some(value) = keys.node.first().and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok()) {
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let answer = match timeout(within, client.call(target, request, BODY_BYTES_MAX)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(HttpClientError::Connect(_))) => return Answering::Nothing,
        Ok(Err(trouble)) => return Answering::Stranger(trouble.to_string()),
        Err(_) => return Answering::Stranger(HttpClientError::Timeout.to_string()),
    };
    if answer.status == StatusCode::UNAUTHORIZED {
        return Answering::Locked;
    }
    let read = serde_json::from_slice::<BootBody>(&answer.body).ok();
    match read.and_then(|body| parse_boot(&body.boot)) {
        Some(boot) => Answering::Node(boot),
        None => Answering::Stranger(HttpClientError::Status(answer.status).to_string()),
    }
}

const BODY_BYTES_MAX: usize = 1_024;
