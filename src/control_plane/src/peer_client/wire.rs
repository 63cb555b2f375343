//! One call as bytes: the request, the connection it goes over, and what its answer means.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use machine::{PeerOp, PeerReply};
use tokio::time::timeout;

use crate::http_client::{AGENT, HttpClient, HttpClientError};
use edge::EdgeKeys;
use protocol::webpush::message_id::MessageIds;
use protocol::webpush::node_call::{NotifyCall, PushCall, write_push, write_told};
use protocol::wire::text::push_simple;
use protocol::wire::url::HttpUrl;

/// A connection that a request may be sent on.
pub(super) type Conn = SendRequest<Full<Bytes>>;

/// Encoder of calls. It changes when the keys do.
pub(super) struct PeerCodec {
    ids: MessageIds,
    /// `None` without a key: other nodes then refuse the calls.
    authorization: Option<HeaderValue>,
}

impl PeerCodec {
    /// With these keys; `None` when they are none.
    pub fn new(keys: &EdgeKeys) -> Option<PeerCodec> {
        let bearer = keys.node.first().and_then(|key| HeaderValue::try_from(format!("Bearer {key}")).ok());
        let authorization = bearer.map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Some(PeerCodec { ids: MessageIds::new(&keys.crypto).ok()?, authorization })
    }

    /// The request of a call; `None` for what a call cannot say.
    pub fn request(&self, op: &PeerOp, base: &HttpUrl) -> Option<Request<Full<Bytes>>> {
        let (method, part, uaid, rest) = match op {
            PeerOp::Push { message, .. } => (Method::PUT, "/push/", message.uaid, String::new()),
            PeerOp::Notify { uaid, .. } => (Method::PUT, "/notif/", *uaid, String::new()),
            PeerOp::Leave { to, uaid, connected_at } => {
                (Method::DELETE, "/notif/", *uaid, format!("/{connected_at}?boot={:016x}", to.boot))
            }
        };
        let mut path = base.target().trim_end_matches('/').as_bytes().to_vec();
        path.extend_from_slice(part.as_bytes());
        push_simple(&uaid.0, &mut path);
        path.extend_from_slice(rest.as_bytes());
        let mut body = Vec::new();
        match op {
            PeerOp::Push { to, message, stored } => {
                let pushed = PushCall { message: (**message).clone(), stored: *stored, boot: Some(to.boot) };
                write_push(&pushed, &self.ids, &mut body).ok()?;
            }
            PeerOp::Notify { to, unsure, .. } => {
                write_told(&NotifyCall { unsure: *unsure, boot: Some(to.boot) }, &self.ids, &mut body);
            }
            PeerOp::Leave { .. } => {}
        }
        let mut request = request(method, &path, base, body)?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Some(request)
    }
}

/// Request to a node that did not answer, until it does. Any answer will do.
pub(super) fn probe(base: &HttpUrl) -> Option<Request<Full<Bytes>>> {
    let path = format!("{}/__lbheartbeat__", base.target().trim_end_matches('/'));
    request(Method::GET, path.as_bytes(), base, Vec::new())
}

fn request(method: Method, path: &[u8], base: &HttpUrl, body: Vec<u8>) -> Option<Request<Full<Bytes>>> {
    let has_body = !body.is_empty();
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = Uri::try_from(path).ok()?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::try_from(base.origin().authority()).ok()?);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    if has_body {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    Some(request)
}

/// Reason for a call without an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CallError {
    /// No connection: it was surely not carried out.
    Connect(HttpClientError),
    /// It was sent, wholly or in part.
    NoAnswer(&'static str),
}

/// An answer, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PeerResponse {
    pub status: StatusCode,
    /// It speaks of the session: that it is not there, or takes nothing now.
    pub of_session: bool,
    /// It says that the session holds the message.
    pub holds: bool,
}

impl PeerResponse {
    fn of(response: &Response<Incoming>) -> PeerResponse {
        let session = response.headers().get(&SESSION);
        PeerResponse {
            status: response.status(),
            of_session: session.is_some(),
            holds: session.is_some_and(|said| said == "held"),
        }
    }

