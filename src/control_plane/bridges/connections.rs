//! HTTP/2 connections of one profile to its service (RFC 9113). Opened when calls need them, kept while they last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::HeaderValue;
use hyper::header::USER_AGENT;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use protocol::wire::url::Origin;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::jitter::jitter;
use super::request::Answer;
use crate::control_plane::http_client::{AGENT, HttpClient, HttpClientError};

/// Connections of one profile.
pub(super) struct Connections {
    origin: Origin,
    client: HttpClient,
    connections_max: usize,
    idle_timeout: Duration,
    state: Mutex<State>,
    /// Counts the attempts to connect that have ended.
    attempts: watch::Sender<u64>,
}

struct State {
    open: Vec<Open>,
    /// Number of the next connection.
    next: u64,
    is_connecting: bool,
    /// Attempts in a row that failed.
    failures: u32,
    /// No attempt before this time.
    not_before: Option<Instant>,
}

struct Open {
    id: u64,
    sender: SendRequest<Full<Bytes>>,
    in_flight: usize,
    used: Instant,
}

/// One connection, for one call.
pub(super) struct Stream {
    connections: Arc<Connections>,
    id: u64,
    sender: SendRequest<Full<Bytes>>,
}

/// Reason for the lack of a complete answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExchangeError {
    /// There is no connection.
    Unconnected,
    /// The service did not process the request (RFC 9113 section 8.7).
    Unprocessed,
    /// The service may have processed the request.
    Broken,
    /// The answer with this status has a body that is too large or incomplete.
    Unreadable(u16),
}

impl Connections {
    pub fn new(origin: Origin, client: HttpClient, connections_max: usize, idle_timeout: Duration) -> Connections {
        let state = State { open: Vec::new(), next: 0, is_connecting: false, failures: 0, not_before: None };
        let attempts = watch::Sender::new(0);
        Connections { origin, client, connections_max, idle_timeout, state: Mutex::new(state), attempts }
    }

    /// Returns the authority of the service.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection with the fewest calls. Waits for the first one; time is the caller's to bound.
    ///
    /// # Errors
    /// [`ExchangeError::Unconnected`]: the attempt failed, or one that failed is too recent for another.
    pub async fn stream(connections: &Arc<Connections>) -> Result<Stream, ExchangeError> {
        let mut attempts = connections.attempts.subscribe();
        if let Some(stream) = Connections::pick(connections) {
            return Ok(stream);
        }
        if !connections.state().is_connecting {
            return Err(ExchangeError::Unconnected);
        }
        // An error cannot be: the sender lives as long as `connections`.
        let _ = attempts.changed().await;
        Connections::pick(connections).ok_or(ExchangeError::Unconnected)
    }

    fn pick(connections: &Arc<Connections>) -> Option<Stream> {
        let mut state = connections.state();
        state.open.retain(|open| !open.sender.is_closed());
        let now = Instant::now();
        let least = state.open.iter().map(|open| open.in_flight).min();
        let is_wanted = least.is_none_or(|least| least >= STREAMS_BEFORE_ANOTHER);
        let may_connect = !state.is_connecting && state.not_before.is_none_or(|time| now >= time);
        if is_wanted && may_connect && state.open.len() < connections.connections_max {
            state.is_connecting = true;
            tokio::spawn(connect(Arc::clone(connections)));
        }
        let open = state.open.iter_mut().min_by_key(|open| open.in_flight)?;
        (open.in_flight, open.used) = (open.in_flight + 1, now);
        Some(Stream { connections: Arc::clone(connections), id: open.id, sender: open.sender.clone() })
    }

    /// Gives up the connections that are there; calls on them go on. The next call makes another.
    pub fn reconnect(&self) {
        self.state().open.clear();
    }

    /// Closes connections that no call has used for long.
    pub fn close_idle(&self, now: Instant) {
        let idle = |open: &Open| open.in_flight == 0 && now.saturating_duration_since(open.used) >= self.idle_timeout;
        self.state().open.retain(|open| !idle(open) && !open.sender.is_closed());
    }

    fn connected(&self, sender: SendRequest<Full<Bytes>>) {
        let mut state = self.state();
        (state.is_connecting, state.failures, state.not_before) = (false, 0, None);
        let (id, used) = (state.next, Instant::now());
        state.next += 1;
        state.open.push(Open { id, sender, in_flight: 0, used });
        drop(state);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    fn failed(&self) {
        let mut state = self.state();
        state.is_connecting = false;
        let span = (PAUSE_MIN * 2u32.saturating_pow(state.failures.min(7))).min(PAUSE_MAX);
        state.failures = state.failures.saturating_add(1);
        // At least half of it, so that nodes that lost the service together do not come back together.
        state.not_before = Some(Instant::now() + span.mul_f64(0.5 + jitter() / 2.0));
        drop(state);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }
}

/// One attempt to connect.
async fn connect(connections: Arc<Connections>) {
    let made = timeout(CONNECT_TIME_MAX, handshake(&connections)).await.unwrap_or(Err(HttpClientError::Timeout));
    match made {
        Ok(sender) => connections.connected(sender),
        Err(error) => {
            tracing::debug!(host = %connections.origin.host, %error, "connection to a bridge failed");
            connections.failed();
        }
    }
}

async fn handshake(connections: &Connections) -> Result<SendRequest<Full<Bytes>>, HttpClientError> {
    let stream = connections.client.open(&connections.origin).await?;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(true)
        // SETTINGS say how many there may be: with APNs one, until it took a token.
        .initial_max_send_streams(1)
        .max_header_list_size(HEAD_BYTES_MAX);
    let made = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|error| HttpClientError::Connect(error.to_string()))?;
    let host = connections.origin.host.clone();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%host, %error, "connection of a bridge broke");
        }
    });
    Ok(sender)
}

impl Stream {
    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub async fn exchange(&mut self, mut request: Request<Full<Bytes>>) -> Result<Answer, ExchangeError> {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let sent = self.sender.try_send_request(request).await;
        let response = sent.map_err(|mut error| {
            // With the request in hand nothing was written.
            let is_unsent = error.take_message().is_some() || is_unprocessed(error.error());
            if is_unsent { ExchangeError::Unprocessed } else { ExchangeError::Broken }
        })?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|_| ExchangeError::Unreadable(head.status.as_u16()))?.to_bytes();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        if let Some(open) = state.open.iter_mut().find(|open| open.id == self.id) {
            open.in_flight = open.in_flight.saturating_sub(1);
        }
    }
}

/// Returns true if the service says that it did not process the request: it refused the stream, or the stream is beyond
/// the last one of its GOAWAY. h2 gives the error of a GOAWAY to those streams only.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM));
        }
        cause = error.source();
    }
    false
}

/// Calls on every connection of a profile beyond which it opens another.
const STREAMS_BEFORE_ANOTHER: usize = 32;
/// Name, TCP, TLS and HTTP/2. Beyond it: as a connection that is refused.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after the first failed attempt; doubled after each, with jitter.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Silence after which a connection is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(60);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of the body of one answer. Beyond it: [`ExchangeError::Unreadable`].
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the fields of one answer. Beyond it: [`ExchangeError::Broken`].
const HEAD_BYTES_MAX: u32 = 16 * 1024;
