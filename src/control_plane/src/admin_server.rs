//! The connections of the listeners for operators and for metrics: their number, the time that each may take, and the
//! host names that the listeners answer to.
//!
//! Every user of the host reaches these listeners, and they share the descriptors of the process with the store.
//! [`LIMITS`] therefore bounds every connection, and a connection serves one request. Where there are too many, the one
//! that has waited for its caller for longest gives way. A page in an operator's browser could reach the listener by a
//! name that the page's owner has pointed at it (DNS rebinding); [`Hosts`] refuses such names.
//!
//! Lives on: the control plane.

mod places;

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header::HOST;
use axum::http::uri::PathAndQuery;
use axum::http::{Request, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use machine::counters;
use machine::stats::{Board, Counters as _};
use protocol::wire::percent::decode_unreserved;
use tls::{ACME_TLS, First, ServerTls};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use self::places::{Place, Places};

counters! {
    /// Numbers of the admin listener.
    pub struct AdminStats {
        counter admin_refused: "Connections to the listeners for operators and metrics closed at once because each of the others had a request under way.",
        counter admin_evicted: "Connections to the listeners for operators and metrics closed because there were too many and they had waited for their caller for longest.",
        counter admin_unauthorized: "Requests to the listeners for operators answered 401 because they did not show the token of the data directory.",
        counter admin_timeouts: "Connections to the admin listeners closed because a request or its response took too long.",
        counter admin_tls_handshakes_failed: "Connections to admin.tls.listen that ended in their handshake, or whose handshake took too long.",
        counter admin_tls_not_tls: "Connections to admin.tls.listen whose first bytes are not a TLS record.",
        counter admin_hosts_refused: "Requests to the admin listeners answered 421 because their Host is not in admin.hosts.",
        counter admin_accept_errors: "Connections to the admin listeners that could not be accepted: no descriptor is left, most likely.",
        gauge admin_connections: "Connections to the listeners for operators and metrics, handshakes included.",
    }
}

/// Every bound of the admin listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections of all listeners of one server together. Shed: the one that has waited for its caller for longest.
    /// Refuse, while each has a request under way: closed at once.
    pub connections: usize,
    /// From accept, or the end of the handshake, to the end of the request's head. Refuse: closed.
    pub head_time: Duration,
    /// From the same instant to the end of the response, without the time that a backup takes. Refuse: closed.
    pub time: Duration,
}

/// 64 connections x about 20 KB = 1.3 MB. A scrape or a health check takes milliseconds.
pub(super) const LIMITS: Limits =
    Limits { connections: 64, head_time: Duration::from_secs(5), time: Duration::from_secs(30) };

/// The part of the process's descriptors that admin connections may use, as a divisor: the store opens files with the
/// others.
const DESCRIPTORS_PART: u64 = 8;
/// Bytes of a request's head. Refuse: 431.
pub(super) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Time for which a caller that speaks no TLS is heard behind its answer, [`HEAD_BYTES_MAX`] bytes at most.
const LINGER: Duration = Duration::from_secs(1);
/// After a failed accept.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Limits {
    /// These limits for a process that may open this number of descriptors.
    pub fn within(self, descriptors: u64) -> Limits {
        let share = usize::try_from(descriptors / DESCRIPTORS_PART).unwrap_or(usize::MAX);
        Limits { connections: self.connections.min(share.max(1)), ..self }
    }
}

/// Names by which the admin listener may be called (`admin.hosts`), beside `localhost` and every IP address.
#[derive(Clone, Default, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// These names, in lower case.
    pub fn new(names: Vec<String>) -> Hosts {
        Hosts(names)
    }

    /// True when a request may name this authority (`host` or `host:port`).
    fn know(&self, authority: &str) -> bool {
        let Some(host) = host_of(authority) else { return false };
        let host = host.strip_suffix('.').unwrap_or(host);
        let named = |name: &String| name.eq_ignore_ascii_case(host);
        host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost") || self.0.iter().any(named)
    }

    /// The first authority of a request that is not known. A request without an authority is accepted, because browsers
    /// always send one.
    fn stranger<B>(&self, request: &Request<B>) -> Option<String> {
        let fields = request.headers().get_all(HOST).iter().map(|value| value.to_str().unwrap_or_default());
        let target = request.uri().authority().map(|authority| authority.as_str());
        fields.chain(target).find(|authority| !self.know(authority)).map(str::to_owned)
    }
}

/// The host of `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn host_of(authority: &str) -> Option<&str> {
    let is_port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = port.strip_prefix(':').unwrap_or(port);
        return (is_port(port) && host.parse::<Ipv6Addr>().is_ok()).then_some(host);
    }
    match authority.split_once(':') {
        Some((host, port)) => is_port(port).then_some(host),
        None => Some(authority),
    }
}

