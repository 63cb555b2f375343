//! One HTTP/1.1 request to a server of another operator, over a connection of its own. Lives on the control plane.
//!
//! No pool and no keep-alive: what calls out does so rarely. Every part is bounded: lookups under way, addresses tried,
//! bytes of head and body; time is the caller's to bound. Proxies of the environment are not used. TLS is rustls with
//! the root certificates of this host.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tls::Certificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::resolver::{Resolver, resolve_by_system};
use super::retry_after::retry_after;
use protocol::wire::url::{HttpUrl, Origin};

/// HTTP client of the control plane.
pub(super) struct HttpClient {
    /// Made at the first call that needs it: the root certificates are a file of some hundred KiB.
    tls: OnceLock<TlsConnector>,
    lookups: Arc<Resolver>,
}

/// TCP, or TLS over it.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Response, as far as a caller needs it.
pub(super) struct HttpResponse {
    pub status: StatusCode,
    /// The field `Location`, if it is a text.
    pub location: Option<String>,
    /// Time for which a server that is down or has too many requests asks to wait. Unbounded.
    pub pause: Option<Duration>,
    /// Empty unless the status is 2xx and the caller wanted a body.
    pub body: Bytes,
}

/// Reason for the lack of a useful answer. The texts are for the log and hold nothing that was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum HttpClientError {
    /// Not complete in time.
    Timeout,
    /// There is no such name, no connection, or the connection broke.
    Connect(String),
    /// A certificate that is not trusted for the name of the server.
    Untrusted(String),
    /// A status that the caller does not accept.
    Status(StatusCode),
    /// A body that is too large, incomplete or not what was asked for.
    Body(String),
    Redirect(&'static str),
}

impl HttpClientError {
    pub(super) fn is_untrusted(&self) -> bool {
        matches!(self, HttpClientError::Untrusted(_))
    }
}

impl fmt::Display for HttpClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpClientError::Timeout => f.write_str("no complete answer in time"),
            HttpClientError::Connect(why) => write!(f, "cannot talk to it: {why}"),
            HttpClientError::Untrusted(why) => write!(f, "its certificate is not trusted: {why}"),
            HttpClientError::Status(status) => write!(f, "it answers {status}"),
            HttpClientError::Body(why) => write!(f, "its answer cannot be used: {why}"),
            HttpClientError::Redirect(why) => write!(f, "its redirect is not followed: {why}"),
        }
    }
}

impl Error for HttpClientError {}

impl HttpClient {
    pub fn new() -> HttpClient {
        let lookups = Resolver::new(resolve_by_system);
        HttpClient { tls: OnceLock::new(), lookups }
    }

    /// One that trusts these certificates and no others.
    #[cfg(test)]
    pub fn trusting(roots: RootCertStore) -> HttpClient {
        HttpClient::configured(with_roots(roots))
    }

    /// One with this configuration of TLS.
    pub fn configured(config: ClientConfig) -> HttpClient {
        HttpClient { tls: TlsConnector::from(Arc::new(config)).into(), ..HttpClient::new() }
    }

    /// One that trusts the certificates of this PEM file and no others.
    ///
    /// # Errors
    /// If it cannot be read, or holds none.
    pub fn trusting_file(path: &Path) -> std::io::Result<HttpClient> {
        Ok(HttpClient::configured(client_config(Some(path))?))
    }

    /// One that shows this certificate to servers that ask for one. It trusts the certificates of this PEM file, or
    /// those of this host.
    ///
    /// # Errors
    /// If the file cannot be read, or holds no certificate.
    pub fn showing(ca: Option<&Path>, own: &Certificate) -> std::io::Result<HttpClient> {
        let mut config = client_config(ca)?;
        config.client_auth_cert_resolver = own.for_client();
        Ok(HttpClient::configured(config))
    }

    /// Sends `request` to `url`; the head is completed here. With `body_bytes_max` 0 a body is not even read.
    ///
    /// # Errors
    /// [`HttpClientError::Connect`], [`HttpClientError::Untrusted`] and [`HttpClientError::Body`]. Any status is an
    /// answer.
    pub async fn call(
        &self,
        url: &HttpUrl,
        request: Request<String>,
        body_bytes_max: usize,
    ) -> Result<HttpResponse, HttpClientError> {
        let of_status = |status: StatusCode| if status.is_success() { body_bytes_max } else { 0 };
        let (head, body) = self.send(url, request, of_status).await?.into_parts();
        let location = head.headers.get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let is_busy = matches!(head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let pause = retry_after(&head.headers, SystemTime::now()).filter(|_| is_busy);
        Ok(HttpResponse { status: head.status, location, pause, body })
    }

    /// As [`HttpClient::call`], but returns the whole head. Reads as many bytes of the body as `body_bytes_max` says
    /// for a status.
    ///
    /// # Errors
    /// As [`HttpClient::call`].
    pub async fn send<B>(
        &self,
        url: &HttpUrl,
        mut request: Request<B>,
        body_bytes_max: impl Fn(StatusCode) -> usize,
    ) -> Result<Response<Bytes>, HttpClientError>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let origin = url.origin();
        *request.uri_mut() = url.target().parse::<Uri>().map_err(|error| broken(&error))?;
        let authority = HeaderValue::try_from(origin.authority()).map_err(|error| broken(&error))?;
        request.headers_mut().insert(HOST, authority);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        exchange(self.open(origin).await?, request, body_bytes_max).await
    }

