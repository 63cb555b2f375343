//! The listeners: TLS, HTTP/2 or HTTP/1.1, and the faults of answers.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::answer::{Answer, Fault, Service};
use crate::jwt::now;
use crate::papers::Papers;
use crate::record::{Call, Inner, State};
use crate::wire::{Frames, Wire};
use crate::{apns, fcm, google};

/// Listener of one operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Google,
    Apple,
}

/// Shows the certificate that the script names.
struct Certificates {
    papers: Papers,
    state: Arc<State>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let kind = self.state.lock().script.certificate;
        Some(self.papers.of(kind))
    }
}

fn acceptor(kind: Kind, papers: Papers, state: &Arc<State>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::clone(&papers.roots);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider suits the protocol versions");
    let builder = if kind == Kind::Apple {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).allow_unauthenticated();
        builder.with_client_cert_verifier(verifier.build().expect("there is a root certificate"))
    } else {
        builder.with_no_client_auth()
    };
    let resolver = Certificates { papers, state: Arc::clone(state) };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = match kind {
        Kind::Google => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Kind::Apple => vec![b"h2".to_vec()],
    };
    TlsAcceptor::from(Arc::new(config))
}

/// Serves until the task is dropped, and its connections with it.
pub(crate) async fn listen(listener: TcpListener, kind: Kind, papers: Papers, state: Arc<State>) {
    let acceptor = acceptor(kind, papers, &state);
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
        connections.spawn(serve(acceptor, stream, kind, state));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, kind: Kind, state: Arc<State>) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let number = {
        let mut inner = state.lock();
        inner.connections += 1;
        inner.connections
    };
    let (_, session) = stream.get_ref();
    let connection = Connection {
        kind,
        number,
        has_certificate: session.peer_certificates().is_some(),
        open: AtomicUsize::new(0),
        frames: Frames::default(),
        state,
    };
    // APNs speaks HTTP/2 only, also with a provider that offers no protocol, as aioapns does.
    if kind == Kind::Apple || session.alpn_protocol() == Some(b"h2") {
        connection.serve_http2(stream).await;
    } else {
        connection.serve_http1(stream).await;
    }
}

struct Connection {
    kind: Kind,
    number: u64,
    has_certificate: bool,
    /// Streams without a whole answer.
    open: AtomicUsize,
    frames: Frames,
    state: Arc<State>,
}

/// Streams at a time that a service allows.
const STREAMS: u32 = 1_000;

impl Connection {
    async fn serve_http2(self, stream: TlsStream<TcpStream>) {
        let wanted = self.streams();
        // A connection of token-based trust starts with one stream.
        let first = if self.kind == Kind::Apple && !self.has_certificate { 1 } else { wanted };
        let wire = Wire::new(stream, self.frames.clone(), first);
        let Ok(mut http) = h2::server::Builder::new().handshake::<_, Bytes>(wire).await else { return };
        let this = Arc::new(self);
        let mut streams = JoinSet::new();
        while let Some(Ok((request, respond))) = http.accept().await {
            let open = this.open.fetch_add(1, Ordering::SeqCst) + 1;
            this.check_streams(open);
            let this = Arc::clone(&this);
            streams.spawn(async move {
                let _ = this.answer_stream(request, respond).await;
                this.open.fetch_sub(1, Ordering::SeqCst);
            });
            while streams.try_join_next().is_some() {}
        }
    }

    fn streams(&self) -> u32 {
        let chosen = self.state.lock().script.streams;
        if chosen == 0 { STREAMS } else { chosen }
    }

    fn check_streams(&self, open: usize) {
        let mut inner = self.state.lock();
        inner.streams_max = inner.streams_max.max(open);
        if let Some(limit) = self.frames.limit().filter(|limit| open > *limit as usize) {
            let service = if self.kind == Kind::Apple { Service::Apns } else { Service::Fcm };
            inner.violation(service, &format!("{open} streams at a time, and SETTINGS allow {limit}"));
        }
    }