    /// Returns the reply for the shard; `None` if the node refused for a reason that its operator must look into.
    pub fn reply(self, op: &PeerOp) -> Option<PeerReply> {
        match self.status.as_u16() {
            200 | 202 => Some(PeerReply::Done),
            404 if self.of_session => Some(PeerReply::NotHere),
            503 if self.holds && matches!(op, PeerOp::Push { .. }) => Some(PeerReply::Held),
            503 if self.of_session && matches!(op, PeerOp::Push { .. }) => Some(PeerReply::Busy),
            // Too many connections, or on its way out.
            503 => Some(PeerReply::Unreachable),
            _ => None,
        }
    }
}

/// Result of a call: the connection if it can be used again, and the answer.
pub(super) type Called = (Option<Conn>, Result<PeerResponse, CallError>);

/// Sends a request over `kept` or, without one, over a new connection. A kept one that the other end has closed in the
/// meantime is no failure: every call may be carried out twice, since pushes are known by their ids.
pub(super) async fn call(
    client: Arc<HttpClient>,
    base: Arc<HttpUrl>,
    request: Request<Full<Bytes>>,
    kept: Option<Conn>,
    within: (Duration, Duration),
) -> Called {
    let (connect_timeout, request_timeout) = within;
    let mut sent = false;
    if let Some(conn) = kept {
        match timeout(request_timeout, exchange(conn, request.clone())).await {
            Ok(ExchangeResult::Answered(conn, answer)) => return (conn, Ok(answer)),
            Ok(ExchangeResult::Broke) => sent = true,
            Ok(ExchangeResult::Unsent) => {}
            Err(_) => return (None, Err(CallError::NoAnswer("no answer in time"))),
        }
    }
    let made = timeout(connect_timeout, connect(&client, &base)).await;
    let conn = match made.unwrap_or(Err(HttpClientError::Timeout)) {
        Ok(conn) => conn,
        // Perhaps it was carried out before the kept one broke: then it must not be stored as if the node did not have
        // it.
        Err(_) if sent => return (None, Err(CallError::NoAnswer("the connection broke, and there is no other"))),
        Err(trouble) => return (None, Err(CallError::Connect(trouble))),
    };
    match timeout(request_timeout, exchange(conn, request)).await {
        Ok(ExchangeResult::Answered(conn, answer)) => (conn, Ok(answer)),
        Ok(ExchangeResult::Broke | ExchangeResult::Unsent) => (None, Err(CallError::NoAnswer("the connection broke"))),
        Err(_) => (None, Err(CallError::NoAnswer("no answer in time"))),
    }
}

async fn connect(client: &HttpClient, base: &HttpUrl) -> Result<Conn, HttpClientError> {
    let stream = client.open(base.origin()).await?;
    let mut builder = http1::Builder::new();
    let made = builder.max_buf_size(BUFFER_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (conn, driver) = made.map_err(|error| HttpClientError::Connect(error.to_string()))?;
    // Ends when the sender is dropped, or the other end goes.
    tokio::spawn(driver);
    Ok(conn)
}

/// Result of an exchange.
enum ExchangeResult {
    /// With the connection, if it can be used again.
    Answered(Option<Conn>, PeerResponse),
    /// The connection had ended before a byte of the request was sent.
    Unsent,
    /// The connection broke behind the request, or within it.
    Broke,
}

/// One request and its answer.
async fn exchange(mut conn: Conn, request: Request<Full<Bytes>>) -> ExchangeResult {
    if conn.ready().await.is_err() {
        return ExchangeResult::Unsent;
    }
    let Ok(response) = conn.send_request(request).await else { return ExchangeResult::Broke };
    let answer = PeerResponse::of(&response);
    // The body is not needed, but the next answer comes behind it.
    let read = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    ExchangeResult::Answered(read.is_ok().then_some(conn), answer)
}

/// Bytes of a connection that are read ahead or written together.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Of an answer; beyond it the connection is closed.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// Says that the answer speaks of the session.
static SESSION: HeaderName = HeaderName::from_static("murre-session");
