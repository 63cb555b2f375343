//! HTTP/2 connections of one profile to its service (RFC 9113). Opened when calls need them, kept while they last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper::header::HeaderValue;
use hyper::header::USER_AGENT;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use protocol::wire::url::Origin;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::request::{Answer, Check, date_of};
use crate::http_client::{AGENT, HttpClient, HttpClientError, Stream as TlsStream, said};
use crate::jitter::jitter;

/// Connections of one profile.
pub(super) struct Connections {
    origin: Origin,
    client: HttpClient,
    connections_max: usize,
    idle_timeout: Duration,
    /// Silence after which a connection is asked for a sign of life, and the time for that sign.
    ping_after: Duration,
    pong_within: Duration,
    state: Mutex<State>,
    /// Counts the attempts to connect that have ended.
    attempts: watch::Sender<u64>,
}

struct State {
    open: Vec<Open>,
    /// Number of the next connection.
    next: u64,
    is_connecting: bool,
    /// Of attempts that failed, and connections that ended before they were of use.
    back_off: BackOff,
    /// Of connections that were given up because the service holds something against them.
    given_up: BackOff,
}

struct Open {
    id: u64,
    sender: SendRequest<Full<Bytes>>,
    in_flight: usize,
    /// Calls without an answer since the last one that had one.
    lost: usize,
    /// A call was answered as it should be.
    is_of_use: bool,
    used: Instant,
}

impl Open {
    /// Calls under way. One that was lost counts as many: a connection that answers nothing looks busy, not free.
    fn load(&self) -> usize {
        self.in_flight + self.lost * STREAMS_BEFORE_ANOTHER
    }
}

/// One connection, for one call.
pub(super) struct Stream {
    connections: Arc<Connections>,
    id: u64,
    sender: SendRequest<Full<Bytes>>,
    /// The request is on its way, and there is no result yet.
    is_waiting: bool,
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
        let (given_up, is_connecting) = (BackOff::default(), false);
        let state = State { open: Vec::new(), next: 0, is_connecting, back_off: BackOff::default(), given_up };
        let attempts = watch::Sender::new(0);
        let (ping_after, pong_within) = (PING_AFTER, PONG_WITHIN);
        let state = Mutex::new(state);
        Connections { origin, client, connections_max, idle_timeout, ping_after, pong_within, state, attempts }
    }

    /// Returns the authority of the service.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection with the least load. Waits for the first one; time is the caller's to bound.
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
        let (mut state, now) = (connections.state(), Instant::now());
        state.forget_closed(now);
        let least = state.open.iter().map(Open::load).min();
        let is_wanted = least.is_none_or(|least| least >= STREAMS_BEFORE_ANOTHER);
        let may_connect = !state.is_connecting && state.back_off.is_over(now);
        if is_wanted && may_connect && state.open.len() < connections.connections_max {
            state.is_connecting = true;
            tokio::spawn(connect(Arc::clone(connections)));
        }
        let open = state.open.iter_mut().min_by_key(|open| open.load())?;
        (open.in_flight, open.used) = (open.in_flight + 1, now);
        let (id, sender) = (open.id, open.sender.clone());
        Some(Stream { connections: Arc::clone(connections), id, sender, is_waiting: false })
    }

    /// Connects once, with a request that is no notification: any answer to it is one. With TLS 1.3 a service that
    /// refuses the client certificate says so only behind the handshake (RFC 8446 section 4.4.2.4).
    pub async fn check(&self) -> Check {
        let asked = async {
            let (mut sender, connection) = handshake(self).await?;
            let connection = tokio::spawn(connection);
            let uri = format!("https://{}/", self.origin.authority());
            let request = Request::get(uri).header(USER_AGENT, AGENT).body(Full::new(Bytes::new()));
            let request = request.map_err(|error| HttpClientError::Connect(said(&error)))?;
            match sender.send_request(request).await {
                Ok(answer) => Ok(answer),
                Err(error) => {
                    // The connection knows the cause, and ends when no sender is left.
                    drop(sender);
                    let cause = connection.await.ok().and_then(Result::err);
                    Err(HttpClientError::Connect(said(cause.as_ref().unwrap_or(&error))))
                }
            }
        };
        match timeout(CONNECT_TIME_MAX, asked).await.unwrap_or(Err(HttpClientError::Timeout)) {
            Ok(answer) => Check { service: Ok(()), date: date_of(answer.headers()) },
            Err(error) => Check::failed(error.to_string()),
        }
    }

    /// Closes connections that no call has used for long.
    pub fn close_idle(&self, now: Instant) {
        let idle = |open: &Open| open.in_flight == 0 && now.saturating_duration_since(open.used) >= self.idle_timeout;
        let mut state = self.state();
        state.forget_closed(now);
        state.open.retain(|open| !idle(open));
    }

    fn connected(&self, sender: SendRequest<Full<Bytes>>) {
        let mut state = self.state();
        state.is_connecting = false;
        let (id, used) = (state.next, Instant::now());
        state.next += 1;
        state.open.push(Open { id, sender, in_flight: 0, lost: 0, is_of_use: false, used });
        drop(state);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    fn failed(&self) {
        let mut state = self.state();
        state.is_connecting = false;
        state.back_off.failed(Instant::now());
        drop(state);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }
}

