//! Wake-up calls for SimplePush user agents (PROTOCOL.md 7.10): when a message is stored for one that is not connected,
//! the wake data of its hello is POSTed to the wake-up server.
//!
//! [`Wakes`] is the lane from the shards to the island: any shard pushes and never waits. A call that is lost costs
//! nothing but time: the message is in storage, and the user agent gets it when it comes back by itself. The data holds
//! addresses of user agents: it is never logged.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::queue::ArrayQueue;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use machine::counters;
use machine::stats::{Board, Counters as _};
use tokio::task::JoinSet;

use super::client::{Client, Trouble};
use protocol::wire::url::HttpUrl;

/// Queue of wake-up calls. Many shards push, one task of the island pops.
pub struct Wakes {
    queue: ArrayQueue<Box<str>>,
    dropped: AtomicU64,
    /// The island found nothing and listens for the bell.
    waits: AtomicBool,
    bell: UnixStream,
    ear: UnixStream,
}

impl Wakes {
    /// An empty one.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new() -> io::Result<Wakes> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok(Wakes {
            queue: ArrayQueue::new(WAKES_MAX),
            dropped: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            bell,
            ear,
        })
    }

    /// Asks for one call with this text as its body: `ip=..&port=..`, as it was made of the hello. From any thread;
    /// takes no lock and never waits. One system call when the island sleeps. At the bounds: shed, counted.
    pub fn push(&self, data: Box<str>) {
        if data.len() > WAKE_DATA_BYTES_MAX || self.queue.push(data).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.waits.swap(false, Ordering::SeqCst) {
            // A full socket is rung already.
            let _ = (&self.bell).write(&[1]);
        }
    }

    /// The oldest. May be cancelled anywhere without losing one.
    async fn pop(&self, ear: &tokio::net::UnixStream) -> io::Result<Box<str>> {
        loop {
            if let Some(data) = self.queue.pop() {
                return Ok(data);
            }
            self.waits.store(true, Ordering::SeqCst);
            // A push before that store did not ring; a push after it does.
            if let Some(data) = self.queue.pop() {
                return Ok(data);
            }
            ear.readable().await?;
            // The bytes mean nothing, and an empty read means only that an earlier read took the ring.
            let _ = ear.try_read(&mut [0; 64]);
        }
    }
}

/// Calls waiting to be made; with [`WAKE_DATA_BYTES_MAX`] 2 MiB. Shed: [`Wakes::push`].
const WAKES_MAX: usize = 4_096;
/// Bytes of one call's body: an address, a port and three numbers of a mobile network fit well. Shed, as above.
const WAKE_DATA_BYTES_MAX: usize = 512;
/// Calls under way. Park: the others wait in [`Wakes`].
const WAKE_CALLS_MAX: usize = 16;
/// For one call (PROTOCOL.md 7.10).
const WAKE_TIME_MAX: Duration = Duration::from_secs(3);
/// Failures within this time after one that was logged are only counted.
const QUIET: Duration = Duration::from_secs(60);

counters! {
    /// Numbers of the wake-up calls.
    pub struct WakeNumbers {
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
pub(super) struct Caller {
    url: HttpUrl,
    wakes: Arc<Wakes>,
    client: Arc<Client>,
    numbers: WakeNumbers,
    board: Arc<Board>,
    complained: Option<Instant>,
    /// For one call; [`WAKE_TIME_MAX`] but in tests.
    pub patience: Duration,
}

impl Caller {
    pub fn new(url: HttpUrl, wakes: Arc<Wakes>, client: Arc<Client>) -> Caller {
        Caller {
            url,
            wakes,
            client,
            numbers: WakeNumbers::default(),
            board: Arc::new(Board::new(&[WakeNumbers::MEANINGS])),
            complained: None,
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
        let wakes = Arc::clone(&self.wakes);
        let ear = tokio::net::UnixStream::from_std(wakes.ear.try_clone()?)?;
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                data = wakes.pop(&ear), if calls.len() < WAKE_CALLS_MAX => {
                    let (client, url, patience) = (Arc::clone(&self.client), self.url.clone(), self.patience);
                    calls.spawn(call(client, url, data?, patience));
                }
                Some(ended) = calls.join_next() => {
                    // A call is never cancelled: there is no other error.
                    if let Ok(outcome) = ended {
                        self.count(outcome);
                    }
                }
            }
            self.numbers.wake_calls_dropped = wakes.dropped.load(Ordering::Relaxed);
            self.numbers.wake_calls_waiting = wakes.queue.len() as u64;
            self.numbers.wake_calls_under_way = calls.len() as u64;
            self.numbers.write_to(&self.board, 0);
        }
    }

    fn count(&mut self, outcome: Result<StatusCode, Trouble>) {
        let numbers = &mut self.numbers;
        let why = match outcome {
            Ok(status) if status.is_success() => {
                numbers.wake_calls_ok += 1;
                return;
            }
            Ok(status) => {
                numbers.wake_calls_status += 1;
                Trouble::Status(status)
            }
            Err(why) => {
                let timeout = why == Trouble::Timeout;
                *if timeout { &mut numbers.wake_calls_timeout } else { &mut numbers.wake_calls_connect } += 1;
                why
            }
        };
        if self.complained.is_none_or(|at| at.elapsed() >= QUIET) {
            self.complained = Some(Instant::now());
            tracing::warn!(url = %self.url, reason = %why, "wake-up call failed; for a minute others are only counted");
        }
    }
}

/// One call, to the configured URL and nowhere else: a redirect would let the wake-up server aim requests at any server
/// that this host can reach.
async fn call(client: Arc<Client>, url: HttpUrl, data: Box<str>, within: Duration) -> Result<StatusCode, Trouble> {
    let mut request = Request::new(data.into_string());
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    let answer = tokio::time::timeout(within, client.call(&url, request, 0)).await;
    answer.unwrap_or(Err(Trouble::Timeout)).map(|answer| answer.status)
}