/// Returns a target with the unreserved characters of its path decoded: the routes are compared without (RFC 3986
/// section 6.2.2.2).
fn decoded(uri: &Uri) -> Uri {
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = decode_unreserved(target).parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// TLS of a listener.
pub(super) struct Handshake {
    pub tls: ServerTls,
    /// From accept to the end of the handshake, and [`Limits::head_time`] at most. Refuse: closed.
    pub within: Duration,
}

/// Limits a log line to one a minute, so that callers cannot fill the log.
#[derive(Default)]
pub(super) struct LogLimiter(Mutex<Option<Instant>>);

impl LogLimiter {
    /// Returns true if the line is due. The next one is due a minute later.
    pub fn due(&self) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = said.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if due {
            *said = Some(Instant::now());
        }
        due
    }
}

/// Shortest time between two lines.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Numbers of all servers for operators and metrics.
pub(super) struct Counted {
    stats: Mutex<AdminStats>,
    board: Arc<Board>,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted { stats: Mutex::default(), board: Arc::new(Board::new(&[AdminStats::MEANINGS])) }
    }
}

impl Counted {
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Changes a number and shows all of them.
    pub fn count(&self, change: impl FnOnce(&mut AdminStats)) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut stats);
        stats.write_to(&self.board, 0);
    }
}

/// The server of some listeners.
pub(super) struct AdminServer {
    service: TowerToHyperService<Router>,
    hosts: Hosts,
    limits: Limits,
    places: Places,
    counted: Arc<Counted>,
    accepts: LogLimiter,
}

impl AdminServer {
    /// A server of these routes.
    pub fn new(router: Router, hosts: Hosts, limits: Limits, counted: Arc<Counted>) -> AdminServer {
        AdminServer {
            service: TowerToHyperService::new(router),
            hosts,
            limits,
            places: Places::new(limits.connections),
            counted,
            accepts: LogLimiter::default(),
        }
    }

    /// Accepts and serves connections for ever.
    pub async fn run(self: Arc<Self>, listener: TcpListener, handshake: Option<Handshake>) {
        let handshake = handshake.map(Arc::new);
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.accept_failed(&error).await;
                    continue;
                }
            };
            let Some((number, place, has_evicted)) = self.places.take() else {
                self.count(|stats| stats.admin_refused += 1);
                continue;
            };
            self.count(|stats| {
                stats.admin_evicted += u64::from(has_evicted);
                stats.admin_connections += 1;
            });
            let (server, handshake) = (Arc::clone(&self), handshake.clone());
            tokio::spawn(async move {
                let serve = async {
                    match handshake {
                        Some(handshake) => server.serve_over_tls(stream, &handshake, &place).await,
                        None => server.serve(stream, &place).await,
                    }
                };
                tokio::select! {
                    () = serve => {}
                    () = place.evicted() => {}
                }
                server.places.give(number);
                server.count(|stats| stats.admin_connections = stats.admin_connections.saturating_sub(1));
            });
        }
    }

    /// Waits a little: neither a lack of descriptors nor a caller that has gone is helped by asking again at once.
    async fn accept_failed(&self, error: &io::Error) {
        self.count(|stats| stats.admin_accept_errors += 1);
        if self.accepts.due() {
            tracing::warn!(%error, "admin connection not accepted");
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    async fn serve_over_tls(&self, stream: TcpStream, handshake: &Handshake, place: &Place) {
        // A silent caller has a place, so TLS gives it no more time than a plain listener does.
        let within = handshake.within.min(self.limits.head_time);
        match tokio::time::timeout(within, self.shake(stream, handshake)).await {
            Ok(Ok(Some(stream))) => self.serve(stream, place).await,
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "admin handshake failed");
                self.count(|stats| stats.admin_tls_handshakes_failed += 1);
            }
            Err(_) => self.count(|stats| stats.admin_tls_handshakes_failed += 1),
        }
    }

    /// Makes the handshake. `None` if the connection has seen all that it requires.
    async fn shake(
        &self,
        stream: TcpStream,
        handshake: &Handshake,
    ) -> io::Result<Option<impl AsyncRead + AsyncWrite + Unpin + Send + use<>>> {
        let (mut read, mut write) = stream.into_split();
        let mut begun = Vec::with_capacity(First::BYTES_MAX);
        let kind = loop {
            match First::of(&begun) {
                First::Unknown if read.read_buf(&mut begun).await? == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                First::Unknown => {}
                kind => break kind,
            }
        };
        if kind != First::Tls {
            self.count(|stats| stats.admin_tls_not_tls += 1);
            write.write_all(kind.last_words()).await?;
            write.shutdown().await?;
            // Closing with unread bytes would reset the connection and destroy the answer.
            let (mut rest, mut sink) = (read.take(HEAD_BYTES_MAX as u64), tokio::io::sink());
            let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut rest, &mut sink)).await;
            return Ok(None);
        }
        // Taken anew for each connection, so that it has the certificates of the last reload.
        let acceptor = TlsAcceptor::from(handshake.tls.config());
        let stream = tokio::io::join(io::Cursor::new(begun).chain(read), write);
        let stream = acceptor.accept(stream).await?;
        // The authority that validates a name has seen all that it requires.
        let is_challenge = stream.get_ref().1.alpn_protocol() == Some(ACME_TLS);
        Ok((!is_challenge).then_some(stream))
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, place: &Place) {
        // A backup takes as long as the store is large.
        let backups = AtomicUsize::new(0);
        let service = service_fn(|request: Request<Incoming>| self.answer(request, &backups, place));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_time)
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        loop {
            match tokio::time::timeout(self.limits.time, &mut connection).await {
                Ok(Err(error)) if error.is_timeout() => return self.count(|stats| stats.admin_timeouts += 1),
                Ok(_) => return,
                Err(_) if backups.load(Ordering::Relaxed) > 0 => {}
                Err(_) => return self.count(|stats| stats.admin_timeouts += 1),
            }
        }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        backups: &AtomicUsize,
        place: &Place,
    ) -> Result<Response, std::convert::Infallible> {
        if let Some(host) = self.hosts.stranger(&request) {
            self.count(|stats| stats.admin_hosts_refused += 1);
            tracing::debug!(host, "admin request refused");
            return Ok((StatusCode::MISDIRECTED_REQUEST, UNKNOWN_HOST).into_response());
        }
        *request.uri_mut() = decoded(request.uri());
        let waits = usize::from(request.uri().path().starts_with("/backups/"));
        backups.fetch_add(waits, Ordering::Relaxed);
        place.waits_for_caller(false);
        let response = self.service.call(request).await;
        place.waits_for_caller(true);
        backups.fetch_sub(waits, Ordering::Relaxed);
        response
    }

    fn count(&self, change: impl FnOnce(&mut AdminStats)) {
        self.counted.count(change);
    }
}