    async fn answer_stream(
        &self,
        request: Request<h2::RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let (head, mut body) = request.into_parts();
        let mut bytes = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            let _ = body.flow_control().release_capacity(chunk.len());
            bytes.extend_from_slice(&chunk);
        }
        let target = head.uri.path().to_owned();
        let answer = self.answer(head.method.as_str(), &target, &head.headers, &bytes);
        tokio::time::sleep(answer.delay).await;
        let stream = respond.stream_id().as_u32();
        match answer.fault {
            None | Some(Fault::Slow | Fault::ResetAfterHeaders) => {}
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Refused) => {
                respond.send_reset(Reason::REFUSED_STREAM);
                return Ok(());
            }
            Some(Fault::GoAwayBefore) => {
                self.frames.put_goaway(stream.saturating_sub(2), r#"{"reason":"Shutdown"}"#);
                tokio::time::sleep(Duration::from_millis(500)).await;
                self.frames.close();
                return Ok(());
            }
            Some(Fault::GoAwayMidStream) => {
                self.frames.put_goaway(stream, r#"{"reason":"IdleTimeout"}"#);
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.frames.close();
                return Ok(());
            }
            Some(Fault::Close) => {
                self.frames.close();
                return Ok(());
            }
            Some(Fault::EndlessHeaders) => {
                self.frames.put_endless_headers(stream);
                std::future::pending().await
            }
        }
        if answer.is_authenticated && self.kind == Kind::Apple && self.frames.limit() == Some(1) {
            let wanted = self.streams();
            if wanted != 1 {
                self.frames.put_limit(wanted);
            }
        }
        let mut response = Response::builder().status(answer.status);
        for (name, value) in &answer.headers {
            response = response.header(*name, value);
        }
        let Ok(response) = response.body(()) else { return Ok(()) };
        let body = Bytes::from(answer.body);
        let mut send = respond.send_response(response, body.is_empty())?;
        match answer.fault {
            Some(Fault::ResetAfterHeaders) => send.send_reset(Reason::INTERNAL_ERROR),
            Some(Fault::Slow) => {
                for at in 0..body.len() {
                    send.send_data(body.slice(at..=at), at + 1 == body.len())?;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            _ if body.is_empty() => {}
            _ => send.send_data(body, true)?,
        }
        Ok(())
    }

    async fn serve_http1(self, stream: TlsStream<TcpStream>) {
        let this = Arc::new(self);
        let service = service_fn(|request: Request<Incoming>| {
            let this = Arc::clone(&this);
            async move {
                let (head, body) = request.into_parts();
                let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let answer = this.answer(head.method.as_str(), head.uri.path(), &head.headers, &bytes);
                tokio::time::sleep(answer.delay).await;
                if answer.fault.is_some() {
                    std::future::pending::<()>().await;
                }
                let mut response = Response::builder().status(answer.status);
                for (name, value) in &answer.headers {
                    response = response.header(*name, value);
                }
                let response = response.body(Full::new(Bytes::from(answer.body)));
                Ok::<_, Infallible>(response.unwrap_or_default())
            }
        });
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    /// Notes the call and returns its answer.
    fn answer(&self, method: &str, path: &str, headers: &HeaderMap, body: &[u8]) -> Answer {
        let service = match self.kind {
            Kind::Apple => Service::Apns,
            Kind::Google if self.state.token_uri.ends_with(path) && path != "/" => Service::Token,
            Kind::Google => Service::Fcm,
        };
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut call = Call {
            service,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect(),
            body: String::from_utf8_lossy(body).into_owned(),
            connection: self.number,
            has_certificate: self.has_certificate,
            claims: None,
            status: 0,
        };
        let inner: &mut Inner = &mut self.state.lock();
        let answer = match service {
            Service::Token => google::answer(&self.state, inner, &mut call),
            Service::Fcm => fcm::answer(inner, &call),
            Service::Apns => apns::answer(&self.state, inner, &mut call),
        };
        let clock = now().saturating_add(inner.script.clock_ahead).unsigned_abs();
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(clock);
        let answer = answer.with("date", httpdate::fmt_http_date(date));
        call.status = if answer.fault.is_some() { 0 } else { answer.status };
        inner.note(call);
        answer
    }
}
