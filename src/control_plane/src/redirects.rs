//! The listener of `public.http_listen`: it sends browsers to `https://` and answers HTTP-01 challenges (RFC 8555
//! section 8.3). Nothing else of the server is reached without TLS there.
//!
//! A redirect names one of the server's own names, never another one that a request brings. Methods other than GET and
//! HEAD are refused: the request has shown its tokens to the network already, and a client that follows a redirect
//! would go on to do so unnoticed.
//!
//! Lives on: the control plane.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use machine::counters;
use machine::stats::{Board, Counters as _};
use protocol::wire::percent::decode_unreserved;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::admin_server::{ACCEPT_PAUSE, HEAD_BYTES_MAX, Limits, LogLimiter, host_of};
use super::challenges::Challenges;

counters! {
    /// Numbers of the listener.
    pub struct RedirectStats {
        counter redirects: "Requests to public.http_listen answered 308.",
        counter redirects_forbidden: "Requests to public.http_listen answered 403: another method than GET and HEAD.",
        counter redirects_challenges: "Challenges of a certificate authority that public.http_listen answered.",
        counter redirects_refused: "Connections to public.http_listen closed because there were too many and they were the oldest.",
        counter redirects_timeouts: "Connections to public.http_listen closed because a request or its response took too long.",
        counter redirects_accept_errors: "Connections to public.http_listen that could not be accepted: no descriptor is left, most likely.",
        gauge redirects_connections: "Connections to public.http_listen.",
    }
}

/// 256 connections x about 20 KB = 5 MB. One request each, and its answer is at hand. At the bound the oldest is
/// closed: a request that is sent at once is answered, also beside very many connections on which nothing is sent.
pub(super) const REDIRECT_LIMITS: Limits =
    Limits { connections: 256, head_time: Duration::from_secs(5), time: Duration::from_secs(10) };

/// Start of the paths of challenges.
const CHALLENGE: &str = "/.well-known/acme-challenge/";

/// The server of `public.http_listen`.
pub struct Redirects {
    listeners: Vec<TcpListener>,
    /// `public.domain`; the first is that of requests that name no other.
    names: Vec<String>,
    challenges: Arc<Challenges>,
    limits: Limits,
    /// Connections, oldest first. Those that are over stay until there are too many.
    open: Mutex<VecDeque<AbortHandle>>,
    connections: AtomicUsize,
    stats: Mutex<RedirectStats>,
    board: Arc<Board>,
    accepts: LogLimiter,
}

impl Redirects {
    /// A server on these bound listeners that sends visitors to these names, of which there is at least one.
    pub fn new(listeners: Vec<TcpListener>, names: Vec<String>, challenges: Arc<Challenges>) -> Redirects {
        let limits = REDIRECT_LIMITS.within(runtime::ring::nofile_limit());
        Redirects {
            listeners,
            names,
            challenges,
            limits,
            open: Mutex::default(),
            connections: AtomicUsize::new(0),
            stats: Mutex::default(),
            board: Arc::new(Board::new(&[RedirectStats::MEANINGS])),
            accepts: LogLimiter::default(),
        }
    }

    pub(super) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Serves every listener on the current runtime, for ever.
    ///
    /// # Errors
    /// If the operating system refuses a listener.
    pub(super) fn spawn(mut self) -> io::Result<()> {
        let listeners = std::mem::take(&mut self.listeners);
        let server = Arc::new(self);
        for listener in listeners {
            tokio::spawn(Arc::clone(&server).run(super::attend(listener)?));
        }
        Ok(())
    }

    async fn run(self: Arc<Self>, listener: tokio::net::TcpListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.count(|stats| stats.redirects_accept_errors += 1);
                    if self.accepts.due() {
                        tracing::warn!(%error, "connection to public.http_listen not accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            self.make_room();
            let place = Place::of(&self);
            let task = tokio::spawn(async move { place.0.serve(stream).await });
            self.open().push_back(task.abort_handle());
        }
    }

    /// Closes the oldest connection if there are as many as there may be.
    fn make_room(&self) {
        let mut open = self.open();
        if open.len() >= self.limits.connections {
            open.retain(|task| !task.is_finished());
        }
        if open.len() >= self.limits.connections
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
            self.count(|stats| stats.redirects_refused += 1);
        }
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<AbortHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, stream: TcpStream) {
        let service = service_fn(|request| async move { Ok::<_, Infallible>(self.answer(&request)) });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_time)
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        match tokio::time::timeout(self.limits.time, connection).await {
            Ok(Err(error)) if !error.is_timeout() => {}
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => self.count(|stats| stats.redirects_timeouts += 1),
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            self.count(|stats| stats.redirects_forbidden += 1);
            return (StatusCode::FORBIDDEN, FORBIDDEN).into_response();
        }
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        if !target.starts_with('/') {
            return StatusCode::BAD_REQUEST.into_response();
        }
        if let Some(token) = decode_unreserved(request.uri().path()).strip_prefix(CHALLENGE) {
            let Some(answer) = self.challenges.get(token) else { return StatusCode::NOT_FOUND.into_response() };
            self.count(|stats| stats.redirects_challenges += 1);
            let content_type = (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            return ([content_type], answer).into_response();
        }
        let url = format!("https://{}{target}", self.name_of(request));
        // A path of other characters than these is none (RFC 3986 section 3.3).
        let Ok(location) = HeaderValue::try_from(&url) else { return StatusCode::BAD_REQUEST.into_response() };
        self.count(|stats| stats.redirects += 1);
        (StatusCode::PERMANENT_REDIRECT, [(LOCATION, location)], format!("use {url}\n")).into_response()
    }