/// RFC 9110 section 15.5.20.
const UNKNOWN_HOST: &str =
    "cannot answer for this Host: it is not an IP address, localhost or in admin.hosts; add it there\n";

#[cfg(test)]
mod tests {
    use tls::{Certificate, MinVersion, Settings, UnknownName};

    use super::*;
    use fixtures::TestCertificates;

    #[tokio::test]
    async fn a_silent_caller_over_tls_loses_its_place_after_the_time_of_a_head() {
        const LONG: Duration = Duration::from_secs(60);
        let papers = TestCertificates::of(&["127.0.0.1"]);
        let certificate = Certificate::read(("cert", &papers.cert()), ("key", &papers.key())).unwrap();
        let settings = Settings {
            certificates: vec![certificate],
            ticket_keys: Vec::new(),
            unknown_name: UnknownName::Refuse,
            min_version: MinVersion::Tls13,
            challenges: None,
            clients: None,
        };
        let handshake = Handshake { tls: ServerTls::new(settings).unwrap(), within: 60 * LONG };
        let limits = Limits { connections: 1, head_time: Duration::from_millis(100), time: LONG };
        let server = AdminServer::new(Router::new(), Hosts::default(), limits, Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = tokio::spawn(Arc::new(server).run(listener, Some(handshake)));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let ended = tokio::time::timeout(LONG, silent.read(&mut [0; 16])).await;
        assert_eq!(ended.expect("closed by the server").unwrap(), 0);
        running.abort();
    }

    #[test]
    fn ip_addresses_localhost_and_configured_names_are_known() {
        let hosts = Hosts::new(vec!["murre.internal".to_owned()]);
        for known in [
            "127.0.0.1",
            "10.1.2.3:8083",
            "[::1]",
            "[fe80::1]:8083",
            "localhost",
            "LocalHost:8083",
            "localhost.",
            "murre.Internal:8083",
        ] {
            assert!(hosts.know(known), "{known}");
        }
        for unknown in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "::1",
            "[::1",
            "[x]",
            "a:b",
            "murre",
        ] {
            assert!(!hosts.know(unknown), "{unknown}");
        }
    }

    #[test]
    fn every_name_of_a_request_must_be_known() {
        let request = |target: &str, hosts: &[&str]| {
            let mut request = Request::builder().uri(target);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            Hosts::default().stranger(&request.body(()).unwrap())
        };
        assert_eq!(request("/", &[]), None);
        assert_eq!(request("/", &["127.0.0.1"]), None);
        assert_eq!(request("/", &["127.0.0.1", "evil.example"]).as_deref(), Some("evil.example"));
        assert_eq!(request("http://evil.example/", &["127.0.0.1"]).as_deref(), Some("evil.example"));
    }

    #[test]
    fn unreserved_characters_of_a_path_are_decoded() {
        for (target, wanted) in [
            ("/%6Detrics?a=%2D", "/metrics?a=-"),
            ("/backups/a%2Fb%2D", "/backups/a%2Fb-"),
            ("http://h/%68ealth", "http://h/health"),
            ("*", "*"),
            ("/", "/"),
        ] {
            assert_eq!(decoded(&target.parse().unwrap()), wanted.parse::<Uri>().unwrap(), "{target}");
        }
    }

    #[test]
    fn few_descriptors_leave_room_for_few_connections() {
        assert_eq!(LIMITS.within(1 << 20).connections, 64);
        assert_eq!(LIMITS.within(256).connections, 32);
        assert_eq!(LIMITS.within(3).connections, 1);
    }
}