impl State {
    /// Changes a connection, unless it was forgotten.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Open)) {
        if let Some(open) = self.open.iter_mut().find(|open| open.id == id) {
            change(open);
        }
    }

    /// Forgets connections that ended.
    fn forget_closed(&mut self, now: Instant) {
        let State { open, back_off, .. } = self;
        open.retain(|open| {
            let is_closed = open.sender.is_closed();
            if is_closed && !open.is_of_use {
                back_off.failed_but_once(now);
            }
            !is_closed
        });
    }
}

/// Pauses between attempts of one kind, while they fail.
#[derive(Default)]
struct BackOff {
    /// Failures in a row.
    failures: u32,
    /// No attempt before this time.
    not_before: Option<Instant>,
}

impl BackOff {
    fn is_over(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| now >= time)
    }

    fn failed(&mut self, now: Instant) {
        let span = (PAUSE_MIN * 2u32.saturating_pow(self.failures.min(7))).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        // At least half of it, so that nodes that lost the service together do not come back together.
        self.not_before = Some(now + span.mul_f64(0.5 + jitter() / 2.0));
    }

    /// As [`BackOff::failed`], but the first failure costs no pause: a second attempt of the same call needs none.
    fn failed_but_once(&mut self, now: Instant) {
        if self.failures == 0 {
            self.failures = 1;
        } else {
            self.failed(now);
        }
    }
}

/// One attempt to connect.
async fn connect(connections: Arc<Connections>) {
    let made = timeout(CONNECT_TIME_MAX, handshake(&connections)).await.unwrap_or(Err(HttpClientError::Timeout));
    match made {
        Ok((sender, connection)) => {
            let host = connections.origin.host.clone();
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%host, %error, "connection of a bridge broke");
                }
            });
            connections.connected(sender);
        }
        Err(error) => {
            tracing::debug!(host = %connections.origin.host, %error, "connection to a bridge failed");
            connections.failed();
        }
    }
}

type Made = (SendRequest<Full<Bytes>>, Connection<TokioIo<Box<dyn TlsStream>>, Full<Bytes>, TokioExecutor>);

/// Returns a connection with the future that drives it.
async fn handshake(connections: &Connections) -> Result<Made, HttpClientError> {
    let stream = connections.client.open(&connections.origin).await?;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(connections.ping_after)
        .keep_alive_timeout(connections.pong_within)
        .keep_alive_while_idle(true)
        // SETTINGS say how many there may be: with APNs one, until it took a token.
        .initial_max_send_streams(1)
        .max_header_list_size(HEAD_BYTES_MAX);
    let made = builder.handshake(TokioIo::new(stream)).await;
    made.map_err(|error| HttpClientError::Connect(error.to_string()))
}

impl Stream {
    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub async fn exchange(&mut self, mut request: Request<Full<Bytes>>) -> Result<Answer, ExchangeError> {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        self.is_waiting = true;
        let result = self.send(request).await;
        self.is_waiting = false;
        // A stream that was refused is a sign of life too.
        if !matches!(result, Err(ExchangeError::Broken)) {
            self.connections.state().change(self.id, |open| open.lost = 0);
        }
        result
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, ExchangeError> {
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

    /// Notes that the answer was one of a service that works and trusts this connection.
    pub fn was_of_use(&self) {
        let mut state = self.connections.state();
        (state.back_off, state.given_up) = (BackOff::default(), BackOff::default());
        state.change(self.id, |open| open.is_of_use = true);
    }

    /// Gives up the connections of the profile, because of an answer on this one; calls on them go on, and the next one
    /// makes another. Without an answer of use in between, there are pauses, in which the connections stay.
    pub fn give_up(&self) {
        let (mut state, now) = (self.connections.state(), Instant::now());
        if state.given_up.is_over(now) && state.open.iter().any(|open| open.id == self.id) {
            state.given_up.failed(now);
            state.open.clear();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let lost = usize::from(self.is_waiting);
        self.connections.state().change(self.id, |open| {
            (open.in_flight, open.lost) = (open.in_flight.saturating_sub(1), open.lost + lost);
        });
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

/// Load of every connection of a profile beyond which it opens another.
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

#[cfg(test)]
mod tests;