    /// Returns the name of this server that a request asks for, else the first.
    fn name_of<B>(&self, request: &Request<B>) -> &str {
        let field = request.headers().get(HOST).and_then(|value| value.to_str().ok());
        let asked = request.uri().host().or_else(|| host_of(field?)).unwrap_or_default();
        let asked = asked.strip_suffix('.').unwrap_or(asked);
        let known = self.names.iter().find(|name| name.eq_ignore_ascii_case(asked));
        known.or(self.names.first()).map_or("", String::as_str)
    }

    /// Changes a number and shows all of them.
    fn count(&self, change: impl FnOnce(&mut RedirectStats)) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut stats);
        stats.redirects_connections = self.connections.load(Ordering::Relaxed) as u64;
        stats.write_to(&self.board, 0);
    }
}

/// A connection, while it is counted.
struct Place(Arc<Redirects>);

impl Place {
    fn of(server: &Arc<Redirects>) -> Place {
        server.connections.fetch_add(1, Ordering::Relaxed);
        server.count(|_| {});
        Place(Arc::clone(server))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.count(|_| {});
    }
}

const FORBIDDEN: &str = "this port does not take requests: send them to https://, and replace every token and key in this \
                         request, because it was sent without encryption\n";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn server(limits: Limits, challenges: &Arc<Challenges>) -> (Redirects, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let names = vec!["push.example.org".to_owned(), "push.example.net".to_owned()];
        let server = Redirects::new(vec![listener], names, Arc::clone(challenges));
        (Redirects { limits, ..server }, address)
    }

    fn number(board: &Board, name: &str) -> u64 {
        board.read().find(|(meaning, _)| meaning.name == name).unwrap().1
    }

    async fn ask(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").unwrap();
        answer
    }

    #[tokio::test]
    async fn visitors_are_sent_to_a_name_of_this_server_and_to_no_other() {
        let (server, address) = server(REDIRECT_LIMITS, &Arc::default());
        server.spawn().unwrap();
        for (target, host, location) in [
            ("/", "push.example.org", "https://push.example.org/"),
            ("/wpush/v3/x?y=%20", "PUSH.example.net.:80", "https://push.example.net/wpush/v3/x?y=%20"),
            ("/a", "evil.example", "https://push.example.org/a"),
            ("/a", "127.0.0.1", "https://push.example.org/a"),
            ("//evil.example/", "push.example.org@evil.example", "https://push.example.org//evil.example/"),
            ("http://evil.example/b", "push.example.net", "https://push.example.org/b"),
        ] {
            for method in ["GET", "HEAD"] {
                let answer = ask(address, &format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
                assert!(answer.starts_with("HTTP/1.1 308 "), "{target} {host}: {answer}");
                assert!(answer.contains(&format!("\r\nlocation: {location}\r\n")), "{target} {host}: {answer}");
                assert!(!answer.contains("\r\nserver:") && !answer.contains("strict-transport"), "{answer}");
            }
        }
    }

    #[tokio::test]
    async fn requests_with_something_to_lose_are_refused() {
        let (server, address) = server(REDIRECT_LIMITS, &Arc::default());
        let board = server.board();
        server.spawn().unwrap();
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let request =
                format!("{method} /wpush/v3/x HTTP/1.1\r\nHost: push.example.org\r\nContent-Length: 0\r\n\r\n");
            let answer = ask(address, &request).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("location:"), "{answer}");
        }
        assert_eq!(number(&board, "redirects_forbidden"), 5);
    }

    #[tokio::test]
    async fn challenges_are_answered_and_unknown_ones_are_not_redirected() {
        let challenges = Arc::<Challenges>::default();
        let (server, address) = server(REDIRECT_LIMITS, &challenges);
        server.spawn().unwrap();
        assert!(challenges.insert("token", "token.thumbprint"));
        let get = |token: &str| format!("GET {CHALLENGE}{token} HTTP/1.1\r\nHost: push.example.org\r\n\r\n");
        let answer = ask(address, &get("token")).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\ntoken.thumbprint"), "{answer}");
        let encoded = get("%74oken").replace("challenge", "%63hallenge");
        assert!(ask(address, &encoded).await.starts_with("HTTP/1.1 200 "), "RFC 3986 section 6.2.2.2");
        challenges.remove("token");
        for token in ["token", "", "../token"] {
            assert!(ask(address, &get(token)).await.starts_with("HTTP/1.1 404 "), "{token}");
        }
    }

    async fn is_closed(mut stream: TcpStream) -> bool {
        let ended = tokio::time::timeout(LONG, stream.read(&mut [0; 16])).await.expect("closed by the server");
        matches!(ended, Ok(0) | Err(_))
    }

    #[tokio::test]
    async fn beyond_the_limit_the_oldest_connection_is_closed() {
        let (server, address) = server(Limits { connections: 2, head_time: LONG, time: LONG }, &Arc::default());
        let board = server.board();
        server.spawn().unwrap();
        let [first, second] = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        assert!(ask(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.starts_with("HTTP/1.1 308 "));
        assert!(is_closed(first).await);
        assert_eq!(number(&board, "redirects_refused"), 1);
        while number(&board, "redirects_connections") != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(second);
    }

    #[tokio::test]
    async fn a_silent_connection_loses_its_place() {
        let limits = Limits { connections: 1, head_time: Duration::from_millis(100), time: LONG };
        let (server, address) = server(limits, &Arc::default());
        let board = server.board();
        server.spawn().unwrap();
        assert!(is_closed(TcpStream::connect(address).await.unwrap()).await);
        while number(&board, "redirects_timeouts") == 0 || number(&board, "redirects_connections") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(ask(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.starts_with("HTTP/1.1 308 "));
    }
}
