//! Wake-up calls for SimplePush user agents (PROTOCOL.md 7.10): when a message is stored for one that is not connected,
//! the wake data of its hello is POSTed to the wake-up server.
//!
//! [`WakeUpQueue`] is the lane from the shards to the control plane: any shard pushes and never waits. A call that is
//! lost costs nothing but time: the message is in storage, and the user agent gets it when it comes back by itself. The
//! data holds addresses of user agents: it is never logged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use machine::counters;
use machine::stats::{Board, Counters as _};
use tokio::task::JoinSet;

use super::http_client::{HttpClient, HttpClientError};
use super::lane::WakingQueue;
use protocol::wire::url::HttpUrl;

/// Queue of wake-up calls. Many shards push, one task of the control plane pops.
pub struct WakeUpQueue {
    queue: WakingQueue<Box<str>>,
    dropped: AtomicU64,
}

impl WakeUpQueue {
    /// An empty one.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new() -> io::Result<WakeUpQueue> {
        Ok(WakeUpQueue { queue: WakingQueue::new(WAKES_MAX)?, dropped: AtomicU64::new(0) })
    }

    /// Asks for one call with this text as its body: `ip=..&port=..`, as it was made of the hello. From any thread;
    /// takes no lock and never waits. One system call when the control plane sleeps. At the bounds: shed, counted.
    pub fn push(&self, data: Box<str>) {
        if data.len() > WAKE_DATA_BYTES_MAX || !self.queue.push(data) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Calls waiting to be made; with [`WAKE_DATA_BYTES_MAX`] 2 MiB. Shed: [`WakeUpQueue::push`].
const WAKES_MAX: usize = 4_096;
/// Bytes of one call's body: an address, a port and three numbers of a mobile network fit well. Shed, as above.
const WAKE_DATA_BYTES_MAX: usize = 512;
/// Calls under way. Queue: the others wait in [`WakeUpQueue`].
const WAKE_CALLS_MAX: usize = 16;
/// For one call (PROTOCOL.md 7.10).
const WAKE_TIME_MAX: Duration = Duration::from_secs(3);
/// Pause that the wake-up server asks for (`Retry-After`); calls wait in [`WakeUpQueue`]. Beyond it: a minute counts.
const WAKE_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Failures within this time after one that was logged are only counted.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

counters! {
    /// Numbers of the wake-up calls.
    pub struct WakeUpStats {
        counter wake_calls_ok: "Wake-up calls answered with 2xx.",
        counter wake_calls_status: "Wake-up calls answered with another status; redirects are not followed.",
        counter wake_calls_timeout: "Wake-up calls not answered within 3 s.",
        counter wake_calls_connect: "Wake-up calls without a connection: name, address, TLS, or it broke.",
        counter wake_calls_dropped: "Wake-up calls not made because too many were waiting.",
        gauge wake_calls_waiting: "Wake-up calls waiting to be made.",
        gauge wake_calls_under_way: "Wake-up calls being made.",
    }
}

/// Task that makes the calls.
pub(super) struct WakeUpSender {
    url: HttpUrl,
    wake_ups: Arc<WakeUpQueue>,
    client: Arc<HttpClient>,
    stats: WakeUpStats,
    board: Arc<Board>,
    warned_at: Option<Instant>,
    /// No call before this time, as the wake-up server asked.
    not_before: Option<tokio::time::Instant>,
    /// For one call; [`WAKE_TIME_MAX`] but in tests.
    pub patience: Duration,
}

impl WakeUpSender {
    pub fn new(url: HttpUrl, wake_ups: Arc<WakeUpQueue>, client: Arc<HttpClient>) -> WakeUpSender {
        WakeUpSender {
            url,
            wake_ups,
            client,
            stats: WakeUpStats::default(),
            board: Arc::new(Board::new(&[WakeUpStats::MEANINGS])),
            warned_at: None,
            not_before: None,
            patience: WAKE_TIME_MAX,
        }
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Makes calls for ever.
    ///
    /// # Errors
    /// If the operating system refuses to listen for the bell.
    pub async fn run(mut self) -> io::Result<()> {
        let wake_ups = Arc::clone(&self.wake_ups);
        let bell = wake_ups.queue.bell()?;
        let mut calls = JoinSet::new();
        loop {
            self.not_before = self.not_before.filter(|until| tokio::time::Instant::now() < *until);
            let may_call = self.not_before.is_none();
            let pause = tokio::time::sleep_until(self.not_before.unwrap_or_else(tokio::time::Instant::now));
            tokio::select! {
                () = pause, if !may_call => {}
                data = wake_ups.queue.pop(&bell), if may_call && calls.len() < WAKE_CALLS_MAX => {
                    let (client, url, patience) = (Arc::clone(&self.client), self.url.clone(), self.patience);
                    calls.spawn(call(client, url, data?, patience));
                }
                Some(ended) = calls.join_next() => {
                    // A call is never cancelled: there is no other error.
                    if let Ok((outcome, pause)) = ended {
                        if let Some(pause) = pause {
                            self.not_before = Some(tokio::time::Instant::now() + pause.min(WAKE_PAUSE_MAX));
                        }
                        self.count(outcome);
                    }
                }
            }
            self.stats.wake_calls_dropped = wake_ups.dropped.load(Ordering::Relaxed);
            self.stats.wake_calls_waiting = wake_ups.queue.len() as u64;
            self.stats.wake_calls_under_way = calls.len() as u64;
            self.stats.write_to(&self.board, 0);
        }
    }

    fn count(&mut self, outcome: Result<StatusCode, HttpClientError>) {
        let stats = &mut self.stats;
        let why = match outcome {
            Ok(status) if status.is_success() => {
                stats.wake_calls_ok += 1;
                return;
            }
            Ok(status) => {
                stats.wake_calls_status += 1;
                HttpClientError::Status(status)
            }
            Err(why) => {
                let timeout = why == HttpClientError::Timeout;
                *if timeout { &mut stats.wake_calls_timeout } else { &mut stats.wake_calls_connect } += 1;
                why
            }
        };
        if self.warned_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(url = %self.url, reason = %why, "wake-up call failed; for a minute others are only counted");
        }
    }
}

/// One call, and the pause that its answer asks for. It goes to the configured URL and nowhere else: a redirect would
/// let the wake-up server aim requests at any server that this host can reach.
async fn call(
    client: Arc<HttpClient>,
    url: HttpUrl,
    data: Box<str>,
    within: Duration,
) -> (Result<StatusCode, HttpClientError>, Option<Duration>) {
    let mut request = Request::new(data.into_string());
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    let answer = tokio::time::timeout(within, client.call(&url, request, 0)).await;
    let answer = answer.unwrap_or(Err(HttpClientError::Timeout));
    let pause = answer.as_ref().ok().and_then(|answer| answer.pause);
    (answer.map(|answer| answer.status), pause)
}