    /// A connection to speak HTTP on.
    ///
    /// # Errors
    /// [`HttpClientError::Connect`] and [`HttpClientError::Untrusted`].
    pub async fn open(&self, origin: &Origin) -> Result<Box<dyn Stream>, HttpClientError> {
        let stream = self.connect(origin).await?;
        // Requests are one segment or two; the answer is waited for.
        stream.set_nodelay(true).map_err(|error| broken(&error))?;
        if !origin.https {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(origin.host.clone()).map_err(|error| broken(&error))?;
        let tls = self.tls.get_or_init(|| TlsConnector::from(Arc::new(with_roots(host_roots()))));
        Ok(Box::new(tls.connect(name, stream).await.map_err(|error| unshaken(&error))?))
    }

    /// The first address of this host that takes a connection.
    async fn connect(&self, origin: &Origin) -> Result<TcpStream, HttpClientError> {
        let mut addresses = self.resolve(&origin.host, origin.port).await?;
        addresses.truncate(ADDRESSES_MAX);
        let last =
            addresses.pop().ok_or_else(|| HttpClientError::Connect(format!("{} has no address", origin.host)))?;
        for address in addresses {
            if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(address)).await {
                return Ok(stream);
            }
        }
        TcpStream::connect(last).await.map_err(|error| broken(&error))
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, HttpClientError> {
        let ips = match host.parse::<IpAddr>() {
            Ok(ip) => Arc::from([ip]),
            Err(_) => Resolver::of(&self.lookups, host).await.map_err(HttpClientError::Connect)?,
        };
        if ips.is_empty() {
            return Err(HttpClientError::Connect(format!("{host} has no address")));
        }
        Ok(ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
    }
}

/// Addresses of one host that are tried. The others are left out.
const ADDRESSES_MAX: usize = 4;
/// For every address but the last: a lost SYN is sent again after a second (RFC 6298 section 2.1).
const CONNECT_PATIENCE: Duration = Duration::from_millis(1_500);
/// Bytes of a head, and of what is read ahead of a body. Refuse: [`HttpClientError::Connect`].
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// `User-Agent` of every call.
pub(super) const AGENT: &str = concat!("murre/", env!("CARGO_PKG_VERSION"));

async fn exchange<B>(
    stream: Box<dyn Stream>,
    request: Request<B>,
    body_bytes_max: impl Fn(StatusCode) -> usize,
) -> Result<Response<Bytes>, HttpClientError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let mut builder = http1::Builder::new();
    let made = builder.max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = made.map_err(|error| broken(&error))?;
    // Dropping the set ends the connection with this call, however that ends.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (head, body) = sender.send_request(request).await.map_err(|error| broken(&error))?.into_parts();
    let most = body_bytes_max(head.status);
    if most == 0 {
        return Ok(Response::from_parts(head, Bytes::new()));
    }
    let read = Limited::new(body, most).collect().await;
    let body = read.map_err(|error| HttpClientError::Body(said(&*error)))?.to_bytes();
    Ok(Response::from_parts(head, body))
}

/// A TLS client that trusts the certificates of this PEM file and no others, or those of this host.
///
/// # Errors
/// If the file cannot be read, or holds no certificate.
pub fn client_config(ca: Option<&Path>) -> std::io::Result<ClientConfig> {
    let Some(path) = ca else { return Ok(with_roots(host_roots())) };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(std::io::Error::other)? {
        let certificate = certificate.map_err(std::io::Error::other)?;
        roots.add(certificate).map_err(std::io::Error::other)?;
    }
    if roots.is_empty() {
        return Err(std::io::Error::other("there is no certificate in it"));
    }
    Ok(with_roots(roots))
}

fn with_roots(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(tls::provider()))
        .with_safe_default_protocol_versions()
        // Invariant: this provider has cipher suites for TLS 1.2 and 1.3; every test over TLS comes through here.
        .expect("the provider suits the protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Returns the root certificates of this host: the system's bundle, or the file that `SSL_CERT_FILE` names.
fn host_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        tracing::warn!(
            "root certificates not found, calls to https servers will fail; install ca-certificates, or name a file of \
             PEM certificates in SSL_CERT_FILE"
        );
    }
    roots
}

/// Tells a certificate that is not trusted from a broken connection.
fn unshaken(error: &std::io::Error) -> HttpClientError {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(why)) => HttpClientError::Untrusted(tls::distrust(why)),
        _ => broken(error),
    }
}

fn broken(error: &dyn Error) -> HttpClientError {
    HttpClientError::Connect(said(error))
}

/// An error with its causes; those of hyper say little without them.
pub(super) fn said(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
